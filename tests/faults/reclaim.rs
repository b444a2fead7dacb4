//! The pending list: all of it is seen, nothing in it is started twice, nothing stays in it.

use super::{count_rows, make_group, strand};
use crate::world::{World, eventually, point};

fn points(name: &str, count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|n| point(&format!("{name}{n}"), 1, 4.3, 52.1)).collect()
}

/// One call looks at ten times COUNT entries at the most, and a former page says nothing of the next.
#[tokio::test(flavor = "multi_thread")]
async fn everything_pending_lands_beside_a_worker_that_is_busy_with_new_entries() {
    let world = World::shared("window", 1).await;
    let worker = world.worker().ready().await;
    for round in 0..3 {
        strand(&world, 0, "dead", &points(&format!("a{round}-"), 150), &[]).await;
        world.add_together(0, &points(&format!("b{round}-"), 150)).await;
        // Older deliveries and younger ones side by side: without a lease's owner nobody is slow.
        strand(&world, 0, "frozen", &points(&format!("c{round}-"), 150), &[]).await;
    }
    world.drained().await;
    assert_eq!(count_rows(&world).await, 3 * 450);
    let counts = worker.stop().await;
    counts.assert_balanced();
    assert_eq!((counts.read, counts.applied), (3 * 450, 3 * 450));
}

/// Far more than one page, with holes as large as a page at its start, in its middle and at its end.
#[tokio::test(flavor = "multi_thread")]
async fn the_cursor_is_carried_over_pages_that_hold_nothing() {
    let world = World::shared("cursor", 1).await;
    make_group(&world, 0).await;
    let holes: Vec<usize> = (0..50).chain(1000..2200).chain(2500..2501).chain(2990..3000).collect();
    strand(&world, 0, "dead", &points("p", 3000), &holes).await;
    let left = 3000 - holes.len();
    let worker = world.worker().ready().await;
    world.drained().await;
    assert_eq!(count_rows(&world).await, left as i64);
    let counts = worker.stop().await;
    counts.assert_balanced();
    assert_eq!((counts.applied, counts.lost), (left as u64, holes.len() as u64));
    assert_eq!(world.dead_letters().await.len(), 0);
}

/// One look brings the whole list before anything new is read. Were the rest of it left for the next
/// look, the state would still be right in the end, and the order would not.
#[tokio::test(flavor = "multi_thread")]
async fn every_page_of_the_pending_list_comes_before_what_is_new() {
    const FEATURES: usize = 3500;
    let world = World::shared("pages_first", 1).await;
    strand(&world, 0, "dead", &points("p", FEATURES), &[]).await;
    // The first of the new ones belong to the last of the pending ones.
    let newer: Vec<_> = (0..FEATURES).rev().map(|n| point(&format!("p{n}"), 2, 4.3, 52.1)).collect();
    world.add_together(0, &newer).await;
    // Batches far smaller than a page: in one batch with a newer event, an older one would be
    // superseded, whichever was read first.
    let counts = world.worker().set("BATCH_ROWS", "50").set("REORDER_WINDOW", "0s").once().await;
    assert_eq!((counts.settled(), counts.stale), (2 * FEATURES as u64, 0), "{counts:?}");
    assert_eq!(count_rows(&world).await, FEATURES as i64);
}

/// The timed looks at the pending list are a safety net that becomes slower and slower while they
/// bring nothing. What a renewal sees does not wait for the next one.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_renewal_finds_pending_is_taken_over_however_long_the_looks_pause() {
    /// The pause after the last of as many looks in vain is drawn from twelve days.
    const LOOKS: i64 = 20;
    let world = World::shared("renewal", 1).await;
    // A user of its own, so that the server can end this worker's connections and nobody else's.
    let user = &world.namespace;
    let _: String = world.ask(&format!("ACL SETUSER {user} on >secret ~* &* +@all")).await;
    let url = world.redis_url.replace("redis://", &format!("redis://{user}:secret@"));
    let worker = world.worker().set("REDIS_URL", &url).set("MIN_IDLE", "30d").set("RETRY_CAP", "100ms");
    // A lease that ends would be a look as well.
    let worker = worker.set("LEASE", "2m").ready().await;
    for round in 1..=LOOKS {
        let killed: i64 = world.ask(&format!("CLIENT KILL USER {user}")).await;
        assert!(killed > 0);
        // A new connection looks before it reads.
        world.add(0, &point("read", round, 4.3, 52.1)).await;
        let read = async || world.state("read").await == Some((round, "update".into()));
        eventually("the worker reads again", read).await;
    }
    world.drained().await;
    assert_eq!(worker.metric("hexlane_reclaimed_total").await, Some(0.0), "the looks were in vain");
    strand(&world, 0, "gone", &points("stranded", 3), &[]).await;
    world.drained().await;
    assert_eq!(count_rows(&world).await, 4);
    assert_eq!(worker.metric("hexlane_reclaimed_total").await, Some(3.0));
    worker.stop().await.assert_balanced();
    let _: i64 = world.ask(&format!("ACL DELUSER {user}")).await;
}

/// Waiting for the database uses up no delivery, and what is in hand is not started again.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_waits_for_the_database_keeps_its_entries() {
    let world = World::shared("slow_owner", 1).await;
    let worker = world.worker().set("WORKER_NAME", "slow").set("MIN_IDLE", "200ms").ready().await;
    // Somebody else is there to take them, were they to be had.
    let other = world.worker().set("WORKER_NAME", "other").set("MIN_IDLE", "200ms").ready().await;
    // The shard moves at the most once; one that is given back with work in hand takes nothing over.
    eventually("the shard has its owner", async || {
        let mut owners = std::collections::BTreeSet::new();
        for _ in 0..20 {
            owners.insert(world.ask::<Option<String>>(&format!("GET {}", world.owner_key(0))).await);
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        owners.len() == 1
    })
    .await;
    let holder = world.postgres().await;
    holder.batch_execute("BEGIN; LOCK TABLE feature_state IN ACCESS EXCLUSIVE MODE").await.unwrap();
    strand(&world, 0, "gone", &points("gone", 5), &[]).await;
    world.add_together(0, &points("slow", 5)).await;
    let taken = async |worker: &crate::world::Worker| worker.metric("hexlane_buffered_events").await.unwrap_or(0.0);
    eventually("all of it is in hand", async || taken(&worker).await + taken(&other).await == 10.0).await;
    // A stranded entry that comes later shows that the pending list has been looked at again.
    for n in 0..3 {
        strand(&world, 0, "gone", &points(&format!("late{n}-"), 1), &[]).await;
        let wanted = f64::from(11 + n);
        eventually("the late one is in hand too", async || taken(&worker).await + taken(&other).await == wanted).await;
    }
    let ask = format!("XPENDING {} hexlane - + 100", world.events_key(0));
    eventually("no delivery is used up", async || {
        let rows: Vec<(String, String, i64, i64)> = world.ask(&ask).await;
        rows.len() == 13 && rows.iter().all(|row| row.3 == 1)
    })
    .await;
    holder.batch_execute("COMMIT").await.unwrap();
    world.drained().await;
    let (one, two) = (worker.stop().await, other.stop().await);
    assert_eq!((one.read + two.read, one.applied + two.applied), (13, 13), "one landing each: {one:?} {two:?}");
    assert_eq!(world.dead_letters().await.len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_deleted_while_pending_is_lost_once_and_said_once() {
    for running in [true, false] {
        let world = World::shared("deleted", 1).await;
        make_group(&world, 0).await;
        let early = if running { Some(world.worker().ready().await) } else { None };
        let ids = strand(&world, 0, "dead", &points("b", 3), &[1]).await;
        let worker = match early {
            Some(worker) => worker,
            None => world.worker().ready().await,
        };
        worker.until_metric("hexlane_lost_total", 1.0).await;
        world.drained().await;
        assert!(world.state("b0").await.is_some() && world.state("b2").await.is_some());
        assert_eq!(count_rows(&world).await, 2);
        assert_eq!(world.dead_letters().await.len(), 0);
        let said = worker.log().lines().filter(|line| line.contains("lost") && line.contains(&ids[1])).count();
        assert_eq!(said, 1, "{}", worker.log());
        let counts = worker.stop().await;
        counts.assert_balanced();
        assert_eq!((counts.read, counts.applied, counts.lost), (3, 2, 1));
    }
}

/// The invalid and the good, deleted while the worker has them in its hand: what could be written is.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_deleted_while_in_hand_is_counted_for_what_became_of_it() {
    let world = World::shared("deleted_in_hand", 1).await;
    let worker = world.worker().ready().await;
    let holder = world.postgres().await;
    holder.batch_execute("BEGIN; LOCK TABLE feature_state IN ACCESS EXCLUSIVE MODE").await.unwrap();
    // It waits with the other until the window is over, and so they share a batch.
    let bad = String::from_utf8(points("bad", 1).remove(0)).unwrap().replace("EPSG:4326", "EPSG:3857").into_bytes();
    world.add_together(0, &[points("good", 1).remove(0), bad]).await;
    worker.until_metric("hexlane_buffered_events", 2.0).await;
    let entries: Vec<(String, redis::Value)> = world.ask(&format!("XRANGE {} - +", world.events_key(0))).await;
    for (id, _) in &entries {
        let _: i64 = world.ask(&format!("XDEL {} {id}", world.events_key(0))).await;
    }
    // It looks at the pending list once more, and the server drops from it what is deleted.
    strand(&world, 0, "dead", &points("later", 1), &[]).await;
    worker.until_metric("hexlane_buffered_events", 3.0).await;
    holder.batch_execute("COMMIT").await.unwrap();
    eventually("nothing is in hand", async || worker.metric("hexlane_buffered_events").await == Some(0.0)).await;
    assert_eq!(count_rows(&world).await, 2);
    assert_eq!(world.pending().await, 0);
    let counts = worker.stop().await;
    counts.assert_balanced();
    assert_eq!(world.dead_letters().await.len() as u64, counts.dead_lettered, "{counts:?}");
    assert_eq!((counts.applied, counts.lost), (2, 1), "{counts:?}");
}
