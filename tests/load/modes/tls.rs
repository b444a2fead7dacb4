//! What encryption costs: TLS on both connections of the worker, both certificates checked, against none. The events
//! come in, and the progress is asked for, over plain connections both times.

use std::panic::{AssertUnwindSafe, resume_unwind};

use futures_util::FutureExt;

use super::worker_args;
use crate::bench::{self, Prepared};
use crate::cli::{Common, Load};
use crate::encrypted::{self, Encrypted};
use crate::report::Report;
use crate::server::Servers;

pub async fn tls(servers: &mut Servers, common: &Common, load: &Load) -> Report {
    let prepared = Prepared::new(load);
    let encrypted = Encrypted::switch_on(servers).await;
    let ways = [("plain", encrypted::plain_args(servers)), ("TLS", encrypted.args(servers))];
    let report = AssertUnwindSafe(take_turns(servers, common, &prepared, &ways)).catch_unwind().await;
    // Whatever has happened: the servers may be somebody's own.
    encrypted.switch_off(servers).await;
    let mut report = report.unwrap_or_else(|panic| resume_unwind(panic));
    for of in ["", ": CPU of the workers"] {
        let ratio = report.median(&format!("TLS{of}")) / report.median(&format!("plain{of}"));
        report.ratio(format!("TLS / plain{of}"), ratio);
    }
    report
}

async fn take_turns(
    servers: &mut Servers,
    common: &Common,
    prepared: &Prepared,
    ways: &[(&str, Vec<String>)],
) -> Report {
    let mut report = Report::default();
    for _ in 0..common.runs {
        for (name, args) in ways {
            servers.empty().await;
            let args = [worker_args(common), args.clone()].concat();
            let run = bench::hexlane(servers, prepared, &args).await;
            report.add(*name, run.rate, "events/s");
            let cpu = run.worker_cpu() / prepared.load.events as f64 * 1e6;
            report.add(format!("{name}: CPU of the workers"), cpu, "µs/event");
        }
    }
    report
}
