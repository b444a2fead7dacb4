//! Polygons of small integers, which touch, fold and cross in every way: the verdict is that of GEOS.
#![no_main]

use arbitrary::Arbitrary;
use geos::Geom;
use h3o::Resolution;
use hexlane::event::Reason;
use hexlane::judge::{Limits, judge};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    step: Step,
    /// Around 0, where ordinates have many exponents.
    around_0: bool,
    polygons: Vec<Vec<Ring>>,
}

/// Tenths and thirds cannot be written exactly, so that what looks collinear is not quite.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Step {
    One,
    Tenth,
    Third,
    Sixtieth,
}

impl Step {
    fn size(self) -> f64 {
        match self {
            Self::One => 1.0,
            Self::Tenth => 0.1,
            Self::Third => 1.0 / 3.0,
            Self::Sixtieth => 1.0 / 60.0,
        }
    }
}

#[derive(Arbitrary, Debug)]
enum Ring {
    Any(Vec<(u8, u8)>),
    Square { x: u8, y: u8, size: u8 },
    Diamond { x: u8, y: u8, size: u8 },
    Triangle { x: u8, y: u8, size: u8 },
}

impl Ring {
    fn corners(&self, size: u8) -> Vec<(u8, u8)> {
        let small = |size: &u8| size % 3 + 1;
        let mut corners = match self {
            Self::Any(corners) => corners.iter().map(|(x, y)| (x % size, y % size)).collect(),
            Self::Square { x, y, size: 255 } => {
                return vec![(0, 0), (x % 64 + 20, 0), (x % 64 + 20, y % 64 + 20), (0, y % 64 + 20), (0, 0)];
            }
            Self::Square { x, y, size: side } => {
                let (x, y, side) = (x % size, y % size, small(side));
                vec![(x, y), (x + side, y), (x + side, y + side), (x, y + side)]
            }
            Self::Diamond { x, y, size: side } => {
                let (x, y, side) = (x % size, y % size, small(side));
                vec![(x + side, y), (x + 2 * side, y + side), (x + side, y + 2 * side), (x, y + side)]
            }
            Self::Triangle { x, y, size: side } => {
                let (x, y, side) = (x % size, y % size, small(side));
                vec![(x, y), (x + side, y), (x, y + side)]
            }
        };
        corners.extend(corners.first().copied());
        corners
    }
}

fuzz_target!(|input: Input| {
    const GRID: u8 = 12;
    let from = if input.around_0 { 6.0 } else { 0.0 };
    let scale = |n: u8| ((f64::from(n) - from) * input.step.size()).to_string();
    let polygons: Vec<Vec<Vec<(u8, u8)>>> =
        input.polygons.iter().map(|rings| rings.iter().map(|ring| ring.corners(GRID)).collect()).collect();
    let is_right = |rings: &Vec<Vec<(u8, u8)>>| !rings.is_empty() && rings.iter().all(|ring| ring.len() > 3);
    if polygons.is_empty() || !polygons.iter().all(is_right) {
        return;
    }
    let text = |open: &str, close: &str, between: &str| {
        let ring = |ring: &Vec<(u8, u8)>| {
            let places: Vec<String> = ring
                .iter()
                .map(|(x, y)| {
                    format!(
                        "{}{}{between}{}{}",
                        if open == "[" { "[" } else { "" },
                        scale(*x),
                        scale(*y),
                        if open == "[" { "]" } else { "" }
                    )
                })
                .collect();
            format!("{open}{}{close}", places.join(","))
        };
        let polygon = |rings: &Vec<Vec<(u8, u8)>>| {
            format!("{open}{}{close}", rings.iter().map(ring).collect::<Vec<_>>().join(","))
        };
        format!("{open}{}{close}", polygons.iter().map(polygon).collect::<Vec<_>>().join(","))
    };
    let event = format!(
        r#"{{"feature_id":"F","version":1,"op":"create","observation_time":"2026-01-01T00:00:00Z","geometry":{{"type":"MultiPolygon","coordinates":{}}}}}"#,
        text("[", "]", ",")
    );
    let geos = geos::Geometry::new_from_wkt(&format!("MULTIPOLYGON {}", text("(", ")", " "))).expect("good WKT");
    let is_valid = geos.is_valid().expect("GEOS answers");
    match judge(event.as_bytes(), i64::MAX, &Limits::default(), Resolution::Seven) {
        Ok(_) => assert!(is_valid, "{}", geos.is_valid_reason().unwrap_or_default()),
        Err(rejection) => {
            assert_eq!((rejection.reason, is_valid), (Reason::InvalidTopology, false), "{}", rejection.detail);
        }
    }
});
