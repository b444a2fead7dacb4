//! Traces as an OpenTelemetry collector gets them.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

use crate::secure::ended;
use crate::world::{World, eventually, free_port, point};

const PASSWORD: &str = "letters4traces";

type Spans = Arc<Mutex<Vec<Span>>>;

/// What a collector understands of OTLP over HTTP.
struct Collector {
    spans: Spans,
    address: String,
}

impl Collector {
    async fn start() -> Self {
        let spans = Spans::default();
        let take = async |State(spans): State<Spans>, body: Bytes| {
            let request = ExportTraceServiceRequest::decode(body).expect("OTLP");
            for resource in request.resource_spans {
                let attributes = resource.resource.expect("a resource").attributes;
                assert!(!format!("{attributes:?}").contains(PASSWORD), "{attributes:?}");
                assert!(attributes.iter().any(|attribute| attribute.key == "service.name"));
                let sent = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
                spans.lock().unwrap().extend(sent);
            }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new().route("/v1/traces", post(take)).with_state(spans.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { spans, address }
    }

    fn spans(&self, name: &str) -> Vec<Span> {
        self.spans.lock().unwrap().iter().filter(|span| span.name == name).cloned().collect()
    }
}

fn text(span: &Span, key: &str) -> String {
    let value = span.attributes.iter().find(|attribute| attribute.key == key).and_then(|found| found.value.as_ref());
    match value.and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("{key}: {other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_goes_on_in_the_trace_of_its_producer() {
    const SAMPLED: &[u8] = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const OTHER: &[u8] = b"00-1af7651916cd43dd8448eb211c80319c-c7ad6b7169203331-01";
    const UNSAMPLED: &[u8] = b"00-2af7651916cd43dd8448eb211c80319c-d7ad6b7169203331-00";
    let world = World::shared("traces", 2).await;
    let collector = Collector::start().await;
    let add = async |event: &[u8], parent: &[u8]| {
        world.add_fields(1, &[("event", event), ("traceparent", parent), ("tracestate", b"a=b")]).await
    };
    let landed = add(&point("Secret", 1, 4.25, 52.125), SAMPLED).await;
    let dead = add(b"{\"feature_id\": \"Hidden\"}", OTHER).await;
    add(&point("B", 1, 4.3, 52.1), UNSAMPLED).await;
    add(&point("C", 1, 4.3, 52.1), b"no context").await;
    world.add(1, &point("D", 1, 4.3, 52.1)).await;

    let _: redis::Value = world.ask(&format!("ACL SETUSER {} on >{PASSWORD} ~* &* +@all", world.namespace)).await;
    let redis_url = world.redis_url.replace("redis://", &format!("redis://{}:{PASSWORD}@", world.namespace));
    let database_url = world.database_url.replace("postgres@", &format!("postgres:{PASSWORD}@"));
    assert!(redis_url.contains(PASSWORD) && database_url.contains(PASSWORD), "{redis_url} {database_url}");
    let worker = world.worker().set("OTLP_ENDPOINT", &collector.address).set("REDIS_URL", &redis_url);
    let worker = worker.set("DATABASE_URL", &database_url).ready().await;
    world.drained().await;
    let counts = worker.stop().await;
    assert_eq!((counts.applied, counts.dead_lettered), (4, 1));

    // What is left is sent before the process ends.
    let entries = collector.spans("process");
    let of = |id: &str| entries.iter().find(|span| text(span, "messaging.message.id") == id).unwrap();
    assert_eq!(entries.len(), 2, "one for each that is to be recorded");
    let batches = collector.spans("batch");
    for (id, parent, outcome) in [(&landed, SAMPLED, "applied"), (&dead, OTHER, "dead_lettered")] {
        let span = of(id);
        let parent = std::str::from_utf8(parent).unwrap();
        assert_eq!(format!("00-{}-{}-01", hex(&span.trace_id), hex(&span.parent_span_id)), parent);
        assert_eq!(span.trace_state, "a=b");
        assert_eq!(text(span, "hexlane.outcome"), outcome);
        assert_eq!(text(span, "messaging.destination.name"), world.events_key(1));
        let batch = batches.iter().find(|batch| batch.span_id == span.links[0].span_id).expect("the batch it was in");
        assert_eq!(text(batch, "lane.shard"), "1");
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
    }
    assert_eq!(text(of(&dead), "error.type"), "missing_field");
    let events: u64 = batches.iter().map(|batch| text(batch, "batch.events").parse::<u64>().unwrap()).sum();
    assert_eq!(events, 5);
    for (name, parent) in [("write", "batch"), ("settle", "batch"), ("statement", "write")] {
        for span in collector.spans(name) {
            assert!(collector.spans(parent).iter().any(|other| other.span_id == span.parent_span_id), "{name}");
        }
        assert!(!collector.spans(name).is_empty(), "{name}");
    }
    assert!(!collector.spans("judge").is_empty());

    // Whose features they are, and where, is nobody's business who looks at traces.
    let everything = format!("{:?}", collector.spans.lock().unwrap());
    for secret in ["Secret", "Hidden", "4.25", "52.125", PASSWORD] {
        assert!(!everything.contains(secret), "{secret}");
    }
    // It goes on when the letter is sent back.
    assert_eq!(world.dead_letters().await[0].bytes("traceparent"), Some(OTHER));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_costs_spans_only() {
    let world = World::shared("traces_away", 1).await;
    let nobody = format!("127.0.0.1:{}", free_port());
    let worker = world.worker().set("OTLP_ENDPOINT", &format!("http://{nobody}")).ready().await;
    for number in 0..100 {
        world.add(0, &point(&format!("F{number}"), 1, 4.3, 52.1)).await;
    }
    world.drained().await;
    let log = worker.log();
    assert!(!log.contains("panicked"), "{log}");
    eventually("it is told", async || worker.log().contains("opentelemetry") || worker.log().contains("spans")).await;
    assert_eq!(worker.stop().await.applied, 100);
}

/// The drivers' own words too, however much is asked for.
#[tokio::test(flavor = "multi_thread")]
async fn no_log_holds_what_events_hold() {
    let world = World::shared("talkative", 1).await;
    let more = r#","properties":{"k":"whisper"},"event_id":"first""#;
    let place = r#"{"type":"Point","coordinates":[4.0625,52.125]}"#;
    let good = crate::world::event("Secret", 1, "create", place, more);
    let bad = crate::world::event("Hidden", 1, "create", r#"{"type":"Point","coordinates":[4.0625]}"#, "");
    world.sql("ALTER TABLE feature_state ADD CONSTRAINT no_ghosts CHECK (feature_id <> 'Ghost')").await;
    for event in [&good, &bad, &point("Ghost", 1, 4.0625, 52.125)] {
        world.add(0, event).await;
    }
    let mut worker = world.command(&["worker", "--once", "--admin-addr", "127.0.0.1:0"]);
    worker.env("RUST_LOG", "trace,tokio_postgres::query=trace");
    let (code, log) = ended(worker).await;
    assert_eq!(code, 0, "{log}");
    assert!(log.contains(r#""applied":1"#) && log.contains(r#""dead_lettered":2"#), "{log}");
    for secret in ["Secret", "Hidden", "4.0625", "52.125", "whisper", "with parameters"] {
        assert!(!log.contains(secret), "{secret}: {log}");
    }
}
