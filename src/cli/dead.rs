//! Options of `hexlane dead` and `hexlane rewind`.

use std::num::NonZeroU32;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::RedisArgs;
use super::values::{parse_duration, parse_entry, parse_reason, parse_since};
use crate::event::{EntryId, Reason};
use crate::shard::MOST_SHARDS;

/// What is done with dead letters.
#[derive(Clone, Debug, Subcommand)]
pub enum DeadCommand {
    /// Show them, a line each; what died several times stands there once.
    List(ListArgs),
    /// Show all their fields, the event included.
    Show(ListArgs),
    /// Send their events back to their streams, as they were.
    Replay(ReplayArgs),
    /// Remove them for good.
    Purge(PurgeArgs),
}

/// Which dead letters are meant; all of these have to fit.
#[derive(Clone, Debug, Args)]
pub struct FilterArgs {
    /// Only of this reason; may be given several times.
    #[arg(long, value_parser = parse_reason)]
    pub reason: Vec<Reason>,
    /// Only of this shard; may be given several times.
    #[arg(long, value_parser = clap::value_parser!(u16).range(0..i64::from(MOST_SHARDS)))]
    pub shard: Vec<u16>,
    /// Only of this feature_id; may be given several times.
    #[arg(long)]
    pub feature: Vec<String>,
    /// Only the letter with this id, or that of an entry with this id; each shard has ids of its own.
    #[arg(long, value_parser = parse_entry)]
    pub id: Vec<EntryId>,
    /// Only letters that have lain there for longer than this.
    #[arg(long, value_parser = parse_duration)]
    pub older_than: Option<Duration>,
    /// Only letters that have lain there for less than this.
    #[arg(long, value_parser = parse_duration)]
    pub newer_than: Option<Duration>,
}

impl FilterArgs {
    fn is_given(&self) -> bool {
        !(self.reason.is_empty() && self.shard.is_empty() && self.feature.is_empty() && self.id.is_empty())
            || self.older_than.is_some()
            || self.newer_than.is_some()
    }
}

/// Options of `hexlane dead list` and `hexlane dead show`.
#[derive(Clone, Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub redis: RedisArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub filter: FilterArgs,
    /// The most letters shown [default: 100 as text, all as JSON].
    #[arg(long)]
    pub limit: Option<usize>,
    /// One JSON object a letter and line.
    #[arg(long)]
    pub json: bool,
}

/// Options of `hexlane dead replay`.
#[derive(Clone, Debug, Args)]
pub struct ReplayArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub redis: RedisArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub filter: FilterArgs,
    /// The most events sent back in a second.
    #[arg(long, default_value = "1000")]
    pub rate: NonZeroU32,
    /// Only count.
    #[arg(long, env = "HEXLANE_DRY_RUN", value_parser = clap::builder::FalseyValueParser::new())]
    pub dry_run: bool,
    /// What was done as one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Options of `hexlane dead purge`.
#[derive(Clone, Debug, Args)]
pub struct PurgeArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub redis: RedisArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub filter: FilterArgs,
    /// Really every dead letter there is.
    #[arg(long)]
    pub all: bool,
    /// Only count.
    #[arg(long, env = "HEXLANE_DRY_RUN", value_parser = clap::builder::FalseyValueParser::new())]
    pub dry_run: bool,
    /// What was done as one JSON object.
    #[arg(long)]
    pub json: bool,
}

impl DeadCommand {
    pub(super) fn check(&self) -> Result<(), String> {
        let Self::Purge(args) = self else { return Ok(()) };
        match (args.filter.is_given(), args.all) {
            (false, false) => Err("dead purge takes a filter, such as --reason or --older-than, or --all".into()),
            (true, true) => Err("--all leaves nothing to a filter: give one of them".into()),
            _ => Ok(()),
        }
    }
}

/// Options of `hexlane rewind`.
#[derive(Clone, Debug, Args)]
pub struct RewindArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub redis: RedisArgs,
    /// The first entry to come again: a time (RFC 3339) or an entry id; 0 is the oldest there is.
    #[arg(long, value_parser = parse_since)]
    pub to: EntryId,
    /// Only this shard; may be given several times.
    #[arg(long, value_parser = clap::value_parser!(u16).range(0..i64::from(MOST_SHARDS)))]
    pub shard: Vec<u16>,
}
