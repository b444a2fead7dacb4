//! Faults 14, 20 and 22: pools and back-off that keep what should be let go, or let go too soon.

use super::count_rows;
use crate::world::{Proxy, Way, World, eventually, point};

/// 20: pooled connections to a server that has become read-only are healthy as far as a ping can tell.
#[tokio::test(flavor = "multi_thread")]
async fn connections_to_a_read_only_server_are_left_and_nothing_is_blamed() {
    let world = World::private("read_only", 2).await;
    let worker = world.worker().set("RETRY_CAP", "200ms").ready().await;
    world.add(0, &point("before", 1, 4.3, 52.1)).await;
    world.drained().await;
    let admin = world.postgres().await;
    let pids = async || -> Vec<i32> {
        let sql = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'hexlane worker%'";
        admin.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
    };
    let old = pids().await;
    let switch = async |to: &str| {
        admin.batch_execute(&format!("ALTER SYSTEM SET default_transaction_read_only = {to}")).await.unwrap();
        admin.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    };
    switch("on").await;
    for number in 0_u16..200 {
        world.add(number % 2, &point(&format!("F{number}"), 1, 4.3, 52.1)).await;
    }
    worker.until_metric("hexlane_retries_total{error=\"25006\",target=\"postgres\"}", 10.0).await;
    worker.until_ready(false).await;
    eventually("the old connections are closed", async || {
        let now = pids().await;
        old.iter().all(|pid| !now.contains(pid))
    })
    .await;
    assert_eq!(world.dead_letters().await.len(), 0);
    assert!(world.deliveries(0).await.iter().chain(&world.deliveries(1).await).all(|&count| count == 1));
    switch("off").await;
    world.drained().await;
    assert_eq!(count_rows(&world).await, 201);
    worker.until_ready(true).await;
    let counts = worker.stop().await;
    assert_eq!((counts.applied, counts.dead_lettered), (201, 0));
}

/// 22: a write that is given up half-way leaves nothing open behind it, and nobody else's work inside it.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_given_up_leaves_no_transaction_open() {
    let world = World::shared("given_up", 1).await;
    world
        .sql(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM pg_sleep(3); RETURN new; END$$;
             CREATE TRIGGER t BEFORE INSERT OR UPDATE ON feature_state FOR EACH ROW EXECUTE FUNCTION slow()",
        )
        .await;
    let (way, proxied) = Proxy::to(&world.database_url).await;
    let worker = world.worker().set("DATABASE_URL", &proxied).set("STATEMENT_TIMEOUT", "1s").set("RETRY_CAP", "200ms");
    let worker = worker.ready().await;
    for number in 0..50 {
        world.add(0, &point(&format!("F{number}"), 1, 4.3, 52.1)).await;
    }
    worker.until_metric("hexlane_retries_total{error=\"57014\",target=\"postgres\"}", 3.0).await;
    // And once without a word, in the middle of it.
    way.set(Way::Closed);
    worker.until_metric("hexlane_retries_total{error=\"io\",target=\"postgres\"}", 1.0).await;
    way.set(Way::Open);
    let states = async || -> Vec<String> {
        let sql = "SELECT state FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'";
        world.postgres().await.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
    };
    assert_eq!(states().await, [""; 0]);
    assert_eq!(count_rows(&world).await, 0);
    world.sql("DROP TRIGGER t ON feature_state").await;
    world.drained().await;
    assert_eq!(count_rows(&world).await, 50);
    assert_eq!(states().await, [""; 0]);
    assert_eq!(world.dead_letters().await.len(), 0);
    worker.stop().await.assert_balanced();
}

/// 14: many failures do not make it stop trying. Nor does time: that takes a clock which can be set, and is tested
/// where the waits are drawn, in `failure`.
#[tokio::test(flavor = "multi_thread")]
async fn it_never_stops_trying() {
    let world = World::shared("never_stops", 1).await;
    let (redis, redis_url) = Proxy::to(&world.redis_url).await;
    let (postgres, database_url) = Proxy::to(&world.database_url).await;
    let worker = world.worker().set("REDIS_URL", &redis_url).set("DATABASE_URL", &database_url);
    let worker = worker.set("RETRY_BASE", "1ms").set("RETRY_CAP", "2ms").ready().await;
    for (way, target) in [(redis, "redis"), (postgres, "postgres")] {
        way.set(Way::Closed);
        world.add(0, &point(target, 1, 4.3, 52.1)).await;
        // With pauses of up to 30 s, as by default, so many would take more than an hour.
        worker.until_metric(&format!("hexlane_retries_total{{error=\"io\",target=\"{target}\"}}"), 300.0).await;
        way.set(Way::Open);
        eventually(target, async || world.state(target).await.is_some()).await;
    }
    worker.until_ready(true).await;
    worker.stop().await.assert_balanced();
}
