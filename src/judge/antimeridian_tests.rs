#![allow(clippy::unwrap_used, clippy::panic)]
use super::antimeridian::split;
use super::geometry::{self, Geometry, Kind, Position};
use super::{Antimeridian, Fault, Limits, encode, validity};
use crate::event::Reason;

fn cut(text: &str) -> Result<Geometry, Fault> {
    let limits = Limits { antimeridian: Antimeridian::Split, ..Limits::default() };
    geometry::parse(text, &limits)
}

/// Cuts, and makes sure that what comes out is valid and has nothing left to cut.
fn kind(text: &str) -> Kind {
    let geometry = cut(text).unwrap();
    validity::check(&geometry, &encode::encode(&geometry).unwrap().footprint).unwrap();
    assert_eq!(split(geometry.clone()).unwrap(), geometry, "idempotent");
    geometry.kind
}

fn polygon(rings: &str) -> String {
    format!(r#"{{"type":"Polygon","coordinates":{rings}}}"#)
}

fn flat(ring: &[Position]) -> Vec<(f64, f64)> {
    ring.iter().map(|place| (place.x, place.y)).collect()
}

/// Twice the area.
fn area(polygons: &[Vec<Vec<Position>>]) -> f64 {
    let ring = |ring: &Vec<Position>| ring.windows(2).map(|e| e[0].x * e[1].y - e[1].x * e[0].y).sum::<f64>().abs();
    polygons.iter().map(|rings| ring(&rings[0]) - rings[1..].iter().map(ring).sum::<f64>()).sum()
}

#[test]
fn lines_are_cut_with_their_heights() {
    let line = r#"{"type":"LineString","coordinates":[[170,0,0],[179,10,100],[-179,20,300],[-178,20,0],[178,24,8]]}"#;
    let Kind::MultiLineString(lines) = kind(line) else { panic!("{:?}", kind(line)) };
    let [first, second, third] = &lines[..] else { panic!("{lines:?}") };
    let place = |x, y, z| Position { x, y, z };
    assert_eq!(first[1..], [place(179.0, 10.0, 100.0), place(180.0, 15.0, 200.0)]);
    assert_eq!(second[..2], [place(-180.0, 15.0, 200.0), place(-179.0, 20.0, 300.0)]);
    assert_eq!((second[3], third[0]), (place(-180.0, 22.0, 4.0), place(180.0, 22.0, 4.0)));
    let other_way = r#"{"type":"LineString","coordinates":[[-179,0],[180,1],[179,2]]}"#;
    let Kind::MultiLineString(lines) = kind(other_way) else { panic!() };
    assert_eq!(flat(&lines[0]), [(-179.0, 0.0), (-180.0, 1.0)]);
    assert_eq!(flat(&lines[1]), [(180.0, 1.0), (179.0, 2.0)]);
}

#[test]
fn a_line_that_only_touches_stays_one() {
    let Kind::LineString(line) = kind(r#"{"type":"LineString","coordinates":[[-179,0],[180,1],[-179,2]]}"#) else {
        panic!()
    };
    assert_eq!(flat(&line), [(-179.0, 0.0), (-180.0, 1.0), (-179.0, 2.0)]);
}

#[test]
fn lines_along_and_right_beside_the_antimeridian_stay_whole() {
    let lines = |coordinates: &str| match kind(&format!(r#"{{"type":"LineString","coordinates":{coordinates}}}"#)) {
        Kind::LineString(line) => vec![flat(&line)],
        Kind::MultiLineString(lines) => lines.iter().map(|line| flat(line)).collect(),
        other => panic!("{other:?}"),
    };
    // One step of a double below 180.
    let beside = 179.99999999999997;
    let found = lines("[[179.99999999999997,0],[-179.5,0]]");
    assert_eq!(found, [vec![(beside, 0.0), (180.0, 0.0)], vec![(-180.0, 0.0), (-179.5, 0.0)]]);
    let found = lines("[[179.99999999999997,0],[180,1],[-179,2]]");
    assert_eq!(found, [vec![(beside, 0.0), (180.0, 1.0)], vec![(-180.0, 1.0), (-179.0, 2.0)]]);
    let found = lines("[[-170,0],[170,0],[180,10],[180,10],[180,11],[170,20]]");
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(found[1][1..], [(170.0, 0.0), (180.0, 10.0), (180.0, 10.0), (180.0, 11.0), (170.0, 20.0)]);
    let beside = polygon("[[[179.99999999999997,0],[-179,0],[-179,1],[179.99999999999997,1],[179.99999999999997,0]]]");
    assert!(matches!(kind(&beside), Kind::MultiPolygon(pieces) if pieces.len() == 2));
}

#[test]
fn a_ring_round_the_globe_many_times_is_refused_at_once() {
    let there = (0..9000).map(|n| format!("[{},0]", [0, 120, -120][n % 3]));
    let back = (0..9000).rev().map(|n| format!("[{},1]", [0, 120, -120][n % 3]));
    let places: Vec<String> = there.chain(back).chain(["[0,0]".to_owned()]).collect();
    let fault = cut(&polygon(&format!("[[{}]]", places.join(",")))).unwrap_err();
    assert!(fault.detail.contains("more than once"), "{fault:?}");
}

#[test]
fn a_polygon_with_holes_on_both_sides_and_across_becomes_two() {
    let shell = "[[170,-10],[-170,-10],[-170,10],[170,10],[170,-10]]";
    let hole = |x: i32, y: i32| {
        let wrap = |x: i32| if x > 180 { x - 360 } else { x };
        let (a, b) = (wrap(x), wrap(x + 2));
        format!("[[{a},{y}],[{a},{}],[{b},{}],[{b},{y}],[{a},{y}]]", y + 2, y + 2)
    };
    let text = polygon(&format!("[{shell},{},{},{}]", hole(172, 0), hole(184, 3), hole(179, -5)));
    let Kind::MultiPolygon(pieces) = kind(&text) else { panic!() };
    assert_eq!(pieces.len(), 2);
    assert_eq!(pieces.iter().map(Vec::len).sum::<usize>(), 4, "two holes stay, one is part of the edges: {pieces:?}");
    assert!((area(&pieces) - 2.0 * (20.0 * 20.0 - 3.0 * 4.0)).abs() < 1e-9);
    assert!(pieces.iter().flatten().flatten().all(|place| place.x.abs() >= 170.0));
}

#[test]
fn positions_do_not_move_and_heights_are_interpolated() {
    let text = polygon("[[[100.1234567890123,1,5],[-100.9876543210987,2,7],[-110.1,50.3,9],[100.1234567890123,1,5]]]");
    let geometry = cut(&text).unwrap();
    assert!(geometry.has_heights);
    let Kind::MultiPolygon(pieces) = &geometry.kind else { panic!() };
    let all: Vec<&Position> = pieces.iter().flatten().flatten().collect();
    for (x, y, z) in [(100.1234567890123, 1.0, 5.0), (-100.9876543210987, 2.0, 7.0), (-110.1, 50.3, 9.0)] {
        assert!(all.contains(&&Position { x, y, z }), "{x} {y}");
    }
    let on_edge: Vec<_> = all.iter().filter(|place| place.x.abs() == 180.0).collect();
    assert!(on_edge.len() >= 4 && on_edge.iter().all(|place| place.z > 5.0 && place.z < 9.0), "{on_edge:?}");
}

#[test]
fn a_ring_round_a_pole_is_closed_over_it() {
    for (south, lat) in [(true, -70), (false, 80)] {
        for start in [-150, 0, 179] {
            let wrap = |x: i32| (x + 180).rem_euclid(360) - 180;
            let places: Vec<String> = (0..12).map(|n| format!("[{},{}]", wrap(start + n * 30), lat + n % 3)).collect();
            let mut ring = places.join(",");
            ring.push_str(&format!(",{}", places[0]));
            let Kind::Polygon(rings) = kind(&polygon(&format!("[[{ring}]]"))) else { panic!("{start}") };
            let pole = if south { -90.0 } else { 90.0 };
            assert_eq!(rings[0].iter().filter(|place| place.y == pole).count(), 2, "{rings:?}");
            assert_eq!(reach_of(&rings[0]), (-180.0, 180.0));
        }
    }
    let equator = polygon("[[[0,-5],[120,5],[-120,-5],[0,-5]]]");
    assert_eq!(cut(&equator).unwrap_err().reason, Reason::Antimeridian);
}

fn reach_of(ring: &[Position]) -> (f64, f64) {
    ring.iter().fold((360.0, -360.0), |(low, high), place| (place.x.min(low), place.x.max(high)))
}

#[test]
fn what_does_not_cross_stays_as_it_is() {
    for text in [
        polygon("[[[-180,-90],[180,-90],[180,-80],[0,-70],[-180,-80],[-180,-90]]]"),
        polygon("[[[-100,0],[0,0],[100,0],[100,5],[-50,5],[-100,0]]]"),
        r#"{"type":"MultiPoint","coordinates":[[179,0],[-179,0]]}"#.into(),
        r#"{"type":"LineString","coordinates":[[-180,5],[180,5]]}"#.into(),
    ] {
        assert_eq!(kind(&text), geometry::parse(&text, &Limits::default()).unwrap().kind);
    }
}

#[test]
fn what_is_not_valid_unrolled_is_refused() {
    let bow_tie = polygon("[[[179,0],[-179,2],[-179,0],[179,2],[179,0]]]");
    assert_eq!(cut(&bow_tie).unwrap_err().reason, Reason::InvalidTopology);
    let outside = polygon("[[[179,0],[-179,0],[-179,2],[179,2],[179,0]],[[10,0],[11,0],[11,1],[10,0]]]");
    assert_eq!(cut(&outside).unwrap_err().reason, Reason::InvalidTopology);
}
