//! The last step: what was settled long enough ago leaves the stream.
//!
//! Entries stay for `--retention` after they were settled, because a database that loses committed
//! rows (a promoted standby, a restored backup) gets them back from here. That time is counted from
//! write to write, without the time in which writes failed ([`WriteHealth::good_time`]): neither an
//! outage nor the age that a backlog has by its end uses up what their repair needs.
//! A lane that is new to its shard does not know when its entries were settled, and takes them to be
//! settled when it came.
//!
//! [`WriteHealth::good_time`]: crate::fleet::yielding::WriteHealth::good_time

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::{Shared, Term};
use crate::event::EntryId;
use crate::failure::Failure;

/// Marks within one retention; what is removed is late by one part at the most.
const PARTS: u32 = 8;
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A shard that has been idle for so long is not waiting for the database; and whoever repairs one has
/// stopped the workers by then.
const IDLE: Duration = Duration::from_secs(3600);
/// More than within one retention, for as long as no write makes the first ones old enough.
const MOST_MARKS: usize = 4 * PARTS as usize;

/// When the database answered the shard's last write, in good time.
#[derive(Debug, Default)]
pub struct LastWrite(AtomicU64);

impl LastWrite {
    /// A write has been answered now.
    pub fn note(&self, good_time: Duration) {
        self.0.store(u64::try_from(good_time.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

/// Trims the shard for as long as it is polled. What fails is tried again next time.
pub(super) async fn run(shard: u16, shared: &Shared, term: &Term) -> Infallible {
    let pause = (shared.settings.retention / PARTS).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
    let (mut marks, mut idle) = (Marks::default(), Idle { since: Instant::now(), last_write: Duration::ZERO });
    let mut works = true;
    loop {
        // So that the lanes of a worker do not ask all at once.
        tokio::time::sleep(pause.mul_f64(0.75 + fastrand::f64() / 4.0)).await;
        match look(shard, shared, term, &mut marks, &mut idle).await {
            Ok(()) => works = true,
            Err(failure) => {
                shared.meter.retried(&failure);
                if std::mem::replace(&mut works, false) {
                    tracing::warn!(shard, error = %failure, "cannot trim; settled entries stay until this ends");
                }
            }
        }
    }
}

/// For how long there has been nothing to write.
struct Idle {
    since: Instant,
    last_write: Duration,
}

impl Idle {
    fn lasts(&mut self, now: Instant, last_write: Duration, holds_work: bool) -> Duration {
        if holds_work || last_write != self.last_write {
            *self = Self { since: now, last_write };
        }
        now - self.since
    }
}

async fn look(shard: u16, shared: &Shared, term: &Term, marks: &mut Marks, idle: &mut Idle) -> Result<(), Failure> {
    let last_write = term.last_write.get();
    let bound = marks.settled_before(last_write.checked_sub(shared.settings.retention));
    let mut removed = 0;
    let found = loop {
        if !term.lease.is_held() {
            return Ok(());
        }
        let found = shared.stream.trim(shard, bound).await?;
        removed += found.removed;
        if !found.more {
            break found;
        }
    };
    marks.add(shared.write_health.good_time(), found.settled, shared.settings.retention / PARTS);
    if removed > 0 {
        tracing::debug!(shard, removed, below = %bound, "trimmed");
    }
    let lasts = idle.lasts(Instant::now(), term.last_write.get(), !term.held.is_empty());
    // Where nothing can be published, no write would ever make room again.
    if lasts >= IDLE || found.is_full && !lasts.is_zero() {
        shared.store.probe_write().await?;
        term.last_write.note(shared.write_health.good_time());
        idle.last_write = term.last_write.get();
    }
    Ok(())
}

/// Up to where a shard was settled, and when that was seen.
#[derive(Debug, Default)]
struct Marks(VecDeque<(Duration, EntryId)>);

impl Marks {
    /// The id below which everything was settled at that time, `0-0` if nothing is known of it.
    fn settled_before(&mut self, time: Option<Duration>) -> EntryId {
        let Some(time) = time else { return EntryId::default() };
        while self.0.get(1).is_some_and(|(seen, _)| *seen <= time) {
            self.0.pop_front();
        }
        self.0.front().filter(|(seen, _)| *seen <= time).map(|(_, id)| *id).unwrap_or_default()
    }

    fn add(&mut self, now: Duration, settled: EntryId, apart: Duration) {
        // The group was set back: what comes again is settled anew.
        self.0.retain(|(_, id)| *id <= settled);
        if self.0.back().is_some_and(|(seen, id)| *id == settled || now.saturating_sub(*seen) < apart) {
            return;
        }
        if self.0.len() == MOST_MARKS {
            self.0.pop_back();
        }
        self.0.push_back((now, settled));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(ms: u64) -> EntryId {
        EntryId { ms, seq: 0 }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_probe_does_not_end_an_idle_time_and_a_write_does() {
        let start = Instant::now();
        let mut idle = Idle { since: start, last_write: at(0) };
        assert_eq!(idle.lasts(start + at(10), at(0), false), at(10));
        idle.last_write = at(10);
        assert_eq!(idle.lasts(start + at(20), at(10), false), at(20), "probed at 10");
        assert_eq!(idle.lasts(start + at(30), at(29), false), at(0), "written at 29");
        assert_eq!(idle.lasts(start + at(40), at(29), false), at(10));
        assert_eq!(idle.lasts(start + at(50), at(29), true), at(0), "something to write is in hand");
    }

    #[test]
    fn what_was_settled_is_known_for_the_times_at_which_it_was_seen() {
        let mut marks = Marks::default();
        assert_eq!(marks.settled_before(Some(at(9))), id(0));
        marks.add(at(10), id(100), at(1));
        marks.add(at(20), id(200), at(1));
        marks.add(at(30), id(200), at(1));
        assert_eq!(marks.settled_before(None), id(0), "nothing is as old as that");
        assert_eq!(marks.settled_before(Some(at(9))), id(0));
        assert_eq!(marks.settled_before(Some(at(19))), id(100));
        assert_eq!(marks.settled_before(Some(at(20))), id(200), "since it was seen first");
        marks.add(at(50), id(300), at(30));
        marks.add(at(70), id(400), at(30));
        assert_eq!(marks.settled_before(Some(at(70))), id(300), "marks are so far apart");
    }

    #[test]
    fn after_a_rewind_what_comes_again_is_settled_anew() {
        let mut marks = Marks::default();
        marks.add(at(10), id(100), at(1));
        marks.add(at(20), id(200), at(1));
        marks.add(at(30), id(150), at(1));
        marks.add(at(40), id(200), at(1));
        assert_eq!(marks.settled_before(Some(at(39))), id(150));
        assert_eq!(marks.settled_before(Some(at(40))), id(200));
    }

    #[test]
    fn marks_are_bounded_and_the_oldest_stay() {
        let mut marks = Marks::default();
        for n in 1..1000 {
            marks.add(at(n), id(n), at(1));
        }
        assert_eq!(marks.0.len(), MOST_MARKS);
        assert_eq!(marks.settled_before(Some(at(5))), id(5));
        assert_eq!(marks.settled_before(Some(at(998))), id(MOST_MARKS as u64 - 1));
        assert_eq!(marks.settled_before(Some(at(999))), id(999));
    }
}
