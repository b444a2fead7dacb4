//! Every command and option, with its default, checked as a whole before anything is started.

mod dead;
mod publish;
mod servers;
mod values;
mod worker;

use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use h3o::Resolution;

use crate::failure::RetryPolicy;
use crate::judge::{Antimeridian, Limits};
use crate::shard::{MOST_SHARDS, ShardBy};
use crate::stream::topology::Wanted;
pub use dead::{DeadCommand, FilterArgs, ListArgs, PurgeArgs, ReplayArgs, RewindArgs};
pub use publish::{InputFormat, PublishArgs};
pub use servers::{DatabaseArgs, DatabaseUrlArgs, RedisArgs, RedisUrlArgs};
use values::{
    parse_bytes, parse_duration, parse_name, parse_pause, parse_positive, parse_resolution, parse_shard_by,
    parse_tolerance,
};
pub use worker::{TimeArgs, WorkerArgs};

/// Lands spatial feature events from Redis Streams in PostGIS, effectively once.
#[derive(Debug, Parser)]
#[command(
    name = "hexlane",
    version,
    about,
    after_help = "Options marked [env: …] can be set there too: --redis-url is HEXLANE_REDIS_URL.\nExit code: 0 done, 1 failed, 2 wrong usage; of check also 3, warnings only."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// How log lines look; they go to stderr.
    #[arg(long, global = true, env = "HEXLANE_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

impl Cli {
    /// Refuses settings that contradict each other.
    ///
    /// # Errors
    /// A sentence that names both.
    pub fn check(&self) -> Result<(), String> {
        match &self.command {
            Command::Worker(args) => args.database.address.url().map(drop).and_then(|()| args.times.check(&args.retry)),
            Command::Publish(args) => args.check(),
            Command::Dead(command) => command.check(),
            Command::Check(args) => args.database.address.url().map(drop),
            Command::Prune(args) => args.database.address.url().map(drop),
            Command::Migrate(args) if !args.print => args.address.url().map(drop),
            Command::Migrate(_)
            | Command::Rewind(_)
            | Command::Status(_)
            | Command::Topology(_)
            | Command::Shard(_) => Ok(()),
        }
    }
}

/// One of the commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Read the streams and write to PostGIS, until told to stop.
    Worker(Box<WorkerArgs>),
    /// Check events and send them to their shards.
    Publish(PublishArgs),
    /// Bring the database schema up; safe from many processes at once.
    Migrate(MigrateArgs),
    /// Remove tombstones and known event ids that are past their retention.
    Prune(PruneArgs),
    /// Say whether both servers are set up as they should be, and what to change; exit code 3 for warnings only.
    Check(CheckArgs),
    /// Look through dead letters, send them back, remove them.
    #[command(subcommand)]
    Dead(DeadCommand),
    /// Let entries come again that were settled: after a restore of the database.
    Rewind(RewindArgs),
    /// Show what each shard holds and who owns it.
    Status(StatusArgs),
    /// Show how many shards there are and how events find theirs.
    Topology(ShowArgs),
    /// For NDJSON events on stdin, show the shard of each: feature_id, cell or -, shard, stream key.
    Shard(ShardArgs),
}

/// Text for people, JSON for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One readable line an event, in colour on a terminal.
    Text,
    /// One JSON object a line.
    Json,
}

/// How events find their shards; agreed through Redis, so usually left out.
#[derive(Clone, Debug, Args)]
pub struct TopologyArgs {
    /// Number of shards, 1 to 1000 [default: what is in force, else 16].
    #[arg(long, env = "HEXLANE_SHARDS", value_parser = clap::value_parser!(u16).range(1..=i64::from(MOST_SHARDS)))]
    pub shards: Option<u16>,
    /// What decides the shard: cell or feature [default: what is in force, else cell].
    #[arg(long, env = "HEXLANE_SHARD_BY", value_parser = parse_shard_by)]
    pub shard_by: Option<ShardBy>,
    /// H3 resolution of cells that are computed, 0 to 15 [default: what is in force, else 7].
    #[arg(long, env = "HEXLANE_H3_RESOLUTION", value_parser = parse_resolution)]
    pub h3_resolution: Option<Resolution>,
}

impl TopologyArgs {
    /// The explicit settings.
    pub fn wanted(&self) -> Wanted {
        Wanted { shards: self.shards, shard_by: self.shard_by, h3_resolution: self.h3_resolution }
    }
}

/// What an event may be.
#[derive(Clone, Debug, Args)]
pub struct LimitArgs {
    /// A larger event is a dead letter, unparsed; bytes, or with KiB or MiB.
    #[arg(long, env = "HEXLANE_MAX_EVENT_BYTES", default_value = "4MiB", value_parser = parse_bytes)]
    pub max_event_bytes: usize,
    /// The most positions in one geometry.
    #[arg(long, env = "HEXLANE_MAX_VERTICES", default_value_t = 100_000, value_parser = parse_positive)]
    pub max_vertices: usize,
    /// How far ahead of the clocks an observation time may be.
    #[arg(long, env = "HEXLANE_MAX_CLOCK_SKEW", default_value = "5min", value_parser = parse_duration)]
    pub max_clock_skew: Duration,
    /// What becomes of shapes that cross the antimeridian: refused, cut there, or stored as they are.
    #[arg(long, env = "HEXLANE_ANTIMERIDIAN", value_enum, default_value_t = Antimeridian::Reject)]
    pub antimeridian: Antimeridian,
    /// How far beyond ±180 and ±90 a coordinate is taken for ±180 or ±90, in degrees.
    #[arg(long, env = "HEXLANE_COORDINATE_TOLERANCE", default_value_t = 0.0, value_parser = parse_tolerance)]
    pub coordinate_tolerance: f64,
}

impl LimitArgs {
    /// For the judge.
    pub fn limits(&self) -> Limits {
        Limits {
            max_event_bytes: self.max_event_bytes,
            max_vertices: self.max_vertices,
            max_clock_skew: self.max_clock_skew,
            antimeridian: self.antimeridian,
            coordinate_tolerance: self.coordinate_tolerance,
        }
    }
}

/// Between attempts at a server that is away.
#[derive(Clone, Debug, Args)]
pub struct RetryArgs {
    /// The longest first wait; each wait is drawn evenly from 0 to a bound that doubles.
    #[arg(long, env = "HEXLANE_RETRY_BASE", default_value = "300ms", value_parser = parse_pause)]
    pub retry_base: Duration,
    /// The longest wait.
    #[arg(long, env = "HEXLANE_RETRY_CAP", default_value = "30s", value_parser = parse_pause)]
    pub retry_cap: Duration,
}

impl RetryArgs {
    /// For whoever waits.
    pub fn policy(&self) -> RetryPolicy {
        RetryPolicy { base: self.retry_base, cap: self.retry_cap }
    }
}

/// Options of `hexlane check`.
#[derive(Clone, Debug, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub redis: RedisArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub topology: TopologyArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub database: DatabaseArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub retry: RetryArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub times: TimeArgs,
    /// What `hexlane prune` is run with.
    #[arg(long, env = "HEXLANE_TOMBSTONE_RETENTION", default_value = "30d", value_parser = parse_pause)]
    pub tombstone_retention: Duration,
    /// One JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Options of `hexlane migrate`.
#[derive(Clone, Debug, Args)]
pub struct MigrateArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub address: DatabaseUrlArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub retry: RetryArgs,
    /// Show the SQL instead of running it.
    #[arg(long)]
    pub print: bool,
}

/// Options of `hexlane prune`.
#[derive(Clone, Debug, Args)]
pub struct PruneArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub redis: RedisArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub database: DatabaseArgs,
    /// How long a tombstone protects its feature from events that come late.
    #[arg(long, env = "HEXLANE_TOMBSTONE_RETENTION", default_value = "30d", value_parser = parse_pause)]
    pub tombstone_retention: Duration,
    /// How long an event_id is known.
    #[arg(long, env = "HEXLANE_DEDUP_WINDOW", default_value = "30d", value_parser = parse_pause)]
    pub dedup_window: Duration,
    /// Only count.
    #[arg(long, env = "HEXLANE_DRY_RUN", value_parser = clap::builder::FalseyValueParser::new())]
    pub dry_run: bool,
}

/// Options of the commands that only show something.
#[derive(Clone, Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub redis: RedisArgs,
    /// One JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Options of `hexlane status`.
#[derive(Clone, Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub show: ShowArgs,
    /// Show it again every two seconds, until interrupted.
    #[arg(long)]
    pub watch: bool,
}

/// Options of `hexlane shard`.
#[derive(Clone, Debug, Args)]
pub struct ShardArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub topology: TopologyArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub redis: RedisUrlArgs,
    /// Prefix of every key.
    #[arg(long, env = "HEXLANE_NAMESPACE", default_value = "hexlane", value_parser = parse_name)]
    pub namespace: String,
}
