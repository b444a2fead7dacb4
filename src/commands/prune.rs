//! `hexlane prune`: removes tombstones and ledger rows that are old enough.

use std::io::Write;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};

use crate::cli::PruneArgs;
use crate::store::prune::Expired;
use crate::stream::Stream;
use crate::stream::oldest::Oldest;

/// Runs the command.
///
/// # Errors
/// A sentence for the user.
pub async fn run(args: PruneArgs) -> Result<(), String> {
    let stream = args.redis.stream().await?;
    let store = args.database.store("hexlane prune", args.dedup_window).await?;
    store.check_pooling().await?;
    store.check_schema().await?;
    store.inspect().await?.check_rights(&["SELECT", "UPDATE", "DELETE"])?;
    let (from, oldest) = counted_from(&stream).await?;
    let mut out = String::new();
    let stamp = |time: DateTime<Utc>| time.to_rfc3339_opts(SecondsFormat::Secs, true);
    match oldest {
        // Whatever lies there may still be written, or sent back; so its time is the one to count from.
        Some(Oldest { stream, id, .. }) => {
            out.push_str(&format!("counting from {}, when the oldest entry came: {id} in {stream}\n", stamp(from)));
        }
        None => out.push_str(&format!("counting from {}, now: the streams are empty\n", stamp(from))),
    }
    for (expired, what, age) in [
        (Expired::Tombstones, "tombstones", args.tombstone_retention),
        (Expired::EventIds, "event ids", args.dedup_window),
    ] {
        let before = before(from, age);
        let count = store.prune(expired, before, args.dry_run).await?;
        let verb = if args.dry_run { "would remove" } else { "removed" };
        out.push_str(&format!("{verb} {count} {what} from before {}\n", stamp(before)));
    }
    std::io::stdout().write_all(out.as_bytes()).map_err(|error| error.to_string())
}

/// The time from which ages count back, and what sets it.
async fn counted_from(stream: &Stream) -> Result<(DateTime<Utc>, Option<Oldest>), String> {
    stream.sync_clock().await?;
    let now_ms = stream.server_now_ms();
    let oldest = stream.oldest().await?;
    let entered_ms = oldest.as_ref().map(|oldest| i64::try_from(oldest.entered.ms).unwrap_or(i64::MAX));
    let from = DateTime::from_timestamp_millis(entered_ms.unwrap_or(now_ms).min(now_ms)).unwrap_or_default();
    Ok((from, oldest))
}

fn before(from: DateTime<Utc>, age: Duration) -> DateTime<Utc> {
    chrono::TimeDelta::from_std(age).ok().and_then(|age| from.checked_sub_signed(age)).unwrap_or_default()
}
