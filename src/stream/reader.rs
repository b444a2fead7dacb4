//! The reading end of one lane, on a connection of its own.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio_util::sync::CancellationToken;

use super::entry::{self, Entry};
use super::server::Primary;
use super::{ANSWER_TIMEOUT, Stream, failure, failure_of, script, with_what_was_run};
use crate::failure::{Class, Failure, Target};

/// Reads one shard for one consumer.
pub struct Reader {
    pub(super) stream: Stream,
    pub(super) key: String,
    block: Duration,
    connection: Option<Connected>,
}

struct Connected {
    link: MultiplexedConnection,
    /// The server's name for the connection, for CLIENT UNBLOCK.
    client_id: i64,
    primary: Arc<Primary>,
}

impl Reader {
    /// A reader of `shard` that blocks for at most `block` when there is nothing new.
    pub fn new(stream: &Stream, shard: u16, block: Duration) -> Self {
        Self { stream: stream.clone(), key: stream.keys().events(shard), block, connection: None }
    }

    /// Whether a connection is there; without one, a reply may have been lost.
    pub fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Connects and makes sure of the group.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn open(&mut self) -> Result<(), Failure> {
        let doing = "connecting a reader";
        let primary = self.stream.server.primary().await?;
        let connect = async {
            // No response timeout: the watchdog in `read` and the bound in `ask` take its place.
            let mut link = primary.reading_link().await.map_err(|error| failure(&error, doing))?;
            let client_id =
                in_time(doing, redis::cmd("CLIENT").arg("ID").query_async(&mut link), |error| failure(error, doing))
                    .await?;
            Ok(Connected { link, client_id, primary: primary.clone() })
        };
        let connected = connect.await.map_err(|failure| self.stream.server.distrust(&primary, failure))?;
        self.connection = Some(connected);
        self.ensure_group().await
    }

    /// Makes stream and group if they are not there. The group begins at the stream's start: what
    /// comes again is harmless, what is skipped is lost.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn ensure_group(&mut self) -> Result<(), Failure> {
        let mut command = script(include_str!("lua/ensure_group.lua"), std::slice::from_ref(&self.key));
        self.ask("making the consumer group", command.arg(&*self.stream.group)).await.map(|_: Value| ())
    }

    /// How large an entry of the stream is, as the server estimates it: 0 where there is none, -1 if it
    /// does not tell.
    /// See <https://redis.io/docs/latest/commands/memory-usage/>.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn average_bytes(&mut self) -> Result<i64, Failure> {
        let command = script(include_str!("lua/average_bytes.lua"), std::slice::from_ref(&self.key));
        self.ask("asking how large entries are", &command).await
    }

    /// Up to `count` new entries; none if nothing came within the block time, or at once when
    /// `stop` is cancelled. Never gives up a reply under way: what it brings would stay pending.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`]. Unless the group is missing, the connection is closed, and
    /// entries of the lost reply may be pending under our name.
    pub async fn read(&mut self, count: usize, stop: &CancellationToken) -> Result<Vec<Entry>, Failure> {
        let doing = "reading";
        let watchdog = tokio::time::sleep(self.block * 2 + ANSWER_TIMEOUT);
        let Some(connected) = self.connection.as_mut() else { return Err(not_connected(doing)) };
        let mut command = redis::cmd("XREADGROUP");
        command.arg("GROUP").arg(&*self.stream.group).arg(&*self.stream.consumer).arg("COUNT").arg(count);
        command.arg("BLOCK").arg(self.block.as_millis() as u64).arg("STREAMS").arg(&self.key).arg(">");
        let (client_id, primary) = (connected.client_id, connected.primary.clone());
        let answer = {
            // Not `query_async`, which would rebuild all these values in search of errors within them.
            let reply = connected.link.send_packed_command(&command);
            tokio::pin!(reply, watchdog);
            loop {
                tokio::select! {
                    answer = &mut reply => {
                        let failed = |error| with_what_was_run(failure(&error, doing), &command);
                        break answer.and_then(refuse_error).map_err(failed);
                    }
                    () = &mut watchdog => break Err(Failure::no_answer(Target::Redis, doing)),
                    () = unblock_when(stop, &primary, client_id) => {}
                }
            }
        };
        self.close_if_lost(answer).map(entry::from_read)
    }

    /// Sends a command that does not block.
    pub(super) async fn ask<T: redis::FromRedisValue>(
        &mut self,
        doing: &str,
        command: &redis::Cmd,
    ) -> Result<T, Failure> {
        let Some(connected) = self.connection.as_mut() else { return Err(not_connected(doing)) };
        let judge = |error: &_| with_what_was_run(failure(error, doing), command);
        let answer = in_time(doing, command.query_async(&mut connected.link), judge).await;
        self.close_if_lost(answer)
    }

    /// Sends a pipeline that does not block.
    pub(super) async fn ask_all(&mut self, doing: &str, pipe: &redis::Pipeline) -> Result<Vec<Value>, Failure> {
        let Some(connected) = self.connection.as_mut() else { return Err(not_connected(doing)) };
        let judge = |error: &_| failure_of(error, doing, pipe);
        let answer = in_time(doing, pipe.query_async(&mut connected.link), judge).await;
        self.close_if_lost(answer)
    }

    fn close_if_lost<T>(&mut self, answer: Result<T, Failure>) -> Result<T, Failure> {
        answer.map_err(|failure| match self.connection.take_if(|_| failure.class != Class::GroupMissing) {
            Some(lost) => self.stream.server.distrust(&lost.primary, failure),
            None => failure,
        })
    }
}

/// Once `stop` is cancelled, ends the block on the server; again and again, because the first time
/// may come before the block has begun.
async fn unblock_when(stop: &CancellationToken, primary: &Primary, client_id: i64) {
    stop.cancelled().await;
    // If this fails the block simply lasts its time.
    if let Ok(mut connection) = primary.connection("ending a blocking read").await {
        let _: Result<Value, _> = redis::cmd("CLIENT").arg("UNBLOCK").arg(client_id).query_async(&mut connection).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
}

async fn in_time<T>(
    doing: &str,
    answer: impl Future<Output = Result<T, redis::RedisError>>,
    judge: impl FnOnce(&redis::RedisError) -> Failure,
) -> Result<T, Failure> {
    match tokio::time::timeout(ANSWER_TIMEOUT, answer).await {
        Ok(answer) => answer.map_err(|error| judge(&error)),
        Err(_) => Err(Failure::no_answer(Target::Redis, doing)),
    }
}

fn refuse_error(answer: Value) -> Result<Value, redis::RedisError> {
    match answer {
        Value::ServerError(error) => Err(error.into()),
        answer => Ok(answer),
    }
}

fn not_connected(doing: &str) -> Failure {
    Failure::silence(Target::Redis, Class::Transient, "io", format!("{doing}: not connected"))
}
