//! Dead letters: looked through, sent back, removed.

use std::collections::HashMap;

use redis::Value;

use super::entry::{array, entry_id};
use super::{Stream, script};
use crate::event::EntryId;
use crate::failure::Failure;

/// Letters in one step: a script or a removal keeps Redis busy for no longer.
pub const PAGE: usize = 100;
/// And so many bytes of them.
pub(super) const PAGE_BYTES: usize = 4 << 20;
/// What all names of our own fields begin with.
const PREFIX: &str = "dead:";

/// A dead letter without its event, which can be large.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// Its shard.
    pub shard: u16,
    /// Its id; the time in it is when it was written.
    pub id: EntryId,
    /// Bytes of its event; none where the entry had no such field.
    pub event_bytes: Option<u64>,
    /// hexlane's own fields, without their prefix.
    about: HashMap<String, String>,
}

/// An entry that died: the same for all letters of it, of which there are several where its group was
/// made anew.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// Its stream; empty where the letter does not tell.
    pub stream: String,
    /// Its id there; likewise.
    pub id: String,
}

impl Letter {
    /// One of hexlane's own fields, such as `reason`; see README for them.
    pub fn about(&self, name: &str) -> Option<&str> {
        self.about.get(name).map(String::as_str)
    }

    /// Where its entry lay.
    pub fn source(&self) -> Source {
        let about = |name| self.about(name).unwrap_or_default().to_owned();
        Source { stream: about("source_stream"), id: about("source_id") }
    }

    /// When its event entered a stream for the first time.
    pub fn entered(&self) -> Option<EntryId> {
        let id = |name| EntryId::parse(self.about(name)?.as_bytes());
        id("entered").or_else(|| id("source_id"))
    }
}

/// Names and values, as they lie there.
pub type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// What became of a letter that was to be sent back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay {
    /// Its event lies in the stream again.
    Sent,
    /// Somebody else was quicker.
    Gone,
    /// It lacks fields of the entry that it was, and stays.
    Incomplete,
}

impl Stream {
    /// Which of these shards have dead letters.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn shards_with_letters(&self, shards: &[u16]) -> Result<Vec<u16>, Failure> {
        let commands = shards.iter().map(|shard| {
            let mut command = redis::cmd("XLEN");
            command.arg(self.keys.dead(*shard));
            command
        });
        let lengths: Vec<u64> = self.ask_all("looking for dead letters", commands).await?;
        Ok(shards.iter().zip(lengths).filter(|(_, length)| *length > 0).map(|(shard, _)| *shard).collect())
    }

    /// The letters of a shard from `start` to `end`, both in the form of XRANGE; the first [`PAGE`] of
    /// them, or fewer where they are large. With where the next ones begin, if there may be more.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn letters(&self, shard: u16, start: &str, end: &str) -> Result<(Vec<Letter>, Option<String>), Failure> {
        let mut command = script(include_str!("lua/letters.lua"), &[self.keys.dead(shard)]);
        command.arg(start).arg(end).arg(PAGE).arg(PAGE_BYTES);
        let page: Value = self.ask("looking through dead letters", &command).await?;
        let mut page = array(page).into_iter();
        let is_all = page.next() == Some(Value::Int(1));
        let letters: Vec<Letter> = page.filter_map(|value| letter(shard, value)).collect();
        let next = letters.last().filter(|_| !is_all).map(|last| format!("({}", last.id));
        Ok((letters, next))
    }

    /// Every field of a letter, as it lies there; none if it is gone.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn letter_fields(&self, shard: u16, id: EntryId) -> Result<Option<Fields>, Failure> {
        let mut command = redis::cmd("XRANGE");
        command.arg(self.keys.dead(shard)).arg(id).arg(id);
        let found: Vec<(String, Fields)> = self.ask("reading a dead letter", &command).await?;
        Ok(found.into_iter().next().map(|(_, fields)| fields))
    }

    /// Sends the entries of letters back to their stream, each in one atomic step with the removal
    /// of its letter. May be called again after an error: what was sent back is gone.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn replay(&self, shard: u16, letters: &[EntryId]) -> Result<Vec<Replay>, Failure> {
        let keys = [self.keys.dead(shard), self.keys.events(shard), self.keys.sent_back(shard)];
        let commands = letters.iter().map(|id| {
            let mut command = script(include_str!("lua/replay.lua"), &keys);
            command.arg(id);
            command
        });
        let answers: Vec<Value> = self.ask_all("sending dead letters back", commands).await?;
        Ok(answers
            .iter()
            .map(|answer| match answer {
                Value::Int(0) => Replay::Gone,
                Value::Int(_) => Replay::Incomplete,
                _ => Replay::Sent,
            })
            .collect())
    }

    /// Removes letters; answers how many were there.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn purge(&self, shard: u16, letters: &[EntryId]) -> Result<u64, Failure> {
        if letters.is_empty() {
            return Ok(0);
        }
        let mut command = redis::cmd("XDEL");
        command.arg(self.keys.dead(shard)).arg(letters);
        self.ask("removing dead letters", &command).await
    }
}

fn letter(shard: u16, value: Value) -> Option<Letter> {
    let mut parts = array(value).into_iter();
    let id = entry_id(&parts.next()?)?;
    let event_bytes = match parts.next()? {
        Value::Int(bytes) => u64::try_from(bytes).ok(),
        _ => None,
    };
    let mut about = HashMap::new();
    while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
        if let Some(name) = text(name).strip_prefix(PREFIX) {
            about.insert(name.to_owned(), text(value));
        }
    }
    Some(Letter { shard, id, event_bytes, about })
}

fn text(value: Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        _ => String::new(),
    }
}
