//! What somebody who means ill can send: a verdict for each, and nothing of it gets anywhere else.

use std::process::Stdio;

use super::ended;
use crate::world::{World, event, point};

const POINT: &str = r#"{"type":"Point","coordinates":[4.3,52.1]}"#;

/// One of each kind that moves a cursor, turns the direction of text, or is not seen.
const MARKS: [&str; 13] = [
    "\u{1b}[2J",
    "\u{7}",
    "\r\nERROR forged line\n",
    "\u{7f}",
    "\u{9b}2J",
    "\u{200b}",
    "\u{200f}",
    "\u{2028}",
    "\u{2029}",
    "\u{202e}",
    "\u{2060}",
    "\u{2069}",
    "\u{feff}",
];

fn payloads() -> Vec<Vec<u8>> {
    let id = |id: &str| event(id, 1, "update", POINT, "");
    let properties = |text: &str| event("P", 1, "update", POINT, &format!(",\"properties\":{text}"));
    let long = "k".repeat(1 << 20);
    let mut all = vec![
        // Numbers
        format!("{{\"feature_id\":\"N\",\"version\":{}}}", "9".repeat(100_000)).into_bytes(),
        event("N", 1, "update", &format!("{{\"type\":\"Point\",\"coordinates\":[1e{},0]}}", "9".repeat(5000)), ""),
        event("N", 1, "update", &format!("{{\"type\":\"Point\",\"coordinates\":[0.{},0]}}", "0".repeat(500_000)), ""),
        properties("1e400000"),
        properties(&format!("{{\"n\":{}}}", "7".repeat(200_000))),
        // Depth
        "[".repeat(1_000_000).into_bytes(),
        properties(&format!("{}{}", "{\"a\":".repeat(50_000), "}".repeat(50_000))),
        properties(&format!("{}{}", "[".repeat(100), "]".repeat(100))),
        // Length
        properties(&format!("{{\"{long}\":1}}")),
        format!("{{\"{long}\":1}}").into_bytes(),
        id(&long),
        // For terminals and logs
        id(r"\u001b[31mred\u001b[0m"),
        id(r"\u001b]0;title\u0007"),
        id(r"a\r\nERROR forged line\n"),
        id(r"\u202eesrever"),
        event("T", 1, "\u{202e}etadpu", POINT, ""),
        event("T", 1, "update", "{\"type\":\"\u{2066}Point\"}", ""),
        id(r"\u0000"),
        id(r"\u009b2J"),
        b"\x1b[2J\x1b[H not json".to_vec(),
        b"{\"feature_id\":\"x\",\"op\":\"\x1b[31m\"}".to_vec(),
        event("T", 1, r"\u001b[31mop", POINT, ""),
        event("T", 1, "update", r#"{"type":"\u001b[31mPoint"}"#, ""),
        // For PostgreSQL
        id("'; DROP TABLE feature_state; --"),
        id("$1"),
        id("\\\\'); DELETE FROM feature_state; --"),
        properties(r#"{"a":"'; DROP TABLE feature_state; --"}"#),
        // For Redis
        id(r"\r\n*1\r\n$8\r\nFLUSHALL\r\n"),
        id("x\\nSET y 1"),
        id("{000}:events"),
        id("redis.call('FLUSHALL')"),
    ];
    all.extend(MARKS.map(id));
    all.extend(MARKS.map(|mark| event(mark, 1, mark, POINT, "")));
    all.extend((0..=255_u8).map(|byte| vec![byte]));
    all
}

/// As `src/shown.rs` has it.
fn is_clean(text: &str) -> bool {
    let is_mark =
        |c: char| matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    !text.chars().any(|c| c.is_control() && c != '\n' || is_mark(c))
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_breaks_out() {
    let world = World::shared("payloads", 1).await;
    let payloads = payloads();
    world.add(0, &point("first", 1, 4.3, 52.1)).await;
    for payload in &payloads {
        world.add(0, payload).await;
    }
    for mark in MARKS.map(str::as_bytes).into_iter().chain([&b"\xff\x1b[2J"[..]]) {
        world.add_fields(0, &[(mark, mark), (b"event", b"{}")]).await;
    }
    world.add(0, &point("last", 1, 4.3, 52.1)).await;

    let mut worker = world.command(&["worker", "--once", "--admin-addr", "127.0.0.1:0"]);
    // Text, as on a terminal.
    worker.env("RUST_LOG", "hexlane=trace").stderr(Stdio::piped()).stdout(Stdio::piped());
    let (code, said) = ended(worker).await;
    assert_eq!(code, 0, "{said}");
    let dirty: Vec<&str> = said.lines().filter(|line| !is_clean(line)).collect();
    assert!(dirty.is_empty(), "{dirty:?}");
    assert!(!said.lines().any(|line| line.starts_with("ERROR forged")), "{said}");

    // Each has one end, the neighbours landed, and the tables are there.
    for neighbour in ["first", "last"] {
        assert_eq!(world.state(neighbour).await, Some((1, "update".into())));
    }
    let landed: i64 = world.postgres().await.query_one("SELECT count(*) FROM feature_state", &[]).await.unwrap().get(0);
    let dead = world.dead_letters().await;
    assert!(dead.len() > 256 && landed > 8, "{} dead, {landed} landed", dead.len());
    let bytes = dead.iter().filter_map(|letter| letter.bytes("event")).filter(|bytes| bytes.len() == 1);
    let bytes: std::collections::BTreeSet<u8> = bytes.map(|bytes| bytes[0]).collect();
    assert_eq!(bytes.len(), 256, "as they were sent");
    assert_eq!(world.state("'; DROP TABLE feature_state; --").await, Some((1, "update".into())));
    let keys: Vec<String> = world.ask(&format!("KEYS {}:*", world.namespace)).await;
    assert!(keys.len() < 8, "{keys:?}");

    // What people look at.
    let _: i64 = world.ask(&format!("ZADD {}:workers 9999999999999 \u{1b}[31mworker\u{202e}/1", world.namespace)).await;
    let _: String = world.ask(&format!("SET {} \u{1b}[31mowner\u{202e}/1", world.owner_key(0))).await;
    for command in [
        &["dead", "list", "--limit", "1000"][..],
        &["dead", "list", "--json"],
        &["dead", "show", "--limit", "1000"],
        &["dead", "show", "--json"],
        &["status"],
        &["status", "--json"],
        &["dead", "purge", "--all", "--dry-run"],
    ] {
        let said = world.hexlane(command).await;
        assert!(is_clean(&said), "{command:?}: {:?}", said.lines().find(|line| !is_clean(line)));
    }
    let folder = tempfile::TempDir::with_prefix("hexlane-payloads-").unwrap();
    let input = folder.path().join("lines");
    let lines: Vec<Vec<u8>> = payloads.into_iter().filter(|payload| !payload.contains(&b'\n')).collect();
    std::fs::write(&input, lines.join(&b'\n')).unwrap();
    let mut shard = world.command(&["shard"]);
    shard.stdin(std::fs::File::open(&input).unwrap());
    let (code, said) = ended(shard).await;
    assert_eq!(code, 0, "{said}");
    assert!(is_clean(&said.replace('\t', " ")), "{:?}", said.lines().find(|line| !is_clean(&line.replace('\t', " "))));
    for arguments in [
        &["publish", "--dry-run"][..],
        &["publish"],
        &["publish", "--dry-run", "--format", "geojson"],
        &["publish", "--dry-run", "--format", "geojson-seq"],
    ] {
        let mut publish = world.command(arguments);
        publish.arg(&input);
        let (code, said) = ended(publish).await;
        assert_eq!(code, 1, "{arguments:?}: {said}");
        assert!(is_clean(&said), "{:?}", said.lines().find(|line| !is_clean(line)));
    }
}
