//! Events with an id: what is sent again under a new version changes nothing.

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::world::{Counts, Traffic, World, event, eventually, full, seed};

/// Enough that each worker surely has some of them.
const SHARDS: u16 = 24;

/// A third of the events come again, as a sender writes them that gives every attempt a version of its
/// own, from a place nearby.
fn redelivered(rng: &mut StdRng, count: i64) -> Arc<Traffic> {
    let mut traffic = Traffic::default();
    let mut sends = Vec::new();
    let features = count / 10;
    let mut versions = vec![0_i64; usize::try_from(features).unwrap()];
    for n in 0..count {
        let feature = rng.random_range(0..features);
        let version = &mut versions[feature as usize];
        *version += 1;
        let op = if rng.random_bool(0.1) { "delete" } else { "update" };
        let (id, shard) = (format!("F{feature}"), (feature % i64::from(SHARDS)) as u16);
        let more = format!(r#","event_id":"e{n}""#);
        sends.push((n, shard, traffic.expect(&id, *version, op, n, &more)));
        if rng.random_bool(1.0 / 3.0) {
            let elsewhere =
                format!(r#"{{"type":"Point","coordinates":[{},{}]}}"#, n as f64 / 1e6, rng.random_range(0.0..1.0));
            let again = event(&id, *version + rng.random_range(1..4), "update", &elsewhere, &more);
            sends.push((n + rng.random_range(1..2000), shard, again));
        }
    }
    // Stable: nothing comes again before it came.
    sends.sort_by_key(|(place, ..)| *place);
    traffic.sends = sends.into_iter().map(|(_, shard, text)| (shard, text)).collect();
    Arc::new(traffic)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_deliveries_count_while_two_of_three_workers_are_killed() {
    let (count, per_second) = if full() { (200_000, 8000) } else { (8000, 2000) };
    let mut rng = StdRng::seed_from_u64(seed());
    let traffic = redelivered(&mut rng, count);
    let world = World::shared("ledger_kills", SHARDS).await;
    let start = |n: u8| world.worker().set("WORKER_NAME", &format!("w{n}")).set("BATCH_ROWS", "500").ready();
    let workers = [start(0).await, start(1).await, start(2).await];
    for worker in &workers {
        worker.until_metric("hexlane_lanes_owned", 1.0).await;
    }
    let producer = traffic.produce(&world, per_second);
    let begin = tokio::time::Instant::now();
    let [first, second, third] = workers;
    for (n, worker) in [first, second].into_iter().enumerate() {
        tokio::time::sleep_until(begin + traffic.lasts(per_second) * (n as u32 + 1) / 3).await;
        worker.kill().await;
    }
    producer.await.unwrap();
    traffic.until_landed(&world).await;
    let counts = third.stop().await;
    counts.assert_balanced();
    assert!(counts.duplicate > 0, "{counts:?}");
    let ids: i64 = world.postgres().await.query_one("SELECT count(*) FROM processed_event", &[]).await.unwrap().get(0);
    assert_eq!(ids, count);
}

/// The two copies lie in streams of different workers.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_copies_that_come_at_once_one_counts() {
    const FEATURES: u64 = 2000;
    let world = World::shared("ledger_at_once", SHARDS).await;
    let start = |name: &str| world.worker().set("WORKER_NAME", name).set("BATCH_ROWS", "50").ready();
    let workers = [start("a").await, start("b").await];
    let owner = async |shard: u16| world.ask::<Option<String>>(&format!("GET {}", world.owner_key(shard))).await;
    let other = async || {
        for shard in 1..SHARDS {
            let owners = [owner(0).await, owner(shard).await];
            if owners[0] != owners[1] && owners.iter().all(Option::is_some) {
                return Some(shard);
            }
        }
        None
    };
    eventually("each has a shard", async || other().await.is_some()).await;
    let other = other().await.unwrap();
    let copies = |version: i64| -> Vec<Vec<u8>> {
        let point = format!(r#"{{"type":"Point","coordinates":[{version},1]}}"#);
        (0..FEATURES).map(|n| event(&format!("F{n}"), version, "update", &point, r#","event_id":"x""#)).collect()
    };
    let (first, second) = (copies(1), copies(2));
    tokio::join!(world.add_together(0, &first), world.add_together(other, &second));
    world.drained().await;
    let mut sum = Counts::default();
    for worker in workers {
        let counts = worker.stop().await;
        assert_eq!(counts.read, FEATURES, "one of the streams");
        sum.applied += counts.applied;
        sum.duplicate += counts.duplicate;
    }
    assert_eq!((sum.applied, sum.duplicate), (FEATURES, FEATURES), "{sum:?}");
    // Version and place are those of one copy.
    let sql = "SELECT count(*) FILTER (WHERE version = ST_X(geometry)), count(*) FROM feature_state";
    let row = world.postgres().await.query_one(sql, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (FEATURES as i64, FEATURES as i64));
}
