//! A worker that cannot reach the database while others can should not sit on its shards.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use tokio::time::Instant;

use crate::store::Store;

/// Probes of the database, a lease apart, that must succeed before a worker comes back.
const PROBES_TO_RETURN: u32 = 2;

/// Since when no write has succeeded although one was tried; kept by the lanes.
#[derive(Clone, Debug, Default)]
pub struct WriteHealth(Arc<Mutex<Option<Instant>>>);

impl WriteHealth {
    /// A write has been answered.
    pub fn succeeded(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// A write has failed for a reason that is not the row's.
    pub fn failed(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(Instant::now);
    }

    fn failing_for(&self) -> Option<Duration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).map(|since| since.elapsed())
    }
}

/// Whether this worker has given its shards back, and when it may come again.
pub struct Yielding {
    store: Store,
    health: WriteHealth,
    lease: Duration,
    yield_after: Duration,
    away: Option<Away>,
}

#[derive(Default)]
struct Away {
    successes: u32,
    probed: Option<Instant>,
}

impl Yielding {
    /// Present.
    pub fn new(store: Store, health: WriteHealth, lease: Duration, yield_after: Duration) -> Self {
        Self { store, health, lease, yield_after, away: None }
    }

    /// Whether the shards are given back.
    pub fn is_away(&self) -> bool {
        self.away.is_some()
    }

    /// Whether it is time to give them back, if somebody else is there to take them. Without work in
    /// hand no write is tried, and what failed before says nothing.
    pub fn is_due(&self, holds_work: bool) -> bool {
        if !holds_work {
            self.health.succeeded();
        }
        self.health.failing_for().is_some_and(|failing| failing >= self.yield_after)
    }

    /// The shards are given back.
    pub fn go_away(&mut self) {
        self.away = Some(Away::default());
    }

    /// Comes back once the write statement with no rows has succeeded twice, a lease apart.
    pub async fn try_to_return(&mut self) {
        let Some(away) = &mut self.away else { return };
        if away.probed.is_some_and(|probed| probed.elapsed() < self.lease) {
            return;
        }
        let works = matches!(tokio::time::timeout(self.lease, self.store.probe_write()).await, Ok(Ok(())));
        away.probed = Some(Instant::now());
        away.successes = if works { away.successes + 1 } else { 0 };
        if away.successes >= PROBES_TO_RETURN {
            tracing::info!("the database takes writes again: coming back");
            self.health.succeeded();
            self.away = None;
        }
    }
}
