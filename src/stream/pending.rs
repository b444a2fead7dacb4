//! What was delivered and not settled: found, taken over, fetched. And what a shard holds.

use redis::Value;

use super::entry::{self, Entry};
use super::reader::Reader;
use super::{Stream, script};
use crate::event::EntryId;
use crate::failure::Failure;

/// Ids asked for in one command.
const PAGE: usize = 1000;

/// An entry that was delivered and not settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// The entry.
    pub id: EntryId,
    /// How often it was delivered.
    pub deliveries: u64,
}

/// Entries that were deleted before the group had read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// How many.
    pub missing: u64,
    /// The last id that was delivered.
    pub after: String,
    /// The first that is there and unread; empty for none.
    pub until: String,
}

impl Reader {
    /// Looks for entries that somebody has deleted before the group had read them. The server gives no sign
    /// of them. `told`, if it is all of them, is what is not to be found again.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn gap(&mut self, told: u64) -> Result<Option<Gap>, Failure> {
        let mut command = script(include_str!("lua/gap.lua"), std::slice::from_ref(&self.key));
        command.arg(&*self.stream.group).arg(told);
        let (missing, after, until): (u64, String, String) = self.ask("looking for a gap", &command).await?;
        Ok((missing > 0).then_some(Gap { missing, after, until }))
    }

    /// Puts everything that is pending on the shard under our own name, whoever held it; answers
    /// what was deleted from the stream meanwhile and is now dropped by the server. The cursor is
    /// carried to the end of the list: one call looks at ten times COUNT entries and may find none.
    /// JUSTID leaves the delivery counter alone.
    /// See <https://redis.io/docs/latest/commands/xautoclaim/>.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn claim_all(&mut self) -> Result<Vec<EntryId>, Failure> {
        let mut gone = Vec::new();
        let mut cursor = "0-0".to_owned();
        loop {
            let mut command = redis::cmd("XAUTOCLAIM");
            command.arg(&self.key).arg(&*self.stream.group).arg(&*self.stream.consumer);
            command.arg(0).arg(&cursor).arg("COUNT").arg(PAGE).arg("JUSTID");
            let reply: Value = self.ask("taking over pending entries", &command).await?;
            let mut parts = entry::array(reply).into_iter();
            let next = parts.next().as_ref().and_then(entry::entry_id).unwrap_or_default();
            gone.extend(ids(parts.nth(1)));
            if next == EntryId::default() {
                return Ok(gone);
            }
            cursor = next.to_string();
        }
    }

    /// Every entry that is pending under our own name, in id order.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn own_pending(&mut self) -> Result<Vec<Delivered>, Failure> {
        let mut found: Vec<Delivered> = Vec::new();
        loop {
            let start = found.last().map_or_else(|| "-".to_owned(), |last| format!("({}", last.id));
            let mut command = redis::cmd("XPENDING");
            command.arg(&self.key).arg(&*self.stream.group).arg(start).arg("+").arg(PAGE);
            command.arg(&*self.stream.consumer);
            let page: Value = self.ask("listing what is pending here", &command).await?;
            let before = found.len();
            found.extend(entry::array(page).into_iter().filter_map(delivered));
            if found.len() - before < PAGE {
                return Ok(found);
            }
        }
    }

    /// Sets the delivery counters of entries that are pending under our own name.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn mark_deliveries(&mut self, marks: &[Delivered]) -> Result<(), Failure> {
        for page in marks.chunks(PAGE) {
            let mut command = script(include_str!("lua/mark_deliveries.lua"), std::slice::from_ref(&self.key));
            command.arg(&*self.stream.group).arg(&*self.stream.consumer);
            for mark in page {
                command.arg(mark.id).arg(mark.deliveries);
            }
            let _: Value = self.ask("counting deliveries", &command).await?;
        }
        Ok(())
    }

    /// The entries behind `ids`, in that order; an id whose entry was deleted comes back alone.
    /// One XRANGE each: a single range would bring everything in between.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn fetch(&mut self, ids: &[EntryId]) -> Result<Vec<Result<Entry, EntryId>>, Failure> {
        let mut pipe = redis::pipe();
        for id in ids {
            pipe.cmd("XRANGE").arg(&self.key).arg(id).arg(id);
        }
        let replies = self.ask_all("fetching pending entries", &pipe).await?;
        Ok(ids.iter().zip(replies).map(|(id, reply)| entry::from_range(reply).into_iter().next().ok_or(*id)).collect())
    }
}

/// A row of XPENDING: id, consumer, idle milliseconds, deliveries.
fn delivered(row: Value) -> Option<Delivered> {
    let row = entry::array(row);
    let id = entry::entry_id(row.first()?)?;
    let Value::Int(deliveries) = row.get(3)? else { return None };
    Some(Delivered { id, deliveries: deliveries.unsigned_abs() })
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
    /// The dead letter that has lain there longest.
    pub oldest_dead: Option<EntryId>,
    /// The token of the worker that owns the shard.
    pub owner: Option<String>,
}

impl Stream {
    /// Asks for the state of one shard.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn shard_state(&self, shard: u16) -> Result<ShardState, Failure> {
        self.shard_states(&[shard]).await?.pop().unwrap_or_else(|| Ok(ShardState::default()))
    }

    /// Asks for the states of several shards, in that order; of each that cannot be told, why.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn shard_states(&self, shards: &[u16]) -> Result<Vec<Result<ShardState, Failure>>, Failure> {
        let commands = shards.iter().map(|shard| {
            let keys = [self.keys.events(*shard), self.keys.dead(*shard), self.keys.owner(*shard)];
            let mut command = script(include_str!("lua/shard_state.lua"), &keys);
            command.arg(&*self.group);
            command
        });
        let replies: Vec<Result<StateReply, Failure>> =
            self.ask_each("asking for the state of shards", commands).await?;
        let told = |(shard, reply): (&u16, Result<StateReply, Failure>)| match reply {
            Ok(reply) => Ok(state(reply)),
            Err(failure) => Err(Failure { text: format!("shard {shard:03}: {}", failure.text), ..failure }),
        };
        Ok(shards.iter().zip(replies).map(told).collect())
    }

    /// How many entries were ever added to each of the first `shards` shards; `None` where it cannot be told.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn entries_added(&self, shards: u16) -> Result<Vec<Option<u64>>, Failure> {
        let commands = (0..shards)
            .map(|shard| script(include_str!("lua/entries_added.lua"), std::slice::from_ref(&self.keys.events(shard))));
        let answers = self.ask_each("asking how much was added", commands).await?;
        Ok(answers.into_iter().map(Result::ok).collect())
    }

    /// Whether nothing at or below `target` is undelivered or pending on `shard`.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn is_drained(&self, shard: u16, target: EntryId) -> Result<bool, Failure> {
        let mut command = script(include_str!("lua/drained.lua"), &[self.keys.events(shard)]);
        command.arg(&*self.group).arg(target);
        self.ask("asking whether a shard is drained", &command).await
    }
}

type StateReply = (u64, String, u64, bool, String, i64, u64, bool, String, String, Option<String>);

fn state(reply: StateReply) -> ShardState {
    let (length, last_id, dead, has_group, _, lag, pending, any_unread, oldest, oldest_dead, owner) = reply;
    let unread = match (has_group, any_unread) {
        (_, false) => Some(0),
        (false, true) => Some(length),
        (true, true) => u64::try_from(lag).ok(),
    };
    ShardState {
        length,
        last_id: EntryId::parse(last_id.as_bytes()).unwrap_or_default(),
        dead,
        unread,
        pending,
        oldest_pending: EntryId::parse(oldest.as_bytes()),
        oldest_dead: EntryId::parse(oldest_dead.as_bytes()),
        owner,
    }
}
