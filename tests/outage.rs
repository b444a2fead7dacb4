//! A database that is away, frozen, locked or slow is nobody's fault: no event is given up for it.

use std::sync::Arc;

use crate::world::{Counts, Proxy, Server, Traffic, Way, Worker, World, eventually, point};

/// Good events, one for each feature.
fn good(count: i64) -> Arc<Traffic> {
    let mut traffic = Traffic::default();
    for n in 0..count {
        let text = traffic.expect(&format!("F{n}"), 1, "create", n, "");
        traffic.sends.push((0, text));
    }
    Arc::new(traffic)
}

/// Everything has landed, and nothing was given up.
async fn all_is_well(world: &World, traffic: &Traffic, worker: Worker) -> Counts {
    traffic.until_landed(world).await;
    worker.until_ready(true).await;
    let counts = worker.stop().await;
    counts.assert_balanced();
    counts
}

/// More restarts than an event may have deliveries.
#[tokio::test(flavor = "multi_thread")]
async fn restarts_during_an_outage_use_up_no_deliveries() {
    let world = World::private("outage", 1).await;
    let traffic = good(2000);
    let named = |n: usize| world.worker().set("WORKER_NAME", &format!("w{}", n % 3)).set("STATEMENT_TIMEOUT", "600ms");
    // Locked, the database answers, and so workers start and take over; then it is away altogether.
    let holder = world.postgres().await;
    let mut worker = named(0).ready().await;
    holder.batch_execute("BEGIN; LOCK TABLE processed_event, feature_state IN SHARE MODE").await.unwrap();
    traffic.send_all(&world).await;
    for n in 1..=7 {
        eventually("entries are in hand", async || world.pending().await > 0).await;
        if n % 2 == 0 {
            worker.kill().await;
        } else {
            worker.signal("TERM");
            worker.signal("TERM");
            worker.wait().await;
        }
        if n == 4 {
            world.servers(|servers| servers.stop(Server::Postgres)).await;
        }
        worker = named(n).start();
        let waits = async || ["trying again", "waiting for the servers"].iter().any(|text| worker.log().contains(text));
        eventually("it waits for the database", waits).await;
        assert!(!worker.is_ready().await);
    }
    world.servers(|servers| servers.restart(Server::Postgres)).await;
    let counts = all_is_well(&world, &traffic, worker).await;
    assert_eq!(counts.read, 2000);
}

/// It takes connections, for the kernel does, and says nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_database_is_given_up_and_asked_again() {
    let world = World::private("frozen", 1).await;
    let traffic = good(100);
    let worker = world.worker().set("STATEMENT_TIMEOUT", "1s").set("RETRY_CAP", "200ms").ready().await;
    let frozen = tokio::task::block_in_place(|| world.servers.as_ref().unwrap().freeze(Server::Postgres));
    traffic.send_all(&world).await;
    worker.until_metric("hexlane_retries_total{error=\"timeout\",target=\"postgres\"}", 2.0).await;
    assert!(!worker.is_ready().await);
    drop(frozen);
    all_is_well(&world, &traffic, worker).await;
}

/// Nobody is told that the network is gone: each write has its end, and everything else goes on.
#[tokio::test(flavor = "multi_thread")]
async fn packets_that_get_lost_cost_time_only() {
    let world = World::shared("silent", 1).await;
    let (way, url) = Proxy::to(&world.database_url).await;
    let traffic = good(100);
    let start = |name: &str| {
        let command = world.worker().set("WORKER_NAME", name).set("DATABASE_URL", &url).set("RETRY_CAP", "200ms");
        command.set("STATEMENT_TIMEOUT", "1s").set("DRAIN_TIMEOUT", "1s")
    };
    let mut worker = start("first").ready().await;
    way.set(Way::Silent);
    traffic.send_all(&world).await;
    worker.until_metric("hexlane_retries_total{error=\"timeout\",target=\"postgres\"}", 2.0).await;
    // Longer than its lease of a second: it was renewed all the while.
    assert!(world.ask::<i64>(&format!("PTTL {}", world.owner_key(0))).await > 0);
    assert_eq!(worker.get("/healthz").await.unwrap().0, 200);
    assert!(!worker.is_ready().await);
    worker.signal("TERM");
    assert!(worker.wait().await.success(), "{}", worker.log());
    assert_eq!(world.pending().await, 100, "what it held comes again");
    way.set(Way::Open);
    let worker = start("second").ready().await;
    all_is_well(&world, &traffic, worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_table_is_waited_for() {
    let world = World::shared("locked", 1).await;
    let traffic = good(100);
    let worker = world.worker().set("STATEMENT_TIMEOUT", "300ms").set("RETRY_CAP", "100ms").ready().await;
    let holder = world.postgres().await;
    holder.batch_execute("BEGIN; LOCK TABLE feature_state IN ACCESS EXCLUSIVE MODE").await.unwrap();
    traffic.send_all(&world).await;
    worker.until_metric("hexlane_retries_total{error=\"55P03\",target=\"postgres\"}", 8.0).await;
    assert!(!worker.is_ready().await);
    holder.batch_execute("ROLLBACK").await.unwrap();
    all_is_well(&world, &traffic, worker).await;
}

const SLOW: &str = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
        $$BEGIN PERFORM pg_sleep(3); RETURN new; END$$;
    CREATE TRIGGER slow BEFORE INSERT OR UPDATE ON feature_state FOR EACH ROW";

/// Every row is too slow: that is the database's fault, however often it fails.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_too_slow_for_every_row_is_waited_for() {
    let world = World::shared("slow", 1).await;
    world.sql(&format!("{SLOW} EXECUTE FUNCTION slow()")).await;
    let traffic = good(2);
    let worker = world.worker().set("STATEMENT_TIMEOUT", "200ms").set("RETRY_CAP", "100ms").ready().await;
    traffic.send_all(&world).await;
    // More than it would take to try both together and each alone three times.
    worker.until_metric("hexlane_retries_total{error=\"57014\",target=\"postgres\"}", 15.0).await;
    assert_eq!(world.dead_letters().await.len(), 0);
    assert!(!worker.is_ready().await);
    let idle = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
    assert_eq!(world.postgres().await.query_one(idle, &[]).await.unwrap().get::<_, i64>(0), 0);
    world.sql("DROP TRIGGER slow ON feature_state").await;
    all_is_well(&world, &traffic, worker).await;
}

/// One row is too slow while the others are not: that is the row's.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_always_too_slow_is_a_dead_letter() {
    let world = World::shared("slow_row", 1).await;
    world.sql(&format!("{SLOW} WHEN (new.feature_id = 'slow') EXECUTE FUNCTION slow()")).await;
    let worker = world.worker().set("STATEMENT_TIMEOUT", "200ms").set("RETRY_CAP", "100ms").ready().await;
    let mut events: Vec<_> = (0..7).map(|n| point(&format!("F{n}"), 1, 4.3, 52.1)).collect();
    events.insert(3, point("slow", 1, 4.3, 52.1));
    world.add_together(0, &events).await;
    world.drained().await;
    let letters = world.dead_letters().await;
    assert_eq!(letters.len(), 1);
    assert_eq!(
        (letters[0].reason(), letters[0].text("dead:sqlstate")),
        ("rejected_by_database".into(), "57014".into())
    );
    assert_eq!(letters[0].bytes("event"), Some(events[3].as_slice()));

    // Alone in its batch it is told from a slow database as well.
    world.add(0, &point("slow", 2, 4.3, 52.1)).await;
    world.drained().await;
    assert_eq!(world.dead_letters().await.len(), 2);
    world.add(0, &point("F1", 2, 4.3, 52.1)).await;
    world.drained().await;
    assert_eq!(world.dead_letters().await.len(), 2);
    assert_eq!(world.state("F1").await, Some((2, "update".into())));
    let counts = worker.stop().await;
    counts.assert_balanced();
    assert_eq!((counts.applied, counts.dead_lettered), (8, 2));
}

/// The code is that of a row that PostgreSQL cannot take; here no row has anything to do with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_refuses_connections_is_waited_for() {
    let world = World::shared("refused", 1).await;
    let (proxy, url) = Proxy::to(&world.database_url).await;
    let traffic = good(100);
    let worker = world.worker().set("DATABASE_URL", &url).set("RETRY_CAP", "100ms").ready().await;
    proxy.set(Way::Refused);
    traffic.send_all(&world).await;
    worker.until_metric("hexlane_retries_total{error=\"XX000\",target=\"postgres\"}", 8.0).await;
    assert_eq!((world.pending().await, world.dead_letters().await.len()), (100, 0));
    proxy.set(Way::Open);
    all_is_well(&world, &traffic, worker).await;
    assert_eq!(world.dead_letters().await.len(), 0);
}
