//! A proof for polygons of any size in n log n. Valid are rings that touch nowhere, neither
//! themselves nor each other, and lie inside one another as shells and holes should; invalid is a
//! ring that touches itself, and are rings that cross or run along each other.
//!
//! The sweep of Shamos and Hoey (Geometric intersection problems, 1976,
//! <https://doi.org/10.1109/SFCS.1976.16>), with exact predicates. It ends with the first contact, and
//! says nothing about rings that touch others in a point, which may be valid or not. What GEOS needs
//! minutes for, jagged rings of which every edge lies near every other, takes this no longer than
//! smooth ones.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Bound;

use geo::kernels::{Kernel, Orientation, RobustKernel};
use geo::line_intersection::{LineIntersection, line_intersection};
use geo::{Coord, Intersects, Line};

use super::geometry::Position;

/// What the sweep can tell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Finding {
    /// Certainly valid.
    Valid,
    /// Certainly not: what GEOS calls it, and where it is.
    Fault(&'static str, Coord),
    /// Neither.
    Unsure,
}

const SELF_INTERSECTION: &str = "Self-intersection";
const RING_SELF_INTERSECTION: &str = "Ring Self-intersection";

/// Looks at all polygons of one geometry together.
pub(super) fn judge(polygons: &[Vec<Vec<Position>>]) -> Finding {
    let mut rings = Vec::new();
    for polygon in polygons {
        let shell = rings.len();
        for (place, positions) in polygon.iter().enumerate() {
            let Some(corners) = corners(positions) else { return Finding::Unsure };
            rings.push(Ring { corners, shell: (place > 0).then_some(shell), runs_left: false, around: None });
        }
    }
    let mut sweep = Sweep { rings, active: BTreeSet::new() };
    match sweep.run() {
        Err(contact) => contact,
        Ok(()) if sweep.nests_well() => Finding::Valid,
        Ok(()) => Finding::Unsure,
    }
}

/// The ring without its closing position and without repetitions.
fn corners(positions: &[Position]) -> Option<Vec<Coord>> {
    // Adding 0 turns -0 into 0: they are one place, and have to have one order.
    let mut corners: Vec<Coord> = positions.iter().map(|p| Coord { x: p.x + 0.0, y: p.y + 0.0 }).collect();
    corners.dedup();
    if corners.len() > 1 && corners.first() == corners.last() {
        corners.pop();
    }
    (corners.len() > 2).then_some(corners)
}

struct Ring {
    corners: Vec<Coord>,
    /// For a hole: the place of its shell.
    shell: Option<usize>,
    /// Whether it runs counter-clockwise: its inside is on the left of its edges.
    runs_left: bool,
    /// The innermost ring that it lies in.
    around: Option<usize>,
}

struct Sweep {
    rings: Vec<Ring>,
    /// The edges that the sweep line crosses, lowest first.
    active: BTreeSet<Edge>,
}

/// An edge, its ends in the order in which the sweep meets them.
#[derive(Clone, Copy, Debug)]
struct Edge {
    left: Coord,
    right: Coord,
    ring: usize,
    /// The corner that it runs from, in the ring's direction.
    corner: usize,
    /// Whether the ring runs along it from left to right.
    forward: bool,
}

impl Sweep {
    /// Meets every corner from left to right. An edge can touch only what is its neighbour on the
    /// sweep line just before, so that it is enough to look at new neighbours.
    fn run(&mut self) -> Result<(), Finding> {
        let mut meetings: Vec<(Coord, usize, usize)> = Vec::new();
        for (ring, Ring { corners, .. }) in self.rings.iter().enumerate() {
            meetings.extend(corners.iter().enumerate().map(|(corner, place)| (*place, ring, corner)));
        }
        meetings.sort_unstable_by(|a, b| order(a.0, b.0).then(a.1.cmp(&b.1)));
        let mut pairs = meetings.windows(2).filter_map(|pair| <&[_; 2]>::try_from(pair).ok());
        if let Some([twice, _]) = pairs.clone().find(|[a, b]| a.0 == b.0 && a.1 == b.1) {
            return Err(Finding::Fault(RING_SELF_INTERSECTION, twice.0));
        }
        if pairs.any(|[a, b]| a.0 == b.0) {
            return Err(Finding::Unsure);
        }
        let mut met = vec![false; self.rings.len()];
        for (place, ring, corner) in meetings {
            let (Some(into), Some(out)) = (self.edge_into(ring, corner), self.edge_out(ring, corner)) else {
                return Err(Finding::Unsure);
            };
            let is_first = !std::mem::replace(&mut met[ring], true);
            let (ends, begins) = (into.right == place, out.right == place);
            if ends == begins && into.folds(&out) {
                return Err(Finding::Fault(SELF_INTERSECTION, place));
            }
            match (ends, begins) {
                (true, true) => self.close(&into, &out)?,
                (true, false) => {
                    self.remove(&into)?;
                    self.open(out)?;
                }
                (false, true) => {
                    self.remove(&out)?;
                    self.open(into)?;
                }
                (false, false) => {
                    if is_first {
                        self.place_ring(ring, &into, &out);
                    }
                    self.open(into)?;
                    self.open(out)?;
                }
            }
        }
        Ok(())
    }

    fn edge_out(&self, ring: usize, corner: usize) -> Option<Edge> {
        let corners = &self.rings.get(ring)?.corners;
        let (from, to) = (*corners.get(corner)?, *corners.get(corner + 1).or(corners.first())?);
        let forward = order(from, to) == Ordering::Less;
        let (left, right) = if forward { (from, to) } else { (to, from) };
        Some(Edge { left, right, ring, corner, forward })
    }

    fn edge_into(&self, ring: usize, corner: usize) -> Option<Edge> {
        let last = self.rings.get(ring)?.corners.len().checked_sub(1)?;
        self.edge_out(ring, corner.checked_sub(1).unwrap_or(last))
    }

    /// At the leftmost corner of a ring: which way it runs, and what it lies in.
    fn place_ring(&mut self, ring: usize, into: &Edge, out: &Edge) {
        let runs_left = out < into;
        let below = self.active.range(..out.min(into)).next_back();
        let around = below.and_then(|edge| {
            let other = self.rings.get(edge.ring)?;
            if edge.forward == other.runs_left { Some(edge.ring) } else { other.around }
        });
        if let Some(ring) = self.rings.get_mut(ring) {
            ring.runs_left = runs_left;
            ring.around = around;
        }
    }

    fn open(&mut self, edge: Edge) -> Result<(), Finding> {
        let below = self.active.range(..&edge).next_back();
        let above = self.active.range((Bound::Excluded(&edge), Bound::Unbounded)).next();
        for other in [below, above].into_iter().flatten() {
            self.look(&edge, other)?;
        }
        if self.active.insert(edge) { Ok(()) } else { Err(Finding::Unsure) }
    }

    fn remove(&mut self, edge: &Edge) -> Result<(), Finding> {
        if self.active.remove(edge) { Ok(()) } else { Err(Finding::Unsure) }
    }

    fn close(&mut self, one: &Edge, other: &Edge) -> Result<(), Finding> {
        self.remove(one)?;
        self.remove(other)?;
        let (low, high) = if one < other { (one, other) } else { (other, one) };
        let below = self.active.range(..low).next_back();
        let above = self.active.range((Bound::Excluded(high), Bound::Unbounded)).next();
        match (below, above) {
            (Some(below), Some(above)) => self.look(below, above),
            _ => Ok(()),
        }
    }

    /// Whether two edges have a contact, and which. Those that follow each other share their corner,
    /// and have been looked at there.
    fn look(&self, a: &Edge, b: &Edge) -> Result<(), Finding> {
        let follows = |from: &Edge, to: &Edge| {
            let corners = self.rings.get(from.ring).map_or(0, |ring| ring.corners.len());
            from.ring == to.ring && (from.corner + 1 == to.corner || (from.corner + 1 == corners && to.corner == 0))
        };
        if follows(a, b) || follows(b, a) || !a.line().intersects(&b.line()) {
            return Ok(());
        }
        Err(match line_intersection(a.line(), b.line()) {
            Some(LineIntersection::SinglePoint { intersection, is_proper: true }) => {
                Finding::Fault(SELF_INTERSECTION, intersection)
            }
            Some(LineIntersection::Collinear { intersection }) if intersection.start != intersection.end => {
                Finding::Fault(SELF_INTERSECTION, intersection.start)
            }
            Some(LineIntersection::SinglePoint { intersection, .. }) if a.ring == b.ring => {
                Finding::Fault(RING_SELF_INTERSECTION, intersection)
            }
            _ => Finding::Unsure,
        })
    }

    /// Every hole in its own shell, every shell in nothing or in a hole of another polygon.
    fn nests_well(&self) -> bool {
        self.rings.iter().all(|ring| match (ring.shell, ring.around) {
            (Some(shell), around) => around == Some(shell),
            (None, None) => true,
            (None, Some(around)) => self.rings.get(around).is_some_and(|around| around.shell.is_some()),
        })
    }
}

impl Edge {
    fn line(&self) -> Line {
        Line { start: self.left, end: self.right }
    }

    /// Of two edges that share an end on one side of the sweep line: whether one lies on the other.
    fn folds(&self, other: &Self) -> bool {
        let far = if self.left == other.left { other.right } else { other.left };
        RobustKernel::orient2d(self.left, self.right, far) == Orientation::Collinear
    }
}

/// From left to right, and from bottom to top where that is equal.
fn order(a: Coord, b: Coord) -> Ordering {
    a.x.total_cmp(&b.x).then(a.y.total_cmp(&b.y))
}

/// The order along the sweep line. Right for edges that the line crosses together and that do not
/// cross each other; which is all that it is asked about before the proof fails.
impl Ord for Edge {
    fn cmp(&self, other: &Self) -> Ordering {
        if (self.ring, self.corner) == (other.ring, other.corner) {
            return Ordering::Equal;
        }
        if order(self.left, other.left) == Ordering::Greater {
            return other.cmp(self).reverse();
        }
        for end in [other.left, other.right] {
            match RobustKernel::orient2d(self.left, self.right, end) {
                Orientation::CounterClockwise => return Ordering::Less,
                Orientation::Clockwise => return Ordering::Greater,
                Orientation::Collinear => {}
            }
        }
        (self.ring, self.corner).cmp(&(other.ring, other.corner))
    }
}

impl PartialOrd for Edge {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Edge {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Edge {}
