//! The group, the stream or everything is gone: made again from the start, without noise.

use std::time::Duration;

use super::{count_rows, strand};
use crate::world::{PATIENCE, Worker, World, event, eventually, point};

/// Far above what is needed, far below what a loop without a pause would write in the time.
const FEW_LINES: usize = 60;

fn lines(worker: &Worker) -> usize {
    worker.log().lines().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn all_of_redis_is_flushed_under_an_idle_worker() {
    let world = World::private("flushed", 4).await;
    let worker = world.worker().ready().await;
    for shard in 0..4 {
        world.add(shard, &point(&format!("before{shard}"), 1, 4.3, 52.1)).await;
    }
    world.drained().await;
    for round in 0..3 {
        let before = lines(&worker);
        let _: String = world.ask("FLUSHALL").await;
        for n in 0..5 {
            world.add(n % 4, &point(&format!("n{round}-{n}"), 1, 4.3, 52.1)).await;
        }
        let wanted = 4 + 5 * (i64::from(round) + 1);
        eventually("everything new has landed", async || count_rows(&world).await == wanted).await;
        eventually("it owns every shard and is settled", async || {
            let owners: Vec<Option<String>> = world
                .ask(&format!("MGET {}", (0..4).map(|shard| world.owner_key(shard)).collect::<Vec<_>>().join(" ")))
                .await;
            owners.iter().all(Option::is_some) && world.pending().await == 0
        })
        .await;
        let shards: Option<String> = world.ask(&format!("HGET {}:topology shards", world.namespace)).await;
        if round == 2 {
            eventually("the topology is set again", async || {
                let shards: Option<String> = world.ask(&format!("HGET {}:topology shards", world.namespace)).await;
                shards.as_deref() == Some("4")
            })
            .await;
        }
        assert!(shards.is_none_or(|shards| shards == "4"));
        assert!(lines(&worker) - before < FEW_LINES, "{}", worker.log());
    }
    worker.until_ready(true).await;
    worker.stop().await.assert_balanced();
    assert_eq!(world.dead_letters().await.len(), 0);
}

/// Twenty of it in hand, twenty with somebody who is gone, twenty unread.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_destroyed_with_entries_pending_and_unread() {
    let world = World::shared("destroyed", 1).await;
    let worker = world.worker().set("WORKER_NAME", "w").ready().await;
    let events = |name: &str| (0..20).map(|n| point(&format!("{name}{n}"), 1, 4.3, 52.1)).collect::<Vec<_>>();
    let holder = world.postgres().await;
    holder.batch_execute("BEGIN; LOCK TABLE feature_state IN ACCESS EXCLUSIVE MODE").await.unwrap();
    world.add_together(0, &events("in-hand")).await;
    worker.until_metric("hexlane_buffered_events", 20.0).await;
    let before = lines(&worker);
    strand(&world, 0, "dead", &events("stranded"), &[]).await;
    let mut pipe = redis::pipe();
    pipe.atomic();
    for event in events("unread") {
        pipe.cmd("XADD").arg(world.events_key(0)).arg("*").arg("event").arg(event).ignore();
    }
    pipe.cmd("XGROUP").arg("DESTROY").arg(world.events_key(0)).arg("hexlane").ignore();
    pipe.exec_async(&mut world.redis()).await.unwrap();
    // All come again, those in hand as well.
    worker.until_metric("hexlane_buffered_events", 60.0).await;
    holder.batch_execute("COMMIT").await.unwrap();
    world.drained().await;
    assert_eq!(count_rows(&world).await, 60);
    assert_eq!(world.dead_letters().await.len(), 0);
    assert!(lines(&worker) - before < FEW_LINES, "{}", worker.log());
    let counts = worker.stop().await;
    counts.assert_balanced();
    assert_eq!(counts.applied, 60);
}

/// In the moment in which the worker prepares what it has taken over, its counters raised.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_destroyed_in_the_middle_of_a_take_over() {
    let world = World::shared("destroyed_between", 1).await;
    let ring: Vec<String> = (0..20_000)
        .map(|n| f64::from(n % 19_999) / 19_999.0 * std::f64::consts::TAU)
        .map(|angle| format!("[{:.9},{:.9}]", 10.0 + angle.cos(), 50.0 + angle.sin()))
        .collect();
    let ring = format!(r#"{{"type":"Polygon","coordinates":[[{}]]}}"#, ring.join(","));
    let events: Vec<_> = (0..40).map(|n| event(&format!("ring{n}"), 1, "update", &ring, "")).collect();
    strand(&world, 0, "dead", &events, &[]).await;
    let worker = world.worker().start();
    let raised = async || {
        let ask = format!("XPENDING {} hexlane - + 1", world.events_key(0));
        let rows: Vec<(String, String, i64, i64)> = world.ask(&ask).await;
        rows.first().is_some_and(|row| row.3 == 2)
    };
    let start = tokio::time::Instant::now();
    while !raised().await {
        assert!(start.elapsed() < PATIENCE, "{}", worker.log());
    }
    let _: i64 = world.ask(&format!("XGROUP DESTROY {} hexlane", world.events_key(0))).await;
    world.drained().await;
    assert_eq!(count_rows(&world).await, 40);
    assert_eq!(world.dead_letters().await.len(), 0);
    world.add(0, &point("after", 1, 4.3, 52.1)).await;
    eventually("it goes on", async || world.state("after").await.is_some()).await;
    worker.stop().await.assert_balanced();
}

/// An error comes at once, whatever the block time: the pauses are the worker's own.
#[tokio::test(flavor = "multi_thread")]
async fn errors_that_come_at_once_are_tried_again_with_pauses() {
    let world = World::shared("wrong_type", 1).await;
    let worker = world.worker().set("RETRY_CAP", "500ms").ready().await;
    let before = lines(&worker);
    let _: i64 = world.ask(&format!("DEL {}", world.events_key(0))).await;
    let _: String = world.ask(&format!("SET {} x", world.events_key(0))).await;
    let errors = "hexlane_retries_total{error=\"WRONGTYPE\",target=\"redis\"}";
    worker.until_metric(errors, 5.0).await;
    let (start, first) = (tokio::time::Instant::now(), worker.metric(errors).await.unwrap());
    worker.until_metric(errors, first + 8.0).await;
    // Eight full-jitter pauses of up to half a second; a loop without them takes milliseconds.
    assert!(start.elapsed() > Duration::from_millis(200), "a hot loop");
    assert!(lines(&worker) - before < FEW_LINES, "{}", worker.log());
    let _: i64 = world.ask(&format!("DEL {}", world.events_key(0))).await;
    world.add(0, &point("after", 1, 4.3, 52.1)).await;
    eventually("it lands", async || world.state("after").await.is_some()).await;
    worker.stop().await.assert_balanced();
}
