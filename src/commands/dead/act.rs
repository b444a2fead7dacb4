//! Sends dead letters back, or removes them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::{self, Write};
use std::num::NonZeroU32;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tokio::time::Instant;

use super::Letters;
use crate::cli::{PurgeArgs, ReplayArgs};
use crate::event::EntryId;
use crate::shown::escaped;
use crate::stream::dead::{Letter, PAGE, Replay, Source};
use crate::stream::topology::Wanted;

/// Pieces of a second into which a rate is cut.
const TURNS: u32 = 10;

/// `hexlane dead replay`. True if every letter that was meant was sent back.
pub(super) async fn replay(args: ReplayArgs) -> Result<bool, String> {
    let mut letters = Letters::find(&args.redis, args.filter).await?;
    let topology = letters.stream.read_topology(Wanted::default()).await?;
    let mut pace = Pace::new(args.rate);
    let mut done = Done::new(if args.dry_run { "would replay" } else { "replayed" });
    // Of events that died several times one is sent back, and the other letters go.
    let mut sent: HashSet<Source> = HashSet::new();
    let mut replayed: BTreeSet<u16> = BTreeSet::new();
    while let Some((shard, page)) = letters.next().await? {
        if shard >= topology.shards {
            // Nobody reads that stream any more.
            done.beyond += page.len() as u64;
            continue;
        }
        for piece in page.chunks(pace.piece()) {
            let mut here: HashSet<Source> = HashSet::new();
            let is_first = |letter: &&Letter| {
                let source = letter.source();
                source.id.is_empty() || !sent.contains(&source) && here.insert(source)
            };
            let (first, again): (Vec<&Letter>, Vec<&Letter>) = piece.iter().partition(is_first);
            if args.dry_run {
                done.count(&first);
                done.repeats += again.len() as u64;
                sent.extend(here);
                continue;
            }
            replayed.insert(shard);
            let ids: Vec<EntryId> = first.iter().map(|letter| letter.id).collect();
            let what = letters.stream.replay(shard, &ids).await.map_err(|failure| {
                format!("{failure}\n{}; what was sent back is sent back, run it again for the rest", done.words())
            })?;
            for (letter, replay) in first.iter().zip(what) {
                match replay {
                    Replay::Sent => {
                        sent.insert(letter.source());
                        done.count(&[letter]);
                    }
                    Replay::Gone => done.gone += 1,
                    Replay::Incomplete => done.incomplete += 1,
                }
            }
            // Only where its entry was sent back is another letter of no more use.
            let again = again.iter().filter(|letter| sent.contains(&letter.source()));
            let ids: Vec<EntryId> = again.map(|letter| letter.id).collect();
            done.repeats += letters.stream.purge(shard, &ids).await?;
            pace.after(first.len()).await;
        }
    }
    for shard in replayed {
        // What has been settled since need not be remembered any more.
        letters.stream.oldest_sent_back(shard).await?;
    }
    done.finish(args.json)?;
    Ok(done.incomplete == 0 && done.beyond == 0)
}

/// `hexlane dead purge`.
pub(super) async fn purge(args: PurgeArgs) -> Result<(), String> {
    let mut letters = Letters::find(&args.redis, args.filter).await?;
    let mut done = Done::new(if args.dry_run { "would remove" } else { "removed" });
    while let Some((shard, page)) = letters.next().await? {
        let ids: Vec<EntryId> = page.iter().map(|letter| letter.id).collect();
        if !args.dry_run {
            let removed = letters.stream.purge(shard, &ids).await?;
            done.gone += (ids.len() as u64).saturating_sub(removed);
        }
        done.count(&page.iter().collect::<Vec<_>>());
    }
    done.finish(args.json)
}

/// No more than so many a second.
struct Pace {
    rate: f64,
    piece: usize,
    next: Instant,
}

impl Pace {
    fn new(rate: NonZeroU32) -> Self {
        let piece = rate.get().div_ceil(TURNS) as usize;
        Self { rate: f64::from(rate.get()), piece: piece.min(PAGE), next: Instant::now() }
    }

    fn piece(&self) -> usize {
        self.piece
    }

    /// Waits for as long as so many may take; what was missed is not made up for.
    async fn after(&mut self, count: usize) {
        self.next = self.next.max(Instant::now()) + Duration::from_secs_f64(count as f64 / self.rate);
        tokio::time::sleep_until(self.next).await;
    }
}

/// What was done, while it is being done and at the end.
struct Done {
    verb: &'static str,
    reasons: BTreeMap<String, u64>,
    repeats: u64,
    gone: u64,
    incomplete: u64,
    beyond: u64,
    progress: ProgressBar,
}

impl Done {
    fn new(verb: &'static str) -> Self {
        let progress = ProgressBar::new_spinner();
        let progress = match ProgressStyle::with_template("{spinner} {pos} {per_sec}") {
            Ok(style) => progress.with_style(style),
            Err(_) => progress,
        };
        Self { verb, reasons: BTreeMap::new(), repeats: 0, gone: 0, incomplete: 0, beyond: 0, progress }
    }

    fn count(&mut self, letters: &[&Letter]) {
        for letter in letters {
            *self.reasons.entry(escaped(letter.about("reason").unwrap_or("-"))).or_default() += 1;
        }
        self.progress.inc(letters.len() as u64);
    }

    fn total(&self) -> u64 {
        self.reasons.values().sum()
    }

    fn words(&self) -> String {
        let reasons: Vec<String> = self.reasons.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        let mut line = format!("{} {}", self.verb, self.total());
        if !reasons.is_empty() {
            line.push_str(&format!(" ({})", reasons.join(", ")));
        }
        for (count, what) in [
            (self.repeats, "letters of the same entries removed"),
            (self.gone, "gone meanwhile"),
            (self.incomplete, "kept: they had too many fields to be kept whole, publish their events again"),
            (self.beyond, "kept: nobody reads their shards any more, publish their events again"),
        ] {
            if count > 0 {
                line.push_str(&format!("; {count} {what}"));
            }
        }
        line
    }

    fn finish(&self, as_json: bool) -> Result<(), String> {
        self.progress.finish_and_clear();
        let text = if as_json {
            json!({
                "done": self.total(),
                "reasons": self.reasons,
                "repeats": self.repeats,
                "gone": self.gone,
                "incomplete": self.incomplete,
                "beyond": self.beyond,
                "dry_run": self.verb.starts_with("would"),
            })
            .to_string()
        } else {
            self.words()
        };
        writeln!(io::stdout(), "{text}").map_err(|error| error.to_string())
    }
}
