#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use h3o::Resolution;

use super::{Limits, judge};
use crate::event::{Event, Key, Op, Reason, Rejection};

const NOW: i64 = 1_800_000_000_000_000;
const POINT: &str = r#"{"type":"Point","coordinates":[4.3,52.1]}"#;

fn judged(text: &str) -> Result<Event, Box<Rejection>> {
    judge(text.as_bytes(), NOW, &Limits::default(), Resolution::Seven)
}

/// A good event in which one member is replaced, or left out where `value` is empty.
fn with(name: &str, value: &str) -> String {
    let members = [
        ("feature_id", r#""F7""#),
        ("version", "2"),
        ("op", r#""update""#),
        ("observation_time", r#""2026-07-13T12:00:01Z""#),
        ("geometry", POINT),
    ];
    let mut parts: Vec<String> = members
        .into_iter()
        .map(|(n, v)| (n, if n == name { value } else { v }))
        .filter(|(_, v)| !v.is_empty())
        .map(|(n, v)| format!("{n:?}:{v}"))
        .collect();
    if members.iter().all(|(n, _)| *n != name) {
        parts.push(format!("{name:?}:{value}"));
    }
    format!("{{{}}}", parts.join(","))
}

fn refused(text: &str) -> Reason {
    match judged(text) {
        Ok(event) => panic!("{text} was taken as {event:?}"),
        Err(rejection) => rejection.reason,
    }
}

#[test]
fn a_good_event_comes_out_whole() {
    let text = r#" {"\u0066eature_id":"F\u00377","version":2,"op":"update","observation_time":"2026-07-13T14:00:01.0000019+02:00",
        "crs":"urn:ogc:def:crs:OGC:1.3:CRS84","geometry":{"coordinates":[4.3,52.1],"type":"Point"},
        "properties":{"a": [1, "\u00e9"]},"event_id":"e","cell":"87196BB1BFFFFFF","unknown":{"x":[1e999,"\ud800"]}} "#;
    let event = judged(text).unwrap();
    assert_eq!(event.feature_id, "F77");
    assert_eq!(event.key, Key { version: 2, observed_us: 1_783_944_001_000_001 });
    assert_eq!(event.op, Op::Update);
    assert_eq!(event.properties.as_deref(), Some(r#"{"a": [1, "\u00e9"]}"#));
    assert_eq!(event.event_id.as_deref(), Some("e"));
    assert_eq!(event.cell, Some(0x0871_96bb_1bff_ffff));
    assert!(event.shape.is_some());
}

#[test]
fn what_is_no_json_is_told_from_what_is_no_event() {
    let nested = |depth: usize| with("x", &format!("{}{}", "[".repeat(depth), "]".repeat(depth)));
    for text in [
        "",
        " ",
        "{",
        "\u{feff}{}",
        "{}x",
        "{}{}",
        "nul",
        "[1,]",
        "{\"a\":NaN}",
        "{\"a\":\"\t\"}",
        "{\"a\":01}",
        "{\"feature_id\":17,\"x\":tru}",
        r#"{"op":"update","\u006fp":"update"}"#,
        &with("feature_id", r#""\ud800""#),
        &nested(128),
        &"[".repeat(100_000),
    ] {
        assert_eq!(refused(text), Reason::NotJson, "{text:.80}");
    }
    for text in ["[]", " null ", "7", "\"x\"", &format!("[{}]", with("x", "1"))] {
        assert_eq!(refused(text), Reason::BadField, "{text:.80}");
    }
    assert_eq!(
        judge(b"{\"a\":\"\xc3\x28\"}", NOW, &Limits::default(), Resolution::Seven).unwrap_err().reason,
        Reason::NotJson
    );
    assert!(judged(&nested(127)).is_ok());
    assert_eq!(refused("{}"), Reason::MissingField);
}

#[test]
fn what_is_too_large_is_not_parsed() {
    let limits = Limits { max_event_bytes: 10, ..Limits::default() };
    let verdict = |text: &[u8]| judge(text, NOW, &limits, Resolution::Seven).unwrap_err().reason;
    assert_eq!(verdict(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), Reason::TooLarge);
    assert_eq!(verdict(b"{        }"), Reason::MissingField);
}

#[test]
fn each_field_has_its_reason() {
    let long = |n: usize| format!("{:?}", "x".repeat(n));
    let cases = [
        ("feature_id", "", Reason::MissingField),
        ("feature_id", r#""""#, Reason::MissingField),
        ("feature_id", "null", Reason::BadField),
        ("feature_id", r#""a\u0000""#, Reason::BadField),
        ("feature_id", &long(257), Reason::BadField),
        ("version", "", Reason::MissingField),
        ("version", "1.0", Reason::BadField),
        ("version", "1e0", Reason::BadField),
        ("version", "-1", Reason::BadField),
        ("version", "9223372036854775808", Reason::BadField),
        ("version", r#""7""#, Reason::BadField),
        ("op", "", Reason::MissingField),
        ("op", r#""Update""#, Reason::BadField),
        ("observation_time", "", Reason::MissingField),
        ("observation_time", "5", Reason::BadField),
        ("observation_time", r#""2026-07-13 12:00:01Z""#, Reason::BadField),
        ("crs", "4326", Reason::BadField),
        ("crs", r#""""#, Reason::UnsupportedCrs),
        ("crs", r#""EPSG:\u0000""#, Reason::UnsupportedCrs),
        ("event_id", r#""""#, Reason::BadField),
        ("event_id", "5", Reason::BadField),
        ("event_id", r#""\u0000""#, Reason::BadField),
        ("event_id", &long(129), Reason::BadField),
        ("cell", r#""8719""#, Reason::BadField),
        ("cell", r#""+7196bb1bffffff""#, Reason::BadField),
        ("cell", "1", Reason::BadField),
        ("properties", "[]", Reason::BadField),
        ("properties", r#"{"a":"\u0000"}"#, Reason::BadField),
        ("properties", r#"{"a":1e200000}"#, Reason::BadField),
        ("geometry", "", Reason::GeometryMissing),
        ("geometry", "null", Reason::GeometryMissing),
    ];
    for (name, value, reason) in cases {
        assert_eq!(refused(&with(name, value)), reason, "{name} {value}");
    }
    for (name, value) in [
        ("version", "9223372036854775807"),
        ("version", "-0"),
        ("feature_id", long(256).as_str()),
        ("event_id", "null"),
        ("crs", "null"),
        ("cell", "null"),
        ("properties", "null"),
    ] {
        assert!(judged(&with(name, value)).is_ok(), "{name} {value}");
    }
}

#[test]
fn the_first_wrong_field_gives_the_reason_and_the_readable_ones_are_named() {
    let text =
        r#"{"feature_id":"F","version":3,"observation_time":"2026-01-01T00:00:00Z","op":"x","event_id":"e","crs":"y"}"#;
    let rejection = judged(text).unwrap_err();
    assert_eq!(rejection.reason, Reason::BadField);
    assert_eq!(rejection.feature_id.as_deref(), Some("F"));
    assert_eq!(rejection.key.map(|k| k.version), Some(3));
    assert_eq!(rejection.event_id.as_deref(), Some("e"));
    assert_eq!(judged(&text.replace(":3", ":3.5")).unwrap_err().key, None);

    let rejection = judged(&with("geometry", "[]")).unwrap_err();
    assert_eq!(rejection.reason, Reason::BadGeometry);
    assert_eq!(rejection.key.map(|k| k.version), Some(2));
}

#[test]
fn observations_may_be_ahead_by_the_skew_and_no_more() {
    let limits = Limits { max_clock_skew: Duration::from_secs(1), ..Limits::default() };
    let text = with("observation_time", r#""1970-01-01T00:00:02Z""#);
    assert!(judge(text.as_bytes(), 1_000_000, &limits, Resolution::Seven).is_ok());
    let rejection = judge(text.as_bytes(), 999_999, &limits, Resolution::Seven).unwrap_err();
    assert_eq!((rejection.reason, rejection.key), (Reason::ObservationInFuture, None));
    let endless = Limits { max_clock_skew: Duration::MAX, ..Limits::default() };
    assert!(judge(text.as_bytes(), i64::MAX, &endless, Resolution::Seven).is_ok());
}

#[test]
fn a_delete_takes_any_geometry_and_keeps_none() {
    for geometry in ["", "null", "[1e999]", r#"{"type":"Point","coordinates":[]}"#, POINT] {
        let event = judged(&with("geometry", geometry).replace("update", "delete")).unwrap();
        assert_eq!((event.op, event.shape, event.cell), (Op::Delete, None, None), "{geometry}");
    }
    let event = judged(&with("cell", r#""87196bb1bffffff""#).replace("update", "delete")).unwrap();
    assert_eq!(event.cell, Some(0x0871_96bb_1bff_ffff));
}

#[test]
fn details_are_printable() {
    let rejection = judged(&with("op", "\"\u{7f}\u{85}\"")).unwrap_err();
    assert!(rejection.detail.chars().all(|c| !c.is_control()), "{}", rejection.detail);
}

/// Every prefix, and every text with one byte replaced: whatever the verdict, there is one.
#[test]
fn no_text_makes_the_judge_panic() {
    let text = with("properties", r#"{"a":"\ud83d\ude00","b":1e2000}"#).replace(
        POINT,
        r#"{"type":"GeometryCollection","geometries":[{"type":"Polygon","coordinates":[[[0,0],[1,0],[1,1],[0,0]]]}]}"#,
    );
    let text = text.as_bytes();
    let check = |payload: &[u8]| {
        if let Err(rejection) = judge(payload, NOW, &Limits::default(), Resolution::Seven) {
            assert_ne!(rejection.reason, Reason::InternalError, "{}", rejection.detail);
        }
    };
    for end in 0..text.len() {
        check(&text[..end]);
        for byte in [b'"', b'\\', b'[', b']', b'{', b'}', b',', b'0', b'-', b'e', b' ', 0, 0xff] {
            let mut changed = text.to_vec();
            changed[end] = byte;
            check(&changed);
        }
    }
}
