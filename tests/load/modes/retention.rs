//! Whether Redis' memory stays where it is while events come and go at a steady rate.

use std::time::{Duration, Instant};

use tokio::time::MissedTickBehavior;

use super::worker_args;
use crate::bench::Prepared;
use crate::cli::{Common, Retention};
use crate::report::Report;
use crate::server::Servers;
use crate::worker::{self, Worker};

const TICK: Duration = Duration::from_millis(10);
const SAMPLE_EVERY: Duration = Duration::from_millis(500);
/// After this share of the events memory has to stay.
const FIRST_SHARE: f64 = 0.1;

pub async fn retention(servers: &mut Servers, common: &Common, retention: &Retention) -> Report {
    let mut report = Report::default();
    let prepared = Prepared::new(&retention.load);
    let mut args = worker_args(common);
    args.extend(["--retention".to_owned(), humantime::format_duration(retention.retention).to_string()]);
    for _ in 0..common.runs {
        servers.empty().await;
        servers.make_streams(retention.load.topology()).await;
        let worker = Worker::start(servers, 0, &args);
        worker::attend(servers, retention.load.shards).await;
        let samples = send(servers, &prepared, retention.rate).await;
        worker::drain(servers, retention.load.shards, retention.load.events as u64, Duration::from_secs(1)).await;
        report.add("peak memory of the worker", worker.used().peak_mib, "MiB");
        worker.stop().await;
        prepared.check(servers).await;
        let first = samples.iter().find(|(share, _)| *share >= FIRST_SHARE).expect("a sample");
        let last = samples.last().expect("a sample");
        let most = samples.iter().map(|(_, mib)| *mib).fold(0.0, f64::max);
        report.add("Redis after the first tenth", first.1, "MiB");
        report.add("Redis at the end", last.1, "MiB");
        report.add("Redis at the most", most, "MiB");
    }
    let ratio = report.median("Redis at the end") / report.median("Redis after the first tenth");
    report.ratio("at the end / after the first tenth", ratio);
    report
}

/// Sends at a steady rate; answers what share was sent and the memory that Redis used then.
async fn send(servers: &mut Servers, prepared: &Prepared, rate: u64) -> Vec<(f64, f64)> {
    let keys = servers.keys();
    let entries: Vec<(u16, &Vec<u8>)> = prepared.addressed().collect();
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let (start, mut sent, mut samples) = (Instant::now(), 0, Vec::new());
    while sent < entries.len() {
        ticks.tick().await;
        let due = ((start.elapsed().as_secs_f64() * rate as f64) as usize).min(entries.len());
        let mut pipe = redis::pipe();
        for (shard, event) in entries.get(sent..due).unwrap_or_default() {
            pipe.cmd("XADD").arg(keys.events(*shard)).arg("*").arg("event").arg(*event).ignore();
        }
        if !pipe.is_empty() {
            pipe.exec_async(&mut servers.redis).await.expect("Redis takes the events");
        }
        sent = due.max(sent);
        if start.elapsed() >= SAMPLE_EVERY * u32::try_from(samples.len()).expect("few samples") {
            samples.push((sent as f64 / entries.len() as f64, servers.redis_mib().await));
        }
    }
    samples.push((1.0, servers.redis_mib().await));
    samples
}
