use crate::world::{World, eventually, point};

const MISSING: &str = "hexlane_missing_total";

async fn add(world: &World, from: i64, count: i64) {
    let events: Vec<Vec<u8>> = (from..from + count).map(|n| point(&format!("f{n}"), 1, 4.3, 52.1)).collect();
    world.add_together(0, &events).await;
}

async fn trim_to(world: &World, length: usize) {
    let _: i64 = world.ask(&format!("XTRIM {} MAXLEN {length}", world.events_key(0))).await;
}

async fn rows(world: &World) -> i64 {
    world.postgres().await.query_one("SELECT count(*) FROM feature_state", &[]).await.unwrap().get(0)
}

fn told(worker: &crate::world::Worker) -> Vec<u64> {
    let line = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).ok()?;
        line["fields"]["missing"].as_u64()
    };
    worker.log().lines().filter_map(line).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_trimmed_unread_is_told_once() {
    let world = World::shared("gap", 1).await;
    add(&world, 0, 50).await;
    assert_eq!(world.worker().once().await.applied, 50);
    add(&world, 50, 100).await;
    trim_to(&world, 10).await;
    let worker = world.worker().set("MIN_IDLE", "200ms").ready().await;
    eventually("the ten are there", async || rows(&world).await == 60).await;
    worker.until_metric(MISSING, 90.0).await;
    assert_eq!(told(&worker), [90]);

    // Nothing of what comes later is missed, settled, trimmed or not.
    add(&world, 150, 20).await;
    eventually("twenty more", async || rows(&world).await == 80).await;
    world.drained().await;
    trim_to(&world, 0).await;
    add(&world, 170, 20).await;
    eventually("and twenty more", async || rows(&world).await == 100).await;
    worker.stop().await.assert_balanced();

    // All of it.
    add(&world, 190, 30).await;
    trim_to(&world, 0).await;
    let worker = world.worker().set("MIN_IDLE", "200ms").ready().await;
    worker.until_metric(MISSING, 30.0).await;
    add(&world, 220, 5).await;
    eventually("the next ones land", async || rows(&world).await == 105).await;
    world.drained().await;
    assert_eq!(told(&worker), [30]);
    worker.stop().await.assert_balanced();
}

/// Our own trimming, a second group that lags, a rewind: no gap is seen where there is none.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_missed_where_nothing_is_missing() {
    let world = World::shared("no_gap", 1).await;
    let worker = world.worker().set("MIN_IDLE", "100ms").set("RETENTION", "100ms").ready().await;
    for round in 0..20 {
        add(&world, round * 50, 50).await;
        eventually("they land", async || rows(&world).await == (round + 1) * 50).await;
        if round % 5 == 4 {
            world.hexlane(&["rewind", "--to", "0"]).await;
        }
    }
    world.drained().await;
    let deleted = world.add(0, &point("read", 1, 4.3, 52.1)).await;
    world.drained().await;
    let _: i64 = world.ask(&format!("XDEL {} {deleted}", world.events_key(0))).await;
    add(&world, 1000, 5).await;
    world.drained().await;
    assert_eq!((told(&worker), worker.metric(MISSING).await), (vec![], Some(0.0)));
    worker.stop().await.assert_balanced();
}
