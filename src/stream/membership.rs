//! Who is alive and who owns which shard, as kept in Redis. Every step is one script that works
//! at the memory limit and touches only what is the caller's own.

use std::time::Duration;

use super::server::Sign;
use super::{Stream, script};
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
        let mut command = script(include_str!("lua/heartbeat.lua"), &[self.keys.workers()]);
        let answer = self.ask("sending a heartbeat", command.arg(token).arg(millis(ttl))).await;
        self.server.note(Sign::Heartbeat, answer)
    }

    /// Changes when the server was away and has taken a heartbeat, or a renewal, again.
    pub fn returns(&self) -> tokio::sync::watch::Receiver<u64> {
        self.server.returns()
    }

    /// Tokens of the live workers, without being one.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn live_workers(&self) -> Result<Vec<String>, Failure> {
        let mut command = redis::cmd("ZRANGEBYSCORE");
        command.arg(self.keys.workers()).arg(format!("({}", self.server_now_ms())).arg("+inf");
        self.ask("listing live workers", &command).await
    }

    /// Leaves the live workers; with `only_if_others`, only where another one is live. Asked and left
    /// in one step: of two that ask together, one stays.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn leave(&self, token: &str, only_if_others: bool) -> Result<bool, Failure> {
        let mut command = script(include_str!("lua/leave.lua"), &[self.keys.workers()]);
        self.ask("leaving the live workers", command.arg(token).arg(u8::from(only_if_others))).await
    }

    /// Takes the leases that are free; answers which, of the shards given.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`]: some may be taken.
    pub async fn acquire(&self, shards: &[u16], token: &str, lease: Duration) -> Result<Vec<u16>, Failure> {
        let commands = shards.iter().map(|shard| {
            let mut command = script(include_str!("lua/acquire.lua"), &[self.keys.owner(*shard)]);
            command.arg(token).arg(millis(lease));
            command
        });
        let taken: Vec<bool> = self.ask_all("taking leases", commands).await?;
        Ok(shards.iter().zip(taken).filter(|(_, taken)| *taken).map(|(shard, _)| *shard).collect())
    }

    /// Renews leases, in the order given.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`]: some may be renewed.
    pub async fn renew(&self, shards: &[u16], token: &str, lease: Duration) -> Result<Vec<Renewal>, Failure> {
        if shards.is_empty() {
            return Ok(Vec::new());
        }
        let commands = shards.iter().map(|shard| {
            let keys = [self.keys.owner(*shard), self.keys.events(*shard)];
            let mut command = script(include_str!("lua/renew.lua"), &keys);
            command.arg(token).arg(millis(lease)).arg(&*self.group);
            command
        });
        let answers = self.ask_all("renewing leases", commands).await;
        let answers: Vec<i64> = self.server.note(Sign::Renewal, answers)?;
        let renewal = |answer: i64| match u64::try_from(answer) {
            Ok(pending) => Renewal::Renewed { pending },
            Err(_) => Renewal::Lost,
        };
        Ok(answers.into_iter().map(renewal).collect())
    }

    /// Gives back those leases that are still ours.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`]: some may be given back.
    pub async fn release(&self, shards: &[u16], token: &str) -> Result<(), Failure> {
        let commands = shards.iter().map(|shard| {
            let mut command = script(include_str!("lua/release.lua"), &[self.keys.owner(*shard)]);
            command.arg(token);
            command
        });
        self.ask_all::<bool>("giving leases back", commands).await.map(|_| ())
    }

    /// Removes consumers of all shards given that hold nothing, have been idle for `least_idle`, and are not in `live`.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn remove_consumers(&self, shards: &[u16], least_idle: Duration, live: &[&str]) -> Result<u64, Failure> {
        let commands = shards.iter().map(|shard| {
            let mut command = script(include_str!("lua/remove_consumers.lua"), &[self.keys.events(*shard)]);
            command.arg(&*self.group).arg(millis(least_idle)).arg(live);
            command
        });
        let removed: Vec<u64> = self.ask_all("removing consumers of gone workers", commands).await?;
        Ok(removed.into_iter().sum())
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
