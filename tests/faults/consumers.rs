//! Names of consumers: they do not pile up, and none goes with something in its hand.

use std::collections::HashMap;

use super::{count_rows, strand};
use crate::world::{World, eventually, point};

async fn consumers(world: &World) -> Vec<(String, i64)> {
    let ask = format!("XINFO CONSUMERS {} hexlane", world.events_key(0));
    let rows: Vec<HashMap<String, redis::Value>> = world.ask(&ask).await;
    let mut found: Vec<(String, i64)> = rows
        .into_iter()
        .map(|row| match (&row["name"], &row["pending"]) {
            (redis::Value::BulkString(name), redis::Value::Int(pending)) => {
                (String::from_utf8_lossy(name).into_owned(), *pending)
            }
            other => panic!("{other:?}"),
        })
        .collect();
    found.sort();
    found
}

/// The lane is full, so that it takes nothing over; house is kept all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_holds_entries_stays_and_they_land() {
    let world = World::shared("delconsumer", 1).await;
    let worker = world.worker().set("WORKER_NAME", "live").set("BATCH_ROWS", "10").ready().await;
    let holder = world.postgres().await;
    holder.batch_execute("BEGIN; LOCK TABLE feature_state IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let events: Vec<_> = (0..20_000).map(|n| point(&format!("f{n}"), 1, 4.3, 52.1)).collect();
    world.add_together(0, &events).await;
    // Full: it stops reading with more to read.
    let held = async || worker.metric("hexlane_buffered_events").await.unwrap_or(0.0);
    eventually("the lane is full", async || {
        let (before, calls) = (held().await, 10);
        for _ in 0..calls {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        before > 0.0 && before < 20_000.0 && held().await == before
    })
    .await;
    // What is unread goes to a consumer that is gone: five of it, and the rest as good as gone.
    let _: redis::Value =
        world.ask(&format!("XREADGROUP GROUP hexlane dead COUNT 5 STREAMS {} >", world.events_key(0))).await;
    let _: i64 = world.ask(&format!("XGROUP CREATECONSUMER {} hexlane empty", world.events_key(0))).await;
    eventually("house is kept", async || consumers(&world).await.iter().all(|(name, _)| name != "empty")).await;
    let names = consumers(&world).await;
    assert!(names.contains(&("dead".to_owned(), 5)), "removed with five entries in its hand: {names:?}");
    holder.batch_execute("COMMIT").await.unwrap();
    world.drained().await;
    assert_eq!(count_rows(&world).await, 20_000);
    eventually("only the live one is left", async || consumers(&world).await == [("live".to_owned(), 0)]).await;
    worker.stop().await.assert_balanced();
}

/// Killed or told to leave, with five entries in hand or none.
#[tokio::test(flavor = "multi_thread")]
async fn names_of_many_restarts_do_not_pile_up() {
    let world = World::shared("names", 1).await;
    for n in 0..8 {
        let worker = world.worker().set("WORKER_NAME", &format!("w{n}")).ready().await;
        let owned = async || {
            let owner: Option<String> = world.ask(&format!("GET {}", world.owner_key(0))).await;
            owner.is_some_and(|owner| owner.starts_with(&format!("w{n}/")))
        };
        eventually("it owns the shard", owned).await;
        let events: Vec<_> = (0..5).map(|m| point(&format!("f{n}-{m}"), 1, 4.3, 52.1)).collect();
        strand(&world, 0, &format!("w{n}"), &events, &[]).await;
        if n % 2 == 0 { worker.kill().await } else { worker.stop().await.assert_balanced() }
    }
    let worker = world.worker().set("WORKER_NAME", "last").ready().await;
    eventually("only the last one is left", async || consumers(&world).await == [("last".to_owned(), 0)]).await;
    let live: Vec<String> = world.ask(&format!("ZRANGE {}:workers 0 -1", world.namespace)).await;
    assert!(live.len() == 1 && live[0].starts_with("last/"), "{live:?}");
    assert_eq!(count_rows(&world).await, 40);
    worker.stop().await.assert_balanced();
}
