//! The end of every entry: acknowledged, or a dead letter and acknowledged in one script.

use redis::Value;

use super::{Stream, failure_of, script};
use crate::event::{EntryId, Rejection};
use crate::failure::{Failure, Target};

/// Ids in one XACK, and scripts in one pipeline: bounds how long Redis is busy with one command.
const ACK_CHUNK: usize = 1000;
const DEAD_LETTER_CHUNK: usize = 100;

/// What became of a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Burial {
    /// It lies in the dead-letter stream, and the entry is acknowledged.
    Written,
    /// The entry was not pending any more: somebody else has settled it.
    SettledElsewhere,
    /// The entry was deleted while it was in hand.
    Gone,
    /// The group was deleted; made again, it delivers the entry anew.
    GroupGone,
}

impl Stream {
    /// Acknowledges entries whose write has been answered. That fewer were pending is normal.
    /// `is_held` is asked when a connection is there: connecting can outlast a lease.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`]; acknowledging the same ids again is harmless.
    pub async fn ack(&self, shard: u16, ids: &[EntryId], is_held: impl Fn() -> bool) -> Result<(), Failure> {
        let doing = "acknowledging";
        if ids.is_empty() {
            return Ok(());
        }
        let key = self.keys.events(shard);
        let mut pipe = redis::pipe();
        for chunk in ids.chunks(ACK_CHUNK) {
            let command = pipe.cmd("XACK").arg(&key).arg(&*self.group);
            for id in chunk {
                command.arg(id);
            }
            command.ignore();
        }
        let primary = self.server.primary().await?;
        let asked = async {
            let mut link = primary.ack_link(shard, doing).await?;
            if !is_held() {
                return Err(Failure::lease_over(Target::Redis, doing));
            }
            pipe.exec_async(&mut link).await.map_err(|error| {
                // Whatever went wrong: the pool knows whether a connection is good.
                primary.drop_ack_link(shard);
                failure_of(&error, doing, &pipe)
            })
        };
        asked.await.map_err(|failure| self.server.distrust(&primary, failure))
    }

    /// Moves invalid entries to the shard's dead-letter stream. Each one is one atomic step on the
    /// server, which does nothing when the entry is not pending; so all of them may be sent again
    /// after an error. `is_held` as for [`Self::ack`].
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn bury(
        &self,
        shard: u16,
        dead: &[(EntryId, &Rejection)],
        is_held: impl Fn() -> bool,
    ) -> Result<Vec<Burial>, Failure> {
        let doing = "writing dead letters";
        let mut burials = Vec::with_capacity(dead.len());
        for chunk in dead.chunks(DEAD_LETTER_CHUNK) {
            let mut pipe = redis::pipe();
            for (id, rejection) in chunk {
                let keys = [self.keys.events(shard), self.keys.dead(shard)];
                let mut command = script(include_str!("lua/dead_letter.lua"), &keys);
                command.arg(&*self.group).arg(id);
                for (name, value) in self.dead_letter_fields(shard, *id, rejection) {
                    command.arg(name).arg(value);
                }
                pipe.add_command(command);
            }
            let answers: Vec<Value> = self.send(doing, &pipe, &is_held).await?;
            burials.extend(answers.iter().map(|answer| match answer {
                Value::Int(1) => Burial::Written,
                Value::Int(-1) => Burial::Gone,
                Value::Int(-2) => Burial::GroupGone,
                _ => Burial::SettledElsewhere,
            }));
        }
        Ok(burials)
    }

    fn dead_letter_fields(&self, shard: u16, id: EntryId, rejection: &Rejection) -> Vec<(&'static str, String)> {
        let mut fields = vec![
            ("dead:reason", rejection.reason.to_string()),
            ("dead:detail", rejection.detail.clone()),
            ("dead:source_stream", self.keys.events(shard)),
            ("dead:source_id", id.to_string()),
            ("dead:worker", self.consumer.to_string()),
            ("dead:at", chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Millis, true)),
        ];
        if let Some(feature_id) = &rejection.feature_id {
            fields.push(("dead:feature_id", feature_id.clone()));
        }
        if let Some(key) = rejection.key {
            fields.push(("dead:version", key.version.to_string()));
        }
        if let Some(sqlstate) = &rejection.sqlstate {
            fields.push(("dead:sqlstate", sqlstate.clone()));
        }
        fields
    }
}
