//! Ownership keeps the order: an event that is late is one that came late.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use redis::aio::MultiplexedConnection;
use tokio::sync::Barrier;

use super::{named, names, settled};
use crate::world::{Counts, Traffic, Worker, World, full, seed};

const SHARDS: u16 = 16;

/// Events in version order, each feature on one shard; and how many a second make them last long
/// enough for workers to come and go.
fn in_order() -> (Arc<Traffic>, usize) {
    let (events, features, per_second) = if full() { (200_000, 2000, 10_000) } else { (20_000, 400, 2500) };
    let mut traffic = Traffic::default();
    for n in 0..events {
        let (feature, version) = (n % features, n / features + 1);
        let text = traffic.expect(&format!("F{feature}"), version, "update", n, "");
        // Neighbours in the order of sending are on different shards.
        let shard = (feature % i64::from(SHARDS)) as u16;
        traffic.sends.push((shard, text));
    }
    (Arc::new(traffic), per_second)
}

/// `patient`: with leases that no pause of a busy machine outlasts, where no lease has to end.
async fn start(world: &World, name: &str, patient: bool) -> (String, Worker) {
    let command = named(world, name).set("REORDER_WINDOW", "0s");
    let command = if patient { command.set("LEASE", "20s").set("RENEW", "1s") } else { command };
    (name.to_owned(), command.ready().await)
}

async fn three(world: &World, patient: bool) -> Vec<(String, Worker)> {
    let mut workers = Vec::new();
    for name in ["w1", "w2", "w3"] {
        workers.push(start(world, name, patient).await);
    }
    settled(world, &names(&workers)).await;
    workers
}

/// Everything has landed; the counts of those that are still there, added up.
async fn end(world: &World, traffic: &Traffic, workers: Vec<(String, Worker)>) -> Counts {
    world.drained().await;
    let mut sum = Counts::default();
    for (name, worker) in workers {
        let counts = worker.stop().await;
        counts.assert_balanced();
        eprintln!("{name}: {counts:?}");
        sum = add(sum, counts);
    }
    traffic.assert_landed(world).await;
    assert_eq!((world.pending().await, world.dead_letters().await.len()), (0, 0));
    sum
}

fn add(sum: Counts, one: Counts) -> Counts {
    Counts {
        read: sum.read + one.read,
        applied: sum.applied + one.applied,
        superseded: sum.superseded + one.superseded,
        stale: sum.stale + one.stale,
        duplicate: sum.duplicate + one.duplicate,
        dead_lettered: sum.dead_lettered + one.dead_lettered,
        released: sum.released + one.released,
        lost: sum.lost + one.lost,
    }
}

/// Nothing was late, and nobody did anything twice.
fn assert_in_order(sum: Counts, traffic: &Traffic) {
    assert_eq!((sum.stale, sum.released), (0, 0), "{sum:?}");
    assert_eq!(sum.settled(), traffic.sends.len() as u64, "{sum:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_stale_while_nobody_comes_or_goes() {
    let world = World::shared("order_calm", SHARDS).await;
    let (traffic, per_second) = in_order();
    let workers = three(&world, true).await;
    traffic.produce(&world, per_second * 2).await.unwrap();
    let sum = end(&world, &traffic, workers).await;
    eprintln!("no faults: {} of {} stale", sum.stale, traffic.sends.len());
    assert_in_order(sum, &traffic);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_stale_when_one_joins_and_one_leaves() {
    let world = World::shared("order_moves", SHARDS).await;
    let (traffic, per_second) = in_order();
    let mut workers = three(&world, true).await;
    let producer = traffic.produce(&world, per_second);
    let owners = settled(&world, &names(&workers)).await;
    let busiest = super::take_busiest(&mut workers, &owners);
    busiest.1.until_metric("hexlane_entries_read_total", 500.0).await;
    workers.push(busiest);
    workers.push(start(&world, "w4", true).await);
    let owners = settled(&world, &names(&workers)).await;
    let (name, leaving) = super::take_busiest(&mut workers, &owners);
    assert!(!producer.is_finished(), "in the middle of it");
    let left = leaving.stop().await;
    left.assert_balanced();
    eprintln!("{name} left: {left:?}");
    settled(&world, &names(&workers)).await;
    producer.await.unwrap();
    let sum = add(left, end(&world, &traffic, workers).await);
    eprintln!("a worker joined, another left: {} of {} stale", sum.stale, traffic.sends.len());
    assert_in_order(sum, &traffic);
}

/// What was written and not acknowledged when a worker was killed comes again, and is late.
#[tokio::test(flavor = "multi_thread")]
async fn after_kills_the_state_is_right() {
    let world = World::shared("order_kills", SHARDS).await;
    let (traffic, per_second) = in_order();
    let mut workers = three(&world, false).await;
    let producer = traffic.produce(&world, per_second);
    for name in ["w4", "w5"] {
        let owners = settled(&world, &names(&workers)).await;
        let (_, victim) = super::take_busiest(&mut workers, &owners);
        victim.until_metric("hexlane_entries_read_total", 500.0).await;
        victim.kill().await;
        workers.push(start(&world, name, false).await);
        settled(&world, &names(&workers)).await;
    }
    producer.await.unwrap();
    let sum = end(&world, &traffic, workers).await;
    eprintln!("two workers killed: {} of {} stale at the three that lived on", sum.stale, traffic.sends.len());
}

/// A consumer as any client library makes one: no shard is its own.
struct Plain {
    link: MultiplexedConnection,
    name: String,
    keys: Vec<String>,
    newest: Arc<Mutex<HashMap<String, i64>>>,
    /// Waited for with the first entries in hand, so that they really run beside each other.
    all: Option<Arc<Barrier>>,
    rng: StdRng,
}

impl Plain {
    /// Reads until nothing is left; answers how many events were older than what was written.
    async fn run(mut self) -> u64 {
        type Reply = Option<Vec<(String, Vec<(String, HashMap<String, Vec<u8>>)>)>>;
        let mut stale = 0;
        loop {
            let mut command = redis::cmd("XREADGROUP");
            command.arg("GROUP").arg("plain").arg(&self.name).arg("COUNT").arg(50).arg("STREAMS").arg(&self.keys);
            command.arg(vec![">"; self.keys.len()]);
            let reply: Reply = command.query_async(&mut self.link).await.unwrap();
            let Some(streams) = reply.filter(|streams| !streams.is_empty()) else { return stale };
            if let Some(all) = self.all.take() {
                all.wait().await;
            }
            for (key, entries) in streams {
                // As long as a small write takes.
                tokio::time::sleep(Duration::from_micros(self.rng.random_range(500..5000))).await;
                let mut ack = redis::cmd("XACK");
                ack.arg(key).arg("plain");
                for (id, fields) in &entries {
                    let event: serde_json::Value = serde_json::from_slice(&fields["event"]).unwrap();
                    let (feature, version) =
                        (event["feature_id"].as_str().unwrap(), event["version"].as_i64().unwrap());
                    let mut newest = self.newest.lock().unwrap();
                    let written = newest.entry(feature.to_owned()).or_default();
                    if *written < version {
                        *written = version
                    } else {
                        stale += 1
                    }
                    ack.arg(id);
                }
                ack.exec_async(&mut self.link).await.unwrap();
            }
        }
    }
}

/// For contrast: what the same events would be to a group whose consumers own nothing.
#[tokio::test(flavor = "multi_thread")]
async fn without_ownership_much_is_stale() {
    let world = World::shared("order_plain", SHARDS).await;
    let (traffic, _) = in_order();
    traffic.send_all(&world).await;
    let keys: Vec<String> = (0..SHARDS).map(|shard| world.events_key(shard)).collect();
    for key in &keys {
        let _: String = world.ask(&format!("XGROUP CREATE {key} plain 0")).await;
    }
    let (client, newest) = (redis::Client::open(&*world.redis_url).unwrap(), Arc::default());
    let all = Arc::new(Barrier::new(3));
    let mut running = Vec::new();
    for n in 0..3 {
        let plain = Plain {
            link: client.get_multiplexed_async_connection().await.unwrap(),
            name: format!("plain-{n}"),
            keys: keys.clone(),
            newest: Arc::clone(&newest),
            all: Some(all.clone()),
            rng: StdRng::seed_from_u64(seed() + n),
        };
        running.push(tokio::spawn(plain.run()));
    }
    let mut stale = 0;
    for consumer in running {
        stale += consumer.await.unwrap();
    }
    eprintln!("three consumers without ownership: {stale} of {} stale", traffic.sends.len());
    assert!(stale > 0, "or the other tests show nothing");
}
