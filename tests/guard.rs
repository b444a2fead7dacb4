//! The guard: what is late or comes twice changes nothing, whichever way it arrives.
//!
//! Each case goes once through the write functions, once through streams one event at a time, and
//! once through streams in one batch.

use std::time::Duration;

use hexlane::event::{Event, Outcome};
use hexlane::judge::{self, Limits};
use hexlane::store::{Store, StoreSettings};

use crate::world::{Counts, World, delete, event, point};

const POINT: &str = r#"{"type":"Point","coordinates":[4.3,52.1]}"#;

fn create(feature_id: &str, version: i64) -> Vec<u8> {
    event(feature_id, version, "create", POINT, "")
}

fn identified(feature_id: &str, version: i64, event_id: &str) -> Vec<u8> {
    event(feature_id, version, "update", POINT, &format!(r#","event_id":"{event_id}""#))
}

/// The store on its own, as the lane uses it.
struct Written {
    world: World,
    store: Store,
}

impl Written {
    async fn new(name: &str) -> Self {
        let world = World::shared(name, 1).await;
        let settings = StoreSettings {
            url: world.database_url.clone(),
            password: None,
            application_name: "guard test".into(),
            pool_size: 2,
            statement_timeout: Duration::from_secs(30),
            dedup_window: Duration::from_secs(3600),
            transaction_pooling: false,
        };
        Self { store: Store::open(&settings).await.unwrap(), world }
    }

    /// Whether one event was written.
    async fn newest(&self, event: &[u8]) -> bool {
        self.store.writer().await.unwrap().write_newest(&[&judged(event)], None).await.unwrap()[0]
    }

    /// The outcomes of one statement.
    async fn ledger(&self, events: &[Vec<u8>]) -> Vec<Outcome> {
        let events: Vec<Event> = events.iter().map(|event| judged(event)).collect();
        let events: Vec<&Event> = events.iter().collect();
        self.store.writer().await.unwrap().write_with_ledger(&events, None).await.unwrap()
    }

    async fn ledger_one(&self, event: Vec<u8>) -> Outcome {
        self.ledger(&[event]).await[0]
    }
}

fn judged(event: &[u8]) -> Event {
    judge::judge(event, i64::MAX, &Limits::default(), h3o::Resolution::Seven).unwrap()
}

/// Sends events and drains them; several form one batch. Without a window, because it might have
/// passed for the first and not for the last of them.
async fn through_streams(world: &World, events: &[Vec<u8>]) -> Counts {
    for event in events {
        world.add(0, event).await;
    }
    let counts = world.worker().set("REORDER_WINDOW", "0s").once().await;
    assert_eq!((counts.read, counts.settled(), world.pending().await), (events.len() as u64, counts.read, 0));
    counts
}

fn counts(applied: u64, superseded: u64, stale: u64, duplicate: u64) -> Counts {
    let read = applied + superseded + stale + duplicate;
    Counts { read, applied, superseded, stale, duplicate, ..Counts::default() }
}

async fn is_visible(world: &World, feature_id: &str) -> bool {
    let sql = "SELECT 1 FROM feature WHERE feature_id = $1";
    world.postgres().await.query_opt(sql, &[&feature_id]).await.unwrap().is_some()
}

async fn place(world: &World, feature_id: &str) -> String {
    let sql = "SELECT ST_AsText(geometry) FROM feature WHERE feature_id = $1";
    world.postgres().await.query_one(sql, &[&feature_id]).await.unwrap().get(0)
}

fn is(version: i64, op: &str) -> Option<(i64, String)> {
    Some((version, op.to_owned()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_create_is_stale_in_the_write() {
    let written = Written::new("late_write").await;
    assert!(written.newest(&point("A", 2, 4.3, 52.1)).await);
    assert!(!written.newest(&create("A", 1)).await);
    assert!(!written.newest(&point("A", 2, 4.3, 52.1)).await, "an exact duplicate");
    assert_eq!(written.world.state("A").await, is(2, "update"));

    assert_eq!(written.ledger_one(point("B", 2, 4.3, 52.1)).await, Outcome::Applied);
    assert_eq!(written.ledger_one(create("B", 1)).await, Outcome::Stale);
    assert_eq!(written.ledger_one(point("B", 2, 4.3, 52.1)).await, Outcome::Stale, "an exact duplicate");
    assert_eq!(written.world.state("B").await, is(2, "update"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_create_is_stale_in_a_stream() {
    let world = World::shared("late_stream", 1).await;
    assert_eq!(through_streams(&world, &[point("A", 2, 4.3, 52.1)]).await, counts(1, 0, 0, 0));
    assert_eq!(through_streams(&world, &[create("A", 1)]).await, counts(0, 0, 1, 0));
    assert_eq!(through_streams(&world, &[point("A", 2, 4.3, 52.1)]).await, counts(0, 0, 1, 0));
    assert_eq!(world.state("A").await, is(2, "update"));

    let batch = [point("B", 2, 4.3, 52.1), create("B", 1), point("B", 2, 4.3, 52.1)];
    assert_eq!(through_streams(&world, &batch).await, counts(1, 2, 0, 0));
    assert_eq!(world.state("B").await, is(2, "update"));
    assert!(world.dead_letters().await.is_empty(), "late is no defect");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_feature_stays_deleted_in_the_write() {
    let written = Written::new("deleted_write").await;
    assert!(written.newest(&delete("A", 3)).await);
    assert!(!written.newest(&point("A", 2, 4.3, 52.1)).await);
    assert!(!written.newest(&create("A", 1)).await);
    assert_eq!(written.world.state("A").await, is(3, "delete"));
    assert!(!is_visible(&written.world, "A").await);
    assert!(written.newest(&create("A", 4)).await);
    assert_eq!(written.world.state("A").await, is(4, "create"));
    assert!(is_visible(&written.world, "A").await);

    let mut outcomes = Vec::new();
    for late in [delete("B", 3), point("B", 2, 4.3, 52.1), create("B", 1), create("B", 4)] {
        outcomes.push(written.ledger_one(late).await);
    }
    assert_eq!(outcomes, [Outcome::Applied, Outcome::Stale, Outcome::Stale, Outcome::Applied]);
    assert_eq!(written.world.state("B").await, is(4, "create"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_feature_stays_deleted_in_a_stream() {
    let world = World::shared("deleted_stream", 1).await;
    for (late, wanted) in [(delete("A", 3), counts(1, 0, 0, 0)), (point("A", 2, 4.3, 52.1), counts(0, 0, 1, 0))] {
        assert_eq!(through_streams(&world, &[late]).await, wanted);
    }
    assert_eq!(through_streams(&world, &[create("A", 1)]).await, counts(0, 0, 1, 0));
    assert_eq!(world.state("A").await, is(3, "delete"));
    assert!(!is_visible(&world, "A").await);
    assert_eq!(through_streams(&world, &[create("A", 4)]).await, counts(1, 0, 0, 0));
    assert_eq!(world.state("A").await, is(4, "create"));
    assert!(is_visible(&world, "A").await);

    let batch = [delete("B", 3), point("B", 2, 4.3, 52.1), create("B", 1)];
    assert_eq!(through_streams(&world, &batch).await, counts(1, 2, 0, 0));
    assert_eq!(world.state("B").await, is(3, "delete"));
    assert!(!is_visible(&world, "B").await);
    assert_eq!(through_streams(&world, &[create("B", 4)]).await, counts(1, 0, 0, 0));
    assert!(is_visible(&world, "B").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_equal_keys_the_first_one_stays() {
    let written = Written::new("equal").await;
    let (first, second) = (point("A", 1, 1.0, 1.0), point("A", 1, 2.0, 2.0));
    assert!(written.newest(&first).await);
    assert!(!written.newest(&second).await);
    assert_eq!(place(&written.world, "A").await, "POINT(1 1)");

    let both = [point("B", 1, 1.0, 1.0), point("B", 1, 2.0, 2.0)];
    assert_eq!(written.ledger(&both).await, [Outcome::Applied, Outcome::Superseded]);
    assert_eq!(place(&written.world, "B").await, "POINT(1 1)");

    let both = [point("C", 1, 1.0, 1.0), point("C", 1, 2.0, 2.0)];
    assert_eq!(through_streams(&written.world, &both).await, counts(1, 1, 0, 0));
    assert_eq!(through_streams(&written.world, &both[1..]).await, counts(0, 0, 1, 0));
    assert_eq!(place(&written.world, "C").await, "POINT(1 1)");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_equal_versions_the_later_instant_wins() {
    let world = World::shared("instant", 1).await;
    let at = |time: &str, lon: u8| {
        let geometry = format!(r#"{{"type":"Point","coordinates":[{lon},1]}}"#);
        format!(r#"{{"feature_id":"A","version":1,"op":"update","observation_time":"{time}","geometry":{geometry}}}"#)
            .into_bytes()
    };
    assert_eq!(through_streams(&world, &[at("2026-01-01T12:00:00Z", 1)]).await, counts(1, 0, 0, 0));
    // The text sorts later, the instant is earlier.
    assert_eq!(through_streams(&world, &[at("2026-01-01T13:59:59+02:00", 2)]).await, counts(0, 0, 1, 0));
    // Times are cut to microseconds, so this is the same instant.
    assert_eq!(through_streams(&world, &[at("2026-01-01T12:00:00.0000009Z", 3)]).await, counts(0, 0, 1, 0));
    assert_eq!(place(&world, "A").await, "POINT(1 1)");
    assert_eq!(through_streams(&world, &[at("2026-01-01T12:00:00.000001Z", 4)]).await, counts(1, 0, 0, 0));
    assert_eq!(place(&world, "A").await, "POINT(4 1)");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_known_event_id_is_a_duplicate_whatever_its_version() {
    let written = Written::new("ledger").await;
    assert_eq!(written.ledger_one(identified("A", 1, "x")).await, Outcome::Applied);
    assert_eq!(written.ledger_one(identified("A", 2, "x")).await, Outcome::Duplicate);
    assert_eq!(written.world.state("A").await, is(1, "update"));

    // Across runs, and in one batch.
    assert_eq!(through_streams(&written.world, &[identified("B", 1, "x")]).await, counts(1, 0, 0, 0));
    assert_eq!(through_streams(&written.world, &[identified("B", 2, "x")]).await, counts(0, 0, 0, 1));
    assert_eq!(written.world.state("B").await, is(1, "update"));
    let batch = [identified("C", 1, "x"), identified("C", 2, "x"), identified("C", 3, "x")];
    assert_eq!(through_streams(&written.world, &batch).await, counts(1, 0, 0, 2));
    assert_eq!(written.world.state("C").await, is(1, "update"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_id_counts_for_each_feature() {
    let world = World::shared("ledger_features", 1).await;
    let batch = [identified("A", 1, "x"), identified("B", 1, "x"), identified("C", 1, "x")];
    assert_eq!(through_streams(&world, &batch).await, counts(3, 0, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_id_is_remembered_too() {
    let world = World::shared("ledger_late", 1).await;
    let batch = [identified("A", 3, "x"), identified("A", 2, "y")];
    assert_eq!(through_streams(&world, &batch).await, counts(1, 1, 0, 0));
    assert_eq!(through_streams(&world, &[identified("A", 1, "z")]).await, counts(0, 0, 1, 0));
    let again = [identified("A", 4, "x"), identified("A", 5, "y"), identified("A", 6, "z")];
    assert_eq!(through_streams(&world, &again).await, counts(0, 0, 0, 3));
    assert_eq!(world.state("A").await, is(3, "update"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redelivery_never_displaces_a_good_event() {
    // Coalesced first, the copy of x would win the batch, and then be dropped as a duplicate.
    let world = World::shared("ledger_displaced", 1).await;
    assert_eq!(through_streams(&world, &[identified("A", 1, "x")]).await, counts(1, 0, 0, 0));
    let batch = [identified("A", 2, "y"), identified("A", 3, "x")];
    assert_eq!(through_streams(&world, &batch).await, counts(1, 0, 0, 1));
    assert_eq!(world.state("A").await, is(2, "update"));

    let written = Written::new("ledger_displaced_write").await;
    assert_eq!(written.ledger_one(identified("A", 1, "x")).await, Outcome::Applied);
    assert_eq!(written.ledger(&batch).await, [Outcome::Applied, Outcome::Duplicate]);
    assert_eq!(written.world.state("A").await, is(2, "update"));
}

#[tokio::test(flavor = "multi_thread")]
async fn events_with_and_without_an_id_share_a_batch() {
    let world = World::shared("ledger_mixed", 1).await;
    let batch = [identified("A", 1, "x"), point("A", 2, 4.3, 52.1), point("B", 1, 4.3, 52.1), identified("A", 3, "x")];
    assert_eq!(through_streams(&world, &batch).await, counts(2, 1, 0, 1));
    assert_eq!(world.state("A").await, is(2, "update"));
    assert_eq!(world.state("B").await, is(1, "update"));
}
