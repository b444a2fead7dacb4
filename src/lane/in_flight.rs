//! The batches of one lane that are being written or settled, and whose features wait.
//!
//! While a batch is written the next one may go out beside it, so that a single busy shard keeps
//! PostgreSQL as busy as many. No feature is in two of them: its events stay in order. A batch whose
//! write is answered leaves its features free and is settled beside the writing of the next.

use std::hash::{Hash, Hasher};
use std::pin::Pin;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rustc_hash::{FxHashSet, FxHasher};

use super::Item;
use super::write::{Commit, Fates};

/// Batches that are being written, at the most.
const MOST_WRITING: usize = 2;
/// With those that are being settled: when Redis does not answer, nothing more is written.
const MOST: usize = 3;

/// The end of one step of one batch; without a result if the worker is leaving or the lease is over.
enum Step {
    Written(Vec<u64>, Option<Fates>),
    Settled(Option<()>),
}

pub(super) struct InFlight<'a> {
    commit: &'a Commit,
    steps: FuturesUnordered<Pin<Box<dyn Future<Output = Step> + Send + 'a>>>,
    writing: usize,
    /// Hashes of the ids of what is being written. Two with the same hash merely wait for each other.
    features: FxHashSet<u64>,
}

impl<'a> InFlight<'a> {
    pub(super) fn new(commit: &'a Commit) -> Self {
        Self { commit, steps: FuturesUnordered::new(), writing: 0, features: FxHashSet::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    pub(super) fn is_writing(&self) -> bool {
        self.writing > 0
    }

    /// Whether one more batch may be written.
    pub(super) fn has_room(&self) -> bool {
        self.steps.len() < MOST && self.writing < MOST_WRITING
    }

    /// Whether an event of this feature is being written.
    pub(super) fn holds_up(&self, item: &Item) -> bool {
        !self.features.is_empty() && hash(item).is_some_and(|feature| self.features.contains(&feature))
    }

    /// Begins to write a batch, none of which is held up.
    pub(super) fn start(&mut self, batch: Vec<Item>) {
        let mut features: Vec<u64> = batch.iter().filter_map(hash).collect();
        features.retain(|feature| self.features.insert(*feature));
        self.writing += 1;
        let commit = self.commit;
        self.steps.push(Box::pin(async move { Step::Written(features, commit.write(batch).await) }));
    }

    /// Waits for the end of the next step; for ever if there is none. `None` if the worker is leaving
    /// or the lease is over.
    pub(super) async fn step(&mut self) -> Option<()> {
        match self.steps.next().await {
            Some(Step::Written(features, fates)) => {
                self.writing -= 1;
                for feature in features {
                    self.features.remove(&feature);
                }
                let (commit, fates) = (self.commit, fates?);
                self.steps.push(Box::pin(async move { Step::Settled(commit.settle(fates).await) }));
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
