//! Features that meet themselves: in a batch, across workers, across restarts.

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use crate::world::{Counts, Traffic, World, delete, event, point, seed};

#[tokio::test(flavor = "multi_thread")]
async fn the_same_feature_several_times_in_one_batch() {
    let world = World::shared("same_feature", 1).await;
    for event in [
        point("d1", 1, 4.3, 52.1),
        point("d1", 3, 4.3, 52.1),
        point("d1", 2, 4.3, 52.1),
        point("d2", 1, 4.3, 52.1),
        point("d3", 1, 4.3, 52.1),
        delete("d3", 2),
    ] {
        world.add(0, &event).await;
    }
    let counts = world.drain_in_one_batch().await;
    assert_eq!((counts.read, counts.applied, counts.superseded), (6, 3, 3));
    assert_eq!(world.state("d1").await, Some((3, "update".into())));
    assert_eq!(world.state("d2").await, Some((1, "update".into())));
    assert_eq!(world.state("d3").await, Some((2, "delete".into())));
    assert_eq!(world.pending().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_feature_several_times_in_one_batch_with_event_ids() {
    const POINT: &str = r#"{"type":"Point","coordinates":[4.3,52.1]}"#;
    let with_id = |feature_id: &str, version: i64, op: &str, event_id: &str| {
        event(feature_id, version, op, POINT, &format!(r#","event_id":"{event_id}""#))
    };
    let world = World::shared("same_feature_ids", 1).await;
    for event in [
        with_id("d1", 1, "update", "a"),
        with_id("d1", 3, "update", "b"),
        with_id("d1", 2, "update", "c"),
        // The id of an event of the same feature: a redelivery, whatever version it claims.
        with_id("d1", 9, "update", "a"),
        // The same id of another feature is another id.
        with_id("d2", 1, "update", "a"),
        with_id("d3", 1, "update", "d"),
        with_id("d3", 2, "delete", "e"),
    ] {
        world.add(0, &event).await;
    }
    let counts = world.drain_in_one_batch().await;
    let outcomes = (counts.read, counts.applied, counts.superseded, counts.duplicate);
    assert_eq!(outcomes, (7, 3, 3, 1));
    assert_eq!(world.state("d1").await, Some((3, "update".into())));
    assert_eq!(world.state("d2").await, Some((1, "update".into())));
    assert_eq!(world.state("d3").await, Some((2, "delete".into())));

    // The superseded ones are remembered like the others.
    for (feature_id, event_id) in [("d1", "a"), ("d1", "b"), ("d1", "c"), ("d3", "d")] {
        world.add(0, &with_id(feature_id, 10, "update", event_id)).await;
    }
    world.add(0, &with_id("d2", 10, "update", "b")).await;
    let counts = world.drain_in_one_batch().await;
    assert_eq!((counts.duplicate, counts.applied), (4, 1));
    assert_eq!(world.state("d1").await, Some((3, "update".into())));
}

/// 20 000 events over 40 features: every statement of every worker wants the same rows.
async fn overlapping_batches(name: &str, isolation: Option<&str>, event_ids: bool) {
    let world = World::shared(name, 4).await;
    if let Some(level) = isolation {
        world
            .sql(&format!(
                "ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{level}'",
                name = world.namespace
            ))
            .await;
    }
    let mut rng = StdRng::seed_from_u64(seed());
    let mut traffic = Traffic::default();
    for n in 0..20_000 {
        let more = if event_ids { format!(r#","event_id":"e{n}""#) } else { String::new() };
        let text = traffic.expect(&format!("F{}", rng.random_range(0..40)), n, "update", n, &more);
        traffic.sends.push((rng.random_range(0..4), text));
    }
    let traffic = Arc::new(traffic);
    traffic.send_all(&world).await;
    // Small batches, so that there are many statements to get in each other's way.
    let worker = |n: u32| {
        world.worker().set("WORKER_NAME", &format!("w{n}")).set("BATCH_ROWS", "200").set("POOL_SIZE", "4").start()
    };
    let workers: Vec<_> = (0..4).map(worker).collect();
    world.drained().await;
    let mut sum = Counts::default();
    for worker in workers {
        let counts = worker.stop().await;
        counts.assert_balanced();
        sum.read += counts.read;
        sum.dead_lettered += counts.dead_lettered;
    }
    traffic.assert_landed(&world).await;
    assert!(sum.read >= 20_000 && sum.dead_lettered == 0, "{sum:?}");
    assert_eq!(world.dead_letters().await.len(), 0);
    let sql = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    let deadlocks: i64 = world.postgres().await.query_one(sql, &[]).await.unwrap().get(0);
    assert!(deadlocks <= 1, "{deadlocks} deadlocks");
}

#[tokio::test(flavor = "multi_thread")]
async fn overlapping_batches_of_four_workers_do_not_deadlock() {
    overlapping_batches("overlap", None, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn overlapping_batches_do_not_deadlock_with_event_ids() {
    overlapping_batches("overlap_ids", None, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn overlapping_batches_land_where_the_database_defaults_to_repeatable_read() {
    overlapping_batches("overlap_rr", Some("repeatable read"), false).await;
}

/// Each step by a worker of its own: nothing that a process remembers may be needed.
#[tokio::test(flavor = "multi_thread")]
async fn deleted_features_stay_deleted_across_restarts() {
    let world = World::shared("late", 1).await;
    let step = async |event: Vec<u8>| {
        world.add(0, &event).await;
        let counts = world.worker().once().await;
        assert_eq!(counts.settled(), 1);
        counts.applied == 1
    };
    let visible = async |feature_id: &str| {
        let sql = "SELECT version FROM feature WHERE feature_id = $1";
        world.postgres().await.query_opt(sql, &[&feature_id]).await.unwrap().map(|row| row.get::<_, i64>(0))
    };
    assert!(step(point("r1", 1, 4.3, 52.1)).await);
    assert_eq!(visible("r1").await, Some(1));
    assert!(step(delete("r1", 3)).await);
    assert!(!step(point("r1", 2, 4.3, 52.1)).await);
    assert_eq!(visible("r1").await, None);
    assert!(step(point("r1", 4, 4.3, 52.1)).await);
    assert_eq!(visible("r1").await, Some(4));

    assert!(step(delete("r9", 5)).await, "of a feature that nobody has ever seen");
    assert!(!step(point("r9", 4, 4.3, 52.1)).await);
    assert_eq!(visible("r9").await, None);
    assert_eq!(world.state("r9").await, Some((5, "delete".into())));
}

#[tokio::test(flavor = "multi_thread")]
async fn shuffled_versions_end_at_the_highest_with_three_workers_and_kills() {
    const PER_SECOND: usize = 2500;
    let mut rng = StdRng::seed_from_u64(seed());
    let mut traffic = Traffic::default();
    for feature in 0..1000 {
        for version in 1..=10 {
            let op = if version % 5 == 0 && feature % 2 == 0 { "delete" } else { "update" };
            let text = traffic.expect(&format!("F{feature}"), version, op, version * 1000 + feature, "");
            traffic.sends.push((rng.random_range(0..8), text));
        }
    }
    traffic.sends.shuffle(&mut rng);
    let traffic = Arc::new(traffic);
    let world = World::shared("shuffled", 8).await;
    let start = |n: usize| world.worker().set("WORKER_NAME", &format!("w{n}")).start();
    let mut workers = [start(0), start(1), start(2)];
    let producer = traffic.produce(&world, PER_SECOND);
    let begin = tokio::time::Instant::now();
    for kill in 1..=6 {
        tokio::time::sleep_until(begin + traffic.lasts(PER_SECOND) * kill / 7).await;
        let n = rng.random_range(0..3);
        std::mem::replace(&mut workers[n], start(n)).kill().await;
    }
    producer.await.unwrap();
    traffic.until_landed(&world).await;
    for worker in workers {
        worker.stop().await.assert_balanced();
    }
}

/// Started together on one stream, under names of their own or, by somebody's mistake, under one.
#[tokio::test(flavor = "multi_thread")]
async fn two_workers_at_once_on_one_stream_are_harmless() {
    for names in [["one", "two"], ["same", "same"]] {
        let world = World::shared("two", 1).await;
        let traffic = Traffic::new(&mut StdRng::seed_from_u64(seed()), 5000, 1);
        let workers = names.map(|name| world.worker().set("WORKER_NAME", name).start());
        traffic.produce(&world, 2500).await.unwrap();
        traffic.until_landed(&world).await;
        let mut read = 0;
        for worker in workers {
            let counts = worker.stop().await;
            counts.assert_balanced();
            read += counts.read;
        }
        assert!(read >= traffic.sends.len() as u64, "{names:?}: {read}");
    }
}
