//! Which events of a batch compete, and in which order. Pure; needs no server.

use std::collections::HashMap;

use super::by_id;
use crate::event::Event;

/// The events of one feature in one batch, by their place in the batch, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Never empty.
    pub members: Vec<usize>,
}

/// Groups `candidates` by feature, the groups sorted by feature id, so that concurrent batches lock
/// their rows in one order. Of equal keys the earlier place counts as the newer: the first one
/// written stays.
pub fn by_feature(events: &[Event], candidates: &[usize]) -> Vec<Group> {
    let mut members = candidates.to_vec();
    by_id::sort(&mut members, |&place| events[place].feature_id.as_str());
    members
        .chunk_by_mut(|&a, &b| events[a].feature_id == events[b].feature_id)
        .map(|group| {
            group.sort_unstable_by(|&a, &b| events[b].key.cmp(&events[a].key).then_with(|| a.cmp(&b)));
            Group { members: group.to_vec() }
        })
        .collect()
}

/// Copies of one event id of one feature: the first by entry id counts, the others wait for it.
#[derive(Debug, Default)]
pub struct Copies {
    /// Places that compete.
    pub firsts: Vec<usize>,
    /// For the place of a first: the places of its copies, in order.
    pub waiting: HashMap<usize, Vec<usize>>,
}

/// Finds the copies among `events`, which are in entry order.
pub fn copies(events: &[Event]) -> Copies {
    let mut known: HashMap<(&str, &str), usize> = HashMap::new();
    let mut copies = Copies::default();
    for (place, event) in events.iter().enumerate() {
        let first = match &event.event_id {
            Some(event_id) => *known.entry((&event.feature_id, event_id)).or_insert(place),
            None => place,
        };
        if first == place {
            copies.firsts.push(place);
        } else {
            copies.waiting.entry(first).or_default().push(place);
        }
    }
    copies
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Key, Op};

    fn event(feature_id: &str, version: i64, event_id: Option<&str>) -> Event {
        Event {
            feature_id: feature_id.into(),
            key: Key { version, observed_us: 0 },
            op: Op::Delete,
            shape: None,
            properties: None,
            event_id: event_id.map(Into::into),
            cell: None,
        }
    }

    #[test]
    fn the_newest_comes_first_and_of_equal_keys_the_earlier() {
        let events = [event("b", 1, None), event("a", 2, None), event("b", 3, None), event("b", 3, None)];
        let groups = by_feature(&events, &[0, 1, 2, 3]);
        assert_eq!(groups, [Group { members: vec![1] }, Group { members: vec![2, 3, 0] }]);
    }

    #[test]
    fn copies_wait_for_the_first_of_their_feature() {
        let events = [
            event("a", 1, Some("x")),
            event("b", 1, Some("x")),
            event("a", 9, Some("x")),
            event("a", 2, None),
            event("a", 3, Some("x")),
        ];
        let copies = copies(&events);
        assert_eq!(copies.firsts, [0, 1, 3]);
        assert_eq!(copies.waiting, HashMap::from([(0, vec![2, 4])]));
    }
}
