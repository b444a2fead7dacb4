//! `hexlane rewind`: what was settled comes again.

use std::collections::HashMap;

use super::run;
use crate::world::{Traffic, World, point};

async fn rewind(world: &World, args: &[&str]) -> String {
    let ended = run(world.command(&[&["rewind"], args].concat()), b"").await;
    assert_eq!(ended.code, 0, "{ended:?}");
    ended.stdout
}

#[tokio::test(flavor = "multi_thread")]
async fn what_entered_since_comes_again() {
    let world = World::shared("rewind", 2).await;
    assert_eq!(run(world.command(&["publish"]), b"").await.code, 0);
    assert_eq!(
        rewind(&world, &["--to", "0"]).await,
        "shard 000: nobody has read it yet\nshard 001: nobody has read it yet\n"
    );
    let mut ids = Vec::new();
    for version in 1..=4 {
        ids.push(world.add(0, &point("F", version, 4.3, 52.1)).await);
    }
    world.add(1, &point("G", 1, 4.3, 52.1)).await;
    assert_eq!(world.worker().once().await.read, 5);

    // The table was restored from a backup that has less.
    world.sql("DELETE FROM feature_state WHERE feature_id = 'F'").await;
    let said = rewind(&world, &["--shard", "0", "--to", &ids[2]]).await;
    assert_eq!(said, format!("shard 000: set back: what entered from {} on comes again\n", ids[2]));
    let counts = world.drain_in_one_batch().await;
    assert_eq!((counts.read, counts.applied), (2, 1), "{counts:?}");
    assert_eq!(world.state("F").await, Some((4, "update".into())));

    // Never forward: nobody may skip what was not read.
    world.add(0, &point("F", 5, 4.3, 52.1)).await;
    let said = rewind(&world, &["--to", "2200-01-01T00:00:00Z"]).await;
    assert_eq!(said, "shard 000: is not that far yet\nshard 001: is not that far yet\n");
    assert_eq!(world.worker().once().await.read, 1);
    rewind(&world, &["--to", "2020-01-01T00:00:00Z"]).await;
    assert_eq!(world.worker().once().await.read, 6);
    let ended = run(world.command(&["rewind", "--to", "yesterday"]), b"").await;
    assert!(ended.code == 2 && ended.stderr.contains("2026-07-13T12:00:00Z"), "{ended:?}");
}

/// With a retention that trims all the while: what a worker is about to trim may be what is set back.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_was_set_back_is_trimmed_before_it_came_again() {
    const PER_SECOND: usize = 2000;
    let world = World::shared("rewind_load", 2).await;
    let mut rng = rand::SeedableRng::seed_from_u64(crate::world::seed());
    let traffic = Traffic::new(&mut rng, 8000, 2);
    let worker = world.worker().set("RETENTION", "1s").ready().await;
    let producer = traffic.produce(&world, PER_SECOND);
    let begin = tokio::time::Instant::now();
    let mut set_back = 0;
    for round in 1..=6 {
        tokio::time::sleep_until(begin + traffic.lasts(PER_SECOND) * round / 7).await;
        // Held for a moment, so that what is counted is what is set back; what it meant to trim it still means to.
        worker.signal("STOP");
        for shard in 0..2 {
            let key = world.events_key(shard);
            let groups: Vec<HashMap<String, redis::Value>> = world.ask(&format!("XINFO GROUPS {key}")).await;
            let delivered: String = redis::from_redis_value(groups[0]["last-delivered-id"].clone()).unwrap();
            let there: Vec<(String, redis::Value)> = world.ask(&format!("XRANGE {key} - {delivered}")).await;
            set_back += there.len() as u64;
        }
        rewind(&world, &["--to", "0"]).await;
        worker.signal("CONT");
    }
    producer.await.unwrap();
    world.drained().await;
    let counts = worker.stop().await;
    counts.assert_balanced();
    assert!(set_back > 1000, "{set_back}");
    assert!(counts.read >= traffic.sends.len() as u64 + set_back, "{set_back} were set back: {counts:?}");
    assert_eq!(counts.lost, 0, "{counts:?}");
    traffic.assert_landed(&world).await;
}
