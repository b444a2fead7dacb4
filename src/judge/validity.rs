//! Topological validity by the OGC rules: the verdict of PostGIS's `ST_IsValid`, which is that of
//! GEOS, found without asking the database, and where it matters without GEOS, whose time grows with
//! the square of the positions.

use geo::kernels::{Kernel, Orientation, RobustKernel};
use geo::{Coord, Intersects, Line};
use geos::Geom;

use super::Fault;
use super::doubt;
use super::geometry::{Geometry, Kind, Position};
use super::sweep::{self, Finding};
use crate::event::Reason;

/// Up to here looking at every pair of edges is quicker than sweeping.
const QUICK_PROOF_POSITIONS: usize = 100;

/// Judges `footprint`, the two-dimensional EWKB of `geometry`: exactly what will be stored.
pub(super) fn check(geometry: &Geometry, footprint: &[u8]) -> Result<(), Fault> {
    match prove(&geometry.kind) {
        Finding::Valid => Ok(()),
        Finding::Fault(what, place) => {
            Err(Fault::new(Reason::InvalidTopology, format!("{what} at {} {}", place.x, place.y)))
        }
        Finding::Unsure => ask_geos(footprint),
    }
}

/// What needs no GEOS: all but lines and rings that are hardly there, and what it may see its own way.
fn prove(kind: &Kind) -> Finding {
    let valid_if = |proven: bool| if proven { Finding::Valid } else { Finding::Unsure };
    match kind {
        Kind::Point(_) | Kind::MultiPoint(_) => Finding::Valid,
        Kind::LineString(line) => valid_if(has_two_places(line)),
        Kind::MultiLineString(lines) => valid_if(lines.iter().all(|line| has_two_places(line))),
        Kind::Polygon(rings) => prove_polygons(std::slice::from_ref(rings)),
        Kind::MultiPolygon(polygons) => prove_polygons(polygons),
        Kind::Collection(members) => {
            members.iter().map(prove).fold(Finding::Valid, |before, member| match (before, member) {
                (Finding::Fault(..), _) => before,
                (_, Finding::Fault(..)) | (Finding::Valid, _) => member,
                (Finding::Unsure, _) => before,
            })
        }
    }
}

fn has_two_places(line: &[Position]) -> bool {
    line.iter().zip(line.iter().skip(1)).any(|(a, b)| a.x != b.x || a.y != b.y)
}

fn prove_polygons(polygons: &[Vec<Vec<Position>>]) -> Finding {
    if let [rings] = polygons
        && let [shell] = rings.as_slice()
        && shell.len() <= QUICK_PROOF_POSITIONS
        && touches_itself_nowhere(shell)
    {
        return Finding::Valid;
    }
    sweep::judge(polygons)
}

/// A ring that nowhere touches itself bounds a valid polygon. Every pair of edges is looked at: no
/// index can be set up as quickly for so few.
fn touches_itself_nowhere(shell: &[Position]) -> bool {
    let mut corners: Vec<Coord> = shell.iter().map(|p| Coord { x: p.x, y: p.y }).collect();
    if corners.iter().any(|corner| doubt::about_place(corner.x, corner.y)) {
        return false;
    }
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
                _ => !edge.is_near(other) || !may_meet(&edge.line, &other.line),
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

fn may_meet(a: &Line, b: &Line) -> bool {
    a.intersects(b) || doubt::about_contact(a, b)
}

/// Whether `next`, which starts where `edge` ends, may run back along it.
fn folds_back(edge: &Line, next: &Line) -> bool {
    let same_way = (edge.dx() > 0.0) == (next.dx() > 0.0) && (edge.dy() > 0.0) == (next.dy() > 0.0);
    !same_way
        && (RobustKernel::orient2d(edge.start, edge.end, next.end) == Orientation::Collinear
            || doubt::about_turn(edge.start, edge.end, next.end))
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

    /// Multiples of a tenth and a third cannot be written exactly.
    const STEPS: [f64; 3] = [1.0, 0.1, 1.0 / 3.0];

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
        let geometry = Geometry { kind: kind.clone(), first: None, has_heights: false, vertices: 1 };
        ask_geos(&encode::encode(&geometry).unwrap().footprint)
    }

    fn rings_of(kind: &Kind) -> impl Iterator<Item = &Vec<Position>> {
        let polygons = match kind {
            Kind::Polygon(rings) => std::slice::from_ref(rings),
            Kind::MultiPolygon(polygons) => polygons,
            _ => &[],
        };
        polygons.iter().flatten()
    }

    /// A ring of fewer than three places, repetitions aside.
    fn has_a_flat_ring(kind: &Kind) -> bool {
        let is_flat = |ring: &Vec<Position>| {
            let mut ring = ring.clone();
            ring.dedup();
            ring.len() < 4
        };
        rings_of(kind).any(is_flat)
    }

    fn all_whole(kind: &Kind) -> bool {
        let whole = |ring: &Vec<Position>| ring.iter().all(|place| place.x.fract() == 0.0 && place.y.fract() == 0.0);
        rings_of(kind).all(whole)
    }

    /// What is told is what GEOS says; and of whole numbers everything is told but flat rings. Answers
    /// how many are valid, how many are not, and of how many others nothing was told.
    fn compare(shapes: impl Iterator<Item = Kind>, judge: impl Fn(&Kind) -> Finding) -> [u32; 3] {
        let mut counts = [0; 3];
        for kind in shapes {
            let verdict = verdict(&kind);
            match judge(&kind) {
                Finding::Valid => {
                    assert_eq!(verdict, Ok(()), "{kind:?}");
                    counts[0] += 1;
                }
                Finding::Fault(what, place) => {
                    assert!(verdict.is_err(), "{what} at {place:?}: {kind:?}");
                    counts[1] += 1;
                }
                Finding::Unsure if has_a_flat_ring(&kind) => {}
                Finding::Unsure => {
                    assert!(!all_whole(&kind), "{kind:?}");
                    counts[2] += 1;
                }
            }
        }
        counts
    }

    #[test]
    fn small_rings_are_judged_as_geos_does() {
        let mut random = SmallRng::seed_from_u64(1);
        let shapes = (0..20_000).map(|_| {
            let step = STEPS[random.random_range(0..STEPS.len())];
            Kind::Polygon(vec![ring(&mut random, step, 5)])
        });
        let [valid, invalid, unsure] = compare(shapes, prove);
        assert!(valid > 1000 && invalid > 1000 && unsure < 200, "{valid} {invalid} {unsure}");
    }

    fn moved(mut kind: Kind, by: f64) -> Kind {
        let rings = match &mut kind {
            Kind::Polygon(rings) => rings.iter_mut().collect::<Vec<_>>(),
            Kind::MultiPolygon(polygons) => polygons.iter_mut().flatten().collect(),
            _ => Vec::new(),
        };
        for place in rings.into_iter().flatten() {
            (place.x, place.y) = (place.x + by, place.y + by);
        }
        kind
    }

    /// A triangle or a square on the grid, large enough to touch others.
    fn tile(random: &mut SmallRng, step: f64, grid: u8) -> Vec<Position> {
        const TILES: [&[(f64, f64)]; 5] = [
            &[(0.0, 0.0), (1.0, 1.0), (1.0, 0.0)],
            &[(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)],
            &[(0.0, 0.0), (0.0, 1.0), (1.0, 1.0), (1.0, 0.0)],
            &[(1.0, 0.0), (2.0, 1.0), (1.0, 2.0), (0.0, 1.0)],
            &[(0.0, 0.0), (1.0, 2.0), (2.0, 0.0)],
        ];
        let (x, y) = (f64::from(random.random_range(0..grid)), f64::from(random.random_range(0..grid)));
        let corners = TILES[random.random_range(0..TILES.len())];
        let place = |corner: &(f64, f64)| Position { x: step * (x + corner.0), y: step * (y + corner.1), z: 0.0 };
        corners.iter().chain(&corners[..1]).map(place).collect()
    }

    #[test]
    fn rings_within_beside_and_touching_others_are_judged_as_geos_does() {
        let mut random = SmallRng::seed_from_u64(2);
        let shapes = (0..60_000).map(|n| {
            let step = STEPS[random.random_range(0..STEPS.len())];
            // A wide shell, so that holes and other polygons often lie inside.
            let wide = |low: f64| {
                let (low, high) = (low * step, 12.0 * step);
                let corners = [(low, low), (high, low), (high, high), (low, high), (low, low)];
                corners.map(|(x, y)| Position { x, y, z: 0.0 }).to_vec()
            };
            let small = |random: &mut SmallRng| ring(random, step, 3);
            let tiles = |random: &mut SmallRng| {
                let (count, grid) = (random.random_range(1..8), random.random_range(2..10));
                (0..count).map(|_| tile(random, step, grid)).collect::<Vec<_>>()
            };
            // Half as high: others may lie beside it, and touch it from both sides.
            let low = |random: &mut SmallRng| {
                let (width, height) =
                    (step * f64::from(random.random_range(4..12)), step * f64::from(random.random_range(2..6)));
                let corners = [(0.0, 0.0), (width, 0.0), (width, height), (0.0, height), (0.0, 0.0)];
                corners.map(|(x, y)| Position { x, y, z: 0.0 }).to_vec()
            };
            let kind = match n % 7 {
                0 => Kind::Polygon(vec![ring(&mut random, step, 5)]),
                1 => Kind::Polygon(vec![wide(-1.0), small(&mut random), small(&mut random)]),
                2 => Kind::MultiPolygon(vec![vec![wide(-1.0), ring(&mut random, step, 8)], vec![small(&mut random)]]),
                3 => Kind::MultiPolygon(vec![vec![small(&mut random)], vec![small(&mut random)]]),
                4 => Kind::Polygon([vec![wide(f64::from(random.random_range(-1..1)))], tiles(&mut random)].concat()),
                5 => Kind::MultiPolygon(tiles(&mut random).into_iter().map(|shell| vec![shell]).collect()),
                _ => {
                    let first = [vec![low(&mut random)], tiles(&mut random)].concat();
                    let others = tiles(&mut random).into_iter().map(|shell| vec![shell]);
                    Kind::MultiPolygon(std::iter::once(first).chain(others).collect())
                }
            };
            if random.random_bool(0.5) { moved(kind, -6.0 * step) } else { kind }
        });
        let [valid, invalid, unsure] = compare(shapes, |kind| match kind {
            Kind::Polygon(rings) => sweep::judge(std::slice::from_ref(rings)),
            Kind::MultiPolygon(polygons) => sweep::judge(polygons),
            _ => Finding::Unsure,
        });
        assert!(valid > 5000 && invalid > 5000 && unsure < 600, "{valid} {invalid} {unsure}");
    }

    /// Found by others: what is parted by an edge through one place; what GEOS rounds; what vanishes.
    #[test]
    fn what_others_found_is_judged_as_geos_does() {
        let ring = |text: &str| -> Vec<Position> {
            let ordinate = |text: Option<&str>| text.unwrap().parse().unwrap();
            let position = |pair: &str| {
                let mut pair = pair.split_whitespace();
                Position { x: ordinate(pair.next()), y: ordinate(pair.next()), z: 0.0 }
            };
            text.split(',').map(position).collect()
        };
        for polygons in [
            "0 -10,20 -10,20 0,0 0,0 -10; 3 -2,5 0,3 -1,3 -2; 4 -5,10 0,10 -10,4 -5 / 3 1,5 0,3 2,3 1",
            "0 -10,20 -10,20 0,0 0,0 -10; 3 -2,5 0,3 -1,3 -2; 4 -5,10 0,10 -10,4 -5 / 5 0,7 1,7 2,5 0",
            "4 7,7 7,7 4,4 7 / 0 8,4 8,4 0,0 0,0 8 / 3 7,4 5,6 5,3 7",
            "-0.4 -0.8,0.1 -0.3,0.6 0.2,-0.4 -0.8",
            "-0.4 -0.8,0.6 0.2,0.6 -0.8,-0.4 -0.8; 0.1 -0.3,0.6 -0.7,0.2 -0.6,0.1 -0.3",
            "3.3 4.7,1.2 -0.7,0.5 -2.5,3.3 4.7",
            "-0.4 -0.8,0.6 0.2,0.6 -0.8,-0.4 -0.8 / 0.1 -0.3,-1 1,-1 -0.3,0.1 -0.3",
            "0 0,1e-162 0,1e-162 1e-162,0 1e-162,0 0",
            "0 0,4 0,4 4,0 4,0 0; 1 1,1 2,2 2,1 1; 0 0,1e-200 1e-200,1e-200 2e-200,0 0",
        ] {
            let polygons: Vec<Vec<_>> = polygons.split('/').map(|rings| rings.split(';').map(ring).collect()).collect();
            let kind = Kind::MultiPolygon(polygons);
            let told = match prove(&kind) {
                Finding::Valid => true,
                Finding::Fault(..) => false,
                Finding::Unsure => continue,
            };
            assert_eq!(told, verdict(&kind).is_ok(), "{kind:?}");
        }
    }

    #[test]
    fn a_jagged_ring_takes_no_longer_than_a_smooth_one() {
        // GEOS alone needs a quarter of a minute for it, which is what would fail here.
        let place = |n: u32| {
            let (angle, radius) = (f64::from(n) * std::f64::consts::TAU / 50_000.0, 10.0 + f64::from(n * 7919 % 30));
            Position { x: radius * angle.cos(), y: radius * angle.sin(), z: 0.0 }
        };
        let ring: Vec<_> = (0..50_000).chain([0]).map(place).collect();
        assert_eq!(prove(&Kind::Polygon(vec![ring.clone()])), Finding::Valid);
        let mut crossed = ring;
        crossed.swap(20_000, 20_300);
        assert!(matches!(prove(&Kind::Polygon(vec![crossed])), Finding::Fault(..)));
    }

    #[test]
    fn puts_the_place_into_words() {
        assert_eq!(with_place("Self-intersection[5 5]"), "Self-intersection at 5 5");
        assert_eq!(with_place("Too few points"), "Too few points");
    }
}
