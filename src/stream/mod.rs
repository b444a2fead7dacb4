//! The only module that speaks to Redis.
//!
//! Comes in: the settings. Goes out: entries ([`reader::Reader`], one connection for each lane,
//! because a blocking read blocks its connection) and settled entries (here, over a pool).
//! Every error is a judged [`Failure`]; nothing is retried here.

pub mod dead;
pub mod entry;
pub mod inspect;
pub mod membership;
pub mod oldest;
pub mod pending;
pub mod publish;
pub mod reader;
pub mod rewind;
pub mod settle;
pub mod topology;
pub mod trim;

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool_redis::{Manager, Pool, PoolError};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ErrorKind, IntoConnectionInfo, RedisError};

use crate::event::EntryId;
use crate::failure::{Class, Failure, Target};
use crate::shard::Keys;

/// A server that does not answer a plain command for this long is treated as lost.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Plain commands are short; a few connections serve any number of lanes.
const POOL_SIZE: usize = 8;
/// In one turn of its loop Redis takes 16 KiB from each connection (`PROTO_IOBUF_LEN`) and answers
/// all the reads that have come: with hundreds of lanes on one link, acknowledgements would wait
/// for seconds.
const LANES_OF_ACK_LINK: u16 = 32;

/// A Redis server, seen through one namespace and one consumer group.
#[derive(Clone)]
pub struct Stream {
    client: Client,
    pool: Pool,
    keys: Keys,
    group: Arc<str>,
    consumer: Arc<str>,
    /// Taken out of the pool for acknowledgements, one for every [`LANES_OF_ACK_LINK`] lanes: they
    /// are many and small, and the pool asks whether a connection is alive each time it hands one out.
    ack_links: Arc<Mutex<HashMap<u16, MultiplexedConnection>>>,
    /// Server's clock minus ours, in microseconds.
    clock_offset_us: Arc<AtomicI64>,
}

impl Stream {
    /// Prepares connections to `url`; the first one is made when it is needed.
    ///
    /// # Errors
    /// [`Class::Fatal`] if `url` is no Redis URL.
    pub fn new(url: &str, keys: Keys, group: &str, consumer: &str) -> Result<Self, Failure> {
        let bad_url = |_| {
            // The error may quote the URL, and with it the password.
            let remedy = "write --redis-url as redis://[user:password@]host:port[/database]";
            Failure::fatal(Target::Redis, "url", "the URL cannot be read".into(), remedy)
        };
        let info = url.into_connection_info().map_err(bad_url)?;
        let client = Client::open(info.clone()).map_err(bad_url)?;
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(ANSWER_TIMEOUT))
            .set_connection_timeout(Some(CONNECT_TIMEOUT));
        let manager = Manager::new_with_config(info, config).map_err(bad_url)?;
        let pool = Pool::builder(manager)
            .max_size(POOL_SIZE)
            .build()
            .map_err(|error| Failure::fatal(Target::Redis, "pool", error.to_string(), "this is a bug: report it"))?;
        Ok(Self {
            client,
            pool,
            keys,
            group: group.into(),
            consumer: consumer.into(),
            ack_links: Arc::default(),
            clock_offset_us: Arc::new(AtomicI64::new(0)),
        })
    }

    /// The keys of this namespace.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The consumer group.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// Host and port, for logs.
    pub fn address(&self) -> String {
        self.client.get_connection_info().addr().to_string()
    }

    /// A connection for plain commands.
    async fn connection(&self, doing: &str) -> Result<deadpool_redis::Connection, Failure> {
        self.pool.get().await.map_err(|error| match error {
            PoolError::Backend(error) => failure(&error, doing),
            other => Failure::silence(Target::Redis, Class::Transient, "io", format!("{doing}: {other}")),
        })
    }

    /// The connection that the acknowledgements of neighbouring lanes share; their commands follow
    /// each other on it without waiting for answers.
    async fn ack_link(&self, shard: u16, doing: &str) -> Result<MultiplexedConnection, Failure> {
        let number = shard / LANES_OF_ACK_LINK;
        let kept = self.ack_links().get(&number).cloned();
        if let Some(link) = kept {
            return Ok(link);
        }
        let link = deadpool_redis::Connection::take(self.connection(doing).await?);
        self.ack_links().insert(number, link.clone());
        Ok(link)
    }

    fn drop_ack_link(&self, shard: u16) {
        self.ack_links().remove(&(shard / LANES_OF_ACK_LINK));
    }

    fn ack_links(&self) -> std::sync::MutexGuard<'_, HashMap<u16, MultiplexedConnection>> {
        self.ack_links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends one command over the pool.
    async fn ask<T: redis::FromRedisValue>(&self, doing: &str, command: &redis::Cmd) -> Result<T, Failure> {
        let mut connection = self.connection(doing).await?;
        command.query_async(&mut connection).await.map_err(|error| failure(&error, doing))
    }

    /// Sends commands in one pipeline over the pool.
    async fn ask_all<T: redis::FromRedisValue>(
        &self,
        doing: &str,
        commands: impl Iterator<Item = redis::Cmd>,
    ) -> Result<Vec<T>, Failure> {
        let mut pipe = redis::pipe();
        for command in commands {
            pipe.add_command(command);
        }
        if pipe.is_empty() {
            return Ok(Vec::new());
        }
        let mut connection = self.connection(doing).await?;
        pipe.query_async(&mut connection).await.map_err(|error| failure(&error, doing))
    }

    /// Asks whether the server answers.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn ping(&self) -> Result<(), Failure> {
        self.ask("pinging", &redis::cmd("PING")).await
    }

    /// Measures how far the server's clock is from ours: entry ids carry the server's time.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn sync_clock(&self) -> Result<(), Failure> {
        let (seconds, micros): (i64, i64) = self.ask("asking for the time", &redis::cmd("TIME")).await?;
        let server_us = seconds.saturating_mul(1_000_000).saturating_add(micros);
        self.clock_offset_us.store(server_us - chrono::Utc::now().timestamp_micros(), Ordering::Relaxed);
        Ok(())
    }

    /// The server's clock now, in milliseconds since 1970, as far as it is known.
    pub fn server_now_ms(&self) -> i64 {
        (chrono::Utc::now().timestamp_micros() + self.clock_offset_us.load(Ordering::Relaxed)) / 1000
    }

    /// Refuses servers that lack what the worker rests on.
    ///
    /// # Errors
    /// [`Class::Fatal`] for a server older than Redis 7.0 (XAUTOCLAIM's third element, script flags)
    /// and for Redis Cluster.
    pub async fn check_server(&self) -> Result<(), Failure> {
        let mut command = redis::cmd("INFO");
        command.arg("server").arg("cluster");
        let info: String = self.ask("asking for the server's version", &command).await?;
        let field =
            |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        // Valkey 8 answers redis_version:7.2.4 for the sake of clients like this one.
        let version = field("redis_version").unwrap_or("unknown");
        let major: u32 = version.split('.').next().and_then(|part| part.parse().ok()).unwrap_or(0);
        if major < 7 {
            let text = format!("the server is Redis {version}");
            return Err(Failure::fatal(Target::Redis, "version", text, "use Redis 7.0 or newer, or Valkey 8"));
        }
        if field("cluster_enabled") == Some("1") || field("redis_mode") == Some("cluster") {
            let text = "the server runs in cluster mode".into();
            return Err(Failure::fatal(
                Target::Redis,
                "cluster",
                text,
                "use a single primary, with replicas if you like",
            ));
        }
        Ok(())
    }
}

impl redis::ToRedisArgs for EntryId {
    fn write_redis_args<W: ?Sized + redis::RedisWrite>(&self, out: &mut W) {
        // Two numbers of at most 20 digits.
        let mut text = [0; 41];
        let mut end = 0;
        let mut put = |part: &[u8]| {
            if let Some(room) = text.get_mut(end..end + part.len()) {
                room.copy_from_slice(part);
                end += part.len();
            }
        };
        put(itoa::Buffer::new().format(self.ms).as_bytes());
        put(b"-");
        put(itoa::Buffer::new().format(self.seq).as_bytes());
        out.write_arg(text.get(..end).unwrap_or_default());
    }
}

impl redis::ToSingleRedisArg for EntryId {}

/// EVAL of `source` over `keys`; its further arguments are the caller's to add.
fn script(source: &str, keys: &[String]) -> redis::Cmd {
    let mut command = redis::cmd("EVAL");
    command.arg(source).arg(keys.len()).arg(keys);
    command
}

/// Judges an error of the driver; of a pipeline, the first one.
fn failure(error: &RedisError, doing: &str) -> Failure {
    let text = |what: &str| format!("{doing}: {what}");
    if error.is_timeout() {
        return Failure::silence(Target::Redis, Class::Transient, "timeout", text("no answer in time"));
    }
    if error.kind() == ErrorKind::AuthenticationFailed {
        return Failure::redis("WRONGPASS", text("the server refused user or password"));
    }
    let answers = error.clone().into_server_errors();
    let (code, detail) = match answers.as_deref() {
        Some([(_, first), ..]) => (Some(first.code()), first.details()),
        _ => (error.code(), error.detail()),
    };
    match code {
        // Also what a script's pcall hands on: `ERR`, with the real code at the head of the detail.
        Some(code) => {
            let detail = detail.unwrap_or_default();
            let named = ["NOGROUP", "WRONGTYPE", "OOM", "MISCONF", "READONLY", "NOREPLICAS", "NOPERM"]
                .into_iter()
                .find(|known| code == "ERR" && detail.contains(known))
                .unwrap_or(code);
            Failure::redis(named, text(&format!("{code} {detail}")))
        }
        None => Failure::silence(Target::Redis, Class::Transient, "io", text(&error.to_string())),
    }
}
