//! What was delivered and not settled: found, taken over, fetched. And what a shard holds.

use std::time::Duration;

use redis::Value;

use super::entry::{self, Entry};
use super::reader::Reader;
use super::{Stream, failure};
use crate::event::EntryId;
use crate::failure::Failure;

/// Ids asked for in one command.
const PAGE: usize = 1000;

/// What one pass over the pending list of others has brought.
#[derive(Debug, Default)]
pub struct Claimed {
    /// Now ours, in id order.
    pub ids: Vec<EntryId>,
    /// Deleted from the stream while they were pending; the server has dropped them.
    pub gone: Vec<EntryId>,
}

impl Reader {
    /// Every entry that is pending under our own name.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn own_pending(&mut self) -> Result<Vec<EntryId>, Failure> {
        let mut ids: Vec<EntryId> = Vec::new();
        loop {
            let start = ids.last().map_or_else(|| "-".to_owned(), |last| format!("({last}"));
            let mut command = redis::cmd("XPENDING");
            command.arg(&self.key).arg(&*self.stream.group).arg(start).arg("+").arg(PAGE);
            command.arg(&*self.stream.consumer);
            let page: Value = self.ask("listing what is pending here", &command).await?;
            let before = ids.len();
            ids.extend(entry::array(page).into_iter().filter_map(|row| entry::entry_id(entry::array(row).first()?)));
            if ids.len() - before < PAGE {
                return Ok(ids);
            }
        }
    }

    /// Takes over every entry that has been idle for `min_idle`, whoever holds it. The cursor is
    /// carried to the end of the list: one call looks at ten times COUNT entries and may find none.
    /// JUSTID leaves the delivery counter alone.
    /// See <https://redis.io/docs/latest/commands/xautoclaim/>.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn claim_idle(&mut self, min_idle: Duration) -> Result<Claimed, Failure> {
        let mut claimed = Claimed::default();
        let mut cursor = "0-0".to_owned();
        loop {
            let mut command = redis::cmd("XAUTOCLAIM");
            command.arg(&self.key).arg(&*self.stream.group).arg(&*self.stream.consumer);
            command.arg(min_idle.as_millis() as u64).arg(&cursor).arg("COUNT").arg(PAGE).arg("JUSTID");
            let reply: Value = self.ask("taking over pending entries", &command).await?;
            let mut parts = entry::array(reply).into_iter();
            let next = parts.next().as_ref().and_then(entry::entry_id).unwrap_or_default();
            claimed.ids.extend(ids(parts.next()));
            claimed.gone.extend(ids(parts.next()));
            if next == EntryId::default() {
                claimed.ids.sort_unstable();
                return Ok(claimed);
            }
            cursor = next.to_string();
        }
    }

    /// The entries behind `ids`, in that order; an id whose entry was deleted comes back alone.
    /// One XRANGE each: a single range would bring everything in between.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn fetch(&mut self, ids: &[EntryId]) -> Result<Vec<Result<Entry, EntryId>>, Failure> {
        let mut pipe = redis::pipe();
        for id in ids {
            pipe.cmd("XRANGE").arg(&self.key).arg(id.to_string()).arg(id.to_string());
        }
        let replies = self.ask_all("fetching pending entries", &pipe).await?;
        Ok(ids.iter().zip(replies).map(|(id, reply)| entry::from_range(reply).into_iter().next().ok_or(*id)).collect())
    }
}

fn ids(value: Option<Value>) -> Vec<EntryId> {
    entry::array(value.unwrap_or_default()).iter().filter_map(entry::entry_id).collect()
}

/// What one shard holds, as the server sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardState {
    /// Entries in the stream, settled ones included: not a backlog.
    pub length: u64,
    /// The newest id ever added.
    pub last_id: EntryId,
    /// Dead letters.
    pub dead: u64,
    /// Entries not yet delivered to the group; `None` where the server does not know, as after XDEL.
    pub unread: Option<u64>,
    /// Entries delivered and not settled.
    pub pending: u64,
    /// The oldest of them.
    pub oldest_pending: Option<EntryId>,
}

impl Stream {
    /// Asks for the state of one shard.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn shard_state(&self, shard: u16) -> Result<ShardState, Failure> {
        type Reply = (u64, String, u64, bool, String, i64, u64, bool, String);
        let doing = "asking for a shard's state";
        let mut connection = self.connection(doing).await?;
        let reply: Reply = redis::cmd("EVAL")
            .arg(include_str!("lua/shard_state.lua"))
            .arg(2)
            .arg(self.keys.events(shard))
            .arg(self.keys.dead(shard))
            .arg(&*self.group)
            .query_async(&mut connection)
            .await
            .map_err(|error| failure(&error, doing))?;
        let (length, last_id, dead, has_group, _, lag, pending, any_unread, oldest) = reply;
        let unread = match (has_group, any_unread) {
            (_, false) => Some(0),
            (false, true) => Some(length),
            (true, true) => u64::try_from(lag).ok(),
        };
        Ok(ShardState {
            length,
            last_id: EntryId::parse(last_id.as_bytes()).unwrap_or_default(),
            dead,
            unread,
            pending,
            oldest_pending: EntryId::parse(oldest.as_bytes()),
        })
    }

    /// Whether nothing at or below `target` is undelivered or pending on `shard`.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn is_drained(&self, shard: u16, target: EntryId) -> Result<bool, Failure> {
        let doing = "asking whether a shard is drained";
        let mut connection = self.connection(doing).await?;
        redis::cmd("EVAL")
            .arg(include_str!("lua/drained.lua"))
            .arg(1)
            .arg(self.keys.events(shard))
            .arg(&*self.group)
            .arg(target.to_string())
            .query_async(&mut connection)
            .await
            .map_err(|error| failure(&error, doing))
    }
}
