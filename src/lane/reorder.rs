//! A short buffer in which near-simultaneous events of one feature find their order.
//!
//! The deadline is that of the feature's first held event and does not move: a feature that gets
//! an event every few milliseconds is still written once a window.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use super::Item;
use crate::event::EntryId;

/// How much of the window is left for an entry, by the Redis server's clock; never more than the
/// window itself, whatever the clocks say. A backlog is older than the window and does not wait.
pub fn wait_left(id: EntryId, server_now_ms: i64, window: Duration) -> Duration {
    let age_ms = server_now_ms.saturating_sub_unsigned(id.ms).max(0);
    window.saturating_sub(Duration::from_millis(age_ms.unsigned_abs()))
}

/// The buffer of one lane.
#[derive(Debug, Default)]
pub struct Reorder {
    features: HashMap<String, Waiting>,
    /// By deadline, then by arrival.
    queue: BTreeMap<(Instant, u64), String>,
    arrivals: u64,
    len: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Waiting {
    place: (Instant, u64),
    items: Vec<Item>,
}

impl Reorder {
    /// Holds `item` for `wait`, with what is held of its feature; or passes it on at once.
    /// An item whose feature is unknown has nothing to wait for.
    pub fn admit(&mut self, item: Item, wait: Duration, now: Instant, ready: &mut Vec<Item>) {
        let waiting = match item.feature_id() {
            Some(feature_id) if !self.features.is_empty() => self.features.get_mut(feature_id),
            _ => None,
        };
        if let Some(waiting) = waiting {
            self.len += 1;
            self.bytes += item.size;
            waiting.items.push(item);
            return;
        }
        let Some(feature_id) = item.feature_id().filter(|_| !wait.is_zero()).map(str::to_owned) else {
            ready.push(item);
            return;
        };
        self.arrivals += 1;
        let place = (now + wait, self.arrivals);
        self.len += 1;
        self.bytes += item.size;
        self.queue.insert(place, feature_id.clone());
        self.features.insert(feature_id, Waiting { place, items: vec![item] });
    }

    /// Passes on every feature whose deadline has come.
    pub fn release_due(&mut self, now: Instant, ready: &mut Vec<Item>) {
        while self.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.release_oldest(ready);
        }
    }

    /// Passes on the feature whose deadline is next.
    pub fn release_oldest(&mut self, ready: &mut Vec<Item>) {
        let Some((place, feature_id)) = self.queue.pop_first() else { return };
        if let Some(waiting) = self.features.remove(&feature_id) {
            debug_assert_eq!(waiting.place, place);
            self.len -= waiting.items.len();
            self.bytes -= waiting.items.iter().map(|item| item.size).sum::<usize>();
            ready.extend(waiting.items);
        }
    }

    /// Passes on everything.
    pub fn release_all(&mut self, ready: &mut Vec<Item>) {
        while !self.queue.is_empty() {
            self.release_oldest(ready);
        }
    }

    /// When the next feature is due.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.queue.first_key_value().map(|((deadline, _), _)| *deadline)
    }

    /// Events held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Their size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::event::{Reason, Rejection};

    const WINDOW: Duration = Duration::from_millis(200);

    fn item(feature_id: &str, seq: u64) -> Item {
        let mut rejection = Rejection::new(Reason::BadField, "");
        rejection.feature_id = Some(feature_id.to_owned());
        Item { id: EntryId { ms: 1, seq }, size: 1, verdict: Err(Box::new(rejection)), traced: None }
    }

    #[test]
    fn the_deadline_is_that_of_the_first_event_and_does_not_move() {
        let (mut reorder, mut ready, start) = (Reorder::default(), Vec::new(), Instant::now());
        for n in 0..10 {
            let now = start + Duration::from_millis(20 * n);
            reorder.admit(item("busy", n), WINDOW, now, &mut ready);
        }
        reorder.release_due(start + WINDOW - Duration::from_millis(1), &mut ready);
        assert!(ready.is_empty());
        reorder.release_due(start + WINDOW, &mut ready);
        assert_eq!(ready.iter().map(|item| item.id.seq).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
        assert!(reorder.is_empty());
    }

    #[test]
    fn a_backlog_and_a_clock_ahead_of_ours_wait_as_they_should() {
        let id = EntryId { ms: 10_000, seq: 0 };
        assert_eq!(wait_left(id, 10_050, WINDOW), Duration::from_millis(150));
        assert_eq!(wait_left(id, 99_000, WINDOW), Duration::ZERO);
        assert_eq!(wait_left(id, 1_000, WINDOW), WINDOW);
    }

    #[test]
    fn an_event_of_a_held_feature_waits_with_it_and_others_pass() {
        let (mut reorder, mut ready, start) = (Reorder::default(), Vec::new(), Instant::now());
        reorder.admit(item("held", 1), WINDOW, start, &mut ready);
        reorder.admit(item("held", 2), Duration::ZERO, start, &mut ready);
        reorder.admit(item("old", 3), Duration::ZERO, start, &mut ready);
        assert_eq!(ready.iter().map(|item| item.id.seq).collect::<Vec<_>>(), [3]);
        assert_eq!(reorder.len(), 2);
        reorder.release_all(&mut ready);
        assert_eq!(ready.iter().map(|item| item.id.seq).collect::<Vec<_>>(), [3, 1, 2]);
    }
}
