//! What lies longest in the streams, and may still be written.

use redis::Value;

use super::dead::PAGE_BYTES;
use super::{Stream, failure, script};
use crate::event::EntryId;
use crate::failure::{Failure, Target};
use crate::shard::MOST_SHARDS;

/// Dead letters in one step.
const PAGE: usize = 50;

/// The oldest thing that can be delivered or sent back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Oldest {
    /// When it entered; of a dead letter, the id of the entry that it was.
    pub entered: EntryId,
    /// The stream where it lies.
    pub stream: String,
    /// Its id there.
    pub id: String,
}

impl Stream {
    /// Looks through the events and the dead letters of every shard that there may have been; what
    /// lies beyond the topology counts as well.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`]; [`crate::failure::Class::Fatal`] where there is no topology: an
    /// empty namespace is more likely a wrong one.
    pub async fn oldest(&self) -> Result<Option<Oldest>, Failure> {
        let topology = self.keys.topology();
        let exists: bool = self.ask("looking for the topology", redis::cmd("EXISTS").arg(&topology)).await?;
        if !exists {
            let remedy = "check --redis-url and --namespace; no worker has ever run there";
            return Err(Failure::fatal(Target::Redis, "topology", format!("there is no {topology}"), remedy));
        }
        let mut oldest = None;
        for shard in 0..MOST_SHARDS {
            // An entry that comes back from the dead letters meanwhile shows in the second look.
            for found in [
                self.oldest_event(shard).await?,
                self.oldest_letter(shard).await?,
                self.oldest_sent_back(shard).await?,
                self.oldest_letter(shard).await?,
                self.oldest_event(shard).await?,
            ] {
                oldest = older(oldest, found);
            }
        }
        Ok(oldest)
    }

    /// Looks through the dead letters of the first `shards` shards only.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn oldest_dead_letter(&self, shards: u16) -> Result<Option<Oldest>, Failure> {
        let mut oldest = None;
        for shard in 0..shards {
            let found = self.oldest_letter(shard).await?;
            oldest = older(oldest, found);
        }
        Ok(oldest)
    }

    async fn oldest_event(&self, shard: u16) -> Result<Option<Oldest>, Failure> {
        let stream = self.keys.events(shard);
        let mut command = redis::cmd("XRANGE");
        command.arg(&stream).arg("-").arg("+").arg("COUNT").arg(1);
        let first: Vec<(String, redis::Value)> = self.ask("looking for the oldest entry", &command).await?;
        let oldest = |(id, _): (String, _)| Some(Oldest { entered: EntryId::parse(id.as_bytes())?, stream, id });
        Ok(first.into_iter().next().and_then(oldest))
    }

    /// Of the entries that were dead letters: their ids are younger than their events. Forgets those
    /// that are older than the oldest which is still there.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn oldest_sent_back(&self, shard: u16) -> Result<Option<Oldest>, Failure> {
        let stream = self.keys.events(shard);
        let keys = [self.keys.sent_back(shard), stream.clone()];
        loop {
            let mut command = script(include_str!("lua/sent_back.lua"), &keys);
            let found: Value = self.ask("looking for what was sent back", command.arg(PAGE)).await?;
            match found {
                Value::Int(0) => return Ok(None),
                Value::Int(_) => {}
                found => {
                    let (id, ms): (String, u64) = redis::from_redis_value(found)
                        .map_err(|error| failure(&error.into(), "looking for what was sent back"))?;
                    return Ok(Some(Oldest { entered: EntryId { ms, seq: 0 }, stream, id }));
                }
            }
        }
    }

    async fn oldest_letter(&self, shard: u16) -> Result<Option<Oldest>, Failure> {
        let stream = self.keys.dead(shard);
        let (mut oldest, mut start): (Option<Oldest>, _) = (None, "-".to_owned());
        loop {
            let mut command = script(include_str!("lua/entered.lua"), std::slice::from_ref(&stream));
            let page: Vec<(String, String)> =
                self.ask("looking through dead letters", command.arg(start).arg(PAGE).arg(PAGE_BYTES)).await?;
            let Some((last, _)) = page.last() else { return Ok(oldest) };
            start = format!("({last}");
            let found = page.into_iter().filter_map(|(id, entered)| {
                let entered = EntryId::parse(entered.as_bytes()).or_else(|| EntryId::parse(id.as_bytes()))?;
                Some(Oldest { entered, stream: stream.clone(), id })
            });
            oldest = oldest.into_iter().chain(found).min_by_key(|oldest| oldest.entered);
        }
    }
}

fn older(one: Option<Oldest>, other: Option<Oldest>) -> Option<Oldest> {
    [one, other].into_iter().flatten().min_by_key(|oldest| oldest.entered)
}
