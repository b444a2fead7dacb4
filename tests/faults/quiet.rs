//! A worker with nothing to do is quiet; one that blocks in its reads still does everything else.

use super::{calls, strand};
use crate::world::{World, eventually, point};

/// Connections of one worker besides those that block, one for each shard.
const POOL: usize = 8;

async fn clients(world: &World) -> usize {
    world.ask::<String>("CLIENT LIST TYPE normal").await.lines().count()
}

async fn connections_received(world: &World) -> u64 {
    let info: String = world.ask("INFO stats").await;
    let line = info.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    line.unwrap().trim().parse().unwrap()
}

/// One test, because servers of one's own take long to make, and only there nobody else is counted.
#[tokio::test(flavor = "multi_thread")]
async fn idle_workers_make_no_connections_no_noise_and_few_looks() {
    const SHARDS: u64 = 16;
    let world = World::private("idle", SHARDS as u16).await;
    let without = clients(&world).await;
    // A block that outlasts the client library's own limit of half a second four times.
    let named = |name: &str| world.worker().set("WORKER_NAME", name).set("BLOCK", "2s").set("LEASE", "3s");
    let workers = [named("one").ready().await, named("two").ready().await];
    let reads = async || calls(&world, "xreadgroup").await;
    let settled = async || {
        let mut owners = Vec::new();
        for shard in 0..world.shards {
            let owner: Option<String> = world.ask(&format!("GET {}", world.owner_key(shard))).await;
            owners.push(owner.unwrap_or_default());
        }
        ["one/", "two/"].iter().all(|name| owners.iter().any(|owner| owner.starts_with(name)))
            && owners.iter().all(|owner| !owner.is_empty())
    };
    eventually("both own shards", settled).await;
    let first = reads().await;
    eventually("every reader has read twice", async || reads().await >= first + 2 * SHARDS).await;

    let noise = |log: &str| log.lines().filter(|line| line.contains("\"WARN\"") || line.contains("\"ERROR\"")).count();
    let before = (connections_received(&world).await, calls(&world, "xautoclaim").await);
    let logged: Vec<usize> = workers.iter().map(|worker| noise(&worker.log())).collect();
    let first = reads().await;
    eventually("every reader has read again", async || reads().await >= first + 2 * SHARDS).await;
    assert_eq!(connections_received(&world).await, before.0, "new connections while idle");
    assert_eq!(workers.iter().map(|worker| noise(&worker.log())).collect::<Vec<_>>(), logged);
    let (looks, made) = (calls(&world, "xautoclaim").await - before.1, reads().await - first);
    // At the most one between two reads, and the pauses grow.
    assert!(looks <= made + SHARDS, "{looks} looks at the pending list with {made} reads");
    assert!(clients(&world).await <= without + SHARDS as usize + 2 * POOL);
    let [one, two] = workers;
    let (one, two) = (one.stop().await, two.stop().await);
    assert_eq!((one.read, two.read), (0, 0));

    // With more shards there are more readers, and nothing else more.
    for shards in [16, 64] {
        let without = clients(&world).await;
        let namespace = format!("{}-{shards}", world.namespace);
        let worker = world.worker().set("NAMESPACE", &namespace).set("SHARDS", &shards.to_string()).ready().await;
        worker.until_metric("hexlane_lanes_owned", shards as f64).await;
        let first = reads().await;
        eventually("every lane reads", async || reads().await >= first + 2 * shards).await;
        let made = clients(&world).await - without;
        assert!((shards as usize..=shards as usize + POOL).contains(&made), "{made} connections for {shards} shards");
        worker.stop().await;
    }
}

/// The block lasts as good as for ever, so that whatever waited for its end would not come.
#[tokio::test(flavor = "multi_thread")]
async fn everything_else_goes_on_while_the_reads_block() {
    const SHARDS: u16 = 16;
    let world = World::shared("blocking", SHARDS).await;
    let named = |name: &str| {
        let worker = world.worker().set("WORKER_NAME", name);
        worker.set("BLOCK", "10m").set("LEASE", "20m").set("RENEW", "200ms")
    };
    let worker = named("one").ready().await;
    worker.until_metric("hexlane_lanes_owned", f64::from(SHARDS)).await;
    for shard in 0..SHARDS {
        // One alone, so that the reader is back in its block when it is settled.
        world.add(shard, &point(&format!("good{shard}"), 1, 4.3, 52.1)).await;
        world.add(shard, b"{bad").await;
    }
    eventually("acknowledged, and dead letters written", async || {
        world.dead_letters().await.len() == usize::from(SHARDS) && world.pending().await == 0
    })
    .await;
    for shard in 0..SHARDS {
        let _: i64 = world.ask(&format!("PEXPIRE {} 60000", world.owner_key(shard))).await;
    }
    eventually("leases are renewed", async || {
        let mut least = i64::MAX;
        for shard in 0..SHARDS {
            least = least.min(world.ask::<i64>(&format!("PTTL {}", world.owner_key(shard))).await);
        }
        least > 60_000
    })
    .await;
    assert!(worker.is_ready().await);

    // A second one comes: shards are handed over in the middle of the block, and read there.
    let second = named("two").ready().await;
    eventually("each owns a share", async || {
        let lanes = async |worker: &crate::world::Worker| worker.metric("hexlane_lanes_owned").await.unwrap_or(0.0);
        let (one, two) = (lanes(&worker).await, lanes(&second).await);
        one > 0.0 && two > 0.0 && one + two == f64::from(SHARDS)
    })
    .await;
    for shard in 0..SHARDS {
        world.add(shard, &point(&format!("later{shard}"), 1, 4.3, 52.1)).await;
        // Taken over when the block ends, which any new entry does.
        strand(&world, shard, "gone", &[point(&format!("stranded{shard}"), 1, 4.3, 52.1)], &[]).await;
    }
    for shard in 0..SHARDS {
        world.add(shard, &point(&format!("last{shard}"), 1, 4.3, 52.1)).await;
        eventually("it lands", async || world.state(&format!("last{shard}")).await.is_some()).await;
    }
    let (one, two) = (worker.stop().await, second.stop().await);
    one.assert_balanced();
    two.assert_balanced();
}
