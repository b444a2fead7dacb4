//! How long a worker may still touch a shard, by a clock that does not stop while it is suspended.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Part of a lease by which a worker stops early: clocks may run at speeds that differ, and what it
/// has just sent needs time to arrive.
const MARGIN: u32 = 20;

/// Since the machine's start, time spent suspended included (`CLOCK_BOOTTIME`, see clock_gettime(2)):
/// a virtual machine that was paused for a minute wakes up with its leases run out.
fn boot_time() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// A moment before a command is sent: a lease runs from then, not from the answer.
#[derive(Clone, Copy, Debug)]
pub struct Sent(Duration);

impl Sent {
    /// Now.
    pub fn now() -> Self {
        Self(boot_time())
    }
}

/// The lease of one shard, as its lane sees it.
#[derive(Debug)]
pub struct Lease {
    /// Nanoseconds of [`boot_time`].
    ends: AtomicU64,
}

impl Lease {
    /// Taken by a command sent at `sent`.
    pub fn taken(sent: Sent, lease: Duration) -> Self {
        let new = Self { ends: AtomicU64::new(0) };
        new.renewed(sent, lease);
        new
    }

    /// Renewed by a command sent at `sent`.
    pub fn renewed(&self, sent: Sent, lease: Duration) {
        let ends = sent.0 + lease - lease / MARGIN;
        self.ends.store(u64::try_from(ends.as_nanos()).unwrap_or(u64::MAX), Ordering::Release);
    }

    /// How long the shard may still be touched; zero when the lease is over.
    pub fn left(&self) -> Duration {
        Duration::from_nanos(self.ends.load(Ordering::Acquire)).saturating_sub(boot_time())
    }

    /// Whether the shard may still be touched. Asked right before everything that reads, writes or
    /// settles.
    pub fn is_held(&self) -> bool {
        !self.left().is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_ends_before_the_server_can_end_it() {
        let long = Duration::from_secs(10);
        let sent = Sent::now();
        let lease = Lease::taken(sent, long);
        assert!(lease.is_held() && lease.left() <= long - long / MARGIN);
        lease.renewed(Sent(sent.0.saturating_sub(long)), long);
        assert!(!lease.is_held());
    }
}
