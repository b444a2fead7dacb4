//! How long it takes from an entry's arrival in Redis to its commit in PostgreSQL.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use hexlane::event::EntryId;
use tokio::time::MissedTickBehavior;

use super::worker_args;
use crate::bench::Prepared;
use crate::cli::{Common, Steady};
use crate::report::Report;
use crate::server::Servers;
use crate::traffic;
use crate::worker::{self, Worker};

const WARM_UP_SECONDS: u64 = 1;
/// Short against any latency of interest, long enough for a timer to keep it.
const TICK: Duration = Duration::from_millis(2);

/// By the clocks of the two servers, so they have to run on one machine, or on two that agree.
pub async fn latency(servers: &mut Servers, common: &Common, steady: &Steady) -> Report {
    let setting: String =
        servers.postgres.query_one("SHOW track_commit_timestamp", &[]).await.expect("PostgreSQL answers").get(0);
    assert!(setting == "on", "PostgreSQL keeps no commit times: set track_commit_timestamp = on and restart it");
    let load = steady.load(WARM_UP_SECONDS);
    let prepared = Prepared::of(&load, traffic::one_each(&load));
    let mut args = worker_args(common);
    args.extend(["--reorder-window".to_owned(), humantime::format_duration(steady.window).to_string()]);
    let mut report = Report::default();
    for _ in 0..common.runs {
        servers.empty().await;
        servers.fill(load.features).await;
        servers.make_streams(load.topology()).await;
        let worker = Worker::start(servers, 0, &args);
        worker::attend(servers, load.shards).await;
        let start = Instant::now();
        let arrivals = send(servers, &prepared, steady.rate).await;
        report.add("sent", load.events as f64 / start.elapsed().as_secs_f64(), "events/s");
        worker::drain(servers, load.shards, load.events as u64, Duration::from_secs(1)).await;
        worker.stop().await;
        prepared.check(servers).await;
        let latencies = latencies(servers, &arrivals).await;
        report.add("p50", percentile(&latencies, 0.5), "ms");
        report.add("p99", percentile(&latencies, 0.99), "ms");
        report.add("max", percentile(&latencies, 1.0), "ms");
        if steady.window > Duration::ZERO {
            let window_ms = steady.window.as_secs_f64() * 1e3;
            report.add("p99 less the window", percentile(&latencies, 0.99) - window_ms, "ms");
        }
    }
    report
}

/// Publishes the events at `rate`; answers when each feature's entry arrived, in milliseconds since
/// 1970 by the clock of Redis, those of the warm-up left out.
async fn send(servers: &mut Servers, prepared: &Prepared, rate: u64) -> HashMap<String, u64> {
    let keys = servers.keys();
    let entries: Vec<(String, &Vec<u8>)> =
        prepared.addressed().map(|(shard, event)| (keys.events(shard), event)).collect();
    let mut ids: Vec<String> = Vec::with_capacity(entries.len());
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let start = Instant::now();
    while ids.len() < entries.len() {
        ticks.tick().await;
        // What is due by the clock, so that no delay of ours lowers the rate.
        let due = (start.elapsed().as_secs_f64() * rate as f64) as usize;
        let due = entries.get(ids.len()..due.min(entries.len())).unwrap_or_default();
        if due.is_empty() {
            continue;
        }
        let mut pipe = redis::pipe();
        for (key, event) in due {
            pipe.cmd("XADD").arg(key).arg("*").arg("event").arg(event);
        }
        let added: Vec<String> = pipe.query_async(&mut servers.redis).await.expect("Redis takes the events");
        ids.extend(added);
    }
    let arrival = |id: &String| EntryId::parse(id.as_bytes()).expect("the id of an entry").ms;
    let counted = (0_u64..).zip(&ids).skip_while(|(feature, _)| *feature < rate * WARM_UP_SECONDS);
    counted.map(|(feature, id)| (traffic::name(feature), arrival(id))).collect()
}

/// In milliseconds, sorted. An entry's id has whole milliseconds only, cut off, so each is up to
/// 1 ms too high. PostgreSQL takes the commit's time right before it flushes the commit to disk, so
/// that one flush is not in it.
async fn latencies(servers: &Servers, arrivals: &HashMap<String, u64>) -> Vec<f64> {
    let sql = "SELECT feature_id, (extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1000000)::bigint
        FROM feature_state";
    let rows = servers.postgres.query(sql, &[]).await.expect("PostgreSQL answers");
    let latency = |row: &tokio_postgres::Row| {
        let arrived_ms = arrivals.get(row.get::<_, &str>(0))?;
        Some(row.get::<_, i64>(1) as f64 / 1e3 - *arrived_ms as f64)
    };
    let mut latencies: Vec<f64> = rows.iter().filter_map(latency).collect();
    assert!(latencies.len() == arrivals.len(), "some events have no commit time");
    latencies.sort_by(f64::total_cmp);
    latencies
}

/// The smallest that is not below `share` of them.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted[rank.max(1) - 1]
}
