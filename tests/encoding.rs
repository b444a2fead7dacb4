//! Geometries of every type, with and without heights: the bytes are those that PostGIS would write.

use hexlane::judge::{Antimeridian, Limits, judge};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::world::{World, event, full, seed};

/// Whole degrees, as many digits as a number holds, and exponents.
fn ordinate(rng: &mut StdRng, most: f64) -> String {
    match rng.random_range(0..5) {
        0 => rng.random_range(-80..80).to_string(),
        1 => format!("{:e}", rng.random_range(-1e-9..1e-9)),
        2 => format!("{:.1}", rng.random_range(-most..most)),
        _ => rng.random_range(-most..most).to_string(),
    }
}

fn position(rng: &mut StdRng, heights: bool) -> String {
    let (x, y) = (ordinate(rng, 180.0), ordinate(rng, 90.0));
    if heights { format!("[{x},{y},{}]", ordinate(rng, 9000.0)) } else { format!("[{x},{y}]") }
}

fn list(members: impl Iterator<Item = String>) -> String {
    format!("[{}]", members.collect::<Vec<_>>().join(","))
}

/// Corners at rising angles, so that most of them are valid.
fn ring(rng: &mut StdRng, heights: bool, (x, y): (f64, f64), radius: f64) -> String {
    let corners = rng.random_range(3..12);
    let mut places: Vec<String> = (0..corners)
        .map(|n| {
            let angle = (f64::from(n) + rng.random_range(0.1..0.9)) / f64::from(corners) * std::f64::consts::TAU;
            let height = if heights { format!(",{}", rng.random_range(-50..50)) } else { String::new() };
            format!("[{},{}{height}]", x + radius * angle.cos(), y + radius * angle.sin())
        })
        .collect();
    places.push(places[0].clone());
    list(places.into_iter())
}

fn polygon(rng: &mut StdRng, heights: bool) -> String {
    let centre = (rng.random_range(-170.0..170.0), rng.random_range(-80.0..80.0));
    let mut rings = vec![ring(rng, heights, centre, 5.0)];
    if rng.random_bool(0.5) {
        rings.push(ring(rng, heights, centre, 0.5));
    }
    list(rings.into_iter())
}

fn geometry(rng: &mut StdRng, heights: bool, depth: usize) -> String {
    let several = |rng: &mut StdRng, least: usize| least + rng.random_range(0..4);
    let line = |rng: &mut StdRng| {
        let count = several(rng, 2);
        list((0..count).map(|_| position(rng, heights)))
    };
    let (name, coordinates) = match rng.random_range(0..if depth < 3 { 7 } else { 6 }) {
        0 => ("Point", position(rng, heights)),
        1 => ("LineString", line(rng)),
        2 => ("Polygon", polygon(rng, heights)),
        3 => {
            let count = several(rng, 1);
            ("MultiPoint", list((0..count).map(|_| position(rng, heights))))
        }
        4 => {
            let count = several(rng, 1);
            ("MultiLineString", list((0..count).map(|_| line(rng))))
        }
        5 => {
            let count = several(rng, 1);
            ("MultiPolygon", list((0..count).map(|_| polygon(rng, heights))))
        }
        _ => {
            let count = several(rng, 1);
            let members = list((0..count).map(|_| geometry(rng, heights, depth + 1)));
            return format!(r#"{{"type":"GeometryCollection","geometries":{members}}}"#);
        }
    };
    format!(r#"{{"type":"{name}","coordinates":{coordinates}}}"#)
}

#[tokio::test(flavor = "multi_thread")]
async fn geometries_of_every_type_are_encoded_as_postgis_does() {
    const BATCH: usize = 200;
    let world = World::shared("encoding", 1).await;
    let postgres = world.postgres().await;
    let mut rng = StdRng::seed_from_u64(seed());
    // Whatever the edges span: this is about bytes.
    let limits = Limits { antimeridian: Antimeridian::Keep, ..Limits::default() };
    let (mut flat, mut high) = (0, 0);
    for _ in 0..if full() { 20_000 } else { 2000 } / BATCH {
        let texts: Vec<String> = (0..BATCH)
            .map(|_| {
                let heights = rng.random_bool(0.5);
                geometry(&mut rng, heights, 0)
            })
            .collect();
        let sql = "SELECT ST_AsEWKB(ST_Force2D(geometry), 'NDR'), ST_AsEWKB(geometry, 'NDR'), ST_IsValid(geometry)
            FROM unnest($1::text[]) WITH ORDINALITY AS shape (text, n),
                LATERAL (SELECT ST_SetSRID(ST_GeomFromGeoJSON(text), 4326) AS geometry) AS read
            ORDER BY n";
        for (text, row) in texts.iter().zip(postgres.query(sql, &[&texts]).await.unwrap()) {
            let (footprint, whole, is_valid): (Vec<u8>, Vec<u8>, bool) = (row.get(0), row.get(1), row.get(2));
            let verdict = judge(&event("F", 1, "create", text, ""), i64::MAX, &limits, h3o::Resolution::Seven);
            assert_eq!(verdict.is_ok(), is_valid, "{verdict:?}: {text}");
            let Ok(event) = verdict else { continue };
            let shape = event.shape.unwrap();
            assert_eq!(shape.footprint, footprint, "{text}");
            match shape.with_heights {
                Some(bytes) => {
                    assert_eq!(bytes, whole, "{text}");
                    high += 1;
                }
                None => {
                    assert_eq!(footprint, whole, "{text}");
                    flat += 1;
                }
            }
        }
    }
    assert!(flat > 500 && high > 500, "{flat} {high}");
}
