//! `hexlane dead`: looks into dead letters, sends them back, removes them.

mod act;
mod filter;
mod show;

use crate::cli::{DeadCommand, FilterArgs, RedisArgs};
use crate::shard::MOST_SHARDS;
use crate::stream::Stream;
use crate::stream::dead::Letter;
use filter::Filter;

/// Runs the command. True if everything was done that was asked for.
///
/// # Errors
/// A sentence for the user.
pub async fn run(command: DeadCommand) -> Result<bool, String> {
    match command {
        DeadCommand::List(args) => show::list(args).await.map(|()| true),
        DeadCommand::Show(args) => show::show(args).await.map(|()| true),
        DeadCommand::Replay(args) => act::replay(args).await,
        DeadCommand::Purge(args) => act::purge(args).await.map(|()| true),
    }
}

/// The letters that a filter lets through, page by page.
struct Letters {
    stream: Stream,
    filter: Filter,
    /// Shards still to be looked through, the next one last.
    shards: Vec<u16>,
    /// Behind the last letter that was seen of the next shard.
    start: String,
}

impl Letters {
    async fn find(redis: &RedisArgs, filter: FilterArgs) -> Result<Self, String> {
        let stream = redis.stream().await?;
        stream.sync_clock().await?;
        // Also what lies beyond a topology that has become smaller.
        let shards = if filter.shard.is_empty() { (0..MOST_SHARDS).collect() } else { filter.shard.clone() };
        let mut shards = stream.shards_with_letters(&shards).await?;
        shards.sort_unstable_by(|a, b| b.cmp(a));
        shards.dedup();
        let filter = Filter::new(filter, stream.server_now_ms());
        Ok(Self { stream, start: filter.start.clone(), filter, shards })
    }

    /// The shard of the next page, and what of the page fits; `None` at the end.
    async fn next(&mut self) -> Result<Option<(u16, Vec<Letter>)>, String> {
        let Some(&shard) = self.shards.last() else { return Ok(None) };
        // What dies while this goes on is none of it: a letter that was sent back in vain would be sent
        // back again and again.
        let (mut page, next) = self.stream.letters(shard, &self.start, &self.filter.end).await?;
        match next {
            Some(next) => self.start = next,
            None => {
                self.shards.pop();
                self.start.clone_from(&self.filter.start);
            }
        }
        page.retain(|letter| self.filter.fits(letter));
        Ok(Some((shard, page)))
    }
}
