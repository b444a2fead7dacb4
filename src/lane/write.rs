//! One batch against the database: ledger, coalescing and guard in one statement, with the batches of
//! other lanes or alone, and what to do when the database refuses.
//!
//! Comes in: judged items in entry order. Goes out: the fate of each. A row that the database
//! refuses costs itself only: the batch is halved until the row is found. A server that is away
//! costs time only.

use std::sync::Arc;

use crate::event::{EntryId, Event, Outcome, Reason, Rejection};
use crate::failure::{Class, Failure};
use crate::metrics::Trouble;
use crate::store::statement::Stored;

use super::coalesce::{self, Group};
use super::group_commit::{Refused, Request};
use super::{Item, Shared, Term, WORTH_A_STATEMENT};

/// How often the same work may fail while the server takes other rows.
const MOST_SUSPECT_FAILURES: u32 = 3;

/// By place in the batch.
type Outcomes = Vec<(usize, Outcome)>;

/// What becomes of one entry.
#[derive(Debug)]
pub(super) enum Fate {
    /// The write statement has decided.
    Settled(Outcome),
    /// It goes to the dead-letter stream.
    Dead(Box<Rejection>),
}

impl Fate {
    fn is_dead(&self) -> bool {
        matches!(self, Self::Dead(_))
    }
}

/// Every entry of a batch, and what becomes of it.
pub(super) type Fates = Vec<(EntryId, Fate)>;

/// Writes and settles the batches of one lane.
pub(super) struct Commit {
    pub(super) shard: u16,
    pub(super) shared: Shared,
    pub(super) term: Term,
}

impl Commit {
    /// The fate of every item; `None` if the worker is leaving or the lease is over.
    pub(super) async fn write(&self, batch: Vec<Item>) -> Option<Fates> {
        if batch.is_empty() {
            return Some(Vec::new());
        }
        let (mut ids, mut events, mut bad) = (Vec::new(), Vec::with_capacity(batch.len()), Vec::new());
        for item in batch {
            match item.verdict {
                Ok(event) => {
                    ids.push(item.id);
                    events.push(event);
                }
                Err(rejection) => bad.push((item.id, rejection)),
            }
        }
        #[cfg(feature = "crash-test")]
        assert!(events.iter().all(|event| event.feature_id != "hexlane-panic-test"), "as a test wants it");
        // Asked before the batch is written, and after the answer of every earlier batch with one of
        // its features.
        let stored = self.stored_before(&bad).await?;
        let events = Arc::new(events);
        let mut fates = FateOfEach(events.iter().map(|_| None).collect());
        self.write_good(&events, &mut fates).await?;
        let good = ids.into_iter().zip(&*events).zip(fates.0);
        let good: Vec<(EntryId, &Event, Fate)> = good
            // Every event has a fate; were one missing, its entry would stay pending and come again.
            .filter_map(|((id, event), fate)| Some((id, event, fate?)))
            .collect();
        let bad: Fates = bad
            .into_iter()
            .zip(stored)
            .map(|((id, rejection), stored)| (id, judge_bad(id, rejection, stored, &good)))
            .collect();
        let fates: Fates = good.into_iter().map(|(id, _, fate)| (id, fate)).chain(bad).collect();
        let committed = fates.iter().filter(|(_, fate)| !fate.is_dead()).map(|(id, _)| *id);
        self.shared.meter.committed(fates.len(), committed, self.shared.stream.server_now_ms());
        Some(fates)
    }

    /// What is stored about the features of bad events; one query, none for a batch without any.
    async fn stored_before(&self, bad: &[(EntryId, Box<Rejection>)]) -> Option<Vec<Stored>> {
        let mut stored = vec![Stored::default(); bad.len()];
        let (places, asked): (Vec<usize>, Vec<(&str, Option<&str>)>) = bad
            .iter()
            .enumerate()
            .filter(|(_, (_, rejection))| rejection.reason.is_about_geometry() && rejection.key.is_some())
            .filter_map(|(place, (_, rejection))| {
                Some((place, (rejection.feature_id.as_deref()?, rejection.event_id.as_deref())))
            })
            .unzip();
        if asked.is_empty() {
            return Some(stored);
        }
        let mut trouble = Trouble::none(&self.shared.meter);
        let mut retry = self.shared.settings.retry.start();
        loop {
            match self.unless_aborted(self.shared.store.look_up(&asked)).await? {
                Ok(found) => {
                    trouble.end(self.shard);
                    for (place, found) in places.into_iter().zip(found) {
                        stored[place] = found;
                    }
                    return Some(stored);
                }
                Err(failure) => {
                    trouble.add(&failure, self.shard);
                    self.term.pulse.lane();
                    retry.pause(&self.shared.abort).await.then_some(())?;
                }
            }
        }
    }

    async fn write_good(&self, events: &Arc<Vec<Event>>, fates: &mut FateOfEach) -> Option<()> {
        let coalesce::Copies { firsts, mut waiting } = coalesce::copies(events);
        let mut candidates = firsts;
        while !candidates.is_empty() {
            self.write_candidates(events, &candidates, fates).await?;
            // A copy settles with its first; if that is a dead letter, the next copy takes its place.
            let mut next = Vec::new();
            for first in candidates {
                let Some(mut copies) = waiting.remove(&first) else { continue };
                if fates.is_dead(first) {
                    let heir = copies.remove(0);
                    if !copies.is_empty() {
                        waiting.insert(heir, copies);
                    }
                    next.push(heir);
                } else {
                    for copy in copies {
                        fates.set(copy, Fate::Settled(Outcome::Duplicate));
                    }
                }
            }
            candidates = next;
        }
        Some(())
    }

    /// Writes groups of features, a large batch in several parts, for as many writers: a worker with
    /// one busy shard would use few connections. No feature is in two of them.
    async fn write_candidates(
        &self,
        events: &Arc<Vec<Event>>,
        candidates: &[usize],
        fates: &mut FateOfEach,
    ) -> Option<()> {
        let mut groups = coalesce::by_feature(events, candidates);
        let statements = (groups.len() / WORTH_A_STATEMENT).clamp(1, self.shared.commits.writers());
        let each = groups.len().div_ceil(statements).max(1);
        let mut parts = Vec::with_capacity(statements);
        while !groups.is_empty() {
            let rest = groups.split_off(each.min(groups.len()));
            parts.push(self.write_groups(events, std::mem::replace(&mut groups, rest)));
        }
        for part in futures_util::future::join_all(parts).await {
            for (place, fate) in part? {
                fates.set(place, fate);
            }
        }
        Some(())
    }

    /// Halves the groups for as long as the database refuses.
    async fn write_groups(&self, events: &Arc<Vec<Event>>, groups: Vec<Group>) -> Option<Vec<(usize, Fate)>> {
        let mut fates = Vec::with_capacity(groups.len());
        let mut parts = vec![groups];
        while let Some(mut part) = parts.pop().filter(|part| !part.is_empty()) {
            let refusal = match self.attempt(events, &part).await? {
                Ok(outcomes) => {
                    fates.extend(outcomes.into_iter().map(|(place, outcome)| (place, Fate::Settled(outcome))));
                    continue;
                }
                Err(refusal) => refusal,
            };
            if part.len() > 1 {
                let second = part.split_off(part.len() / 2);
                parts.extend([second, part]);
                continue;
            }
            let Some(mut group) = part.pop() else { continue };
            let newest = group.members.remove(0);
            if group.members.is_empty() {
                fates.push((newest, Fate::Dead(refused(&events[newest], &refusal))));
            } else if events[newest].event_id.is_none() && !has_event_ids(events, &group) {
                // Only the newest was sent, so it is the one that was refused.
                fates.push((newest, Fate::Dead(refused(&events[newest], &refusal))));
                parts.push(vec![group]);
            } else {
                // The ledger decided which of them was written: ask for each alone, newest first.
                parts.push(vec![group]);
                parts.push(vec![Group { members: vec![newest] }]);
            }
        }
        Some(fates)
    }

    /// Writes one part until the database has answered it: with the outcomes, or with a refusal.
    async fn attempt(&self, events: &Arc<Vec<Event>>, part: &[Group]) -> Option<Result<Outcomes, Failure>> {
        let mut alone = false;
        let mut trouble = Trouble::none(&self.shared.meter);
        let mut retry = self.shared.settings.retry.start();
        let mut suspect = 0;
        loop {
            let failure = match self.unless_aborted(self.send(events, part, alone)).await? {
                Ok(outcomes) => {
                    trouble.end(self.shard);
                    self.shared.write_health.succeeded();
                    self.term.last_write.note(self.shared.write_health.good_time());
                    return Some(Ok(outcomes));
                }
                Err(Refused { failure, shared: true }) if !failure.is_silence() => {
                    // Whose fault it was, the next attempt will tell; that of a row is not the server's.
                    if failure.class != Class::Row {
                        self.shared.meter.retried(&failure);
                    }
                    alone = true;
                    continue;
                }
                Err(Refused { failure, .. }) if failure.class == Class::Row => return Some(Err(failure)),
                // Whatever went wrong, this worker has no say in it any more.
                Err(_) if !self.term.lease.is_held() => return None,
                Err(refused) => {
                    alone |= refused.shared;
                    refused.failure
                }
            };
            trouble.add(&failure, self.shard);
            self.shared.write_health.failed();
            if failure.class == Class::Suspect {
                let at_once = self.until_rows_are_taken(&mut trouble).await?;
                // A crash of one backend takes them all down for a moment; but a server that is too
                // slow, or out of memory, for other rows as well is not to be blamed on these.
                suspect = if at_once || failure.is_silence() { suspect + 1 } else { 0 };
                if suspect >= MOST_SUSPECT_FAILURES {
                    return Some(Err(failure));
                }
            }
            self.term.pulse.lane();
            retry.pause(&self.shared.abort).await.then_some(())?;
        }
    }

    /// An outage is nobody's fault: only failures with a server around them that takes other rows
    /// count. Waits until it does; whether it did at once.
    async fn until_rows_are_taken(&self, trouble: &mut Trouble<'_>) -> Option<bool> {
        let mut retry = self.shared.settings.retry.start();
        let mut at_once = true;
        while let Err(failure) = self.unless_aborted(self.shared.store.rehearse()).await? {
            at_once = false;
            trouble.add(&failure, self.shard);
            self.term.pulse.lane();
            retry.pause(&self.shared.abort).await.then_some(())?;
        }
        Some(at_once)
    }

    async fn send(&self, events: &Arc<Vec<Event>>, part: &[Group], alone: bool) -> Result<Outcomes, Refused> {
        let with_ledger = part.iter().any(|group| has_event_ids(events, group));
        let places: Vec<usize> = if with_ledger {
            let mut members: Vec<usize> = part.iter().flat_map(|group| group.members.iter().copied()).collect();
            // In entry order, because of equal keys the first one stays.
            members.sort_unstable();
            members
        } else {
            part.iter().filter_map(|group| group.members.first().copied()).collect()
        };
        let (lease, abort) = (self.term.lease.clone(), self.shared.abort.clone());
        let bytes = places.iter().map(|&place| events[place].size()).sum();
        let request = Request {
            events: events.clone(),
            places: places.clone(),
            bytes,
            with_ledger,
            alone,
            lease,
            abort,
            pulse: self.term.pulse.clone(),
            span: tracing::Span::current(),
        };
        let written = self.shared.commits.write(request).await?;
        let mut outcomes: Outcomes = places.into_iter().zip(written).collect();
        if !with_ledger {
            let superseded = part.iter().flat_map(|group| group.members.iter().skip(1));
            outcomes.extend(superseded.map(|&place| (place, Outcome::Superseded)));
        }
        Ok(outcomes)
    }

    /// `None` if the lease is over, or the worker is leaving at once. The statement then runs to its end on the server
    /// and its entries stay pending: what it wrote, the guard knows.
    async fn unless_aborted<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        if !self.term.lease.is_held() {
            return None;
        }
        tokio::select! {
            answer = work => Some(answer),
            () = self.shared.abort.cancelled() => None,
        }
    }
}

/// By place in the batch.
struct FateOfEach(Vec<Option<Fate>>);

impl FateOfEach {
    fn set(&mut self, place: usize, fate: Fate) {
        debug_assert!(self.0[place].is_none(), "an event has one fate");
        self.0[place] = Some(fate);
    }

    fn is_dead(&self, place: usize) -> bool {
        self.0[place].as_ref().is_some_and(Fate::is_dead)
    }
}

fn has_event_ids(events: &[Event], group: &Group) -> bool {
    group.members.iter().any(|&place| events[place].event_id.is_some())
}

fn refused(event: &Event, refusal: &Failure) -> Box<Rejection> {
    let mut rejection = Rejection::new(Reason::RejectedByDatabase, &refusal.text);
    rejection.feature_id = Some(event.feature_id.clone());
    rejection.key = Some(event.key);
    rejection.event_id = event.event_id.clone();
    // `io`, where the row ended its connection again and again, is no SQLSTATE.
    rejection.sqlstate = Some(refusal.code.clone()).filter(|code| code.len() == 5);
    Box::new(rejection)
}

/// Stale before invalid: a bad event is judged as if the lane took one event at a time, against
/// what was stored before the batch and the good events of the batch that entered before it.
fn judge_bad(id: EntryId, rejection: Box<Rejection>, stored: Stored, good: &[(EntryId, &Event, Fate)]) -> Fate {
    let (Some(feature_id), Some(key)) = (&rejection.feature_id, rejection.key) else {
        return Fate::Dead(rejection);
    };
    if !rejection.reason.is_about_geometry() {
        return Fate::Dead(rejection);
    }
    let mut earlier = good
        .iter()
        .filter(|(other, event, fate)| *other < id && event.feature_id == *feature_id && !fate.is_dead())
        .map(|(_, event, _)| event);
    let same_id = |event: &&&Event| rejection.event_id.is_some() && event.event_id == rejection.event_id;
    if stored.event_id_known || earlier.clone().any(|event| same_id(&event)) {
        Fate::Settled(Outcome::Duplicate)
    } else if stored.key.is_some_and(|stored| stored >= key) || earlier.any(|event| event.key >= key) {
        Fate::Settled(Outcome::Stale)
    } else {
        Fate::Dead(rejection)
    }
}
