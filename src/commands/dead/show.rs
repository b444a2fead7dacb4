//! What people and programs get to see of dead letters.

use std::collections::HashMap;
use std::io::{self, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, SecondsFormat};
use serde_json::{Value, json};

use super::Letters;
use crate::cli::ListArgs;
use crate::event::EntryId;
use crate::shown::{escaped, json_line};
use crate::stream::dead::{Fields, Letter, Source};

/// Lines that a person can look through.
const LINES: usize = 100;

/// `hexlane dead list`.
pub(super) async fn list(args: ListArgs) -> Result<(), String> {
    let mut letters = Letters::find(&args.redis, args.filter).await?;
    let most = args.limit.unwrap_or(if args.json { usize::MAX } else { LINES });
    let mut shown: Vec<(Letter, u64)> = Vec::new();
    // Events that died again because their group was made anew are one line.
    let mut places: HashMap<Source, usize> = HashMap::new();
    let mut left_out = 0_u64;
    while let Some((_, page)) = letters.next().await? {
        for letter in page {
            let source = letter.source();
            match places.get(&source) {
                Some(place) => {
                    if let Some((known, times)) = shown.get_mut(*place) {
                        // The latest: its reason is the one that counts now.
                        *known = letter;
                        *times += 1;
                    }
                }
                None if shown.len() < most => {
                    places.insert(source, shown.len());
                    shown.push((letter, 1));
                }
                None => left_out += 1,
            }
        }
    }
    let mut out = String::new();
    for (letter, times) in &shown {
        out.push_str(&if args.json { json_line(&object(letter, *times)) } else { line(letter, *times) });
    }
    print(&out)?;
    if left_out > 0 {
        say(&format!("{left_out} more; --limit shows more, --reason, --shard or --feature fewer"));
    }
    Ok(())
}

/// `hexlane dead show`.
pub(super) async fn show(args: ListArgs) -> Result<(), String> {
    let mut letters = Letters::find(&args.redis, args.filter).await?;
    let mut left = args.limit.unwrap_or(if args.json { usize::MAX } else { LINES });
    while let Some((shard, page)) = letters.next().await? {
        for letter in page {
            if left == 0 {
                say("there are more; --limit shows more");
                return Ok(());
            }
            left -= 1;
            // One at a time: each may be megabytes.
            let Some(fields) = letters.stream.letter_fields(shard, letter.id).await? else {
                continue;
            };
            print(&if args.json { whole_object(&letter, &fields) } else { whole_text(&letter, &fields) })?;
        }
    }
    Ok(())
}

fn line(letter: &Letter, times: u64) -> String {
    let about = |name| escaped(letter.about(name).unwrap_or("-"));
    let again = if times > 1 { format!(" ({times} times)") } else { String::new() };
    format!(
        "{:03}  {}  {}  {}  {}  {}{again}\n",
        letter.shard,
        letter.id,
        moment(letter.id).unwrap_or_default(),
        about("reason"),
        about("feature_id"),
        about("detail")
    )
}

fn object(letter: &Letter, times: u64) -> Value {
    let number = |name| letter.about(name).and_then(|text| text.parse::<i64>().ok());
    json!({
        "shard": letter.shard,
        "id": letter.id.to_string(),
        "at": moment(letter.id),
        "reason": letter.about("reason"),
        "detail": letter.about("detail"),
        "feature_id": letter.about("feature_id"),
        "version": number("version"),
        "sqlstate": letter.about("sqlstate"),
        "source_stream": letter.about("source_stream"),
        "source_id": letter.about("source_id"),
        "entered_at": letter.entered().and_then(moment),
        "deliveries": number("deliveries"),
        "worker": letter.about("worker"),
        "event_bytes": letter.event_bytes,
        "times": times,
    })
}

fn whole_text(letter: &Letter, fields: &Fields) -> String {
    let mut out = format!("shard {:03}, letter {}\n", letter.shard, letter.id);
    for (name, value) in fields {
        let text = |bytes: &[u8]| escaped(&String::from_utf8_lossy(bytes));
        out.push_str(&format!("  {:<20} {}\n", text(name), text(value)));
    }
    out
}

/// With every field as it lies there; bytes that are no UTF-8 in base64 (RFC 4648).
fn whole_object(letter: &Letter, fields: &Fields) -> String {
    let field = |(name, value): &(Vec<u8>, Vec<u8>)| {
        let name = String::from_utf8_lossy(name);
        match std::str::from_utf8(value) {
            Ok(value) => json!({ "name": name, "value": value }),
            Err(_) => json!({ "name": name, "base64": STANDARD.encode(value) }),
        }
    };
    let mut object = object(letter, 1);
    if let Some(members) = object.as_object_mut() {
        members.insert("fields".into(), fields.iter().map(field).collect());
    }
    json_line(&object)
}

fn moment(id: EntryId) -> Option<String> {
    let time = DateTime::from_timestamp_millis(i64::try_from(id.ms).ok()?)?;
    Some(time.to_rfc3339_opts(SecondsFormat::Millis, true))
}

fn print(text: &str) -> Result<(), String> {
    io::stdout().write_all(text.as_bytes()).map_err(|error| error.to_string())
}

#[expect(clippy::print_stderr, reason = "the command's own words to its user")]
fn say(line: &str) {
    eprintln!("{line}");
}
