//! hexlane against the bare writer and against the loop that people write first.

use super::worker_args;
use crate::bench::{self, Order, Prepared};
use crate::cli::{Common, Load};
use crate::report::Report;
use crate::server::Servers;

const ONE_BY_ONE: usize = 3000;

pub async fn throughput(servers: &mut Servers, common: &Common, load: &Load) -> Report {
    let prepared = Prepared::new(load);
    let mut report = Report::default();
    let events = load.events as f64;
    for _ in 0..common.runs {
        for batch in [1000, 5000] {
            servers.empty().await;
            let (rate, cpu) = bench::bare(servers, &prepared, Order::Published, batch).await;
            report.add(format!("bare, batches of {batch}"), rate, "events/s");
            if let Some(postgres) = cpu.postgres {
                report.add(format!("bare {batch}: CPU of PostgreSQL"), postgres / events * 1e6, "µs/event");
            }
        }
        servers.empty().await;
        let run = bench::hexlane(servers, &prepared, &worker_args(common)).await;
        report.add("hexlane", run.rate, "events/s");
        report.add("hexlane: CPU of the workers", run.worker_cpu() / events * 1e6, "µs/event");
        report.add("hexlane: CPU of Redis", run.cpu.redis / events * 1e6, "µs/event");
        if let Some(postgres) = run.cpu.postgres {
            report.add("hexlane: CPU of PostgreSQL", postgres / events * 1e6, "µs/event");
            report.add("CPU of workers / CPU of PostgreSQL", run.worker_cpu() / postgres, "ratio");
        }
        report.add("hexlane: peak memory of a worker", run.peak_mib(), "MiB");
        servers.empty().await;
        report.add(
            "one event at a time",
            bench::one_by_one(servers, &prepared, ONE_BY_ONE.min(load.events)).await,
            "events/s",
        );
    }
    let best = report.median("bare, batches of 1000").max(report.median("bare, batches of 5000"));
    let hexlane = report.median("hexlane");
    report.ratio("hexlane / best bare writer", hexlane / best);
    report.ratio("hexlane / one event at a time", hexlane / report.median("one event at a time"));
    report
}
