use std::fmt::Write;

use crate::world::{World, event, eventually, point};

const SHARDS: u16 = 4;
/// The one without large geometries.
const LIGHT: u16 = 3;
/// Together more than a worker may hold.
const CIRCLES: u16 = 64;

/// One ring, each corner given by its number.
fn ring(corners: usize, corner: impl Fn(usize) -> (f64, f64)) -> String {
    let mut text = String::with_capacity(corners * 24);
    for n in (0..corners).chain([0]) {
        let (x, y) = corner(n);
        let _ = write!(text, "{}[{x:.8},{y:.8}]", if n == 0 && text.is_empty() { "[" } else { "," });
    }
    text.push(']');
    text
}

fn square(x: f64, y: f64, side: f64) -> String {
    ring(4, |n| [(x, y), (x + side, y), (x + side, y + side), (x, y + side)][n])
}

/// Every `skipped`-th of the corners of a regular polygon, which makes a circle or a star of it.
fn round(corners: usize, skipped: usize) -> String {
    let step = std::f64::consts::TAU / corners as f64;
    let corner = |n: usize| ((n * skipped) % corners) as f64 * step;
    let ring = ring(corners, |n| (10.0 + corner(n).cos(), 50.0 + corner(n).sin()));
    format!(r#"{{"type":"Polygon","coordinates":[{ring}]}}"#)
}

fn holes(count: usize) -> String {
    let holes = (0..count).map(|n| square((n % 100) as f64 * 0.02 + 0.01, (n / 100) as f64 * 0.02 + 0.01, 0.01));
    let rings: Vec<String> = std::iter::once(square(0.0, 0.0, 3.0)).chain(holes).collect();
    format!(r#"{{"type":"Polygon","coordinates":[{}]}}"#, rings.join(","))
}

fn parts(count: usize) -> String {
    let parts = (0..count).map(|n| format!("[{}]", square((n % 100) as f64 * 0.02, (n / 100) as f64 * 0.02, 0.01)));
    format!(r#"{{"type":"MultiPolygon","coordinates":[{}]}}"#, parts.collect::<Vec<_>>().join(","))
}

/// Neither the database's limit of bind values nor anything else makes a large batch fail.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_events_are_one_batch() {
    let world = World::shared("fault_batch", 1).await;
    let events: Vec<Vec<u8>> = (0..10_000).map(|n| point(&format!("p{n}"), 1, 4.3, 52.1)).collect();
    world.add_together(0, &events).await;
    let counts = world.worker().set("BATCH_ROWS", "10000").set("REORDER_WINDOW", "0s").once().await;
    assert_eq!((counts.read, counts.applied), (10_000, 10_000), "{counts:?}");
}

/// Many times the largest geometry in three of the streams; heavy shapes of several kinds; points in
/// all of them; SIGTERM in the middle.
#[tokio::test(flavor = "multi_thread")]
async fn huge_geometries_fit_into_little_memory_and_hold_up_no_other_lane() {
    let world = World::shared("fault_size", SHARDS).await;
    let circle = round(90_000, 1);
    for n in 0..CIRCLES {
        world.add(n % LIGHT, &event(&format!("circle-{n}"), 1, "update", &circle, "")).await;
    }
    let heavy = [
        ("star", round(89_999, 44_999), false),
        ("holes", holes(5000), true),
        ("parts", parts(10_000), true),
        ("too many", round(100_001, 1), false),
    ];
    for (id, geometry, _) in &heavy {
        world.add(0, &event(id, 1, "update", geometry, "")).await;
    }
    // Many digits, so that it is the bytes that are too many.
    let long = circle.replace("],[", &format!("{}],[", "0".repeat(40)));
    world.add(0, &event("too long", 1, "update", &long, "")).await;
    for shard in 0..SHARDS {
        let points: Vec<Vec<u8>> = (0..500).map(|n| point(&format!("p{shard}-{n}"), 1, 4.3, 52.1)).collect();
        world.add_together(shard, &points).await;
    }
    let stored = async |like: &str| -> i64 {
        let sql = "SELECT count(*) FROM feature_state WHERE feature_id LIKE $1";
        world.postgres().await.query_one(sql, &[&like]).await.unwrap().get(0)
    };

    let first = world.worker().set("WORKER_NAME", "first").ready().await;
    first.until_metric("hexlane_lanes_owned", f64::from(SHARDS)).await;
    let owner = async |shard: u16| world.ask::<Option<String>>(&format!("GET {}", world.owner_key(shard))).await;
    let mut owners = Vec::new();
    for shard in 0..SHARDS {
        owners.push(owner(shard).await);
    }
    eventually("the lane without large ones goes on", async || stored(&format!("p{LIGHT}-%")).await == 500).await;
    assert!(stored("circle-%").await < i64::from(CIRCLES), "and does not wait for the others");
    eventually("a quarter of the circles are there", async || {
        for (shard, before) in (0..SHARDS).zip(&owners) {
            assert_eq!(owner(shard).await, *before, "shard {shard} changed its owner");
        }
        stored("circle-%").await * 4 >= i64::from(CIRCLES)
    })
    .await;
    let peak = first.peak_mib();
    first.stop().await.assert_balanced();
    assert!(stored("%").await < i64::from(CIRCLES) + 500 * i64::from(SHARDS), "it was to be stopped in the middle");
    assert!(peak < 256.0, "{peak} MiB");

    let second = world.worker().set("WORKER_NAME", "second").ready().await;
    world.drained().await;
    assert!(second.peak_mib() < 256.0, "{} MiB", second.peak_mib());
    second.stop().await.assert_balanced();
    for (id, _, lands) in &heavy {
        assert_eq!(world.state(id).await.is_some(), *lands, "{id}");
    }
    let mut reasons: Vec<(String, String)> =
        world.dead_letters().await.iter().map(|l| (l.text("dead:feature_id"), l.reason())).collect();
    reasons.sort();
    let wanted = [("", "too_large"), ("star", "invalid_topology"), ("too many", "too_many_vertices")];
    assert_eq!(reasons, wanted.map(|(id, reason)| (id.to_owned(), reason.to_owned())));
    assert_eq!(stored("%").await, i64::from(CIRCLES) + 2 + 500 * i64::from(SHARDS));
}
