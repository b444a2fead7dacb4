//! The primary, always at one address or where Sentinel says it is at the moment; and the connections to it.
//!
//! See <https://redis.io/docs/latest/develop/reference/sentinel-clients/>.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deadpool_redis::{Hook, HookError, Manager, Pool, PoolError};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError};
use tokio::sync::watch;

use super::failure;
use super::place::{Certificates, Place, bad_url};
use crate::failure::{Class, Failure, Target};

/// A server that does not answer a plain command for this long is treated as lost.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// For asking all sentinels, some of which may be away.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Plain commands are short; a few connections serve any number of lanes.
const POOL_SIZE: usize = 8;
/// In one turn of its loop Redis takes 16 KiB from each connection (`PROTO_IOBUF_LEN`) and answers
/// all the reads that have come: with hundreds of lanes on one link, acknowledgements would wait
/// for seconds.
const LANES_OF_ACK_LINK: u16 = 32;

/// A Redis primary, wherever it is at the moment.
#[derive(Clone)]
pub struct Server {
    place: Arc<Place>,
    current: Arc<Mutex<Option<Arc<Primary>>>>,
    /// What we show of ourselves, where it speaks TLS.
    tls: Option<Presented>,
    absence: Arc<Absence>,
}

/// Which signs of life the server does not take, and how often it has taken one again: for those who wait until
/// it does.
#[derive(Default)]
struct Absence {
    heartbeat: AtomicBool,
    renewal: AtomicBool,
    returns: watch::Sender<u64>,
}

/// What a worker says again and again.
#[derive(Clone, Copy)]
pub(super) enum Sign {
    Heartbeat,
    Renewal,
}

#[derive(Clone, Copy)]
enum Presented {
    Nothing,
    Certificate,
}

/// Connections to one server, for as long as it is the primary.
pub(super) struct Primary {
    client: Client,
    pool: Pool,
    has_answered: AtomicBool,
    /// Taken out of the pool for acknowledgements, one for every [`LANES_OF_ACK_LINK`] lanes: they
    /// are many and small, and the pool asks whether a connection is alive each time it hands one out.
    ack_links: Mutex<HashMap<u16, MultiplexedConnection>>,
}

impl Server {
    /// Reads the URL; the first connection is made when it is needed.
    ///
    /// # Errors
    /// [`Class::Fatal`] if `url` is no Redis URL, or a certificate cannot be read.
    pub fn open(url: &str, password: Option<&str>, certificates: &Certificates) -> Result<Self, Failure> {
        let place = Place::read(url, password, certificates)?;
        let presented = if certificates.own.is_none() { Presented::Nothing } else { Presented::Certificate };
        let tls = url.starts_with("rediss").then_some(presented);
        Ok(Self { place: Arc::new(place), current: Arc::default(), tls, absence: Arc::default() })
    }

    /// Host and port, for logs.
    pub(super) fn address(&self) -> String {
        self.place.shown()
    }

    /// The primary, asked for where it is not known.
    pub(super) async fn primary(&self) -> Result<Arc<Primary>, Failure> {
        if let Some(primary) = self.current().clone() {
            return Ok(primary);
        }
        let client = match &*self.place {
            Place::Fixed(client) => client.clone(),
            Place::Sentinel { client, .. } => {
                let doing = "asking Sentinel for the primary";
                let asked = async {
                    let mut sentinel = client.lock().await;
                    // Of those that wait here one asks, and the others find its answer.
                    if let Some(primary) = self.current().clone() {
                        return Ok(primary.client.clone());
                    }
                    sentinel.async_get_client().await
                };
                match tokio::time::timeout(RESOLVE_TIMEOUT, asked).await {
                    Ok(answer) => answer.map_err(|error| failure(&error, doing))?,
                    Err(_) => return Err(Failure::no_answer(Target::Redis, doing)),
                }
            }
        };
        let mut current = self.current();
        if let Some(primary) = &*current {
            return Ok(primary.clone());
        }
        let primary = Arc::new(Primary::new(client)?);
        if matches!(&*self.place, Place::Sentinel { .. }) {
            tracing::info!(redis = %primary.client.get_connection_info().addr(), "the primary, as Sentinel says");
        }
        *current = Some(primary.clone());
        Ok(primary)
    }

    /// After a failure that another server would not have answered with: its connections are not used again,
    /// and where the primary is, is asked anew.
    pub(super) fn distrust(&self, primary: &Arc<Primary>, mut failure: Failure) -> Failure {
        // Another server may have this one's address, or its place.
        let of_server = ["READONLY", "NOREPLICAS", "MASTERDOWN", "WRONGPASS", "NOAUTH", "NOPERM", "tls"];
        if !failure.is_silence() && !of_server.contains(&failure.code.as_str()) {
            return failure;
        }
        if failure.code == "io" && !failure.text.contains("refused") && !primary.has_answered.load(Ordering::Relaxed) {
            // Often its last word does not get through.
            failure.remedy = self.tls.map(|presented| match presented {
                Presented::Nothing => "if it asks who we are, name --redis-cert and --redis-key",
                Presented::Certificate => {
                    "if its log says that it refuses the certificate in --redis-cert, renew that, \
                                           or have it signed by an authority that it trusts"
                }
            });
        }
        let mut current = self.current();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, primary)) {
            *current = None;
        }
        failure
    }

    /// Hears of every answer.
    pub(super) fn judge<T>(&self, primary: &Arc<Primary>, answer: Result<T, Failure>) -> Result<T, Failure> {
        if answer.is_ok() {
            primary.has_answered.store(true, Ordering::Relaxed);
        }
        answer.map_err(|failure| self.distrust(primary, failure))
    }

    /// Hears of every attempt to write down that we live. One sign says nothing of the other: where only one of
    /// them is refused, nobody has come back.
    pub(super) fn note<T>(&self, sign: Sign, attempt: Result<T, Failure>) -> Result<T, Failure> {
        let is_missed = match sign {
            Sign::Heartbeat => &self.absence.heartbeat,
            Sign::Renewal => &self.absence.renewal,
        };
        if attempt.is_err() {
            is_missed.store(true, Ordering::Relaxed);
        } else if is_missed.swap(false, Ordering::Relaxed) {
            self.absence.returns.send_modify(|returns| *returns += 1);
        }
        attempt
    }

    /// Changes when the server has come back.
    pub(super) fn returns(&self) -> watch::Receiver<u64> {
        self.absence.returns.subscribe()
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<Primary>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Primary {
    fn new(client: Client) -> Result<Self, Failure> {
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(ANSWER_TIMEOUT))
            .set_connection_timeout(Some(CONNECT_TIMEOUT));
        let manager = Manager::new_with_config(client.get_connection_info().clone(), config).map_err(bad_url)?;
        let pool = Pool::builder(manager)
            .max_size(POOL_SIZE)
            .post_create(Hook::async_fn(|link, _| Box::pin(try_recycling(link))))
            .build()
            .map_err(|error| Failure::fatal(Target::Redis, "pool", error.to_string(), "this is a bug: report it"))?;
        Ok(Self { client, pool, has_answered: AtomicBool::new(false), ack_links: Mutex::default() })
    }

    /// A connection of the caller's own, without a response timeout: the client's default of half a second
    /// would end every blocking read.
    pub(super) async fn reading_link(&self) -> Result<MultiplexedConnection, RedisError> {
        let config =
            AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(Some(CONNECT_TIMEOUT));
        self.client.get_multiplexed_async_connection_with_config(&config).await
    }

    /// A connection for plain commands.
    pub(super) async fn connection(&self, doing: &str) -> Result<deadpool_redis::Connection, Failure> {
        self.pool.get().await.map_err(|error| match error {
            PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => failure(&error, doing),
            other => Failure::silence(Target::Redis, Class::Transient, "io", format!("{doing}: {other}")),
        })
    }

    /// The connection that the acknowledgements of neighbouring lanes share; their commands follow
    /// each other on it without waiting for answers.
    pub(super) async fn ack_link(&self, shard: u16, doing: &str) -> Result<MultiplexedConnection, Failure> {
        let number = shard / LANES_OF_ACK_LINK;
        let kept = self.ack_links().get(&number).cloned();
        if let Some(link) = kept {
            return Ok(link);
        }
        let link = deadpool_redis::Connection::take(self.connection(doing).await?);
        self.ack_links().insert(number, link.clone());
        Ok(link)
    }

    pub(super) fn drop_ack_link(&self, shard: u16) {
        self.ack_links().remove(&(shard / LANES_OF_ACK_LINK));
    }

    fn ack_links(&self) -> MutexGuard<'_, HashMap<u16, MultiplexedConnection>> {
        self.ack_links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the pool asks before it hands a connection out again. Where the user may not, it would say nothing
/// and make a new one each time. Any other answer, such as MISCONF, is for the command itself to get, or not to get.
async fn try_recycling(link: &mut MultiplexedConnection) -> Result<(), HookError> {
    let mut pipe = redis::pipe();
    pipe.cmd("UNWATCH").cmd("PING");
    pipe.exec_async(link).await.or_else(|error| {
        let failure = failure(&error, "trying a connection");
        if failure.is_silence() || failure.code == "NOPERM" { Err(HookError::Backend(error)) } else { Ok(()) }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_server_is_back_when_an_attempt_succeeds_after_one_that_failed() {
        let server = Server::open("redis://127.0.0.1:1", None, &Certificates::default()).unwrap();
        let returns = server.returns();
        let failed = || Err::<(), _>(Failure::no_answer(Target::Redis, "a sign of life"));
        for (sign, attempt, is_back) in [
            (Sign::Heartbeat, Ok(()), false),
            (Sign::Heartbeat, failed(), false),
            (Sign::Heartbeat, failed(), false),
            (Sign::Renewal, Ok(()), false),
            (Sign::Heartbeat, Ok(()), true),
        ] {
            let _ = server.note(sign, attempt);
            assert_eq!(returns.has_changed().unwrap(), is_back);
        }
        assert!(!server.returns().has_changed().unwrap(), "for those who ask later it is there");
    }
}
