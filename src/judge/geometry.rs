//! A GeoJSON geometry by the letter of RFC 7946.

use serde_json::value::RawValue;

use super::coordinates::{Coordinates, Findings, bad};
use super::{Antimeridian, Fault, Limits, antimeridian, crs, json};
use crate::event::Reason;

/// How deep collections may hold collections.
const MAX_COLLECTION_DEPTH: usize = 16;

/// A longitude, a latitude and, where the geometry has heights, a height; else that is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Position {
    pub x: f64,
    pub y: f64,
    pub z: f64,
}

impl Position {
    pub(super) fn is_in_range(self) -> bool {
        self.x.abs() <= 180.0 && self.y.abs() <= 90.0 && self.z.is_finite()
    }

    pub(super) fn why_out_of_range(self) -> String {
        if !self.z.is_finite() {
            return format!("the height at {} {} is too large for a number", self.x, self.y);
        }
        let swapped = self.x.abs() <= 90.0 && self.y.abs() <= 180.0;
        let hint = if swapped { "; longitude comes first" } else { "" };
        format!("{} {} is not within ±180 degrees of longitude and ±90 of latitude{hint}", self.x, self.y)
    }
}

/// One of the seven types, with at least one position.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    Point(Position),
    MultiPoint(Vec<Position>),
    LineString(Vec<Position>),
    MultiLineString(Vec<Vec<Position>>),
    Polygon(Vec<Vec<Position>>),
    MultiPolygon(Vec<Vec<Vec<Position>>>),
    Collection(Vec<Kind>),
}

/// A geometry whose structure and ranges are right.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Geometry {
    pub kind: Kind,
    /// The position that decides the cell, also where pieces of what was cut come in another order.
    pub first: Option<Position>,
    pub has_heights: bool,
    pub vertices: usize,
}

impl Kind {
    fn first_position(&self) -> Option<&Position> {
        let mut kind = self;
        loop {
            return match kind {
                Kind::Point(point) => Some(point),
                Kind::MultiPoint(points) | Kind::LineString(points) => points.first(),
                Kind::MultiLineString(lines) | Kind::Polygon(lines) => lines.first()?.first(),
                Kind::MultiPolygon(polygons) => polygons.first()?.first()?.first(),
                Kind::Collection(members) => {
                    kind = members.first()?;
                    continue;
                }
            };
        }
    }
}

/// Reads `text`, which is good JSON.
///
/// The structure is judged first, then whether there is anything in it, then the ranges, then the
/// edges: so a geometry that is wrong in several ways gets the same reason wherever in it they are.
pub(super) fn parse(text: &str, limits: &Limits) -> Result<Geometry, Fault> {
    let mut findings = Findings::default();
    let kind = object(text, &mut findings, limits, 0)?;
    if let Some(detail) = findings.empty {
        return Err(Fault::new(Reason::EmptyGeometry, detail));
    }
    if let Some(detail) = findings.out_of_range {
        return Err(Fault::new(Reason::CoordinateOutOfRange, detail));
    }
    let first = kind.first_position().copied();
    let geometry = Geometry { kind, first, has_heights: findings.heights == Some(true), vertices: findings.vertices };
    match (findings.antimeridian, limits.antimeridian) {
        (None, _) | (_, Antimeridian::Keep) => Ok(geometry),
        (Some(why), Antimeridian::Reject) => Err(antimeridian::refused(&why)),
        (Some(_), Antimeridian::Split) => antimeridian::split(geometry),
    }
}

const NAMES: [&str; 8] = ["type", "coordinates", "geometries", "crs", "bbox", "geometry", "properties", "features"];

fn object(text: &str, findings: &mut Findings, limits: &Limits, depth: usize) -> Result<Kind, Fault> {
    if !text.starts_with('{') {
        return Err(bad("a geometry is not an object"));
    }
    if let Some((kind, coordinates)) = only_type_and_coordinates(text) {
        return simple(kind, Coordinates::new(coordinates, findings, limits));
    }
    let (members, result) = json::members(text, &NAMES);
    result.map_err(|error| bad(format!("the geometry cannot be read: {error}")))?;
    if let Some(name) = members.twice {
        return Err(bad(format!("the geometry's member {name} stands twice")));
    }
    let [kind, coordinates, geometries, crs, bbox, geometry, properties, features] = members.values;
    crs::check_member(crs)?;
    if geometry.or(properties).or(features).is_some() {
        // RFC 7946 section 7.1 forbids it: the object would be read as a Feature by some.
        return Err(bad("a geometry must not have a member geometry, properties or features"));
    }
    check_bbox(bbox)?;
    let kind = kind.ok_or_else(|| bad("the geometry's type is missing"))?;
    let kind = json::string(kind).ok_or_else(|| bad("the geometry's type is not a string"))?;
    if kind == "GeometryCollection" {
        let members = geometries.ok_or_else(|| bad("geometries is missing"))?;
        return collection(members, findings, limits, depth + 1);
    }
    let Some(coordinates) = coordinates else {
        return Err(if is_simple_type(&kind) { bad("coordinates is missing") } else { unknown_type(&kind) });
    };
    simple(&kind, Coordinates::new(coordinates.get(), findings, limits))
}

/// What most geometries look like: these two members in this order, without white space or escapes.
/// The text is known to be good JSON, so where no further quote stands there is no further member,
/// and nothing has to be looked at twice.
fn only_type_and_coordinates(text: &str) -> Option<(&str, &str)> {
    let (kind, rest) = text.strip_prefix(r#"{"type":""#)?.split_once('"')?;
    let coordinates = rest.strip_prefix(r#","coordinates":"#)?.strip_suffix('}')?;
    (is_simple_type(kind) && coordinates.starts_with('[') && !coordinates.contains('"')).then_some((kind, coordinates))
}

fn simple(kind: &str, mut coordinates: Coordinates<'_, '_>) -> Result<Kind, Fault> {
    match kind {
        "Point" => coordinates.point().map(Kind::Point),
        "MultiPoint" => coordinates.points().map(Kind::MultiPoint),
        "LineString" => coordinates.line().map(Kind::LineString),
        "MultiLineString" => coordinates.lines().map(Kind::MultiLineString),
        "Polygon" => coordinates.polygon().map(Kind::Polygon),
        "MultiPolygon" => coordinates.polygons().map(Kind::MultiPolygon),
        _ => Err(unknown_type(kind)),
    }
}

fn is_simple_type(kind: &str) -> bool {
    matches!(kind, "Point" | "MultiPoint" | "LineString" | "MultiLineString" | "Polygon" | "MultiPolygon")
}

fn unknown_type(kind: &str) -> Fault {
    let shown: String = kind.chars().take(80).collect();
    bad(format!("{shown:?} is none of the seven geometry types; capitals matter"))
}

fn collection(members: &RawValue, findings: &mut Findings, limits: &Limits, depth: usize) -> Result<Kind, Fault> {
    if depth > MAX_COLLECTION_DEPTH {
        return Err(bad(format!("collections nest deeper than {MAX_COLLECTION_DEPTH}")));
    }
    let members: Vec<&RawValue> = serde_json::from_str(members.get()).map_err(|_| bad("geometries is not an array"))?;
    if members.is_empty() {
        findings.empty.get_or_insert("a collection has no members");
    }
    let members = members.into_iter().map(|member| object(member.get(), findings, limits, depth));
    Ok(Kind::Collection(members.collect::<Result<_, _>>()?))
}

/// RFC 7946 section 5: two or more pairs of numbers. `null`, which some tools write, says nothing.
fn check_bbox(bbox: Option<&RawValue>) -> Result<(), Fault> {
    let Some(bbox) = json::not_null(bbox) else { return Ok(()) };
    match serde_json::from_str::<Vec<&RawValue>>(bbox.get()) {
        Ok(numbers) if numbers.len() >= 4 && numbers.len() % 2 == 0 && numbers.iter().all(|n| is_number(n)) => Ok(()),
        _ => Err(bad("bbox is not an array of two or more pairs of numbers")),
    }
}

fn is_number(value: &RawValue) -> bool {
    value.get().starts_with(|first: char| first == '-' || first.is_ascii_digit())
}
