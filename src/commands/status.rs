//! `hexlane status`: what each shard holds, asked when it is called.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use crate::admin::shards::skew;
use crate::cli::{ShowArgs, StatusArgs};
use crate::shown::{escaped, json_line};
use crate::stream::Stream;
use crate::stream::pending::ShardState;
use crate::stream::topology::Wanted;

/// Between two looks of `--watch`.
const REFRESH: Duration = Duration::from_secs(2);
/// Cursor to the upper left, and everything below it gone (ECMA-48: CUP, ED).
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Runs the command.
///
/// # Errors
/// A sentence for the user.
pub async fn run(StatusArgs { show, watch }: StatusArgs) -> Result<(), String> {
    let stream = show.redis.stream().await?;
    if !watch {
        return print(&look(&stream, &show).await?);
    }
    let mut interrupts = signal(SignalKind::interrupt()).map_err(|error| error.to_string())?;
    let mut looks = tokio::time::interval(REFRESH);
    loop {
        tokio::select! {
            _ = looks.tick() => {}
            // The user's way to end it, and no failure.
            _ = interrupts.recv() => return Ok(()),
        }
        // A server that is away for a while is what somebody may be watching for.
        let text = look(&stream, &show).await.unwrap_or_else(|sentence| format!("{sentence}\n"));
        let before = if !show.json && io::stdout().is_terminal() { CLEAR } else { "" };
        print(&format!("{before}{text}"))?;
    }
}

fn print(text: &str) -> Result<(), String> {
    let mut out = io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| error.to_string())
}

async fn look(stream: &Stream, show: &ShowArgs) -> Result<String, String> {
    let topology = stream.read_topology(Wanted::default()).await?;
    stream.sync_clock().await?;
    let numbers: Vec<u16> = (0..topology.shards).collect();
    let states = stream.shard_states(&numbers).await?.into_iter().collect::<Result<Vec<_>, _>>()?;
    let shards: Vec<(u16, ShardState)> = numbers.into_iter().zip(states).collect();
    let now_ms = stream.server_now_ms();
    let workers = stream.live_workers().await?;
    Ok(if show.json { json(&shards, &workers, now_ms) } else { table(&shards, &workers, now_ms) })
}

/// How long ago the oldest pending entry entered its stream.
fn oldest_pending_seconds(state: &ShardState, now_ms: i64) -> Option<f64> {
    Some(state.oldest_pending?.seconds_until(now_ms))
}

fn json(shards: &[(u16, ShardState)], workers: &[String], now_ms: i64) -> String {
    let rows: Vec<_> = shards
        .iter()
        .map(|(shard, state)| {
            serde_json::json!({
                "shard": shard,
                "length": state.length,
                "lag": state.unread,
                "pending": state.pending,
                "oldest_pending_seconds": oldest_pending_seconds(state, now_ms),
                "dead_letters": state.dead,
                "owner": state.owner.as_deref().map(name),
            })
        })
        .collect();
    let sum = |of: fn(&ShardState) -> u64| shards.iter().map(|(_, state)| of(state)).sum::<u64>();
    let lag: Option<u64> = shards.iter().map(|(_, state)| state.unread).sum();
    let totals = serde_json::json!({
        "length": sum(|state| state.length),
        "lag": lag,
        "pending": sum(|state| state.pending),
        "dead_letters": sum(|state| state.dead),
    });
    let names: Vec<&str> = workers.iter().map(|token| name(token)).collect();
    let skew = skew(shards.iter().map(|(_, state)| state.length));
    json_line(&serde_json::json!({ "shards": rows, "workers": names, "totals": totals, "skew": skew }))
}

fn table(shards: &[(u16, ShardState)], workers: &[String], now_ms: i64) -> String {
    let mut out = row("shard", ["length", "lag", "pending", "oldest", "dead"].map(String::from), "owner");
    let (mut length, mut lag, mut pending, mut dead) = (0, Some(0), 0, 0);
    let shown = |lag: Option<u64>| lag.map_or_else(|| "?".to_owned(), |lag| lag.to_string());
    for (shard, state) in shards {
        length += state.length;
        lag = lag.zip(state.unread).map(|(sum, one)| sum + one);
        pending += state.pending;
        dead += state.dead;
        let oldest = oldest_pending_seconds(state, now_ms).map_or_else(|| "-".to_owned(), |age| format!("{age:.1}s"));
        let columns =
            [state.length.to_string(), shown(state.unread), state.pending.to_string(), oldest, state.dead.to_string()];
        out.push_str(&row(&format!("{shard:03}"), columns, &escaped(state.owner.as_deref().map_or("-", name))));
    }
    let totals = [length.to_string(), shown(lag), pending.to_string(), String::new(), dead.to_string()];
    out.push_str(&row("total", totals, &format!("{} workers", workers.len())));
    if let Some(skew) = skew(shards.iter().map(|(_, state)| state.length))
        && let Some((fullest, state)) = shards.iter().max_by_key(|(_, state)| state.length)
    {
        out.push_str(&format!("fullest: shard {fullest:03} with {}, {skew:.1} times the mean\n", state.length));
    }
    for token in workers {
        out.push_str(&format!("live worker: {}\n", escaped(name(token))));
    }
    out
}

/// A worker's name, without what tells its processes apart.
fn name(token: &str) -> &str {
    token.rsplit_once('/').map_or(token, |(name, _)| name)
}

fn row(first: &str, columns: [String; 5], owner: &str) -> String {
    let [length, lag, pending, oldest, dead] = columns;
    format!("{first:<6}{length:>12}{lag:>12}{pending:>12}{oldest:>12}{dead:>8}  {owner}\n")
}
