//! Decodes an event and says whether it can be written, and if not, why.
//!
//! Pure: no clock, no network. The text decides alone, so that the same entry gets the same verdict
//! from every worker and on every delivery.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use h3o::{CellIndex, LatLng, Resolution};
use serde_json::value::RawValue;

use crate::event::{Event, Op, Reason, Rejection, Shape};

mod antimeridian;
mod coordinates;
mod crs;
mod decode;
mod doubt;
mod encode;
mod geometry;
pub(crate) mod json;
mod jsonb;
mod sweep;
mod time;
mod validity;

#[cfg(test)]
mod antimeridian_tests;
#[cfg(test)]
mod decode_tests;
#[cfg(test)]
mod geometry_tests;

use decode::Fields;

/// What protects the worker from a payload.
#[derive(Clone, Debug)]
pub struct Limits {
    /// A longer payload is not even parsed.
    pub max_event_bytes: usize,
    /// Positions in one geometry, all its parts together.
    pub max_vertices: usize,
    /// How far an observation may be ahead of the clock.
    pub max_clock_skew: Duration,
    /// What becomes of shapes that cross the antimeridian.
    pub antimeridian: Antimeridian,
    /// How far beyond ±180 and ±90 an ordinate is taken for ±180 or ±90, in degrees.
    pub coordinate_tolerance: f64,
}

/// What becomes of a shape with an edge that spans more than 180° and less than 360° of longitude:
/// it means to go the other way round, across the antimeridian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Antimeridian {
    /// It is refused.
    Reject,
    /// It is cut there, as RFC 7946 section 3.1.9 asks.
    Split,
    /// It is stored as it is, and lies round the whole world.
    Keep,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_event_bytes: 4 << 20,
            max_vertices: 100_000,
            max_clock_skew: Duration::from_secs(300),
            antimeridian: Antimeridian::Reject,
            coordinate_tolerance: 0.0,
        }
    }
}

/// Why a part of an event is refused; becomes a [`Rejection`] once the rest has been read.
#[derive(Clone, Debug, PartialEq)]
struct Fault {
    reason: Reason,
    detail: String,
}

impl Fault {
    fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into() }
    }
}

/// The verdict on one payload.
///
/// `now_us` is the later of the worker's clock and the entry id's time, in microseconds since 1970.
/// Never panics: should something inside do so, the event is refused with
/// [`Reason::InternalError`], so that one event cannot end the worker.
pub fn judge(payload: &[u8], now_us: i64, limits: &Limits, resolution: Resolution) -> Result<Event, Box<Rejection>> {
    #[cfg(feature = "crash-test")]
    if payload.windows(18).any(|window| window == b"hexlane-crash-test") {
        std::process::abort();
    }
    #[cfg(feature = "crash-test")]
    if payload.windows(17).any(|window| window == b"hexlane-hang-test") {
        std::thread::sleep(Duration::from_secs(3600));
    }
    // Nothing shared is touched inside, so there is nothing that a panic could leave half-done.
    catch_unwind(AssertUnwindSafe(|| judge_unguarded(payload, now_us, limits, resolution))).unwrap_or_else(|panic| {
        let detail = format!("judging the event failed inside hexlane: {}", panic_text(panic.as_ref()));
        Err(Box::new(Rejection::new(Reason::InternalError, detail)))
    })
}

fn judge_unguarded(
    payload: &[u8],
    now_us: i64,
    limits: &Limits,
    resolution: Resolution,
) -> Result<Event, Box<Rejection>> {
    let fields = decode::decode(payload, now_us, limits)?;
    let landing = match fields.op {
        Op::Delete => Ok((None, None)),
        Op::Create | Op::Update => shape(&fields, limits, resolution),
    };
    match landing {
        Ok((shape, computed)) => Ok(Event {
            cell: fields.cell.or(computed).map(u64::from),
            shape,
            feature_id: fields.feature_id,
            key: fields.key,
            op: fields.op,
            properties: fields.properties.map(str::to_owned),
            event_id: fields.event_id,
        }),
        Err(fault) => Err(Box::new(Rejection {
            feature_id: Some(fields.feature_id),
            key: Some(fields.key),
            event_id: fields.event_id,
            ..Rejection::new(fault.reason, fault.detail)
        })),
    }
}

/// The geometry as the table takes it, and the cell of its first position unless the event names one.
fn shape(
    fields: &Fields<'_>,
    limits: &Limits,
    resolution: Resolution,
) -> Result<(Option<Shape>, Option<CellIndex>), Fault> {
    let Some(text) = fields.geometry else {
        return Err(Fault::new(
            Reason::GeometryMissing,
            format!("{} needs a geometry; only a delete goes without", fields.op.as_str()),
        ));
    };
    let geometry = geometry::parse(text, limits)?;
    let shape = encode::encode(&geometry)?;
    validity::check(&geometry, &shape.footprint)?;
    let cell = match fields.cell {
        Some(_) => None,
        None => geometry.first.and_then(|first| cell_at(first.x, first.y, resolution)),
    };
    Ok((Some(shape), cell))
}

/// The member `crs` that GeoJSON had before RFC 7946, of a feature or a collection.
pub(crate) fn check_member_crs(crs: Option<&RawValue>) -> Result<(), Box<Rejection>> {
    crs::check_member(crs).map_err(|fault| Box::new(Rejection::new(fault.reason, fault.detail)))
}

/// The cell of a place; none where longitude or latitude are out of range.
pub(crate) fn cell_at(longitude: f64, latitude: f64, resolution: Resolution) -> Option<CellIndex> {
    if !(longitude.abs() <= 180.0 && latitude.abs() <= 90.0) {
        return None;
    }
    LatLng::new(latitude, longitude).ok().map(|place| place.to_cell(resolution))
}

/// A cell as an event writes it: hex digits, capitals allowed.
pub(crate) fn parse_cell(text: &str) -> Option<CellIndex> {
    // The digits are checked here because the parser below would take a sign too.
    if text.len() > 16 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    text.parse().ok()
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
