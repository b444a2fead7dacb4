//! A proof of validity for polygons of any size in n log n: rings that touch nowhere, neither
//! themselves nor each other, and lie inside one another as shells and holes should.
//!
//! The sweep of Shamos and Hoey (Geometric intersection problems, 1976,
//! <https://doi.org/10.1109/SFCS.1976.16>), with exact predicates. It says nothing about rings that
//! do touch, which may be valid all the same. What GEOS needs minutes for, jagged rings of which
//! every edge lies near every other, takes this no longer than smooth ones.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Bound;

use geo::kernels::{Kernel, Orientation, RobustKernel};
use geo::{Coord, Intersects, Line};

use super::geometry::Position;

/// True only if the polygons, together, are certainly valid.
pub(super) fn are_apart(polygons: &[Vec<Vec<Position>>]) -> bool {
    let mut rings = Vec::new();
    for polygon in polygons {
        let shell = rings.len();
        for (place, positions) in polygon.iter().enumerate() {
            let Some(corners) = corners(positions) else { return false };
            rings.push(Ring { corners, shell: (place > 0).then_some(shell), runs_left: false, around: None });
        }
    }
    let mut sweep = Sweep { rings, active: BTreeSet::new() };
    sweep.touches_nothing() && sweep.nests_well()
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
    fn touches_nothing(&mut self) -> bool {
        let mut meetings: Vec<(Coord, usize, usize)> = Vec::new();
        for (ring, Ring { corners, .. }) in self.rings.iter().enumerate() {
            meetings.extend(corners.iter().enumerate().map(|(corner, place)| (*place, ring, corner)));
        }
        meetings.sort_unstable_by(|a, b| order(a.0, b.0));
        if meetings.windows(2).any(|pair| matches!(pair, [a, b] if a.0 == b.0)) {
            return false;
        }
        let mut met = vec![false; self.rings.len()];
        meetings.into_iter().all(|(place, ring, corner)| {
            let (Some(into), Some(out)) = (self.edge_into(ring, corner), self.edge_out(ring, corner)) else {
                return false;
            };
            let is_first = !std::mem::replace(&mut met[ring], true);
            match (into.right == place, out.right == place) {
                (true, true) => !into.folds(&out) && self.close(&into, &out),
                (true, false) => self.active.remove(&into) && self.open(out),
                (false, true) => self.active.remove(&out) && self.open(into),
                (false, false) if into.folds(&out) => false,
                (false, false) => {
                    if is_first {
                        self.place_ring(ring, &into, &out);
                    }
                    self.open(into) && self.open(out)
                }
            }
        })
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

    fn open(&mut self, edge: Edge) -> bool {
        let below = self.active.range(..&edge).next_back();
        let above = self.active.range((Bound::Excluded(&edge), Bound::Unbounded)).next();
        let is_apart = [below, above].into_iter().flatten().all(|other| self.is_apart(&edge, other));
        is_apart && self.active.insert(edge)
    }

    fn close(&mut self, one: &Edge, other: &Edge) -> bool {
        if !self.active.remove(one) || !self.active.remove(other) {
            return false;
        }
        let (low, high) = if one < other { (one, other) } else { (other, one) };
        let below = self.active.range(..low).next_back();
        let above = self.active.range((Bound::Excluded(high), Bound::Unbounded)).next();
        match (below, above) {
            (Some(below), Some(above)) => self.is_apart(below, above),
            _ => true,
        }
    }

    /// Edges that follow each other share their corner, and have been looked at there.
    fn is_apart(&self, a: &Edge, b: &Edge) -> bool {
        let follows = |from: &Edge, to: &Edge| {
            let corners = self.rings.get(from.ring).map_or(0, |ring| ring.corners.len());
            from.ring == to.ring && (from.corner + 1 == to.corner || (from.corner + 1 == corners && to.corner == 0))
        };
        follows(a, b) || follows(b, a) || !a.line().intersects(&b.line())
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
