//! How long it takes from an entry's arrival in Redis to its commit in PostgreSQL: without the flush of the commit,
//! from each row that is stored; and with it, up to PostgreSQL's answer, as the worker's histogram has it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use hexlane::event::EntryId;
use tokio::time::MissedTickBehavior;

use super::worker_args;
use crate::bench::Prepared;
use crate::cli::{Common, Giant, Steady};
use crate::report::Report;
use crate::scrape::{self, Histogram};
use crate::server::{Servers, free_port};
use crate::traffic;
use crate::worker::{self, Worker};

const WARM_UP_SECONDS: u64 = 1;
/// Short against any latency of interest, long enough for a timer to keep it.
const TICK: Duration = Duration::from_millis(2);
/// Bounds of the histogram's buckets, so that the shares are counted, not interpolated.
const WITHIN_MS: [f64; 3] = [2.5, 10.0, 50.0];

/// By the clocks of the two servers, so they have to run on one machine, or on two that agree.
pub async fn latency(servers: &mut Servers, common: &Common, steady: &Steady) -> Report {
    let setting: String =
        servers.postgres.query_one("SHOW track_commit_timestamp", &[]).await.expect("PostgreSQL answers").get(0);
    assert!(setting == "on", "PostgreSQL keeps no commit times: set track_commit_timestamp = on and restart it");
    let load = steady.load(WARM_UP_SECONDS);
    let after = steady.giant_every;
    let giant = steady.giant.map(|positions| Giant { positions, after });
    let alone = Prepared::of(&load, traffic::one_each(&load, None));
    let beside = giant.map(|giant| Prepared::of(&load, traffic::one_each(&load, Some(giant))));
    let mut args = worker_args(common);
    args.extend(["--reorder-window".to_owned(), humantime::format_duration(steady.window).to_string()]);
    let mut report = Report::default();
    // Without the giant the same shard is left out, so that the same events are compared.
    let left_out = beside.as_ref().map(|beside| beside.shard_of(after));
    for _ in 0..common.runs {
        measure(servers, steady, &alone, &args, None, left_out, &mut report).await;
        if let Some(beside) = &beside {
            measure(servers, steady, beside, &args, giant, left_out, &mut report).await;
        }
    }
    if giant.is_some() {
        let ratio = report.median(&format!("{BESIDE}p99")) / report.median("p99");
        report.ratio("p99 beside a giant / p99 without", ratio);
    }
    report
}

const BESIDE: &str = "beside a giant: ";

async fn measure(
    servers: &mut Servers,
    steady: &Steady,
    prepared: &Prepared,
    args: &[String],
    giant: Option<Giant>,
    left_out: Option<u16>,
    report: &mut Report,
) {
    let load = &prepared.load;
    servers.empty().await;
    servers.fill(load.features).await;
    servers.make_streams(load.topology()).await;
    let admin = format!("127.0.0.1:{}", free_port());
    let args = [args, &["--admin-addr".to_owned(), admin.clone()]].concat();
    let worker = Worker::start(servers, 0, &args);
    worker::attend(servers, load.shards).await;
    let warmed_up = tokio::spawn(after_warm_up(admin.clone()));
    let start = Instant::now();
    let arrivals = send(servers, prepared, steady.rate, giant, left_out).await;
    let total = prepared.traffic.events.len();
    let rate = total as f64 / start.elapsed().as_secs_f64();
    worker::drain(servers, load.shards, total as u64, Duration::from_secs(1)).await;
    let all = answered(&admin).await;
    assert!(all.count() >= total as f64, "the histogram lacks events: it has {} of {total}", all.count());
    let measured = all.since(&warmed_up.await.expect("the worker is scraped"));
    worker.stop().await;
    prepared.check(servers).await;
    let latencies = latencies(servers, &arrivals).await;
    let mut add = |name: &str, value: f64, unit: &'static str| {
        let before = if giant.is_some() { BESIDE } else { "" };
        report.add(format!("{before}{name}"), value, unit);
    };
    add("sent", rate, "events/s");
    for (name, share) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
        add(name, percentile(&latencies, share), "ms");
    }
    if steady.window > Duration::ZERO {
        let window_ms = steady.window.as_secs_f64() * 1e3;
        add("p99 less the window", percentile(&latencies, 0.99) - window_ms, "ms");
    }
    for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
        add(&format!("{name}, answered (histogram)"), measured.quantile(share) * 1e3, "ms");
    }
    for ms in WITHIN_MS {
        add(&format!("answered within {ms} ms"), measured.share_within(ms / 1e3) * 100.0, "%");
    }
}

/// From the time in the entry's id until the worker has PostgreSQL's answer to the whole batch, the flush of the
/// commit included. Of every event that was answered so far, whichever shard it is of, the giant too. The worker
/// takes both times in whole milliseconds, cut off, so each is up to 1 ms too high or too low: what counts as within
/// 2.5 ms took less than 3.
async fn answered(admin: &str) -> Histogram {
    let metrics = scrape::metrics(admin).await.expect("the worker answers");
    Histogram::find(&metrics, "hexlane_commit_latency_seconds")
}

/// What is to be left out; a few events of the warm-up may be answered later than this.
async fn after_warm_up(admin: String) -> Histogram {
    tokio::time::sleep(Duration::from_secs(WARM_UP_SECONDS)).await;
    answered(&admin).await
}

/// Publishes the events at `rate`; answers when each feature's entry arrived, in milliseconds since
/// 1970 by the clock of Redis; without those of the warm-up, and without those of one shard.
async fn send(
    servers: &mut Servers,
    prepared: &Prepared,
    rate: u64,
    giant: Option<Giant>,
    left_out: Option<u16>,
) -> HashMap<String, u64> {
    let keys = servers.keys();
    let entries: Vec<(u16, &Vec<u8>)> = prepared.addressed().collect();
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
        for (shard, event) in due {
            pipe.cmd("XADD").arg(keys.events(*shard)).arg("*").arg("event").arg(event);
        }
        let added: Vec<String> = pipe.query_async(&mut servers.redis).await.expect("Redis takes the events");
        ids.extend(added);
    }
    let arrival = |id: &String| EntryId::parse(id.as_bytes()).expect("the id of an entry").ms;
    let is_giant = |place: usize| giant.is_some_and(|giant| place % (giant.after + 1) == giant.after);
    let sent = entries.iter().zip(&ids).enumerate().filter(|(place, _)| !is_giant(*place));
    (0_u64..)
        .zip(sent)
        .skip_while(|(feature, _)| *feature < rate * WARM_UP_SECONDS)
        .filter(|(_, (_, ((shard, _), _)))| Some(*shard) != left_out)
        .map(|(feature, (_, (_, id)))| (traffic::name(feature), arrival(id)))
        .collect()
}

/// In milliseconds, sorted. An entry's id has whole milliseconds only, cut off, so each is up to
/// 1 ms too high. PostgreSQL takes the commit's time right before it flushes the commit to disk, so
/// that one flush is not in it.
async fn latencies(servers: &Servers, arrivals: &HashMap<String, u64>) -> Vec<f64> {
    let sql = "SELECT feature_id, (extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1000000)::bigint
        FROM feature_state";
    let rows = servers.postgres.query(sql, &[]).await.expect("PostgreSQL answers");
    // Of a giant's shard, and of the giant itself, nothing is asked.
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
