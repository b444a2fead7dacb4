//! The worker's own work on one core: decoding, validating, encoding.

use std::time::Instant;

use geo::{Coord, LineString, Polygon, Validation};
use hexlane::event::Rejection;
use hexlane::judge::{self, Limits};

use crate::cli::{Common, Judge, Load, Mix};
use crate::report::Report;
use crate::traffic;

/// For positions that are few, so that the clock is not what is measured.
const LEAST_POSITIONS: usize = 20_000;
const LEAST_EVENTS: usize = 200_000;

type Ring = Vec<(f64, f64)>;

/// A shape of about so many positions, and whether it is valid.
struct Shape {
    name: &'static str,
    is_valid: bool,
    rings: fn(usize) -> Vec<Ring>,
}

const SHAPES: [Shape; 7] = [
    Shape { name: "circle", is_valid: true, rings: |n| vec![circle(n)] },
    Shape { name: "circle, two corners exchanged", is_valid: false, rings: crossed },
    Shape { name: "jagged", is_valid: true, rings: |n| vec![jagged(n)] },
    Shape { name: "comb of slanted teeth", is_valid: true, rings: |n| vec![comb(n)] },
    Shape { name: "the same, one tooth across another", is_valid: false, rings: crossed_comb },
    Shape { name: "comb with two holes that touch it", is_valid: true, rings: touched_comb },
    Shape { name: "holes in a chain that closes", is_valid: false, rings: chain },
];

pub fn judge(common: &Common, load: &Judge) -> Report {
    let mut report = Report::default();
    for _ in 0..common.runs {
        for &positions in &load.positions {
            for Shape { name, is_valid, rings } in SHAPES {
                let rings = rings(positions);
                let count: usize = rings.iter().map(Vec::len).sum();
                let event = event(&rings);
                let rounds = (LEAST_POSITIONS / count).max(1);
                assert!(verdict(&event).is_ok() == is_valid, "{name}, {positions}: {:?}", verdict(&event));
                let start = Instant::now();
                for _ in 0..rounds {
                    assert!(verdict(&event).is_ok() == is_valid, "as before");
                }
                let ns = start.elapsed().as_secs_f64() * 1e9 / (rounds * count) as f64;
                report.add(format!("{positions}: {name}"), ns, "ns/position");
            }
        }
        for (mix, name) in [(Mix::Points, "points"), (Mix::Mixed, "mixed")] {
            let events = traffic::generate(&load.traffic(mix)).events;
            let rounds = (LEAST_EVENTS / events.len()).max(1);
            let start = Instant::now();
            for _ in 0..rounds {
                assert!(events.iter().all(|event| verdict(event).is_ok()), "generated events are good");
            }
            report.add(name, (rounds * events.len()) as f64 / start.elapsed().as_secs_f64(), "events/s");
        }
        // What the usual check alone takes for a polygon such as those of the mix.
        let ring: Vec<Coord> =
            around(60, |n| 1.0 + (n * 7919 % 30) as f64 / 50.0).into_iter().map(Coord::from).collect();
        let polygon = Polygon::new(LineString::new(ring), Vec::new());
        let start = Instant::now();
        let valid = (0..1000).filter(|_| std::hint::black_box(&polygon).is_valid()).count();
        assert!(valid == 1000, "it is valid");
        report.add("the geo crate's check of 60 positions", start.elapsed().as_secs_f64() * 1e3, "µs");
    }
    report
}

fn verdict(event: &[u8]) -> Result<hexlane::event::Event, Box<Rejection>> {
    let limits = Limits { max_event_bytes: 16 << 20, max_vertices: 200_000, ..Limits::default() };
    judge::judge(event, i64::MAX, &limits, h3o::Resolution::Seven)
}

fn event(rings: &[Ring]) -> Vec<u8> {
    let ring = |ring: &Ring| {
        let places: Vec<String> = ring.iter().map(|(x, y)| format!("[{x},{y}]")).collect();
        format!("[{}]", places.join(","))
    };
    let rings: Vec<String> = rings.iter().map(ring).collect();
    format!(
        r#"{{"feature_id":"F","version":1,"observation_time":"2026-01-01T00:00:00Z","op":"create","geometry":{{"type":"Polygon","coordinates":[{}]}}}}"#,
        rings.join(",")
    )
    .into_bytes()
}

fn closed(mut ring: Ring) -> Ring {
    ring.extend(ring.first().copied());
    ring
}

fn around(positions: usize, radius: impl Fn(usize) -> f64) -> Ring {
    let corners = positions - 1;
    let angle = |n: usize| n as f64 / corners as f64 * std::f64::consts::TAU;
    closed((0..corners).map(|n| (radius(n) * angle(n).cos(), radius(n) * angle(n).sin())).collect())
}

fn circle(positions: usize) -> Ring {
    around(positions, |_| 40.0)
}

/// Every edge lies near many others.
fn jagged(positions: usize) -> Ring {
    around(positions, |n| 10.0 + (n * 7919 % 30) as f64)
}

fn crossed(positions: usize) -> Vec<Ring> {
    let mut ring = circle(positions);
    ring.swap(positions / 2, positions / 2 + 2);
    vec![ring]
}

/// Teeth that lean so far that the box around each of them lies over those of most others.
fn comb(positions: usize) -> Ring {
    let teeth = (positions - 3) / 2;
    let step = 40.0 / teeth as f64;
    let mut ring = vec![(0.0, -1.0), (80.0, -1.0)];
    for tooth in (0..teeth).rev() {
        let foot = tooth as f64 * step;
        ring.extend([(foot + 0.5 * step + 40.0, 40.0), (foot, 0.0)]);
    }
    closed(ring)
}

/// The tip of a tooth in the middle is moved across its neighbours.
fn crossed_comb(positions: usize) -> Vec<Ring> {
    let mut ring = comb(positions);
    let tip = positions / 4 * 2;
    ring[tip].0 += 1.5 * (ring[tip - 1].0 - ring[tip + 1].0).abs();
    vec![ring]
}

fn touched_comb(positions: usize) -> Vec<Ring> {
    // In one corner of the comb, and with another within one of its edges.
    vec![
        comb(positions),
        closed(vec![(0.0, -1.0), (1.0, -0.5), (0.2, -0.5)]),
        closed(vec![(40.0, -1.0), (41.0, -0.5), (40.2, -0.5)]),
    ]
}

/// Two rows of squares, corner to corner, which cut off what they enclose.
fn chain(positions: usize) -> Vec<Ring> {
    let side = (positions / 10).max(2);
    let diamond = |x: usize, y: usize| {
        let (x, y) = (x as f64, y as f64);
        closed(vec![(x, y), (x + 1.0, y + 1.0), (x + 2.0, y), (x + 1.0, y - 1.0)])
    };
    let scale = 80.0 / (2.0 * side as f64 + 4.0);
    let mut rings =
        vec![closed(vec![(-2.0, -2.0), (2.0 * side as f64 + 4.0, -2.0), (2.0 * side as f64 + 4.0, 6.0), (-2.0, 6.0)])];
    rings.extend((0..side).map(|n| diamond(2 * n, 0)));
    rings.extend((0..side).map(|n| diamond(2 * n, 2)));
    for ring in &mut rings {
        ring.iter_mut().for_each(|place| *place = (place.0 * scale, place.1 * scale));
    }
    rings
}

impl Judge {
    fn traffic(&self, mix: Mix) -> Load {
        Load {
            events: self.events,
            features: (self.events as u64 / 5).max(1),
            shards: 16,
            workers: 1,
            mix,
            duplicates: 0.2,
            late: 0.1,
            hot: 0.0,
            event_ids: false,
            seed: 1,
            first_version: 0,
        }
    }
}
