//! Cuts shapes that cross the antimeridian: <https://datatracker.ietf.org/doc/html/rfc7946#section-3.1.9>.
//!
//! An edge that spans more than 180° of longitude, and less than the whole parallel, means to go the
//! other way round. A line or ring with such an edge is unrolled: its longitudes go on beyond ±180,
//! and it gets a corner wherever it meets an antimeridian. What lies between two of those is then
//! rolled up again. No position of the input moves, and what is cut has no edge left to cut.

use geos::Geom;
use rustc_hash::FxHashMap;

use super::geometry::{Geometry, Kind, Position};
use super::{Fault, encode, validity};
use crate::event::Reason;

type Ring = Vec<Position>;
type Polygon = Vec<Ring>;
/// As GEOS has it, unrolled.
type FlatRing = Vec<(f64, f64)>;

/// Whether an edge of that many degrees means to go the other way round.
pub(super) fn is_crossing(span: f64) -> bool {
    span.abs() > 180.0 && span.abs() < 360.0
}

/// Cuts every part that crosses, and leaves the others as they are. A line may become several, and a
/// polygon too.
///
/// # Errors
/// Where it is not to be told how to cut, and where what is cut would not be valid.
pub(super) fn split(geometry: Geometry) -> Result<Geometry, Fault> {
    Ok(Geometry { kind: split_kind(geometry.kind)?, ..geometry })
}

fn split_kind(kind: Kind) -> Result<Kind, Fault> {
    Ok(match kind {
        Kind::Point(_) | Kind::MultiPoint(_) => kind,
        Kind::LineString(line) => one_or_more(split_line(line), Kind::LineString, Kind::MultiLineString),
        Kind::MultiLineString(lines) => Kind::MultiLineString(lines.into_iter().flat_map(split_line).collect()),
        Kind::Polygon(rings) => one_or_more(split_polygon(rings)?, Kind::Polygon, Kind::MultiPolygon),
        Kind::MultiPolygon(polygons) => {
            let pieces: Vec<Vec<Polygon>> = polygons.into_iter().map(split_polygon).collect::<Result<_, _>>()?;
            Kind::MultiPolygon(pieces.concat())
        }
        Kind::Collection(members) => Kind::Collection(members.into_iter().map(split_kind).collect::<Result<_, _>>()?),
    })
}

fn one_or_more<T>(mut pieces: Vec<T>, one: impl Fn(T) -> Kind, more: impl Fn(Vec<T>) -> Kind) -> Kind {
    match pieces.pop() {
        Some(piece) if pieces.is_empty() => one(piece),
        last => {
            pieces.extend(last);
            more(pieces)
        }
    }
}

fn crosses(line: &[Position]) -> bool {
    line.windows(2).any(|ends| matches!(ends, [from, to] if is_crossing(to.x - from.x)))
}

/// A corner of what is unrolled.
#[derive(Clone, Copy, Debug)]
struct Corner {
    /// The longitude, beyond ±180 too.
    x: f64,
    /// Where it is on the globe.
    place: Position,
}

impl Corner {
    /// As a corner of what lies in this round; those on an antimeridian lie in two.
    fn rolled_up(self, round: f64) -> Position {
        let x = match self.x - round * 360.0 {
            -180.0 => -180.0,
            180.0 => 180.0,
            _ => self.place.x,
        };
        Position { x, ..self.place }
    }
}

/// The most degrees that a polygon may be wide, unrolled. Wider ones lie on themselves.
const WIDEST: f64 = 720.0;

/// Which round of the globe a longitude is in: number 0 is from -180 to just below 180.
fn round_of(x: f64) -> f64 {
    let round = ((x + 180.0) / 360.0).floor();
    // The sum may have been rounded up to the next antimeridian; these products are exact.
    if x < round * 360.0 - 180.0 { round - 1.0 } else { round }
}

/// Also answers by how much the last corner is beyond the place where it seems to be.
fn unroll(line: &[Position]) -> (Vec<Corner>, f64) {
    let mut corners: Vec<Corner> = Vec::with_capacity(line.len() + 4);
    let mut offset = 0.0;
    for place in line {
        if let Some(from) = corners.last().copied() {
            let span = place.x - from.place.x;
            if is_crossing(span) {
                offset -= 360.0_f64.copysign(span);
            }
            let to = Corner { x: place.x + offset, place: *place };
            corners.extend(meetings(from, to));
            corners.push(to);
        } else {
            corners.push(Corner { x: place.x, place: *place });
        }
    }
    (corners, offset)
}

/// Where an edge meets antimeridians: at most one, for it spans half a round at the most.
fn meetings(from: Corner, to: Corner) -> Option<Corner> {
    let (low, high) = (from.x.min(to.x), from.x.max(to.x));
    let meridian = round_of(low) * 360.0 + 180.0;
    (low < meridian && meridian < high).then(|| {
        let part = (meridian - from.x) / (to.x - from.x);
        let between = |from: f64, to: f64| from + (to - from) * part;
        let (y, z) = (between(from.place.y, to.place.y), between(from.place.z, to.place.z));
        Corner { x: meridian, place: Position { x: meridian, y, z } }
    })
}

fn split_line(line: Ring) -> Vec<Ring> {
    if !crosses(&line) {
        return vec![line];
    }
    let (corners, _) = unroll(&line);
    let mut pieces: Vec<(f64, Ring)> = Vec::new();
    for ends in corners.windows(2) {
        let [from, to] = *ends else { continue };
        // No edge goes beyond an antimeridian; one along it goes on in the round where the line is.
        let round = round_of(from.x.min(to.x));
        let fits = |round: f64| [from.x, to.x].iter().all(|x| (x - round * 360.0).abs() <= 180.0);
        match pieces.last_mut() {
            Some((last, piece)) if fits(*last) => piece.push(to.rolled_up(*last)),
            _ => pieces.push((round, vec![from.rolled_up(round), to.rolled_up(round)])),
        }
    }
    pieces.into_iter().map(|(_, piece)| piece).collect()
}

fn split_polygon(rings: Polygon) -> Result<Vec<Polygon>, Fault> {
    if !rings.iter().any(|ring| crosses(ring)) {
        return Ok(vec![rings]);
    }
    let mut unrolled = Vec::with_capacity(rings.len());
    for ring in &rings {
        let (corners, winding) = unroll(ring);
        unrolled.push(match winding {
            0.0 => corners,
            _ if unrolled.is_empty() => over_the_pole(corners, winding)?,
            _ => return Err(refused("a hole goes round a pole")),
        });
    }
    let (left, right) = unrolled.first().map_or((0.0, 0.0), |shell| reach(shell));
    for hole in unrolled.iter_mut().skip(1) {
        let (low, high) = reach(hole);
        // A hole that fits nowhere lies outside; that is for the judge to say.
        let offset = [0.0, 360.0, -360.0].into_iter().find(|by| low + by >= left && high + by <= right).unwrap_or(0.0);
        hole.iter_mut().for_each(|corner| corner.x += offset);
    }
    if right - left > WIDEST {
        return Err(refused("a ring goes round the globe more than once"));
    }
    let as_position = |corner: &Corner| Position { x: corner.x, ..corner.place };
    let flat = unrolled.iter().map(|ring| ring.iter().map(as_position).collect()).collect();
    let vertices = unrolled.iter().map(Vec::len).sum();
    let whole = Geometry { kind: Kind::Polygon(flat), first: None, has_heights: false, vertices };
    let footprint = encode::encode(&whole)?.footprint;
    // Cutting could hide a fault, and takes a polygon without any.
    validity::check(&whole, &footprint)?;
    let corners = unrolled.iter().flatten().map(|corner| (bits(corner.x, corner.place.y), *corner)).collect();
    let mut pieces = Vec::new();
    let mut round = round_of(left);
    while round * 360.0 - 180.0 < right {
        pieces.extend(cut(&footprint, round, &corners)?);
        round += 1.0;
    }
    Ok(pieces)
}

fn reach(ring: &[Corner]) -> (f64, f64) {
    ring.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), corner| (low.min(corner.x), high.max(corner.x)))
}

/// A ring that goes once round the globe holds the pole of its hemisphere. It is closed over that
/// pole, along an antimeridian, where the seam is no edge between two pieces.
fn over_the_pole(mut corners: Vec<Corner>, winding: f64) -> Result<Vec<Corner>, Fault> {
    let pole = match corners
        .iter()
        .map(|corner| corner.place.y)
        .fold((90.0_f64, -90.0_f64), |(low, high), y| (low.min(y), high.max(y)))
    {
        (low, _) if low > 0.0 => 90.0,
        (_, high) if high < 0.0 => -90.0,
        _ => return Err(refused("a ring goes round the globe, and which pole is inside is not to be told")),
    };
    // Where the ring is nearest to the pole, the way there meets nothing else of it.
    let meets = |corner: &Corner| corner.x == round_of(corner.x) * 360.0 - 180.0;
    let met = corners.iter().enumerate().filter(|(_, corner)| meets(corner));
    let seam = met.max_by(|(_, a), (_, b)| a.place.y.abs().total_cmp(&b.place.y.abs())).map(|(at, _)| at);
    let (Some(seam), 360.0 | -360.0) = (seam, winding) else {
        return Err(refused("a ring goes round the globe more than once"));
    };
    // The last corner is the first one, a round later.
    corners.pop();
    let seam = if seam == corners.len() { 0 } else { seam };
    let mut rest = corners.split_off(seam);
    corners.iter_mut().for_each(|corner| corner.x += winding);
    rest.append(&mut corners);
    let Some(start) = rest.first().copied() else { return Ok(rest) };
    let at_pole = |x: f64| Corner { x, place: Position { y: pole, ..start.place } };
    let end = Corner { x: start.x + winding, ..start };
    rest.extend([end, at_pole(end.x), at_pole(start.x), start]);
    Ok(rest)
}

fn bits(x: f64, y: f64) -> (u64, u64) {
    // Of the two zeros only one is looked up.
    ((x + 0.0).to_bits(), (y + 0.0).to_bits())
}

/// What of a polygon lies in one round.
fn cut(footprint: &[u8], round: f64, corners: &FxHashMap<(u64, u64), Corner>) -> Result<Vec<Polygon>, Fault> {
    let flat = pieces(footprint, round).map_err(|error| refused(&format!("GEOS cannot cut it ({error})")))?;
    let back = |(x, y): &(f64, f64)| corners.get(&bits(*x, *y)).map(|corner| corner.rolled_up(round));
    let polygon = |rings: &Vec<FlatRing>| -> Option<Polygon> {
        rings.iter().map(|ring| ring.iter().map(back).collect()).collect()
    };
    // Its corners are there already, so GEOS makes no new ones, unless edges run closer than numbers can tell.
    flat.iter().map(polygon).collect::<Option<_>>().ok_or_else(|| refused("its edges are too close to each other"))
}

/// Rings of polygons; of what merely touches the round, nothing is left.
fn pieces(footprint: &[u8], round: f64) -> geos::GResult<Vec<Vec<FlatRing>>> {
    const BEYOND_ANY_LATITUDE: f64 = 100.0;
    let (low, high) = (round * 360.0 - 180.0, round * 360.0 + 180.0);
    let (south, north) = (-BEYOND_ANY_LATITUDE, BEYOND_ANY_LATITUDE);
    let frame = [[low, south], [high, south], [high, north], [low, north], [low, south]];
    let frame = geos::CoordSeq::new_from_vec(&frame)?.create_linear_ring()?;
    let frame = geos::Geometry::create_polygon(frame, Vec::new())?;
    let within = geos::Geometry::new_from_wkb(footprint)?.intersection(&frame)?;
    let mut polygons = Vec::new();
    for n in 0..within.get_num_geometries()? {
        let part = within.get_geometry_n(n)?;
        if part.geometry_type()? != geos::GeometryTypes::Polygon || part.is_empty()? {
            continue;
        }
        let mut rings = vec![ring(&part.get_exterior_ring()?)?];
        for hole in 0..part.get_num_interior_rings()? {
            rings.push(ring(&part.get_interior_ring_n(hole)?)?);
        }
        polygons.push(rings);
    }
    Ok(polygons)
}

fn ring(ring: &impl Geom) -> geos::GResult<FlatRing> {
    let places = ring.get_coord_seq()?;
    (0..places.size()?).map(|n| Ok((places.get_x(n)?, places.get_y(n)?))).collect()
}

/// Says what to do about it.
pub(super) fn refused(why: &str) -> Fault {
    Fault::new(
        Reason::Antimeridian,
        format!("{why}; cut the geometry at the antimeridian, as RFC 7946 section 3.1.9 says"),
    )
}
