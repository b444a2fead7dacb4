//! The vocabulary: what an entry carries, and what can become of it.

use std::fmt;

use crate::shown::is_hidden;

/// The order of two events of one feature: version first, then the observation time.
///
/// Equal keys are the same event as far as the guard is concerned: the first one written stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// 0 … 2^63-1, as PostgreSQL's `bigint` holds it.
    pub version: i64,
    /// Microseconds since 1970-01-01T00:00:00Z, the resolution of PostgreSQL's `timestamptz`.
    pub observed_us: i64,
}

/// What an event does to its feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// The feature is new.
    Create,
    /// The feature has changed.
    Update,
    /// The feature is gone; a tombstone keeps its version.
    Delete,
}

impl Op {
    /// The word used in events and in the column `op`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }
}

/// A geometry as the two columns of `feature_state` take it, already encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Two-dimensional EWKB with SRID 4326.
    pub footprint: Vec<u8>,
    /// EWKB with heights, where the event had them.
    pub with_heights: Option<Vec<u8>>,
}

/// A valid event, ready to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// 1 to 256 bytes without NUL.
    pub feature_id: String,
    /// Its place among the feature's events.
    pub key: Key,
    /// What it does.
    pub op: Op,
    /// `None` for a delete only.
    pub shape: Option<Shape>,
    /// The text of a JSON object that `jsonb` can hold.
    pub properties: Option<String>,
    /// The producer's id of this delivery; switches on the ledger.
    pub event_id: Option<String>,
    /// The event's own H3 cell, else that of the geometry's first position.
    pub cell: Option<u64>,
}

impl Event {
    /// Bytes that a statement carries for it, about.
    pub fn size(&self) -> usize {
        let shape = self.shape.as_ref();
        let geometry = shape.map_or(0, |shape| shape.footprint.len() + shape.with_heights.as_ref().map_or(0, Vec::len));
        64 + self.feature_id.len() + geometry + self.properties.as_ref().map_or(0, String::len)
    }
}

/// What is known of an event that cannot be written.
#[derive(Clone, Debug, PartialEq)]
pub struct Rejection {
    /// The code, for machines.
    pub reason: Reason,
    /// A sentence, for people. Printable; holds no more than 300 characters.
    pub detail: String,
    /// Where it could be read.
    pub feature_id: Option<String>,
    /// Where it could be read.
    pub key: Option<Key>,
    /// Where it could be read.
    pub event_id: Option<String>,
    /// The SQLSTATE, where the database refused it.
    pub sqlstate: Option<String>,
}

impl Rejection {
    /// A rejection of which nothing but the reason is known.
    pub fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, detail: printable(&detail.into()), feature_id: None, key: None, event_id: None, sqlstate: None }
    }
}

/// For a terminal, and for logs; NUL ends some readers.
fn printable(text: &str) -> String {
    const LONGEST: usize = 300;
    let mut out: String = text.chars().take(LONGEST).map(|c| if is_hidden(c) { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(LONGEST).is_some() {
        out.pop();
        out.push('…');
    }
    out
}

/// The one outcome of a settled entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It is the feature's newest state.
    Applied,
    /// A newer event of the same batch was written in its place.
    Superseded,
    /// The stored state is as new or newer.
    Stale,
    /// Its `event_id` is known for this feature.
    Duplicate,
    /// It lies in the shard's dead-letter stream.
    DeadLettered,
}

impl Outcome {
    /// Every outcome, in the order in which they are reported.
    pub const ALL: [Self; 5] = [Self::Applied, Self::Superseded, Self::Stale, Self::Duplicate, Self::DeadLettered];

    /// The word used in metrics and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Superseded => "superseded",
            Self::Stale => "stale",
            Self::Duplicate => "duplicate",
            Self::DeadLettered => "dead_lettered",
        }
    }
}

/// Why an event became a dead letter. The list is closed: programs match on these words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The entry has no field `event`.
    NoEventField,
    /// Larger than `--max-event-bytes`; never parsed.
    TooLarge,
    /// Not JSON by RFC 8259, not UTF-8, nested too deeply, or one of our members stands twice.
    NotJson,
    /// A required member is absent.
    MissingField,
    /// A member has the wrong type or an impossible value.
    BadField,
    /// `observation_time` is further ahead than `--max-clock-skew`.
    ObservationInFuture,
    /// Any reference system other than WGS 84 longitude and latitude.
    UnsupportedCrs,
    /// A create or an update without a geometry.
    GeometryMissing,
    /// Not a geometry by RFC 7946.
    BadGeometry,
    /// A geometry without a position.
    EmptyGeometry,
    /// Longitude beyond ±180, latitude beyond ±90, or not finite.
    CoordinateOutOfRange,
    /// An edge that spans more than 180° of longitude.
    Antimeridian,
    /// More positions than `--max-vertices`.
    TooManyVertices,
    /// Not valid by the OGC rules, as `ST_IsValid` judges.
    InvalidTopology,
    /// PostgreSQL refused the row.
    RejectedByDatabase,
    /// Handling it ended the process too often.
    DeliveryLimit,
    /// Handling it failed inside hexlane itself.
    InternalError,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 17] = [
        Self::NoEventField,
        Self::TooLarge,
        Self::NotJson,
        Self::MissingField,
        Self::BadField,
        Self::ObservationInFuture,
        Self::UnsupportedCrs,
        Self::GeometryMissing,
        Self::BadGeometry,
        Self::EmptyGeometry,
        Self::CoordinateOutOfRange,
        Self::Antimeridian,
        Self::TooManyVertices,
        Self::InvalidTopology,
        Self::RejectedByDatabase,
        Self::DeliveryLimit,
        Self::InternalError,
    ];

    /// The word used in dead letters, metrics and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoEventField => "no_event_field",
            Self::TooLarge => "too_large",
            Self::NotJson => "not_json",
            Self::MissingField => "missing_field",
            Self::BadField => "bad_field",
            Self::ObservationInFuture => "observation_in_future",
            Self::UnsupportedCrs => "unsupported_crs",
            Self::GeometryMissing => "geometry_missing",
            Self::BadGeometry => "bad_geometry",
            Self::EmptyGeometry => "empty_geometry",
            Self::CoordinateOutOfRange => "coordinate_out_of_range",
            Self::Antimeridian => "antimeridian",
            Self::TooManyVertices => "too_many_vertices",
            Self::InvalidTopology => "invalid_topology",
            Self::RejectedByDatabase => "rejected_by_database",
            Self::DeliveryLimit => "delivery_limit",
            Self::InternalError => "internal_error",
        }
    }

    /// Whether the event was well-formed but for its geometry: such an event is judged stale
    /// before it is judged invalid.
    pub fn is_about_geometry(self) -> bool {
        matches!(
            self,
            Self::GeometryMissing
                | Self::BadGeometry
                | Self::EmptyGeometry
                | Self::CoordinateOutOfRange
                | Self::Antimeridian
                | Self::TooManyVertices
                | Self::InvalidTopology
        )
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The id of a stream entry: `<milliseconds>-<sequence>`.
/// See <https://redis.io/docs/latest/develop/data-types/streams/#entry-ids>.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EntryId {
    /// The server's clock when the entry was added, in milliseconds since 1970.
    pub ms: u64,
    /// Tells entries of one millisecond apart.
    pub seq: u64,
}

impl EntryId {
    /// Reads `<ms>-<seq>`.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (ms, seq) = std::str::from_utf8(text).ok()?.split_once('-')?;
        Some(Self { ms: ms.parse().ok()?, seq: seq.parse().ok()? })
    }

    /// From its time to another, in milliseconds since 1970; 0 where that is before it.
    pub fn seconds_until(self, ms: i64) -> f64 {
        ms.saturating_sub_unsigned(self.ms).max(0) as f64 / 1000.0
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}
