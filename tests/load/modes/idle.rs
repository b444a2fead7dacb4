//! What it costs to wait.

use std::time::{Duration, Instant};

use hexlane::shard::Topology;

use super::worker_args;
use crate::cli::{Common, Idle};
use crate::report::Report;
use crate::server::Servers;
use crate::worker::{self, Worker};

pub async fn idle(servers: &mut Servers, common: &Common, idle: &Idle) -> Report {
    let mut report = Report::default();
    for _ in 0..common.runs {
        servers.empty().await;
        servers.make_streams(Topology { shards: idle.shards, ..Topology::default() }).await;
        let args = worker_args(common);
        let workers: Vec<Worker> = (0..idle.workers).map(|n| Worker::start(servers, n, &args)).collect();
        worker::attend(servers, idle.shards).await;
        tokio::time::sleep(Duration::from_secs(idle.settling)).await;
        let used = || workers.iter().map(|worker| worker.used().cpu_s).sum::<f64>();
        let (start, servers_before, before) = (Instant::now(), servers.cpu().await, used());
        tokio::time::sleep(Duration::from_secs(idle.seconds)).await;
        let (cpu, servers_cpu) = (used() - before, servers.cpu().await.since(servers_before));
        let percent = |seconds: f64| seconds / start.elapsed().as_secs_f64() * 100.0;
        report.add("CPU of the workers", percent(cpu), "% of a core");
        report.add("CPU of Redis", percent(servers_cpu.redis), "% of a core");
        if let Some(postgres) = servers_cpu.postgres {
            report.add("CPU of PostgreSQL", percent(postgres), "% of a core");
        }
        for worker in workers {
            worker.stop().await;
        }
    }
    report
}
