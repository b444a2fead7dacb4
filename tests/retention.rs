//! Settled entries leave the stream, late enough and never before everybody is done with them.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::world::{Server, World, eventually, point};

type Pending = (String, String, i64, i64);

async fn length(world: &World, shard: u16) -> u64 {
    world.ask(&format!("XLEN {}", world.events_key(shard))).await
}

/// The oldest entry's id.
async fn first(world: &World, shard: u16) -> String {
    let mut entries: Vec<(String, redis::Value)> =
        world.ask(&format!("XRANGE {} - + COUNT 1", world.events_key(shard))).await;
    entries.remove(0).0
}

/// One more event: time goes on with the writes.
async fn write(world: &World, shard: u16) {
    static VERSION: AtomicI64 = AtomicI64::new(1);
    let version = VERSION.fetch_add(1, Ordering::Relaxed);
    world.add(shard, &point(&format!("again-{shard}"), version, 4.3, 52.1)).await;
}

/// Hands everything that is left to the other group; answers the ids of all that it has not settled.
async fn other_reads(world: &World, key: &str) -> Vec<String> {
    let _: redis::Value = world.ask(&format!("XREADGROUP GROUP other reader COUNT 100000 STREAMS {key} >")).await;
    let pending: Vec<Pending> = world.ask(&format!("XPENDING {key} other - + 100000")).await;
    pending.into_iter().map(|(id, ..)| id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_group_needs_stays() {
    const EVENTS: usize = 1000;
    let world = World::shared("retained", 2).await;
    let key = world.events_key(1);
    let _: String = world.ask(&format!("XGROUP CREATE {key} other 0 MKSTREAM")).await;
    let worker = world.worker().set("RETENTION", "1s").ready().await;
    for shard in 0..2 {
        let events: Vec<_> = (0..EVENTS).map(|n| point(&format!("F{shard}-{n}"), 1, 4.3, 52.1)).collect();
        world.add_together(shard, &events).await;
    }
    world.drained().await;
    eventually("one shard is trimmed", async || {
        write(&world, 0).await;
        write(&world, 1).await;
        length(&world, 0).await < EVENTS as u64 / 2
    })
    .await;
    assert!(length(&world, 1).await > EVENTS as u64, "the other group has read nothing: nothing of it may go");
    let status: serde_json::Value = serde_json::from_str(&world.hexlane(&["status", "--json"]).await).unwrap();
    assert!(status["shards"][0]["lag"].is_number(), "the server still knows it: {status}");

    // The other group settles all but one.
    let mut settled = other_reads(&world, &key).await;
    let kept = settled.remove(250);
    let _: u64 = world.ask(&format!("XACK {key} other {}", settled.join(" "))).await;
    eventually("what it has settled before that one is gone", async || {
        write(&world, 1).await;
        first(&world, 1).await == kept
    })
    .await;
    let settled = other_reads(&world, &key).await;
    let _: u64 = world.ask(&format!("XACK {key} other {}", settled.join(" "))).await;
    eventually("the rest is gone", async || {
        write(&world, 1).await;
        length(&world, 1).await < EVENTS as u64 / 2
    })
    .await;
    world.drained().await;
    worker.stop().await.assert_balanced();
}

/// How often a shard was looked at; asked without `hexlane status`, which looks as well.
async fn looks(world: &World) -> u64 {
    let stats: String = world.ask("INFO commandstats").await;
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_xinfo|groups:calls="));
    calls.and_then(|calls| calls.split(',').next()?.parse().ok()).unwrap_or(0)
}

/// What a promoted standby may lack is what was written last, however long ago that is.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_uses_up_nothing() {
    const EVENTS: u64 = 100;
    let world = World::private("retained_outage", 1).await;
    let worker = world.worker().set("RETENTION", "6s").set("RETRY_CAP", "200ms").ready().await;
    let events: Vec<_> = (0..EVENTS).map(|n| point(&format!("F{n}"), 1, 4.3, 52.1)).collect();
    world.add_together(0, &events).await;
    world.drained().await;
    let before = looks(&world).await;
    eventually("the worker has seen them settled", async || looks(&world).await > before).await;
    let settled = std::time::Instant::now();
    world.servers(|servers| servers.kill(Server::Postgres)).await;
    write(&world, 0).await;
    worker.until_ready(false).await;
    eventually("more than the retention has passed", async || settled.elapsed().as_secs() > 7).await;
    world.servers(|servers| servers.restart(Server::Postgres)).await;
    eventually("the event has landed", async || world.pending().await == 0).await;
    let before = looks(&world).await;
    eventually("the worker has looked twice", async || looks(&world).await > before + 1).await;
    assert_eq!(length(&world, 0).await, EVENTS + 1);
    let oldest = first(&world, 0).await;
    eventually("with time they go", async || {
        write(&world, 0).await;
        first(&world, 0).await != oldest
    })
    .await;
    world.drained().await;
    worker.stop().await.assert_balanced();
}
