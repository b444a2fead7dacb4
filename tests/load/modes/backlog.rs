//! A backlog that is much longer than what a worker may hold.

use std::collections::HashMap;

use super::worker_args;
use crate::bench::{self, Order, Prepared};
use crate::cli::{Common, Load};
use crate::report::Report;
use crate::server::Servers;

/// Events that the benchmark itself holds at once; Redis needs the memory.
const CHUNK: usize = 500_000;
const BARE_BATCH: usize = 5000;

pub async fn backlog(servers: &mut Servers, common: &Common, load: &Load) -> Report {
    let mut report = Report::default();
    for _ in 0..common.runs {
        servers.empty().await;
        let newest = publish(servers, load).await;
        let run = bench::work(servers, load, &worker_args(common)).await;
        bench::check(servers, load.first_version, &newest).await;
        report.add("hexlane", run.rate, "events/s");
        report.add("peak memory of a worker", run.peak_mib(), "MiB");
        let total = load.events as f64;
        let time = |share: f64| time_of(&run.samples, total * share);
        report.add("first fifth", total / 5.0 / time(0.2), "events/s");
        report.add("last fifth", total / 5.0 / (time(1.0) - time(0.8)), "events/s");
        bare(servers, load, &mut report).await;
    }
    for (ratio, last, first) in [
        ("last fifth / first fifth", "last fifth", "first fifth"),
        ("the same of the bare writer", "bare writer, last fifth", "bare writer, first fifth"),
    ] {
        let ratio_of_both = report.median(last) / report.median(first);
        report.ratio(ratio, ratio_of_both);
    }
    report
}

/// What the table itself does to the rate as it gets older; without a rest, in which vacuum would catch up. So the
/// benchmark holds all of it at once.
async fn bare(servers: &mut Servers, load: &Load, report: &mut Report) {
    servers.empty().await;
    let all: Vec<Prepared> = chunks(load).map(|chunk| Prepared::new(&chunk)).collect();
    all.iter().for_each(Prepared::decode);
    let mut seconds = Vec::new();
    for chunk in &all {
        let took = chunk.write_bare(servers, Order::Published, BARE_BATCH).await;
        seconds.push((chunk.load.events as f64, took.as_secs_f64()));
    }
    let fifth = (seconds.len() / 5).max(1);
    let mut add = |name: &str, part: &[(f64, f64)]| {
        let (events, took) = part.iter().fold((0.0, 0.0), |sum, chunk| (sum.0 + chunk.0, sum.1 + chunk.1));
        report.add(name, events / took, "events/s");
    };
    add("bare writer, first fifth", &seconds[..fifth]);
    add("bare writer, last fifth", &seconds[seconds.len() - fifth..]);
}

fn chunks(load: &Load) -> impl Iterator<Item = Load> {
    (0_u64..).zip((0..load.events).step_by(CHUNK)).map(|(number, start)| Load {
        events: CHUNK.min(load.events - start),
        // No feature has more versions in a chunk than the chunk has events, so the next one's are newer.
        first_version: load.first_version + start as i64,
        seed: load.seed + number,
        ..load.clone()
    })
}

/// Answers the state in which the features must end.
async fn publish(servers: &mut Servers, load: &Load) -> HashMap<String, (i64, bool)> {
    servers.make_streams(load.topology()).await;
    let mut newest = HashMap::new();
    for chunk in chunks(load) {
        let prepared = Prepared::new(&chunk);
        prepared.append(servers).await;
        newest.extend(prepared.traffic.newest);
    }
    newest
}

/// When so many were settled, on a straight line between the samples around it.
fn time_of(samples: &[(f64, u64)], settled: f64) -> f64 {
    let after = samples.partition_point(|&(_, count)| (count as f64) < settled);
    let (time, count) = samples[after];
    let Some(&(time_before, count_before)) = after.checked_sub(1).and_then(|before| samples.get(before)) else {
        return time;
    };
    let share = (settled - count_before as f64) / (count - count_before) as f64;
    time_before + share * (time - time_before)
}
