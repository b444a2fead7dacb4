//! What the shards of this worker hold, asked for each scrape: what a task remembers may be a dead
//! task's last word.

use prometheus::{Encoder, GaugeVec, Opts, Registry, TextEncoder};

use crate::event::EntryId;
use crate::stream::pending::ShardState;

/// Measures of one scrape, in the Prometheus text format.
///
/// # Errors
/// Only if two measures bore one name, or one cannot be written down.
pub(super) fn exposition(
    owned: &[(u16, ShardState)],
    lengths: &[u64],
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
        "Entries in the fullest stream / in the mean stream; each holds what came within --retention, and its backlog.",
        &[],
    )?;
    if let Some(value) = skew(lengths.iter().copied()) {
        skew_of_shards.with_label_values::<&str>(&[]).set(value);
    }
    let mut text = Vec::new();
    TextEncoder::new().encode(&registry.gather(), &mut text)?;
    Ok(text)
}

/// The fullest against the mean; none where there is nothing.
pub(crate) fn skew(lengths: impl ExactSizeIterator<Item = u64> + Clone) -> Option<f64> {
    let count = lengths.len() as f64;
    let sum: u64 = lengths.clone().sum();
    let most = lengths.max().filter(|most| *most > 0)?;
    Some(most as f64 * count / sum as f64)
}
