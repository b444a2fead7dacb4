//! A seeded stream of events, and the state it must end in.

use std::collections::HashMap;

use chrono::{DateTime, SecondsFormat};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::cli::{Giant, Load, Mix};

/// Late events and copies come at most this many places after their turn.
const FURTHEST: f64 = 5000.0;
/// Long enough ago that no version's time lies ahead of the clock: each version takes a second.
const START_MS: i64 = 1_700_000_000_000;
pub const WEST: f64 = -5.0;
pub const EAST: f64 = 15.0;
pub const SOUTH: f64 = 44.0;
pub const NORTH: f64 = 55.0;
const LINE_POSITIONS: usize = 20;
const RING_POSITIONS: usize = 60;

/// Events in the order in which they are published.
pub struct Traffic {
    pub events: Vec<Vec<u8>>,
    /// The newest version of each feature that has an event, and whether it is a delete.
    pub newest: HashMap<String, (i64, bool)>,
}

pub fn name(feature: u64) -> String {
    format!("vehicle-{feature:07}")
}

pub fn generate(load: &Load) -> Traffic {
    let mut random = SmallRng::seed_from_u64(load.seed);
    let originals = (load.events as f64 * (1.0 - load.duplicates)).round() as usize;
    let mut versions: HashMap<u64, i64> = HashMap::new();
    let mut newest = HashMap::new();
    let mut queue: Vec<(f64, Vec<u8>)> = Vec::with_capacity(load.events);
    for n in 0..originals {
        let hot = load.hot > 0.0 && random.random_bool(load.hot);
        let feature = if hot { 0 } else { random.random_range(0..load.features) };
        let version = versions.entry(feature).or_insert(load.first_version);
        *version += 1;
        let deleted = *version > 1 && random.random_bool(0.01);
        newest.insert(name(feature), (*version, deleted));
        let event = event(load, feature, *version, deleted, &mut random);
        let late = if random.random_bool(load.late) { random.random_range(1.0..FURTHEST) } else { 0.0 };
        queue.push((n as f64 + late, event));
    }
    for _ in originals..load.events {
        let (place, event) = &queue[random.random_range(0..originals)];
        let copy = (place + random.random_range(1.0..FURTHEST), event.clone());
        queue.push(copy);
    }
    queue.sort_by(|a, b| a.0.total_cmp(&b.0));
    Traffic { events: queue.into_iter().map(|(_, event)| event).collect(), newest }
}

/// One event of each feature, in the features' order, and the giant in between.
pub fn one_each(load: &Load, giant: Option<Giant>) -> Traffic {
    let mut random = SmallRng::seed_from_u64(load.seed);
    let version = load.first_version + 1;
    let mut traffic = Traffic { events: Vec::new(), newest: HashMap::new() };
    for feature in 0..load.features {
        traffic.events.push(event(load, feature, version, false, &mut random));
        traffic.newest.insert(name(feature), (version, false));
        if let Some(Giant { positions, after }) = giant
            && (feature as usize + 1).is_multiple_of(after)
        {
            let version = load.first_version + (feature as usize + 1).div_euclid(after) as i64;
            traffic.events.push(giant_event(version, positions));
            traffic.newest.insert(GIANT.to_owned(), (version, false));
        }
    }
    traffic
}

const GIANT: &str = "giant";

fn giant_event(version: i64, positions: usize) -> Vec<u8> {
    let corners = positions - 1;
    let ring: Vec<String> = (0..positions)
        .map(|n| (n % corners) as f64 / corners as f64 * std::f64::consts::TAU)
        .map(|angle| format!("[{:.7},{:.7}]", 5.0 + 0.5 * angle.cos(), 50.0 + 0.5 * angle.sin()))
        .collect();
    format!(
        r#"{{"feature_id":"{GIANT}","version":{version},"observation_time":"2026-01-01T00:00:00Z","op":"update","geometry":{{"type":"Polygon","coordinates":[[{}]]}}}}"#,
        ring.join(",")
    )
    .into_bytes()
}

fn event(load: &Load, feature: u64, version: i64, deleted: bool, random: &mut SmallRng) -> Vec<u8> {
    let time = DateTime::from_timestamp_millis(START_MS + version * 1000).unwrap_or_default();
    let time = time.to_rfc3339_opts(SecondsFormat::Millis, true);
    let op = match (deleted, version) {
        (true, _) => "delete",
        (false, 1) => "create",
        _ => "update",
    };
    let id = if load.event_ids { format!(",\"event_id\":\"{:032x}\"", random.random::<u128>()) } else { String::new() };
    let head = format!(
        r#"{{"feature_id":"{}","version":{version},"observation_time":"{time}","op":"{op}"{id}"#,
        name(feature)
    );
    let geometry = if deleted { "null".to_owned() } else { geometry(load, feature, random) };
    let speed = random.random_range(0..300);
    format!(
        r#"{head},"geometry":{geometry},"properties":{{"kind":"bus","line":"{}","speed":{}.{}}}}}"#,
        feature % 300,
        speed / 10,
        speed % 10
    )
    .into_bytes()
}

/// Near the feature's own place, which lies somewhere in western Europe.
fn geometry(load: &Load, feature: u64, random: &mut SmallRng) -> String {
    let mut home = SmallRng::seed_from_u64(feature);
    let (x, y) = (home.random_range(WEST..EAST), home.random_range(SOUTH..NORTH));
    let mut near = |spread: f64| random.random_range(-spread..spread);
    let (x, y) = (x + near(1e-4), y + near(1e-4));
    let kind = match load.mix {
        Mix::Points => 0.0,
        Mix::Mixed => home.random_range(0.0..1.0),
    };
    if kind < 0.7 {
        return format!(r#"{{"type":"Point","coordinates":[{x:.6},{y:.6}]}}"#);
    }
    if kind < 0.9 {
        let positions: Vec<String> =
            (0..LINE_POSITIONS).map(|n| format!("[{:.6},{:.6}]", x + n as f64 * 1e-4, y + near(1e-4))).collect();
        return format!(r#"{{"type":"LineString","coordinates":[{}]}}"#, positions.join(","));
    }
    let mut ring: Vec<String> = (0..RING_POSITIONS - 1)
        .map(|n| {
            let angle = n as f64 / (RING_POSITIONS - 1) as f64 * std::f64::consts::TAU;
            let radius = 1e-3 + near(3e-4);
            format!("[{:.6},{:.6}]", x + radius * angle.cos(), y + radius * angle.sin())
        })
        .collect();
    ring.push(ring[0].clone());
    format!(r#"{{"type":"Polygon","coordinates":[[{}]]}}"#, ring.join(","))
}
