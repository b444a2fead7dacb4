//! The same events under conditions that should make no difference.

use super::worker_args;
use crate::bench::{self, Prepared};
use crate::cli::{Common, Load};
use crate::report::Report;
use crate::server::Servers;

const SHARDS: [u16; 4] = [1, 16, 64, 256];
const PROCESSES: [usize; 3] = [1, 2, 4];
const HOT: f64 = 0.9;

pub async fn shards(servers: &mut Servers, common: &Common, load: &Load) -> Report {
    let mut prepared = Prepared::new(load);
    let mut report = Report::default();
    let name = |shards: u16| format!("shards: {shards}");
    for _ in 0..common.runs {
        for shards in SHARDS {
            prepared.with_shards(shards);
            measure(servers, common, &prepared, &mut report, &name(shards)).await;
        }
    }
    slowest_to_fastest(&mut report, &SHARDS.map(name));
    report
}

pub async fn processes(servers: &mut Servers, common: &Common, load: Load) -> Report {
    let mut prepared = Prepared::new(&load);
    let mut report = Report::default();
    let name = |workers: usize| format!("processes: {workers}");
    for _ in 0..common.runs {
        for workers in PROCESSES {
            prepared.load.workers = workers;
            measure(servers, common, &prepared, &mut report, &name(workers)).await;
        }
    }
    slowest_to_fastest(&mut report, &PROCESSES.map(name));
    report
}

pub async fn hot(servers: &mut Servers, common: &Common, load: &Load) -> Report {
    let even = Prepared::new(&Load { hot: 0.0, ..load.clone() });
    let hot = Prepared::new(&Load { hot: HOT, ..load.clone() });
    let mut report = Report::default();
    for _ in 0..common.runs {
        measure(servers, common, &even, &mut report, "even").await;
        measure(servers, common, &hot, &mut report, "hot").await;
    }
    let ratio = report.median("hot") / report.median("even");
    report.ratio("hot / even", ratio);
    report
}

async fn measure(servers: &mut Servers, common: &Common, prepared: &Prepared, report: &mut Report, name: &str) {
    servers.empty().await;
    let run = bench::hexlane(servers, prepared, &worker_args(common)).await;
    let events = prepared.load.events as f64;
    report.add(name, run.rate, "events/s");
    report.add(format!("{name}: CPU of the workers"), run.worker_cpu() / events * 1e6, "µs/event");
    report.add(format!("{name}: CPU of Redis"), run.cpu.redis / events * 1e6, "µs/event");
}

fn slowest_to_fastest(report: &mut Report, names: &[String]) {
    let medians = names.iter().map(|name| report.median(name));
    let slowest = medians.clone().fold(f64::INFINITY, f64::min);
    let fastest = medians.fold(f64::NEG_INFINITY, f64::max);
    report.ratio("slowest / fastest", slowest / fastest);
}
