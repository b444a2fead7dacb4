#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::geometry::parse;
use super::{Limits, encode, validity};
use crate::event::Reason;

fn most(max_vertices: usize) -> Limits {
    Limits { max_vertices, ..Limits::default() }
}

/// The footprint in hex.
fn taken(text: &str) -> String {
    let geometry = parse(text, &most(1000)).unwrap_or_else(|fault| panic!("{text}: {fault:?}"));
    let shape = encode::encode(&geometry).unwrap();
    validity::check(&geometry, &shape.footprint).unwrap_or_else(|fault| panic!("{text}: {fault:?}"));
    shape.footprint.iter().map(|b| format!("{b:02x}")).collect()
}

fn refused(text: &str) -> (Reason, String) {
    let verdict = parse(text, &most(1000)).and_then(|geometry| {
        let shape = encode::encode(&geometry)?;
        validity::check(&geometry, &shape.footprint)
    });
    match verdict {
        Ok(()) => panic!("{text} was taken"),
        Err(fault) => (fault.reason, fault.detail),
    }
}

fn of(kind: &str, coordinates: &str) -> String {
    format!(r#"{{"type":"{kind}","coordinates":{coordinates}}}"#)
}

fn collection(members: &[&str]) -> String {
    format!(r#"{{"type":"GeometryCollection","geometries":[{}]}}"#, members.join(","))
}

fn assert_refused(reason: Reason, texts: &[String]) {
    for text in texts {
        let (got, detail) = refused(text);
        assert_eq!(got, reason, "{text}: {detail}");
    }
}

const SQUARE: &str = "[[0,0],[1,0],[1,1],[0,1],[0,0]]";

#[test]
fn takes_all_seven_types() {
    assert_eq!(taken(&of("Point", "[1,2]")), "0101000020e6100000000000000000f03f0000000000000040");
    let point = of("Point", " [ 1 ,\t-2e0\n] ");
    for text in [
        of("MultiPoint", "[[180,90],[-180,-90]]"),
        of("LineString", "[[0,0],[1,1]]"),
        of("MultiLineString", "[[[0,0],[1,1]],[[0,0],[1,1]]]"),
        of("Polygon", &format!("[{SQUARE}]")),
        of("Polygon", "[[[0,0],[0,9],[9,9],[9,0],[0,0]],[[1,1],[2,1],[2,2],[1,1]]]"),
        of("MultiPolygon", &format!("[[{SQUARE}],[[[5,5],[6,5],[6,6],[5,5]]]]")),
        collection(&[&point, &collection(&[&point])]),
        r#"{"crs":null,"bbox":[0,0,1,1],"x":[null],"coordinates":[1,2],"\u0074ype":"\u0050oint","geometries":5}"#.to_owned(),
        r#"{"type":"Point","crs":{"type":"name","properties":{"name":"urn:ogc:def:crs:OGC:1.3:CRS84"}},"coordinates":[1,2]}"#.to_owned(),
    ] {
        taken(&text);
    }
}

/// By PostGIS 3.3: `GEOMETRYCOLLECTION Z (POINT Z (1 2 3), MULTILINESTRING Z ((0 0 1, 1 1 2)))`.
#[test]
fn members_of_a_collection_carry_no_srid_of_their_own() {
    let text = collection(&[&of("Point", "[1,2,3,9]"), &of("MultiLineString", "[[[0,0,1],[1,1,2]]]")]);
    let shape = encode::encode(&parse(&text, &most(10)).unwrap()).unwrap();
    let hex: String = shape.with_heights.unwrap().iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(
        hex,
        "01070000a0e6100000020000000101000080000000000000f03f0000000000000040000000000000084001050000800100000001020000\
         800200000000000000000000000000000000000000000000000000f03f000000000000f03f000000000000f03f0000000000000040"
    );
    assert_eq!(parse(&of("Point", "[1,2]"), &most(10)).map(|g| encode::encode(&g).unwrap().with_heights), Ok(None));
}

#[test]
fn refuses_what_rfc_7946_does_not_allow() {
    let mut deep = of("Point", "[1,2]");
    for _ in 0..16 {
        deep = collection(&[&deep]);
    }
    taken(&deep);
    assert_refused(
        Reason::BadGeometry,
        &[
            "5".to_owned(),
            "{}".to_owned(),
            r#"{"type":"Point"}"#.to_owned(),
            r#"{"type":5,"coordinates":[1,2]}"#.to_owned(),
            r#"{"type":"Point","type":"Point","coordinates":[1,2]}"#.to_owned(),
            r#"{"type":"Point","coordinates":[1,2],"coordinates":[1,2]}"#.to_owned(),
            r#"{"type":"Point","coordinates":[1,2],"properties":{}}"#.to_owned(),
            r#"{"type":"Point","coordinates":[1,2],"bbox":[1,2,3]}"#.to_owned(),
            r#"{"type":"GeometryCollection","coordinates":[1,2]}"#.to_owned(),
            r#"{"type":"GeometryCollection","geometries":{}}"#.to_owned(),
            of("point", "[1,2]"),
            of("Feature", "[1,2]"),
            of("Point", "null"),
            of("Point", "[1]"),
            of("Point", "[1,null]"),
            of("Point", r#"["1","2"]"#),
            of("Point", "[1,[2]]"),
            of("Point", "[[1,2]]"),
            of("MultiPoint", "[1,2]"),
            of("MultiPoint", "[[]]"),
            of("LineString", "[[1,2]]"),
            of("LineString", "[[4,52],[5,52,3]]"),
            of("Polygon", "[[[0,0],[1,1],[0,0]]]"),
            of("Polygon", "[[[0,0],[1,0],[1,1],[0,1]]]"),
            of("Polygon", "[[[0,0,1],[1,0,1],[1,1,1],[0,0,2]]]"),
            of("Polygon", &format!("[{SQUARE},[]]")),
            collection(&["null"]),
            collection(&[&of("Point", "[1,2]"), &of("Point", "[1,2,3]")]),
            collection(&[&deep]),
        ],
    );
}

#[test]
fn empty_has_its_own_reason() {
    let point = of("Point", "[]");
    assert_refused(
        Reason::EmptyGeometry,
        &[
            point.clone(),
            of("MultiPoint", "[]"),
            of("LineString", "[ ]"),
            of("MultiLineString", "[]"),
            of("MultiLineString", "[[]]"),
            of("Polygon", "[]"),
            of("Polygon", "[[]]"),
            of("MultiPolygon", "[]"),
            of("MultiPolygon", "[[]]"),
            of("MultiPolygon", "[[[]]]"),
            of("MultiPolygon", &format!("[[{SQUARE}],[]]")),
            collection(&[]),
            collection(&[&of("Point", "[1,2]"), &point]),
            collection(&[&of("Point", "[1,2]"), &collection(&[])]),
        ],
    );
}

#[test]
fn ranges_and_edges_are_judged_after_the_structure() {
    assert_refused(
        Reason::CoordinateOutOfRange,
        &[
            of("Point", "[180.0000001,0]"),
            of("Point", "[0,-90.5]"),
            of("Point", "[1e400,0]"),
            of("Point", "[1,2,-1e400]"),
            of("LineString", "[[-179,0],[181,0]]"),
        ],
    );
    taken(&of("Point", "[1e-400,-0,5,1e400]"));
    assert_refused(Reason::BadGeometry, &[of("Polygon", "[[[200,0],[1,0],[1,1]]]")]);
    assert_refused(
        Reason::Antimeridian,
        &[
            of("LineString", "[[179,0],[-179,0]]"),
            of("Polygon", "[[[179,0],[-179,0],[-179,1],[179,1],[179,0]]]"),
            collection(&[&of("MultiLineString", "[[[0,0],[1,1]],[[-91,0],[90,0]]]")]),
        ],
    );
    taken(&of("LineString", "[[-180,0],[180,0],[0,0],[-180,1]]"));
    assert_refused(
        Reason::UnsupportedCrs,
        &[r#"{"type":"Point","coordinates":[9e9,1],"crs":{"properties":{"name":"EPSG:3857"}}}"#.to_owned()],
    );
}

#[test]
fn positions_are_counted_over_all_members() {
    let member = of("MultiPoint", "[[1,2],[1,2]]");
    let text = collection(&[&member, &member]);
    assert!(parse(&text, &most(4)).is_ok());
    assert_eq!(parse(&text, &most(3)).unwrap_err().reason, Reason::TooManyVertices);
}

#[test]
fn topology_is_judged_as_st_isvalid_does() {
    let (reason, detail) = refused(&of("Polygon", "[[[0,0],[10,10],[10,0],[0,10],[0,0]]]"));
    assert_eq!((reason, detail.as_str()), (Reason::InvalidTopology, "Self-intersection at 5 5"));
    assert_refused(
        Reason::InvalidTopology,
        &[
            of("LineString", "[[1,1],[1,1]]"),
            of("LineString", "[[1,1,0],[1,1,5]]"),
            of("Polygon", "[[[1,1],[1,1],[1,1],[1,1]]]"),
            of("Polygon", "[[[0,0],[1,1],[2,2],[0,0]]]"),
            of("Polygon", "[[[0,0],[2,0],[1,0],[0,0]]]"),
            of("Polygon", "[[[0,0],[9,0],[9,9],[0,9],[0,0]],[[0,0],[9,0],[9,9],[0,0]]]"),
            of("Polygon", "[[[0,0],[4,0],[4,4],[0,4],[0,0]],[[2,0],[4,2],[2,4],[0,2],[2,0]]]"),
            of("MultiPolygon", &format!("[[{SQUARE}],[{SQUARE}]]")),
            collection(&[&of("Point", "[1,2]"), &of("Polygon", "[[[0,0],[1,1],[1,0],[0,1],[0,0]]]")]),
        ],
    );
    let square = of("Polygon", &format!("[{SQUARE}]"));
    taken(&collection(&[&square, &square]));
}
