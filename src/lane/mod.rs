//! One shard's events, in order: read, held, written, settled, with a bound at every step.
//!
//! Two tasks for each lane. The intake ([`intake`]) reads and decodes the next batches while the
//! lane itself commits the last one; a channel of [`AHEAD`] batches between them is the back
//! pressure: when it is full the intake waits, and nothing more is read. What is in hand is
//! remembered in [`held::Held`] until it is settled, so that taking over pending entries never
//! takes what this lane holds.

pub mod coalesce;
pub mod group_commit;
mod held;
mod intake;
pub mod reorder;
mod settle;
mod takeover;
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
use group_commit::GroupCommit;
pub use held::Held;
use reorder::Reorder;
use write::Fate;

/// Decoded batches that may wait for the lane.
const AHEAD: usize = 4;

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
    shared.meter.lanes(1);
    let reorder = Reorder::default();
    let lane = Lane {
        shard,
        shared: shared.clone(),
        term: term.clone(),
        batches,
        reorder,
        ready: Vec::new(),
        written: Vec::new(),
    };
    lane.run().await;
    // The lane has dropped its end of the channel, which ends an intake that is handing over; one
    // that is reading ends by this.
    shared.stop.cancel();
    let intake = tokio::select! {
        ended = &mut intake => ended,
        // It may be waiting for a Redis that does not answer.
        () = shared.abort.cancelled() => {
            intake.abort();
            intake.await.or_else(|error| if error.is_cancelled() { Ok(()) } else { Err(error) })
        }
    };
    shared.meter.released(term.held.count());
    shared.meter.lanes(-1);
    intake
}

/// The lane's own half: everything after decoding.
struct Lane {
    shard: u16,
    shared: Shared,
    term: Term,
    batches: mpsc::Receiver<Vec<Item>>,
    reorder: Reorder,
    /// Due to be written, in order.
    ready: Vec<Item>,
    /// Written, and to be settled beside the next write.
    written: Vec<(EntryId, Fate)>,
}

impl Lane {
    async fn run(mut self) {
        let mut ended = false;
        while !self.shared.abort.is_cancelled() && self.term.lease.is_held() {
            ended = self.admit_waiting() || ended;
            self.reorder.release_due(Instant::now(), &mut self.ready);
            if ended {
                self.reorder.release_all(&mut self.ready);
            }
            let more = !self.ready.is_empty();
            if (more || !self.written.is_empty()) && self.write_and_settle().await.is_none() {
                return;
            }
            if !more && ended {
                return;
            }
            if !more {
                self.wait().await;
            }
        }
    }

    /// Takes what the intake has ready, up to a batch; true if nothing will follow.
    fn admit_waiting(&mut self) -> bool {
        while self.ready.len() < self.shared.settings.batch_rows
            && self.ready.iter().map(|item| item.size).sum::<usize>() < self.shared.settings.batch_bytes
        {
            match self.batches.try_recv() {
                Ok(items) => self.admit(items),
                Err(mpsc::error::TryRecvError::Empty) => return false,
                Err(mpsc::error::TryRecvError::Disconnected) => return true,
            }
        }
        false
    }

    /// The first items that are due, as many as one statement may hold and at least one.
    fn take_batch(&mut self) -> Vec<Item> {
        let mut bytes = 0;
        let fitting = self.ready.iter().take(self.shared.settings.batch_rows).take_while(|item| {
            bytes += item.size;
            bytes <= self.shared.settings.batch_bytes
        });
        let rest = self.ready.split_off(fitting.count().max(1).min(self.ready.len()));
        std::mem::replace(&mut self.ready, rest)
    }

    async fn wait(&mut self) {
        let due = self.reorder.next_deadline();
        let until_due = async {
            match due {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            items = self.batches.recv() => if let Some(items) = items { self.admit(items) },
            () = until_due => {}
            () = self.shared.abort.cancelled() => {}
        }
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

    /// Writes what is due while what was written before is settled. `None` if the worker is leaving
    /// before both were done.
    async fn write_and_settle(&mut self) -> Option<()> {
        let mut batch = self.take_batch();
        // Events of one feature arrive in order; across features the buffer mixes them.
        batch.sort_by_key(|item| item.id);
        let written = std::mem::take(&mut self.written);
        // On the heap, as it would be the most of a lane's size even while it waits.
        let writing = Box::pin(self.write(batch));
        let (fates, settled) = tokio::join!(writing, self.settle(written));
        self.written = fates?;
        settled
    }
}
