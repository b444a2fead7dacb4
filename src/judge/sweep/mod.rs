//! The verdict on the topology of polygons of any size, in n log n: rings that touch themselves, cross,
//! or lie inside one another as no shells and holes should; and rings that touch each other in
//! places, which may be valid or cut an interior in two.
//!
//! The sweep of Shamos and Hoey (Geometric intersection problems, 1976,
//! <https://doi.org/10.1109/SFCS.1976.16>), with exact predicates. It ends with the first crossing, so
//! that it never has to go on behind one; places in which rings touch are judged at the end. What GEOS
//! needs minutes for, jagged rings of which every edge lies near every other, takes this no longer
//! than smooth ones.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Bound;

use geo::line_intersection::{LineIntersection, line_intersection};
use geo::{Coord, Intersects};

use super::doubt;
use super::geometry::Position;

mod contacts;
mod edge;

use contacts::Contacts;
use edge::{Edge, order};

/// What the sweep can tell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Finding {
    Valid,
    /// What GEOS calls it, and where it is.
    Fault(&'static str, Coord),
    /// GEOS has to be asked: a ring has fewer than three places, or GEOS may see places on one line that
    /// are not, or the other way round.
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
    let mut sweep = Sweep { rings, active: BTreeSet::new(), contacts: Contacts::default() };
    match sweep.run().and_then(|()| sweep.verdict()) {
        Ok(()) => Finding::Valid,
        Err(finding) => finding,
    }
}

/// The ring without its closing position and without repetitions, if there is enough of it.
fn corners(positions: &[Position]) -> Option<Vec<Coord>> {
    // Adding 0 turns -0 into 0: they are one place, and have to have one order.
    let mut corners: Vec<Coord> = positions.iter().map(|p| Coord { x: p.x + 0.0, y: p.y + 0.0 }).collect();
    if corners.iter().any(|corner| doubt::about_place(corner.x, corner.y)) {
        return None;
    }
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
    contacts: Contacts,
}

/// A corner of a ring.
#[derive(Clone, Copy)]
struct Corner {
    place: Coord,
    ring: usize,
    number: usize,
}

impl Sweep {
    /// Meets every place from left to right. Edges that come together are neighbours on the sweep line
    /// just before, perhaps with others between them that come to the same place; so that it is
    /// enough to look at new neighbours.
    fn run(&mut self) -> Result<(), Finding> {
        let mut corners: Vec<Corner> = Vec::new();
        for (ring, Ring { corners: places, .. }) in self.rings.iter().enumerate() {
            corners.extend(places.iter().enumerate().map(|(number, &place)| Corner { place, ring, number }));
        }
        corners.sort_unstable_by(|a, b| order(a.place, b.place).then(a.ring.cmp(&b.ring)));
        let twice = |pair: &[Corner]| pair[0].place == pair[1].place && pair[0].ring == pair[1].ring;
        if let Some(pair) = corners.windows(2).find(|pair| twice(pair)) {
            return Err(Finding::Fault(RING_SELF_INTERSECTION, pair[0].place));
        }
        let mut met = vec![false; self.rings.len()];
        corners.chunk_by(|a, b| a.place == b.place).try_for_each(|corners| self.meet(corners, &mut met))
    }

    /// Meets the corners of one place. What ends there is taken off the sweep line before anything that
    /// begins there is put on it: the order between them is not defined.
    fn meet(&mut self, corners: &[Corner], met: &mut [bool]) -> Result<(), Finding> {
        let mut ended: Vec<Edge> = Vec::new();
        for corner in corners {
            let (into, out) = self.edges_at(corner)?;
            let (ends, begins) = (into.right == corner.place, out.right == corner.place);
            if ends == begins && into.folds(&out)? {
                return Err(Finding::Fault(SELF_INTERSECTION, corner.place));
            }
            for edge in [into, out].into_iter().filter(|edge| edge.right == corner.place) {
                self.remove(&edge)?;
                ended.push(edge);
            }
            if corners.len() > 1 {
                self.contacts.add_corner(corner.place, &into, &out);
            }
        }
        // Each of them: an edge that passes through the place parts what has ended there.
        for edge in &ended {
            if let (Some(below), Some(above)) = self.neighbours(edge) {
                self.look(&below, &above)?;
            }
        }
        let mut first_met: Vec<(Edge, Edge)> = Vec::new();
        for corner in corners {
            let (into, out) = self.edges_at(corner)?;
            for edge in [into, out].into_iter().filter(|edge| edge.left == corner.place) {
                self.open(edge)?;
            }
            if !std::mem::replace(&mut met[corner.ring], true) {
                first_met.push((into, out));
            }
        }
        // From below: what a ring lies in is told by what lies below it.
        first_met.sort_unstable_by_key(|(into, out)| *into.min(out));
        for (into, out) in first_met {
            self.place_ring(&into, &out);
        }
        Ok(())
    }

    fn edges_at(&self, corner: &Corner) -> Result<(Edge, Edge), Finding> {
        let edges = self.edge_into(corner.ring, corner.number).zip(self.edge_out(corner.ring, corner.number));
        edges.ok_or(Finding::Unsure)
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
    fn place_ring(&mut self, into: &Edge, out: &Edge) {
        let around = self.active.range(..out.min(into)).next_back().and_then(|below| {
            let other = self.rings.get(below.ring)?;
            if below.forward == other.runs_left { Some(below.ring) } else { other.around }
        });
        if let Some(ring) = self.rings.get_mut(out.ring) {
            ring.runs_left = out < into;
            ring.around = around;
        }
    }

    fn open(&mut self, edge: Edge) -> Result<(), Finding> {
        let (below, above) = self.neighbours(&edge);
        for other in [below, above].into_iter().flatten() {
            self.look(&edge, &other)?;
        }
        if self.active.insert(edge) { Ok(()) } else { Err(Finding::Unsure) }
    }

    fn remove(&mut self, edge: &Edge) -> Result<(), Finding> {
        if self.active.remove(edge) { Ok(()) } else { Err(Finding::Unsure) }
    }

    /// What lies next below and above an edge, which itself may be on the sweep line or not.
    fn neighbours(&self, edge: &Edge) -> (Option<Edge>, Option<Edge>) {
        let below = self.active.range(..edge).next_back();
        let above = self.active.range((Bound::Excluded(edge), Bound::Unbounded)).next();
        (below.copied(), above.copied())
    }

    /// Whether two edges have a contact, and which. Those that follow each other share their corner,
    /// and have been looked at there.
    fn look(&mut self, a: &Edge, b: &Edge) -> Result<(), Finding> {
        let follows = |from: &Edge, to: &Edge| {
            let corners = self.rings.get(from.ring).map_or(0, |ring| ring.corners.len());
            from.ring == to.ring && (from.corner + 1 == to.corner || (from.corner + 1 == corners && to.corner == 0))
        };
        if follows(a, b) || follows(b, a) || !a.is_near(b) {
            return Ok(());
        }
        if doubt::about_contact(&a.line(), &b.line()) {
            return Err(Finding::Unsure);
        }
        if !a.line().intersects(&b.line()) {
            return Ok(());
        }
        match line_intersection(a.line(), b.line()) {
            Some(LineIntersection::SinglePoint { intersection, is_proper: true }) => {
                Err(Finding::Fault(SELF_INTERSECTION, intersection))
            }
            Some(LineIntersection::Collinear { intersection }) if intersection.start != intersection.end => {
                Err(Finding::Fault(SELF_INTERSECTION, intersection.start))
            }
            Some(LineIntersection::SinglePoint { intersection, .. }) if a.ring == b.ring => {
                Err(Finding::Fault(RING_SELF_INTERSECTION, intersection))
            }
            _ => self.touch(a, b),
        }
    }

    /// Edges of different rings that share one place, which is an end of at least one of them.
    fn touch(&mut self, a: &Edge, b: &Edge) -> Result<(), Finding> {
        for (edge, other) in [(a, b), (b, a)] {
            for place in [other.left, other.right] {
                if place == edge.left || place == edge.right {
                    // Both have a corner there, and are met together.
                    return Ok(());
                }
                if edge.has_within(place) {
                    self.contacts.add_edge(place, edge);
                    self.add_corner_of(other, place);
                    return Ok(());
                }
            }
        }
        Err(Finding::Unsure)
    }

    fn add_corner_of(&mut self, edge: &Edge, place: Coord) {
        let starts_there = edge.forward == (edge.left == place);
        let Some(corners) = self.rings.get(edge.ring).map(|ring| ring.corners.len()) else { return };
        let number = if starts_there { edge.corner } else { (edge.corner + 1) % corners };
        if let Ok((into, out)) = self.edges_at(&Corner { place, ring: edge.ring, number }) {
            self.contacts.add_corner(place, &into, &out);
        }
    }

    /// What the whole of it tells that no two edges did.
    fn verdict(&mut self) -> Result<(), Finding> {
        std::mem::take(&mut self.contacts).judge(&self.rings)?;
        self.nesting()
    }

    /// Every hole in its own shell, every shell in nothing or in a hole of another polygon.
    fn nesting(&self) -> Result<(), Finding> {
        for ring in &self.rings {
            let around = ring.around.and_then(|around| self.rings.get(around));
            let fault = match (ring.shell, around) {
                (Some(shell), _) if ring.around == Some(shell) => continue,
                (Some(shell), Some(around)) if around.shell == Some(shell) => "Holes are nested",
                (Some(_), _) => "Hole lies outside shell",
                (None, Some(around)) if around.shell.is_none() => "Nested shells",
                (None, _) => continue,
            };
            let place = ring.corners.iter().copied().min_by(|a, b| order(*a, *b));
            return Err(place.map_or(Finding::Unsure, |place| Finding::Fault(fault, place)));
        }
        Ok(())
    }
}
