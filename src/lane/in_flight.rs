//! The batches of one lane that are being written or settled, and whose features wait.
//!
//! While a batch is written the next one may go out beside it, so that a single busy shard keeps
//! PostgreSQL as busy as many. No feature is in two of them: its events stay in order. A batch whose
//! write is answered leaves its features free and is settled beside the writing of the next.

use std::hash::{Hash, Hasher};
use std::pin::Pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rustc_hash::{FxHashSet, FxHasher};
use tokio::time::Instant;
use tracing::Instrument;

use super::Item;
use super::settle::TracedEntries;
use super::write::{Commit, Fates};

/// Batches that are being written, at the most.
const MOST_WRITING: usize = 2;
/// With those that are being settled: when Redis does not answer, nothing more is written.
const MOST: usize = 3;

/// A batch that takes longer waits for more than a free writer: for a row that somebody has locked.
const SLOW: Duration = Duration::from_secs(5);

/// The end of one step of one batch; without a result if the worker is leaving or the lease is over.
enum Step {
    Written(Writing, Option<Fates>),
    Settled(Option<()>),
}

/// A batch that is being written.
struct Writing {
    started: Instant,
    /// Hashes of the ids of its features. Two with the same hash merely wait for each other.
    features: Vec<u64>,
    /// Until it is settled.
    span: tracing::Span,
    /// Of its entries, those that belong to a trace.
    traced: TracedEntries,
}

pub(super) struct InFlight<'a> {
    commit: &'a Commit,
    steps: FuturesUnordered<Pin<Box<dyn Future<Output = Step> + Send + 'a>>>,
    /// When each batch that is being written was started.
    started: Vec<Instant>,
    /// The features of all of them.
    features: FxHashSet<u64>,
}

impl<'a> InFlight<'a> {
    pub(super) fn new(commit: &'a Commit) -> Self {
        Self { commit, steps: FuturesUnordered::new(), started: Vec::new(), features: FxHashSet::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    pub(super) fn is_writing(&self) -> bool {
        !self.started.is_empty()
    }

    /// Whether one more batch may be written.
    pub(super) fn has_room(&self) -> bool {
        self.steps.len() < MOST && self.started.len() < MOST_WRITING
    }

    /// From when on what is being written counts as slow, if that is to come and one more may follow.
    pub(super) fn slow_from(&self, now: Instant) -> Option<Instant> {
        self.started.first().map(|oldest| *oldest + SLOW).filter(|slow| self.has_room() && *slow > now)
    }

    pub(super) fn is_slow(&self, now: Instant) -> bool {
        self.started.first().is_some_and(|oldest| now >= *oldest + SLOW)
    }

    /// Whether an event of this feature is being written.
    pub(super) fn holds_up(&self, item: &Item) -> bool {
        !self.features.is_empty() && hash(item).is_some_and(|feature| self.features.contains(&feature))
    }

    /// Begins to write a batch, none of which is held up.
    pub(super) fn start(&mut self, mut batch: Vec<Item>) {
        let traced = batch.iter_mut().filter_map(|item| Some((item.id, item.traced.take()?))).collect();
        let mut features: Vec<u64> = batch.iter().filter_map(hash).collect();
        features.retain(|feature| self.features.insert(*feature));
        let commit = self.commit;
        let span = tracing::debug_span!(
            parent: None, "batch", lane.shard = commit.shard, batch.events = batch.len(),
            batch.dead_letters = tracing::field::Empty
        );
        let work = tracing::debug_span!(parent: &span, "write");
        let writing = Writing { started: Instant::now(), features, span, traced };
        self.started.push(writing.started);
        let step = async move { Step::Written(writing, commit.write(batch).await) };
        self.steps.push(Box::pin(step.instrument(work)));
    }

    /// Waits for the end of the next step; for ever if there is none. `None` if the worker is leaving
    /// or the lease is over.
    pub(super) async fn step(&mut self) -> Option<()> {
        match self.steps.next().await {
            Some(Step::Written(written, fates)) => {
                if let Some(place) = self.started.iter().position(|started| *started == written.started) {
                    self.started.remove(place);
                }
                for feature in &written.features {
                    self.features.remove(feature);
                }
                let (commit, fates) = (self.commit, fates?);
                let step = async move { Step::Settled(commit.settle(fates, written.traced).await) };
                self.steps.push(Box::pin(step.instrument(written.span)));
                Some(())
            }
            Some(Step::Settled(settled)) => settled,
            None => std::future::pending().await,
        }
    }
}

fn hash(item: &Item) -> Option<u64> {
    let mut hasher = FxHasher::default();
    item.feature_id()?.hash(&mut hasher);
    Some(hasher.finish())
}
