//! What cannot be written, written down elsewhere: once, whole, with its reason, costing itself only.

use crate::world::{DeadLetter, World, delete, event, eventually, point};

const POINT: &str = r#"{"type":"Point","coordinates":[4.3,52.1]}"#;
const BAD_GEOMETRY: &str = r#"{"type":"Point","coordinates":[4.3]}"#;

type Fields<'a> = &'a [(&'a str, &'a [u8])];

/// The fields that the producer sent, as they lie in the dead letter.
fn original(letter: &DeadLetter) -> Vec<(&str, &[u8])> {
    let own = |name: &str| name.starts_with("dead:");
    letter.fields.iter().filter(|(name, _)| !own(name)).map(|(name, value)| (name.as_str(), value.as_slice())).collect()
}

fn reasons(letters: &[DeadLetter]) -> Vec<String> {
    letters.iter().map(DeadLetter::reason).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_that_cannot_be_decoded_keep_their_bytes() {
    let world = World::shared("undecodable", 1).await;
    let cases: [(Fields<'_>, &str); 8] = [
        (&[("other", b"x")], "no_event_field"),
        (&[("event", b"{bad")], "not_json"),
        (&[("event", b"")], "not_json"),
        (&[("event", b"[]")], "bad_field"),
        (&[("event", b"\xc3\x28")], "not_json"),
        (&[("event", b"{}"), ("traceparent", b"00-\xff\x00-01")], "missing_field"),
        (&[("event", b"{}"), ("event", b"{}")], "bad_field"),
        (&[("dead:reason", b"mine"), ("Event", b"{}")], "no_event_field"),
    ];
    world.add(0, &point("g1", 1, 4.3, 52.1)).await;
    let mut ids = Vec::new();
    for (fields, _) in cases {
        ids.push(world.add_fields(0, fields).await);
    }
    world.add(0, &point("g2", 1, 4.3, 52.1)).await;

    let counts = world.worker().set("WORKER_NAME", "undertaker").once().await;
    assert_eq!((counts.read, counts.applied, counts.dead_lettered), (10, 2, 8));
    assert_eq!(world.pending().await, 0);
    assert!(world.state("g1").await.is_some() && world.state("g2").await.is_some());

    let letters = world.dead_letters().await;
    assert_eq!(letters.len(), cases.len());
    for ((fields, reason), id) in cases.into_iter().zip(ids) {
        // Found from the back: an entry may carry a field of that name itself.
        let source = |letter: &DeadLetter| letter.fields.iter().rfind(|(name, _)| name == "dead:source_id").cloned();
        let letter = letters.iter().find(|letter| source(letter).is_some_and(|(_, value)| value == id.as_bytes()));
        let letter = letter.expect("each has its own");
        // The producer's own fields come first, whatever they are called.
        let kept: Vec<(&str, &[u8])> =
            letter.fields.iter().take(fields.len()).map(|(name, value)| (name.as_str(), value.as_slice())).collect();
        assert_eq!(kept, fields);
        let own = DeadLetter { shard: 0, fields: letter.fields[fields.len()..].to_vec() };
        assert_eq!(own.reason(), reason, "{fields:?}");
        assert_eq!(own.text("dead:source_stream"), world.events_key(0));
        assert_eq!(own.text("dead:deliveries"), "1");
        assert_eq!(own.text("dead:worker"), "undertaker");
        assert!(chrono::DateTime::parse_from_rfc3339(&own.text("dead:at")).is_ok());
        let detail = own.text("dead:detail");
        assert!(!detail.is_empty() && !detail.chars().any(char::is_control), "{detail:?}");
        assert_eq!(own.bytes("dead:feature_id"), None);
    }
}

/// A dead letter that cannot be written must not be acknowledged, and in the end lies there once.
#[tokio::test(flavor = "multi_thread")]
async fn dead_letter_and_acknowledgement_are_one_step() {
    let world = World::shared("one_step", 1).await;
    let _: String = world.ask(&format!("SET {} x", world.dead_key(0))).await;
    let worker = world.worker().set("RETRY_CAP", "200ms").ready().await;
    world.add(0, b"{bad").await;
    world.add(0, &point("g1", 1, 4.3, 52.1)).await;
    worker.until_metric("hexlane_retries_total{error=\"WRONGTYPE\",target=\"redis\"}", 3.0).await;
    assert!(world.pending().await > 0, "acknowledged, and nowhere written down");
    assert!(!worker.is_ready().await);

    let _: i64 = world.ask(&format!("DEL {}", world.dead_key(0))).await;
    world.drained().await;
    let letters = world.dead_letters().await;
    assert_eq!(reasons(&letters), ["not_json"]);
    assert_eq!(original(&letters[0]), [("event", b"{bad".as_slice())]);
    worker.until_ready(true).await;
    let counts = worker.stop().await;
    counts.assert_balanced();
    assert_eq!((counts.applied, counts.dead_lettered), (1, 1));
}

/// The window holds all of them until they go on in one batch.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_the_database_refuses_costs_itself_only() {
    for bad in [&[50_usize][..], &[50, 80], &[0, 99], &[49, 50, 51]] {
        let world = World::shared("refused", 1).await;
        let refused: Vec<String> = bad.iter().map(|n| format!("'r{n}'")).collect();
        let check = format!("CHECK (feature_id NOT IN ({}))", refused.join(","));
        world.sql(&format!("ALTER TABLE feature_state ADD CONSTRAINT refused {check}")).await;
        let worker = world.worker().set("REORDER_WINDOW", "500ms").ready().await;
        let events: Vec<Vec<u8>> = (0..100).map(|n| point(&format!("r{n}"), 1, 4.3, 52.1)).collect();
        world.add_together(0, &events).await;
        worker.until_metric("hexlane_events_total{outcome=\"dead_lettered\"}", bad.len() as f64).await;
        world.drained().await;

        let letters = world.dead_letters().await;
        assert_eq!(letters.len(), bad.len());
        for n in bad {
            let of_n = |letter: &&DeadLetter| letter.text("dead:feature_id") == format!("r{n}");
            let letter = letters.iter().find(of_n).expect("its own dead letter");
            assert_eq!(letter.reason(), "rejected_by_database");
            assert_eq!(letter.text("dead:sqlstate"), "23514");
            assert_eq!(letter.text("dead:version"), "1");
            assert_eq!(original(letter), [("event", events[*n].as_slice())]);
        }
        let rows: i64 =
            world.postgres().await.query_one("SELECT count(*) FROM feature_state", &[]).await.unwrap().get(0);
        assert_eq!(rows as usize, 100 - bad.len());
        let counts = worker.stop().await;
        counts.assert_balanced();
        assert_eq!((counts.read, counts.applied), (100, 100 - bad.len() as u64));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_superseded_by_one_that_the_database_refuses_takes_its_place() {
    let with_id = |feature_id: &str, version: i64, event_id: &str| {
        event(feature_id, version, "update", POINT, &format!(r#","event_id":"{event_id}""#))
    };
    let world = World::shared("bad_winner", 1).await;
    world.sql("ALTER TABLE feature_state ADD CONSTRAINT refused CHECK (version NOT IN (2, 20))").await;
    for event in [
        // Alone, and with one more below and above.
        point("plain", 1, 4.3, 52.1),
        point("plain", 2, 4.3, 52.1),
        point("three", 2, 4.3, 52.1),
        point("three", 1, 4.3, 52.1),
        point("three", 20, 4.3, 52.1),
        // With event ids.
        with_id("ids", 1, "a"),
        with_id("ids", 2, "b"),
        // The second copy takes the place of the first; the third is a duplicate of it.
        with_id("copy", 2, "c"),
        with_id("copy", 3, "c"),
        with_id("copy", 4, "c"),
        // Both copies are refused; the id is not in the ledger.
        with_id("both", 2, "d"),
        with_id("both", 20, "d"),
        // A neighbour whose newest is good.
        point("good", 1, 4.3, 52.1),
        point("good", 3, 4.3, 52.1),
    ] {
        world.add(0, &event).await;
    }
    let counts = world.drain_in_one_batch().await;
    let state = async |feature_id: &str| world.state(feature_id).await.map(|(version, _)| version);
    assert_eq!(state("plain").await, Some(1));
    assert_eq!(state("three").await, Some(1));
    assert_eq!(state("ids").await, Some(1));
    assert_eq!(state("copy").await, Some(3));
    assert_eq!(state("both").await, None);
    assert_eq!(state("good").await, Some(3));
    let mut dead: Vec<(String, String)> = world
        .dead_letters()
        .await
        .iter()
        .map(|letter| (letter.text("dead:feature_id"), letter.text("dead:version")))
        .collect();
    dead.sort();
    let expected =
        [("both", "2"), ("both", "20"), ("copy", "2"), ("ids", "2"), ("plain", "2"), ("three", "2"), ("three", "20")];
    assert_eq!(dead, expected.map(|(id, version)| (id.to_owned(), version.to_owned())));
    assert_eq!((counts.applied, counts.superseded, counts.duplicate, counts.dead_lettered), (5, 1, 1, 7), "{counts:?}");

    // Recorded for what was written, never for a dead letter.
    world.add(0, &with_id("ids", 5, "a")).await;
    world.add(0, &with_id("both", 5, "d")).await;
    let counts = world.worker().once().await;
    assert_eq!((counts.duplicate, counts.applied), (1, 1));
    assert_eq!(state("ids").await, Some(1));
    assert_eq!(state("both").await, Some(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn nul_and_half_characters_are_refused_and_nothing_is_stripped() {
    let world = World::shared("nul", 1).await;
    let cases = [
        (event(r"a\u0000b", 1, "update", POINT, ""), "bad_field"),
        (
            String::from_utf8(event("crs", 1, "update", POINT, ""))
                .unwrap()
                .replace("EPSG:4326", r"EPSG:\u0000")
                .into_bytes(),
            "unsupported_crs",
        ),
        (event("id", 1, "update", POINT, r#","event_id":"x\u0000""#), "bad_field"),
        (event("value", 1, "update", POINT, r#","properties":{"k":"x\u0000y"}"#), "bad_field"),
        (event("name", 1, "update", POINT, r#","properties":{"\u0000":1}"#), "bad_field"),
        (event("half", 1, "update", POINT, r#","properties":{"k":"\ud800"}"#), "bad_field"),
        (event(r"a\ud800b", 1, "update", POINT, ""), "not_json"),
    ];
    for (event, _) in &cases {
        world.add(0, event).await;
    }
    world.add(0, &point("good", 1, 4.3, 52.1)).await;
    let counts = world.worker().once().await;
    assert_eq!((counts.applied, counts.dead_lettered), (1, 7));
    let letters = world.dead_letters().await;
    assert_eq!(letters.len(), cases.len());
    for (event, reason) in &cases {
        let letter = letters.iter().find(|letter| letter.bytes("event") == Some(event)).expect("its bytes are kept");
        assert_eq!(letter.reason(), *reason, "{}", String::from_utf8_lossy(event));
        assert!(!letter.text("dead:detail").contains('\0'));
        assert_eq!(letter.text("dead:deliveries"), "1");
    }
    let features = world.postgres().await.query("SELECT feature_id FROM feature_state", &[]).await.unwrap();
    assert_eq!(features.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>(), ["good"]);
}

/// One at a time: against what is stored.
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_geometry_at_or_below_the_stored_version_is_stale() {
    let bad = |version: i64, more: &str| event("s", version, "update", BAD_GEOMETRY, more);
    let world = World::shared("stale_first", 1).await;
    let outcome = async |event: Vec<u8>| {
        world.add(0, &event).await;
        let counts = world.worker().once().await;
        let names = [
            (counts.applied, "applied"),
            (counts.stale, "stale"),
            (counts.duplicate, "duplicate"),
            (counts.dead_lettered, "dead"),
        ];
        names.into_iter().find_map(|(count, name)| (count == 1).then_some(name))
    };
    assert_eq!(outcome(bad(1, "")).await, Some("dead"), "nothing is stored");
    assert_eq!(outcome(event("s", 5, "update", POINT, r#","event_id":"x""#)).await, Some("applied"));
    assert_eq!(outcome(bad(4, "")).await, Some("stale"));
    assert_eq!(outcome(bad(5, "")).await, Some("stale"));
    assert_eq!(outcome(bad(6, "")).await, Some("dead"));
    assert_eq!(outcome(bad(7, r#","event_id":"x""#)).await, Some("duplicate"));
    // Not about its geometry: the version cannot be believed either.
    assert_eq!(outcome(event("s", 4, "paint", POINT, "")).await, Some("dead"));
    assert_eq!(outcome(event("s", 6, "update", POINT, "")).await, Some("applied"));
    assert_eq!(outcome(delete("s", 9)).await, Some("applied"));
    assert_eq!(outcome(bad(8, "")).await, Some("stale"), "a tombstone counts");
    assert_eq!(world.state("s").await, Some((9, "delete".into())));
}

/// All in one batch: against the good ones that entered before, as if they came one by one.
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_geometry_in_a_batch_is_judged_by_what_entered_before_it() {
    let world = World::shared("stale_batch", 1).await;
    world.sql("ALTER TABLE feature_state ADD CONSTRAINT refused CHECK (version <> 66)").await;
    let bad = |id: &str, version: i64| event(id, version, "update", BAD_GEOMETRY, "");
    for event in [
        (bad("before", 1)),
        point("before", 2, 4.3, 52.1),
        point("after", 2, 4.3, 52.1),
        (bad("after", 2)),
        point("newer", 2, 4.3, 52.1),
        (bad("newer", 3)),
        // Never supersedes a good one.
        (bad("top", 9)),
        point("top", 5, 4.3, 52.1),
        // A good one that the database refuses decides nothing.
        point("refused", 66, 4.3, 52.1),
        (bad("refused", 60)),
    ] {
        world.add(0, &event).await;
    }
    let counts = world.drain_in_one_batch().await;
    assert_eq!((counts.applied, counts.stale, counts.dead_lettered), (4, 1, 5), "{counts:?}");
    let mut dead: Vec<_> = world.dead_letters().await.iter().map(|letter| letter.text("dead:feature_id")).collect();
    dead.sort();
    assert_eq!(dead, ["before", "newer", "refused", "refused", "top"]);
    for (id, version) in [("before", 2), ("after", 2), ("newer", 2), ("top", 5)] {
        assert_eq!(world.state(id).await, Some((version, "update".into())), "{id}");
    }
}

/// The worst of everything at once, on several shards, among 5 000 points.
#[tokio::test(flavor = "multi_thread")]
async fn poison_costs_itself_only_and_stalls_no_lane() {
    const SHARDS: u16 = 4;
    let world = World::shared("poison", SHARDS).await;
    world.sql("ALTER TABLE feature_state ADD CONSTRAINT refused CHECK (feature_id NOT LIKE 'poison%')").await;
    let ring: Vec<String> = (0..50_000)
        .map(|n| f64::from(n % 49_999) / 49_999.0 * std::f64::consts::TAU)
        .map(|angle| format!("[{:.9},{:.9}]", 10.0 + angle.cos(), 50.0 + angle.sin()))
        .collect();
    let ring = event("ring", 1, "update", &format!(r#"{{"type":"Polygon","coordinates":[[{}]]}}"#, ring.join(",")), "");
    let huge = event("huge", 1, "update", POINT, &format!(r#","properties":{{"k":"{}"}}"#, "x".repeat(5 << 20)));
    let mut not_utf8 = point("half", 1, 4.3, 52.1);
    not_utf8[20] = 0xff;
    let poison = [
        (point("poison", 1, 4.3, 52.1), "rejected_by_database"),
        (vec![b'['; 100_000], "not_json"),
        (not_utf8, "not_json"),
        (huge, "too_large"),
    ];
    let worker = world.worker().ready().await;
    for shard in 0..SHARDS {
        let points: Vec<Vec<u8>> = (0..1250).map(|n| point(&format!("p{shard}-{n}"), 1, 4.3, 52.1)).collect();
        let (first, rest) = points.split_at(600);
        world.add_together(shard, first).await;
        for (event, _) in &poison {
            world.add(shard, event).await;
        }
        world.add(shard, &ring).await;
        world.add_together(shard, rest).await;
    }
    eventually("every good one lands", async || {
        let sql = "SELECT count(*) FROM feature_state WHERE ST_NPoints(geometry) IN (1, 50000)";
        world.postgres().await.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == 5001
    })
    .await;
    world.drained().await;
    let letters = world.dead_letters().await;
    assert_eq!(letters.len(), poison.len() * usize::from(SHARDS));
    for shard in 0..SHARDS {
        for (event, reason) in &poison {
            let same = |letter: &&DeadLetter| letter.shard == shard && letter.bytes("event") == Some(event);
            let found: Vec<String> = letters.iter().filter(same).map(DeadLetter::reason).collect();
            assert_eq!(found, [*reason]);
        }
    }
    let counts = worker.stop().await;
    counts.assert_balanced();
    assert_eq!((counts.applied + counts.stale, counts.dead_lettered), (5000 + u64::from(SHARDS), 16), "{counts:?}");
}
