//! The member `coordinates`: nested arrays of numbers, read straight from the text.
//!
//! The text is known to be good JSON, so what stands where is told by single bytes. Numbers go
//! through the standard library, which rounds every one of them correctly and says of a number that
//! is too large that it is infinite; `serde_json` without `float_roundtrip` is a last digit off now
//! and then, which would move vertices.

use super::antimeridian::is_crossing;
use super::geometry::Position;
use super::{Fault, Limits};
use crate::event::Reason;

/// What was noted while reading, to be told once the structure is known to be right.
#[derive(Default)]
pub(super) struct Findings {
    pub empty: Option<&'static str>,
    pub out_of_range: Option<String>,
    pub antimeridian: Option<String>,
    /// Whether positions have a third ordinate; all must agree.
    pub heights: Option<bool>,
    pub vertices: usize,
}

/// Reads one member `coordinates`.
pub(super) struct Coordinates<'t, 'f> {
    text: &'t str,
    at: usize,
    findings: &'f mut Findings,
    limits: &'t Limits,
}

pub(super) fn bad(detail: impl Into<String>) -> Fault {
    Fault::new(Reason::BadGeometry, detail)
}

impl<'t, 'f> Coordinates<'t, 'f> {
    pub(super) fn new(text: &'t str, findings: &'f mut Findings, limits: &'t Limits) -> Self {
        Self { text, at: 0, findings, limits }
    }

    /// A position, or `[]`, which is an empty point.
    pub(super) fn point(&mut self) -> Result<Position, Fault> {
        if let Some(position) = self.position_or_nothing()? {
            return Ok(position);
        }
        self.note_empty("the point has no coordinates");
        Ok(Position::default())
    }

    /// A list of positions with no edges between them.
    pub(super) fn points(&mut self) -> Result<Vec<Position>, Fault> {
        let points = self.positions("the coordinates")?;
        if points.is_empty() {
            self.note_empty("there are no positions");
        }
        Ok(points)
    }

    /// Two positions or more.
    pub(super) fn line(&mut self) -> Result<Vec<Position>, Fault> {
        let line = self.positions("a line")?;
        match line.len() {
            0 => self.note_empty("a line has no positions"),
            1 => return Err(bad("a line has one position; it takes two")),
            _ => self.note_wide_edges(&line),
        }
        Ok(line)
    }

    pub(super) fn lines(&mut self) -> Result<Vec<Vec<Position>>, Fault> {
        let lines = self.list("the coordinates", Self::line)?;
        if lines.is_empty() {
            self.note_empty("there are no lines");
        }
        Ok(lines)
    }

    /// Closed rings; the first is the shell.
    pub(super) fn polygon(&mut self) -> Result<Vec<Vec<Position>>, Fault> {
        let rings = self.list("a polygon", |reader| reader.positions("a ring"))?;
        if rings.iter().all(Vec::is_empty) {
            self.note_empty("a polygon has no positions");
            return Ok(rings);
        }
        for ring in &rings {
            if ring.len() < 4 {
                return Err(bad(format!(
                    "a ring has {} positions; it takes four, the last like the first",
                    ring.len()
                )));
            }
            if ring.first() != ring.last() {
                return Err(bad("a ring is open: its last position is not its first"));
            }
            self.note_wide_edges(ring);
        }
        Ok(rings)
    }

    pub(super) fn polygons(&mut self) -> Result<Vec<Vec<Vec<Position>>>, Fault> {
        let polygons = self.list("the coordinates", Self::polygon)?;
        if polygons.is_empty() {
            self.note_empty("there are no polygons");
        }
        Ok(polygons)
    }

    fn positions(&mut self, what: &str) -> Result<Vec<Position>, Fault> {
        self.list(what, |reader| {
            reader.position_or_nothing()?.ok_or_else(|| bad("a position is [], it takes a longitude and a latitude"))
        })
    }

    fn list<T>(&mut self, what: &str, mut item: impl FnMut(&mut Self) -> Result<T, Fault>) -> Result<Vec<T>, Fault> {
        let mut items = Vec::new();
        if self.peek() != Some(b'[') {
            return Err(bad(format!("{what} is not an array")));
        }
        self.at += 1;
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if self.ends_list() {
                return Ok(items);
            }
        }
    }

    fn position_or_nothing(&mut self) -> Result<Option<Position>, Fault> {
        if self.peek() != Some(b'[') {
            return Err(bad("a position is not an array"));
        }
        self.at += 1;
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(None);
        }
        let mut ordinates = [0.0; 3];
        let mut count = 0;
        loop {
            let number = self.number()?;
            if let Some(ordinate) = ordinates.get_mut(count) {
                *ordinate = number;
            }
            count += 1;
            if self.ends_list() {
                break;
            }
        }
        let [x, y, z] = ordinates;
        self.note_position(Position { x: self.forgive(x, 180.0), y: self.forgive(y, 90.0), z }, count)
    }

    /// Steps over the comma or the closing bracket; true for the bracket. Valid JSON has no third.
    fn ends_list(&mut self) -> bool {
        let more = self.peek() == Some(b',');
        self.at += 1;
        !more
    }

    fn number(&mut self) -> Result<f64, Fault> {
        self.peek();
        let rest = self.text.get(self.at..).unwrap_or_default();
        let length = rest.bytes().take_while(|b| matches!(b, b'0'..=b'9' | b'.' | b'-' | b'+' | b'e' | b'E')).count();
        let number = rest.get(..length).and_then(|number| number.parse().ok());
        self.at += length;
        number.ok_or_else(|| bad("a position holds something that is not a number"))
    }

    /// The next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = bytes.get(self.at) {
            self.at += 1;
        }
        bytes.get(self.at).copied()
    }

    /// What is beyond the limit by no more than the tolerance is on it.
    fn forgive(&self, ordinate: f64, limit: f64) -> f64 {
        let beyond = ordinate.abs() - limit;
        if beyond > 0.0 && beyond <= self.limits.coordinate_tolerance { limit.copysign(ordinate) } else { ordinate }
    }

    fn note_position(&mut self, position: Position, ordinates: usize) -> Result<Option<Position>, Fault> {
        if ordinates < 2 {
            return Err(bad("a position has one number; it takes a longitude and a latitude"));
        }
        let height = ordinates > 2;
        if *self.findings.heights.get_or_insert(height) != height {
            return Err(bad("positions with and without a height are mixed"));
        }
        self.findings.vertices += 1;
        if self.findings.vertices > self.limits.max_vertices {
            let detail = format!("more than the {} positions allowed", self.limits.max_vertices);
            return Err(Fault::new(Reason::TooManyVertices, detail));
        }
        if !position.is_in_range() && self.findings.out_of_range.is_none() {
            self.findings.out_of_range = Some(position.why_out_of_range());
        }
        Ok(Some(position))
    }

    fn note_empty(&mut self, detail: &'static str) {
        self.findings.empty.get_or_insert(detail);
    }

    /// An edge along a whole parallel, from -180 to 180, is meant as it is; one that is shorter than
    /// that and longer than half of it would have gone the other way round.
    fn note_wide_edges(&mut self, line: &[Position]) {
        if self.findings.antimeridian.is_some() {
            return;
        }
        for (from, to) in line.iter().zip(line.iter().skip(1)) {
            let span = (to.x - from.x).abs();
            if is_crossing(span) {
                self.findings.antimeridian = Some(format!(
                    "the edge from {} {} to {} {} spans {span} degrees of longitude",
                    from.x, from.y, to.x, to.y
                ));
                return;
            }
        }
    }
}
