//! Recorded streams, and the comparison of the table with the state that should come of them.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::world::World;

/// The order of a feature's events: version, then microseconds since 1970.
pub type Key = (i64, i64);

/// A row that the table should hold. The geometry stays text: a parsed number printed again may
/// differ in its last digit.
#[derive(Debug, Deserialize)]
pub struct Expected {
    pub feature_id: String,
    pub version: i64,
    pub observation_time: String,
    pub deleted: bool,
    pub geometry: Option<Box<RawValue>>,
}

/// What decides about an event's place among those of its feature.
#[derive(Debug, Deserialize)]
pub struct Order {
    pub feature_id: String,
    version: i64,
    observation_time: String,
}

impl Order {
    pub fn of(line: &str) -> Self {
        serde_json::from_str(line).unwrap()
    }

    pub fn key(&self) -> Key {
        let time = chrono::DateTime::parse_from_rfc3339(&self.observation_time).unwrap();
        (self.version, time.timestamp_micros())
    }
}

/// One line of a list of events that have to be refused.
#[derive(Debug, Deserialize)]
pub struct Rejected {
    /// Counted from 1.
    pub line: usize,
    pub feature_id: String,
    pub version: i64,
    reason: String,
}

impl Rejected {
    pub fn reason(&self) -> &str {
        our_word(&self.reason)
    }
}

/// The reason codes of the data files in the words of the product.
pub fn our_word(reason: &str) -> &str {
    match reason {
        "malformed_json" | "invalid_utf8" => "not_json",
        "wrong_type"
        | "version_out_of_range"
        | "bad_op"
        | "bad_timestamp"
        | "nul_character"
        | "feature_id_too_long" => "bad_field",
        "geometry_required" => "geometry_missing",
        "invalid_geometry" => "invalid_topology",
        same => same,
    }
}

/// The text of a file, which may be there as `.gz` only.
pub fn read(path: &Path) -> String {
    let mut text = String::new();
    let packed = format!("{}.gz", path.display());
    if path.exists() {
        text = std::fs::read_to_string(path).unwrap();
    } else {
        let file = std::fs::File::open(&packed).unwrap_or_else(|error| panic!("{packed}: {error}"));
        flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
    }
    text
}

/// One value a line.
pub fn parse<T: DeserializeOwned>(text: &str) -> Vec<T> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// What one consumer that takes `lines` one at a time must make of the events that have to be
/// refused: stale, if a good one that came before is as new; else a dead letter. Answers the
/// dead letters, in order.
pub fn dead_by_the_rule<'t>(lines: &[&'t str], refused: &HashMap<&str, &str>) -> Vec<&'t str> {
    let mut newest: HashMap<String, Key> = HashMap::new();
    let mut dead = Vec::new();
    for line in lines {
        let order = Order::of(line);
        let (stored, key) = (newest.get(&order.feature_id).copied(), order.key());
        if !refused.contains_key(line) {
            newest.insert(order.feature_id, stored.map_or(key, |stored| stored.max(key)));
        } else if stored.is_none_or(|stored| stored < key) {
            dead.push(*line);
        }
    }
    dead
}

/// Differences are told feature by feature, at most this many.
const TOLD: i64 = 20;

const DIFFERENCES: &str = "WITH expected AS (
        SELECT feature_id, version, observed::timestamptz AS observation_time, deleted,
            ST_GeomFromGeoJSON(geojson) AS geometry
        FROM unnest($1::text[], $2::bigint[], $3::text[], $4::boolean[], $5::text[])
            AS given(feature_id, version, observed, deleted, geojson)
    )
    SELECT concat_ws(' ', feature_id, 'expected', e.version, e.observation_time, left(ST_AsEWKT(e.geometry), 200),
        'found', s.version, s.op, s.observation_time, left(ST_AsEWKT(coalesce(s.geometry_z, s.geometry)), 200))
    FROM expected e FULL JOIN feature_state s USING (feature_id)
    WHERE (e.version, e.observation_time, e.deleted, ST_AsEWKB(e.geometry), ST_AsEWKB(ST_Force2D(e.geometry)))
        IS DISTINCT FROM (s.version, s.observation_time, s.op = 'delete',
            ST_AsEWKB(coalesce(s.geometry_z, s.geometry)), ST_AsEWKB(s.geometry))
    ORDER BY feature_id LIMIT $6";

/// Compares the whole table: ids, versions, instants to the microsecond, tombstones, and every
/// ordinate by its bits.
pub async fn assert_state(world: &World, expected: &[Expected]) {
    let postgres = world.postgres().await;
    let ids: Vec<&str> = expected.iter().map(|row| row.feature_id.as_str()).collect();
    let versions: Vec<i64> = expected.iter().map(|row| row.version).collect();
    let times: Vec<String> = expected.iter().map(|row| to_micros(&row.observation_time)).collect();
    let deleted: Vec<bool> = expected.iter().map(|row| row.deleted).collect();
    let shapes: Vec<Option<&str>> = expected.iter().map(|row| row.geometry.as_deref().map(RawValue::get)).collect();
    let differences = postgres.query(DIFFERENCES, &[&ids, &versions, &times, &deleted, &shapes, &TOLD]).await.unwrap();
    let differences: Vec<String> = differences.iter().map(|row| row.get(0)).collect();
    assert!(differences.is_empty(), "{} or more rows differ:\n{}", differences.len(), differences.join("\n"));
    let live: i64 = postgres.query_one("SELECT count(*) FROM feature", &[]).await.unwrap().get(0);
    assert_eq!(live, deleted.iter().filter(|deleted| !**deleted).count() as i64, "rows of the view");
}

/// Cut, as the product does it: PostgreSQL would round.
fn to_micros(time: &str) -> String {
    let Some((seconds, rest)) = time.split_once('.') else { return time.to_owned() };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    format!("{seconds}.{}{}", &rest[..digits.min(6)], &rest[digits..])
}

/// Bytes that are no text stand in the files as base64 (RFC 4648 section 4).
pub fn from_base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::new();
    let (mut held, mut bits) = (0_u32, 0);
    for digit in text.bytes().take_while(|digit| *digit != b'=') {
        let value = DIGITS.iter().position(|known| *known == digit).unwrap();
        held = (held << 6 | value as u32) & 0xffff;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits & 0xff) as u8);
        }
    }
    bytes
}
