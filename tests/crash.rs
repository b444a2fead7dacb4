//! Workers killed with SIGKILL at random moments while events flow.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

use crate::world::{Traffic, World, full, seed};

const PER_SECOND: usize = 2500;

/// `scripts/storm` runs it in full size.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_at_random_moments_loses_nothing() {
    let (count, kills) = if full() { (100_000, 20) } else { (25_000, 10) };
    let mut rng = StdRng::seed_from_u64(seed());
    let traffic = Traffic::new(&mut rng, count, 16);
    let lasts = traffic.lasts(PER_SECOND);
    let mut moments: Vec<Duration> = (0..kills).map(|_| lasts.mul_f64(rng.random())).collect();
    moments.sort_unstable();
    let same_name: Vec<bool> = (0..kills).map(|_| rng.random_bool(0.5)).collect();

    let world = World::shared("crash", 16).await;
    let start_as = |name: &str| world.worker().set("WORKER_NAME", name).start();
    let mut name = "first".to_owned();
    let mut worker = start_as(&name);
    let producer = traffic.produce(&world, PER_SECOND);
    let start = Instant::now();
    let mut stranded = 0;
    for (n, (moment, same)) in moments.into_iter().zip(same_name).enumerate() {
        tokio::time::sleep_until(start + moment).await;
        worker.kill().await;
        stranded += world.pending().await;
        if !same {
            name = format!("after-kill-{n}");
        }
        worker = start_as(&name);
    }
    producer.await.unwrap();
    world.drained().await;

    assert!(stranded > 0, "no kill has met work in hand: nothing was tried");
    traffic.assert_landed(&world).await;
    assert_eq!(world.pending().await, 0);
    assert_eq!(world.dead_letters().await.len(), 0);
    worker.stop().await.assert_balanced();
}
