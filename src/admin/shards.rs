//! What the shards of this worker hold, asked for each scrape: what a task remembers may be a dead
//! task's last word.

use std::collections::VecDeque;
use std::time::Duration;

use prometheus::{Encoder, GaugeVec, Opts, Registry, TextEncoder};

use tokio::time::Instant;

use crate::event::EntryId;
use crate::stream::pending::ShardState;

/// What counts as recent.
const RECENT: Duration = Duration::from_secs(300);
/// Between two looks that are remembered.
const APART: Duration = Duration::from_secs(15);

/// Measures of one scrape, in the Prometheus text format.
///
/// # Errors
/// Only if two measures bore one name, or one cannot be written down.
pub(super) fn exposition(
    owned: &[(u16, ShardState)],
    skew: Option<f64>,
    now_ms: i64,
) -> Result<Vec<u8>, prometheus::Error> {
    let registry = Registry::new();
    let gauge = |name: &str, help: &str, labels: &[&str]| {
        let gauge = GaugeVec::new(Opts::new(name, help), labels)?;
        registry.register(Box::new(gauge.clone()))?;
        Ok::<_, prometheus::Error>(gauge)
    };
    let by_shard = |name: &str, help: &str| gauge(name, help, &["shard"]);
    let lag = by_shard("hexlane_lag", "Entries not yet delivered to the group.")?;
    let pending = by_shard("hexlane_pending", "Entries delivered and not settled.")?;
    let oldest = by_shard("hexlane_oldest_pending_seconds", "Since the oldest pending entry entered its stream.")?;
    let dead = by_shard("hexlane_dead_letter_entries", "Dead letters that lie there now.")?;
    let dead_oldest = by_shard("hexlane_dead_letter_oldest_seconds", "Since the oldest of them was written.")?;
    for (shard, state) in owned {
        let shard = shard.to_string();
        let label = [shard.as_str()];
        // Absent where the server does not know it, as after somebody's XDEL.
        if let Some(unread) = state.unread {
            lag.with_label_values(&label).set(unread as f64);
        }
        pending.with_label_values(&label).set(state.pending as f64);
        let age = |id: Option<EntryId>| id.map_or(0.0, |id| id.seconds_until(now_ms));
        oldest.with_label_values(&label).set(age(state.oldest_pending));
        dead.with_label_values(&label).set(state.dead as f64);
        dead_oldest.with_label_values(&label).set(age(state.oldest_dead));
    }
    let skew_of_shards = gauge(
        "hexlane_shard_skew",
        "Entries that came to the busiest shard within the last five minutes / to the mean shard.",
        &[],
    )?;
    if let Some(value) = skew {
        skew_of_shards.with_label_values::<&str>(&[]).set(value);
    }
    let mut text = Vec::new();
    TextEncoder::new().encode(&registry.gather(), &mut text)?;
    Ok(text)
}

/// What ever came to each shard, as it was at some looks.
#[derive(Debug, Default)]
pub struct Recent(VecDeque<(Instant, Vec<Option<u64>>)>);

impl Recent {
    /// However often somebody scrapes, Redis is not asked more often than this.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.0.back().is_none_or(|(seen, added)| added.is_empty() || now.duration_since(*seen) >= APART)
    }

    pub(super) fn look(&mut self, now: Instant, added: Vec<Option<u64>>) {
        // Before a worker knows how many shards there are it asks for none.
        self.0.retain(|(_, before)| before.len() == added.len());
        self.0.push_back((now, added));
        while self.0.get(1).is_some_and(|(seen, _)| now.duration_since(*seen) >= RECENT) {
            self.0.pop_front();
        }
    }

    /// The busiest shard against the mean, by what came from about [`RECENT`] ago, or from the first look, to the
    /// last; none where nothing came.
    pub(super) fn skew(&self) -> Option<f64> {
        let ((_, first), (_, last)) = (self.0.front()?, self.0.back()?);
        let came = first.iter().zip(last).map(|(before, now)| now.zip(*before));
        let came: Vec<u64> = came.map(|pair| pair.map_or(0, |(now, before)| now.saturating_sub(before))).collect();
        skew(came.into_iter())
    }
}

/// The fullest against the mean; none where there is nothing.
pub(crate) fn skew(lengths: impl ExactSizeIterator<Item = u64> + Clone) -> Option<f64> {
    let count = lengths.len() as f64;
    let sum: u64 = lengths.clone().sum();
    let most = lengths.max().filter(|most| *most > 0)?;
    Some(most as f64 * count / sum as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(recent: &mut Recent, at: Instant, added: &[u64]) -> Option<f64> {
        recent.look(at, added.iter().copied().map(Some).collect());
        recent.skew()
    }

    #[test]
    fn what_was_seen_before_the_shards_were_known_is_no_measure() {
        let (now, mut recent) = (Instant::now(), Recent::default());
        assert_eq!(look(&mut recent, now, &[]), None);
        assert!(recent.is_due(now), "it may be known by now");
        assert_eq!(look(&mut recent, now, &[1, 1]), None);
        assert_eq!(look(&mut recent, now, &[3, 1]), Some(2.0));
        assert!(!recent.is_due(now + Duration::from_secs(14)) && recent.is_due(now + Duration::from_secs(15)));
    }

    #[test]
    fn only_what_came_lately_makes_a_shard_busy() {
        let (start, mut recent) = (Instant::now(), Recent::default());
        let mut at = |seconds, added: [u64; 2]| look(&mut recent, start + Duration::from_secs(seconds), &added);
        assert_eq!(at(0, [1_000_000, 0]), None, "nothing is known of before");
        assert_eq!(at(15, [1_000_000, 0]), None, "nothing came");
        assert_eq!(at(30, [1_000_030, 10]), Some(1.5));
        assert_eq!(at(100, [1_000_030, 30]), Some(1.0));
        assert_eq!(at(400, [1_000_030, 50]), Some(2.0), "what the first got is long ago");
        assert_eq!(at(415, [0, 60]), Some(2.0), "a stream was deleted");
    }
}
