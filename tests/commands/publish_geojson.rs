//! `hexlane publish` of a user's own GeoJSON.

use super::run;
use crate::world::World;

const POINT: &str = r#"{"type":"Point","coordinates":[4.3,52.1]}"#;

fn feature(id: &str, properties: &str) -> String {
    format!(r#"{{"type":"Feature","id":{id},"properties":{properties},"geometry":{POINT}}}"#)
}

fn collection(before: &str, features: &[String]) -> String {
    format!(r#"{{"type":"FeatureCollection",{before}"features":[{}]}}"#, features.join(",\n"))
}

fn file(ending: &str, text: &str) -> tempfile::TempPath {
    let file = tempfile::Builder::new().suffix(ending).tempfile().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file.into_temp_path()
}

/// Feature, version and text of the properties, as they are stored.
async fn stored(world: &World) -> Vec<(String, i64, String)> {
    world.worker().once().await.assert_balanced();
    let sql = "SELECT feature_id, version, coalesce(properties::text, '') FROM feature_state ORDER BY 1";
    let rows = world.postgres().await.query(sql, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_lands_and_bad_features_are_refused_by_number() {
    let world = World::shared("collection", 2).await;
    let nowhere = r#"{"type":"Feature","id":"nowhere","geometry":null,"properties":null}"#.to_owned();
    let features = [
        feature("\"a\\u0062c\"", r#"{"name":"first"}"#),
        feature("17", "null"),
        feature("null", "{}"),
        nowhere,
        POINT.to_owned(),
        "5".to_owned(),
        feature("[1]", "{}"),
        feature("\"last\"", r#"{"n":1e2}"#),
    ];
    let crs = r#""name":"parks","crs":{"type":"name","properties":{"name":"urn:ogc:def:crs:OGC:1.3:CRS84"}},"#;
    let path = file(".geojson", &collection(crs, &features));
    let ended = run(world.command(&["publish", path.to_str().unwrap()]), b"").await;
    assert_eq!(ended.code, 1, "{ended:?}");
    let counts = "published 3, refused 5 (bad_field 2, geometry_missing 1, missing_field 1, not_json 1)\n";
    assert_eq!(ended.stdout, counts, "{ended:?}");
    let starts = [
        (3, "missing_field: the feature has no id; --id-property"),
        (4, "geometry_missing: "),
        (5, "bad_field: its type is \"Point\", not \"Feature\""),
        (6, "not_json: not a JSON object"),
        (7, "bad_field: the feature's id is [1]"),
    ];
    let refusals: Vec<&str> = ended.stderr.lines().collect();
    assert_eq!(refusals.len(), starts.len(), "{refusals:?}");
    for (refusal, (number, start)) in refusals.iter().zip(starts) {
        let start = format!("{}: feature {number}: {start}", path.display());
        assert!(refusal.starts_with(&start), "{refusal:?}, not {start:?}");
    }
    let text = |id: &str, version, properties: &str| (id.to_owned(), version, properties.to_owned());
    let expected = [text("17", 0, "{}"), text("abc", 0, r#"{"name": "first"}"#), text("last", 0, r#"{"n": 100}"#)];
    assert_eq!(stored(&world).await, expected);

    // A later load of the file is newer than an earlier one, because it was observed later.
    let again = collection("", &[feature("17", r#"{"again":true}"#)]);
    let ended = run(world.command(&["publish", "--format", "geojson"]), again.as_bytes()).await;
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "published 1, refused 0\n"));
    assert_eq!(stored(&world).await[0], text("17", 0, r#"{"again": true}"#));
}

#[tokio::test(flavor = "multi_thread")]
async fn properties_say_id_version_and_time() {
    let world = World::shared("properties", 1).await;
    let with = |code: &str, version: &str, seen: &str| {
        feature("\"other\"", &format!(r#"{{"code":{code},"v":{version},"seen":{seen}}}"#))
    };
    let seen = "\"2026-01-01T00:00:00Z\"";
    let features = [
        with("\"c1\"", "3", seen),
        with("2", "4", seen),
        with("null", "5", seen),
        with("3", "\"6\"", seen),
        with("4", "7", "8"),
    ];
    let args = [
        "publish",
        "--id-property",
        "code",
        "--version-property",
        "v",
        "--time-property",
        "seen",
        "--format",
        "geojson",
    ];
    let ended = run(world.command(&args), collection("", &features).as_bytes()).await;
    assert_eq!(ended.stdout, "published 2, refused 3 (bad_field 2, missing_field 1)\n", "{ended:?}");
    assert!(
        ended.stderr.contains("feature 3: missing_field: the property code (--id-property) is missing"),
        "{ended:?}"
    );
    let stored = stored(&world).await;
    assert_eq!(
        stored.iter().map(|(id, version, _)| (id.as_str(), *version)).collect::<Vec<_>>(),
        [("2", 4), ("c1", 3)]
    );
    let sql = "SELECT observation_time = '2026-01-01T00:00:00Z' FROM feature_state WHERE feature_id = 'c1'";
    assert!(world.postgres().await.query_one(sql, &[]).await.unwrap().get::<_, bool>(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_and_text_sequences_are_told_by_their_names() {
    let world = World::shared("sequences", 1).await;
    let (a, b, c) = (feature("\"a\"", "{}"), feature("\"b\"", "{}"), feature("\"c\"", "{}"));
    let lines = file(".geojsonl", &format!("{a}\n\n{{\n{b}\r\n"));
    // A text of a sequence may have line feeds, and one that was cut off ends with the next separator.
    let pretty = c.replace(',', ",\n  ");
    let sequence = file(".geojsons", &format!("\u{1e}{pretty}\n\u{1e}{}\u{1e}{b}\n", &a[..20]));
    let ended = run(world.command(&["publish", lines.to_str().unwrap(), sequence.to_str().unwrap()]), b"").await;
    assert_eq!(ended.stdout, "published 4, refused 2 (not_json 2)\n", "{ended:?}");
    for place in [format!("{}:3: not_json", lines.display()), format!("{}:2: not_json", sequence.display())] {
        assert!(ended.stderr.contains(&place), "no {place} in {ended:?}");
    }
    let ids: Vec<String> = stored(&world).await.into_iter().map(|(id, ..)| id).collect();
    assert_eq!(ids, ["a", "b", "c"]);
    let single = file(".geojson", &feature("\"single\"", "{}"));
    let ended = run(world.command(&["publish", single.to_str().unwrap()]), b"").await;
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "published 1, refused 0\n"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_no_collection_is_refused_with_what_it_is() {
    let world = World::shared("no_collection", 1).await;
    let good = [feature("1", "{}"), feature("2", "{}")];
    let metres = r#""crs":{"type":"name","properties":{"name":"urn:ogc:def:crs:EPSG::3857"}},"#;
    let whole = collection("", &good);
    let long = collection("", &[good[0].clone(), feature("\"long\"", &format!(r#"{{"x":"{}"}}"#, "x".repeat(5000)))]);
    for (text, sent, sentence) in [
        (collection(metres, &good), 0, "EPSG::3857\"}}; only EPSG:4326 and OGC:CRS84"),
        (POINT.to_owned(), 0, "its type is \"Point\", not \"FeatureCollection\""),
        (r#"{"type":"FeatureCollection"}"#.to_owned(), 0, "has no member features"),
        (r#"{"features":[]}"#.to_owned(), 0, "it has no type"),
        (r#"{"type":"FeatureCollection","features":7}"#.to_owned(), 0, "expected an array of features"),
        ("[]".to_owned(), 0, "expected a FeatureCollection"),
        (String::new(), 0, "not JSON"),
        (whole[..whole.len() - 10].to_owned(), 1, "not JSON from there on: EOF"),
        (format!("{whole} more"), 2, "not JSON from there on: trailing characters"),
        (long, 1, "longer than --max-event-bytes"),
    ] {
        let args = ["publish", "--format", "geojson", "--max-event-bytes", "2000"];
        let ended = run(world.command(&args), text.as_bytes()).await;
        assert_eq!(
            (ended.code, ended.stdout),
            (1, format!("published {sent}, refused 0\n")),
            "{text}\n{}",
            ended.stderr
        );
        assert!(ended.stderr.contains("stdin: ") && ended.stderr.contains(sentence), "{text}\n{}", ended.stderr);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn strict_stops_at_the_first_bad_feature() {
    let world = World::shared("strict_geojson", 1).await;
    let features = [feature("1", "{}"), feature("null", "{}"), feature("2", "{}"), feature("null", "{}")];
    let ended =
        run(world.command(&["publish", "--strict", "--format", "geojson"]), collection("", &features).as_bytes()).await;
    assert_eq!((ended.code, ended.stdout.as_str()), (1, "published 1, refused 1 (missing_field 1)\n"), "{ended:?}");
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
}
