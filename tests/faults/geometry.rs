use crate::world::{World, delete, event};

/// A geometry sent as an event, and what must become of it: the reason of its dead letter, or
/// nothing where it lands.
type Case<'a> = (&'a str, &'a str, Option<&'a str>);

/// All of them in one batch.
async fn assert_outcomes(world: &World, cases: &[Case<'_>]) {
    for (id, geometry, _) in cases {
        world.add(0, &event(id, 1, "update", geometry, "")).await;
    }
    assert_ends(world, &cases.iter().map(|(id, _, reason)| (*id, *reason)).collect::<Vec<_>>()).await;
}

/// Drains what was added, and compares by feature id.
async fn assert_ends(world: &World, wanted: &[(&str, Option<&str>)]) {
    let counts = world.drain_in_one_batch().await;
    let dead = wanted.iter().filter(|(_, reason)| reason.is_some()).count() as u64;
    assert_eq!((counts.settled(), counts.dead_lettered, world.pending().await), (wanted.len() as u64, dead, 0));
    let letters = world.dead_letters().await;
    for (id, reason) in wanted {
        let letter = letters.iter().find(|letter| letter.text("dead:feature_id") == *id);
        assert_eq!(letter.map(|letter| letter.reason()).as_deref(), *reason, "{id}: {letter:?}");
        assert_eq!(world.state(id).await.is_none(), reason.is_some(), "{id}");
        if let Some(letter) = letter {
            assert_eq!(letter.text("dead:deliveries"), "1", "{id}: an event that is wrong is tried once");
        }
    }
    assert_nothing_invalid(world).await;
}

/// Always, whatever was sent.
async fn assert_nothing_invalid(world: &World) {
    let sql = "SELECT count(*) FROM feature_state
        WHERE geometry IS NOT NULL AND (NOT ST_IsValid(geometry) OR ST_SRID(geometry) <> 4326 OR ST_IsEmpty(geometry))";
    let invalid: i64 = world.postgres().await.query_one(sql, &[]).await.unwrap().get(0);
    assert_eq!(invalid, 0);
}

async fn text(world: &World, sql: &str) -> String {
    world.postgres().await.query_one(sql, &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_is_what_was_checked() {
    let world = World::shared("fault_rings", 1).await;
    let shell = "[[0,0],[4,0],[4,4],[0,4],[0,0]]";
    let polygon = |rings: &str| format!(r#"{{"type":"Polygon","coordinates":[{rings}]}}"#);
    let cases = [
        ("open", polygon("[[0,0],[1,0],[1,1],[0,1]]"), Some("bad_geometry")),
        ("bow tie", polygon("[[0,0],[1,1],[1,0],[0,1],[0,0]]"), Some("invalid_topology")),
        ("hole outside", polygon(&format!("{shell},[[8,8],[9,8],[9,9],[8,8]]")), Some("invalid_topology")),
        ("two points", polygon("[[0,0],[1,1]]"), Some("bad_geometry")),
        ("one point", polygon("[[1,1],[1,1],[1,1],[1,1]]"), Some("invalid_topology")),
        ("good", polygon(&format!("{shell},[[1,1],[1,2],[2,2],[1,1]]")), None),
    ];
    let cases: Vec<Case<'_>> = cases.iter().map(|(id, geometry, reason)| (*id, geometry.as_str(), *reason)).collect();
    assert_outcomes(&world, &cases).await;
    let letters = world.dead_letters().await;
    let detail = |id: &str| letters.iter().find(|l| l.text("dead:feature_id") == id).unwrap().text("dead:detail");
    assert!(detail("bow tie").contains("at 0.5 0.5"), "{}", detail("bow tie"));
    assert!(detail("hole outside").contains("Hole lies outside shell at"), "{}", detail("hole outside"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_third_ordinate_is_kept_and_never_filled_in() {
    let world = World::shared("fault_heights", 1).await;
    let hole = "[[1,1,5],[1,2,5],[2,2,5],[1,1,5]]";
    let cases: [Case<'_>; 6] = [
        ("flat", r#"{"type":"Point","coordinates":[4.3,52.1]}"#, None),
        ("zero", r#"{"type":"Point","coordinates":[4.3,52.1,0]}"#, None),
        ("four", r#"{"type":"Point","coordinates":[4.3,52.1,7.5,99]}"#, None),
        ("mixed", r#"{"type":"LineString","coordinates":[[4,52],[5,52,3]]}"#, Some("bad_geometry")),
        (
            "hole",
            &format!(r#"{{"type":"Polygon","coordinates":[[[0,0],[4,0],[4,4],[0,4],[0,0]],{hole}]}}"#),
            Some("bad_geometry"),
        ),
        ("one", r#"{"type":"Point","coordinates":[4.3]}"#, Some("bad_geometry")),
    ];
    assert_outcomes(&world, &cases).await;
    let sql = "SELECT string_agg(concat_ws(' ', feature_id, ST_AsEWKT(geometry), ST_AsEWKT(geometry_z)), '|'
        ORDER BY feature_id) FROM feature_state";
    assert_eq!(
        text(&world, sql).await,
        "flat SRID=4326;POINT(4.3 52.1)\
        |four SRID=4326;POINT(4.3 52.1) SRID=4326;POINT(4.3 52.1 7.5)\
        |zero SRID=4326;POINT(4.3 52.1) SRID=4326;POINT(4.3 52.1 0)"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn coordinates_of_another_system_are_refused_and_never_reprojected() {
    let world = World::shared("fault_crs", 1).await;
    let point = |x: &str, y: &str| format!(r#"{{"type":"Point","coordinates":[{x},{y}]}}"#);
    let mut wanted = Vec::new();
    for (id, x, y) in
        [("swapped", "52.1", "104.3"), ("metres", "379550.8", "1815125.2"), ("beyond", "180.0000001", "0")]
    {
        world.add(0, &event(id, 1, "update", &point(x, y), "")).await;
        wanted.push((id, Some("coordinate_out_of_range")));
    }
    let with_crs = |id: &str, crs: &str| {
        let text = String::from_utf8(event(id, 1, "update", &point("4.3", "52.1"), "")).unwrap();
        text.replace(r#""crs":"EPSG:4326","#, crs).into_bytes()
    };
    for (id, crs, reason) in [
        ("missing", "", None),
        ("urn", r#""crs":"urn:ogc:def:crs:EPSG::4326","#, None),
        ("crs84", r#""crs":"OGC:CRS84","#, None),
        ("empty", r#""crs":"","#, Some("unsupported_crs")),
        ("mercator", r#""crs":"EPSG:3857","#, Some("unsupported_crs")),
        ("unknown", r#""crs":"EPSG:99999","#, Some("unsupported_crs")),
    ] {
        world.add(0, &with_crs(id, crs)).await;
        wanted.push((id, reason));
    }
    let member = r#"{"type":"Point","coordinates":[4.3,52.1],"crs":{"type":"name","properties":{"name":"EPSG:3857"}}}"#;
    world.add(0, &event("member", 1, "update", member, "")).await;
    wanted.push(("member", Some("unsupported_crs")));
    assert_ends(&world, &wanted).await;

    let letters = world.dead_letters().await;
    let swapped = letters.iter().find(|letter| letter.text("dead:feature_id") == "swapped").unwrap();
    assert!(swapped.text("dead:detail").contains("longitude comes first"), "{swapped:?}");
    let srids = "SELECT string_agg(DISTINCT ST_SRID(geometry)::text, ',') FROM feature_state";
    assert_eq!(text(&world, srids).await, "4326");
    // PostGIS gives a geometry without an SRID that of its column, and refuses any other.
    let insert = |srid: i32| {
        format!(
            "INSERT INTO feature_state (feature_id, version, op, observation_time, geometry)
            VALUES ('srid {srid}', 1, 'create', now(), ST_SetSRID('POINT(4.3 52.1)'::geometry, {srid}))"
        )
    };
    world.sql(&insert(0)).await;
    assert!(world.postgres().await.batch_execute(&insert(3857)).await.is_err());
    assert_eq!(text(&world, srids).await, "4326");
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_null_and_missing_coordinates_are_refused() {
    let world = World::shared("fault_empty", 1).await;
    let (empty, bad) = (Some("empty_geometry"), Some("bad_geometry"));
    let cases: [Case<'_>; 12] = [
        ("point", r#"{"type":"Point","coordinates":[]}"#, empty),
        ("null ordinate", r#"{"type":"Point","coordinates":[4.3,null]}"#, bad),
        ("null position", r#"{"type":"LineString","coordinates":[[4,52],null]}"#, bad),
        ("polygon", r#"{"type":"Polygon","coordinates":[]}"#, empty),
        ("ring", r#"{"type":"Polygon","coordinates":[[]]}"#, empty),
        ("points", r#"{"type":"MultiPoint","coordinates":[]}"#, empty),
        ("polygons", r#"{"type":"MultiPolygon","coordinates":[[]]}"#, empty),
        ("collection", r#"{"type":"GeometryCollection","geometries":[]}"#, empty),
        (
            "member",
            r#"{"type":"GeometryCollection","geometries":[{"type":"Point","coordinates":[4.3,52.1]},{"type":"MultiPoint","coordinates":[]}]}"#,
            empty,
        ),
        ("no coordinates", r#"{"type":"Point"}"#, bad),
        ("null coordinates", r#"{"type":"Point","coordinates":null}"#, bad),
        ("null geometry", "null", Some("geometry_missing")),
    ];
    assert_outcomes(&world, &cases).await;

    let missing = r#"{"feature_id":"missing","version":1,"op":"update","observation_time":"2026-01-01T00:00:00Z"}"#;
    world.add(0, missing.as_bytes()).await;
    world.add(0, &missing.replace("missing", "gone").replace("update", "delete").into_bytes()).await;
    world.add(0, &delete("deleted", 1)).await;
    let wanted = [("missing", Some("geometry_missing")), ("gone", None), ("deleted", None)];
    assert_ends(&world, &wanted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_becomes_a_belt_round_the_world() {
    const CROSSING: &str = r#"{"type":"Polygon","coordinates":[[[179,0],[-179,0],[-179,1],[179,1],[179,0]]]}"#;
    const BEYOND: &str = r#"{"type":"Polygon","coordinates":[[[179,0],[181,0],[181,1],[179,1],[179,0]]]}"#;
    // Really wide: no edge leaves open which way round it goes.
    const WIDE: &str = r#"{"type":"Polygon","coordinates":[[[-100,0],[0,0],[100,0],[100,1],[0,1],[-100,1],[-100,0]]]}"#;
    let beyond = ("beyond", BEYOND, Some("coordinate_out_of_range"));
    let world = World::shared("fault_belt", 1).await;
    assert_outcomes(&world, &[("crossing", CROSSING, Some("antimeridian")), beyond, ("wide", WIDE, None)]).await;
    let letters = world.dead_letters().await;
    let crossing = letters.iter().find(|letter| letter.reason() == "antimeridian").unwrap();
    assert!(crossing.text("dead:detail").contains("cut the geometry at the antimeridian"), "{crossing:?}");

    let world = World::shared("fault_belt_split", 1).await;
    for (id, geometry) in [("crossing", CROSSING), ("beyond", BEYOND), ("wide", WIDE)] {
        world.add(0, &event(id, 1, "update", geometry, "")).await;
    }
    let counts = world.worker().set("ANTIMERIDIAN", "split").once().await;
    assert_eq!((counts.applied, counts.dead_lettered), (2, 1), "{counts:?}");
    assert_nothing_invalid(&world).await;
    let sql = "SELECT string_agg(concat_ws(' ', feature_id, GeometryType(geometry), round(ST_Area(geometry))), '|'
        ORDER BY feature_id) FROM feature_state";
    assert_eq!(text(&world, sql).await, "crossing MULTIPOLYGON 2|wide POLYGON 200");
}
