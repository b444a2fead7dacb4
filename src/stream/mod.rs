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
pub mod place;
pub mod publish;
pub mod reader;
pub mod rewind;
pub mod rights;
pub mod server;
pub mod settle;
pub mod topology;
pub mod trim;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use redis::{ErrorKind, Pipeline, RedisError};

use crate::event::EntryId;
use crate::failure::{Class, Failure, Target};
use crate::shard::Keys;
use server::{ANSWER_TIMEOUT, Server};

/// How often the clocks are compared, of which one counts.
const CLOCK_SAMPLES: usize = 3;

/// A Redis server, seen through one namespace and one consumer group.
#[derive(Clone)]
pub struct Stream {
    server: Server,
    keys: Keys,
    group: Arc<str>,
    consumer: Arc<str>,
    /// Server's clock minus ours, in microseconds.
    clock_offset_us: Arc<AtomicI64>,
}

impl Stream {
    /// One consumer's view of `server`.
    pub fn new(server: Server, keys: Keys, group: &str, consumer: &str) -> Self {
        Self { server, keys, group: group.into(), consumer: consumer.into(), clock_offset_us: Arc::default() }
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
        self.server.address()
    }

    /// Sends one command.
    async fn ask<T: redis::FromRedisValue>(&self, doing: &str, command: &redis::Cmd) -> Result<T, Failure> {
        let primary = self.server.primary().await?;
        let asked = async {
            let mut connection = primary.connection(doing).await?;
            let answer = command.query_async(&mut connection).await;
            answer.map_err(|error| with_what_was_run(failure(&error, doing), command))
        };
        self.server.judge(&primary, asked.await)
    }

    /// Sends commands in one pipeline.
    async fn ask_all<T: redis::FromRedisValue>(
        &self,
        doing: &str,
        commands: impl Iterator<Item = redis::Cmd>,
    ) -> Result<Vec<T>, Failure> {
        let pipe = pipeline(commands);
        if pipe.is_empty() { Ok(Vec::new()) } else { self.send(doing, &pipe, || true).await }
    }

    /// The same, where what is wrong with one of them hides no other.
    async fn ask_each<T: redis::FromRedisValue>(
        &self,
        doing: &str,
        commands: impl Iterator<Item = redis::Cmd>,
    ) -> Result<Vec<Result<T, Failure>>, Failure> {
        let mut pipe = pipeline(commands);
        if pipe.is_empty() {
            return Ok(Vec::new());
        }
        let answers: Vec<redis::Value> = self.send(doing, pipe.ignore_errors(), || true).await?;
        let read = |(answer, command)| match answer {
            redis::Value::ServerError(error) => Err(with_what_was_run(failure(&error.into(), doing), command)),
            answer => redis::from_redis_value(answer).map_err(|error| failure(&error.into(), doing)),
        };
        Ok(answers.into_iter().zip(pipe.cmd_iter()).map(read).collect())
    }

    /// Sends a pipeline, unless when a connection is there its time is over: connecting can outlast a lease.
    async fn send<T: redis::FromRedisValue>(
        &self,
        doing: &str,
        pipe: &Pipeline,
        is_held: impl Fn() -> bool,
    ) -> Result<T, Failure> {
        let primary = self.server.primary().await?;
        let asked = async {
            let mut connection = primary.connection(doing).await?;
            if !is_held() {
                return Err(Failure::lease_over(Target::Redis, doing));
            }
            pipe.query_async(&mut connection).await.map_err(|error| failure_of(&error, doing, pipe))
        };
        self.server.judge(&primary, asked.await)
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
        // The server looked at its clock somewhere between question and answer, so the quickest one tells best.
        let mut quickest = self.compare_clocks().await?;
        for _ in 1..CLOCK_SAMPLES {
            quickest = quickest.min(self.compare_clocks().await?);
        }
        let (_, offset_us) = quickest;
        self.clock_offset_us.store(offset_us, Ordering::Relaxed);
        Ok(())
    }

    /// How long the answer took, and how far the server's clock is ahead of ours, in microseconds.
    async fn compare_clocks(&self) -> Result<(i64, i64), Failure> {
        let before_us = chrono::Utc::now().timestamp_micros();
        let (seconds, micros): (i64, i64) = self.ask("asking for the time", &redis::cmd("TIME")).await?;
        let after_us = chrono::Utc::now().timestamp_micros();
        let server_us = seconds.saturating_mul(1_000_000).saturating_add(micros);
        Ok((after_us - before_us, server_us - i64::midpoint(before_us, after_us)))
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

fn pipeline(commands: impl Iterator<Item = redis::Cmd>) -> Pipeline {
    let mut pipe = redis::pipe();
    for command in commands {
        pipe.add_command(command);
    }
    pipe
}

/// EVAL of `source` over `keys`; its further arguments are the caller's to add.
fn script(source: &str, keys: &[String]) -> redis::Cmd {
    let mut command = redis::cmd("EVAL");
    command.arg(source).arg(keys.len()).arg(keys);
    command
}

/// The server does not always say which command it refused, and never for which key; of a script not even
/// which of its commands.
/// See <https://redis.io/docs/latest/operate/oss_and_stack/management/security/acl/>.
fn with_what_was_run(mut failure: Failure, command: &redis::Cmd) -> Failure {
    if failure.code != "NOPERM" {
        return failure;
    }
    let mut arguments = command.args_iter().filter_map(|argument| match argument {
        redis::Arg::Simple(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    });
    let what = match (arguments.next(), arguments.next()) {
        (Some("EVAL"), Some(source)) => {
            let mut run: Vec<String> = source.split("redis.call('").skip(1).map(command_of).collect();
            run.sort();
            run.dedup();
            let count = arguments.next().and_then(|count| count.parse().ok()).unwrap_or_default();
            let keys: Vec<&str> = arguments.take(count).collect();
            format!("the script runs {} with {}", run.join(", "), keys.join(", "))
        }
        (Some(name @ "XREADGROUP"), Some(_)) => {
            let mut keys = arguments.skip_while(|argument| *argument != "STREAMS").skip(1);
            format!("it was {name} {}", keys.next().unwrap_or_default())
        }
        (Some(name @ ("XGROUP" | "XINFO" | "MEMORY")), Some(subcommand)) => {
            format!("it was {name} {subcommand} {}", arguments.next().unwrap_or_default())
        }
        (Some(name), key) => format!("it was {name} {}", key.unwrap_or_default()),
        (None, _) => return failure,
    };
    failure.text.push_str(&format!(" ({what})"));
    failure
}

/// As it stands in a script, from its name on: with its subcommand, if it has one.
fn command_of(rest: &str) -> String {
    let mut words = rest.split('\'');
    let name = words.next().unwrap_or_default();
    match (name, words.nth(1)) {
        ("XINFO" | "XGROUP", Some(subcommand)) => format!("{name} {subcommand}"),
        _ => name.to_owned(),
    }
}

/// Judges an error of a pipeline: the first one, of the command that it is about.
fn failure_of(error: &RedisError, doing: &str, pipe: &Pipeline) -> Failure {
    let judged = failure(error, doing);
    let place = match error.clone().into_server_errors().as_deref() {
        Some([(place, _), ..]) => *place,
        _ => 0,
    };
    match pipe.cmd_iter().nth(place) {
        Some(command) => with_what_was_run(judged, command),
        None => judged,
    }
}

/// Judges an error of the driver; of a pipeline, the first one.
fn failure(error: &RedisError, doing: &str) -> Failure {
    let text = |what: &str| format!("{doing}: {what}");
    if error.is_timeout() {
        return Failure::no_answer(Target::Redis, doing);
    }
    if error.kind() == ErrorKind::AuthenticationFailed {
        return Failure::redis(
            "WRONGPASS",
            text("the server refused user or password, or takes no more clients (maxclients)"),
        );
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
            // As Redis 7.0 and as later ones word it.
            let of_script = ["user executing the script can't", "ACL failure in script"];
            if of_script.iter().any(|words| detail.contains(words)) {
                return Failure::redis("NOPERM", text(detail));
            }
            let named = ["NOGROUP", "WRONGTYPE", "OOM", "MISCONF", "READONLY", "NOREPLICAS", "NOPERM"]
                .into_iter()
                .find(|known| code == "ERR" && detail.contains(known))
                .unwrap_or(code);
            Failure::redis(named, text(&format!("{code} {detail}")))
        }
        None => {
            let text = text(&error.to_string());
            Failure::tls(Target::Redis, &text)
                .unwrap_or_else(|| Failure::silence(Target::Redis, Class::Transient, "io", text))
        }
    }
}
