//! Topological validity by the OGC rules: the verdict of PostGIS's `ST_IsValid`, which is that of
//! GEOS, found without asking the database.

use geo::kernels::{Kernel, Orientation, RobustKernel};
use geo::{Coord, Intersects, Line};
use geos::Geom;

use super::geometry::{Geometry, Kind, Position};
use super::{Fault, sweep};
use crate::event::Reason;

/// Up to here looking at every pair of edges is quicker than sweeping.
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
        Kind::Polygon(rings) => are_proven_polygons(std::slice::from_ref(rings)),
        Kind::MultiPolygon(polygons) => are_proven_polygons(polygons),
        Kind::Collection(members) => members.iter().all(is_proven),
    }
}

fn has_two_places(line: &[Position]) -> bool {
    line.iter().zip(line.iter().skip(1)).any(|(a, b)| a.x != b.x || a.y != b.y)
}

fn are_proven_polygons(polygons: &[Vec<Vec<Position>>]) -> bool {
    match polygons {
        [rings] if matches!(rings.as_slice(), [shell] if shell.len() <= QUICK_PROOF_POSITIONS) => {
            rings.first().is_some_and(|shell| touches_itself_nowhere(shell))
        }
        _ => sweep::are_apart(polygons),
    }
}

/// A ring that nowhere touches itself bounds a valid polygon. Every pair of edges is looked at: no
/// index can be set up as quickly for so few. The predicates are exact, as those of GEOS are.
fn touches_itself_nowhere(shell: &[Position]) -> bool {
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

    const STEPS: [f64; 2] = [1.0, 0.1];

    /// A ring of few places on a small grid: nearly every way to touch, fold and cross.
    fn ring(random: &mut SmallRng, step: f64, grid: u8) -> Vec<Position> {
        let places = random.random_range(3..9);
        let (left, low) = (random.random_range(0..3), random.random_range(0..3));
        let mut place = |from: u8| step * f64::from(from + random.random_range(0..grid));
        let mut ring: Vec<_> = (0..places).map(|_| Position { x: place(left), y: place(low), z: 0.0 }).collect();
        ring.push(ring[0]);
        ring
    }

    fn verdict(kind: &Kind) -> Result<(), Fault> {
        let geometry = Geometry { kind: kind.clone(), has_heights: false, vertices: 1 };
        ask_geos(&encode::encode(&geometry).unwrap().footprint)
    }

    /// Whoever proves must prove nothing that GEOS refuses, and most of what it takes.
    fn compare(shapes: impl Iterator<Item = Kind>, proves: impl Fn(&Kind) -> bool) -> (u32, u32) {
        let (mut proven, mut valid) = (0, 0);
        for kind in shapes {
            let verdict = verdict(&kind);
            valid += u32::from(verdict.is_ok());
            if proves(&kind) {
                proven += 1;
                assert_eq!(verdict, Ok(()), "{kind:?}");
            }
        }
        (proven, valid)
    }

    #[test]
    fn proves_nothing_that_geos_refuses() {
        let mut random = SmallRng::seed_from_u64(1);
        let shapes = (0..20_000).map(|_| {
            let step = STEPS[random.random_range(0..2)];
            Kind::Polygon(vec![ring(&mut random, step, 5)])
        });
        let (proven, valid) = compare(shapes, is_proven);
        assert!(proven > 1000 && proven * 10 > valid * 9, "{proven} proven of {valid}");
    }

    #[test]
    fn the_sweep_proves_nothing_that_geos_refuses() {
        let mut random = SmallRng::seed_from_u64(2);
        let shapes = (0..40_000).map(|n| {
            let step = STEPS[random.random_range(0..2)];
            // A wide shell, so that holes and other polygons often lie inside.
            let wide = [(-1.0, -1.0), (12.0, -1.0), (12.0, 12.0), (-1.0, 12.0), (-1.0, -1.0)];
            let wide: Vec<_> = wide.map(|(x, y)| Position { x: x * step, y: y * step, z: 0.0 }).into();
            let small = |random: &mut SmallRng| ring(random, step, 3);
            match n % 4 {
                0 => Kind::Polygon(vec![ring(&mut random, step, 5)]),
                1 => Kind::Polygon(vec![wide, small(&mut random), small(&mut random)]),
                2 => Kind::MultiPolygon(vec![vec![wide, ring(&mut random, step, 8)], vec![small(&mut random)]]),
                _ => Kind::MultiPolygon(vec![vec![small(&mut random)], vec![small(&mut random)]]),
            }
        });
        let (proven, valid) = compare(shapes, |kind| match kind {
            Kind::Polygon(rings) => sweep::are_apart(std::slice::from_ref(rings)),
            Kind::MultiPolygon(polygons) => sweep::are_apart(polygons),
            _ => false,
        });
        assert!(proven > 1000 && proven * 2 > valid, "{proven} proven of {valid}");
    }

    #[test]
    fn a_jagged_ring_takes_no_longer_than_a_smooth_one() {
        // GEOS alone needs a quarter of a minute for it, which is what would fail here.
        let place = |n: u32| {
            let (angle, radius) = (f64::from(n) * std::f64::consts::TAU / 50_000.0, 10.0 + f64::from(n * 7919 % 30));
            Position { x: radius * angle.cos(), y: radius * angle.sin(), z: 0.0 }
        };
        let ring: Vec<_> = (0..50_000).chain([0]).map(place).collect();
        assert!(is_proven(&Kind::Polygon(vec![ring])));
    }

    #[test]
    fn puts_the_place_into_words() {
        assert_eq!(with_place("Self-intersection[5 5]"), "Self-intersection at 5 5");
        assert_eq!(with_place("Too few points"), "Too few points");
    }
}
