//! What is counted, under which name, and whether the servers answer.
//!
//! One function for each measure; label values come from closed lists or server error codes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus::{
    Encoder, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

use crate::event::{EntryId, Outcome, Reason};
use crate::failure::{Failure, Target};
use crate::lane::Pulse;

/// Seconds from entry id to commit.
const LATENCY_BUCKETS: [f64; 15] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
const ROWS_BUCKETS: [f64; 9] = [1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0];

/// Everything this process counts. The registry is the process's own, so that tests can have many.
pub struct Meter {
    registry: Registry,
    entries_read: IntCounter,
    outcomes: Vec<IntCounter>,
    dead_letters: Vec<IntCounter>,
    released: IntCounter,
    lost: IntCounter,
    missing: IntCounter,
    reclaimed: IntCounter,
    retries: IntCounterVec,
    lanes: IntGauge,
    /// Their shards and signs of life.
    owned: Mutex<BTreeMap<u16, Arc<Pulse>>>,
    /// How many there are; 0 until it is known.
    shards: IntGauge,
    buffered: IntGauge,
    commit_latency: Histogram,
    batch_rows: Histogram,
    troubled: [AtomicUsize; 2],
}

impl Meter {
    /// Registers every measure, each with its zero.
    ///
    /// # Errors
    /// Only if two measures bore one name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let counters = |name: &str, help: &str, labels: &[&str]| {
            let counters = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(counters.clone()))?;
            Ok::<_, prometheus::Error>(counters)
        };
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let gauges = |name: &str, help: &str, labels: &[&str]| {
            let gauges = IntGaugeVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(gauges.clone()))?;
            Ok::<_, prometheus::Error>(gauges)
        };
        let histogram = |name: &str, help: &str, buckets: &[f64]| {
            let histogram = Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))?;
            registry.register(Box::new(histogram.clone()))?;
            Ok::<_, prometheus::Error>(histogram)
        };
        let build = gauges("hexlane_build_info", "The version that runs; always 1.", &["version"])?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let outcomes = counters("hexlane_events_total", "Settled entries by outcome.", &["outcome"])?;
        let dead_letters = counters("hexlane_dead_letters_total", "Dead letters by reason.", &["reason"])?;
        Ok(Self {
            entries_read: counter("hexlane_entries_read_total", "Stream entries read or taken over.")?,
            outcomes: Outcome::ALL.iter().map(|outcome| outcomes.with_label_values(&[outcome.as_str()])).collect(),
            dead_letters: Reason::ALL.iter().map(|reason| dead_letters.with_label_values(&[reason.as_str()])).collect(),
            released: counter("hexlane_released_total", "Entries given up unsettled; they come again.")?,
            lost: counter("hexlane_lost_total", "Entries deleted by someone before they were handled.")?,
            missing: counter("hexlane_missing_total", "Entries deleted by someone before anybody had read them.")?,
            reclaimed: counter("hexlane_reclaimed_total", "Pending entries taken over.")?,
            retries: counters("hexlane_retries_total", "Failed attempts at a server.", &["target", "error"])?,
            lanes: gauge("hexlane_lanes_owned", "Shards this worker reads.")?,
            owned: Mutex::default(),
            shards: gauge("hexlane_shards", "Shards there are, all workers together; 0 while that is unknown.")?,
            buffered: gauge("hexlane_buffered_events", "Events read and not settled yet.")?,
            commit_latency: histogram(
                "hexlane_commit_latency_seconds",
                "From the entry id's time to the commit, by the Redis server's clock.",
                &LATENCY_BUCKETS,
            )?,
            batch_rows: histogram("hexlane_batch_rows", "Entries settled with one batch.", &ROWS_BUCKETS)?,
            troubled: [AtomicUsize::new(0), AtomicUsize::new(0)],
            registry,
        })
    }

    /// Entries came into hand.
    pub fn read(&self, entries: usize) {
        self.entries_read.inc_by(entries as u64);
        self.buffered.add(entries as i64);
    }

    /// Entries in hand are settled.
    pub fn settled(&self, outcomes: impl ExactSizeIterator<Item = Outcome>) {
        self.buffered.sub(outcomes.len() as i64);
        let mut counts = [0_u64; Outcome::ALL.len()];
        for outcome in outcomes {
            counts[outcome as usize] += 1;
        }
        for (counter, count) in self.outcomes.iter().zip(counts) {
            counter.inc_by(count);
        }
    }

    /// One entry in hand is settled as a dead letter.
    pub fn dead_lettered(&self, reason: Reason) {
        self.dead_letters[reason as usize].inc();
        self.settled(std::iter::once(Outcome::DeadLettered));
    }

    /// Entries in hand are given up.
    pub fn released(&self, entries: usize) {
        self.released.inc_by(entries as u64);
        self.buffered.sub(entries as i64);
    }

    /// Entries in hand turn out to be deleted.
    pub fn lost(&self, entries: usize) {
        self.lost.inc_by(entries as u64);
        self.buffered.sub(entries as i64);
    }

    /// Entries were deleted unread; they were never in hand.
    pub fn missing(&self, entries: u64) {
        self.missing.inc_by(entries);
    }

    /// Pending entries were taken over.
    pub fn reclaimed(&self, entries: usize) {
        self.reclaimed.inc_by(entries as u64);
    }

    /// A batch of so many entries has its fates; these of them by an answer of the database.
    pub fn committed(&self, entries: usize, ids: impl Iterator<Item = EntryId>, server_now_ms: i64) {
        self.batch_rows.observe(entries as f64);
        let latency = self.commit_latency.local();
        for id in ids {
            let waited_ms = server_now_ms.saturating_sub_unsigned(id.ms).max(0);
            latency.observe(waited_ms as f64 / 1000.0);
        }
        latency.flush();
    }

    /// A lane has started.
    pub fn lane_started(&self, shard: u16, pulse: Arc<Pulse>) {
        self.locked().insert(shard, pulse);
        self.lanes.inc();
    }

    /// A lane has ended.
    pub fn lane_ended(&self, shard: u16) {
        self.locked().remove(&shard);
        self.lanes.dec();
    }

    /// The shards of the lanes that run.
    pub fn owned(&self) -> Vec<u16> {
        self.locked().keys().copied().collect()
    }

    /// The lane that has been silent for longest, and for how long.
    pub fn most_silent(&self) -> Option<(u16, Duration)> {
        self.locked().iter().map(|(shard, pulse)| (*shard, pulse.silence())).max_by_key(|(_, silence)| *silence)
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, BTreeMap<u16, Arc<Pulse>>> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many shards there are, all workers together.
    pub fn there_are(&self, shards: u16) {
        self.shards.set(shards.into());
    }

    /// How many shards there are; 0 while that is unknown.
    pub fn shards(&self) -> u16 {
        u16::try_from(self.shards.get()).unwrap_or(0)
    }

    /// An attempt at a server has failed.
    pub fn retried(&self, failure: &Failure) {
        self.retries.with_label_values(&[failure.target.as_str(), &failure.code]).inc();
    }

    /// Whether some lane is waiting for this server to come back.
    pub fn is_troubled(&self, target: Target) -> bool {
        self.troubled[target as usize].load(Ordering::Relaxed) > 0
    }

    /// The counts of this process as one line of JSON.
    pub fn summary(&self) -> String {
        let count = |outcome: Outcome| self.outcomes[outcome as usize].get();
        let mut counts = vec![("read", self.entries_read.get())];
        counts.extend(Outcome::ALL.map(|outcome| (outcome.as_str(), count(outcome))));
        counts.extend([("released", self.released.get()), ("lost", self.lost.get())]);
        // By hand for the sake of the order, which serde_json does not keep.
        let members: Vec<String> = counts.iter().map(|(name, count)| format!("\"{name}\":{count}")).collect();
        format!("{{{}}}", members.join(","))
    }

    /// The Prometheus text format.
    /// See <https://prometheus.io/docs/instrumenting/exposition_formats/>.
    ///
    /// # Errors
    /// If a measure cannot be written down.
    pub fn exposition(&self) -> Result<Vec<u8>, prometheus::Error> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}

/// From the first failure of a series to its end: while one is alive the worker is not ready.
pub struct Trouble<'a> {
    meter: &'a Meter,
    target: Option<Target>,
    failures: u32,
    since: std::time::Instant,
}

impl<'a> Trouble<'a> {
    /// No trouble yet.
    pub fn none(meter: &'a Meter) -> Self {
        Self { meter, target: None, failures: 0, since: std::time::Instant::now() }
    }

    /// One more failure: counted, and logged at the first and then ever more rarely.
    pub fn add(&mut self, failure: &Failure, shard: u16) {
        self.meter.retried(failure);
        if self.target.is_none() {
            self.since = std::time::Instant::now();
        }
        if self.target != Some(failure.target) {
            self.leave();
            self.target = Some(failure.target);
            self.meter.troubled[failure.target as usize].fetch_add(1, Ordering::Relaxed);
        }
        self.failures += 1;
        if failure.is_fatal() {
            tracing::error!(shard, error = %failure, attempt = self.failures, "waiting for somebody to mend this");
        } else if self.failures.is_power_of_two() {
            tracing::warn!(shard, error = %failure, attempt = self.failures, "trying again");
        }
    }

    /// Whether there is any.
    pub fn is_over(&self) -> bool {
        self.target.is_none()
    }

    /// It works again.
    pub fn end(&mut self, shard: u16) {
        if let Some(target) = self.target {
            let lasted: Duration = self.since.elapsed();
            tracing::info!(shard, target_server = target.as_str(), attempts = self.failures, ?lasted, "recovered");
        }
        self.leave();
        self.failures = 0;
    }

    fn leave(&mut self) {
        if let Some(target) = self.target.take() {
            self.meter.troubled[target as usize].fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Trouble<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}
