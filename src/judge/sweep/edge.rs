//! Edges and the order in which the sweep line crosses them.

use std::cmp::Ordering;

use geo::kernels::{Kernel, Orientation, RobustKernel};
use geo::{Coord, Line};

use super::Finding;
use crate::judge::doubt;

/// An edge, its ends in the order in which the sweep meets them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    pub left: Coord,
    pub right: Coord,
    pub ring: usize,
    /// The corner that it runs from, in the ring's direction.
    pub corner: usize,
    /// Whether the ring runs along it from left to right.
    pub forward: bool,
}

impl Edge {
    pub(super) fn line(&self) -> Line {
        Line { start: self.left, end: self.right }
    }

    /// Whether `place` lies on it and is none of its ends.
    pub(super) fn has_within(&self, place: Coord) -> bool {
        order(self.left, place) == Ordering::Less
            && order(place, self.right) == Ordering::Less
            && RobustKernel::orient2d(self.left, self.right, place) == Orientation::Collinear
    }

    /// Whether the boxes around two edges have anything in common.
    pub(super) fn is_near(&self, other: &Self) -> bool {
        let overlap = |a: (f64, f64), b: (f64, f64)| a.0.min(a.1) <= b.0.max(b.1) && b.0.min(b.1) <= a.0.max(a.1);
        overlap((self.left.x, self.right.x), (other.left.x, other.right.x))
            && overlap((self.left.y, self.right.y), (other.left.y, other.right.y))
    }

    /// Of two edges that share an end on one side of the sweep line: whether one lies on the other.
    pub(super) fn folds(&self, other: &Self) -> Result<bool, Finding> {
        let far = if self.left == other.left { other.right } else { other.left };
        if doubt::about_turn(self.left, self.right, far) {
            return Err(Finding::Unsure);
        }
        Ok(RobustKernel::orient2d(self.left, self.right, far) == Orientation::Collinear)
    }
}

/// From left to right, and from bottom to top where that is equal.
pub(super) fn order(a: Coord, b: Coord) -> Ordering {
    a.x.total_cmp(&b.x).then(a.y.total_cmp(&b.y))
}

/// The order along the sweep line. Right for edges that the line crosses together and that do not
/// cross each other, also where they touch.
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
