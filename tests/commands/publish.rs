//! `hexlane publish`.

use super::{lines, run};
use crate::world::{World, event, point};

const MIXED: [&[u8]; 7] = [
    br#"{"feature_id":"F1","version":1,"op":"create","observation_time":"2026-01-01T00:00:00Z","geometry":{"type":"Point","coordinates":[4.3,52.1]}}"#,
    b"",
    br#"{"feature_id":"F2","#,
    br#"{"feature_id":"F3","op":"create","observation_time":"2026-01-01T00:00:00Z","geometry":{"type":"Point","coordinates":[4.3,52.1]}}"#,
    b"  \t ",
    br#"{"feature_id":"F4","version":1,"op":"create","observation_time":"2026-01-01T00:00:00Z","geometry":{"type":"Point","coordinates":[52.1,104.3]}}"#,
    br#"{"feature_id":"F5","version":9,"op":"delete","observation_time":"2026-01-01T00:00:00Z"}"#,
];

/// The events of one shard, in order.
async fn sent_to(world: &World, shard: u16) -> Vec<Vec<u8>> {
    type Entry = (String, Vec<(String, Vec<u8>)>);
    let entries: Vec<Entry> = world.ask(&format!("XRANGE {} - +", world.events_key(shard))).await;
    let event = |(_, mut fields): Entry| {
        assert_eq!((fields.len(), fields[0].0.as_str()), (1, "event"));
        fields.remove(0).1
    };
    entries.into_iter().map(event).collect()
}

/// The events of all shards, sorted.
async fn sent(world: &World) -> Vec<String> {
    let mut events = Vec::new();
    for shard in 0..world.shards {
        events.extend(sent_to(world, shard).await.into_iter().map(|event| String::from_utf8(event).unwrap()));
    }
    events.sort_unstable();
    events
}

fn texts(of: &[usize]) -> Vec<String> {
    let mut texts: Vec<String> = of.iter().map(|&at| String::from_utf8(MIXED[at].to_vec()).unwrap()).collect();
    texts.sort_unstable();
    texts
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_lines_are_refused_by_number_and_reason() {
    let world = World::shared("publish", 4).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), lines(&MIXED)).unwrap();
    let path = file.path().to_str().unwrap();
    let ended = run(world.command(&["publish", path]), b"").await;
    assert_eq!(ended.code, 1);
    assert_eq!(ended.stdout, "published 2, refused 3 (coordinate_out_of_range 1, missing_field 1, not_json 1)\n");
    let refusals: Vec<&str> = ended.stderr.lines().collect();
    let starts = [
        format!("{path}:3: not_json: "),
        format!("{path}:4: missing_field: version is missing"),
        format!("{path}:6: coordinate_out_of_range: "),
    ];
    assert_eq!(refusals.len(), starts.len(), "{refusals:?}");
    for (refusal, start) in refusals.iter().zip(&starts) {
        assert!(refusal.starts_with(start.as_str()), "{refusal:?}, not {start:?}");
    }
    assert_eq!(sent(&world).await, texts(&[0, 6]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_checks_without_a_server_and_sends_nothing() {
    let world = World::shared("publish_dry", 4).await;
    let ended = run(world.command(&["publish", "--dry-run"]), &lines(&MIXED)).await;
    assert_eq!(ended.code, 1);
    assert!(ended.stdout.starts_with("valid 2, refused 3 ("), "{ended:?}");
    assert!(ended.stderr.contains("stdin:6: coordinate_out_of_range: "), "{ended:?}");
    assert_eq!(world.ask::<Vec<String>>(&format!("KEYS {}:*", world.namespace)).await, Vec::<String>::new());

    let mut offline = world.command(&["publish", "--dry-run", "-"]);
    offline.env("HEXLANE_REDIS_URL", "redis://127.0.0.1:1");
    let ended = run(offline, &lines(&MIXED[..1])).await;
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "valid 1, refused 0\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn strict_stops_at_the_first_refusal() {
    let world = World::shared("publish_strict", 4).await;
    let (first, second) = (tempfile::NamedTempFile::new().unwrap(), tempfile::NamedTempFile::new().unwrap());
    std::fs::write(first.path(), lines(&MIXED)).unwrap();
    std::fs::write(second.path(), lines(&MIXED[6..])).unwrap();
    let files = [first.path().to_str().unwrap(), second.path().to_str().unwrap()];
    let ended = run(world.command(&["publish", "--strict", files[0], files[1]]), b"").await;
    assert_eq!((ended.code, ended.stdout.as_str()), (1, "published 1, refused 1 (not_json 1)\n"));
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    assert_eq!(sent(&world).await, texts(&[0]), "what came before it is sent");

    let ended = run(world.command(&["publish", "--strict", files[1]]), b"").await;
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "published 1, refused 0\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn unchecked_sends_every_line_that_is_not_blank() {
    let world = World::shared("publish_unchecked", 4).await;
    let ended = run(world.command(&["publish", "--unchecked", "--max-event-bytes", "10", "-"]), &lines(&MIXED)).await;
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "published 5, refused 0\n"));
    assert_eq!(sent(&world).await, texts(&[0, 2, 3, 5, 6]));

    let not_text = b"\xff\xfe{";
    let ended = run(world.command(&["publish", "--unchecked"]), not_text).await;
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "published 1, refused 0\n"));
    // With nothing that can be read, it is shard 0.
    assert_eq!(sent_to(&world, 0).await.last().unwrap(), not_text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_of_the_longest_length_is_taken_and_a_longer_one_skipped() {
    let world = World::shared("publish_long", 1).await;
    let fits = point("fits", 1, 4.3, 52.1);
    let longest = fits.len().to_string();
    let too_long = point("no-fit", 1, 4.3, 52.1);
    let huge = vec![b'x'; 300_000];
    for end in ["\n", "\r\n"] {
        let mut input = Vec::new();
        for line in [&fits, &too_long, &huge, &fits] {
            input.extend_from_slice(line);
            input.extend_from_slice(end.as_bytes());
        }
        // The last line has no end.
        input.extend_from_slice(&too_long);
        let ended = run(world.command(&["publish", "--max-event-bytes", &longest]), &input).await;
        assert_eq!((ended.code, ended.stdout.as_str()), (1, "published 2, refused 3 (too_large 3)\n"), "{end:?}");
        let starts = ["stdin:2: too_large: ", "stdin:3: too_large: ", "stdin:5: too_large: "];
        assert!(ended.stderr.lines().zip(starts).all(|(line, start)| line.starts_with(start)), "{ended:?}");
    }
    let events = sent(&world).await;
    assert_eq!(events, vec![String::from_utf8(fits).unwrap(); 4], "without the ends of the lines");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_cannot_be_read_is_named() {
    let world = World::shared("publish_missing", 1).await;
    let ended = run(world.command(&["publish", "/nowhere/events.ndjson"]), b"").await;
    assert_eq!(ended.code, 1);
    assert!(ended.stderr.contains("/nowhere/events.ndjson: No such file"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn published_events_keep_their_order_within_a_shard() {
    let world = World::shared("publish_order", 1).await;
    let input: Vec<u8> = (1..=5000).flat_map(|version| lines(&[&point("F", version, 4.3, 52.1)])).collect();
    let ended = run(world.command(&["publish"]), &input).await;
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "published 5000, refused 0\n"));
    let version = |event: &Vec<u8>| serde_json::from_slice::<serde_json::Value>(event).unwrap()["version"].as_i64();
    assert!(sent_to(&world, 0).await.iter().map(version).eq((1..=5000).map(Some)));
}

#[tokio::test(flavor = "multi_thread")]
async fn events_go_where_hexlane_shard_says_checked_or_not() {
    let place = r#"{"type":"Point","coordinates":[4.3,52.1]}"#;
    let mut events = vec![
        event("gone", 2, "delete", "null", ""),
        event("gone-with-geometry", 2, "delete", place, ""),
        event("gone-with-rubbish", 2, "delete", r#"{"type":"Point","coordinates":[400,"x"]}"#, ""),
        event("gone-with-cell", 2, "delete", place, r#","cell":"87195DA49FFFFFF""#),
        event("own-cell", 2, "update", place, r#","cell":"8019fffffffffff""#),
        event("collection", 2, "update", &format!(r#"{{"type":"GeometryCollection","geometries":[{place}]}}"#), ""),
        event("high", 2, "update", r#"{"type":"LineString","coordinates":[[-7,8,9],[-6,8,9]]}"#, ""),
        event(r"escaped\u0020\ud83d\ude00", 2, "delete", "null", ""),
    ];
    events.extend((0..40).map(|n| point(&format!("F{n}"), 1, f64::from(n), 52.1)));
    let events: Vec<&[u8]> = events.iter().map(Vec::as_slice).collect();
    for options in [&["publish"][..], &["publish", "--unchecked"], &["publish", "--shard-by", "feature"]] {
        let world = World::shared("publish_where", 16).await;
        let ended = run(world.command(options), &lines(&events)).await;
        assert_eq!((ended.code, ended.stdout), (0, format!("published {}, refused 0\n", events.len())));
        let mut met = 0;
        for shard in 0..world.shards {
            let found = sent_to(&world, shard).await;
            let found: Vec<&[u8]> = found.iter().map(Vec::as_slice).collect();
            let said = run(world.command(&["shard"]), &lines(&found)).await.stdout;
            let key = world.events_key(shard);
            assert!(said.lines().all(|line| line.ends_with(&format!("\t{shard}\t{key}"))), "{shard}:\n{said}");
            met += found.len();
        }
        assert_eq!(met, events.len());
    }
}
