//! One measurement each.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hexlane::event::Event;
use hexlane::judge::{self, Limits};
use hexlane::shard::{Topology, route};

use crate::bare;
use crate::cli::Load;
use crate::server::{Cpu, Servers};
use crate::traffic::{self, Traffic};
use crate::worker::{self, Used, Worker};

/// Events of one pipeline.
const PUBLISH: usize = 1000;
const SAMPLE: Duration = Duration::from_millis(250);

/// As XREADGROUP answers it: its id and its fields.
type ReadEntry = (String, Vec<String>);

/// In which order the bare writer gets its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As they were published.
    Published,
    /// A batch of each shard after the other.
    ByShard,
}

/// A load, generated once for all rounds.
pub struct Prepared {
    pub load: Load,
    pub traffic: Traffic,
    topology: Topology,
    shards: Vec<u16>,
    /// For the bare writer only, so made when it is asked for.
    decoded: OnceLock<Arc<Vec<Event>>>,
}

impl Prepared {
    pub fn new(load: &Load) -> Self {
        Self::of(load, traffic::generate(load))
    }

    pub fn of(load: &Load, traffic: Traffic) -> Self {
        let topology = load.topology();
        let shards = traffic.events.iter().map(|event| route(event, &topology).shard).collect();
        Self { load: load.clone(), traffic, topology, shards, decoded: OnceLock::new() }
    }

    pub fn with_shards(&mut self, shards: u16) {
        self.load.shards = shards;
        self.topology.shards = shards;
        self.shards = self.traffic.events.iter().map(|event| route(event, &self.topology).shard).collect();
    }

    /// Each event with the number of its shard.
    pub fn addressed(&self) -> impl Iterator<Item = (u16, &Vec<u8>)> {
        self.shards.iter().copied().zip(&self.traffic.events)
    }

    pub fn shard_of(&self, place: usize) -> u16 {
        self.shards[place]
    }

    fn decoded(&self) -> &Arc<Vec<Event>> {
        self.decoded.get_or_init(|| {
            let (limits, now_us) = (Limits::default(), chrono::Utc::now().timestamp_micros());
            let judge = |text: &Vec<u8>| {
                judge::judge(text, now_us, &limits, self.topology.h3_resolution).expect("generated events are good")
            };
            Arc::new(self.traffic.events.iter().map(judge).collect())
        })
    }

    /// So that it is done before anything is measured.
    pub fn decode(&self) {
        self.decoded();
    }

    /// How long the bare writer takes.
    pub async fn write_bare(&self, servers: &Servers, order: Order, batch: usize) -> Duration {
        let mut places: Vec<usize> = (0..self.traffic.events.len()).collect();
        if order == Order::ByShard {
            let mut taken: HashMap<u16, usize> = HashMap::new();
            // The batches of all shards take turns, as lanes do.
            places.sort_by_cached_key(|&place| {
                let before = taken.entry(self.shards[place]).or_default();
                *before += 1;
                ((*before - 1) / batch, self.shards[place])
            });
        }
        bare::write(&servers.database_url, self.decoded(), &places, batch).await
    }

    /// Adds the events to streams that are there.
    pub async fn append(&self, servers: &mut Servers) {
        let stream = servers.stream();
        for (events, shards) in self.traffic.events.chunks(PUBLISH).zip(self.shards.chunks(PUBLISH)) {
            let addressed: Vec<(u16, Vec<u8>)> = shards.iter().copied().zip(events.iter().cloned()).collect();
            stream.append(&addressed).await.expect("Redis takes the events");
        }
        servers.settle_redis().await;
    }

    /// A fast result that is wrong is no result.
    pub async fn check(&self, servers: &Servers) {
        check(servers, self.load.first_version, &self.traffic.newest).await;
    }
}

/// Events a second, and the CPU that PostgreSQL used.
pub async fn bare(servers: &mut Servers, prepared: &Prepared, order: Order, batch: usize) -> (f64, Cpu) {
    let events = prepared.decoded();
    let before = servers.cpu().await;
    let took = prepared.write_bare(servers, order, batch).await;
    let cpu = servers.cpu().await.since(before);
    prepared.check(servers).await;
    (events.len() as f64 / took.as_secs_f64(), cpu)
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
    servers.make_streams(prepared.topology).await;
    prepared.append(servers).await;
    let run = work(servers, &prepared.load, args).await;
    prepared.check(servers).await;
    run
}

/// What the streams hold, read by `hexlane worker` processes.
pub async fn work(servers: &mut Servers, load: &Load, args: &[String]) -> EndToEnd {
    servers.checkpoint().await;
    let total = load.events as u64;
    let before = servers.cpu().await;
    let mut workers: Vec<Worker> = (0..load.workers).map(|n| Worker::start(servers, n, args)).collect();
    let (took, samples) = tokio::select! {
        drained = worker::drain(servers, load.shards, total, SAMPLE) => drained,
        // One that cannot start has said why; nobody would do its work.
        status = worker::first_to_end(&mut workers) => panic!("a worker ended with {status}"),
    };
    let cpu = servers.cpu().await.since(before);
    let used = workers.iter().map(Worker::used).collect();
    for worker in workers {
        worker.stop().await;
    }
    EndToEnd { rate: total as f64 / took.as_secs_f64(), cpu, workers: used, samples }
}

/// Read, guarded upsert, acknowledge: the first `count` events, one after the other.
pub async fn one_by_one(servers: &mut Servers, prepared: &Prepared, count: usize) -> f64 {
    let stream = servers.stream();
    let key = servers.keys().events(0);
    servers.make_streams(Topology { shards: 1, ..Topology::default() }).await;
    let events = prepared.traffic.events.iter().take(count);
    let addressed: Vec<(u16, Vec<u8>)> = events.map(|event| (0, event.clone())).collect();
    stream.append(&addressed).await.expect("Redis takes the events");
    let client = bare::connect(&servers.database_url).await;
    let statement = bare::prepare(&client).await;
    let start = Instant::now();
    for event in prepared.decoded().iter().take(count) {
        let read: Vec<(String, Vec<ReadEntry>)> = redis::cmd("XREADGROUP")
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

/// Compares what is stored beyond `first_version` with the newest event of every feature.
pub async fn check(servers: &Servers, first_version: i64, newest: &HashMap<String, (i64, bool)>) {
    let sql = "SELECT feature_id, version, op FROM feature_state WHERE version > $1";
    let rows = servers.postgres.query(sql, &[&first_version]).await.expect("PostgreSQL answers");
    let stored: HashMap<String, (i64, bool)> =
        rows.iter().map(|row| (row.get(0), (row.get(1), row.get::<_, &str>(2) == "delete"))).collect();
    assert!(stored == *newest, "the final state is not the newest event of every feature");
}
