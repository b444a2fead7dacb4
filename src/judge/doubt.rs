//! Where GEOS may see three places otherwise than they are.
//!
//! Whether they lie on one line, GEOS tells with about 32 digits and no more
//! (`CGAlgorithmsDD::orientationIndex`), which for coordinates like 0.1 and -0.3 can be wrong. The verdict
//! has to be its own all the same: what is stored is looked at by `ST_IsValid`.

use geo::kernels::{Kernel, Orientation, RobustKernel};
use geo::{Coord, Line};

/// Beyond this share of the summands the sign of their difference is certain, here as in GEOS.
const CERTAIN: f64 = 1e-15;
/// Products of smaller ordinates can vanish.
const LEAST_ORDINATE: f64 = 1e-100;

/// Whether GEOS may see a contact of two edges otherwise.
pub(super) fn about_contact(a: &Line, b: &Line) -> bool {
    about_turn(a.start, a.end, b.start)
        || about_turn(a.start, a.end, b.end)
        || about_turn(b.start, b.end, a.start)
        || about_turn(b.start, b.end, a.end)
}

/// Whether GEOS may see otherwise on which side of a line through two places a third one lies.
pub(super) fn about_turn(a: Coord, b: Coord, c: Coord) -> bool {
    let (left, right) = ((a.x - c.x) * (b.y - c.y), (a.y - c.y) * (b.x - c.x));
    if (left - right).abs() >= CERTAIN * (left.abs() + right.abs()) {
        return false;
    }
    let exact = RobustKernel::orient2d(a, b, c);
    // Its answer can depend on the direction of the edge.
    turn(a, b, c) != Some(exact) || turn(b, a, c).map(reversed) != Some(exact)
}

/// Whether a place is so near an axis that nothing can be computed with it, but not on it.
pub(super) fn about_place(x: f64, y: f64) -> bool {
    let is_tiny = |ordinate: f64| ordinate != 0.0 && ordinate.abs() < LEAST_ORDINATE;
    is_tiny(x) || is_tiny(y)
}

fn turn(a: Coord, b: Coord, c: Coord) -> Option<Orientation> {
    // By GEOS's own number: in version 11.3 of the crate the names of its values are mixed up.
    match geos::orientation_index(a.x, a.y, b.x, b.y, c.x, c.y).ok()?.into() {
        -1 => Some(Orientation::Clockwise),
        0 => Some(Orientation::Collinear),
        1 => Some(Orientation::CounterClockwise),
        _ => None,
    }
}

fn reversed(turn: Orientation) -> Orientation {
    match turn {
        Orientation::CounterClockwise => Orientation::Clockwise,
        Orientation::Clockwise => Orientation::CounterClockwise,
        Orientation::Collinear => Orientation::Collinear,
    }
}
