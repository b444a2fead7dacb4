//! Options of `hexlane worker`, and which of them contradict each other.

use std::time::Duration;

use clap::Args;

use super::values::{parse_collector, parse_duration, parse_name, parse_pause, parse_positive};
use super::{DatabaseArgs, LimitArgs, RedisArgs, RetryArgs, TopologyArgs};

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
    #[command(flatten)]
    #[allow(missing_docs)]
    pub times: TimeArgs,
    /// End with exit code 0 when everything published before the start is settled.
    #[arg(long, env = "HEXLANE_ONCE", value_parser = clap::builder::FalseyValueParser::new())]
    pub once: bool,
    /// Name of this consumer; unique among the workers that run together [default: host and process id].
    #[arg(long, env = "HEXLANE_WORKER_NAME", value_parser = parse_name)]
    pub worker_name: Option<String>,
    /// The longest pause between two looks at the list of pending entries.
    #[arg(long, env = "HEXLANE_MIN_IDLE", default_value = "60s", value_parser = parse_pause)]
    pub min_idle: Duration,
    /// How often an entry may end the process that prepares it; then it is a dead letter.
    #[arg(long, env = "HEXLANE_MAX_DELIVERIES", default_value_t = 5, value_parser = clap::value_parser!(u64).range(2..))]
    pub max_deliveries: u64,
    /// A worker that holds work and cannot write gives its shards back after this time, if another is live.
    #[arg(long, env = "HEXLANE_YIELD_AFTER", default_value = "60s", value_parser = parse_pause)]
    pub yield_after: Duration,
    /// The most events in one statement.
    #[arg(long, env = "HEXLANE_BATCH_ROWS", default_value_t = 5000, value_parser = parse_positive)]
    pub batch_rows: usize,
    /// Database connections [default: one for each core, at least 2, at most 16].
    #[arg(long, env = "HEXLANE_POOL_SIZE", value_parser = parse_positive)]
    pub pool_size: Option<usize>,
    /// How long work in hand may take to finish after SIGTERM or SIGINT.
    #[arg(long, env = "HEXLANE_DRAIN_TIMEOUT", default_value = "20s", value_parser = parse_duration)]
    pub drain_timeout: Duration,
    /// Address of /metrics, /healthz and /readyz; port 0 takes a free one and logs it.
    #[arg(long, env = "HEXLANE_ADMIN_ADDR", default_value = "127.0.0.1:9464")]
    pub admin_addr: std::net::SocketAddr,
    /// Send traces to an OpenTelemetry collector, by OTLP over HTTP, such as http://localhost:4318.
    #[arg(long, env = "HEXLANE_OTLP_ENDPOINT", value_parser = parse_collector)]
    pub otlp_endpoint: Option<String>,
    /// Leave the schema alone; refuse to start if it is not the right one.
    #[arg(long, env = "HEXLANE_NO_MIGRATE", value_parser = clap::builder::FalseyValueParser::new())]
    pub no_migrate: bool,
}

/// What has to fit together, of one worker and of several.
#[derive(Clone, Debug, Args)]
pub struct TimeArgs {
    /// The longest block of one read.
    #[arg(long, env = "HEXLANE_BLOCK", default_value = "2s", value_parser = parse_pause)]
    pub block: Duration,
    /// How long a shard stays a worker's without being renewed.
    #[arg(long, env = "HEXLANE_LEASE", default_value = "10s", value_parser = parse_pause)]
    pub lease: Duration,
    /// How often leases are renewed.
    #[arg(long, env = "HEXLANE_RENEW", default_value = "3s", value_parser = parse_pause)]
    pub renew: Duration,
    /// How long an event waits for older ones of its feature; 0s is off.
    #[arg(long, env = "HEXLANE_REORDER_WINDOW", default_value = "200ms", value_parser = parse_duration)]
    pub reorder_window: Duration,
    /// A known event_id is a duplicate for this long.
    #[arg(long, env = "HEXLANE_DEDUP_WINDOW", default_value = "30d", value_parser = parse_pause)]
    pub dedup_window: Duration,
    /// How long settled entries stay in the streams, for a database that loses what it has committed.
    #[arg(long, env = "HEXLANE_RETENTION", default_value = "10min", value_parser = parse_duration)]
    pub retention: Duration,
}

impl TimeArgs {
    /// Refuses settings that contradict each other.
    ///
    /// # Errors
    /// A sentence that names both.
    pub fn check(&self, retry: &RetryArgs) -> Result<(), String> {
        if retry.retry_base > retry.retry_cap {
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
