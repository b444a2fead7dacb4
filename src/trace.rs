//! Traces: a span for each batch, and one for each entry whose producer has sent its own along; by OTLP.
//!
//! An entry's fields `traceparent` and `tracestate` are those of W3C Trace Context
//! (<https://www.w3.org/TR/trace-context/>). Names are those of OpenTelemetry's conventions for messaging
//! (<https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/>). A span never holds what an event holds:
//! neither ids of features nor coordinates nor properties.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Link, Span, SpanContext, SpanKind, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue, global};
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::resource::{EnvResourceDetector, TelemetryResourceDetector};
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tracing::Subscriber;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

use crate::event::{EntryId, Reason};

const SCOPE: &str = "hexlane";
/// Bytes that a `tracestate` may have and that every party has to pass on:
/// <https://www.w3.org/TR/trace-context/#tracestate-limits>. A longer one is left out.
const LONGEST_STATE: usize = 512;
/// Whether anybody gets spans.
static EXPORTS: AtomicBool = AtomicBool::new(false);
/// How long the last spans may take to be sent when the process ends.
const LAST_EXPORT: Duration = Duration::from_secs(5);

/// Sends spans from a thread of its own, from a bounded queue: a collector that is slow or away costs spans only.
pub struct Export(SdkTracerProvider);

impl Export {
    /// Starts to send to a collector, such as `http://localhost:4318`. Not from an async thread.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn start(endpoint: &str) -> Result<Self, String> {
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
            .build()
            .map_err(|error| format!("--otlp-endpoint {endpoint}: {error}"))?;
        let resource = Resource::builder_empty()
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .with_service_name("hexlane")
            .with_detectors(&[Box::new(EnvResourceDetector::new()), Box::new(TelemetryResourceDetector)]);
        let resource = match std::env::var("OTEL_SERVICE_NAME") {
            Ok(name) => resource.with_service_name(name),
            Err(_) => resource,
        };
        let provider =
            SdkTracerProvider::builder().with_resource(resource.build()).with_batch_exporter(exporter).build();
        global::set_tracer_provider(provider.clone());
        EXPORTS.store(true, Ordering::Relaxed);
        Ok(Self(provider))
    }

    /// Takes the spans of this crate out of what `tracing` is told.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let tracer: SdkTracer = self.0.tracer(SCOPE);
        let layer = tracing_opentelemetry::layer().with_location(false).with_threads(false).with_tracer(tracer);
        layer.with_filter(Targets::new().with_target("hexlane", tracing::Level::DEBUG))
    }

    /// Sends what is left. Not from an async thread.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn end(self) -> Result<(), String> {
        self.0.shutdown_with_timeout(LAST_EXPORT).map_err(|error| format!("the last spans were not sent: {error}"))
    }
}

/// An entry that belongs to a trace of its producer's.
#[derive(Clone, Debug, PartialEq)]
pub struct Traced {
    parent: SpanContext,
    since: SystemTime,
}

impl Traced {
    /// Bytes that one takes in memory, at the most.
    pub const SIZE: usize = 2 * LONGEST_STATE + 128;

    /// From an entry's fields; `None` where they are no trace context, or one that is not to be recorded.
    pub fn from_fields(traceparent: &[u8], tracestate: Option<&[u8]>) -> Option<Box<Self>> {
        if !EXPORTS.load(Ordering::Relaxed) {
            return None;
        }
        let tracestate = tracestate.filter(|text| text.len() <= LONGEST_STATE);
        let fields = Fields {
            traceparent: std::str::from_utf8(traceparent).ok()?,
            tracestate: tracestate.and_then(|text| std::str::from_utf8(text).ok()),
        };
        let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &fields);
        let parent = context.span().span_context().clone();
        parent.is_sampled().then(|| Box::new(Self { parent, since: SystemTime::now() }))
    }

    /// The entry is settled: its span, from when it was read until now, goes out, linked with that of the batch.
    pub fn settled(self, entry: EntryId, stream: String, outcome: &'static str, reason: Option<Reason>) {
        let batch = tracing::Span::current().context().span().span_context().clone();
        let mut attributes = vec![
            KeyValue::new("messaging.system", "redis"),
            KeyValue::new("messaging.operation.type", "process"),
            KeyValue::new("messaging.destination.name", stream),
            KeyValue::new("messaging.message.id", entry.to_string()),
            KeyValue::new("hexlane.outcome", outcome),
        ];
        attributes.extend(reason.map(|reason| KeyValue::new("error.type", reason.as_str())));
        let tracer = global::tracer(SCOPE);
        tracer
            .span_builder("process")
            .with_kind(SpanKind::Consumer)
            .with_start_time(self.since)
            .with_attributes(attributes)
            .with_links(vec![Link::with_context(batch)])
            .start_with_context(&tracer, &Context::new().with_remote_span_context(self.parent))
            .end();
    }
}

struct Fields<'a> {
    traceparent: &'a str,
    tracestate: Option<&'a str>,
}

impl Extractor for Fields<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            "traceparent" => Some(self.traceparent),
            "tracestate" => self.tracestate,
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent", "tracestate"]
    }
}
