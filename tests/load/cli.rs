//! What to measure, and with how much.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use hexlane::shard::Topology;

#[derive(Debug, Parser)]
#[command(about = "Measures hexlane against a bare PostgreSQL writer")]
pub struct Cli {
    #[command(subcommand)]
    pub mode: Option<Mode>,
    #[command(flatten)]
    pub common: Common,
    /// Given by `cargo bench`, not by `cargo test`: then a tiny load goes through every mode.
    #[arg(long, hide = true, global = true)]
    pub bench: bool,
}

#[derive(Clone, Debug, Subcommand)]
pub enum Mode {
    /// hexlane end to end against the bare writer
    Throughput(Load),
    /// The same load over 1, 16, 64 and 256 shards
    #[command(mut_arg("shards", |arg| arg.hide(true)))]
    Shards(Load),
    /// The same load with 1, 2 and 4 worker processes
    #[command(mut_arg("workers", |arg| arg.hide(true)))]
    Processes(Load),
    /// The ratio to the bare writer with 100 thousand, 1 million and 5 million features stored
    #[command(mut_arg("features", |arg| arg.hide(true)))]
    Growth(Growth),
    /// A long backlog: peak memory, and whether the rate stays
    #[command(mut_arg("events", |arg| arg.default_value("5000000")))]
    Backlog(Load),
    /// One feature gets 90 % of the events, against the even case
    #[command(mut_arg("hot", |arg| arg.hide(true)))]
    Hot(Load),
    /// Entry id to commit, and to the answer to it, at a steady rate
    Latency(Steady),
    /// `hexlane publish` against a bare pipelined XADD
    Publish(Load),
    /// Metrics scraped and spans sent, against neither
    Observed(Observed),
    /// Memory of Redis at a steady rate, while settled entries are trimmed
    #[command(mut_arg("events", |arg| arg.default_value("2000000")))]
    Retention(Retention),
    /// TLS on both connections of the worker, against none
    Tls(Load),
    /// CPU of workers that have nothing to do
    Idle(Idle),
    /// The bare writer with other settings of table and index
    Table(Table),
    /// Decoding, validating and encoding alone, on one core: by positions, and for both mixes
    Judge(Judge),
}

#[derive(Clone, Debug, Args)]
pub struct Common {
    /// Rounds; within a round the measurements take turns
    #[arg(long, global = true, default_value_t = 5)]
    pub runs: usize,
    /// Writes everything that was measured as JSON
    #[arg(long, global = true)]
    pub json: Option<PathBuf>,
    #[arg(long, hide = true, global = true, env = "HEXLANE_BENCH_REDIS_URL")]
    pub redis_url: Option<String>,
    #[arg(long, hide = true, global = true, env = "HEXLANE_BENCH_DATABASE_URL")]
    pub database_url: Option<String>,
    /// Arguments for `hexlane worker`, in one string
    #[arg(long, global = true, default_value = "", allow_hyphen_values = true)]
    pub worker_args: String,
}

#[derive(Clone, Debug, Args)]
pub struct Load {
    /// Entries, copies included
    #[arg(long, default_value_t = 500_000)]
    pub events: usize,
    /// Different features
    #[arg(long, default_value_t = 100_000)]
    pub features: u64,
    #[arg(long, default_value_t = 16)]
    pub shards: u16,
    /// Worker processes
    #[arg(long, default_value_t = 1)]
    pub workers: usize,
    /// points, or 70 % points, 20 % lines of 20 and 10 % polygons of 60 positions
    #[arg(long, value_enum, default_value_t = Mix::Points)]
    pub mix: Mix,
    /// Share of copies
    #[arg(long, default_value_t = 0.2)]
    pub duplicates: f64,
    /// Share of events that come after newer ones
    #[arg(long, default_value_t = 0.1)]
    pub late: f64,
    /// Share of events of one single feature
    #[arg(long, default_value_t = 0.0)]
    pub hot: f64,
    /// Every event has an event_id, so the ledger is used
    #[arg(long)]
    pub event_ids: bool,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Versions start after this one
    #[arg(skip)]
    pub first_version: i64,
}

#[derive(Clone, Debug, Args)]
pub struct Steady {
    /// Events a second
    #[arg(long, default_value_t = 1000)]
    pub rate: u64,
    #[arg(long, default_value_t = 20)]
    pub seconds: u64,
    /// The reorder window
    #[arg(long, default_value = "0s", value_parser = humantime::parse_duration)]
    pub window: Duration,
    #[arg(long, default_value_t = 16)]
    pub shards: u16,
    /// Measures once more with an event of so many positions in between, and leaves its shard out
    #[arg(long, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(4..))]
    pub giant: Option<usize>,
    /// After how many others such an event comes
    #[arg(long, default_value_t = 20_000)]
    pub giant_every: usize,
}

/// A large event in between.
#[derive(Clone, Copy, Debug)]
pub struct Giant {
    pub positions: usize,
    /// It comes after so many others.
    pub after: usize,
}

impl Load {
    pub fn topology(&self) -> Topology {
        Topology { shards: self.shards, ..Topology::default() }
    }
}

impl Steady {
    /// One event each of as many features as it takes, those of the warm-up included.
    pub fn load(&self, warm_up: u64) -> Load {
        let features = self.rate * (self.seconds + warm_up);
        Load {
            events: usize::try_from(features).expect("a number of events that fits into memory"),
            features,
            shards: self.shards,
            workers: 1,
            mix: Mix::Points,
            duplicates: 0.0,
            late: 0.0,
            hot: 0.0,
            event_ids: false,
            seed: 1,
            first_version: 0,
        }
    }
}

#[derive(Clone, Debug, Args)]
pub struct Growth {
    #[command(flatten)]
    pub load: Load,
    /// Features that are stored already; the events are spread over all of them
    #[arg(long, value_delimiter = ',', default_values_t = [100_000, 1_000_000, 5_000_000])]
    pub stored: Vec<u64>,
}

#[derive(Clone, Debug, Args)]
pub struct Table {
    #[command(flatten)]
    pub load: Load,
    /// How often the load is written, each time with newer versions; the last time counts
    #[arg(long, default_value_t = 4, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub passes: usize,
}

#[derive(Clone, Debug, Args)]
pub struct Retention {
    #[command(flatten)]
    pub load: Load,
    /// Events a second
    #[arg(long, default_value_t = 20_000)]
    pub rate: u64,
    /// How long settled entries stay
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration)]
    pub retention: Duration,
}

#[derive(Clone, Debug, Args)]
pub struct Observed {
    #[command(flatten)]
    pub load: Load,
    /// Every so many entries carry the trace of a producer
    #[arg(long, default_value_t = 100, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub traced_every: usize,
}

#[derive(Clone, Debug, Args)]
pub struct Idle {
    #[arg(long, default_value_t = 16)]
    pub shards: u16,
    /// Worker processes
    #[arg(long, default_value_t = 1)]
    pub workers: usize,
    /// Before the CPU is counted
    #[arg(long, default_value_t = 5)]
    pub settling: u64,
    /// How long the CPU is counted
    #[arg(long, default_value_t = 20)]
    pub seconds: u64,
}

#[derive(Clone, Debug, Args)]
pub struct Judge {
    /// Events of each mix, as many as a worker has in hand at once
    #[arg(long, default_value_t = 5000)]
    pub events: usize,
    /// Positions of each shape
    #[arg(long, value_delimiter = ',', default_values_t = [10, 100, 1000, 10_000, 100_000])]
    pub positions: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mix {
    Points,
    Mixed,
}
