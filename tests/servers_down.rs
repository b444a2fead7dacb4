//! Servers that stop, restart, die or forget in mid-run: time is lost, and nothing else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::task::JoinHandle;

use crate::world::{Server, Servers, Traffic, Worker, World, eventually, full, point, seed};

const PER_SECOND: usize = 1500;

/// A worker in the middle of its work.
struct Run {
    world: World,
    worker: Worker,
    traffic: Arc<Traffic>,
    producer: JoinHandle<()>,
}

impl Run {
    async fn begin(world: World, seconds: usize) -> Self {
        let traffic = Traffic::new(&mut StdRng::seed_from_u64(seed()), PER_SECOND * seconds, world.shards);
        let worker = world.worker().set("RETRY_CAP", "500ms").ready().await;
        let producer = traffic.produce(&world, PER_SECOND);
        worker.until_metric("hexlane_events_total{outcome=\"applied\"}", 200.0).await;
        Self { world, worker, traffic, producer }
    }

    /// The same process comes to the end of everything that was sent.
    async fn end(self) {
        self.producer.await.unwrap();
        self.traffic.until_landed(&self.world).await;
        assert_eq!(self.world.pending().await, 0);
        self.worker.until_ready(true).await;
        let counts = self.worker.stop().await;
        counts.assert_balanced();
        assert!(counts.read >= self.traffic.sends.len() as u64, "{counts:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_is_stopped_for_a_while() {
    let outage = Duration::from_secs(if full() { 20 } else { 4 });
    let run = Run::begin(World::private("pg_stopped", 4).await, outage.as_secs() as usize + 3).await;
    run.world.servers(|servers| servers.stop(Server::Postgres)).await;
    run.worker.until_ready(false).await;
    tokio::time::sleep(outage).await;
    assert!(!run.worker.is_ready().await);
    run.world.servers(|servers| servers.restart(Server::Postgres)).await;
    run.end().await;
}

/// A killed server is not asked to say goodbye: what is committed stays, what is not comes again.
#[tokio::test(flavor = "multi_thread")]
async fn postgres_is_killed() {
    let run = Run::begin(World::private("pg_killed", 4).await, 4).await;
    run.world.servers(|servers| servers.kill(Server::Postgres)).await;
    run.worker.until_ready(false).await;
    run.world.servers(|servers| servers.restart(Server::Postgres)).await;
    run.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_connections_are_terminated() {
    let run = Run::begin(World::shared("terminated", 4).await, 5).await;
    let postgres = run.world.postgres().await;
    for _ in 0..10 {
        let terminated = async || {
            let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                WHERE datname = current_database() AND pid <> pg_backend_pid()";
            postgres.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) > 0
        };
        eventually("there are connections to end", terminated).await;
    }
    // One moment of it is over too soon to be seen: until it is, they are ended again and again.
    let seen = async || {
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid()";
        postgres.query(sql, &[]).await.unwrap();
        !run.worker.is_ready().await
    };
    eventually("the worker is not ready", seen).await;
    drop(postgres);
    run.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_is_restarted_and_killed() {
    let run = Run::begin(World::private("redis_down", 4).await, 6).await;
    for end in [Servers::stop, Servers::kill] {
        run.world.servers(|servers| end(servers, Server::Redis)).await;
        run.worker.until_ready(false).await;
        run.world.servers(|servers| servers.restart(Server::Redis)).await;
        run.worker.until_ready(true).await;
    }
    run.end().await;
}

/// The waits that lanes have drawn by its end are longer than anybody would wait for them.
#[tokio::test(flavor = "multi_thread")]
async fn lanes_go_on_at_once_after_a_long_outage() {
    // Of so many waits some surely are that long.
    const SHARDS: u16 = 64;
    // A lane reads and settles; the bound of the tenth wait of each is a minute.
    const ATTEMPTS: f64 = 21.0;
    let mut world = World::private("redis_long", SHARDS).await;
    // No lease runs out meanwhile: lanes that begin anew have no long waits.
    let worker = world.worker().set("LEASE", "20m").set("RENEW", "4s");
    let worker = worker.set("RETRY_BASE", "100ms").set("RETRY_CAP", "1h").ready().await;
    let holder = world.postgres().await;
    holder.batch_execute("BEGIN; LOCK TABLE feature_state").await.unwrap();
    let publish = async |world: &World, name: &str| {
        for shard in 0..SHARDS {
            world.add(shard, &point(&format!("{name} {shard}"), 1, 4.3, 52.1)).await;
        }
    };
    publish(&world, "before").await;
    eventually("each lane has something to settle", async || world.pending().await == u64::from(SHARDS)).await;
    world.servers(|servers| servers.stop(Server::Redis)).await;
    holder.batch_execute("COMMIT").await.unwrap();
    let failed = "hexlane_retries_total{error=\"io\",target=\"redis\"}";
    worker.until_metric(failed, f64::from(SHARDS) * ATTEMPTS).await;

    world.servers(|servers| servers.restart(Server::Redis)).await;
    let restarted = Instant::now();
    world.look_at(&world.redis_url.clone()).await;
    publish(&world, "after").await;
    world.drained().await;
    worker.until_ready(true).await;
    eprintln!("all is settled {:?} after the restart", restarted.elapsed());
    let counts = worker.stop().await;
    counts.assert_balanced();
    assert_eq!((counts.read, counts.applied), (2 * u64::from(SHARDS), 2 * u64::from(SHARDS)), "no lane began anew");
}

/// Everything comes again from the streams' beginning, and changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn consumer_groups_are_destroyed() {
    let run = Run::begin(World::shared("groups_gone", 4).await, 5).await;
    for round in 1..=3 {
        for shard in 0..run.world.shards {
            let gone: i64 = run.world.ask(&format!("XGROUP DESTROY {} hexlane", run.world.events_key(shard))).await;
            assert_eq!(gone, 1, "round {round}");
        }
        let made_again = async || {
            for shard in 0..run.world.shards {
                let groups: redis::Value =
                    run.world.ask(&format!("XINFO GROUPS {}", run.world.events_key(shard))).await;
                if matches!(&groups, redis::Value::Array(groups) if groups.is_empty()) {
                    return false;
                }
            }
            true
        };
        eventually("every group is there again", made_again).await;
    }
    run.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_started_before_its_servers_waits_for_them() {
    let world = World::private("early", 2).await;
    world.add(0, &point("F1", 1, 4.3, 52.1)).await;
    world
        .servers(|servers| {
            servers.stop(Server::Postgres);
            servers.stop(Server::Redis);
        })
        .await;
    let worker = world.worker().set("RETRY_CAP", "200ms").start();
    let waits = async |server: &str| {
        let waits =
            async || worker.log().lines().any(|line| line.contains("waiting for the servers") && line.contains(server));
        eventually(&format!("the worker waits for {server}"), waits).await;
        assert_eq!(worker.get("/healthz").await.unwrap().0, 200);
        assert!(!worker.is_ready().await);
    };
    waits("redis: ").await;
    world.servers(|servers| servers.restart(Server::Redis)).await;
    waits("postgres: ").await;
    world.servers(|servers| servers.restart(Server::Postgres)).await;
    worker.until_ready(true).await;
    world.drained().await;
    assert_eq!(world.state("F1").await, Some((1, "update".into())));
    assert_eq!(worker.stop().await.applied, 1);
}
