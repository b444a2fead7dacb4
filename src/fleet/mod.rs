//! What replicas do together: each shard is one worker's at a time.
//!
//! A worker says that it lives (heartbeat), learns who else does, and knows by rendezvous hashing
//! which shards should be its own. It takes their leases as they become free, renews them, and gives
//! back, drained, what it should no longer own. A lane lives as long as its lease; [`lease::Lease`]
//! says until when by a clock that no suspension stops.
//!
//! ```text
//! free ──acquire──▶ owned ──no longer its share, or stop──▶ draining ──ended──▶ released
//!                     └──lease lost or run out, yield──▶ aborted ──ended──▶ released if still ours
//! ```
//!
//! None of this is what correctness rests on: should two workers own a shard for a moment, the
//! guard in the database decides, as always. Ownership keeps the order, and with that needless
//! rejections rare, and makes a crash a matter of one lease.

pub mod lease;
pub mod rendezvous;
pub mod yielding;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;
use crate::lane::{self, Shared};
use crate::shard::Topology;
use crate::stream::membership::Renewal;
use crate::stream::topology::Wanted;
use lease::{Lease, Sent};
use yielding::Yielding;

/// Heartbeats, and looks for shards to take, are this much more frequent than renewals: they decide
/// how soon a worker that leaves is replaced.
const TICKS_PER_RENEWAL: u32 = 4;
const LONGEST_TICK: Duration = Duration::from_secs(1);
/// In leases: how often consumers of gone workers are looked for, and how long they must be idle.
const HOUSEKEEPING_LEASES: u32 = 6;
const GONE_AFTER_LEASES: u32 = 3;
/// For giving back and leaving: a server that does not answer holds up no end. What it does not hear runs out.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How leases are kept.
#[derive(Clone, Copy, Debug)]
pub struct FleetSettings {
    /// How long a lease lasts without being renewed.
    pub lease: Duration,
    /// How often it is renewed.
    pub renew: Duration,
    /// How long a worker that holds work and cannot write stays, if another one is live.
    pub yield_after: Duration,
}

/// One worker's part of the fleet.
pub struct Fleet {
    shared: Shared,
    settings: FleetSettings,
    topology: Topology,
    /// Worker name and something random: two processes of one name are two.
    token: String,
    owned: HashMap<u16, Owned>,
    /// Shards whose lanes have ended, and whose leases are still ours.
    ended: Vec<u16>,
    lanes: JoinSet<(u16, Result<(), JoinError>)>,
    yielding: Yielding,
    /// Whether this worker takes part.
    started: Arc<AtomicBool>,
    renewed: Instant,
    kept: Instant,
    was_reachable: bool,
}

struct Owned {
    lease: Arc<Lease>,
    stop: CancellationToken,
    abort: CancellationToken,
    take_over: Arc<AtomicBool>,
    held: Arc<lane::Held>,
}

impl Fleet {
    /// A worker that owns nothing yet.
    pub fn new(
        shared: Shared,
        settings: FleetSettings,
        topology: Topology,
        name: &str,
        started: Arc<AtomicBool>,
    ) -> Self {
        let now = Instant::now();
        Self {
            yielding: Yielding::new(
                shared.store.clone(),
                shared.write_health.clone(),
                settings.lease,
                settings.yield_after,
            ),
            shared,
            settings,
            topology,
            token: format!("{name}/{:08x}", fastrand::u32(..)),
            owned: HashMap::new(),
            ended: Vec::new(),
            lanes: JoinSet::new(),
            started,
            renewed: now,
            kept: now,
            was_reachable: true,
        }
    }

    /// Takes part until told to stop, then drains, gives everything back and leaves.
    ///
    /// # Errors
    /// A sentence, if a lane has failed or the topology has changed: the process has to end.
    pub async fn run(mut self) -> Result<(), String> {
        let (stop, abort) = (self.shared.stop.clone(), self.shared.abort.clone());
        let mut broken = None;
        while !stop.is_cancelled() && broken.is_none() {
            tokio::select! {
                turned = self.turn() => broken = turned.err(),
                () = abort.cancelled() => {}
            }
            broken = broken.or(self.wait(&stop).await.err());
        }
        // The others finish what they hold; whoever restarts the process takes over the rest.
        stop.cancel();
        while !self.owned.is_empty() {
            self.drop_lost();
            tokio::select! {
                () = self.renew_if_due() => {}
                () = abort.cancelled() => {}
            }
            broken = broken.or(self.wait(&CancellationToken::new()).await.err());
        }
        let last_words = async {
            self.give_back().await;
            self.leave().await;
        };
        if tokio::time::timeout(LAST_WORDS, last_words).await.is_err() {
            tracing::warn!("redis does not answer: leases that were not given back run out by themselves");
        }
        broken.map_or(Ok(()), Err)
    }

    fn tick(&self) -> Duration {
        (self.settings.renew / TICKS_PER_RENEWAL).min(LONGEST_TICK)
    }

    /// Until the next tick, or until a lane has ended.
    async fn wait(&mut self, stop: &CancellationToken) -> Result<(), String> {
        let next = Instant::now() + self.tick();
        let commits = self.shared.commits.clone();
        tokio::select! {
            () = tokio::time::sleep_until(next) => Ok(()),
            () = stop.cancelled() => Ok(()),
            () = commits.broken() => Err("a writer has failed".into()),
            Some(ended) = self.lanes.join_next() => match ended {
                Ok((shard, ended)) => {
                    let ended = self.lane_ended(shard, ended);
                    let abort = self.shared.abort.clone();
                    tokio::select! {
                        () = self.give_back() => {}
                        () = abort.cancelled() => {}
                    }
                    ended
                }
                Err(error) => Err(format!("waiting for a lane has failed: {error}")),
            },
        }
    }

    /// One look around. Only what waiting cannot mend is an error.
    async fn turn(&mut self) -> Result<(), String> {
        self.drop_lost();
        if self.yielding.is_away() {
            self.yielding.try_to_return().await;
            return Ok(());
        }
        match self.take_part().await {
            Ok(()) => {
                if !std::mem::replace(&mut self.was_reachable, true) {
                    tracing::info!("redis is reachable again");
                }
                self.started.store(true, Ordering::Relaxed);
            }
            Err(failure) if failure.is_fatal() && failure.code == "topology" => return Err(failure.to_string()),
            Err(failure) => {
                self.shared.meter.retried(&failure);
                // Lanes would tell; a worker that has none would look as if it could step in.
                self.started.store(false, Ordering::Relaxed);
                if std::mem::replace(&mut self.was_reachable, false) {
                    tracing::warn!(error = %failure, "cannot take part in the fleet; leases run out unless this ends");
                }
            }
        }
        Ok(())
    }

    async fn take_part(&mut self) -> Result<(), Failure> {
        let stream = self.shared.stream.clone();
        let live = stream.heartbeat(&self.token, self.settings.lease).await?;
        if self.renewed.elapsed() >= self.settings.renew {
            // As often as leases are renewed: set again if somebody has flushed it, stop if it differs.
            stream.settle_topology(Wanted::exactly(self.topology)).await?;
        }
        self.renew_if_due().await;
        if self.yielding.is_due(self.holds_work()) && stream.leave(&self.token, true).await? {
            tracing::warn!("cannot write, but another worker may: giving every shard back");
            self.yielding.go_away();
            self.owned.values().for_each(|owned| owned.abort.cancel());
            return Ok(());
        }
        let share = rendezvous::share(&self.token, &live, self.topology.shards);
        for (shard, owned) in &self.owned {
            if !share.contains(shard) && !owned.stop.is_cancelled() {
                tracing::info!(shard, "no longer this worker's: draining");
                owned.stop.cancel();
            }
        }
        let missing: Vec<u16> = share.into_iter().filter(|shard| !self.owned.contains_key(shard)).collect();
        // All in one step: with many shards and a busy server the first leases would be over before
        // the last were taken.
        let sent = Sent::now();
        for shard in stream.acquire(&missing, &self.token, self.settings.lease).await? {
            self.start_lane(shard, Lease::taken(sent, self.settings.lease));
        }
        self.keep_house(&live).await;
        Ok(())
    }

    fn holds_work(&self) -> bool {
        self.owned.values().any(|owned| !owned.held.is_empty())
    }

    fn start_lane(&mut self, shard: u16, lease: Lease) {
        let owned = Owned {
            lease: Arc::new(lease),
            stop: self.shared.stop.child_token(),
            abort: self.shared.abort.child_token(),
            take_over: Arc::new(AtomicBool::new(false)),
            held: Arc::new(lane::Held::default()),
        };
        let pulse = Arc::new(lane::Pulse::new(owned.held.clone()));
        let shared = Shared { stop: owned.stop.clone(), abort: owned.abort.clone(), ..self.shared.clone() };
        let term = lane::Term {
            lease: owned.lease.clone(),
            take_over: owned.take_over.clone(),
            pulse: pulse.clone(),
            held: owned.held.clone(),
            last_write: Arc::default(),
        };
        tracing::info!(shard, "owned");
        let (meter, held) = (self.shared.meter.clone(), owned.held.clone());
        meter.lane_started(shard, pulse);
        self.lanes.spawn(async move {
            // A task of its own, so that one that panics is still known by its shard.
            let ended = tokio::spawn(lane::run(shard, shared, term)).await.and_then(|ended| ended);
            meter.lane_ended(shard);
            meter.released(held.count());
            (shard, ended)
        });
        self.owned.insert(shard, owned);
    }

    /// Lanes whose leases have run out write and settle nothing more; they are ended here.
    fn drop_lost(&self) {
        for (shard, owned) in &self.owned {
            if !owned.lease.is_held() && !owned.abort.is_cancelled() {
                tracing::warn!(shard, "the lease has run out: dropping what is in hand");
                owned.abort.cancel();
            }
        }
    }

    async fn renew_if_due(&mut self) {
        if self.renewed.elapsed() < self.settings.renew {
            return;
        }
        let held = self.owned.iter().filter(|(_, owned)| owned.lease.is_held() && !owned.abort.is_cancelled());
        let shards: Vec<u16> = held.map(|(shard, _)| *shard).collect();
        let sent = Sent::now();
        let renewals = match self.shared.stream.renew(&shards, &self.token, self.settings.lease).await {
            Ok(renewals) => renewals,
            Err(failure) => return self.shared.meter.retried(&failure),
        };
        self.renewed = Instant::now();
        for (shard, renewal) in shards.into_iter().zip(renewals) {
            let Some(owned) = self.owned.get(&shard) else { continue };
            match renewal {
                Renewal::Renewed { pending } => {
                    owned.lease.renewed(sent, self.settings.lease);
                    // Entries that were handed to an owner of before, or came with a lost reply.
                    if pending > owned.held.count() as u64 {
                        owned.take_over.store(true, Ordering::Relaxed);
                    }
                }
                Renewal::Lost => {
                    tracing::warn!(shard, "the lease is somebody else's: dropping what is in hand");
                    owned.abort.cancel();
                }
            }
        }
    }

    fn lane_ended(&mut self, shard: u16, ended: Result<(), JoinError>) -> Result<(), String> {
        let owned = self.owned.remove(&shard);
        if owned.is_some_and(|owned| !owned.lease.is_held() && !owned.abort.is_cancelled()) {
            tracing::warn!(shard, "the lease has run out: dropped what was in hand");
        }
        self.ended.push(shard);
        ended.map_err(|error| format!("the lane of shard {shard} has failed: {error}"))
    }

    /// If this fails, the leases run out by themselves.
    async fn give_back(&mut self) {
        match self.shared.stream.release(&self.ended, &self.token).await {
            Ok(()) => self.ended.iter().for_each(|shard| tracing::info!(shard, "released")),
            Err(failure) => self.shared.meter.retried(&failure),
        }
        self.ended.clear();
    }

    /// Never stops a lane: what fails here is tried again next time.
    async fn keep_house(&mut self, live: &[String]) {
        if self.kept.elapsed() < self.settings.lease * HOUSEKEEPING_LEASES {
            return;
        }
        self.kept = Instant::now();
        let names: Vec<&str> =
            live.iter().map(|token| token.rsplit_once('/').map_or(&**token, |(name, _)| name)).collect();
        let shards: Vec<u16> = self.owned.keys().copied().collect();
        let least_idle = self.settings.lease * GONE_AFTER_LEASES;
        match self.shared.stream.remove_consumers(&shards, least_idle, &names).await {
            Ok(0) => {}
            Ok(removed) => tracing::info!(removed, "removed consumers of gone workers"),
            Err(failure) => {
                self.shared.meter.retried(&failure);
                tracing::warn!(error = %failure, "consumers of gone workers stay for now");
            }
        }
    }

    async fn leave(&self) {
        // If this fails, the heartbeat runs out by itself.
        if let Err(failure) = self.shared.stream.leave(&self.token, false).await {
            tracing::debug!(error = %failure, "could not leave the live workers");
        }
    }
}
