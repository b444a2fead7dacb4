//! How shards spread over workers, and how soon they move.

use std::time::{Duration, Instant};

use super::{leases, name_of, named, names, settled, shares, take_busiest, tokens};
use crate::world::{Proxy, Way, Worker, World, eventually, full, point};

const SHARDS: u16 = 16;

/// Each worker's lanes are what its leases say: nobody works on a shard that it does not own.
async fn lanes_match(workers: &[(String, Worker)], owners: &[String]) {
    let shares = shares(owners);
    for (name, worker) in workers {
        let share = *shares.get(name.as_str()).unwrap_or(&0) as f64;
        eventually(&format!("{name} runs {share} lanes"), async || {
            worker.metric("hexlane_lanes_owned").await == Some(share)
        })
        .await;
    }
}

/// Whoever has changed shards belongs to `moved`.
fn only_moved(before: &[String], after: &[String], moved: impl Fn(&str, &str) -> bool) {
    for (shard, (was, is)) in before.iter().zip(after).enumerate() {
        assert!(was == is || moved(was, is), "shard {shard} went from {was} to {is}: {before:?} {after:?}");
    }
}

#[derive(Clone, Copy)]
enum End {
    Term,
    Kill,
}

/// One of the workers ends; publishes to its shards at once, and prints when these events are there.
async fn leaves(world: &World, workers: &mut Vec<(String, Worker)>, owners: &[String], end: End) -> Vec<String> {
    let (name, worker) = take_busiest(workers, owners);
    let how = match end {
        End::Term => "SIGTERM",
        End::Kill => "SIGKILL",
    };
    let start = Instant::now();
    match end {
        End::Term => {
            worker.signal("TERM");
            eventually("it reads nothing more", async || worker.log().contains("finishing what is in hand")).await;
        }
        End::Kill => worker.signal("KILL"),
    }
    let features: Vec<String> = (0..)
        .zip(owners)
        .filter(|(_, owner)| **owner == name)
        .map(|(shard, _): (u16, _)| format!("{how}-{shard}"))
        .collect();
    for feature in &features {
        let shard = feature.rsplit_once('-').unwrap().1.parse().unwrap();
        world.add(shard, &point(feature, 1, 4.3, 52.1)).await;
    }
    let postgres = world.postgres().await;
    let landed = async || {
        let sql = "SELECT count(*) FROM feature_state WHERE feature_id = ANY($1)";
        usize::try_from(postgres.query_one(sql, &[&features]).await.unwrap().get::<_, i64>(0)).unwrap()
    };
    eventually("the first event has landed", async || landed().await > 0).await;
    let first = start.elapsed();
    eventually("all events have landed", async || landed().await == features.len()).await;
    let last = start.elapsed();
    eprintln!(
        "{how} of {name}, {} of {SHARDS} shards, {} workers left: landed elsewhere, first {first:.2?}, last {last:.2?}",
        features.len(),
        workers.len()
    );
    match end {
        End::Term => worker.stop().await.assert_balanced(),
        End::Kill => worker.kill().await,
    }
    let after = settled(world, &names(workers)).await;
    only_moved(owners, &after, |was, _| was == name);
    lanes_match(workers, &after).await;
    after
}

#[tokio::test(flavor = "multi_thread")]
async fn every_shard_has_one_owner_and_only_a_share_moves() {
    let world = World::shared("spread", SHARDS).await;
    let most = if full() { 20 } else { 5 };
    let (mut workers, mut owners) = (Vec::new(), Vec::new());
    for number in 1..=most {
        let name = format!("w{number}");
        let start = Instant::now();
        workers.push((name.clone(), named(&world, &name).start()));
        eventually("it has joined", async || tokens(&world).await.iter().any(|token| name_of(token) == name)).await;
        let joined = start.elapsed();
        let after = settled(&world, &names(&workers)).await;
        let took = start.elapsed();
        eprintln!(
            "join of worker {number}: live after {joined:.2?}, settled {:.2?} later: {:?}",
            took.saturating_sub(joined),
            shares(&after)
        );
        only_moved(&owners, &after, |_, is| is == name);
        if [1, 2, 3, 5, 20].contains(&number) {
            lanes_match(&workers, &after).await;
        }
        owners = after;
    }
    owners = leaves(&world, &mut workers, &owners, End::Term).await;
    leaves(&world, &mut workers, &owners, End::Kill).await;
    world.drained().await;
    for (_, worker) in workers {
        worker.stop().await.assert_balanced();
    }
    assert_eq!(leases(&world).await, vec![""; usize::from(SHARDS)], "leases are given back");
    assert!(tokens(&world).await.iter().all(|token| token.is_empty()), "everybody has left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_a_shard_stands_by_in_good_health() {
    let world = World::shared("standby", 2).await;
    let mut workers = Vec::new();
    for name in ["a", "b", "c", "d"] {
        workers.push((name.to_owned(), named(&world, name).ready().await));
    }
    let owners = settled(&world, &names(&workers)).await;
    lanes_match(&workers, &owners).await;
    let is_idle = |name: &String| !owners.contains(name);
    assert!(workers.iter().filter(|(name, _)| is_idle(name)).count() >= 2);
    for (name, worker) in &workers {
        assert!(worker.is_ready().await, "{name}");
        assert_eq!(worker.get("/healthz").await.unwrap().0, 200, "{name}");
    }
    // All owners are killed together.
    let start = Instant::now();
    let (idle, busy): (Vec<_>, Vec<_>) = workers.into_iter().partition(|(name, _)| is_idle(name));
    for (_, worker) in busy {
        worker.kill().await;
    }
    for shard in 0..2 {
        world.add(shard, &point(&format!("F{shard}"), 1, 4.3, 52.1)).await;
    }
    world.drained().await;
    eprintln!("all owners killed: those that stood by had drained {:.2?} later", start.elapsed());
    settled(&world, &names(&idle)).await;
    let mut applied = 0;
    for (_, worker) in idle {
        let counts = worker.stop().await;
        counts.assert_balanced();
        applied += counts.applied;
    }
    assert_eq!(applied, 2);
}

/// It has no lane that would notice: its readiness is all that says whether it could step in.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stands_by_is_ready_only_while_both_servers_answer() {
    let world = World::shared("standby_cut", 1).await;
    let (mut workers, mut ways) = (Vec::new(), Vec::new());
    for name in ["a", "b"] {
        let (redis, redis_url) = Proxy::to(&world.redis_url).await;
        let (postgres, database_url) = Proxy::to(&world.database_url).await;
        let command = named(&world, name).set("REDIS_URL", &redis_url).set("DATABASE_URL", &database_url);
        workers.push((name.to_owned(), command.ready().await));
        ways.push([("redis", redis), ("postgres", postgres)]);
    }
    let owners = settled(&world, &names(&workers)).await;
    lanes_match(&workers, &owners).await;
    let place = workers.iter().position(|(name, _)| *name != owners[0]).unwrap();
    let idle = &workers[place].1;
    for (server, way) in &ways[place] {
        way.set(Way::Closed);
        eventually(&format!("it misses {server}, and only that"), async || {
            let (status, body) = idle.get("/readyz").await.unwrap();
            let said: serde_json::Value = serde_json::from_str(&body).unwrap();
            status == 503 && ["redis", "postgres"].iter().all(|name| said[name] == (name != server))
        })
        .await;
        assert_eq!(idle.get("/healthz").await.unwrap().0, 200, "it works, and would be of no better use restarted");
        way.set(Way::Open);
        idle.until_ready(true).await;
        assert_eq!(settled(&world, &["a", "b"]).await, owners);
    }
    for (_, worker) in workers {
        assert!(worker.is_ready().await);
        worker.stop().await.assert_balanced();
    }
}

/// Whatever is done once for each shard takes its time once for each shard: on a long way to Redis,
/// or a busy Redis, the first leases would be over before the last were taken.
#[tokio::test(flavor = "multi_thread")]
async fn many_leases_are_taken_and_kept_over_a_long_way_to_redis() {
    const SHARDS: u16 = 256;
    let world = World::shared("many_leases", SHARDS).await;
    let (proxy, url) = Proxy::to(&world.redis_url).await;
    proxy.delay(Duration::from_millis(20));
    let worker = world.worker().set("REDIS_URL", &url).set("LEASE", "4s").set("RENEW", "1s").ready().await;
    worker.until_metric("hexlane_lanes_owned", f64::from(SHARDS)).await;
    for shard in 0..SHARDS {
        world.add(shard, &point(&format!("s{shard}"), 1, 4.3, 52.1)).await;
    }
    world.drained().await;
    assert!(!worker.log().contains("the lease has run out"), "{}", worker.log());
    worker.stop().await.assert_balanced();
}
