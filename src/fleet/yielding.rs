//! A worker that cannot reach the database while others can should not sit on its shards.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::store::Store;

/// Probes of the database, a lease apart, that must succeed before a worker comes back.
const PROBES_TO_RETURN: u32 = 2;

/// Whether the database takes what is written; kept by the lanes.
#[derive(Clone, Debug)]
pub struct WriteHealth(Arc<Mutex<Health>>);

#[derive(Debug)]
struct Health {
    started: Instant,
    /// Since when no write has succeeded although one was tried.
    failing_since: Option<Instant>,
    /// How long writes failed before, in all.
    failed_for: Duration,
}

impl Default for WriteHealth {
    fn default() -> Self {
        let health = Health { started: Instant::now(), failing_since: None, failed_for: Duration::ZERO };
        Self(Arc::new(Mutex::new(health)))
    }
}

impl WriteHealth {
    /// A write has been answered.
    pub fn succeeded(&self) {
        let mut health = self.health();
        if let Some(since) = health.failing_since.take() {
            health.failed_for += since.elapsed();
        }
    }

    /// A write has failed for a reason that is not the row's.
    pub fn failed(&self) {
        self.health().failing_since.get_or_insert_with(Instant::now);
    }

    /// Since the start, without the times in which writes failed. Time in which the machine was
    /// suspended does not count either.
    pub fn good_time(&self) -> Duration {
        let health = self.health();
        let until = health.failing_since.unwrap_or_else(Instant::now);
        until.saturating_duration_since(health.started).saturating_sub(health.failed_for)
    }

    fn failing_for(&self) -> Option<Duration> {
        self.health().failing_since.map(|since| since.elapsed())
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        // A task of its own: given up in mid-statement, the connection would go back to the pool as it is.
        let store = self.store.clone();
        let probe = tokio::spawn(async move { store.probe_write().await });
        let works = matches!(tokio::time::timeout(self.lease, probe).await, Ok(Ok(Ok(()))));
        away.probed = Some(Instant::now());
        away.successes = if works { away.successes + 1 } else { 0 };
        if away.successes >= PROBES_TO_RETURN {
            tracing::info!("the database takes writes again: coming back");
            self.health.succeeded();
            self.away = None;
        }
    }
}
