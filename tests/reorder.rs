//! The window in which near-simultaneous events of one feature find their order.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::world::{World, eventually, point};

/// How far apart the events are; much less than the window.
const APART: Duration = Duration::from_millis(50);

#[tokio::test(flavor = "multi_thread")]
async fn two_events_in_the_wrong_order_are_written_once() {
    let world = World::shared("reorder_on", 1).await;
    let worker = world.worker().set("REORDER_WINDOW", "2s").set("LEASE", "20m").ready().await;
    world.add(0, &point("F", 2, 4.3, 52.1)).await;
    tokio::time::sleep(APART).await;
    world.add(0, &point("F", 1, 4.3, 52.1)).await;
    world.drained().await;
    assert_eq!(world.state("F").await, Some((2, "update".into())));
    let counts = worker.stop().await;
    counts.assert_balanced();
    assert_eq!((counts.read, counts.applied, counts.superseded, counts.stale), (2, 1, 1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_window_the_older_event_comes_too_late() {
    let world = World::shared("reorder_off", 1).await;
    let worker = world.worker().set("REORDER_WINDOW", "0s").ready().await;
    world.add(0, &point("F", 2, 4.3, 52.1)).await;
    worker.until_metric("hexlane_events_total{outcome=\"applied\"}", 1.0).await;
    world.add(0, &point("F", 1, 4.3, 52.1)).await;
    world.drained().await;
    assert_eq!(world.state("F").await, Some((2, "update".into())));
    let counts = worker.stop().await;
    counts.assert_balanced();
    assert_eq!((counts.read, counts.applied, counts.superseded, counts.stale), (2, 1, 0, 1));
}

/// An event that waits keeps nobody else waiting, and a backlog does not wait at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_does_not_wait_for_the_window() {
    let world = World::shared("reorder_backlog", 1).await;
    // Entries of a day ago; their window, however long, is over.
    let mut pipe = redis::pipe();
    for version in 1..=50_i64 {
        let event = point("F", 51 - version, 4.3, 52.1);
        let id = format!("{}-{version}", chrono::Utc::now().timestamp_millis() - 86_400_000);
        pipe.cmd("XADD").arg(world.events_key(0)).arg(id).arg("event").arg(event).ignore();
    }
    pipe.exec_async(&mut world.redis()).await.unwrap();
    let worker = world.worker().set("REORDER_WINDOW", "10m").set("LEASE", "20m").ready().await;
    world.drained().await;
    assert_eq!(world.state("F").await, Some((50, "update".into())));
    let counts = worker.stop().await;
    counts.assert_balanced();
    assert_eq!(counts.stale + counts.superseded + counts.applied, 50);
}

/// The deadline is that of the first held event: it does not move with each new one.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_feature_is_written_while_it_is_busy() {
    let world = World::shared("reorder_busy", 1).await;
    let worker = world.worker().set("REORDER_WINDOW", "200ms").ready().await;
    let postgres = world.postgres().await;
    let version = async || {
        let sql = "SELECT version FROM feature_state WHERE feature_id = 'busy'";
        postgres.query_opt(sql, &[]).await.unwrap().map_or(0, |row| row.get::<_, i64>(0))
    };
    let mut seen = BTreeSet::new();
    let mut ticks = tokio::time::interval(Duration::from_millis(20));
    for number in 1..=150 {
        ticks.tick().await;
        world.add(0, &point("busy", number, 4.3, 52.1)).await;
        seen.insert(version().await);
    }
    seen.remove(&0);
    assert!(seen.len() >= 3, "written at versions {seen:?} while 150 came");
    eventually("the last one is written", async || version().await == 150).await;
    world.drained().await;
    let counts = worker.stop().await;
    counts.assert_balanced();
    assert_eq!((counts.read, counts.stale, counts.applied + counts.superseded), (150, 0, 150));
}
