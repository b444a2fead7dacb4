//! A Redis that is at its memory limit, or that has forgotten everything.

use super::{named, settled};
use crate::world::{World, eventually, point};

const SHARDS: u16 = 4;

/// `hexlane publish` of one event; exit code and what it says.
async fn publish(world: &World, args: &[&str], event: &[u8]) -> (Option<i32>, String) {
    use tokio::io::AsyncWriteExt;
    let mut command = world.command(&[&["publish"], args].concat());
    command.stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    // It may refuse before it has read anything.
    let _ = child.stdin.take().unwrap().write_all(event).await;
    let output = child.wait_with_output().await.unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

async fn is_full(world: &World) -> bool {
    let mut command = redis::cmd("XADD");
    command.arg(world.events_key(0)).arg("*").arg("event").arg("{}");
    let answer = command.exec_async(&mut world.redis()).await;
    answer.is_err_and(|error| error.code() == Some("OOM"))
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_memory_limit_workers_own_drain_and_start_again() {
    let world = World::private("memory_limit", SHARDS).await;
    // A connection for each lane: those that wait for a lock must not keep the others waiting.
    // Without a window, or the invalid events would be dead letters before the limit.
    let start = |name: &str| {
        let worker = named(&world, name).set("STATEMENT_TIMEOUT", "2m").set("POOL_SIZE", "8");
        worker.set("REORDER_WINDOW", "0s").set("RETENTION", "1s")
    };
    let (stays, killed) = (start("stays").ready().await, start("killed").ready().await);
    settled(&world, &["stays", "killed"]).await;
    // A row of each shard is locked: no write gets through, and yet a worker can start.
    for shard in 0..SHARDS {
        world.add(shard, &point(&format!("s{shard}-0"), 0, 4.3, 52.1)).await;
    }
    world.drained().await;
    let (holder, other_holder) = (world.postgres().await, world.postgres().await);
    let lock = |shards: &str| format!("BEGIN; SELECT FROM feature_state WHERE feature_id ~ '^s[{shards}]-' FOR UPDATE");
    holder.batch_execute(&lock("01")).await.unwrap();
    other_holder.batch_execute(&lock("23")).await.unwrap();
    for shard in 0..SHARDS {
        let mut events: Vec<_> = (0..100).map(|n| point(&format!("s{shard}-{n}"), 1, 4.3, 52.1)).collect();
        events.insert(50, b"no event".to_vec());
        world.add_together(shard, &events).await;
    }
    let _: String = world.ask("CONFIG SET maxmemory-policy noeviction maxmemory 1").await;
    assert!(is_full(&world).await);

    let (code, said) = publish(&world, &[], &point("refused", 1, 4.3, 52.1)).await;
    assert_eq!(code, Some(1));
    assert!(said.contains("Redis is at its memory limit: raise maxmemory or free memory"), "{said}");

    // It takes a lease until the shards of the other one are free; meanwhile this one keeps its own.
    killed.kill().await;
    assert_eq!(settled(&world, &["stays"]).await, ["stays"; SHARDS as usize]);
    holder.batch_execute("ROLLBACK").await.unwrap();
    eventually("half is drained", async || world.pending().await == 202).await;
    assert_eq!(world.dead_letters().await.len(), 2);
    assert!(!stays.log().contains("lease has run out") && !stays.log().contains("somebody else's"));

    stays.kill().await;
    let again = start("killed").start();
    assert_eq!(settled(&world, &["killed"]).await, ["killed"; SHARDS as usize]);
    other_holder.batch_execute("ROLLBACK").await.unwrap();
    world.drained().await;
    // Nothing is left of a shard, though no write follows.
    for shard in 0..SHARDS {
        let length = format!("XLEN {}", world.events_key(shard));
        eventually("the shard is trimmed", async || world.ask::<u64>(&length).await == 0).await;
    }
    assert!(is_full(&world).await, "all this was at the limit");
    let rows = "SELECT count(*) FROM feature_state WHERE version = 1";
    assert_eq!(world.postgres().await.query_one(rows, &[]).await.unwrap().get::<_, i64>(0), 400);
    let letters = world.dead_letters().await;
    assert_eq!(letters.len(), usize::from(SHARDS));
    assert!(letters.iter().all(|letter| letter.reason() == "not_json"));
    again.until_ready(true).await;
    let counts = again.stop().await;
    counts.assert_balanced();
    assert_eq!((counts.read, counts.settled(), counts.dead_lettered), (202, 202, 2), "{counts:?}");
}

async fn topology(world: &World) -> Option<String> {
    world.ask(&format!("HGET {}:topology shards", world.namespace)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_flush_the_topology_is_what_it_was() {
    let world = World::private("flushed", SHARDS).await;
    let workers = (named(&world, "a").ready().await, named(&world, "b").ready().await);
    settled(&world, &["a", "b"]).await;
    let traffic = {
        let mut traffic = crate::world::Traffic::default();
        for n in 0..20_000 {
            let text = traffic.expect(&format!("F{n}"), 1, "create", n, "");
            traffic.sends.push(((n % i64::from(SHARDS)) as u16, text));
        }
        std::sync::Arc::new(traffic)
    };
    let producer = traffic.produce(&world, 4000);
    eventually("500 have landed", async || {
        let rows = "SELECT count(*) FROM feature_state";
        world.postgres().await.query_one(rows, &[]).await.unwrap().get::<_, i64>(0) >= 500
    })
    .await;
    let start = std::time::Instant::now();
    let _: String = world.ask("FLUSHALL").await;
    assert!(!producer.is_finished(), "under load");
    eventually("a heartbeat has set the topology again", async || topology(&world).await.is_some()).await;
    eprintln!("flush: the topology is there again after {:?}", start.elapsed());
    let (code, said) = publish(&world, &["--shards", "8"], &point("scattered", 1, 4.3, 52.1)).await;
    assert_eq!(code, Some(1));
    let differs = format!("--shards is 8 here, but {}:topology says {SHARDS}", world.namespace);
    assert!(said.contains(&differs), "{said}");
    assert_eq!(topology(&world).await.as_deref(), Some("4"));

    for n in 0..40 {
        let (code, said) = if n == 0 {
            publish(&world, &[], &point("after-0", 1, 4.3, 52.1)).await
        } else {
            world.add(n % SHARDS, &point(&format!("after-{n}"), 1, 4.3, 52.1)).await;
            (Some(0), String::new())
        };
        assert_eq!(code, Some(0), "{said}");
    }
    producer.await.unwrap();
    settled(&world, &["a", "b"]).await;
    world.drained().await;
    let rows = "SELECT count(*) FROM feature_state WHERE feature_id LIKE 'after-%'";
    assert_eq!(world.postgres().await.query_one(rows, &[]).await.unwrap().get::<_, i64>(0), 40);
    assert_eq!(world.state("scattered").await, None);
    assert_eq!(world.state("F19999").await, Some((1, "create".into())), "sent long after the flush");
    let keys: Vec<String> = world.ask(&format!("KEYS {}:*:events", world.namespace)).await;
    assert_eq!(keys.len(), usize::from(SHARDS));
    for worker in [workers.0, workers.1] {
        let counts = worker.stop().await;
        assert_eq!((counts.dead_lettered, counts.read >= counts.settled()), (0, true), "{counts:?}");
    }
}

/// Somebody with another number of shards was quicker than the heartbeat.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_topology_was_changed_ends_and_names_both() {
    let world = World::shared("changed", SHARDS).await;
    let mut worker = named(&world, "a").ready().await;
    settled(&world, &["a"]).await;
    let _: u32 = world.ask(&format!("HSET {}:topology shards 8", world.namespace)).await;
    assert_eq!(worker.wait().await.code(), Some(1), "{}", worker.log());
    let differs = format!("--shards is {SHARDS} here, but {}:topology says 8", world.namespace);
    assert!(worker.log().contains(&differs), "{}", worker.log());
    assert_eq!(super::leases(&world).await, vec![""; usize::from(SHARDS)], "the leases are given back");
}
