//! Entries that nobody needs any more leave the stream.

use super::{Stream, script};
use crate::event::EntryId;
use crate::failure::Failure;

/// Entries removed in one script, at the most: bounds how long Redis is busy with it.
const MOST: usize = 20_000;

/// What one step of trimming has found and done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trimmed {
    /// Every entry below this one is settled, for every group on the stream.
    pub settled: EntryId,
    /// Entries removed.
    pub removed: u64,
    /// Whether there is more to remove.
    pub more: bool,
    /// Whether the server has nearly reached its `maxmemory`.
    pub is_full: bool,
}

impl Stream {
    /// Removes a number of entries below `bound` that no group on the stream needs: neither unread
    /// nor pending. With `0-0` it only looks. Works at the memory limit.
    /// See <https://redis.io/docs/latest/commands/xtrim/>.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn trim(&self, shard: u16, bound: EntryId) -> Result<Trimmed, Failure> {
        let mut command = script(include_str!("lua/trim.lua"), &[self.keys.events(shard)]);
        let reply: (String, u64, bool, bool) =
            self.ask("trimming", command.arg(&*self.group).arg(bound).arg(MOST)).await?;
        let (settled, removed, more, is_full) = reply;
        Ok(Trimmed { settled: EntryId::parse(settled.as_bytes()).unwrap_or_default(), removed, more, is_full })
    }
}
