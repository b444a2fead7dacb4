//! What a test needs around it: servers, a namespace and a database of its own, worker processes,
//! and a way to wait for conditions.

mod process;
mod proxy;
mod servers;
mod traffic;

use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio_postgres::NoTls;

pub use process::{Counts, Worker, WorkerCommand, http_get};
pub use proxy::{Fault, Proxy, Way, holds};
pub use servers::{Server, Servers, Standby};
pub use traffic::Traffic;

/// How long a test waits for anything before it fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

static WORLDS: AtomicU32 = AtomicU32::new(0);

/// One test's own namespace and database; dropped with it.
pub struct World {
    pub redis_url: String,
    pub database_url: String,
    pub namespace: String,
    pub shards: u16,
    /// Only where the test stops or restarts servers.
    pub servers: Option<Servers>,
    redis: redis::aio::ConnectionManager,
}

impl World {
    /// On the servers that all tests share; nothing may be done to the servers themselves.
    pub async fn shared(name: &str, shards: u16) -> Self {
        let redis_url = needed("HEXLANE_TEST_REDIS_URL");
        let base_url = needed("HEXLANE_TEST_DATABASE_URL");
        Self::at(name, shards, redis_url, &base_url, None).await
    }

    /// On another Redis than that of all tests.
    pub async fn on_redis(name: &str, shards: u16, redis_url: String) -> Self {
        Self::at(name, shards, redis_url, &needed("HEXLANE_TEST_DATABASE_URL"), None).await
    }

    /// From now on another Redis is the one that it looks at itself.
    pub async fn look_at(&mut self, redis_url: &str) {
        self.redis = manager(redis_url).await;
    }

    /// On servers of its own, which the test may stop, kill and start again.
    pub async fn private(name: &str, shards: u16) -> Self {
        let servers = tokio::task::spawn_blocking(Servers::start).await.unwrap();
        let (redis_url, base_url) = (servers.redis_url.clone(), servers.database_url.clone());
        Self::at(name, shards, redis_url, &base_url, Some(servers)).await
    }

    async fn at(name: &str, shards: u16, redis_url: String, base_url: &str, servers: Option<Servers>) -> Self {
        let number = WORLDS.fetch_add(1, Ordering::Relaxed);
        let unique = format!("{name}_{}_{number}", std::process::id());
        let admin = connect(base_url).await;
        admin.batch_execute(&format!("CREATE DATABASE \"{unique}\"")).await.unwrap();
        let (server, _) = base_url.rsplit_once('/').unwrap();
        let database_url = format!("{server}/{unique}");
        let redis = manager(&redis_url).await;
        let world = Self { redis_url, database_url, namespace: unique, shards, servers, redis };
        world.hexlane(&["migrate"]).await;
        world
    }

    /// A connection to this world's database.
    pub async fn postgres(&self) -> tokio_postgres::Client {
        connect(&self.database_url).await
    }

    /// The same as another user, who needs no password.
    pub async fn postgres_as(&self, user: &str) -> tokio_postgres::Client {
        let (_, place) = self.database_url.rsplit_once('@').unwrap();
        connect(&format!("postgres://{user}@{place}")).await
    }

    /// A connection to Redis that comes back by itself after a restart.
    pub fn redis(&self) -> redis::aio::ConnectionManager {
        self.redis.clone()
    }

    pub fn events_key(&self, shard: u16) -> String {
        format!("{}:{{{shard:03}}}:events", self.namespace)
    }

    pub fn owner_key(&self, shard: u16) -> String {
        format!("{}:{{{shard:03}}}:owner", self.namespace)
    }

    pub fn dead_key(&self, shard: u16) -> String {
        format!("{}:{{{shard:03}}}:dead", self.namespace)
    }

    /// XADD of one event.
    pub async fn add(&self, shard: u16, event: &[u8]) -> String {
        let mut command = redis::cmd("XADD");
        command.arg(self.events_key(shard)).arg("*").arg("event").arg(event);
        command.query_async(&mut self.redis()).await.unwrap()
    }

    /// XADD of an entry with any fields.
    pub async fn add_fields(&self, shard: u16, fields: &[(impl redis::ToRedisArgs, &[u8])]) -> String {
        let mut command = redis::cmd("XADD");
        command.arg(self.events_key(shard)).arg("*");
        for (name, value) in fields {
            command.arg(name).arg(*value);
        }
        command.query_async(&mut self.redis()).await.unwrap()
    }

    /// Events of one shard in one transaction: a reader gets all of them or none.
    pub async fn add_together(&self, shard: u16, events: &[Vec<u8>]) {
        let mut pipe = redis::pipe();
        pipe.atomic();
        for event in events {
            pipe.cmd("XADD").arg(self.events_key(shard)).arg("*").arg("event").arg(event).ignore();
        }
        pipe.exec_async(&mut self.redis()).await.unwrap();
    }

    /// Runs SQL in this world's database.
    pub async fn sql(&self, sql: &str) {
        self.postgres().await.batch_execute(sql).await.unwrap();
    }

    /// What a script of `scripts/servers` does to a server of this world's own.
    pub async fn servers(&self, act: impl FnOnce(&Servers) + Send) {
        tokio::task::block_in_place(|| act(self.servers.as_ref().expect("a private world")));
    }

    /// How PostgreSQL lets in whom `rule` is about, as a line of `pg_hba.conf`: the first one that fits decides, and
    /// everybody else comes in as before. The server reads it a moment later.
    pub async fn let_in(&self, rule: &str) {
        let admin = self.postgres().await;
        let file: String = admin.query_one("SHOW hba_file", &[]).await.unwrap().get(0);
        let rules: String = admin.query_one("SELECT pg_read_file($1)", &[&file]).await.unwrap().get(0);
        std::fs::write(&file, format!("{rule}\n{rules}")).unwrap();
        admin.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    }

    /// Any Redis command, its parts separated by blanks.
    pub async fn ask<T: redis::FromRedisValue>(&self, command: &str) -> T {
        let mut parts = command.split_whitespace();
        let mut cmd = redis::cmd(parts.next().unwrap());
        for part in parts {
            cmd.arg(part);
        }
        cmd.query_async(&mut self.redis()).await.unwrap()
    }

    /// Drains what was added before in one batch: without a window, because it might have passed
    /// for the first of them and not for the last.
    pub async fn drain_in_one_batch(&self) -> Counts {
        self.worker().set("REORDER_WINDOW", "0s").once().await
    }

    /// A worker process with settings fit for tests; not started yet.
    pub fn worker(&self) -> WorkerCommand {
        WorkerCommand::new(self)
    }

    /// Runs another command of the binary; its stdout. Panics unless it exits with 0.
    pub async fn hexlane(&self, args: &[&str]) -> String {
        let output = self.command(args).output().await.unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "hexlane {args:?}: {}\n{stderr}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }

    /// The binary, pointed at this world; nothing of the caller's own settings gets through.
    pub fn command(&self, args: &[&str]) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_hexlane"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("HEXLANE_")) {
            command.env_remove(name);
        }
        command.args(args).kill_on_drop(true);
        command.env("HEXLANE_REDIS_URL", &self.redis_url).env("HEXLANE_DATABASE_URL", &self.database_url);
        command.env("HEXLANE_NAMESPACE", &self.namespace).env("HEXLANE_SHARDS", self.shards.to_string());
        command
    }

    /// Version and op stored for a feature.
    pub async fn state(&self, feature_id: &str) -> Option<(i64, String)> {
        let sql = "SELECT version, op FROM feature_state WHERE feature_id = $1";
        let row = self.postgres().await.query_opt(sql, &[&feature_id]).await.unwrap()?;
        Some((row.get(0), row.get(1)))
    }

    /// Entries delivered and not settled, over all shards.
    pub async fn pending(&self) -> u64 {
        let mut sum = 0;
        for shard in 0..self.shards {
            let mut command = redis::cmd("XPENDING");
            command.arg(self.events_key(shard)).arg("hexlane");
            if let Ok(redis::Value::Array(reply)) = command.query_async(&mut self.redis()).await {
                let redis::Value::Int(count) = reply[0] else { panic!("{reply:?}") };
                sum += u64::try_from(count).unwrap();
            }
        }
        sum
    }

    /// How often each pending entry of a shard was delivered, in id order.
    pub async fn deliveries(&self, shard: u16) -> Vec<i64> {
        let ask = format!("XPENDING {} hexlane - + 10000", self.events_key(shard));
        let rows: Vec<(String, String, i64, i64)> = self.ask(&ask).await;
        rows.into_iter().map(|(_, _, _, deliveries)| deliveries).collect()
    }

    /// Every dead letter of every shard, each with its fields.
    pub async fn dead_letters(&self) -> Vec<DeadLetter> {
        type Entry = (String, Vec<(Vec<u8>, Vec<u8>)>);
        let text = |name: Vec<u8>| String::from_utf8_lossy(&name).into_owned();
        let mut letters = Vec::new();
        for shard in 0..self.shards {
            let mut command = redis::cmd("XRANGE");
            command.arg(self.dead_key(shard)).arg("-").arg("+");
            let entries: Vec<Entry> = command.query_async(&mut self.redis()).await.unwrap();
            letters.extend(entries.into_iter().map(|(_, fields)| {
                let fields = fields.into_iter().map(|(name, value)| (text(name), value)).collect();
                DeadLetter { shard, fields }
            }));
        }
        letters
    }

    /// Waits until nothing is unread or pending on any shard.
    pub async fn drained(&self) {
        eventually("every shard is drained", async || {
            let status: serde_json::Value = serde_json::from_str(&self.hexlane(&["status", "--json"]).await).unwrap();
            status["totals"]["lag"] == 0 && status["totals"]["pending"] == 0
        })
        .await;
    }
}

/// One entry of a dead-letter stream.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    pub shard: u16,
    pub fields: Vec<(String, Vec<u8>)>,
}

impl DeadLetter {
    /// The bytes of a field, our own with their prefix `dead:`.
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_slice())
    }

    /// A field as text; empty if there is none.
    pub fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(self.bytes(name).unwrap_or_default()).into_owned()
    }

    pub fn reason(&self) -> String {
        self.text("dead:reason")
    }
}

/// Waits for a condition, with a deadline that names it.
pub async fn eventually<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits for something that ends, but not for ever.
pub async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("in time")
}

/// A port that nobody listened to a moment ago.
pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A valid event at a point.
pub fn point(feature_id: &str, version: i64, lon: f64, lat: f64) -> Vec<u8> {
    event(feature_id, version, "update", &format!(r#"{{"type":"Point","coordinates":[{lon},{lat}]}}"#), "")
}

/// A valid delete.
pub fn delete(feature_id: &str, version: i64) -> Vec<u8> {
    event(feature_id, version, "delete", "null", "")
}

/// An event's text; `more` is appended as further members, beginning with a comma.
pub fn event(feature_id: &str, version: i64, op: &str, geometry: &str, more: &str) -> Vec<u8> {
    format!(
        r#"{{"feature_id":"{feature_id}","version":{version},"op":"{op}","observation_time":"2026-01-01T00:00:00Z","crs":"EPSG:4326","geometry":{geometry}{more}}}"#
    )
    .into_bytes()
}

/// The folder with real change streams and suites, if there is one; a test without it reports
/// itself as skipped.
pub fn data() -> Option<PathBuf> {
    let folder = std::env::var_os("HEXLANE_TEST_DATA").map(PathBuf::from).filter(|folder| folder.is_dir());
    if folder.is_none() {
        eprintln!("skipped: HEXLANE_TEST_DATA names no folder");
    }
    folder
}

/// The seed of a random test: an argument by HEXLANE_TEST_SEED, else fixed; always printed.
pub fn seed() -> u64 {
    let seed = std::env::var("HEXLANE_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    eprintln!("seed: {seed} (set HEXLANE_TEST_SEED to choose)");
    seed
}

/// Whether random tests and outages run in full size instead of that for CI.
pub fn full() -> bool {
    std::env::var_os("HEXLANE_TEST_FULL").is_some_and(|value| value == "1")
}

fn needed(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run the tests by scripts/test"))
}

async fn manager(url: &str) -> redis::aio::ConnectionManager {
    // The default of half a second is too short for large dead letters on a busy machine.
    let config = redis::aio::ConnectionManagerConfig::new().set_response_timeout(Some(Duration::from_secs(10)));
    redis::Client::open(url).unwrap().get_connection_manager_with_config(config).await.unwrap()
}

async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, link) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(link);
    client
}
