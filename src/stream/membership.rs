//! Who is alive and who owns which shard, as kept in Redis. Every step is one script that works
//! at the memory limit and touches only what is the caller's own.

use std::time::Duration;

use super::{Stream, failure};
use crate::failure::Failure;

/// The result of renewing a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Still ours; this many entries are pending on the shard.
    Renewed {
        /// Of the whole group.
        pending: u64,
    },
    /// It has run out, and may be somebody else's.
    Lost,
}

impl Stream {
    /// Says that this worker is alive for another `ttl`; answers the tokens of all live workers.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn heartbeat(&self, token: &str, ttl: Duration) -> Result<Vec<String>, Failure> {
        let doing = "sending a heartbeat";
        let mut connection = self.connection(doing).await?;
        redis::cmd("EVAL")
            .arg(include_str!("lua/heartbeat.lua"))
            .arg(1)
            .arg(self.keys.workers())
            .arg(token)
            .arg(millis(ttl))
            .query_async(&mut connection)
            .await
            .map_err(|error| failure(&error, doing))
    }

    /// Tokens of the live workers, without being one.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn live_workers(&self) -> Result<Vec<String>, Failure> {
        let doing = "listing live workers";
        let mut connection = self.connection(doing).await?;
        redis::cmd("ZRANGEBYSCORE")
            .arg(self.keys.workers())
            .arg(format!("({}", self.server_now_ms()))
            .arg("+inf")
            .query_async(&mut connection)
            .await
            .map_err(|error| failure(&error, doing))
    }

    /// Leaves the live workers; with `only_if_others`, only where another one is live. Asked and left
    /// in one step: of two that ask together, one stays.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn leave(&self, token: &str, only_if_others: bool) -> Result<bool, Failure> {
        let doing = "leaving the live workers";
        let mut connection = self.connection(doing).await?;
        redis::cmd("EVAL")
            .arg(include_str!("lua/leave.lua"))
            .arg(1)
            .arg(self.keys.workers())
            .arg(token)
            .arg(u8::from(only_if_others))
            .query_async(&mut connection)
            .await
            .map_err(|error| failure(&error, doing))
    }

    /// Takes the lease of a shard if it is free.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn acquire(&self, shard: u16, token: &str, lease: Duration) -> Result<bool, Failure> {
        let doing = "taking a lease";
        let mut connection = self.connection(doing).await?;
        redis::cmd("EVAL")
            .arg(include_str!("lua/acquire.lua"))
            .arg(1)
            .arg(self.keys.owner(shard))
            .arg(token)
            .arg(millis(lease))
            .query_async(&mut connection)
            .await
            .map_err(|error| failure(&error, doing))
    }

    /// Renews leases, in the order given.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`]: some may be renewed.
    pub async fn renew(&self, shards: &[u16], token: &str, lease: Duration) -> Result<Vec<Renewal>, Failure> {
        let doing = "renewing leases";
        if shards.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipe = redis::pipe();
        for shard in shards {
            pipe.cmd("EVAL")
                .arg(include_str!("lua/renew.lua"))
                .arg(2)
                .arg(self.keys.owner(*shard))
                .arg(self.keys.events(*shard))
                .arg(token)
                .arg(millis(lease))
                .arg(&*self.group);
        }
        let mut connection = self.connection(doing).await?;
        let answers: Vec<i64> = pipe.query_async(&mut connection).await.map_err(|error| failure(&error, doing))?;
        let renewal = |answer: i64| match u64::try_from(answer) {
            Ok(pending) => Renewal::Renewed { pending },
            Err(_) => Renewal::Lost,
        };
        Ok(answers.into_iter().map(renewal).collect())
    }

    /// Gives a lease back, if it is still ours.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn release(&self, shard: u16, token: &str) -> Result<(), Failure> {
        let doing = "giving a lease back";
        let mut connection = self.connection(doing).await?;
        redis::cmd("EVAL")
            .arg(include_str!("lua/release.lua"))
            .arg(1)
            .arg(self.keys.owner(shard))
            .arg(token)
            .exec_async(&mut connection)
            .await
            .map_err(|error| failure(&error, doing))
    }

    /// Removes consumers that hold nothing, have been idle for `least_idle`, and are not in `live`.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn remove_consumers(&self, shard: u16, least_idle: Duration, live: &[&str]) -> Result<u64, Failure> {
        let doing = "removing consumers of gone workers";
        let mut connection = self.connection(doing).await?;
        redis::cmd("EVAL")
            .arg(include_str!("lua/remove_consumers.lua"))
            .arg(1)
            .arg(self.keys.events(shard))
            .arg(&*self.group)
            .arg(millis(least_idle))
            .arg(live)
            .query_async(&mut connection)
            .await
            .map_err(|error| failure(&error, doing))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
