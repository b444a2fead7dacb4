//! One measurement each.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hexlane::event::Event;
use hexlane::judge::{self, Limits};
use hexlane::shard::{Topology, route};
use hexlane::stream::topology::Wanted;

use crate::bare;
use crate::cli::Load;
use crate::server::{Cpu, Servers};
use crate::traffic::{self, Traffic};
use crate::worker::{self, Used, Worker};

/// Events of one pipeline.
const PUBLISH: usize = 1000;

/// A load, generated once for all rounds.
pub struct Prepared {
    pub load: Load,
    pub traffic: Traffic,
    pub decoded: Arc<Vec<Event>>,
    topology: Topology,
    shards: Vec<u16>,
}

impl Prepared {
    pub fn new(load: &Load) -> Self {
        let traffic = traffic::generate(load);
        let topology = Topology { shards: load.shards, ..Topology::default() };
        let (limits, now_us) = (Limits::default(), chrono::Utc::now().timestamp_micros());
        let judge = |text: &Vec<u8>| {
            judge::judge(text, now_us, &limits, topology.h3_resolution).expect("generated events are good")
        };
        let decoded = Arc::new(traffic.events.iter().map(judge).collect());
        let shards = traffic.events.iter().map(|event| route(event, &topology).shard).collect();
        Self { load: load.clone(), traffic, decoded, topology, shards }
    }

    pub fn with_shards(&mut self, shards: u16) {
        self.load.shards = shards;
        self.topology.shards = shards;
        self.shards = self.traffic.events.iter().map(|event| route(event, &self.topology).shard).collect();
    }

    async fn publish(&self, servers: &mut Servers) {
        let stream = servers.stream();
        stream.settle_topology(Wanted::exactly(self.topology)).await.expect("the topology can be set");
        servers.make_groups(self.topology).await;
        for (events, shards) in self.traffic.events.chunks(PUBLISH).zip(self.shards.chunks(PUBLISH)) {
            let addressed: Vec<(u16, Vec<u8>)> = shards.iter().copied().zip(events.iter().cloned()).collect();
            stream.append(&addressed).await.expect("Redis takes the events");
        }
        servers.settle_redis().await;
    }
}

/// Events a second, and the CPU that PostgreSQL used.
pub async fn bare(servers: &mut Servers, prepared: &Prepared, batch: usize) -> (f64, Cpu) {
    let before = servers.cpu().await;
    let took = bare::write(&servers.database_url, &prepared.decoded, batch).await;
    let cpu = servers.cpu().await.since(before);
    check(servers, prepared).await;
    (prepared.decoded.len() as f64 / took.as_secs_f64(), cpu)
}

pub struct EndToEnd {
    pub rate: f64,
    pub cpu: Cpu,
    pub workers: Vec<Used>,
    pub samples: Vec<(f64, u64)>,
}

impl EndToEnd {
    pub fn worker_cpu(&self) -> f64 {
        self.workers.iter().map(|used| used.cpu_s).sum()
    }

    pub fn peak_mib(&self) -> f64 {
        self.workers.iter().map(|used| used.peak_mib).fold(0.0, f64::max)
    }
}

/// Everything published before, then read by `hexlane worker` processes.
pub async fn hexlane(servers: &mut Servers, prepared: &Prepared, args: &[String]) -> EndToEnd {
    prepared.publish(servers).await;
    servers.checkpoint().await;
    let total = prepared.traffic.events.len() as u64;
    let before = servers.cpu().await;
    let workers: Vec<Worker> = (0..prepared.load.workers).map(|n| Worker::start(servers, n, args)).collect();
    let (took, samples) = worker::drain(servers, prepared.load.shards, total, Duration::from_millis(250)).await;
    let cpu = servers.cpu().await.since(before);
    let used = workers.iter().map(Worker::used).collect();
    for worker in workers {
        worker.stop().await;
    }
    check(servers, prepared).await;
    EndToEnd { rate: total as f64 / took.as_secs_f64(), cpu, workers: used, samples }
}

/// Read, guarded upsert, acknowledge: the first `count` events, one after the other.
pub async fn one_by_one(servers: &mut Servers, prepared: &Prepared, count: usize) -> f64 {
    let stream = servers.stream();
    let key = servers.keys().events(0);
    servers.make_groups(Topology { shards: 1, ..Topology::default() }).await;
    let events = prepared.traffic.events.iter().take(count);
    let addressed: Vec<(u16, Vec<u8>)> = events.map(|event| (0, event.clone())).collect();
    stream.append(&addressed).await.expect("Redis takes the events");
    let client = bare::connect(&servers.database_url).await;
    let statement = bare::prepare(&client).await;
    let start = Instant::now();
    for event in prepared.decoded.iter().take(count) {
        let read: Vec<(String, Vec<(String, Vec<String>)>)> = redis::cmd("XREADGROUP")
            .arg("GROUP")
            .arg("hexlane")
            .arg("one")
            .arg("COUNT")
            .arg(1)
            .arg("STREAMS")
            .arg(&key)
            .arg(">")
            .query_async(&mut servers.redis)
            .await
            .expect("Redis answers");
        bare::write_rows(&client, &statement, &[event]).await;
        let id = &read[0].1[0].0;
        redis::cmd("XACK")
            .arg(&key)
            .arg("hexlane")
            .arg(id)
            .exec_async(&mut servers.redis)
            .await
            .expect("Redis answers");
    }
    count as f64 / start.elapsed().as_secs_f64()
}

/// A fast result that is wrong is no result.
async fn check(servers: &Servers, prepared: &Prepared) {
    let sql = "SELECT feature_id, version, op FROM feature_state WHERE version > $1";
    let rows = servers.postgres.query(sql, &[&prepared.load.first_version]).await.expect("PostgreSQL answers");
    let stored: HashMap<String, (i64, bool)> =
        rows.iter().map(|row| (row.get(0), (row.get(1), row.get::<_, &str>(2) == "delete"))).collect();
    assert!(stored == prepared.traffic.newest, "the final state is not the newest event of every feature");
}
