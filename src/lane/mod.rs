//! One shard's events, those of a feature in order: read, held, written, settled, with a bound at every step.
//!
//! Two tasks for each lane. The intake ([`intake`]) reads and decodes the next batches while the
//! lane itself commits the last ones ([`in_flight`]); a channel of [`AHEAD`] batches between them is the back
//! pressure: when it is full the intake waits, and nothing more is read. What is in hand is
//! remembered in [`held::Held`] until it is settled, so that taking over pending entries never
//! takes what this lane holds.

mod by_id;
pub mod coalesce;
pub mod group_commit;
mod held;
mod in_flight;
mod intake;
mod pulse;
pub mod reorder;
mod settle;
mod takeover;
pub mod trim;
mod write;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use h3o::Resolution;
use tokio::sync::{RwLock, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::event::{EntryId, Event, Rejection};
use crate::failure::RetryPolicy;
use crate::fleet::lease::Lease;
use crate::fleet::yielding::WriteHealth;
use crate::judge::Limits;
use crate::metrics::Meter;
use crate::store::Store;
use crate::stream::Stream;
use crate::trace::Traced;
use group_commit::GroupCommit;
pub use held::Held;
use in_flight::InFlight;
pub use pulse::Pulse;
use reorder::Reorder;
use trim::LastWrite;
use write::Commit;

/// Decoded batches that may wait for the lane.
const AHEAD: usize = 2;
/// Events that are worth a statement of their own, where there is a connection for it.
const WORTH_A_STATEMENT: usize = 1000;

/// What a lane needs to know; the same for all lanes of a worker.
#[derive(Clone, Debug)]
pub struct LaneSettings {
    /// The longest block of one read.
    pub block: Duration,
    /// The longest pause between two looks at the pending list.
    pub min_idle: Duration,
    /// An entry whose handling has ended the process more often is a dead letter.
    pub max_deliveries: u64,
    /// How long an event waits for an older one of its feature.
    pub reorder_window: Duration,
    /// The most entries in one read.
    pub read_rows: usize,
    /// The most events in one statement.
    pub batch_rows: usize,
    /// Bytes of events in one read, and in one statement, at the most; a larger event goes alone.
    pub batch_bytes: usize,
    /// What the judge allows.
    pub limits: Limits,
    /// For events without a cell.
    pub h3_resolution: Resolution,
    /// Between attempts at a server.
    pub retry: RetryPolicy,
    /// How long settled entries stay in the stream.
    pub retention: Duration,
}

/// What all lanes of a worker share.
#[derive(Clone)]
pub struct Shared {
    /// Redis.
    pub stream: Stream,
    /// PostgreSQL.
    pub store: Store,
    /// Its writers.
    pub commits: Arc<GroupCommit>,
    /// Counts.
    pub meter: Arc<Meter>,
    /// Settings.
    pub settings: Arc<LaneSettings>,
    /// Whether the database takes what is written.
    pub write_health: WriteHealth,
    /// Held for writing while an entry that may end the process is prepared by itself.
    pub preparing: Arc<RwLock<()>>,
    /// Cancelled: read nothing more, write and settle what is in hand.
    pub stop: CancellationToken,
    /// Cancelled: leave at once; what is in hand stays pending.
    pub abort: CancellationToken,
}

/// What a lane has for as long as it owns its shard.
#[derive(Clone)]
pub struct Term {
    /// Until when the shard may be touched.
    pub lease: Arc<Lease>,
    /// Set by the fleet when more is pending than is held here.
    pub take_over: Arc<AtomicBool>,
    /// What is in hand.
    pub held: Arc<Held>,
    /// Signs of life.
    pub pulse: Arc<Pulse>,
    /// When the database answered last.
    pub last_write: Arc<LastWrite>,
}

/// An entry, decoded and judged.
#[derive(Debug)]
pub struct Item {
    /// The entry's id.
    pub id: EntryId,
    /// Bytes of the entry, about as many as its event takes in memory.
    pub size: usize,
    /// What it carries, or why it cannot be written.
    pub verdict: Result<Event, Box<Rejection>>,
    /// Whose trace it belongs to.
    pub traced: Option<Box<Traced>>,
}

impl Item {
    /// The feature, as far as it could be read.
    pub fn feature_id(&self) -> Option<&str> {
        match &self.verdict {
            Ok(event) => Some(&event.feature_id),
            Err(rejection) => rejection.feature_id.as_deref(),
        }
    }
}

/// Runs the lane of one shard until it is told to stop, or its lease is over.
///
/// # Errors
/// Only if its intake ended by a panic; what is in hand stays pending.
pub async fn run(shard: u16, shared: Shared, term: Term) -> Result<(), tokio::task::JoinError> {
    let (ahead, batches) = mpsc::channel(AHEAD);
    let mut intake = tokio::spawn(intake::run(shard, shared.clone(), term.clone(), ahead));
    let commit = Commit { shard, shared: shared.clone(), term: term.clone() };
    let lane =
        Lane { shared: shared.clone(), term: term.clone(), batches, reorder: Reorder::default(), ready: Vec::new() };
    tokio::select! {
        () = lane.run(InFlight::new(&commit)) => {}
        never = trim::run(shard, &shared, &term) => match never {},
    }
    // The lane has dropped its end of the channel, which ends an intake that is handing over; one
    // that is reading ends by this.
    shared.stop.cancel();
    tokio::select! {
        ended = &mut intake => ended,
        // It may be waiting for a Redis that does not answer.
        () = shared.abort.cancelled() => {
            intake.abort();
            intake.await.or_else(|error| if error.is_cancelled() { Ok(()) } else { Err(error) })
        }
    }
}

/// The lane's own half: everything after decoding.
struct Lane {
    shared: Shared,
    term: Term,
    batches: mpsc::Receiver<Vec<Item>>,
    reorder: Reorder,
    /// Due to be written; those of one feature in order.
    ready: Vec<Item>,
}

impl Lane {
    async fn run(mut self, mut in_flight: InFlight<'_>) {
        let mut ended = false;
        while !self.shared.abort.is_cancelled() && self.term.lease.is_held() {
            self.term.pulse.lane();
            let may_start = self.may_start(&in_flight);
            if may_start {
                ended = self.admit_waiting() || ended;
                self.reorder.release_due(Instant::now(), &mut self.ready);
                if ended {
                    self.reorder.release_all(&mut self.ready);
                }
                if let Some(batch) = self.take_batch(&in_flight) {
                    in_flight.start(batch);
                    continue;
                }
            }
            if ended && in_flight.is_empty() {
                return;
            }
            if self.wait(&mut in_flight, may_start && !ended).await.is_none() {
                return;
            }
        }
    }

    /// Beside a batch that is being written another one goes out where no batch waits for a writer,
    /// or where that one itself waits for something else, such as a row that somebody has locked.
    fn may_start(&self, in_flight: &InFlight<'_>) -> bool {
        in_flight.has_room()
            && (!in_flight.is_writing() || self.shared.commits.is_idle() || in_flight.is_slow(Instant::now()))
    }

    /// Whether there is less than a batch.
    fn has_room(&self) -> bool {
        self.ready.len() < self.shared.settings.batch_rows
            && self.ready.iter().map(|item| item.size).sum::<usize>() < self.shared.settings.batch_bytes
    }

    /// Takes what the intake has ready, up to a batch; true if nothing will follow.
    fn admit_waiting(&mut self) -> bool {
        while self.has_room() {
            match self.batches.try_recv() {
                Ok(items) => self.admit(items),
                Err(mpsc::error::TryRecvError::Empty) => return false,
                Err(mpsc::error::TryRecvError::Disconnected) => return true,
            }
        }
        false
    }

    /// The first items that are due and not held up, as many as one statement may hold and at least
    /// one; in entry order. `None` if there are none, or too few to go beside what is being written:
    /// then they gather.
    fn take_batch(&mut self, in_flight: &InFlight<'_>) -> Option<Vec<Item>> {
        let LaneSettings { batch_rows, batch_bytes, .. } = *self.shared.settings;
        if in_flight.is_writing() {
            let (mut rows, mut bytes) = (0, 0);
            for item in self.ready.iter().filter(|item| !in_flight.holds_up(item)) {
                (rows, bytes) = (rows + 1, bytes + item.size);
            }
            if rows < WORTH_A_STATEMENT.min(batch_rows) && bytes < batch_bytes / 2 && !in_flight.is_slow(Instant::now())
            {
                return None;
            }
        }
        let (mut batch, mut rest) = (Vec::with_capacity(self.ready.len().min(batch_rows)), Vec::new());
        let (mut bytes, mut is_full) = (0, false);
        for item in self.ready.drain(..) {
            if in_flight.holds_up(&item) {
                rest.push(item);
                continue;
            }
            bytes += item.size;
            is_full |= batch.len() == batch_rows || bytes > batch_bytes && !batch.is_empty();
            if is_full { rest.push(item) } else { batch.push(item) }
        }
        self.ready = rest;
        // Events of one feature arrive in order; across features the buffer mixes them.
        batch.sort_by_key(|item| item.id);
        Some(batch).filter(|batch| !batch.is_empty())
    }

    /// Until a step of what is in flight is done, or, if `for_more`, until there may be more to
    /// write. `None` if the worker is leaving or the lease is over.
    async fn wait(&mut self, in_flight: &mut InFlight<'_>, for_more: bool) -> Option<()> {
        let released = self.reorder.next_deadline().filter(|_| for_more);
        let due = [released, in_flight.slow_from(Instant::now())].into_iter().flatten().min();
        let until_due = async {
            match due {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        let takes_more = for_more && self.has_room();
        tokio::select! {
            // What was started is sent before anything else is looked at.
            biased;
            () = self.shared.abort.cancelled() => {}
            step = in_flight.step() => return step,
            items = self.batches.recv(), if takes_more => if let Some(items) = items { self.admit(items) },
            () = until_due => {}
        }
        Some(())
    }

    fn admit(&mut self, items: Vec<Item>) {
        let now = Instant::now();
        let server_now_ms = self.shared.stream.server_now_ms();
        for item in items {
            let wait = reorder::wait_left(item.id, server_now_ms, self.shared.settings.reorder_window);
            self.reorder.admit(item, wait, now, &mut self.ready);
        }
        let LaneSettings { batch_rows, batch_bytes, .. } = *self.shared.settings;
        while self.reorder.len() > batch_rows || self.reorder.bytes() > batch_bytes {
            self.reorder.release_oldest(&mut self.ready);
        }
    }
}
