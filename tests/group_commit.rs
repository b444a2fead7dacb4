//! Several lanes in one statement: fewer commits, and nobody pays for a neighbour.

use crate::world::{Counts, World, eventually, point};

const SHARDS: u16 = 8;
const EACH: u16 = 10;

/// Everything is in the lanes' hands while nothing can be written, then all of it is.
async fn written_together(world: &World, event: impl Fn(u16, u16) -> Vec<u8>) -> Counts {
    let worker = world.worker().set("POOL_SIZE", "1").set("REORDER_WINDOW", "0s").ready().await;
    let locked = world.postgres().await;
    locked.batch_execute("BEGIN; LOCK TABLE feature_state").await.unwrap();
    for shard in 0..SHARDS {
        let events: Vec<_> = (0..EACH).map(|n| event(shard, n)).collect();
        world.add_together(shard, &events).await;
    }
    worker.until_metric("hexlane_buffered_events", f64::from(SHARDS * EACH)).await;
    locked.batch_execute("COMMIT").await.unwrap();
    world.drained().await;
    // PostgreSQL answers this where one statement names a row twice; the lanes would get over it.
    assert_eq!(worker.metric("hexlane_retries_total{error=\"21000\",target=\"postgres\"}").await, None);
    let counts = worker.stop().await;
    counts.assert_balanced();
    counts
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_in_many_lanes_is_written_in_few_statements() {
    let world = World::shared("together", SHARDS).await;
    let counts = written_together(&world, |shard, n| point(&format!("s{shard}-{n}"), 1, 4.3, 52.1)).await;
    assert_eq!(counts.applied, u64::from(SHARDS * EACH));
    // Rows of one statement have one transaction id.
    let sql = "SELECT count(DISTINCT xmin::text) FROM feature_state";
    let statements: i64 = world.postgres().await.query_one(sql, &[]).await.unwrap().get(0);
    assert!(statements <= i64::from(SHARDS / 2), "{statements} statements for {SHARDS} lanes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_feature_that_is_in_every_lane_at_once_ends_at_its_newest() {
    let world = World::shared("moved", SHARDS).await;
    let counts = written_together(&world, |shard, n| point(&format!("f{n}"), i64::from(shard) + 1, 4.3, 52.1)).await;
    assert_eq!(counts.applied + counts.stale, u64::from(SHARDS * EACH));
    for n in 0..EACH {
        assert_eq!(world.state(&format!("f{n}")).await, Some((i64::from(SHARDS), "update".into())));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_somebody_has_locked_holds_up_its_own_lane_only() {
    let world = World::shared("locked_row", SHARDS).await;
    world.add(0, &point("locked", 1, 4.3, 52.1)).await;
    // No timeout of the session's may be what frees the others.
    let worker = world.worker().set("STATEMENT_TIMEOUT", "10min").set("REORDER_WINDOW", "0s").ready().await;
    world.drained().await;
    let holder = world.postgres().await;
    holder.batch_execute("BEGIN; SELECT FROM feature_state WHERE feature_id = 'locked' FOR UPDATE").await.unwrap();
    for round in 0..5 {
        for shard in 0..SHARDS {
            world.add(shard, &point(&format!("s{shard}-{round}"), 1, 4.3, 52.1)).await;
            world.add(0, &point("locked", 2 + round, 4.3, 52.1)).await;
        }
    }
    let database = world.postgres().await;
    eventually("the other lanes have landed", async || {
        let sql = "SELECT count(*) FROM feature_state WHERE feature_id ~ '^s[1-9]-'";
        database.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == i64::from(SHARDS - 1) * 5
    })
    .await;
    assert_eq!(world.state("locked").await, Some((1, "update".into())));
    holder.batch_execute("COMMIT").await.unwrap();
    world.drained().await;
    assert_eq!(world.state("locked").await, Some((6, "update".into())));
    worker.stop().await.assert_balanced();
    assert_eq!(world.dead_letters().await.len(), 0);
}

/// One lane's next batches go out beside one that waits, except for what must stay in order.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_waits_holds_up_its_own_features_only() {
    const ROWS: u64 = 10;
    let world = World::shared("in_flight", 1).await;
    world.add(0, &point("f0", 1, 4.3, 52.1)).await;
    let worker = world.worker().set("STATEMENT_TIMEOUT", "10min").set("REORDER_WINDOW", "0s");
    let worker = worker.set("POOL_SIZE", "2").set("BATCH_ROWS", &ROWS.to_string()).ready().await;
    world.drained().await;
    let holder = world.postgres().await;
    holder.batch_execute("BEGIN; SELECT FROM feature_state WHERE feature_id = 'f0' FOR UPDATE").await.unwrap();
    // Fewer than a batch are held up; were they more, the lane would wait for them.
    let half = ROWS / 2;
    let batches = [("f", 2, ROWS), ("g", 1, ROWS), ("f", 3, half), ("h", 1, ROWS)];
    let events: Vec<_> = batches
        .iter()
        .flat_map(|(name, version, rows)| (0..*rows).map(move |n| point(&format!("{name}{n}"), *version, 4.3, 52.1)))
        .collect();
    world.add_together(0, &events).await;
    let database = world.postgres().await;
    let of = async |name: &str| -> i64 {
        let sql = "SELECT count(*) FROM feature_state WHERE feature_id LIKE $1 || '%'";
        database.query_one(sql, &[&name]).await.unwrap().get(0)
    };
    for name in ["g", "h"] {
        eventually(&format!("{name} has landed"), async || of(name).await == ROWS as i64).await;
    }
    world.add(0, &point("i0", 1, 4.3, 52.1)).await;
    eventually("a single one has landed too", async || of("i").await == 1).await;
    assert_eq!(of("f").await, 1, "only what was there");
    holder.batch_execute("COMMIT").await.unwrap();
    world.drained().await;
    for n in 0..ROWS {
        let version = if n < half { 3 } else { 2 };
        assert_eq!(world.state(&format!("f{n}")).await, Some((version, "update".into())));
    }
    let counts = worker.stop().await;
    counts.assert_balanced();
    assert_eq!((counts.applied, counts.stale), (3 * ROWS + half + 2, 0), "each version in its order");
}
