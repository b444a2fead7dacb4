//! The members of an event, one by one, each with its own reason to refuse it.

use serde_json::value::RawValue;

use h3o::CellIndex;

use super::{Fault, Limits, crs, json, jsonb, parse_cell, time};
use crate::event::{Key, Op, Reason, Rejection};

/// The longest `feature_id`, in bytes; well below what an index row can hold.
const MAX_FEATURE_ID: usize = 256;
/// The longest `event_id`, in bytes.
const MAX_EVENT_ID: usize = 128;

const NAMES: [&str; 9] =
    ["feature_id", "version", "observation_time", "op", "event_id", "crs", "cell", "properties", "geometry"];

/// An event but for its geometry, which is good JSON and no more is known of it.
#[derive(Debug)]
pub(super) struct Fields<'t> {
    pub feature_id: String,
    pub key: Key,
    pub op: Op,
    pub event_id: Option<String>,
    pub cell: Option<CellIndex>,
    pub properties: Option<&'t str>,
    pub geometry: Option<&'t str>,
}

/// Reads every field even where one is wrong: a rejection says whose it is as far as can be told.
pub(super) fn decode<'t>(payload: &'t [u8], now_us: i64, limits: &Limits) -> Result<Fields<'t>, Box<Rejection>> {
    let [feature_id, version, time, op, event_id, crs, cell, properties, geometry] =
        split(payload, limits).map_err(|fault| Box::new(Rejection::new(fault.reason, fault.detail)))?;
    let feature_id = read_feature_id(feature_id);
    let version = read_version(version);
    let observed_us = read_time(time, now_us, limits);
    let op = read_op(op);
    let event_id = read_event_id(event_id);
    let crs = crs::check(crs);
    let cell = read_cell(cell);
    let properties = read_properties(properties);
    let geometry = json::not_null(geometry).map(RawValue::get);
    match (feature_id, version, observed_us, op, event_id, crs, cell, properties) {
        (Ok(feature_id), Ok(version), Ok(observed_us), Ok(op), Ok(event_id), Ok(()), Ok(cell), Ok(properties)) => {
            Ok(Fields { feature_id, key: Key { version, observed_us }, op, event_id, cell, properties, geometry })
        }
        (feature_id, version, observed_us, op, event_id, crs, cell, properties) => {
            let key = match (&version, &observed_us) {
                (Ok(version), Ok(observed_us)) => Some(Key { version: *version, observed_us: *observed_us }),
                _ => None,
            };
            let known = (feature_id.as_ref().ok().cloned(), event_id.as_ref().ok().cloned().flatten());
            let first = [
                feature_id.err(),
                version.err(),
                observed_us.err(),
                op.err(),
                event_id.err(),
                crs.err(),
                cell.err(),
                properties.err(),
            ];
            let fault = first
                .into_iter()
                .flatten()
                .next()
                .unwrap_or_else(|| Fault::new(Reason::InternalError, "a field was refused without a reason"));
            let rejection = Rejection::new(fault.reason, fault.detail);
            Err(Box::new(Rejection { feature_id: known.0, key, event_id: known.1, ..rejection }))
        }
    }
}

type Values<'t> = [Option<&'t RawValue>; NAMES.len()];

fn split<'t>(payload: &'t [u8], limits: &Limits) -> Result<Values<'t>, Fault> {
    if payload.len() > limits.max_event_bytes {
        let detail = format!("{} bytes, more than the {} allowed", payload.len(), limits.max_event_bytes);
        return Err(Fault::new(Reason::TooLarge, detail));
    }
    let not_json = |detail: String| Fault::new(Reason::NotJson, detail);
    let text = std::str::from_utf8(payload).map_err(|e| not_json(format!("not UTF-8: {e}")))?;
    if json::is_too_deep(payload) {
        return Err(not_json(format!("brackets nest deeper than {}", json::MAX_DEPTH)));
    }
    if !text.trim_ascii_start().starts_with('{') {
        return Err(match serde_json::from_str::<&RawValue>(text) {
            Ok(_) => Fault::new(Reason::BadField, "an event is a JSON object, this is another JSON value"),
            Err(error) => not_json(format!("not JSON: {error}")),
        });
    }
    let (members, result) = json::members(text, &NAMES);
    result.map_err(|error| not_json(format!("not JSON: {error}")))?;
    match members.twice {
        Some(name) => Err(not_json(format!("the member {name} stands twice"))),
        None => Ok(members.values),
    }
}

fn missing(name: &str) -> Fault {
    Fault::new(Reason::MissingField, format!("{name} is missing"))
}

fn bad(detail: impl Into<String>) -> Fault {
    Fault::new(Reason::BadField, detail)
}

/// A piece of the value for a message, short enough to leave room for the sentence round it.
fn shown(value: &RawValue) -> String {
    const LONGEST: usize = 80;
    let text = value.get();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

fn read_feature_id(value: Option<&RawValue>) -> Result<String, Fault> {
    let value = value.ok_or_else(|| missing("feature_id"))?;
    if !json::is_string(value) {
        return Err(bad(format!("feature_id is {}, not a string", shown(value))));
    }
    let Some(id) = json::string(value) else {
        // Refused as text: whatever replaced the half character would name another feature.
        return Err(Fault::new(Reason::NotJson, "feature_id holds half of a surrogate pair, which is no character"));
    };
    match id.len() {
        0 => Err(Fault::new(Reason::MissingField, "feature_id is empty")),
        1..=MAX_FEATURE_ID if !id.as_bytes().contains(&0) => Ok(id.into_owned()),
        1..=MAX_FEATURE_ID => Err(bad("feature_id holds U+0000, which PostgreSQL cannot store")),
        length => Err(bad(format!("feature_id has {length} bytes, more than the {MAX_FEATURE_ID} allowed"))),
    }
}

fn read_version(value: Option<&RawValue>) -> Result<i64, Fault> {
    let value = value.ok_or_else(|| missing("version"))?;
    let text = value.get();
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(bad(format!("version is {}, not an integer", shown(value))));
    }
    match text.parse() {
        Ok(version @ 0..) => Ok(version),
        _ => Err(bad(format!("version is {}, not within 0 and {}", shown(value), i64::MAX))),
    }
}

fn read_time(value: Option<&RawValue>, now_us: i64, limits: &Limits) -> Result<i64, Fault> {
    let value = value.ok_or_else(|| missing("observation_time"))?;
    if !json::is_string(value) {
        return Err(bad(format!("observation_time is {}, not a string", shown(value))));
    }
    let time = json::string(value).map_or(Err("is no text"), |text| time::parse(&text));
    let observed_us = time.map_err(|why| bad(format!("observation_time {} {why}", shown(value))))?;
    let skew_us = i64::try_from(limits.max_clock_skew.as_micros()).unwrap_or(i64::MAX);
    if observed_us > now_us.saturating_add(skew_us) {
        let ahead = (i128::from(observed_us) - i128::from(now_us)) / 1_000_000;
        let detail = format!("observation_time {} is {ahead} s ahead of the clock", shown(value));
        return Err(Fault::new(Reason::ObservationInFuture, detail));
    }
    Ok(observed_us)
}

fn read_op(value: Option<&RawValue>) -> Result<Op, Fault> {
    let value = value.ok_or_else(|| missing("op"))?;
    match json::string(value).as_deref() {
        Some("create") => Ok(Op::Create),
        Some("update") => Ok(Op::Update),
        Some("delete") => Ok(Op::Delete),
        _ => Err(bad(format!("op is {}, not \"create\", \"update\" or \"delete\"", shown(value)))),
    }
}

fn read_event_id(value: Option<&RawValue>) -> Result<Option<String>, Fault> {
    let Some(value) = json::not_null(value) else { return Ok(None) };
    match json::string(value) {
        Some(id) if (1..=MAX_EVENT_ID).contains(&id.len()) && !id.as_bytes().contains(&0) => Ok(Some(id.into_owned())),
        _ => Err(bad(format!("event_id is {}, not a string of 1 to {MAX_EVENT_ID} bytes without NUL", shown(value)))),
    }
}

fn read_cell(value: Option<&RawValue>) -> Result<Option<CellIndex>, Fault> {
    let Some(value) = json::not_null(value) else { return Ok(None) };
    match json::string(value).and_then(|text| parse_cell(&text)) {
        Some(cell) => Ok(Some(cell)),
        None => Err(bad(format!("cell is {}, not an H3 cell in hex", shown(value)))),
    }
}

fn read_properties(value: Option<&RawValue>) -> Result<Option<&str>, Fault> {
    let Some(value) = json::not_null(value) else { return Ok(None) };
    let text = value.get();
    if !text.starts_with('{') {
        return Err(bad(format!("properties is {}, not an object", shown(value))));
    }
    match jsonb::obstacle(text) {
        Some(obstacle) => Err(bad(format!("properties {obstacle}"))),
        None => Ok(Some(text)),
    }
}
