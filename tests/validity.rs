//! The verdict on topology is that of a running PostGIS, and so are the bytes.

use hexlane::event::{Event, Reason, Rejection};
use hexlane::judge::{self, Antimeridian, Limits};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::recorded::{parse, read};
use crate::world::{World, data, event, full, seed};

/// With room for the largest outlines.
fn judge(geometry: &str, antimeridian: Antimeridian) -> Result<Event, Box<Rejection>> {
    let limits = Limits { antimeridian, ..Limits::default() };
    judge::judge(&event("F", 1, "create", geometry, ""), i64::MAX, &limits, h3o::Resolution::Seven)
}

type Place = (f64, f64);

/// `"[[x,y],…]"`, closed.
fn ring(places: &[Place]) -> String {
    let texts: Vec<String> = places.iter().chain(places.first()).map(|(x, y)| format!("[{x},{y}]")).collect();
    format!("[{}]", texts.join(","))
}

/// Places round a centre: a star if the radius varies, with faults mixed in.
fn star(rng: &mut StdRng, (x, y): Place, radius: f64, corners: usize) -> Vec<Place> {
    let spiky = rng.random_bool(0.5);
    // On a grid lines meet in corners, run along each other and fold back.
    let grid = if rng.random_bool(0.5) { radius / 8.0 } else { 1e-7 };
    // Without -0, which PostGIS reads as the integer 0.
    let snap = |value: f64| (value / grid).round() * grid + 0.0;
    let mut places: Vec<Place> = (0..corners)
        .map(|n| {
            let angle = n as f64 * std::f64::consts::TAU / corners as f64;
            let length = if spiky { radius * rng.random_range(0.2..1.0) } else { radius };
            (snap(x + length * angle.cos()), snap(y + length * angle.sin()))
        })
        .collect();
    for _ in 0..rng.random_range(0..3) {
        let (at, other) = (rng.random_range(0..places.len()), rng.random_range(0..places.len()));
        match rng.random_range(0..5) {
            // Twice the same, next to each other or not.
            0 => places.insert(at, places[at]),
            1 => places.insert(at, places[other]),
            2 => places.swap(at, other),
            // On the edge between two corners, as near as numbers can tell.
            3 => {
                let (a, b) = (places[at], places[(at + 1) % places.len()]);
                let part = rng.random_range(0.0..1.0);
                places.insert(other, (a.0 + (b.0 - a.0) * part, a.1 + (b.1 - a.1) * part));
            }
            _ => places[at].0 = f64::from_bits(places[at].0.to_bits() ^ 1),
        }
    }
    places
}

fn polygon(rng: &mut StdRng, centre: Place, radius: f64) -> String {
    let corners = if rng.random_bool(0.1) { rng.random_range(100..400) } else { rng.random_range(3..24) };
    let shell = star(rng, centre, radius, corners);
    let mut rings = vec![ring(&shell)];
    for _ in 0..rng.random_range(0..4) {
        let inside = (centre.0 + rng.random_range(-0.3..0.3) * radius, centre.1 + rng.random_range(-0.3..0.3) * radius);
        let corners = rng.random_range(3..8);
        let mut hole = star(rng, inside, radius * 0.2, corners);
        if rng.random_bool(0.3) {
            hole[0] = shell[rng.random_range(0..shell.len())];
        }
        if rng.random_bool(0.1) {
            hole[1] = shell[rng.random_range(0..shell.len())];
        }
        rings.push(ring(&hole));
    }
    format!("[{}]", rings.join(","))
}

fn shape(rng: &mut StdRng) -> String {
    let centre = (rng.random_range(-60.0..60.0), rng.random_range(-60.0..60.0));
    if rng.random_bool(0.6) {
        return format!(r#"{{"type":"Polygon","coordinates":{}}}"#, polygon(rng, centre, 1.0));
    }
    let parts = rng.random_range(2..5);
    let parts: Vec<String> = (0..parts)
        .map(|_| {
            let centre = (centre.0 + rng.random_range(-2.0..2.0), centre.1 + rng.random_range(-2.0..2.0));
            polygon(rng, centre, 1.0)
        })
        .collect();
    format!(r#"{{"type":"MultiPolygon","coordinates":[{}]}}"#, parts.join(","))
}

#[tokio::test(flavor = "multi_thread")]
async fn random_polygons_are_judged_and_encoded_as_postgis_does() {
    const BATCH: usize = 500;
    let world = World::shared("validity", 1).await;
    let postgres = world.postgres().await;
    let mut rng = StdRng::seed_from_u64(seed());
    let (mut valid, mut invalid) = (0, 0);
    for _ in 0..if full() { 20_000 } else { 2000 } / BATCH {
        let shapes: Vec<String> = (0..BATCH).map(|_| shape(&mut rng)).collect();
        let sql = "SELECT ST_IsValid(geometry), ST_IsValidReason(geometry), ST_AsEWKB(geometry, 'NDR')
            FROM unnest($1::text[]) WITH ORDINALITY AS shape (text, n),
                LATERAL (SELECT ST_SetSRID(ST_GeomFromGeoJSON(text), 4326) AS geometry) AS read
            ORDER BY n";
        let rows = postgres.query(sql, &[&shapes]).await.unwrap();
        for (text, row) in shapes.iter().zip(&rows) {
            let (is_valid, reason, bytes): (bool, &str, Vec<u8>) = (row.get(0), row.get(1), row.get(2));
            match judge(text, Antimeridian::Reject) {
                Ok(event) => {
                    assert!(is_valid, "{reason}: {text}");
                    assert_eq!(event.shape.unwrap().footprint, bytes, "{text}");
                    valid += 1;
                }
                Err(rejection) => {
                    assert_eq!((is_valid, rejection.reason), (false, Reason::InvalidTopology), "{rejection:?}: {text}");
                    assert!(rejection.detail.contains(" at ") || !reason.contains('['), "{rejection:?}, {reason}");
                    invalid += 1;
                }
            }
        }
    }
    eprintln!("{valid} valid, {invalid} not");
    assert!(valid > 200 && invalid > 200);
}

/// Cuts each outline that crosses; compares it with what PostGIS makes of the same outline, unrolled.
async fn assert_cut_well(world: &World, outlines: &[(String, String)]) {
    for (name, text) in outlines {
        let rejection = judge(text, Antimeridian::Reject).unwrap_err();
        assert_eq!(rejection.reason, Reason::Antimeridian, "{name}");
        let event = judge(text, Antimeridian::Split).unwrap_or_else(|rejection| panic!("{name}: {rejection:?}"));
        let sql = "SELECT ST_IsValid(cut), ST_XMin(cut) >= -180 AND ST_XMax(cut) <= 180, ST_AsGeoJSON(cut, 17),
                CASE WHEN $3 THEN 0
                    ELSE ST_Area(ST_SymDifference(ST_ShiftLongitude(cut), ST_MakeValid(ST_ShiftLongitude(whole)))) END,
                ST_Area(cut)
            FROM (SELECT $1::bytea::geometry AS cut, ST_SetSRID(ST_GeomFromGeoJSON($2), 4326) AS whole) AS outline";
        // PostGIS cannot know that a ring round the globe is to be closed over a pole.
        let is_round = name.contains("pole");
        let row =
            world.postgres().await.query_one(sql, &[&event.shape.unwrap().footprint, text, &is_round]).await.unwrap();
        let (is_valid, in_range, again, differs, area): (bool, bool, &str, f64, f64) =
            (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4));
        assert!(is_valid && in_range && area > 0.0, "{name}: {is_valid} {in_range} {area}");
        assert!(differs < 1e-9 * area.max(1.0), "{name}: {differs} of {area}");
        assert!(judge(again, Antimeridian::Reject).is_ok(), "{name}: cut once, there is nothing left to cut");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_crosses_the_antimeridian_is_cut_as_postgis_sees_it() {
    let world = World::shared("antimeridian", 1).await;
    let outline = |name: &str, places: &[Place]| {
        (name.to_owned(), format!(r#"{{"type":"Polygon","coordinates":[{}]}}"#, ring(places)))
    };
    let outlines = [
        outline("taveuni", &[(179.8, -17.0), (179.9, -16.7), (-179.9, -16.7), (-179.85, -16.95), (179.95, -17.05)]),
        outline(
            "chukotka",
            &[
                (170.0, 69.5),
                (178.5, 69.3),
                (-179.0, 68.9),
                (-175.0, 67.4),
                (-170.0, 66.2),
                (-173.0, 64.4),
                (-178.5, 65.6),
                (-179.5, 66.2),
                (179.5, 65.0),
                (177.3, 64.7),
                (179.3, 62.4),
                (170.3, 60.0),
                (163.0, 61.7),
            ],
        ),
        outline("bounty to chatham", &[(178.9, -47.9), (-176.0, -44.2), (-176.5, -43.5), (178.0, -43.0)]),
        outline(
            "round the south pole",
            &[
                (-60.0, -63.0),
                (-10.0, -71.0),
                (50.0, -67.0),
                (110.0, -66.0),
                (170.0, -72.0),
                (-150.0, -77.0),
                (-100.0, -73.0),
            ],
        ),
    ];
    assert_cut_well(&world, &outlines).await;

    let belt = r#"{"type":"Polygon","coordinates":[[[179,0],[-179,0],[-179,1],[179,1],[179,0]]]}"#;
    assert!(judge(belt, Antimeridian::Keep).is_ok(), "as it is, round the whole world");

    // The whole way: the table holds the pieces, the shard is that of the first position.
    world.add(0, &event("fiji", 1, "create", &outlines[0].1, "")).await;
    let counts = world.worker().set("ANTIMERIDIAN", "split").once().await;
    assert_eq!(counts.applied, 1, "{counts:?}");
    let sql = "SELECT ST_NumGeometries(geometry), to_hex(cell) FROM feature WHERE ST_IsValid(geometry)";
    let row = world.postgres().await.query_one(sql, &[]).await.unwrap();
    let first = h3o::LatLng::new(-17.0, 179.8).unwrap().to_cell(h3o::Resolution::Seven).to_string();
    assert_eq!((row.get::<_, i32>(0), row.get::<_, String>(1)), (2, first));
}

#[derive(serde::Deserialize)]
struct Country {
    feature_id: String,
    geometry: Option<Box<serde_json::value::RawValue>>,
}

/// Outlines as they were before somebody cut them.
#[tokio::test(flavor = "multi_thread")]
async fn real_outlines_are_cut_again_where_they_were() {
    let Some(data) = data() else { return };
    let world = World::shared("outlines", 1).await;
    let countries: Vec<Country> = parse(&read(&data.join("polygons/countries.events.ndjson")));
    let mut outlines = Vec::new();
    for code in ["fji", "rus", "ata"] {
        let country = countries.iter().find(|country| country.feature_id == format!("country-{code}")).unwrap();
        let text = country.geometry.as_ref().unwrap().get();
        // Together, on one side of the world; then each longitude for itself back to ±180.
        let sql = "WITH whole AS (
                SELECT ST_UnaryUnion(ST_MakeValid(ST_ShiftLongitude(ST_MakeValid(ST_GeomFromGeoJSON($1))))) AS shape)
            SELECT ST_AsGeoJSON(shape, 17) FROM whole";
        let whole: String = world.postgres().await.query_one(sql, &[&text]).await.unwrap().get(0);
        let mut shape: serde_json::Value = serde_json::from_str(&whole).unwrap();
        back_to_180(&mut shape["coordinates"]);
        let wrapped = shape.to_string();
        if judge(&wrapped, Antimeridian::Reject).is_err_and(|rejection| rejection.reason == Reason::Antimeridian) {
            outlines.push((code.to_owned(), wrapped));
        } else {
            let verdict = judge(text, Antimeridian::Split);
            eprintln!("{code} does not cross: {:?}", verdict.as_ref().map(|_| "valid"));
        }
    }
    assert!(!outlines.is_empty());
    assert_cut_well(&world, &outlines).await;
}

fn back_to_180(coordinates: &mut serde_json::Value) {
    let Some(items) = coordinates.as_array_mut() else { return };
    if let Some(x) = items.first().and_then(serde_json::Value::as_f64) {
        if x > 180.0 {
            items[0] = serde_json::json!(x - 360.0);
        }
        return;
    }
    items.iter_mut().for_each(back_to_180);
}

#[tokio::test(flavor = "multi_thread")]
async fn noise_beyond_the_edge_of_the_world_can_be_forgiven() {
    let world = World::shared("tolerance", 1).await;
    let line = |x: &str, y: &str| format!(r#"{{"type":"LineString","coordinates":[[179,1],[{x},{y}]]}}"#);
    for (id, x, y) in
        [("x", "180.00000000000023", "2"), ("y", "-179.5e0", "-90.00000000010004"), ("far", "180.00001", "2")]
    {
        world.add(0, &event(id, 1, "create", &line(x, y), "")).await;
    }
    let counts = world.worker().set("COORDINATE_TOLERANCE", "1e-9").set("ANTIMERIDIAN", "keep").once().await;
    assert_eq!((counts.applied, counts.dead_lettered), (2, 1), "{counts:?}");
    assert_eq!(world.dead_letters().await[0].text("dead:feature_id"), "far");
    let sql = "SELECT ST_XMax(geometry), ST_YMin(geometry) FROM feature_state ORDER BY feature_id";
    let rows = world.postgres().await.query(sql, &[]).await.unwrap();
    assert_eq!((rows[0].get::<_, f64>(0), rows[1].get::<_, f64>(1)), (180.0, -90.0), "on the edge, not beyond");
}
