//! Whether a lane still turns: every wait in it has an end, so that one that lasts for long is a defect.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Held;

/// The last signs of life of the two halves of a lane.
#[derive(Debug)]
pub struct Pulse {
    started: Instant,
    held: Arc<Held>,
    /// In milliseconds since it was started.
    intake: AtomicU64,
    lane: AtomicU64,
}

impl Pulse {
    /// Of a lane that starts now, and of what it has in hand.
    pub fn new(held: Arc<Held>) -> Self {
        Self { started: Instant::now(), held, intake: AtomicU64::new(0), lane: AtomicU64::new(0) }
    }

    /// The reading half has come to the end of a step.
    pub fn intake(&self) {
        self.intake.store(self.now(), Ordering::Relaxed);
    }

    /// The writing half has.
    pub fn lane(&self) {
        self.lane.store(self.now(), Ordering::Relaxed);
    }

    /// How long nothing has happened that should have: with something in hand the lane writes and
    /// settles, or waits for its reader; with nothing in hand only the reader has anything to do.
    pub fn silence(&self) -> Duration {
        let last = if self.held.is_empty() { &self.intake } else { &self.lane };
        let since_lane = self.now().saturating_sub(last.load(Ordering::Relaxed));
        Duration::from_millis(since_lane)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
