//! Which stream an event belongs on, and how the streams are called.
//!
//! The rule is simple on purpose: a producer in any language can follow it. See the README for it
//! in Python.

use std::fmt;
use std::str::FromStr;

use h3o::{CellIndex, Resolution};
use serde::Deserialize as _;
use serde_json::value::RawValue;

use crate::judge::{cell_at, json, parse_cell};

/// The most shards that a topology can have.
pub const MOST_SHARDS: u16 = 1000;

/// What spreads the events over the shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardBy {
    /// The H3 cell: neighbours share a shard.
    Cell,
    /// The feature: all events of one feature share a shard, wherever it moves.
    Feature,
}

impl ShardBy {
    /// The word used in settings and in the topology.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cell => "cell",
            Self::Feature => "feature",
        }
    }
}

impl fmt::Display for ShardBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for ShardBy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "cell" => Ok(Self::Cell),
            "feature" => Ok(Self::Feature),
            other => Err(format!("{other:?} is neither \"cell\" nor \"feature\"")),
        }
    }
}

/// What producers and workers have to agree on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Topology {
    /// The number of streams.
    pub shards: u16,
    /// What spreads the events over them.
    pub shard_by: ShardBy,
    /// The size of the cells that are computed; an event's own cell may be of any.
    pub h3_resolution: Resolution,
}

impl Default for Topology {
    fn default() -> Self {
        Self { shards: 16, shard_by: ShardBy::Cell, h3_resolution: Resolution::Seven }
    }
}

impl Topology {
    /// CRC-32 (IEEE) of the cell's lowercase hex text, or of the feature id where there is no cell,
    /// modulo the number of shards.
    pub fn shard_of(&self, feature_id: &str, cell: Option<CellIndex>) -> u16 {
        match (self.shard_by, cell) {
            (ShardBy::Cell, Some(cell)) => self.shard_of_text(&cell.to_string()),
            _ => self.shard_of_text(feature_id),
        }
    }

    fn shard_of_text(&self, text: &str) -> u16 {
        let shard = crc32fast::hash(text.as_bytes()) % u32::from(self.shards.max(1));
        // The remainder is less than a u16, so there is no other case.
        u16::try_from(shard).unwrap_or_default()
    }
}

/// Where an event goes that nobody has checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Where it is a string.
    pub feature_id: Option<String>,
    /// The event's own, else that of its first position.
    pub cell: Option<CellIndex>,
    /// The stream's number.
    pub shard: u16,
}

/// Finds the shard of any bytes at all.
///
/// Takes what it can read and does not judge: the worker is the one who refuses. With no cell and no
/// position the feature decides; without a feature it is shard 0. Does not recurse.
pub fn route(payload: &[u8], topology: &Topology) -> Route {
    let text = longest_text(payload);
    // Whatever precedes an error has been read.
    let (members, _) = json::members(text, &["feature_id", "cell", "geometry"]);
    let [feature_id, cell, geometry] = members.values;
    let feature_id = feature_id.and_then(json::string).map(String::from);
    let own = cell.and_then(json::string).and_then(|text| parse_cell(&text));
    let cell = own.or_else(|| {
        let (longitude, latitude) = first_position(geometry?)?;
        cell_at(longitude, latitude, topology.h3_resolution)
    });
    let shard = match (topology.shard_by, cell, &feature_id) {
        (ShardBy::Feature, _, None) | (ShardBy::Cell, None, None) => 0,
        (_, cell, feature_id) => topology.shard_of(feature_id.as_deref().unwrap_or_default(), cell),
    };
    Route { feature_id, cell, shard }
}

fn longest_text(payload: &[u8]) -> &str {
    match std::str::from_utf8(payload) {
        Ok(text) => text,
        Err(error) => {
            payload.get(..error.valid_up_to()).and_then(|good| std::str::from_utf8(good).ok()).unwrap_or_default()
        }
    }
}

fn first_position(geometry: &RawValue) -> Option<(f64, f64)> {
    // Deeper collections are refused by the worker anyway.
    const MAX_DEPTH: usize = 128;
    let mut geometry = geometry;
    for _ in 0..MAX_DEPTH {
        let (members, _) = json::members(geometry.get(), &["coordinates", "geometries"]);
        geometry = match members.values {
            [Some(coordinates), _] => return first_pair(coordinates.get()),
            [None, geometries] => first_element(geometries?.get())?,
        };
    }
    None
}

fn first_element(array: &str) -> Option<&RawValue> {
    let after = array.strip_prefix('[')?;
    <&RawValue>::deserialize(&mut serde_json::Deserializer::from_str(after)).ok()
}

/// The first two numbers of nested arrays, if the arrays begin with them.
fn first_pair(coordinates: &str) -> Option<(f64, f64)> {
    let inner = coordinates.trim_start_matches(|c: char| c == '[' || c.is_ascii_whitespace());
    let mut numbers = inner.split([',', ']']).map(|number| number.trim_ascii());
    Some((finite(numbers.next()?)?, finite(numbers.next()?)?))
}

fn finite(number: &str) -> Option<f64> {
    // Words like "nan" are numbers to the parser below.
    let is_json = number.bytes().all(|b| matches!(b, b'0'..=b'9' | b'.' | b'-' | b'+' | b'e' | b'E'));
    number.parse().ok().filter(|n: &f64| is_json && n.is_finite())
}

/// The names of the keys of one namespace. The braces make all keys of a shard share a slot in
/// Redis Cluster.
#[derive(Clone, Debug)]
pub struct Keys {
    namespace: String,
}

impl Keys {
    /// The keys that begin with `namespace`.
    pub fn new(namespace: &str) -> Self {
        Self { namespace: namespace.to_owned() }
    }

    /// The hash that holds the topology.
    pub fn topology(&self) -> String {
        format!("{}:topology", self.namespace)
    }

    /// The stream of events of one shard.
    pub fn events(&self, shard: u16) -> String {
        format!("{}:{{{shard:03}}}:events", self.namespace)
    }

    /// The dead letters of one shard.
    pub fn dead(&self, shard: u16) -> String {
        format!("{}:{{{shard:03}}}:dead", self.namespace)
    }

    /// Which entries of a shard were dead letters, and when they entered first: a sorted set.
    pub fn sent_back(&self, shard: u16) -> String {
        format!("{}:{{{shard:03}}}:sent-back", self.namespace)
    }

    /// The lease of a shard.
    pub fn owner(&self, shard: u16) -> String {
        format!("{}:{{{shard:03}}}:owner", self.namespace)
    }

    /// The live workers.
    pub fn workers(&self) -> String {
        format!("{}:workers", self.namespace)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn routed(payload: &str) -> Route {
        route(payload.as_bytes(), &Topology::default())
    }

    /// The numbers are Python's: `zlib.crc32(b"87195da49ffffff") % 16` and `zlib.crc32(b"F7") % 16`.
    #[test]
    fn agrees_with_the_rule_in_python() {
        let event = r#"{"feature_id":"F7","geometry":{"type":"Point","coordinates":[-0.1276,51.5074]}}"#;
        let found = routed(event);
        assert_eq!(found.cell.unwrap().to_string(), "87195da49ffffff");
        assert_eq!(found.shard, 4);
        assert_eq!(found.shard, Topology::default().shard_of("another", found.cell));
        let by_feature = Topology { shard_by: ShardBy::Feature, ..Topology::default() };
        let same = route(event.as_bytes(), &by_feature);
        assert_eq!((same.cell, same.shard), (found.cell, 3));
    }

    #[test]
    fn takes_what_is_readable() {
        let first = routed(r#"{"geometry":{"coordinates":[4.3,52.1]}}"#).cell;
        assert!(first.is_some());
        for geometry in [
            r#"{"type":"Nonsense","crs":"EPSG:1","coordinates":[ [[ 4.3 , 52.1,"x"], null]]}"#,
            r#"{"geometries":[ {"geometries":[{"coordinates":[4.3,52.1]}, 5]}]}"#,
        ] {
            assert_eq!(routed(&format!(r#"{{"geometry":{geometry}}}"#)).cell, first, "{geometry}");
        }
        assert_eq!(routed(r#"{"cell":"87195DA49FFFFFF","feature_id":1,"#).cell.unwrap().to_string(), "87195da49ffffff");
        assert_eq!(routed(r#"{"cell":"zz","geometry":{"coordinates":[4.3,52.1]}}"#).cell, first);
    }

    #[test]
    fn falls_back_to_the_feature_and_then_to_shard_0() {
        let shard = Topology::default().shard_of("a", None);
        for geometry in [
            "null",
            "[4,5]",
            "{}",
            r#"{"coordinates":[181,0]}"#,
            r#"{"coordinates":["4",5]}"#,
            r#"{"coordinates":[1e400,5]}"#,
            r#"{"coordinates":[]}"#,
            r#"{"geometries":[]}"#,
        ] {
            let found = routed(&format!(r#"{{"feature_id":"a","geometry":{geometry}}}"#));
            assert_eq!(found, Route { feature_id: Some("a".into()), cell: None, shard }, "{geometry}");
        }
        let broken = route(b"{\"feature_id\":\"a\",\"x\":\xff", &Topology::default());
        assert_eq!((broken.feature_id.as_deref(), broken.shard), (Some("a"), shard));
        for nothing in ["", "[]", "null", "{", &"[".repeat(200_000), &"{\"geometry\":".repeat(50_000)] {
            assert_eq!(routed(nothing), Route { feature_id: None, cell: None, shard: 0 });
        }
    }

    #[test]
    fn keys_have_three_digits_in_braces() {
        let keys = Keys::new("hexlane");
        assert_eq!(keys.topology(), "hexlane:topology");
        assert_eq!(keys.events(7), "hexlane:{007}:events");
        assert_eq!(keys.dead(999), "hexlane:{999}:dead");
    }
}
