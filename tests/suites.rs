//! Conformance suites, sent in bulk: whatever a payload holds, it lands or becomes a dead letter, and
//! which of the two is what the specifications say.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::recorded::{from_base64, our_word, parse, read};
use crate::world::{World, data, event};

/// What became of each event of a bulk.
struct Landed {
    world: World,
    /// By entry id.
    dead: HashMap<String, String>,
}

impl Landed {
    /// Sends all, drains all.
    async fn send(name: &str, payloads: &[Vec<u8>]) -> (Self, Vec<String>) {
        let world = World::shared(name, 1).await;
        let mut ids = Vec::new();
        for payload in payloads {
            ids.push(world.add(0, payload).await);
        }
        let counts = world.worker().once().await;
        let sent = payloads.len() as u64;
        assert_eq!((counts.read, counts.settled(), world.pending().await), (sent, sent, 0), "{counts:?}");
        assert_eq!(counts.applied + counts.dead_lettered, sent, "each event is of a feature of its own: {counts:?}");
        let letters = world.dead_letters().await;
        for letter in &letters {
            let place = ids.iter().position(|id| *id == letter.text("dead:source_id")).unwrap();
            assert_eq!(letter.bytes("event"), Some(payloads[place].as_slice()), "the original bytes");
        }
        let dead = letters.iter().map(|letter| (letter.text("dead:source_id"), letter.reason())).collect();
        (Self { world, dead }, ids)
    }

    /// The reason of a dead letter; empty for what has landed.
    fn reason(&self, id: &str) -> &str {
        self.dead.get(id).map_or("", String::as_str)
    }
}

fn assert_none(wrong: &[String], of: usize) {
    assert!(wrong.is_empty(), "{} of {of}:\n{}", wrong.len(), wrong.join("\n"));
}

#[derive(Deserialize)]
struct JsonText {
    name: String,
    expect: String,
    raw_b64: String,
}

fn json_texts() -> Option<Vec<(String, String, Vec<u8>)>> {
    let texts: Vec<JsonText> = parse(&read(&data()?.join("json/jsontestsuite.ndjson")));
    Some(texts.into_iter().map(|text| (text.name, text.expect, from_base64(&text.raw_b64))).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_is_no_event_is_a_dead_letter() {
    let Some(texts) = json_texts() else { return };
    let payloads: Vec<Vec<u8>> = texts.iter().map(|(_, _, bytes)| bytes.clone()).collect();
    let (landed, ids) = Landed::send("json_alone", &payloads).await;
    let mut wrong = Vec::new();
    for ((name, expect, _), id) in texts.iter().zip(&ids) {
        let reason = landed.reason(id);
        let right = match expect.as_str() {
            "reject" => reason == "not_json",
            "accept" => matches!(reason, "bad_field" | "missing_field"),
            _ => matches!(reason, "not_json" | "bad_field" | "missing_field"),
        };
        if !right {
            wrong.push(format!("{name} ({expect}): {reason:?}"));
        }
    }
    assert_none(&wrong, texts.len());
}

/// An event with a text as the value of its last member; `closing` closes what `opening` opens.
fn around(feature_id: &str, opening: &str, text: &[u8], closing: &str) -> Vec<u8> {
    let mut payload = event(feature_id, 1, "create", r#"{"type":"Point","coordinates":[1,2]}"#, "");
    payload.pop();
    [&payload, opening.as_bytes(), text, closing.as_bytes(), b"}"].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_inside_an_event_decides_whether_it_is_json() {
    let Some(texts) = json_texts() else { return };
    // Unknown members are ignored; properties are an object, and jsonb has to hold it.
    let places = [
        ("extra", r#","extra":"#, ""),
        ("properties", r#","properties":"#, ""),
        ("inside", r#","properties":{"v":"#, "}"),
    ];
    let cases: Vec<_> = texts.iter().flat_map(|text| places.map(|place| (text, place))).collect();
    let payloads: Vec<Vec<u8>> = cases
        .iter()
        .map(|((name, _, bytes), (member, opening, closing))| {
            around(&format!("{member} {name}"), opening, bytes, closing)
        })
        .collect();
    let (landed, ids) = Landed::send("json_inside", &payloads).await;
    let mut wrong = Vec::new();
    for (((name, expect, bytes), (member, ..)), id) in cases.iter().zip(&ids) {
        let reason = landed.reason(id);
        let is_object = bytes.trim_ascii_start().starts_with(b"{") || bytes.trim_ascii() == b"null";
        let has_nul = bytes.windows(6).any(|escape| escape == br"\u0000");
        let right = match (expect.as_str(), *member) {
            ("reject", _) => reason == "not_json",
            ("accept", "extra") => reason.is_empty(),
            ("accept", "properties") if !is_object => reason == "bad_field",
            ("accept", _) if has_nul => reason == "bad_field",
            ("accept", _) => reason.is_empty(),
            (_, _) => matches!(reason, "" | "not_json" | "bad_field"),
        };
        if !right {
            wrong.push(format!("{member} {name} ({expect}): {reason:?}"));
        }
    }
    assert_none(&wrong, cases.len());
    // What has landed can be read again.
    let sql = "SELECT count(*) FROM feature_state WHERE properties::text::jsonb = properties";
    let stored: i64 = landed.world.postgres().await.query_one(sql, &[]).await.unwrap().get(0);
    assert!(stored > 0);
}

#[derive(Deserialize)]
struct Document {
    file: String,
    #[serde(default)]
    geometries: Vec<Case>,
}

/// As it is written.
fn as_text<'de, D: serde::Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Box::<RawValue>::deserialize(from).map(|value| value.get().to_owned())
}

/// A geometry and the outcome of a create event that carries it.
#[derive(Deserialize)]
struct Case {
    #[serde(deserialize_with = "as_text")]
    geometry: String,
    event: String,
    reason: Option<String>,
}

impl Case {
    fn refused(self, reason: &str) -> Self {
        Self { event: "dead_letter".into(), reason: Some(reason.into()), ..self }
    }
}

/// Sends each geometry as a feature of its own; answers what did not end as it should.
async fn outcomes(name: &str, cases: &[(String, Case)]) -> Vec<String> {
    let payloads: Vec<Vec<u8>> = cases
        .iter()
        .enumerate()
        .map(|(number, (_, case))| event(&format!("{name}-{number}"), 1, "create", &case.geometry, ""))
        .collect();
    let (landed, ids) = Landed::send(name, &payloads).await;
    let mut wrong = Vec::new();
    for ((title, case), id) in cases.iter().zip(&ids) {
        let reason = landed.reason(id);
        let wanted = case.reason.as_deref().map(our_word);
        let right = match case.event.as_str() {
            "applied" => reason.is_empty(),
            _ => !reason.is_empty() && wanted.is_none_or(|wanted| wanted == reason),
        };
        if !right {
            wrong.push(format!("{title}: {reason:?}, not {} {wanted:?}: {:.200}", case.event, &case.geometry));
        }
    }
    wrong
}

/// Has positions with a height and one without. The RFC does not forbid it, the table's types do,
/// and so does the event format.
const MIXED_HEIGHTS: &str = "data/geometry/polygon-xyz.geojson";

#[tokio::test(flavor = "multi_thread")]
async fn geometries_of_whole_documents_end_as_they_should() {
    let Some(folder) = data() else { return };
    let documents: Vec<Document> = parse(&read(&folder.join("geojson/documents.ndjson")));
    let cases: Vec<(String, Case)> = documents
        .into_iter()
        .flat_map(|document| document.geometries.into_iter().map(move |case| (document.file.clone(), case)))
        .map(|(file, case)| if file == MIXED_HEIGHTS { (file, case.refused("bad_geometry")) } else { (file, case) })
        .collect();
    assert_none(&outcomes("documents", &cases).await, cases.len());
}

#[derive(Deserialize)]
struct Validity {
    file: String,
    case: u32,
    desc: Option<String>,
    geojson: Option<Box<RawValue>>,
    structure: Option<String>,
    #[serde(default)]
    empty: bool,
    event: Option<String>,
    fitted: Option<Fitted>,
}

/// The same shape, scaled into the range of longitudes and latitudes.
#[derive(Deserialize)]
struct Fitted {
    geojson: Box<RawValue>,
    event: String,
}

#[tokio::test(flavor = "multi_thread")]
async fn validity_is_that_of_the_suites() {
    let Some(folder) = data() else { return };
    let text = read(&folder.join("validity/isvalid.ndjson"));
    let mut cases = Vec::new();
    for line in text.lines() {
        let Ok(row) = serde_json::from_str::<Validity>(line) else {
            // A row about NaN or infinity, for which JSON has no words.
            let geometry =
                line.split_once("\"geojson\":").unwrap().1.split_once(",\"structure\"").unwrap().0.to_owned();
            let case = Case { geometry, event: String::new(), reason: None };
            cases.push((line.to_owned(), case.refused("not_json")));
            continue;
        };
        let title = format!("{} {} {}", row.file, row.case, row.desc.unwrap_or_default());
        let (geometry, event) = match (row.fitted, row.geojson, row.event) {
            (Some(fitted), _, _) => (fitted.geojson, fitted.event),
            (None, Some(geojson), Some(event)) => (geojson, event),
            // Not to be said in GeoJSON.
            _ => continue,
        };
        let reason = match row.structure.as_deref() {
            _ if event == "applied" => None,
            _ if row.empty => Some("empty_geometry".to_owned()),
            Some("ok") => Some("invalid_topology".to_owned()),
            // An empty part among others counts as one or the other.
            _ => None,
        };
        cases.push((title, Case { geometry: geometry.get().to_owned(), event, reason }));
    }
    assert!(cases.len() > 600, "{} cases", cases.len());
    assert_none(&outcomes("validity", &cases).await, cases.len());
}
