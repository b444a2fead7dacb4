//! One worker's own way to a server is cut, while everybody else's is not.

use std::time::Instant;

use super::{leases, name_of, named, settled, shares, tokens};
use crate::world::{Fault, Proxy, Way, World, eventually, point};

/// The entries of the lost reply are handled before those that came after them.
#[tokio::test(flavor = "multi_thread")]
async fn entries_of_a_lost_reply_come_before_later_ones() {
    const FEATURES: usize = 50;
    let world = World::shared("lost_reply", 1).await;
    let (proxy, url) = Proxy::to(&world.redis_url).await;
    // Neither a new lease nor the time of the next look at the pending list may do what is under test.
    let command = named(&world, "cut").set("REDIS_URL", &url).set("REORDER_WINDOW", "0s");
    let worker = command.set("LEASE", "30s").set("RENEW", "10s").set("RETRY_CAP", "100ms").ready().await;
    settled(&world, &["cut"]).await;
    let versions = |version| -> Vec<_> { (0..FEATURES).map(|n| point(&format!("F{n}"), version, 4.3, 52.1)).collect() };
    for round in 0..4 {
        proxy.once(Fault::CutAnswer(b"feature_id"));
        world.add_together(0, &versions(2 * round + 1)).await;
        proxy.until(Way::Closed).await;
        assert_eq!(world.pending().await, FEATURES as u64, "delivered, and lost on the way");
        world.add_together(0, &versions(2 * round + 2)).await;
        let start = Instant::now();
        proxy.set(Way::Open);
        world.drained().await;
        eprintln!("lost reply, round {round}: all handled {:.2?} after the way was open", start.elapsed());
    }
    assert!(!worker.log().contains("lease has run out"), "{}", worker.log());
    let counts = worker.stop().await;
    counts.assert_balanced();
    assert_eq!((counts.read, counts.stale), (8 * FEATURES as u64, 0), "{counts:?}");
    assert_eq!(world.state("F7").await, Some((8, "update".into())));
}

/// Adds an event to each shard, of version `version`.
async fn one_each(world: &World, version: i64) {
    for shard in 0..world.shards {
        world.add(shard, &point(&format!("F{shard}"), version, 4.3, 52.1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_of_a_worker_without_a_database_move_on_and_come_back() {
    let world = World::shared("cut_off", 16).await;
    let names = ["w1", "w2", "w3"];
    let (mut ways, mut workers) = (Vec::new(), Vec::new());
    for name in names {
        let (proxy, url) = Proxy::to(&world.database_url).await;
        let command = named(&world, name).set("DATABASE_URL", &url).set("YIELD_AFTER", "1s");
        workers.push(command.ready().await);
        ways.push(proxy);
    }
    let owners = settled(&world, &names).await;
    let share = shares(&owners);
    let cut = (0..3).max_by_key(|place| share.get(names[*place])).unwrap();
    let others: Vec<&str> = names.iter().copied().filter(|name| *name != names[cut]).collect();

    ways[cut].set(Way::Closed);
    let start = Instant::now();
    one_each(&world, 1).await;
    let moved = settled(&world, &others).await;
    world.drained().await;
    eprintln!("cut off: {} shards moved on and drained after {:.2?}", share[names[cut]], start.elapsed());
    assert!(owners.iter().zip(&moved).all(|(was, is)| was == is || was == names[cut]), "{owners:?} {moved:?}");
    assert!(workers[cut].log().contains("giving every shard back"));

    ways[cut].set(Way::Open);
    let start = Instant::now();
    assert_eq!(settled(&world, &names).await, owners, "it comes back to what was its own");
    eprintln!("cut off: shards came back {:.2?} after the way was open", start.elapsed());
    one_each(&world, 2).await;
    world.drained().await;
    for shard in 0..world.shards {
        assert_eq!(world.state(&format!("F{shard}")).await, Some((2, "update".into())));
    }

    // When nobody can write, somebody stays: there is nobody to give the shards to.
    ways.iter().for_each(|way| way.set(Way::Closed));
    one_each(&world, 3).await;
    eventually("one is left, with every shard", async || {
        let (live, leases) = (tokens(&world).await, leases(&world).await);
        live.len() == 1 && leases.iter().all(|lease| *lease == live[0])
    })
    .await;
    let last = name_of(&tokens(&world).await[0]).to_owned();
    ways.iter().for_each(|way| way.set(Way::Open));
    world.drained().await;
    assert_eq!(settled(&world, &names).await, owners);
    eprintln!("everybody cut off: {last} stayed");
    assert_eq!(world.dead_letters().await.len(), 0);
    for worker in workers {
        worker.stop().await.assert_balanced();
    }
}
