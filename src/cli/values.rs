//! What options take: durations, sizes, names.

use std::time::Duration;

use h3o::Resolution;

use crate::event::{EntryId, Reason};
use crate::shard::ShardBy;

/// Durations as people write them: `250ms`, `10s`, `5min`, `30d`; 0 is allowed.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    humantime::parse_duration(text).map_err(|error| format!("{error}; write it like 250ms, 10s or 30d"))
}

pub(super) fn parse_pause(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("must be longer than 0".into()),
        longer => Ok(longer),
    }
}

pub(super) fn parse_positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("must be a whole number of at least 1".into()),
        Ok(number) => Ok(number),
    }
}

pub(super) fn parse_bytes(text: &str) -> Result<usize, String> {
    let (digits, factor) = [("KiB", 1 << 10), ("MiB", 1 << 20)]
        .into_iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))
        .unwrap_or((text, 1));
    parse_positive(digits.trim())?.checked_mul(factor).ok_or_else(|| "too large".into())
}

/// More than a degree is no noise any more.
pub(super) fn parse_tolerance(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(degrees) if (0.0..=1.0).contains(&degrees) => Ok(degrees),
        _ => Err("is a number of degrees from 0 to 1, such as 1e-9".into()),
    }
}

/// Names become parts of keys: braces would move a key to another slot, blanks break redis-cli.
pub(super) fn parse_name(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    if text.is_empty() || text.len() > 128 || !text.chars().all(fits) {
        return Err("takes 1 to 128 letters, digits and - _ . :".into());
    }
    Ok(text.to_owned())
}

pub(super) fn parse_shard_by(text: &str) -> Result<ShardBy, String> {
    text.parse().map_err(|_| "is cell or feature".into())
}

pub(super) fn parse_resolution(text: &str) -> Result<Resolution, String> {
    let level: u8 = text.parse().map_err(|_| "is a number from 0 to 15")?;
    Resolution::try_from(level).map_err(|_| "is a number from 0 to 15".into())
}

pub(super) fn parse_reason(text: &str) -> Result<Reason, String> {
    let known = || Reason::ALL.map(Reason::as_str).join(", ");
    Reason::ALL.into_iter().find(|reason| reason.as_str() == text).ok_or_else(|| format!("is one of {}", known()))
}

/// An entry's id; without the part behind the dash the first of its millisecond.
pub(super) fn parse_entry(text: &str) -> Result<EntryId, String> {
    let id = EntryId::parse(text.as_bytes());
    let whole = || text.parse().ok().map(|ms| EntryId { ms, seq: 0 });
    id.or_else(whole).ok_or_else(|| "is an entry id like 1783944001000-0".into())
}

/// An entry's id, or the first that entered at some time.
pub(super) fn parse_since(text: &str) -> Result<EntryId, String> {
    if let Ok(time) = chrono::DateTime::parse_from_rfc3339(text) {
        return Ok(EntryId { ms: u64::try_from(time.timestamp_millis()).unwrap_or(0), seq: 0 });
    }
    parse_entry(text).map_err(|_| "is a time like 2026-07-13T12:00:00Z or an entry id like 1783944001000-0".into())
}

/// A collector beside the worker needs no encryption, and sends on what it gets as safely as it is told to.
pub(super) fn parse_collector(text: &str) -> Result<String, String> {
    let authority = text.strip_prefix("http://").map(|rest| rest.split('/').next().unwrap_or_default());
    match authority {
        Some("") | None => Err("is an address like http://localhost:4318; https is for the collector to speak".into()),
        Some(_) => Ok(text.to_owned()),
    }
}
