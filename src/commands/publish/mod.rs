//! `hexlane publish`: events or GeoJSON features in, checked events out to their shards.
//!
//! A thread reads and checks chunks of them ([`source`]); the sender pipelines each chunk. A short channel
//! between them bounds what is in memory.

mod collection;
mod feature;
mod source;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::mpsc;

use crate::cli::PublishArgs;
use feature::Rules;
use source::Source;

const CHUNKS_AHEAD: usize = 4;

/// Runs the command. True if every line was accepted.
///
/// # Errors
/// A sentence for the user.
pub async fn run(args: PublishArgs) -> Result<bool, String> {
    let stream = args.redis.stream().await?;
    let wanted = args.topology.wanted();
    let topology = if args.dry_run {
        // Needs no server; with one, its topology would not change the verdicts.
        wanted.or_default()
    } else {
        stream.settle_topology(wanted).await?
    };
    let progress = progress(&args.files);
    let (chunks, mut received) = mpsc::channel(CHUNKS_AHEAD);
    let started = chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Micros, true);
    let source = Source {
        rules: Rules {
            id: args.id_property,
            version: args.version_property,
            time: args.time_property,
            started: format!("\"{started}\""),
        },
        format: args.format,
        check: (!args.unchecked).then(|| args.limits.limits()),
        strict: args.strict,
        topology,
        files: args.files,
        chunks,
    };
    let reading = tokio::task::spawn_blocking(move || source.read());
    let (mut sent, mut refused) = (0_u64, BTreeMap::<&'static str, u64>::new());
    while let Some(chunk) = received.recv().await {
        for refusal in &chunk.refusals {
            *refused.entry(refusal.reason.as_str()).or_default() += 1;
            progress.suspend(|| say(&format!("{}: {}: {}", refusal.place, refusal.reason, refusal.detail)));
        }
        if !args.dry_run {
            stream.append(&chunk.events).await.map_err(|failure| {
                format!("{failure}\n{sent} events are sent, of the next {} some may be; publishing all of them again is harmless: what comes twice changes nothing", chunk.events.len())
            })?;
        }
        sent += chunk.events.len() as u64;
        progress.inc(chunk.bytes as u64);
    }
    let read = reading.await.map_err(|error| error.to_string())?;
    progress.finish_and_clear();
    report(sent, &refused, args.dry_run);
    read.map(|()| refused.is_empty())
}

/// Drawn on a terminal only.
fn progress(files: &[PathBuf]) -> ProgressBar {
    let sizes: Option<Vec<u64>> = files.iter().map(|file| Some(file.metadata().ok()?.len())).collect();
    let (bar, template) = match sizes {
        Some(sizes) => (ProgressBar::new(sizes.iter().sum()), "{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}"),
        None => (ProgressBar::new_spinner(), "{spinner} {bytes} {bytes_per_sec}"),
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

#[expect(clippy::print_stderr, reason = "the command's own words to its user")]
fn say(line: &str) {
    eprintln!("{line}");
}

fn report(sent: u64, refused: &BTreeMap<&'static str, u64>, dry_run: bool) {
    let verb = if dry_run { "valid" } else { "published" };
    let total: u64 = refused.values().sum();
    let mut line = format!("{verb} {sent}, refused {total}");
    let reasons: Vec<String> = refused.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    if !reasons.is_empty() {
        line.push_str(&format!(" ({})", reasons.join(", ")));
    }
    // Nothing is to be done about a closed stdout.
    let _ = writeln!(io::stdout(), "{line}");
}
