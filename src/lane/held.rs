//! The ids of all entries a lane has in hand, from the read to the settling.

use std::sync::{Mutex, PoisonError};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::event::EntryId;

/// Counts copies: after a group was made again, an entry in hand is delivered a second time.
#[derive(Debug, Default)]
pub struct Held(Mutex<FxHashMap<EntryId, u32>>);

impl Held {
    /// Entries come into hand.
    pub fn add(&self, ids: impl Iterator<Item = EntryId>) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for id in ids {
            *held.entry(id).or_default() += 1;
        }
    }

    /// One copy of each id is settled or lost.
    pub fn remove(&self, ids: &[EntryId]) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for id in ids {
            match held.get_mut(id) {
                Some(copies) if *copies > 1 => *copies -= 1,
                _ => drop(held.remove(id)),
            }
        }
    }

    /// What is held now. Taken before the server is asked for pending entries, it holds everything
    /// that the answer may name although it is in hand: settling removes an id only after Redis
    /// has, and only the reader itself adds.
    pub fn snapshot(&self) -> FxHashSet<EntryId> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }

    /// Whether nothing is in hand.
    pub fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// How many entries are in hand, copies counted.
    pub fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().map(|copies| *copies as usize).sum()
    }
}
