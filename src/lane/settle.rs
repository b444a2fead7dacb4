//! The end of a batch: acknowledgements, dead letters, counts. Only answered writes come here.

use rustc_hash::FxHashMap;
use tracing::Instrument;

use crate::event::{EntryId, Outcome, Rejection};
use crate::failure::Failure;
use crate::metrics::Trouble;
use crate::stream::settle::Burial;
use crate::trace::Traced;

use super::write::{Commit, Fate, Fates};

/// The entries of a batch that belong to traces of their producers; mostly none.
pub(super) type TracedEntries = FxHashMap<EntryId, Box<Traced>>;

impl Commit {
    /// Settles every entry of a batch, trying until Redis answers; `None` if the worker is
    /// leaving or the lease is over.
    pub(super) async fn settle(&self, fates: Fates, traced: TracedEntries) -> Option<()> {
        let (mut settled, mut dead) = (Vec::with_capacity(fates.len()), Vec::new());
        for (id, fate) in &fates {
            match fate {
                Fate::Settled(outcome) => settled.push((*id, *outcome)),
                Fate::Dead(rejection) => dead.push((*id, &**rejection)),
            }
        }
        let settling = async {
            self.acknowledge(&settled).await?;
            self.bury(&dead, fates.len()).await
        };
        settling.instrument(tracing::debug_span!("settle")).await?;
        tracing::Span::current().record("batch.dead_letters", dead.len());
        self.end_traces(&fates, traced);
        Some(())
    }

    fn end_traces(&self, fates: &Fates, mut traced: TracedEntries) {
        if traced.is_empty() {
            return;
        }
        let stream = self.shared.stream.keys().events(self.shard);
        for (id, fate) in fates {
            let Some(entry) = traced.remove(id) else { continue };
            let (outcome, reason) = match fate {
                Fate::Settled(outcome) => (*outcome, None),
                Fate::Dead(rejection) => (Outcome::DeadLettered, Some(rejection.reason)),
            };
            entry.settled(*id, stream.clone(), outcome.as_str(), reason);
        }
    }

    async fn acknowledge(&self, settled: &[(EntryId, Outcome)]) -> Option<()> {
        let ids: Vec<EntryId> = settled.iter().map(|(id, _)| *id).collect();
        self.persist(|| self.shared.stream.ack(self.shard, &ids, || self.term.lease.is_held())).await?;
        self.shared.meter.settled(settled.iter().map(|(_, outcome)| *outcome));
        self.term.held.remove(&ids);
        Some(())
    }

    async fn bury(&self, dead: &[(EntryId, &Rejection)], batch: usize) -> Option<()> {
        if dead.is_empty() {
            return Some(());
        }
        let burials = self.persist(|| self.shared.stream.bury(self.shard, dead, || self.term.lease.is_held())).await?;
        let mut buried = 0;
        for ((id, rejection), burial) in dead.iter().zip(burials) {
            match burial {
                Burial::Written | Burial::SettledElsewhere => {
                    self.shared.meter.dead_lettered(rejection.reason);
                    buried += 1;
                }
                Burial::Gone => {
                    tracing::warn!(shard = self.shard, entry = %id, "lost: deleted before it became a dead letter");
                    self.shared.meter.lost(1);
                }
                Burial::GroupGone => self.shared.meter.released(1),
            }
            self.term.held.remove(&[*id]);
        }
        if let Some((first, rejection)) = dead.first() {
            // One line a batch, however many there are; the dead letters themselves say the rest.
            let (reason, stream) = (rejection.reason.as_str(), self.shared.stream.keys().dead(self.shard));
            tracing::warn!(shard = self.shard, count = buried, of = batch, %first, reason, stream, "dead letters");
        }
        Some(())
    }

    /// Tries until Redis answers: what is written must be settled.
    async fn persist<T, F>(&self, work: impl Fn() -> F) -> Option<T>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let mut trouble = Trouble::none(&self.shared.meter);
        let mut retry = self.shared.settings.retry.start();
        loop {
            if !self.term.lease.is_held() {
                return None;
            }
            let mut returns = self.shared.stream.returns();
            let answer = tokio::select! {
                answer = work() => answer,
                () = self.shared.abort.cancelled() => return None,
            };
            match answer {
                Ok(answer) => {
                    trouble.end(self.shard);
                    return Some(answer);
                }
                Err(_) if !self.term.lease.is_held() => return None,
                Err(failure) => {
                    trouble.add(&failure, self.shard);
                    self.term.pulse.lane();
                    retry.pause_unless(returns.changed(), &self.shared.abort).await.then_some(())?;
                }
            }
        }
    }
}
