//! Every command and option, with its default, checked as a whole before anything is started.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use h3o::Resolution;

use crate::failure::RetryPolicy;
use crate::judge::{Antimeridian, Limits};
use crate::shard::ShardBy;
use crate::stream::topology::Wanted;

/// Lands spatial feature events from Redis Streams in PostGIS, effectively once.
#[derive(Debug, Parser)]
#[command(
    name = "hexlane",
    version,
    about,
    after_help = "Every option is also an environment variable: --redis-url is HEXLANE_REDIS_URL.\nExit code: 0 done, 1 failed, 2 wrong usage."
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
            Command::Worker(args) => args.check(),
            Command::Publish(args) => args.check(),
            Command::Migrate(_) | Command::Prune(_) | Command::Status(_) | Command::Topology(_) | Command::Shard(_) => {
                Ok(())
            }
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
    /// Show what each shard holds and who owns it.
    Status(ShowArgs),
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

/// What `hexlane publish` reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InputFormat {
    /// NDJSON: one event a line.
    Events,
    /// One FeatureCollection, or one Feature (RFC 7946).
    Geojson,
    /// One GeoJSON Feature a line.
    GeojsonLines,
    /// GeoJSON Features as a text sequence (RFC 8142).
    GeojsonSeq,
}

impl InputFormat {
    /// As GDAL names such files: <https://gdal.org/en/stable/drivers/vector/geojsonseq.html>.
    pub fn of(file: &Path) -> Self {
        match file.extension().and_then(|ending| ending.to_str()) {
            Some("geojson") => Self::Geojson,
            Some("geojsonl") => Self::GeojsonLines,
            Some("geojsons") => Self::GeojsonSeq,
            _ => Self::Events,
        }
    }
}

/// Where the streams are.
#[derive(Clone, Debug, Args)]
pub struct RedisArgs {
    /// Redis, as redis://[user:password@]host:port[/database].
    #[arg(long, env = "HEXLANE_REDIS_URL", hide_env_values = true, default_value = "redis://127.0.0.1:6379")]
    pub redis_url: String,
    /// Prefix of every key.
    #[arg(long, env = "HEXLANE_NAMESPACE", default_value = "hexlane", value_parser = parse_name)]
    pub namespace: String,
    /// The consumer group.
    #[arg(long, env = "HEXLANE_GROUP", default_value = "hexlane", value_parser = parse_name)]
    pub group: String,
}

/// How events find their shards; agreed through Redis, so usually left out.
#[derive(Clone, Debug, Args)]
pub struct TopologyArgs {
    /// Number of shards, 1 to 1000 [default: what is in force, else 16].
    #[arg(long, env = "HEXLANE_SHARDS", value_parser = clap::value_parser!(u16).range(1..=1000))]
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

/// Where the table is.
#[derive(Clone, Debug, Args)]
pub struct DatabaseArgs {
    /// PostgreSQL, as postgres://user:password@host:port/database.
    #[arg(long, env = "HEXLANE_DATABASE_URL", hide_env_values = true)]
    pub database_url: String,
    /// The server ends a statement after this time; the same batch is then tried again.
    #[arg(long, env = "HEXLANE_STATEMENT_TIMEOUT", default_value = "30s", value_parser = parse_pause)]
    pub statement_timeout: Duration,
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

/// Options of `hexlane worker`.
#[derive(Clone, Debug, Args)]
pub struct WorkerArgs {
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
    pub limits: LimitArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub retry: RetryArgs,
    /// End with exit code 0 when everything published before the start is settled.
    #[arg(long, env = "HEXLANE_ONCE", value_parser = clap::builder::FalseyValueParser::new())]
    pub once: bool,
    /// Name of this consumer; unique among the workers that run together [default: host and process id].
    #[arg(long, env = "HEXLANE_WORKER_NAME", value_parser = parse_name)]
    pub worker_name: Option<String>,
    /// The longest block of one read.
    #[arg(long, env = "HEXLANE_BLOCK", default_value = "2s", value_parser = parse_pause)]
    pub block: Duration,
    /// The longest pause between two looks at the list of pending entries.
    #[arg(long, env = "HEXLANE_MIN_IDLE", default_value = "60s", value_parser = parse_pause)]
    pub min_idle: Duration,
    /// How often an entry may end the process that prepares it; then it is a dead letter.
    #[arg(long, env = "HEXLANE_MAX_DELIVERIES", default_value_t = 5, value_parser = clap::value_parser!(u64).range(2..))]
    pub max_deliveries: u64,
    /// How long a shard stays a worker's without being renewed.
    #[arg(long, env = "HEXLANE_LEASE", default_value = "10s", value_parser = parse_pause)]
    pub lease: Duration,
    /// How often leases are renewed.
    #[arg(long, env = "HEXLANE_RENEW", default_value = "3s", value_parser = parse_pause)]
    pub renew: Duration,
    /// A worker that holds work and cannot write gives its shards back after this time, if another is live.
    #[arg(long, env = "HEXLANE_YIELD_AFTER", default_value = "60s", value_parser = parse_pause)]
    pub yield_after: Duration,
    /// How long an event waits for older ones of its feature; 0s is off.
    #[arg(long, env = "HEXLANE_REORDER_WINDOW", default_value = "200ms", value_parser = parse_duration)]
    pub reorder_window: Duration,
    /// The most events in one statement.
    #[arg(long, env = "HEXLANE_BATCH_ROWS", default_value_t = 5000, value_parser = parse_positive)]
    pub batch_rows: usize,
    /// A known event_id is a duplicate for this long.
    #[arg(long, env = "HEXLANE_DEDUP_WINDOW", default_value = "30d", value_parser = parse_pause)]
    pub dedup_window: Duration,
    /// How long settled entries stay in the streams, for a database that loses what it has committed.
    #[arg(long, env = "HEXLANE_RETENTION", default_value = "10min", value_parser = parse_duration)]
    pub retention: Duration,
    /// Database connections [default: one for each core, at least 2, at most 16].
    #[arg(long, env = "HEXLANE_POOL_SIZE", value_parser = parse_positive)]
    pub pool_size: Option<usize>,
    /// How long work in hand may take to finish after SIGTERM or SIGINT.
    #[arg(long, env = "HEXLANE_DRAIN_TIMEOUT", default_value = "20s", value_parser = parse_duration)]
    pub drain_timeout: Duration,
    /// Address of /metrics, /healthz and /readyz; port 0 takes a free one and logs it.
    #[arg(long, env = "HEXLANE_ADMIN_ADDR", default_value = "127.0.0.1:9464")]
    pub admin_addr: std::net::SocketAddr,
    /// Leave the schema alone; refuse to start if it is not the right one.
    #[arg(long, env = "HEXLANE_NO_MIGRATE", value_parser = clap::builder::FalseyValueParser::new())]
    pub no_migrate: bool,
}

impl WorkerArgs {
    /// Refuses settings that contradict each other.
    ///
    /// # Errors
    /// A sentence that names both.
    pub fn check(&self) -> Result<(), String> {
        if self.retry.retry_base > self.retry.retry_cap {
            return Err("--retry-base is longer than --retry-cap".into());
        }
        if self.renew * 2 > self.lease {
            return Err("--renew is more than half of --lease: one lost renewal would lose the lease".into());
        }
        if self.block >= self.lease.saturating_sub(self.renew) {
            return Err("--block is not shorter than --lease less --renew: a worker that was frozen could still be \
                        handed entries of a shard that it has lost"
                .into());
        }
        if self.reorder_window >= self.lease {
            return Err("--reorder-window is not shorter than --lease: held events would outlive it".into());
        }
        if self.retention >= self.dedup_window {
            return Err("--retention is not shorter than --dedup-window: entries that come again from so long ago \
                        could be new to the ledger"
                .into());
        }
        if self.block.as_millis() == 0 {
            return Err("--block is below 1ms: Redis would block for ever".into());
        }
        Ok(())
    }
}

/// Options of `hexlane publish`.
#[derive(Clone, Debug, Args)]
pub struct PublishArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub redis: RedisArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub topology: TopologyArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub limits: LimitArgs,
    /// Files of events or GeoJSON features; - is stdin.
    #[arg(default_value = "-")]
    pub files: Vec<PathBuf>,
    /// What is in the files [default: by their names; .geojson, .geojsonl and .geojsons, else events].
    #[arg(long, env = "HEXLANE_FORMAT", value_enum)]
    pub format: Option<InputFormat>,
    /// Of GeoJSON: the property that holds the feature_id [default: the feature's id].
    #[arg(long, env = "HEXLANE_ID_PROPERTY")]
    pub id_property: Option<String>,
    /// Of GeoJSON: the property that holds the version, an integer [default: all have version 0].
    #[arg(long, env = "HEXLANE_VERSION_PROPERTY")]
    pub version_property: Option<String>,
    /// Of GeoJSON: the property that holds the observation time, RFC 3339 [default: now].
    #[arg(long, env = "HEXLANE_TIME_PROPERTY")]
    pub time_property: Option<String>,
    /// Send every line as it is, valid or not.
    #[arg(long, env = "HEXLANE_UNCHECKED", value_parser = clap::builder::FalseyValueParser::new())]
    pub unchecked: bool,
    /// Only check, send nothing.
    #[arg(long, env = "HEXLANE_DRY_RUN", value_parser = clap::builder::FalseyValueParser::new())]
    pub dry_run: bool,
    /// Stop at the first line that is refused.
    #[arg(long, env = "HEXLANE_STRICT", value_parser = clap::builder::FalseyValueParser::new())]
    pub strict: bool,
}

impl PublishArgs {
    /// Refuses settings that contradict each other. Not by the parser, to which a variable that is
    /// set to `false` is an option that was given.
    ///
    /// # Errors
    /// A sentence that names both.
    pub fn check(&self) -> Result<(), String> {
        let is_events = |file: &PathBuf| self.format.unwrap_or_else(|| InputFormat::of(file)) == InputFormat::Events;
        if self.unchecked && !self.files.iter().all(is_events) {
            return Err("--unchecked sends lines as they are, and GeoJSON is made into events".into());
        }
        let property = [
            ("--id-property", &self.id_property),
            ("--version-property", &self.version_property),
            ("--time-property", &self.time_property),
        ]
        .into_iter()
        .find(|(_, property)| property.is_some());
        if let Some((option, _)) = property
            && self.files.iter().any(is_events)
        {
            return Err(format!("{option} is for GeoJSON features; say with --format what is in the files"));
        }
        match (self.unchecked, self.dry_run, self.strict) {
            (true, true, _) => Err("--dry-run only checks, and --unchecked does not check".into()),
            (true, _, true) => Err("--strict stops at a line that is refused, and --unchecked refuses none".into()),
            _ => Ok(()),
        }
    }
}

/// Options of `hexlane migrate`.
#[derive(Clone, Debug, Args)]
pub struct MigrateArgs {
    /// PostgreSQL, as postgres://user:password@host:port/database.
    #[arg(long, env = "HEXLANE_DATABASE_URL", hide_env_values = true, required_unless_present = "print")]
    pub database_url: Option<String>,
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

/// Options of `hexlane shard`.
#[derive(Clone, Debug, Args)]
pub struct ShardArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub topology: TopologyArgs,
    /// Take the topology from this Redis instead of the defaults.
    #[arg(long, env = "HEXLANE_REDIS_URL", hide_env_values = true)]
    pub redis_url: Option<String>,
    /// Prefix of every key.
    #[arg(long, env = "HEXLANE_NAMESPACE", default_value = "hexlane", value_parser = parse_name)]
    pub namespace: String,
}

/// Durations as people write them: `250ms`, `10s`, `5min`, `30d`; 0 is allowed.
fn parse_duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    humantime::parse_duration(text).map_err(|error| format!("{error}; write it like 250ms, 10s or 30d"))
}

fn parse_pause(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("must be longer than 0".into()),
        longer => Ok(longer),
    }
}

fn parse_positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("must be a whole number of at least 1".into()),
        Ok(number) => Ok(number),
    }
}

fn parse_bytes(text: &str) -> Result<usize, String> {
    let (digits, factor) = [("KiB", 1 << 10), ("MiB", 1 << 20)]
        .into_iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))
        .unwrap_or((text, 1));
    parse_positive(digits.trim())?.checked_mul(factor).ok_or_else(|| "too large".into())
}

/// More than a degree is no noise any more.
fn parse_tolerance(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(degrees) if (0.0..=1.0).contains(&degrees) => Ok(degrees),
        _ => Err("is a number of degrees from 0 to 1, such as 1e-9".into()),
    }
}

/// Names become parts of keys: braces would move a key to another slot, blanks break redis-cli.
fn parse_name(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    if text.is_empty() || text.len() > 128 || !text.chars().all(fits) {
        return Err("takes 1 to 128 letters, digits and - _ . :".into());
    }
    Ok(text.to_owned())
}

fn parse_shard_by(text: &str) -> Result<ShardBy, String> {
    text.parse().map_err(|_| "is cell or feature".into())
}

fn parse_resolution(text: &str) -> Result<Resolution, String> {
    let level: u8 = text.parse().map_err(|_| "is a number from 0 to 15")?;
    Resolution::try_from(level).map_err(|_| "is a number from 0 to 15".into())
}
