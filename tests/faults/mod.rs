//! Faults that others met with workers on Redis Streams, each tried here as it was reported.

mod acknowledgements;
mod connections;
mod consumers;
mod gaps;
mod geometry;
mod groups;
mod quiet;
mod reclaim;
mod size;

use crate::world::World;

/// Events that belong to a consumer that is gone, even while a worker waits in its read; answers
/// their ids. Those at `deleted` are gone from the stream already, and still pending.
async fn strand(world: &World, shard: u16, consumer: &str, events: &[Vec<u8>], deleted: &[usize]) -> Vec<String> {
    let key = world.events_key(shard);
    make_group(world, shard).await;
    // Ids of our own, so that all of it can be one transaction.
    let info: std::collections::HashMap<String, redis::Value> = world.ask(&format!("XINFO STREAM {key}")).await;
    let last: String = redis::from_redis_value(info["last-generated-id"].clone()).unwrap();
    let last: i64 = last.split('-').next().unwrap().parse().unwrap();
    let (seconds, micros): (i64, i64) = world.ask("TIME").await;
    let first = last.max(seconds * 1000 + micros / 1000) + 1;
    let ids: Vec<String> = (0..events.len()).map(|n| format!("{first}-{n}")).collect();
    let mut pipe = redis::pipe();
    pipe.atomic();
    for (id, event) in ids.iter().zip(events) {
        pipe.cmd("XADD").arg(&key).arg(id).arg("event").arg(event).ignore();
    }
    pipe.cmd("XREADGROUP").arg(&["GROUP", "hexlane", consumer, "COUNT"]).arg(events.len());
    pipe.arg("STREAMS").arg(&key).arg(">").ignore();
    for n in deleted {
        pipe.cmd("XDEL").arg(&key).arg(&ids[*n]).ignore();
    }
    pipe.exec_async(&mut world.redis()).await.unwrap();
    ids
}

/// Stream and group, if they are not there yet.
async fn make_group(world: &World, shard: u16) {
    let mut make = redis::cmd("XGROUP");
    make.arg("CREATE").arg(world.events_key(shard)).arg(&["hexlane", "0", "MKSTREAM"]);
    if let Err(error) = make.exec_async(&mut world.redis()).await {
        assert_eq!(error.code(), Some("BUSYGROUP"), "{error}");
    }
}

/// How often the server has run a command.
async fn calls(world: &World, command: &str) -> u64 {
    let info: String = world.ask("INFO commandstats").await;
    let line = info.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

async fn count_rows(world: &World) -> i64 {
    world.postgres().await.query_one("SELECT count(*) FROM feature_state", &[]).await.unwrap().get(0)
}
