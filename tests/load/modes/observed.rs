//! What it costs to be looked at: metrics scraped every second, spans sent to a collector.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use hexlane::shard::Topology;

use super::worker_args;
use crate::bench::{self, EndToEnd, Prepared};
use crate::cli::{Common, Observed};
use crate::report::Report;
use crate::scrape;
use crate::server::{Servers, free_port};

const PUBLISH: usize = 1000;
const SCRAPE_EVERY: Duration = Duration::from_secs(1);
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

pub async fn observed(servers: &mut Servers, common: &Common, observed: &Observed) -> Report {
    let prepared = Prepared::new(&observed.load);
    let mut report = Report::default();
    let events = observed.load.events as f64;
    for _ in 0..common.runs {
        let plain = run(servers, &prepared, observed.traced_every, &worker_args(common)).await;
        report.add("hexlane, not looked at", plain.rate, "events/s");
        report.add("not looked at: CPU of the workers", plain.worker_cpu() / events * 1e6, "µs/event");

        let (collector, received) = collect().await;
        let admin = format!("127.0.0.1:{}", free_port());
        let args = ["--otlp-endpoint", &collector, "--admin-addr", &admin].map(str::to_owned);
        let scrapes = Arc::new(AtomicUsize::new(0));
        let scraper = tokio::spawn(keep_scraping(admin, scrapes.clone()));
        let args: Vec<String> = worker_args(common).into_iter().chain(args).collect();
        let seen = run(servers, &prepared, observed.traced_every, &args).await;
        scraper.abort();
        report.add("hexlane, scraped and traced", seen.rate, "events/s");
        report.add("scraped and traced: CPU of the workers", seen.worker_cpu() / events * 1e6, "µs/event");
        report.add("scrapes", scrapes.load(Ordering::Relaxed) as f64, "");
        let received = received.load(Ordering::Relaxed) as f64;
        assert!(received > 0.0, "the collector got nothing");
        report.add("bytes of spans", received / events, "bytes/event");
    }
    let ratio = report.median("hexlane, scraped and traced") / report.median("hexlane, not looked at");
    report.ratio("scraped and traced / not looked at", ratio);
    report
}

/// The same entries for both: every so many of them with the trace of a producer.
async fn run(servers: &mut Servers, prepared: &Prepared, traced_every: usize, args: &[String]) -> EndToEnd {
    servers.empty().await;
    servers.make_streams(Topology { shards: prepared.load.shards, ..Topology::default() }).await;
    let keys = servers.keys();
    let all: Vec<(u16, &Vec<u8>)> = prepared.addressed().collect();
    for (page, events) in all.chunks(PUBLISH).enumerate() {
        let mut pipe = redis::pipe();
        for (place, (shard, event)) in events.iter().enumerate() {
            let add = pipe.cmd("XADD").arg(keys.events(*shard)).arg("*").arg("event").arg(*event);
            if (page * PUBLISH + place).is_multiple_of(traced_every) {
                add.arg("traceparent").arg(PARENT);
            }
        }
        pipe.exec_async(&mut servers.redis).await.expect("Redis takes the events");
    }
    servers.settle_redis().await;
    let run = bench::work(servers, &prepared.load, args).await;
    prepared.check(servers).await;
    run
}

/// A collector that throws away what it gets; and the bytes it has got.
async fn collect() -> (String, Arc<AtomicUsize>) {
    let received = Arc::new(AtomicUsize::new(0));
    let take = async |State(received): State<Arc<AtomicUsize>>, body: axum::body::Bytes| {
        received.fetch_add(body.len(), Ordering::Relaxed);
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = format!("http://{}", listener.local_addr().expect("it is bound"));
    let app = Router::new().route("/v1/traces", post(take)).with_state(received.clone());
    tokio::spawn(async move { axum::serve(listener, app).await });
    (address, received)
}

async fn keep_scraping(admin: String, scrapes: Arc<AtomicUsize>) {
    let mut every = tokio::time::interval(SCRAPE_EVERY);
    loop {
        every.tick().await;
        // Not there yet, or not any more.
        if scrape::metrics(&admin).await.is_ok() {
            scrapes.fetch_add(1, Ordering::Relaxed);
        }
    }
}
