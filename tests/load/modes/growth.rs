//! Whether hexlane keeps its distance to the bare writer while the table grows, and what each of them makes
//! PostgreSQL do: what it logs, which is mostly whole pages, the first time that one is touched after a checkpoint,
//! and how many cores it keeps busy. A bare writer whose connections want the same rows waits.

use super::worker_args;
use crate::bench::{self, Order, Prepared};
use crate::cli::{Common, Growth, Load};
use crate::report::Report;
use crate::server::Servers;

/// Of its rows as they came, the bare writer may take the better one, as in `throughput`.
const BATCHES: [usize; 2] = [1000, 5000];
const LARGE_BATCH: usize = 5000;

pub async fn growth(servers: &mut Servers, common: &Common, growth: &Growth) -> Report {
    let mut report = Report::default();
    let mut ratios = Vec::new();
    for &stored in &growth.stored {
        let prepared = Prepared::new(&Load { features: stored, ..growth.load.clone() });
        servers.empty().await;
        servers.fill(stored).await;
        servers.keep().await;
        for _ in 0..common.runs {
            let (mut bare, mut of_bare) = (0.0, None);
            for batch in BATCHES {
                let writer = Writer::Bare(Order::Published, batch);
                let (rate, cpu) = round(servers, &prepared, &mut report, writer, common).await;
                if rate > bare {
                    (bare, of_bare) = (rate, cpu);
                }
            }
            let writer = Writer::Bare(Order::ByShard, LARGE_BATCH);
            let (by_shard, _) = round(servers, &prepared, &mut report, writer, common).await;
            let (hexlane, of_hexlane) = round(servers, &prepared, &mut report, Writer::Hexlane, common).await;
            // Of one round: what else the machine is busy with changes from minute to minute.
            report.add(format!("hexlane / best bare, {stored} stored"), hexlane / bare, "ratio");
            report.add(format!("hexlane / bare, by shard, {stored} stored"), hexlane / by_shard, "ratio");
            if let (Some(of_hexlane), Some(of_bare)) = (of_hexlane, of_bare) {
                let ratio = of_hexlane / of_bare;
                report.add(
                    format!("CPU of PostgreSQL under hexlane / under the best bare, {stored} stored"),
                    ratio,
                    "ratio",
                );
            }
        }
        servers.forget().await;
        ratios.push(report.median(&format!("hexlane / best bare, {stored} stored")));
    }
    let (low, high) =
        ratios.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &ratio| (ratio.min(low), ratio.max(high)));
    let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
    report.ratio("spread of the ratios, (max - min) / mean", (high - low) / mean);
    report
}

#[derive(Clone, Copy)]
enum Writer {
    Bare(Order, usize),
    Hexlane,
}

/// From the same table each time. Answers the rate, and the CPU seconds that PostgreSQL took.
async fn round(
    servers: &mut Servers,
    prepared: &Prepared,
    report: &mut Report,
    writer: Writer,
    common: &Common,
) -> (f64, Option<f64>) {
    let (stored, events) = (prepared.load.features, prepared.load.events as f64);
    servers.restore().await;
    let (name, before, rate, cpu) = match writer {
        Writer::Bare(order, batch) => {
            let order_name = if order == Order::ByShard { "bare by shard" } else { "bare" };
            let name = format!("{order_name}, batches of {batch}");
            let before = servers.wal_bytes().await;
            let (rate, cpu) = bench::bare(servers, prepared, order, batch).await;
            (name, before, rate, cpu)
        }
        Writer::Hexlane => {
            servers.empty_redis().await;
            let before = servers.wal_bytes().await;
            let run = bench::hexlane(servers, prepared, &worker_args(common)).await;
            let others = run.worker_cpu() + run.cpu.redis;
            report.add(
                format!("hexlane, {stored} stored: CPU of the worker and Redis"),
                others / events * 1e6,
                "µs/event",
            );
            ("hexlane".to_owned(), before, run.rate, run.cpu)
        }
    };
    report.add(format!("{name}, {stored} stored"), rate, "events/s");
    if let Some(postgres) = cpu.postgres {
        report.add(format!("{name}, {stored} stored: CPU of PostgreSQL"), postgres / events * 1e6, "µs/event");
        report.add(format!("{name}, {stored} stored: busy in PostgreSQL"), postgres / events * rate, "cores");
    }
    report.add(format!("{name}, {stored} stored: WAL"), (servers.wal_bytes().await - before) / events, "bytes/event");
    (rate, cpu.postgres)
}
