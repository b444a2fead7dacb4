//! The reading half of a lane: takes over what is pending, reads what is new, decodes both.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Item, Shared, Term};
use crate::event::{Reason, Rejection};
use crate::failure::{Class, Failure, Retry, RetryPolicy};
use crate::judge;
use crate::metrics::Trouble;
use crate::stream::entry::{Entry, Payload};
use crate::stream::pending::Gap;
use crate::stream::reader::Reader;

/// Entries asked for in the first read, at the most; later as many as fit.
const FIRST_READ: usize = 64;
/// Smaller reads cost Redis more than they save here.
const LEAST_READ_BYTES: usize = 64 * 1024;
/// Below this many bytes decoding is quicker than handing it to another thread.
const INLINE_BYTES: usize = 64 * 1024;
/// The time for a single large geometry can grow with its square.
const INLINE_ENTRY_BYTES: usize = 4 * 1024;
/// The longest first pause between looks at the pending list; it doubles while they bring nothing.
const FIRST_LOOK_PAUSE: Duration = Duration::from_secs(1);

/// Reads until `stop`, until the lane has gone, or until the lease is over. Everything that it
/// reads it adds to what is held.
pub(super) async fn run(shard: u16, shared: Shared, term: Term, ahead: mpsc::Sender<Vec<Item>>) {
    let reader = Reader::new(&shared.stream, shard, shared.settings.block);
    let longest = shared.settings.min_idle;
    let looks = RetryPolicy { base: FIRST_LOOK_PAUSE.min(longest), cap: longest }.start();
    let budget = (shared.settings.batch_bytes / super::AHEAD).max(LEAST_READ_BYTES);
    let count = ReadSize { count: 1, budget, most: shared.settings.read_rows };
    let intake = Intake { shard, shared, term, ahead, reader, looks, next_look: Instant::now(), count, told: None };
    intake.run().await;
}

pub(super) struct Intake {
    pub(super) shard: u16,
    pub(super) shared: Shared,
    pub(super) term: Term,
    ahead: mpsc::Sender<Vec<Item>>,
    pub(super) reader: Reader,
    /// Pauses between looks at the pending list.
    looks: Retry,
    next_look: Instant,
    pub(super) count: ReadSize,
    /// The gap that was told last, while the server does not know so.
    told: Option<Gap>,
}

impl Intake {
    async fn run(mut self) {
        let meter = self.shared.meter.clone();
        let stop = self.shared.stop.clone();
        let mut trouble = Trouble::none(&meter);
        let mut retry = self.shared.settings.retry.start();
        while self.goes_on() {
            self.term.pulse.intake();
            let mut returns = self.shared.stream.returns();
            match self.turn().await {
                Ok(()) if trouble.is_over() => {}
                Ok(()) => {
                    trouble.end(self.shard);
                    retry.reset();
                }
                Err(failure) => {
                    trouble.add(&failure, self.shard);
                    // Whatever went wrong, entries may be pending that nobody holds.
                    self.next_look = Instant::now();
                    if !retry.pause_unless(returns.changed(), &stop).await {
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

    /// Whether there is anybody to read for.
    pub(super) fn goes_on(&self) -> bool {
        !self.shared.stop.is_cancelled() && !self.ahead.is_closed() && self.term.lease.is_held()
    }

    /// One look at the pending list if it is time, then one read.
    async fn turn(&mut self) -> Result<(), Failure> {
        if !self.reader.is_connected() {
            self.reader.open().await?;
            self.count.start(self.reader.average_bytes().await?);
            self.next_look = Instant::now();
        }
        if self.next_look <= Instant::now() || self.term.take_over.swap(false, Ordering::Relaxed) {
            self.look_for_gap().await?;
            if self.take_over().await? > 0 {
                self.looks.reset();
            }
            self.next_look = Instant::now() + self.looks.next_wait();
        }
        let entries = self.reader.read(self.count.next(), &self.shared.stop).await?;
        if !entries.is_empty() {
            self.count.learn(&entries);
            self.hand_over(entries).await;
        }
        Ok(())
    }

    /// What was deleted unread nobody can bring back but its producer, who has to be told.
    async fn look_for_gap(&mut self) -> Result<(), Failure> {
        let found = self.reader.gap(0).await?;
        let Some(gap) = found else {
            self.told = None;
            return Ok(());
        };
        // Told before the server is: twice, if this process ends in between, but not never.
        if self.told.as_ref() != Some(&gap) {
            let Gap { missing, after, until } = &gap;
            self.shared.meter.missing(*missing);
            tracing::error!(
                shard = self.shard,
                missing,
                after,
                until,
                "entries were deleted from the stream before anybody had read them: publish them again, and find \
                 out who trims it by length"
            );
        }
        let missing = gap.missing;
        self.told = Some(gap);
        self.reader.gap(missing).await.map(|_| ())
    }

    /// New entries: judged as a batch, beside those of other lanes.
    async fn hand_over(&self, entries: Vec<Entry>) {
        self.hold(&entries);
        let preparing = self.shared.preparing.read().await;
        let Some(items) = self.judge(entries).await else { return };
        drop(preparing);
        self.pass_on(items).await;
    }

    /// From here on the entries are this lane's to settle.
    pub(super) fn hold(&self, entries: &[Entry]) {
        self.shared.meter.read(entries.len());
        self.term.held.add(entries.iter().map(|entry| entry.id));
        // From now on the lane has something to do.
        self.term.pulse.lane();
    }

    /// Waits until the lane has room.
    pub(super) async fn pass_on(&self, items: Vec<Item>) {
        tokio::select! {
            // Fails only when the lane has gone; what was in hand is then released.
            _ = self.ahead.send(items) => {}
            () = self.shared.abort.cancelled() => {}
        }
    }

    /// Decodes and validates; on a thread that may block if it is more than a little.
    /// `None` only while the process ends.
    pub(super) async fn judge(&self, entries: Vec<Entry>) -> Option<Vec<Item>> {
        let settings = self.shared.settings.clone();
        let bytes: usize = entries.iter().map(Entry::size).sum();
        let is_little = bytes < INLINE_BYTES && entries.iter().all(|entry| entry.size() < INLINE_ENTRY_BYTES);
        let span = tracing::debug_span!(
            parent: None, "judge", lane.shard = self.shard, read.entries = entries.len(), read.bytes = bytes
        );
        let work = move || {
            let _judging = span.enter();
            let now_us = chrono::Utc::now().timestamp_micros();
            entries.into_iter().map(|entry| judge_entry(entry, now_us, &settings)).collect()
        };
        if is_little { Some(work()) } else { tokio::task::spawn_blocking(work).await.ok() }
    }
}

fn judge_entry(entry: Entry, now_us: i64, settings: &super::LaneSettings) -> Item {
    let entered_us = i64::try_from(entry.id.ms).unwrap_or(i64::MAX).saturating_mul(1000);
    let verdict = match &entry.payload {
        Payload::One(text) => judge::judge(text, now_us.max(entered_us), &settings.limits, settings.h3_resolution),
        Payload::Absent => Err(Box::new(Rejection::new(Reason::NoEventField, "the entry has no field named `event`"))),
        Payload::Repeated => {
            Err(Box::new(Rejection::new(Reason::BadField, "the entry has more than one field named `event`")))
        }
    };
    Item { id: entry.id, size: entry.size(), verdict, traced: entry.traced }
}

/// How many entries to ask for. COUNT bounds entries, not bytes: the size of the last ones tells
/// how many of the next will fit.
pub(super) struct ReadSize {
    count: usize,
    budget: usize,
    most: usize,
}

impl ReadSize {
    pub(super) fn next(&self) -> usize {
        self.count
    }

    /// Where nothing is known of what lies there, the first read is of one entry: each may be as large as
    /// events can be, in every lane at once. Of an empty stream a read brings what comes first.
    fn start(&mut self, average_bytes: i64) {
        let fitting = match usize::try_from(average_bytes) {
            Ok(bytes) => self.budget.checked_div(bytes).unwrap_or(FIRST_READ),
            Err(_) => 1,
        };
        self.count = fitting.clamp(1, FIRST_READ.min(self.most));
    }

    pub(super) fn learn(&mut self, entries: &[Entry]) {
        let Some(bytes) = entries.iter().map(Entry::size).sum::<usize>().checked_div(entries.len()) else { return };
        let fitting = self.budget / bytes.max(1);
        // Doubles at the most: a few small entries say little about the next thousand.
        self.count = fitting.clamp(1, self.most).min(self.count * 2);
    }
}
