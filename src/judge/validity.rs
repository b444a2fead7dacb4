//! Topological validity by the OGC rules: the verdict of PostGIS's `ST_IsValid`, which is that of
//! GEOS, found without asking the database.

use geo::kernels::{Kernel, Orientation, RobustKernel};
use geo::{Coord, Intersects, Line};
use geos::Geom;

use super::Fault;
use super::geometry::{Geometry, Kind, Position};
use crate::event::Reason;

/// Up to here the quadratic proof is quicker than setting GEOS to work.
const QUICK_PROOF_POSITIONS: usize = 100;

/// Judges `footprint`, the two-dimensional EWKB of `geometry`: exactly what will be stored.
pub(super) fn check(geometry: &Geometry, footprint: &[u8]) -> Result<(), Fault> {
    if is_proven(&geometry.kind) { Ok(()) } else { ask_geos(footprint) }
}

/// True only for what is certainly valid; false means that GEOS has to say.
fn is_proven(kind: &Kind) -> bool {
    match kind {
        Kind::Point(_) | Kind::MultiPoint(_) => true,
        Kind::LineString(line) => has_two_places(line),
        Kind::MultiLineString(lines) => lines.iter().all(|line| has_two_places(line)),
        Kind::Polygon(rings) => is_proven_polygon(rings),
        Kind::MultiPolygon(polygons) => match polygons.as_slice() {
            [rings] => is_proven_polygon(rings),
            _ => false,
        },
        Kind::Collection(members) => members.iter().all(is_proven),
    }
}

fn has_two_places(line: &[Position]) -> bool {
    line.iter().zip(line.iter().skip(1)).any(|(a, b)| a.x != b.x || a.y != b.y)
}

/// A ring that nowhere touches itself bounds a valid polygon. Every pair of edges is looked at: no
/// index can be set up as quickly for so few. The predicates are exact, as those of GEOS are.
fn is_proven_polygon(rings: &[Vec<Position>]) -> bool {
    let [shell] = rings else { return false };
    if shell.len() > QUICK_PROOF_POSITIONS {
        return false;
    }
    let mut corners: Vec<Coord> = shell.iter().map(|p| Coord { x: p.x, y: p.y }).collect();
    // An edge of no length would count as a neighbour and hide the next one.
    corners.dedup();
    let edges: Vec<Edge> = corners.windows(2).filter_map(Edge::between).collect();
    edges.len() > 2
        && edges.iter().enumerate().all(|(at, edge)| {
            let others = edges.iter().skip(at + 1);
            let is_last = |other: usize| at == 0 && other + 2 == edges.len();
            others.enumerate().all(|(other_at, other)| match other_at {
                0 => !folds_back(&edge.line, &other.line),
                _ if is_last(other_at) => !folds_back(&other.line, &edge.line),
                _ => !edge.is_near(other) || !edge.line.intersects(&other.line),
            })
        })
}

struct Edge {
    line: Line,
    min: Coord,
    max: Coord,
}

impl Edge {
    fn between(ends: &[Coord]) -> Option<Self> {
        let [start, end] = *ends else { return None };
        let min = Coord { x: start.x.min(end.x), y: start.y.min(end.y) };
        let max = Coord { x: start.x.max(end.x), y: start.y.max(end.y) };
        Some(Self { line: Line { start, end }, min, max })
    }

    fn is_near(&self, other: &Self) -> bool {
        // Without short cuts, which the processor could only guess at.
        (self.min.x <= other.max.x)
            & (other.min.x <= self.max.x)
            & (self.min.y <= other.max.y)
            & (other.min.y <= self.max.y)
    }
}

/// Whether `next`, which starts where `edge` ends, runs back along it.
fn folds_back(edge: &Line, next: &Line) -> bool {
    let same_way = (edge.dx() > 0.0) == (next.dx() > 0.0) && (edge.dy() > 0.0) == (next.dy() > 0.0);
    !same_way && RobustKernel::orient2d(edge.start, edge.end, next.end) == Orientation::Collinear
}

fn ask_geos(footprint: &[u8]) -> Result<(), Fault> {
    let verdict = geos::Geometry::new_from_wkb(footprint)
        .and_then(|geometry| if geometry.is_valid()? { Ok(None) } else { geometry.is_valid_reason().map(Some) });
    match verdict {
        Ok(None) => Ok(()),
        Ok(Some(reason)) => Err(Fault::new(Reason::InvalidTopology, with_place(&reason))),
        Err(error) => Err(Fault::new(Reason::InvalidTopology, format!("GEOS cannot judge the geometry: {error}"))),
    }
}

/// GEOS writes `Self-intersection[5 5]`.
fn with_place(reason: &str) -> String {
    match reason.strip_suffix(']').and_then(|r| r.rsplit_once('[')) {
        Some((what, place)) => format!("{what} at {place}"),
        None => reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rand::{Rng, SeedableRng, rngs::SmallRng};

    use super::super::encode;
    use super::*;

    /// Rings of few places on a small grid: nearly every way to touch, fold and cross.
    #[test]
    fn proves_nothing_that_geos_refuses() {
        let mut random = SmallRng::seed_from_u64(1);
        let (mut proven, mut valid) = (0, 0);
        for _ in 0..20_000 {
            let places = random.random_range(3..9);
            let step = [1.0, 0.1][random.random_range(0..2)];
            let mut place = || step * f64::from(random.random_range(0_u8..5));
            let mut ring: Vec<_> = (0..places).map(|_| Position { x: place(), y: place(), z: 0.0 }).collect();
            ring.push(ring[0]);
            let vertices = ring.len();
            let geometry = Geometry { kind: Kind::Polygon(vec![ring]), has_heights: false, vertices };
            let verdict = ask_geos(&encode::encode(&geometry).unwrap().footprint);
            valid += i32::from(verdict.is_ok());
            if is_proven(&geometry.kind) {
                proven += 1;
                assert_eq!(verdict, Ok(()), "{geometry:?}");
            }
        }
        assert!(proven > 1000 && proven * 10 > valid * 9, "{proven} proven of {valid}");
    }

    #[test]
    fn puts_the_place_into_words() {
        assert_eq!(with_place("Self-intersection[5 5]"), "Self-intersection at 5 5");
        assert_eq!(with_place("Too few points"), "Too few points");
    }
}
