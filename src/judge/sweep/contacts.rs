//! Places in which rings touch: whether they cross there, and whether what they enclose stays in one piece.

use std::cmp::Ordering;

use geo::Coord;
use geo::kernels::{Kernel, Orientation, RobustKernel};

use super::edge::{Edge, order};
use super::{Finding, RING_SELF_INTERSECTION, Ring, SELF_INTERSECTION};

const DISCONNECTED: &str = "Interior is disconnected";

/// The way of a ring through a place that another ring meets too.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pass {
    place: Coord,
    ring: usize,
    /// Where the ring comes from, and where it goes on to.
    ends: [Coord; 2],
}

/// Every place in which rings touch; the same one may be told several times.
#[derive(Debug, Default)]
pub(super) struct Contacts {
    passes: Vec<Pass>,
}

impl Contacts {
    /// A corner: the end of `into` and the start of `out`.
    pub(super) fn add_corner(&mut self, place: Coord, into: &Edge, out: &Edge) {
        self.passes.push(Pass { place, ring: into.ring, ends: [into.other_end(place), out.other_end(place)] });
    }

    /// A place within an edge.
    pub(super) fn add_edge(&mut self, place: Coord, edge: &Edge) {
        let ends = if edge.forward { [edge.left, edge.right] } else { [edge.right, edge.left] };
        self.passes.push(Pass { place, ring: edge.ring, ends });
    }

    /// Ends with the first fault.
    pub(super) fn judge(mut self, rings: &[Ring]) -> Result<(), Finding> {
        self.passes.sort_unstable_by(|a, b| {
            let ends = || order(a.ends[0], b.ends[0]).then(order(a.ends[1], b.ends[1]));
            order(a.place, b.place).then(a.ring.cmp(&b.ring)).then_with(ends)
        });
        self.passes.dedup();
        for passes in self.passes.chunk_by(|a, b| a.place == b.place) {
            for (pass, next) in passes.iter().zip(passes.iter().skip(1)) {
                if pass.ring == next.ring {
                    return Err(Finding::Fault(RING_SELF_INTERSECTION, pass.place));
                }
            }
            if cross(passes) {
                return Err(Finding::Fault(SELF_INTERSECTION, passes[0].place));
            }
        }
        self.interiors_are_connected(rings)
    }

    /// Rings of one polygon that touch in a chain which closes cut a piece off its interior. Those
    /// that all meet in one place cut nothing off.
    fn interiors_are_connected(&self, rings: &[Ring]) -> Result<(), Finding> {
        let mut joined = Joined::new(rings.len());
        let polygon = |pass: &Pass| rings.get(pass.ring).map_or(pass.ring, |ring| ring.shell.unwrap_or(pass.ring));
        for passes in self.passes.chunk_by(|a, b| a.place == b.place && polygon(a) == polygon(b)) {
            let place = joined.add();
            for pass in passes {
                if !joined.join(place, pass.ring) {
                    return Err(Finding::Fault(DISCONNECTED, pass.place));
                }
            }
        }
        Ok(())
    }
}

/// Whether any of the rings that pass one place changes the side of another there: then, on the way
/// around the place, the two ends of one do not enclose both ends of the other or none.
fn cross(passes: &[Pass]) -> bool {
    let mut ways: Vec<(Coord, &Pass)> = passes.iter().flat_map(|pass| pass.ends.map(|end| (end, pass))).collect();
    ways.sort_by(|a, b| around(a.1.place, a.0, b.0));
    let mut begun: Vec<usize> = Vec::new();
    for (_, pass) in ways {
        if begun.last() == Some(&pass.ring) {
            begun.pop();
        } else {
            begun.push(pass.ring);
        }
    }
    !begun.is_empty()
}

/// Counter-clockwise around `centre`, beginning below it.
fn around(centre: Coord, a: Coord, b: Coord) -> Ordering {
    let is_left = |place: Coord| order(place, centre) == Ordering::Less;
    is_left(a).cmp(&is_left(b)).then_with(|| match RobustKernel::orient2d(centre, a, b) {
        Orientation::CounterClockwise => Ordering::Less,
        Orientation::Clockwise => Ordering::Greater,
        Orientation::Collinear => Ordering::Equal,
    })
}

impl Edge {
    fn other_end(&self, end: Coord) -> Coord {
        if self.left == end { self.right } else { self.left }
    }
}

/// Sets of things, each known by a number; a union-find with halved paths.
struct Joined {
    above: Vec<usize>,
}

impl Joined {
    fn new(count: usize) -> Self {
        Self { above: (0..count).collect() }
    }

    fn add(&mut self) -> usize {
        self.above.push(self.above.len());
        self.above.len() - 1
    }

    fn root(&mut self, mut of: usize) -> usize {
        while self.above[of] != of {
            self.above[of] = self.above[self.above[of]];
            of = self.above[of];
        }
        of
    }

    /// Whether they were apart.
    fn join(&mut self, a: usize, b: usize) -> bool {
        let (a, b) = (self.root(a), self.root(b));
        self.above[b] = a;
        a != b
    }
}
