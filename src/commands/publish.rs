//! `hexlane publish`: lines in, checked events out to their shards.
//!
//! A thread reads and checks chunks of lines; the sender pipelines each chunk. A short channel
//! between them bounds what is in memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::mpsc;

use super::{Line, read_line};
use crate::cli::PublishArgs;
use crate::event::{Reason, Rejection};
use crate::judge::{self, Limits};
use crate::shard::{Keys, Topology, route};
use crate::stream::Stream;

/// As long as a Redis string can be: <https://redis.io/docs/latest/develop/data-types/strings/>.
const LONGEST_UNCHECKED: usize = 512 << 20;
const CHUNK_LINES: usize = 1000;
const CHUNK_BYTES: usize = 1 << 20;
const CHUNKS_AHEAD: usize = 4;

/// Runs the command. True if every line was accepted.
///
/// # Errors
/// A sentence for the user.
pub async fn run(args: PublishArgs) -> Result<bool, String> {
    let keys = Keys::new(&args.redis.namespace);
    let stream =
        Stream::new(&args.redis.redis_url, keys, &args.redis.group, "").map_err(|failure| failure.to_string())?;
    let wanted = args.topology.wanted();
    let topology = if args.dry_run {
        // Needs no server; with one, its topology would not change the verdicts.
        wanted.or_default()
    } else {
        stream.settle_topology(wanted).await.map_err(|failure| failure.to_string())?
    };
    let progress = progress(&args.files);
    let (chunks, mut received) = mpsc::channel(CHUNKS_AHEAD);
    let source = Source {
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
    reading.await.map_err(|error| error.to_string())??;
    progress.finish_and_clear();
    report(sent, &refused, args.dry_run);
    Ok(refused.is_empty())
}

struct Refusal {
    place: String,
    reason: Reason,
    detail: String,
}

#[derive(Default)]
struct Chunk {
    events: Vec<(u16, Vec<u8>)>,
    refusals: Vec<Refusal>,
    lines: usize,
    bytes: usize,
}

struct Source {
    /// `None`: every line goes as it is.
    check: Option<Limits>,
    strict: bool,
    topology: Topology,
    files: Vec<PathBuf>,
    chunks: mpsc::Sender<Chunk>,
}

impl Source {
    fn read(self) -> Result<(), String> {
        for file in &self.files {
            let failed = |error: io::Error| format!("{}: {error}", file.display());
            let complete = if file == Path::new("-") {
                self.read_lines("stdin", &mut io::stdin().lock())
            } else {
                let input = File::open(file).map_err(failed)?;
                self.read_lines(&file.display().to_string(), &mut BufReader::with_capacity(1 << 20, input))
            };
            if !complete.map_err(failed)? {
                break;
            }
        }
        Ok(())
    }

    /// False if nothing more is to be read.
    fn read_lines(&self, name: &str, input: &mut impl BufRead) -> io::Result<bool> {
        let longest = self.check.as_ref().map_or(LONGEST_UNCHECKED, |limits| limits.max_event_bytes);
        let mut chunk = Chunk::default();
        let mut number = 0_u64;
        let mut wanted = true;
        while wanted && let Some(line) = read_line(input, longest)? {
            number += 1;
            self.take(line, &mut chunk, || format!("{name}:{number}"));
            if chunk.lines >= CHUNK_LINES || chunk.bytes >= CHUNK_BYTES {
                wanted = self.send(std::mem::take(&mut chunk));
            } else {
                wanted = !self.strict || chunk.refusals.is_empty();
            }
        }
        Ok(self.send(chunk) && wanted)
    }

    fn take(&self, line: Line, chunk: &mut Chunk, place: impl Fn() -> String) {
        chunk.lines += 1;
        let text = match line {
            Line::Text(text) => text,
            Line::TooLong => {
                let detail = "the line is longer than --max-event-bytes".to_owned();
                chunk.refusals.push(Refusal { place: place(), reason: Reason::TooLarge, detail });
                return;
            }
        };
        chunk.bytes += text.len() + 1;
        if text.trim_ascii().is_empty() {
            return;
        }
        match self.shard_of(&text) {
            Ok(shard) => chunk.events.push((shard, text)),
            Err(rejection) => {
                chunk.refusals.push(Refusal { place: place(), reason: rejection.reason, detail: rejection.detail });
            }
        }
    }

    fn shard_of(&self, text: &[u8]) -> Result<u16, Box<Rejection>> {
        if let Some(limits) = &self.check {
            let now_us = chrono::Utc::now().timestamp_micros();
            judge::judge(text, now_us, limits, self.topology.h3_resolution)?;
        }
        // Not from the judged event: a delete's geometry counts here, though it is not stored.
        Ok(route(text, &self.topology).shard)
    }

    /// False if nobody wants more.
    fn send(&self, chunk: Chunk) -> bool {
        let refused = self.strict && !chunk.refusals.is_empty();
        self.chunks.blocking_send(chunk).is_ok() && !refused
    }
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
