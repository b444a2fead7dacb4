//! The two servers: an empty database and namespace for each measurement, and the CPU they use.

use std::path::Path;
use std::time::Duration;

use hexlane::shard::{Keys, Topology};
use hexlane::store::{Store, StoreSettings};
use hexlane::stream::Stream;
use hexlane::stream::place::Certificates;
use hexlane::stream::server::Server;
use hexlane::stream::topology::Wanted;
use redis::aio::MultiplexedConnection;
use tokio_postgres::Client;

use crate::bare::connect;
use crate::traffic::{EAST, NORTH, SOUTH, WEST};

const NAMESPACE: &str = "hexlane-bench";
const DATABASE: &str = "hexlane_bench";
/// A filled database, kept to be copied.
const KEPT: &str = "hexlane_bench_kept";
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
    /// Connected to a database that is not ours, because nobody may be in one that is copied or dropped.
    admin: Client,
    postmaster: Option<u32>,
}

impl Servers {
    /// A database of the benchmark's own on the given servers.
    pub async fn prepare(redis_url: &str, database_url: &str) -> Self {
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        let client = redis::Client::open(redis_url).expect("a Redis URL");
        let redis = client.get_multiplexed_async_connection_with_config(&config).await.expect("Redis answers");
        let admin = connect(database_url).await;
        for database in [DATABASE, KEPT] {
            drop_database(&admin, database).await;
        }
        let (server, _) = database_url.rsplit_once('/').expect("a URL with a database");
        let database_url = format!("{server}/{DATABASE}");
        let postgres = create_database(&admin, &database_url).await;
        let pid: i32 = postgres.query_one("SELECT pg_backend_pid()", &[]).await.expect("answers").get(0);
        let postmaster = parent(pid.unsigned_abs()).filter(|_| is_postgres(pid.unsigned_abs()));
        Self { redis_url: redis_url.into(), database_url, redis, postgres, admin, postmaster }
    }

    /// A new database with the schema as it is shipped.
    pub async fn renew(&mut self) {
        drop_database(&self.admin, DATABASE).await;
        self.postgres = create_database(&self.admin, &self.database_url).await;
    }

    /// Bytes of write-ahead log so far.
    pub async fn wal_bytes(&self) -> f64 {
        let sql = "SELECT (pg_current_wal_insert_lsn() - '0/0')::float8";
        self.postgres.query_one(sql, &[]).await.expect("PostgreSQL answers").get(0)
    }

    /// What the table takes on disk, and what its indexes do.
    pub async fn sizes_mib(&self) -> (f64, f64) {
        let sql = "SELECT sum(pg_table_size(oid)) / 1048576.0::float8, sum(pg_indexes_size(oid)) / 1048576.0::float8 \
            FROM pg_class WHERE relkind = 'r' AND relname LIKE 'feature_state%'";
        let row = self.postgres.query_one(sql, &[]).await.expect("PostgreSQL answers");
        (row.get(0), row.get(1))
    }

    /// Nothing stored, nothing published, nothing left to be flushed.
    pub async fn empty(&mut self) {
        self.empty_redis().await;
        self.postgres.batch_execute("TRUNCATE feature_state, processed_event").await.expect("may truncate");
        self.checkpoint().await;
    }

    /// Stores `features` features, all older than any event, somewhere in the box in which the
    /// events lie. Not vacuumed, the table would be in the middle of a measurement.
    pub async fn fill(&self, features: u64) {
        let sql = format!(
            "INSERT INTO feature_state (feature_id, version, op, observation_time, geometry, properties, cell)
             SELECT 'vehicle-' || lpad(n::text, greatest(7, length(n::text)), '0'), 0, 'create', '2020-01-01Z',
                ST_SetSRID(ST_MakePoint({WEST} + random() * ({EAST} - {WEST}),
                    {SOUTH} + random() * ({NORTH} - {SOUTH})), 4326),
                jsonb_build_object('kind', 'bus', 'line', (n % 300)::text, 'speed', n % 300 / 10.0),
                608000000000000000 + n
             FROM generate_series(0, {features} - 1) AS n"
        );
        self.postgres.batch_execute("SELECT setseed(0.5)").await.expect("PostgreSQL answers");
        self.postgres.batch_execute(&sql).await.expect("the table can be filled");
        self.postgres.batch_execute("VACUUM (ANALYZE) feature_state").await.expect("may vacuum");
        self.checkpoint().await;
    }

    /// Puts the database aside as it is, for [`Self::restore`].
    pub async fn keep(&mut self) {
        drop_database(&self.admin, KEPT).await;
        let leave = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{DATABASE}'");
        self.admin.batch_execute(&leave).await.expect("a superuser");
        let rename = format!("ALTER DATABASE {DATABASE} RENAME TO {KEPT}");
        self.admin.batch_execute(&rename).await.expect("nobody else uses the database");
    }

    /// A copy, file by file, of what was kept: every measurement starts from the same pages, and
    /// millions of rows do not have to find their places in the index again. PostgreSQL flushes the
    /// copy before it answers.
    pub async fn restore(&mut self) {
        drop_database(&self.admin, DATABASE).await;
        let copy = format!("CREATE DATABASE {DATABASE} TEMPLATE {KEPT} STRATEGY file_copy");
        self.admin.batch_execute(&copy).await.expect("the database can be copied");
        self.postgres = connect(&self.database_url).await;
    }

    /// Gives the space of what was kept back.
    pub async fn forget(&self) {
        drop_database(&self.admin, KEPT).await;
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
        // Nothing else makes the append-only file smaller where rewriting by itself is switched off.
        let _: redis::Value = redis::cmd("BGREWRITEAOF").query_async(&mut self.redis).await.expect("may rewrite");
        self.settle_redis().await;
    }

    pub fn keys(&self) -> Keys {
        Keys::new(NAMESPACE)
    }

    pub fn namespace(&self) -> &'static str {
        NAMESPACE
    }

    pub fn stream(&self) -> Stream {
        let server = Server::open(&self.redis_url, None, &Certificates::default()).expect("a Redis URL");
        Stream::new(server, self.keys(), "hexlane", "bench")
    }

    /// Streams with their groups, as a worker would make them.
    pub async fn make_streams(&mut self, topology: Topology) {
        self.stream().settle_topology(Wanted::exactly(topology)).await.expect("the topology can be set");
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

    /// What Redis says that it uses.
    pub async fn redis_mib(&mut self) -> f64 {
        let info: String = redis::cmd("INFO").arg("memory").query_async(&mut self.redis).await.expect("Redis answers");
        let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")?.trim().parse::<f64>().ok());
        used.expect("INFO tells it") / f64::from(1 << 20)
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

/// Taken by nobody a moment ago.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it is bound").port()
}

async fn create_database(admin: &Client, url: &str) -> Client {
    admin.batch_execute(&format!("CREATE DATABASE {DATABASE}")).await.expect("may create a database");
    let store = Store::open(&StoreSettings {
        url: url.into(),
        password: None,
        application_name: "hexlane bench".into(),
        pool_size: 1,
        statement_timeout: Duration::from_secs(30),
        dedup_window: Duration::from_secs(3600),
        transaction_pooling: false,
    })
    .await
    .expect("a database URL");
    store.migrate().await.expect("the schema can be made");
    connect(url).await
}

async fn drop_database(admin: &Client, name: &str) {
    admin.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await.expect("may drop");
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
