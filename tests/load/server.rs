//! The two servers: an empty database and namespace for each measurement, and the CPU they use.

use std::path::Path;
use std::time::Duration;

use hexlane::shard::{Keys, Topology};
use hexlane::store::{Store, StoreSettings};
use hexlane::stream::Stream;
use redis::aio::MultiplexedConnection;
use tokio_postgres::Client;

const NAMESPACE: &str = "hexlane-bench";
const DATABASE: &str = "hexlane_bench";
/// USER_HZ, in which /proc tells times: 100 on every Linux that people run.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU seconds used so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu {
    pub redis: f64,
    /// `None` where the server runs on another machine.
    pub postgres: Option<f64>,
}

impl Cpu {
    pub fn since(self, before: Self) -> Self {
        let postgres = self.postgres.zip(before.postgres).map(|(now, then)| now - then);
        Self { redis: self.redis - before.redis, postgres }
    }
}

pub struct Servers {
    pub redis_url: String,
    pub database_url: String,
    pub redis: MultiplexedConnection,
    pub postgres: Client,
    postmaster: Option<u32>,
}

impl Servers {
    /// A database of the benchmark's own on the given servers.
    pub async fn prepare(redis_url: &str, database_url: &str) -> Self {
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        let client = redis::Client::open(redis_url).expect("a Redis URL");
        let redis = client.get_multiplexed_async_connection_with_config(&config).await.expect("Redis answers");
        let admin = super::bare::connect(database_url).await;
        admin.batch_execute(&format!("DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")).await.expect("may drop");
        admin.batch_execute(&format!("CREATE DATABASE {DATABASE}")).await.expect("may create a database");
        let (server, _) = database_url.rsplit_once('/').expect("a URL with a database");
        let database_url = format!("{server}/{DATABASE}");
        let store = Store::new(&StoreSettings {
            url: database_url.clone(),
            application_name: "hexlane bench".into(),
            pool_size: 1,
            statement_timeout: Duration::from_secs(30),
            dedup_window: Duration::from_secs(3600),
        })
        .expect("a database URL");
        store.migrate().await.expect("the schema can be made");
        let postgres = super::bare::connect(&database_url).await;
        let pid: i32 = postgres.query_one("SELECT pg_backend_pid()", &[]).await.expect("answers").get(0);
        let postmaster = parent(pid.unsigned_abs()).filter(|_| is_postgres(pid.unsigned_abs()));
        Self { redis_url: redis_url.into(), database_url, redis, postgres, postmaster }
    }

    /// Nothing stored, nothing published, nothing left to be flushed.
    pub async fn empty(&mut self) {
        self.empty_redis().await;
        self.postgres.batch_execute("TRUNCATE feature_state, processed_event").await.expect("may truncate");
        self.checkpoint().await;
    }

    pub async fn checkpoint(&self) {
        self.postgres.batch_execute("CHECKPOINT").await.expect("a superuser");
    }

    pub async fn empty_redis(&mut self) {
        let mut keys: Vec<String> = Vec::new();
        let mut cursor = 0_u64;
        loop {
            let page: (u64, Vec<String>) = redis::cmd("SCAN")
                .arg(cursor)
                .arg("MATCH")
                .arg(format!("{NAMESPACE}:*"))
                .arg("COUNT")
                .arg(1000)
                .query_async(&mut self.redis)
                .await
                .expect("Redis answers");
            keys.extend(page.1);
            cursor = page.0;
            if cursor == 0 {
                break;
            }
        }
        if !keys.is_empty() {
            redis::cmd("DEL").arg(keys).exec_async(&mut self.redis).await.expect("may delete");
        }
    }

    pub fn keys(&self) -> Keys {
        Keys::new(NAMESPACE)
    }

    pub fn namespace(&self) -> &'static str {
        NAMESPACE
    }

    pub fn stream(&self) -> Stream {
        Stream::new(&self.redis_url, self.keys(), "hexlane", "bench").expect("a Redis URL")
    }

    /// Streams with their groups, as a worker would make them.
    pub async fn make_groups(&mut self, topology: Topology) {
        let mut pipe = redis::pipe();
        for shard in 0..topology.shards {
            pipe.cmd("XGROUP").arg("CREATE").arg(self.keys().events(shard)).arg("hexlane").arg("0").arg("MKSTREAM");
        }
        pipe.exec_async(&mut self.redis).await.expect("may make groups");
    }

    /// Waits until Redis has finished rewriting its append-only file.
    pub async fn settle_redis(&mut self) {
        loop {
            let info: String =
                redis::cmd("INFO").arg("persistence").query_async(&mut self.redis).await.expect("answers");
            let busy =
                ["aof_rewrite_in_progress:1", "aof_rewrite_scheduled:1"].into_iter().any(|word| info.contains(word));
            if !busy {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub async fn cpu(&mut self) -> Cpu {
        let info: String = redis::cmd("INFO").arg("cpu").query_async(&mut self.redis).await.expect("Redis answers");
        let field = |name: &str| -> f64 {
            let found = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            found.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0)
        };
        let redis = ["used_cpu_sys", "used_cpu_user", "used_cpu_sys_children", "used_cpu_user_children"];
        Cpu { redis: redis.into_iter().map(field).sum(), postgres: self.postmaster.map(tree_seconds) }
    }
}

/// The fields of /proc/PID/stat after the program's name: the first one is the state.
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

fn parent(pid: u32) -> Option<u32> {
    stat(pid)?.get(1)?.parse().ok()
}

fn is_postgres(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "postgres")
}

/// Of one process, and of its children that have ended if asked for.
pub fn seconds(pid: u32, with_ended: bool) -> f64 {
    let Some(fields) = stat(pid) else { return 0.0 };
    let last = if with_ended { 15 } else { 13 };
    let ticks = fields.get(11..last).unwrap_or_default().iter().filter_map(|ticks| ticks.parse::<f64>().ok());
    ticks.sum::<f64>() / TICKS_PER_SECOND
}

/// A server process and all its children, living and ended.
fn tree_seconds(root: u32) -> f64 {
    let processes = std::fs::read_dir(Path::new("/proc")).into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    seconds(root, true) + pids.filter(|pid| parent(*pid) == Some(root)).map(|pid| seconds(pid, false)).sum::<f64>()
}
