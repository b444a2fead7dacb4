//! Replicas that share the shards: who owns what, in which order events land, and what becomes of a
//! worker that is frozen, killed or cut off.

mod order;
mod ownership;
mod proxy;
mod refusals;
mod spread;

use std::collections::BTreeMap;

use hexlane::fleet::rendezvous;

use crate::world::{Worker, WorkerCommand, World, eventually};

/// A worker of that name, not started yet.
fn named(world: &World, name: &str) -> WorkerCommand {
    world.worker().set("WORKER_NAME", name)
}

/// Tokens of the workers that have not left, those whose time is over among them.
async fn tokens(world: &World) -> Vec<String> {
    world.ask(&format!("ZRANGE {}:workers 0 -1", world.namespace)).await
}

fn name_of(token: &str) -> &str {
    token.rsplit_once('/').unwrap().0
}

/// The token in each shard's lease, empty where it is free.
async fn leases(world: &World) -> Vec<String> {
    let keys: Vec<String> = (0..world.shards).map(|shard| world.owner_key(shard)).collect();
    let found: Vec<Option<String>> = world.ask(&format!("MGET {}", keys.join(" "))).await;
    found.into_iter().map(Option::unwrap_or_default).collect()
}

/// Waits until exactly these workers are live and each shard is owned by the one that should own
/// it. Answers the owners as `hexlane status` names them.
async fn settled(world: &World, names: &[&str]) -> Vec<String> {
    eventually(&format!("{names:?} have settled who owns what"), async || {
        let live = tokens(world).await;
        let mut found: Vec<&str> = live.iter().map(|token| name_of(token)).collect();
        let mut wanted = names.to_vec();
        found.sort_unstable();
        wanted.sort_unstable();
        let leases = leases(world).await;
        found == wanted && (0..).zip(&leases).all(|(shard, lease)| rendezvous::winner(&live, shard) == Some(lease))
    })
    .await;
    let status: serde_json::Value = serde_json::from_str(&world.hexlane(&["status", "--json"]).await).unwrap();
    let mut live: Vec<&str> = status["workers"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    live.sort_unstable();
    let mut wanted = names.to_vec();
    wanted.sort_unstable();
    assert_eq!(live, wanted);
    let owner = |shard: &serde_json::Value| shard["owner"].as_str().expect("every shard is owned").to_owned();
    status["shards"].as_array().unwrap().iter().map(owner).collect()
}

/// How many shards each worker owns.
fn shares(owners: &[String]) -> BTreeMap<&str, usize> {
    let mut shares = BTreeMap::new();
    owners.iter().for_each(|owner| *shares.entry(owner.as_str()).or_default() += 1);
    shares
}

/// The worker with the most shards, taken out of `workers`.
fn take_busiest(workers: &mut Vec<(String, Worker)>, owners: &[String]) -> (String, Worker) {
    let shares = shares(owners);
    let place = (0..workers.len()).max_by_key(|place| shares.get(workers[*place].0.as_str())).unwrap();
    workers.remove(place)
}

fn names(workers: &[(String, Worker)]) -> Vec<&str> {
    workers.iter().map(|(name, _)| name.as_str()).collect()
}

/// Waits until this worker's write waits for a lock.
async fn until_it_waits_for_a_lock(world: &World, name: &str) {
    let postgres = world.postgres().await;
    let sql = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = $1 AND wait_event_type = 'Lock'";
    let application = format!("hexlane worker {name}");
    eventually(&format!("{name} waits for a lock"), async || {
        postgres.query_one(sql, &[&application]).await.unwrap().get::<_, i64>(0) > 0
    })
    .await;
}
