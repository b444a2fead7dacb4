//! A geometry of any type, written as GeoJSON, judged and encoded, then read back by GEOS: the same one.
#![no_main]

use std::fmt::Write;

use arbitrary::Arbitrary;
use geos::{Geom, GeometryTypes};
use h3o::Resolution;
use hexlane::event::{Event, Reason};
use hexlane::judge::{Antimeridian, Limits, judge};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    heights: bool,
    shape: Shape,
}

#[derive(Arbitrary, Debug)]
enum Shape {
    Point(Place),
    MultiPoint(Vec<Place>),
    LineString(Vec<Place>),
    MultiLineString(Vec<Vec<Place>>),
    Polygon(Box_),
    MultiPolygon(Vec<Box_>),
    Collection(Vec<Shape>),
}

/// Whole steps of the smallest that a degree can be told apart by, or anything.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Place {
    x: Ordinate,
    y: Ordinate,
    z: i16,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Ordinate {
    Small(i8),
    Fraction(i32),
    Any(f64),
}

impl Ordinate {
    fn within(self, most: f64) -> f64 {
        let value = match self {
            Self::Small(value) => f64::from(value),
            Self::Fraction(value) => f64::from(value) / 1e7,
            Self::Any(value) => value,
        };
        if value.is_finite() { value % most } else { 0.0 }
    }
}

/// A rectangle with as many holes as fit in a row.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Box_ {
    x: i8,
    y: i8,
    holes: u8,
}

type Position = [f64; 3];

impl Place {
    fn position(self) -> Position {
        [self.x.within(180.0), self.y.within(90.0), f64::from(self.z) / 4.0]
    }
}

impl Box_ {
    fn rings(self) -> Vec<Vec<Position>> {
        let rectangle = |x: f64, y: f64, width: f64, height: f64| {
            let corners = [(0.0, 0.0), (width, 0.0), (width, height), (0.0, height), (0.0, 0.0)];
            corners.map(|(right, up)| [x + right, y + up, right]).to_vec()
        };
        let (x, y, holes) = (f64::from(self.x), f64::from(self.y % 80), f64::from(self.holes % 4));
        let shell = rectangle(x, y, 2.0 * holes + 1.0, 1.0);
        let holes = (0..self.holes % 4).map(|n| rectangle(x + 2.0 * f64::from(n) + 0.5, y + 0.25, 1.0, 0.5));
        std::iter::once(shell).chain(holes).collect()
    }
}

/// What is expected to be read back: the type, and the positions of each list of them.
#[derive(Debug, Default, PartialEq)]
struct Flat {
    types: Vec<&'static str>,
    lists: Vec<Vec<Position>>,
}

fn write(shape: &Shape, heights: bool, text: &mut String, flat: &mut Flat) {
    let position = |place: &Position| match heights {
        true => format!("[{},{},{}]", place[0], place[1], place[2]),
        false => format!("[{},{}]", place[0], place[1]),
    };
    let list = |places: &[Position]| format!("[{}]", places.iter().map(position).collect::<Vec<_>>().join(","));
    let lists = |rings: &[Vec<Position>]| format!("[{}]", rings.iter().map(|r| list(r)).collect::<Vec<_>>().join(","));
    let all = |places: &[Place]| places.iter().map(|place| place.position()).collect::<Vec<_>>();
    let (name, coordinates) = match shape {
        Shape::Point(place) => {
            flat.lists.push(vec![place.position()]);
            ("Point", position(&place.position()))
        }
        Shape::MultiPoint(places) => {
            flat.lists.extend(all(places).into_iter().map(|place| vec![place]));
            ("MultiPoint", list(&all(places)))
        }
        Shape::LineString(places) => {
            flat.lists.push(all(places));
            ("LineString", list(&all(places)))
        }
        Shape::MultiLineString(lines) => {
            let lines: Vec<_> = lines.iter().map(|line| all(line)).collect();
            let text = lists(&lines);
            flat.lists.extend(lines);
            ("MultiLineString", text)
        }
        Shape::Polygon(rectangle) => {
            flat.lists.extend(rectangle.rings());
            ("Polygon", lists(&rectangle.rings()))
        }
        Shape::MultiPolygon(rectangles) => {
            flat.lists.extend(rectangles.iter().flat_map(|rectangle| rectangle.rings()));
            let polygons: Vec<String> = rectangles.iter().map(|rectangle| lists(&rectangle.rings())).collect();
            ("MultiPolygon", format!("[{}]", polygons.join(",")))
        }
        Shape::Collection(members) => {
            flat.types.push("GeometryCollection");
            text.push_str(r#"{"type":"GeometryCollection","geometries":["#);
            for (n, member) in members.iter().enumerate() {
                text.push_str(if n > 0 { "," } else { "" });
                write(member, heights, text, flat);
            }
            text.push_str("]}");
            return;
        }
    };
    flat.types.push(name);
    let _ = write!(text, r#"{{"type":"{name}","coordinates":{coordinates}}}"#);
}

/// Reads with GEOS.
fn read(geometry: &impl Geom, heights: bool, flat: &mut Flat, names: bool) {
    let name = match geometry.geometry_type().expect("a type") {
        GeometryTypes::Point => "Point",
        GeometryTypes::MultiPoint => "MultiPoint",
        GeometryTypes::LineString => "LineString",
        GeometryTypes::MultiLineString => "MultiLineString",
        GeometryTypes::Polygon => "Polygon",
        GeometryTypes::MultiPolygon => "MultiPolygon",
        GeometryTypes::GeometryCollection => "GeometryCollection",
        other => panic!("{other:?}"),
    };
    if names {
        flat.types.push(name);
    }
    match name {
        "Polygon" => {
            positions(&geometry.get_exterior_ring().expect("a ring"), heights, flat);
            for n in 0..geometry.get_num_interior_rings().expect("a number") {
                positions(&geometry.get_interior_ring_n(n).expect("a ring"), heights, flat);
            }
        }
        "Point" | "LineString" => positions(geometry, heights, flat),
        _ => {
            for n in 0..geometry.get_num_geometries().expect("a number") {
                let member = geometry.get_geometry_n(n).expect("a member");
                read(&member, heights, flat, name == "GeometryCollection");
            }
        }
    }
}

fn positions(geometry: &impl Geom, heights: bool, flat: &mut Flat) {
    let list = geometry.get_coord_seq().expect("positions");
    let height = |n| if heights { list.get_z(n).expect("a height") } else { 0.0 };
    let position = |n| [list.get_x(n).expect("x"), list.get_y(n).expect("y"), height(n)];
    flat.lists.push((0..list.size().expect("a size")).map(position).collect());
}

fn assert_same(bytes: &[u8], heights: bool, mut wanted: Flat) {
    let geometry = geos::Geometry::new_from_wkb(bytes).expect("GEOS reads it");
    assert_eq!(geometry.get_srid().expect("it has one"), 4326);
    if !heights {
        wanted.lists.iter_mut().flatten().for_each(|place| place[2] = 0.0);
    }
    let mut found = Flat::default();
    read(&geometry, heights, &mut found, true);
    assert_eq!(found, wanted);
}

fuzz_target!(|input: Input| {
    let (mut text, mut flat) = (String::new(), Flat::default());
    write(&input.shape, input.heights, &mut text, &mut flat);
    let event = format!(
        r#"{{"feature_id":"F","version":1,"op":"create","observation_time":"2026-01-01T00:00:00Z","geometry":{text}}}"#
    );
    let limits = Limits { antimeridian: Antimeridian::Keep, ..Limits::default() };
    match judge(event.as_bytes(), i64::MAX, &limits, Resolution::Seven) {
        Ok(Event { shape: Some(shape), .. }) => {
            assert_eq!(shape.with_heights.is_some(), input.heights);
            if let Some(bytes) = shape.with_heights {
                let lists = flat.lists.clone();
                assert_same(&bytes, true, Flat { types: flat.types.clone(), lists });
            }
            assert_same(&shape.footprint, false, flat);
        }
        Ok(event) => panic!("a shape was lost: {event:?}"),
        Err(rejection) if matches!(input.shape, Shape::Point(_) | Shape::Polygon(_)) => {
            panic!("nothing is wrong with it: {rejection:?}: {text}");
        }
        Err(rejection) => assert!(
            matches!(
                rejection.reason,
                Reason::EmptyGeometry | Reason::BadGeometry | Reason::InvalidTopology | Reason::TooManyVertices
            ) || (rejection.reason == Reason::NotJson && text.matches('[').count() > 60),
            "{rejection:?}: {text}"
        ),
    }
});
