//! Which measurements take turns, and what is made of them.

mod backlog;
mod growth;
mod idle;
mod judge;
mod latency;
mod observed;
mod publish;
mod retention;
mod scaling;
mod table;
mod throughput;
mod tls;

use clap::Parser;

use crate::cli::{Cli, Common, Mode};
use crate::server::Servers;

/// A few hundred events for each mode: whether it works, not how fast.
const TINY: [&str; 14] = [
    "throughput --events 300 --features 50 --mix mixed --event-ids",
    "shards --events 300 --features 50",
    "processes --events 300 --features 50",
    "growth --events 300 --stored 100,200",
    "backlog --events 300 --features 50",
    "hot --events 300 --features 50",
    "latency --rate 200 --seconds 1 --window 20ms --giant 1000 --giant-every 100",
    "publish --events 300 --features 50",
    "observed --events 300 --features 50 --traced-every 10",
    "retention --events 300 --features 50 --rate 300 --retention 200ms",
    "tls --events 300 --features 50",
    "idle --settling 0 --seconds 1",
    "table --events 300 --features 50 --passes 2",
    "judge --events 300 --positions 10,100",
];

pub async fn run(cli: Cli) {
    let (Some(redis_url), Some(database_url)) = (&cli.common.redis_url, &cli.common.database_url) else {
        panic!("no servers: run scripts/bench, which starts them");
    };
    let mut servers = Servers::prepare(redis_url, database_url).await;
    if !cli.bench {
        let common = Common { runs: 1, json: None, ..cli.common };
        for line in TINY {
            measure(&mut servers, &common, mode_of(line)).await;
        }
        return;
    }
    let mode = cli.mode.unwrap_or_else(|| mode_of("throughput"));
    measure(&mut servers, &cli.common, mode).await;
}

fn mode_of(line: &str) -> Mode {
    Cli::parse_from(std::iter::once("bench").chain(line.split_whitespace())).mode.expect("the line begins with a mode")
}

async fn measure(servers: &mut Servers, common: &Common, mode: Mode) {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let settings = format!("{mode:?}, runs {}, cores {cores}", common.runs);
    println!("{settings}");
    // Boxed: the states of all of them together would be one large future.
    let report = match mode {
        Mode::Throughput(load) => Box::pin(throughput::throughput(servers, common, &load)).await,
        Mode::Shards(load) => Box::pin(scaling::shards(servers, common, &load)).await,
        Mode::Processes(load) => Box::pin(scaling::processes(servers, common, load)).await,
        Mode::Growth(growth) => Box::pin(growth::growth(servers, common, &growth)).await,
        Mode::Backlog(load) => Box::pin(backlog::backlog(servers, common, &load)).await,
        Mode::Hot(load) => Box::pin(scaling::hot(servers, common, &load)).await,
        Mode::Latency(steady) => Box::pin(latency::latency(servers, common, &steady)).await,
        Mode::Publish(load) => Box::pin(publish::publish(servers, common, &load)).await,
        Mode::Observed(load) => Box::pin(observed::observed(servers, common, &load)).await,
        Mode::Retention(load) => Box::pin(retention::retention(servers, common, &load)).await,
        Mode::Tls(load) => Box::pin(tls::tls(servers, common, &load)).await,
        Mode::Idle(idle) => Box::pin(idle::idle(servers, common, &idle)).await,
        Mode::Table(table) => Box::pin(table::table(servers, common, &table)).await,
        Mode::Judge(load) => judge::judge(common, &load),
    };
    report.print();
    if let Some(path) = &common.json {
        report.write(path, &settings);
    }
}

fn worker_args(common: &Common) -> Vec<String> {
    common.worker_args.split_whitespace().map(str::to_owned).collect()
}
