//! How a worker leaves: at once when idle, in order when busy, in time when a server is away; and
//! what it leaves behind lands.

use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::world::{Server, Traffic, Worker, World, eventually, point, seed};

/// So long that only what is under test can end it.
const FOR_EVER: &str = "10m";
/// A lease outlives a blocking read.
const LONGER: &str = "20m";
const SIGNALS: [&str; 2] = ["TERM", "INT"];

async fn leaves_in_order(worker: &mut Worker) -> crate::world::Counts {
    let status = worker.wait().await;
    assert_eq!(status.code(), Some(0), "{}", worker.log());
    let counts = worker.counts();
    counts.assert_balanced();
    counts
}

async fn until_in_hand(world: &World, count: u64) {
    eventually("entries are in hand", async || world.pending().await >= count).await;
}

async fn count_rows(world: &World) -> i64 {
    world.postgres().await.query_one("SELECT count(*) FROM feature_state", &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_worker_leaves_in_the_middle_of_its_blocking_read() {
    let world = World::shared("stop_idle", 4).await;
    for signal in SIGNALS {
        let mut worker =
            world.worker().set("BLOCK", FOR_EVER).set("LEASE", LONGER).set("DRAIN_TIMEOUT", FOR_EVER).ready().await;
        eventually("every lane blocks", async || {
            let clients: String = world.ask("CLIENT LIST TYPE normal").await;
            // The shared server has other tests' clients too: ours block on four streams.
            let blocked = clients.lines().filter(|line| line.contains("cmd=xreadgroup") && line.contains("flags=b"));
            blocked.count() >= 4
        })
        .await;
        worker.signal(signal);
        let counts = leaves_in_order(&mut worker).await;
        assert_eq!(counts.read, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_worker_finishes_what_it_holds() {
    for signal in SIGNALS {
        let world = World::shared("stop_busy", 4).await;
        let traffic = Traffic::new(&mut StdRng::seed_from_u64(seed()), 6000, 4);
        let mut worker = world.worker().ready().await;
        let producer = traffic.produce(&world, 3000);
        worker.until_metric("hexlane_events_total{outcome=\"applied\"}", 300.0).await;
        worker.signal(signal);
        let counts = leaves_in_order(&mut worker).await;
        assert_eq!(counts.released, 0, "nothing is given up while the servers answer: {counts:?}");
        assert_eq!(world.pending().await, 0);
        producer.await.unwrap();
        let rest = world.worker().once().await;
        assert!(rest.read > 0, "it was in the middle of it");
        assert_eq!(counts.read + rest.read, traffic.sends.len() as u64);
        traffic.assert_landed(&world).await;
        assert_eq!(world.dead_letters().await.len(), 0);
    }
}

/// Both end what waits for a server; what was in hand is still pending under the worker's name.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_leaves_during_an_outage_and_its_namesake_goes_on() {
    let world = World::private("stop_outage", 1).await;
    let named = || world.worker().set("WORKER_NAME", "namesake");

    // PostgreSQL is away, and the drain timeout ends the waiting.
    let mut worker = named().set("DRAIN_TIMEOUT", "500ms").ready().await;
    world.servers(|servers| servers.stop(Server::Postgres)).await;
    let events: Vec<_> = (0..100).map(|n| point(&format!("p{n}"), 1, 4.3, 52.1)).collect();
    world.add_together(0, &events).await;
    until_in_hand(&world, 100).await;
    worker.signal("TERM");
    let counts = leaves_in_order(&mut worker).await;
    assert_eq!((counts.read, counts.released), (100, 100));
    assert_eq!(world.pending().await, 100);
    world.servers(|servers| servers.restart(Server::Postgres)).await;
    let worker = named().ready().await;
    world.drained().await;
    assert_eq!(count_rows(&world).await, 100);
    assert_eq!(worker.stop().await.applied, 100);

    // Redis goes while the database makes the worker wait with its hands full.
    // The lease must not run out before the write, which would then be dropped.
    let mut worker = named().set("DRAIN_TIMEOUT", "500ms").set("LEASE", LONGER).ready().await;
    let holder = world.postgres().await;
    holder.batch_execute("BEGIN; LOCK TABLE feature_state IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let events: Vec<_> = (0..100).map(|n| point(&format!("r{n}"), 1, 4.3, 52.1)).collect();
    world.add_together(0, &events).await;
    until_in_hand(&world, 100).await;
    world.servers(|servers| servers.kill(Server::Redis)).await;
    holder.batch_execute("COMMIT").await.unwrap();
    // Written, and nowhere to say so.
    eventually("all is written", async || count_rows(&world).await == 200).await;
    worker.signal("INT");
    let counts = leaves_in_order(&mut worker).await;
    assert_eq!((counts.read, counts.released), (100, 100));
    world.servers(|servers| servers.restart(Server::Redis)).await;
    until_in_hand(&world, 100).await;
    // As if its time had come: without Redis it could neither give the lease back nor leave.
    let _: u32 = world.ask(&format!("DEL {} {}:workers", world.owner_key(0), world.namespace)).await;
    let worker = named().ready().await;
    world.drained().await;
    assert_eq!(worker.stop().await.stale, 100, "the guard knows what was written");

    // Idle, and Redis is not there to end the blocking read.
    let mut worker = named().ready().await;
    world.servers(|servers| servers.stop(Server::Redis)).await;
    worker.until_ready(false).await;
    worker.signal("TERM");
    assert_eq!(leaves_in_order(&mut worker).await.read, 0);

    // Idle, and Redis is there but does not answer.
    world.servers(|servers| servers.restart(Server::Redis)).await;
    let mut worker = named().set("BLOCK", FOR_EVER).set("LEASE", LONGER).set("DRAIN_TIMEOUT", "500ms").ready().await;
    let frozen = tokio::task::block_in_place(|| world.servers.as_ref().unwrap().freeze(Server::Redis));
    worker.signal("TERM");
    assert_eq!(leaves_in_order(&mut worker).await.read, 0);
    drop(frozen);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_at_once() {
    let world = World::shared("two_signals", 1).await;
    let named = || world.worker().set("WORKER_NAME", "namesake");
    let holder = world.postgres().await;
    for (first, second) in [("TERM", "TERM"), ("INT", "TERM")] {
        let mut worker = named().set("DRAIN_TIMEOUT", FOR_EVER).ready().await;
        holder.batch_execute("BEGIN; LOCK TABLE feature_state IN ACCESS EXCLUSIVE MODE").await.unwrap();
        let events: Vec<_> = (0..50).map(|n| point(&format!("{first}{n}"), 1, 4.3, 52.1)).collect();
        world.add_together(0, &events).await;
        until_in_hand(&world, 50).await;
        worker.signal(first);
        eventually("it is stopping", async || worker.log().contains("finishing what is in hand")).await;
        assert_eq!(world.pending().await, 50);
        worker.signal(second);
        let counts = leaves_in_order(&mut worker).await;
        assert_eq!((counts.read, counts.released), (50, 50));
        holder.batch_execute("COMMIT").await.unwrap();
        let counts = named().once().await;
        assert_eq!((counts.read, counts.settled()), (50, 50));
    }
    assert_eq!(count_rows(&world).await, 100);
}

/// A worker of many shards, each with something in hand, and a Redis that takes everything and answers nothing: to
/// wait for it shard by shard would outlast whoever supervises the process. What it held lands.
async fn leaves_a_frozen_redis(name: &str, drain_timeout: &str, signals: usize, most: Duration) {
    const SHARDS: u16 = 16;
    let world = World::private(name, SHARDS).await;
    // As by default, so that no lease runs out while it drains.
    let named = || world.worker().set("WORKER_NAME", "namesake").set("LEASE", "10s").set("RENEW", "3s");
    let mut worker = named().set("DRAIN_TIMEOUT", drain_timeout).ready().await;
    let holder = world.postgres().await;
    holder.batch_execute("BEGIN; LOCK TABLE feature_state IN ACCESS EXCLUSIVE MODE").await.unwrap();
    for shard in 0..SHARDS {
        world.add(shard, &point(&format!("F{shard}"), 1, 4.3, 52.1)).await;
    }
    until_in_hand(&world, SHARDS.into()).await;
    let frozen = tokio::task::block_in_place(|| world.servers.as_ref().unwrap().freeze(Server::Redis));
    holder.batch_execute("COMMIT").await.unwrap();
    eventually("all is written", async || count_rows(&world).await == i64::from(SHARDS)).await;

    let signalled = Instant::now();
    worker.signal("TERM");
    for _ in 1..signals {
        eventually("it is stopping", async || worker.log().contains("finishing what is in hand")).await;
        worker.signal("TERM");
    }
    let counts = leaves_in_order(&mut worker).await;
    let took = signalled.elapsed();
    eprintln!("it left after {took:?}");
    assert!(took < most, "{took:?}\n{}", worker.log());
    assert_eq!((counts.read, counts.released), (u64::from(SHARDS), u64::from(SHARDS)));

    drop(frozen);
    let worker = named().ready().await;
    world.drained().await;
    // Acknowledgements that had reached Redis count once it goes on.
    let counts = worker.stop().await;
    assert_eq!(counts.stale, counts.read, "the guard knows what was written");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_many_shards_leaves_a_frozen_redis_in_time() {
    leaves_a_frozen_redis("stop_frozen", "3s", 1, Duration::from_secs(12)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_a_worker_of_many_shards_although_redis_is_frozen() {
    leaves_a_frozen_redis("twice_frozen", FOR_EVER, 2, Duration::from_secs(10)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn once_drains_what_a_killed_consumer_of_another_name_has_left() {
    let world = World::shared("once_pending", 2).await;
    for shard in 0..2 {
        let _: String = world.ask(&format!("XGROUP CREATE {} hexlane 0 MKSTREAM", world.events_key(shard))).await;
        let events: Vec<_> = (0..300).map(|n| point(&format!("s{shard}-{n}"), 1, 4.3, 52.1)).collect();
        world.add_together(shard, &events).await;
        let read = format!("XREADGROUP GROUP hexlane dead COUNT 200 STREAMS {} >", world.events_key(shard));
        let _: redis::Value = world.ask(&read).await;
    }
    assert_eq!(world.pending().await, 400);
    let counts = world.worker().once().await;
    assert_eq!((counts.read, counts.applied), (600, 600));
    assert_eq!(world.pending().await, 0);
    assert_eq!(count_rows(&world).await, 600);
}

/// It has no lane any more for that shard, and whoever supervises it has to know.
#[tokio::test(flavor = "multi_thread")]
async fn a_lane_that_fails_ends_the_process_with_a_sentence() {
    let world = World::shared("lane_fails", 2).await;
    let mut worker = world.worker().ready().await;
    world.add(1, &point("hexlane-panic-test", 1, 4.3, 52.1)).await;
    let status = worker.wait().await;
    assert_eq!(status.code(), Some(1), "{}", worker.log());
    assert!(worker.log().contains("the lane of shard 1 has failed"), "{}", worker.log());
    worker.counts().assert_balanced();
    assert_eq!(world.pending().await, 1, "the event comes again");
    for shard in 0..2 {
        assert_eq!(world.ask::<Option<String>>(&format!("GET {}", world.owner_key(shard))).await, None);
    }
}
