//! Whether hexlane keeps its distance to the bare writer while the table grows, and what each of them makes
//! PostgreSQL log, which is mostly whole pages, the first time that one is touched after a checkpoint.

use super::worker_args;
use crate::bench::{self, Order, Prepared};
use crate::cli::{Common, Growth, Load};
use crate::report::Report;
use crate::server::Servers;

const BATCH: usize = 5000;

pub async fn growth(servers: &mut Servers, common: &Common, growth: &Growth) -> Report {
    let mut report = Report::default();
    let events = growth.load.events as f64;
    let mut ratios = Vec::new();
    for &stored in &growth.stored {
        let prepared = Prepared::new(&Load { features: stored, ..growth.load.clone() });
        servers.empty().await;
        servers.fill(stored).await;
        servers.keep().await;
        let hexlane = format!("hexlane, {stored} stored");
        let writers = [("bare", Order::Published), ("bare, by shard", Order::ByShard)]
            .map(|(name, order)| (format!("{name}, {stored} stored"), order));
        for _ in 0..common.runs {
            for (bare, order) in &writers {
                servers.restore().await;
                let before = servers.wal_bytes().await;
                let (rate, _) = bench::bare(servers, &prepared, *order, BATCH).await;
                report.add(bare, rate, "events/s");
                report.add(format!("{bare}: WAL"), (servers.wal_bytes().await - before) / events, "bytes/event");
            }
            servers.restore().await;
            servers.empty_redis().await;
            let before = servers.wal_bytes().await;
            let run = bench::hexlane(servers, &prepared, &worker_args(common)).await;
            report.add(&hexlane, run.rate, "events/s");
            report.add(format!("{hexlane}: WAL"), (servers.wal_bytes().await - before) / events, "bytes/event");
        }
        servers.forget().await;
        for (bare, order) in &writers {
            let ratio = report.median(&hexlane) / report.median(bare);
            report.ratio(format!("hexlane / {bare}"), ratio);
            if *order == Order::Published {
                ratios.push(ratio);
            }
        }
    }
    let (low, high) =
        ratios.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &ratio| (ratio.min(low), ratio.max(high)));
    let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
    report.ratio("spread of the ratios, (max - min) / mean", (high - low) / mean);
    report
}
