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

/// What came to each shard, from scrape to scrape.
#[derive(Debug, Default)]
pub struct Recent(VecDeque<(Instant, Vec<Option<u64>>)>);

impl Recent {
    /// The busiest shard against the mean, by what came since about [`RECENT`] ago, or since the first look;
    /// none where nothing came. `added` is what ever came to each.
    pub(super) fn skew(&mut self, now: Instant, added: Vec<Option<u64>>) -> Option<f64> {
        // Before a worker knows how many shards there are it asks for none.
        self.0.retain(|(_, before)| before.len() == added.len());
        while self.0.get(1).is_some_and(|(seen, _)| now.duration_since(*seen) >= RECENT) {
            self.0.pop_front();
        }
        let came = self.0.front().map(|(_, before)| {
            let pairs = before.iter().zip(&added);
            pairs.map(|(before, now)| now.zip(*before).map_or(0, |(now, before)| now.saturating_sub(before))).collect()
        });
        if self.0.back().is_none_or(|(seen, _)| now.duration_since(*seen) >= APART) {
            self.0.push_back((now, added));
        }
        let came: Vec<u64> = came?;
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

    #[test]
    fn what_was_seen_before_the_shards_were_known_is_no_measure() {
        let mut recent = Recent::default();
        assert_eq!(recent.skew(Instant::now(), Vec::new()), None);
        assert_eq!(recent.skew(Instant::now(), vec![Some(1), Some(1)]), None);
        assert_eq!(recent.skew(Instant::now(), vec![Some(3), Some(1)]), Some(2.0));
    }

    #[test]
    fn only_what_came_lately_makes_a_shard_busy() {
        let (start, mut recent) = (Instant::now(), Recent::default());
        let mut at =
            |seconds, added: [u64; 2]| recent.skew(start + Duration::from_secs(seconds), added.map(Some).to_vec());
        assert_eq!(at(0, [1_000_000, 0]), None, "nothing is known of before");
        assert_eq!(at(5, [1_000_000, 0]), None, "nothing came");
        assert_eq!(at(20, [1_000_030, 10]), Some(1.5));
        assert_eq!(at(100, [1_000_030, 30]), Some(1.0));
        assert_eq!(at(400, [1_000_030, 50]), Some(2.0), "what the first got is long ago");
        assert_eq!(at(410, [0, 60]), Some(2.0), "a stream was deleted");
    }
}
