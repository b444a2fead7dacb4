//! A batch makes of its events what they make one by one.

use std::collections::{BTreeMap, HashSet};

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use crate::world::{Counts, World, full, seed};

/// Few features, versions and times, so that nearly every event meets others.
const FEATURES: u8 = 5;
const VERSIONS: u8 = 6;
const TIMES: u8 = 3;

#[derive(Clone, Debug)]
struct Sent {
    feature: u8,
    version: u8,
    time: u8,
    op: &'static str,
    event_id: Option<u8>,
    /// Tells it from all others, in its place.
    number: i32,
}

impl Sent {
    fn text(&self) -> Vec<u8> {
        let Self { feature, version, time, op, number, .. } = self;
        let event_id = self.event_id.map_or(String::new(), |id| format!(r#","event_id":"e{id}""#));
        let geometry = format!(r#"{{"type":"Point","coordinates":[0,{}]}}"#, f64::from(*number) / 64.0);
        format!(
            r#"{{"feature_id":"F{feature}","version":{version},"op":"{op}","observation_time":"2026-01-01T00:00:0{time}Z","geometry":{geometry},"properties":{{"n":{number}}}{event_id}}}"#
        )
        .into_bytes()
    }
}

fn random(rng: &mut StdRng, count: i32, with_ids: bool) -> Vec<Sent> {
    let sent = |number| Sent {
        feature: rng.random_range(0..FEATURES),
        version: rng.random_range(0..VERSIONS),
        time: rng.random_range(0..TIMES),
        op: ["create", "update", "update", "delete"][rng.random_range(0..4)],
        event_id: (with_ids && rng.random_bool(0.6)).then(|| rng.random_range(0..20)),
        number,
    };
    (0..count).map(sent).collect()
}

/// What is stored of a feature: version, time, op and number.
type Row = (i64, i64, String, i64);

/// One by one, by the words of the guarantee: an id that is known counts no more; else the newest
/// (version, time) wins, and of equals the first.
fn one_by_one(sent: &[Sent]) -> (BTreeMap<String, Row>, u64) {
    let mut newest: BTreeMap<u8, &Sent> = BTreeMap::new();
    let mut known = HashSet::new();
    let mut duplicates = 0;
    for event in sent {
        if event.event_id.is_some_and(|id| !known.insert((event.feature, id))) {
            duplicates += 1;
            continue;
        }
        match newest.get(&event.feature) {
            Some(before) if (before.version, before.time) >= (event.version, event.time) => {}
            _ => drop(newest.insert(event.feature, event)),
        }
    }
    let row = |(feature, event): (&u8, &&Sent)| {
        let (version, time) = (i64::from(event.version), i64::from(event.time));
        (format!("F{feature}"), (version, time, event.op.to_owned(), i64::from(event.number)))
    };
    (newest.iter().map(row).collect(), duplicates)
}

async fn stored(world: &World) -> BTreeMap<String, Row> {
    let sql = "SELECT feature_id, version, extract(second FROM observation_time)::bigint, op,
        (properties->>'n')::bigint, (ST_Y(geometry) * 64)::bigint FROM feature_state";
    let rows = world.postgres().await.query(sql, &[]).await.unwrap();
    let row = |row: &tokio_postgres::Row| {
        let (op, number): (String, i64) = (row.get(3), row.get(4));
        let place = (op != "delete").then_some(number);
        assert_eq!(row.get::<_, Option<i64>>(5), place, "properties and place of one event");
        (row.get(0), (row.get(1), row.get(2), op, number))
    };
    rows.iter().map(row).collect()
}

/// All of them lie in one stream, and a worker reads them in batches of the size given.
async fn in_batches(world: &World, sent: &[Sent], rows: usize, window: &str) -> Counts {
    world.sql("TRUNCATE feature_state, processed_event").await;
    world.add_together(0, &sent.iter().map(Sent::text).collect::<Vec<_>>()).await;
    world.worker().set("BATCH_ROWS", &rows.to_string()).set("REORDER_WINDOW", window).once().await
}

const SIZES: [usize; 5] = [1, 2, 7, 40, 1000];

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_worth_its_events_one_by_one() {
    let world = World::shared("equivalence", 1).await;
    let mut rng = StdRng::seed_from_u64(seed());
    // With ids the statement sorts a batch, without them the worker does.
    for round in 0..if full() { 40 } else { 4 } {
        let sent = random(&mut rng, 200, round % 2 == 0);
        let (state, duplicates) = one_by_one(&sent);
        for rows in SIZES {
            for window in ["0s", "50ms"] {
                let counts = in_batches(&world, &sent, rows, window).await;
                assert_eq!(stored(&world).await, state, "batches of {rows}, window {window}: {sent:#?}");
                assert_eq!((counts.read, counts.duplicate, counts.dead_lettered), (200, duplicates, 0), "{counts:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_no_two_are_equal_the_order_does_not_matter() {
    let world = World::shared("equivalence_order", 1).await;
    let mut rng = StdRng::seed_from_u64(seed());
    let mut keys = HashSet::new();
    let mut sent = random(&mut rng, 300, false);
    sent.retain(|event| keys.insert((event.feature, event.version, event.time)));
    let (state, _) = one_by_one(&sent);
    for rows in SIZES {
        for _ in 0..if full() { 10 } else { 2 } {
            sent.shuffle(&mut rng);
            in_batches(&world, &sent, rows, "0s").await;
            assert_eq!(stored(&world).await, state, "batches of {rows}: {sent:#?}");
        }
    }
}
