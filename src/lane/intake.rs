//! The reading half of a lane: takes over what is pending, reads what is new, decodes both.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::held::Held;
use super::{Item, Shared};
use crate::event::{EntryId, Reason, Rejection};
use crate::failure::{Class, Failure, Retry, RetryPolicy};
use crate::judge;
use crate::metrics::Trouble;
use crate::stream::entry::{Entry, Payload};
use crate::stream::reader::Reader;

/// Entries asked for in one read: few while sizes are unknown, then as many as fit.
const FIRST_READ: usize = 64;
const LARGEST_READ: usize = 1000;
/// Below this many bytes decoding is quicker than handing it to another thread.
const INLINE_BYTES: usize = 16 * 1024;
/// Pauses between passes over the pending list while it brings nothing.
const FIRST_PASS_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PASS_PAUSE: Duration = Duration::from_secs(30);

/// Reads until `stop`, or until the lane has gone. Everything that it reads it adds to `held`.
pub(super) async fn run(shard: u16, shared: Shared, held: Arc<Held>, ahead: mpsc::Sender<Vec<Item>>) {
    let reader = Reader::new(&shared.stream, shard, shared.settings.block);
    // A pause of half the idle time on average keeps a take-over within twice that time.
    let longest = shared.settings.min_idle.min(LONGEST_PASS_PAUSE);
    let passes = RetryPolicy { base: FIRST_PASS_PAUSE.min(longest), cap: longest }.start();
    let count = ReadSize { count: FIRST_READ, budget: shared.settings.batch_bytes };
    let intake = Intake { shard, shared, held, ahead, reader, passes, next_pass: Instant::now(), count };
    intake.run().await;
}

struct Intake {
    shard: u16,
    shared: Shared,
    held: Arc<Held>,
    ahead: mpsc::Sender<Vec<Item>>,
    reader: Reader,
    /// Pauses between passes over the pending list.
    passes: Retry,
    next_pass: Instant,
    count: ReadSize,
}

impl Intake {
    async fn run(mut self) {
        let meter = self.shared.meter.clone();
        let stop = self.shared.stop.clone();
        let mut trouble = Trouble::none(&meter);
        let mut retry = self.shared.settings.retry.start();
        while !stop.is_cancelled() && !self.ahead.is_closed() {
            match self.turn().await {
                Ok(()) if trouble.is_over() => {}
                Ok(()) => {
                    trouble.end(self.shard);
                    retry.reset();
                }
                Err(failure) => {
                    trouble.add(&failure, self.shard);
                    // Whatever went wrong, entries may be pending that nobody holds.
                    self.next_pass = Instant::now();
                    if !retry.pause(&stop).await {
                        return;
                    }
                    if failure.class == Class::GroupMissing {
                        tracing::warn!(
                            shard = self.shard,
                            "the consumer group is gone: making it again from the start"
                        );
                        // An error shows again with the next turn.
                        let _ = self.reader.ensure_group().await;
                    }
                }
            }
        }
    }

    /// One pass over the pending list if it is time, then one read.
    async fn turn(&mut self) -> Result<(), Failure> {
        if !self.reader.is_connected() {
            self.reader.open().await?;
            self.next_pass = Instant::now();
        }
        if self.next_pass <= Instant::now() {
            let found = self.take_over().await?;
            if found > 0 {
                self.passes.reset();
            }
            self.next_pass = Instant::now() + self.passes.next_wait();
        }
        let entries = self.reader.read(self.count.next(), &self.shared.stop).await?;
        if !entries.is_empty() {
            self.count.learn(&entries);
            self.hand_over(entries).await;
        }
        Ok(())
    }

    /// Brings everything that was delivered and is in nobody's hand into the lane, oldest first:
    /// what is pending under our own name (left by a former process, or by a lost reply), and what
    /// others have not settled for the minimum idle time. Runs between two reads, so that it never
    /// takes what a reply under way is bringing.
    async fn take_over(&mut self) -> Result<usize, Failure> {
        let in_hand = self.held.snapshot();
        let mut ids = self.reader.own_pending().await?;
        let claimed = self.reader.claim_idle(self.shared.settings.min_idle).await?;
        self.note_gone(&claimed.gone, &in_hand);
        ids.extend(claimed.ids);
        ids.sort_unstable();
        ids.dedup();
        ids.retain(|id| !in_hand.contains(id));
        if ids.is_empty() {
            return Ok(0);
        }
        tracing::info!(shard = self.shard, entries = ids.len(), "taking over pending entries");
        let mut rest = ids.as_slice();
        while !rest.is_empty() && !self.shared.stop.is_cancelled() && !self.ahead.is_closed() {
            let (page, after) = rest.split_at(self.count.next().min(rest.len()));
            rest = after;
            let (mut entries, mut gone) = (Vec::with_capacity(page.len()), Vec::new());
            for found in self.reader.fetch(page).await? {
                match found {
                    Ok(entry) => entries.push(entry),
                    Err(id) => gone.push(id),
                }
            }
            if !gone.is_empty() {
                self.shared.stream.ack(self.shard, &gone).await?;
                self.note_gone(&gone, &HashSet::new());
            }
            self.count.learn(&entries);
            self.shared.meter.reclaimed(entries.len());
            self.hand_over(entries).await;
        }
        Ok(ids.len())
    }

    /// Entries that were deleted while they were pending: nothing can be done but to say so.
    /// One that is in hand is still written and settled, so it is not lost.
    fn note_gone(&self, gone: &[EntryId], in_hand: &HashSet<EntryId>) {
        let gone: Vec<EntryId> = gone.iter().copied().filter(|id| !in_hand.contains(id)).collect();
        for id in &gone {
            tracing::warn!(shard = self.shard, entry = %id, "lost: somebody deleted this entry while it was pending");
        }
        self.shared.meter.read(gone.len());
        self.shared.meter.lost(gone.len());
    }

    async fn hand_over(&mut self, entries: Vec<Entry>) {
        self.shared.meter.read(entries.len());
        self.held.add(entries.iter().map(|entry| entry.id));
        let Some(items) = self.judge(entries).await else { return };
        tokio::select! {
            // Fails only when the lane has gone; what was in hand is then released.
            _ = self.ahead.send(items) => {}
            () = self.shared.abort.cancelled() => {}
        }
    }

    /// Decodes and validates; on a thread that may block if it is more than a little.
    /// `None` only while the process ends.
    async fn judge(&self, entries: Vec<Entry>) -> Option<Vec<Item>> {
        let settings = self.shared.settings.clone();
        let bytes: usize = entries.iter().map(Entry::size).sum();
        let work = move || {
            let now_us = chrono::Utc::now().timestamp_micros();
            entries.into_iter().map(|entry| judge_entry(&entry, now_us, &settings)).collect()
        };
        if bytes < INLINE_BYTES { Some(work()) } else { tokio::task::spawn_blocking(work).await.ok() }
    }
}

fn judge_entry(entry: &Entry, now_us: i64, settings: &super::LaneSettings) -> Item {
    let entered_us = i64::try_from(entry.id.ms).unwrap_or(i64::MAX).saturating_mul(1000);
    let verdict = match &entry.payload {
        Payload::One(text) => judge::judge(text, now_us.max(entered_us), &settings.limits, settings.h3_resolution),
        Payload::Absent => Err(Box::new(Rejection::new(Reason::NoEventField, "the entry has no field named `event`"))),
        Payload::Repeated => {
            Err(Box::new(Rejection::new(Reason::BadField, "the entry has more than one field named `event`")))
        }
    };
    Item { id: entry.id, size: entry.size(), verdict }
}

/// How many entries to ask for. COUNT bounds entries, not bytes: the size of the last ones tells
/// how many of the next will fit.
struct ReadSize {
    count: usize,
    budget: usize,
}

impl ReadSize {
    fn next(&self) -> usize {
        self.count
    }

    fn learn(&mut self, entries: &[Entry]) {
        let Some(bytes) = entries.iter().map(Entry::size).sum::<usize>().checked_div(entries.len()) else { return };
        let fitting = self.budget / bytes.max(1);
        // Doubles at the most: a few small entries say little about the next thousand.
        self.count = fitting.clamp(1, LARGEST_READ).min(self.count * 2);
    }
}
