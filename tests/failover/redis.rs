//! A replica is promoted, by Sentinel or by hand.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;
use redis::aio::MultiplexedConnection;

use crate::secure::Program;
use crate::world::{Proxy, Traffic, World, event, eventually, seed};

const PER_SECOND: usize = 1000;

async fn server(follows: Option<u16>) -> Program {
    Program::start("redis-server", |_, port| {
        let mut arguments: Vec<String> =
            ["--bind", "127.0.0.1", "--save", "", "--repl-diskless-sync-delay", "0", "--port"]
                .map(str::to_owned)
                .to_vec();
        arguments.push(port.to_string());
        if let Some(primary) = follows {
            arguments.extend(["--replicaof".into(), "127.0.0.1".into(), primary.to_string()]);
        }
        arguments
    })
    .await
}

/// Watches a primary that has no password, as the service `events`.
async fn sentinel(primary: u16) -> Program {
    sentinel_with(primary, "").await
}

/// With more lines in its configuration.
pub async fn sentinel_with(primary: u16, more: &str) -> Program {
    Program::start("redis-server", |folder, port| {
        let config = format!(
            "bind 127.0.0.1\nport {port}\nsentinel monitor events 127.0.0.1 {primary} 2\n\
             sentinel down-after-milliseconds events 1000\nsentinel failover-timeout events 3000\n{more}"
        );
        let path = folder.join("sentinel.conf");
        std::fs::write(&path, config).unwrap();
        vec![path.to_str().unwrap().into(), "--sentinel".into()]
    })
    .await
}

fn url(program: &Program) -> String {
    format!("redis://127.0.0.1:{}", program.port)
}

async fn link(url: &str) -> Option<MultiplexedConnection> {
    redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.ok()
}

async fn ask(url: &str, command: &str) -> String {
    let mut parts = command.split(' ');
    let mut command = redis::cmd(parts.next().unwrap());
    command.arg(parts.collect::<Vec<_>>());
    let Some(mut link) = link(url).await else { return String::new() };
    let answer: Result<redis::Value, _> = command.query_async(&mut link).await;
    format!("{answer:?}")
}

async fn follows(replica: &Program) {
    eventually("the replica follows", async || {
        ask(&url(replica), "INFO replication").await.contains("master_link_status:up")
    })
    .await;
}

/// Sends everything to whichever of both is the primary, each piece until it is there, and for as long as
/// `has_replica` on the other one too.
fn produce(
    traffic: &Arc<Traffic>,
    world: &World,
    urls: [String; 2],
    has_replica: impl Fn() -> bool + Send + 'static,
) -> tokio::task::JoinHandle<()> {
    let traffic = traffic.clone();
    let keys: Vec<String> = (0..world.shards).map(|shard| world.events_key(shard)).collect();
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(Duration::from_millis(20));
        let mut current: Option<MultiplexedConnection> = None;
        let mut turn = 0;
        for piece in traffic.sends.chunks(PER_SECOND / 50) {
            ticks.tick().await;
            loop {
                if current.is_none() {
                    turn += 1;
                    current = link(&urls[turn % 2]).await;
                }
                if let Some(connection) = &mut current {
                    let mut pipe = redis::pipe();
                    for (shard, event) in piece {
                        pipe.cmd("XADD").arg(&keys[usize::from(*shard)]).arg("*").arg("event").arg(event).ignore();
                    }
                    pipe.cmd("WAIT").arg(u8::from(has_replica())).arg(300);
                    let answer: Result<(u8,), _> = pipe.query_async(connection).await;
                    if answer.is_ok_and(|(replicas,)| replicas >= u8::from(has_replica())) {
                        break;
                    }
                }
                current = None;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_follow_sentinel_to_the_replica_that_it_promotes() {
    let mut primary = server(None).await;
    let replica = server(Some(primary.port)).await;
    follows(&replica).await;
    let sentinels = [sentinel(primary.port).await, sentinel(primary.port).await, sentinel(primary.port).await];
    for one in &sentinels {
        eventually("the sentinels know each other", async || {
            let Some(mut link) = link(&url(one)).await else { return false };
            let known: HashMap<String, String> =
                redis::cmd("SENTINEL").arg("MASTER").arg("events").query_async(&mut link).await.unwrap();
            known["num-other-sentinels"] == "2" && known["num-slaves"] == "1"
        })
        .await;
    }
    // So many that each worker surely has some.
    let mut world = World::on_redis("sentinel", 16, url(&primary)).await;
    let hosts: Vec<String> = sentinels.iter().map(|one| format!("127.0.0.1:{}", one.port)).collect();
    world.redis_url = format!("redis+sentinel://{}/events", hosts.join(","));

    // With the times of production, because how long it takes is told in README.
    let times = [("RETRY_BASE", "300ms"), ("RETRY_CAP", "30s"), ("LEASE", "10s"), ("RENEW", "3s"), ("BLOCK", "2s")];
    let start = |name: &str| {
        times.iter().fold(world.worker().set("WORKER_NAME", name), |command, (name, value)| command.set(name, value))
    };
    let workers = [start("a").ready().await, start("b").ready().await];
    let traffic = Traffic::new(&mut StdRng::seed_from_u64(seed()), PER_SECOND * 6, 16);
    let alone = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let has_replica = {
        let alone = alone.clone();
        move || !alone.load(std::sync::atomic::Ordering::Relaxed)
    };
    let producer = produce(&traffic, &world, [url(&primary), url(&replica)], has_replica);
    for worker in &workers {
        worker.until_metric("hexlane_events_total{outcome=\"applied\"}", 100.0).await;
    }
    primary.kill().await;
    alone.store(true, std::sync::atomic::Ordering::Relaxed);
    let killed = Instant::now();
    eventually("the replica is the primary", async || ask(&url(&replica), "ROLE").await.contains("master")).await;
    let promoted = killed.elapsed();
    for worker in &workers {
        worker.until_ready(true).await;
    }
    eprintln!("promoted after {promoted:?}, both workers ready after {:?}", killed.elapsed());
    producer.await.unwrap();

    world.look_at(&url(&replica)).await;
    traffic.until_landed(&world).await;
    for worker in workers {
        // What was settled without the replica knowing came again.
        worker.stop().await.assert_balanced();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_becomes_a_replica_is_left_for_the_one_behind_the_same_address() {
    let first = server(None).await;
    let second = server(Some(first.port)).await;
    follows(&second).await;
    let (way, proxied) = Proxy::to(&url(&first)).await;
    let mut world = World::on_redis("moved", 4, url(&first)).await;
    world.redis_url = proxied;
    let worker = world.worker().ready().await;
    let traffic = Traffic::new(&mut StdRng::seed_from_u64(seed()), PER_SECOND * 4, 4);
    let producer = produce(&traffic, &world, [url(&first), url(&second)], || true);
    worker.until_metric("hexlane_events_total{outcome=\"applied\"}", 200.0).await;

    // As an operator does it: nothing more is written to the old one, the new one has all, then they change roles.
    // The worker's connections stay up all the while.
    ask(&url(&first), "CLIENT PAUSE 2000 WRITE").await;
    eventually("the replica has everything", async || {
        let (ours, theirs) =
            (ask(&url(&first), "INFO replication").await, ask(&url(&second), "INFO replication").await);
        let offset = |text: &str| {
            text.split("master_repl_offset:")
                .nth(1)
                .map(|rest| rest.chars().take_while(char::is_ascii_digit).collect::<String>())
        };
        offset(&ours).is_some() && offset(&ours) == offset(&theirs)
    })
    .await;
    ask(&url(&second), "REPLICAOF NO ONE").await;
    ask(&url(&first), &format!("REPLICAOF 127.0.0.1 {}", second.port)).await;
    way.lead_to(&url(&second));
    producer.await.unwrap();

    world.look_at(&url(&second)).await;
    traffic.until_landed(&world).await;
    worker.until_ready(true).await;
    worker.stop().await.assert_balanced();
}

/// What was settled on one server only comes again on the other, and changes nothing: known by its state, or by its id.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_promoted_replica_has_not_heard_of_changes_nothing() {
    const EVENTS: u64 = 200;
    let first = server(None).await;
    let second = server(Some(first.port)).await;
    follows(&second).await;
    let (way, proxied) = Proxy::to(&url(&first)).await;
    let mut world = World::on_redis("unheard", 2, url(&first)).await;
    world.redis_url = proxied;
    let worker = world.worker().ready().await;
    let somebody = world.postgres().await;
    somebody.batch_execute("BEGIN; LOCK TABLE feature_state").await.unwrap();
    for n in 0..EVENTS {
        let event_id = if n < EVENTS / 2 { format!(r#","event_id":"{n}""#) } else { String::new() };
        let place = r#"{"type":"Point","coordinates":[4.3,52.1]}"#;
        world.add(u16::try_from(n % 2).unwrap(), &event(&format!("F{n}"), 1, "update", place, &event_id)).await;
    }
    eventually("all is in hand", async || world.pending().await == EVENTS).await;
    world.ask::<i64>("WAIT 1 0").await;
    ask(&url(&second), "REPLICAOF NO ONE").await;
    somebody.batch_execute("COMMIT").await.unwrap();
    world.drained().await;
    let promoted = Instant::now();
    ask(&url(&first), &format!("REPLICAOF 127.0.0.1 {}", second.port)).await;
    way.lead_to(&url(&second));
    world.look_at(&url(&second)).await;
    let again = EVENTS as f64 / 2.0;
    for outcome in ["stale", "duplicate"] {
        worker.until_metric(&format!("hexlane_events_total{{outcome=\"{outcome}\"}}"), again).await;
    }
    worker.until_ready(true).await;
    eprintln!("ready {:?} after the roles were changed by hand", promoted.elapsed());
    world.drained().await;
    let counts = worker.stop().await;
    counts.assert_balanced();
    assert_eq!((counts.applied, counts.stale, counts.duplicate), (EVENTS, EVENTS / 2, EVENTS / 2));
    assert_eq!(counts.read, 2 * EVENTS);
    assert_eq!(world.dead_letters().await.len(), 0);
}

/// `min-replicas-to-write`: the server refuses what it could not hand on.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_wants_more_replicas_is_waited_for() {
    let alone = server(None).await;
    let world = World::on_redis("noreplicas", 4, url(&alone)).await;
    let worker = world.worker().set("RETRY_CAP", "200ms").ready().await;
    let traffic = Traffic::new(&mut StdRng::seed_from_u64(seed()), PER_SECOND * 3, 4);
    let producer = traffic.produce(&world, PER_SECOND);
    worker.until_metric("hexlane_events_total{outcome=\"applied\"}", 100.0).await;
    ask(&url(&alone), "CONFIG SET min-replicas-to-write 1").await;
    worker.until_metric("hexlane_retries_total{error=\"NOREPLICAS\",target=\"redis\"}", 8.0).await;
    // Nor can its leases be renewed. It has no lane any more that would tell.
    eventually("its leases are over", async || worker.metric("hexlane_lanes_owned").await == Some(0.0)).await;
    assert!(!worker.is_ready().await);
    ask(&url(&alone), "CONFIG SET min-replicas-to-write 0").await;
    producer.await.unwrap();
    traffic.until_landed(&world).await;
    worker.until_ready(true).await;
    worker.stop().await.assert_balanced();
}
