//! Take-over: what was delivered and is in nobody's hand comes into the lane, oldest first.
//!
//! It is one step, used everywhere: when a shard is taken, after a lost reply, when more is pending
//! than is held, and from time to time. The lane's reader does it itself, between two reads, so that
//! it never takes what a reply under way is bringing.
//!
//! An entry whose handling ends the process must not take replica after replica with it. So the
//! delivery counter of a taken-over entry is raised just before it is prepared (decoded, validated,
//! encoded) and put back before it is written: only a process that dies in between leaves a mark.
//! Those with a mark are prepared one at a time, with nothing else being prepared in the process.

use rustc_hash::FxHashSet;

use super::Item;
use super::intake::Intake;
use crate::event::{EntryId, Reason, Rejection};
use crate::failure::{Class, Failure};
use crate::stream::entry::Entry;
use crate::stream::pending::Delivered;

/// Deliveries of an entry that was read once and never ended a process.
const UNMARKED: u64 = 1;

impl Intake {
    /// Answers how many entries it has found.
    pub(super) async fn take_over(&mut self) -> Result<usize, Failure> {
        let in_hand = self.term.held.snapshot();
        let gone = self.reader.claim_all().await?;
        self.note_gone(&gone, &in_hand);
        let mut found = self.reader.own_pending().await?;
        found.retain(|delivered| !in_hand.contains(&delivered.id));
        if !found.is_empty() {
            tracing::info!(shard = self.shard, entries = found.len(), "taking over pending entries");
        }
        let mut rest = found.as_slice();
        while let Some(first) = rest.first().filter(|_| self.goes_on()) {
            let is_marked = first.deliveries > UNMARKED;
            let alike = rest.iter().take_while(|next| (next.deliveries > UNMARKED) == is_marked).count();
            let most = if is_marked { 1 } else { self.count.next() };
            let (page, after) = rest.split_at(alike.min(most));
            rest = after;
            self.take_page(page, is_marked).await?;
        }
        Ok(found.len())
    }

    async fn take_page(&mut self, page: &[Delivered], is_marked: bool) -> Result<(), Failure> {
        self.term.pulse.intake();
        let ids: Vec<EntryId> = page.iter().map(|delivered| delivered.id).collect();
        let (mut entries, mut gone) = (Vec::with_capacity(ids.len()), Vec::new());
        for found in self.reader.fetch(&ids).await? {
            match found {
                Ok(entry) => entries.push(entry),
                Err(id) => gone.push(id),
            }
        }
        if !gone.is_empty() {
            self.shared.stream.ack(self.shard, &gone, || self.term.lease.is_held()).await?;
            self.note_gone(&gone, &FxHashSet::default());
        }
        self.count.learn(&entries);
        self.shared.meter.reclaimed(entries.len());
        let most = self.shared.settings.max_deliveries;
        let items = match page {
            [only] if only.deliveries >= most => {
                self.hold(&entries);
                Some(entries.into_iter().map(|entry| past_limit(entry, most)).collect())
            }
            _ => self.prepare(entries, page, is_marked).await?,
        };
        if let Some(items) = items {
            self.pass_on(items).await;
        }
        Ok(())
    }

    /// Raises the counters only when its turn has come, and puts them back before it is over: an
    /// entry that merely waits gets no mark from one that ends the process meanwhile.
    async fn prepare(
        &mut self,
        entries: Vec<Entry>,
        page: &[Delivered],
        alone: bool,
    ) -> Result<Option<Vec<Item>>, Failure> {
        let preparing = self.shared.preparing.clone();
        let (_alone, _beside) = match alone {
            true => (Some(preparing.write().await), None),
            false => (None, Some(preparing.read().await)),
        };
        let raised: Vec<Delivered> =
            page.iter().map(|before| Delivered { deliveries: before.deliveries + 1, ..*before }).collect();
        if let Err(failure) = self.reader.mark_deliveries(&raised).await {
            // Perhaps only the answer was lost.
            self.put_back(page).await?;
            return Err(failure);
        }
        self.hold(&entries);
        let items = self.judge(entries).await;
        self.put_back(page).await?;
        Ok(items)
    }

    /// An outage in this very moment must leave no mark on healthy entries: it is tried until it
    /// works, on a new connection where need be.
    async fn put_back(&mut self, page: &[Delivered]) -> Result<(), Failure> {
        let mut retry = self.shared.settings.retry.start();
        loop {
            let mut returns = self.shared.stream.returns();
            let Err(failure) = self.reader.mark_deliveries(page).await else { return Ok(()) };
            if failure.class == Class::GroupMissing {
                // The counters went with the group. Made again by the next read, it delivers anew.
                return Ok(());
            }
            self.shared.meter.retried(&failure);
            if !retry.pause_unless(returns.changed(), &self.shared.abort).await {
                return Err(failure);
            }
            if !self.reader.is_connected() {
                // An error shows again with the next attempt.
                let _ = self.reader.open().await;
            }
        }
    }

    /// Entries that were deleted while they were pending: nothing can be done but to say so.
    /// One that is in hand is still written and settled, so it is not lost.
    fn note_gone(&self, gone: &[EntryId], in_hand: &FxHashSet<EntryId>) {
        let gone: Vec<EntryId> = gone.iter().copied().filter(|id| !in_hand.contains(id)).collect();
        for id in &gone {
            tracing::warn!(shard = self.shard, entry = %id, "lost: somebody deleted this entry while it was pending");
        }
        self.shared.meter.read(gone.len());
        self.shared.meter.lost(gone.len());
    }
}

fn past_limit(entry: Entry, most: u64) -> Item {
    let detail = format!("preparing it has ended the process {most} times");
    let verdict = Err(Box::new(Rejection::new(Reason::DeliveryLimit, detail)));
    Item { id: entry.id, size: entry.size(), verdict, traced: entry.traced }
}
