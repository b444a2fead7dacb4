//! A shard is one worker's at a time, and whoever has lost it writes and settles nothing more.

use std::time::{Duration, Instant};

use hexlane::shard::Keys;
use hexlane::stream::Stream;
use hexlane::stream::place::Certificates;
use hexlane::stream::server::Server;

use super::{named, names, settled, take_busiest, until_it_waits_for_a_lock};
use crate::world::{World, eventually, point};

const FEATURES: usize = 100;
/// The lock is held while a worker is frozen; no timeout may end the waiting before.
const PATIENT: &str = "2m";
/// Notes who writes a row, refused by the guard or not.
const WRITERS: &str = "CREATE TABLE writers (name text);
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
        $$BEGIN INSERT INTO writers VALUES (current_setting('application_name')); RETURN new; END$$;
    CREATE TRIGGER note BEFORE INSERT ON feature_state FOR EACH ROW EXECUTE FUNCTION note()";

async fn rows_sent_by(world: &World, name: &str) -> i64 {
    let sql = "SELECT count(*) FROM writers WHERE name = $1";
    world.postgres().await.query_one(sql, &[&format!("hexlane worker {name}")]).await.unwrap().get(0)
}

async fn until_nothing_of_it_runs(world: &World, name: &str) {
    let postgres = world.postgres().await;
    let sql = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = $1 AND state <> 'idle'";
    let application = format!("hexlane worker {name}");
    eventually(&format!("no statement of {name} is under way"), async || {
        postgres.query_one(sql, &[&application]).await.unwrap().get::<_, i64>(0) == 0
    })
    .await;
}

fn all(version: i64) -> Vec<Vec<u8>> {
    (0..FEATURES).map(|n| point(&format!("F{n}"), version, 4.3, 52.1)).collect()
}

async fn rows_of(world: &World, version: i64) -> i64 {
    let sql = "SELECT count(*) FROM feature_state WHERE version = $1";
    world.postgres().await.query_one(sql, &[&version]).await.unwrap().get(0)
}

/// Stopped in the middle of a write and past the lease. `answered`: the write's answer lies in the
/// worker's socket when it wakes up; else the write still waits.
async fn frozen_owner(world: &World, answered: bool) {
    let mut workers = Vec::new();
    for name in ["a", "b"] {
        let command = named(world, name).set("STATEMENT_TIMEOUT", PATIENT).set("BATCH_ROWS", "40");
        workers.push((name.to_owned(), command.set("REORDER_WINDOW", "0s").ready().await));
    }
    let owners = settled(world, &["a", "b"]).await;
    let (owner, frozen) = take_busiest(&mut workers, &owners);
    let (other, healthy) = workers.remove(0);
    world.sql(WRITERS).await;
    let holder = world.postgres().await;
    holder.batch_execute("BEGIN; LOCK TABLE feature_state IN ACCESS EXCLUSIVE MODE").await.unwrap();
    world.add_together(0, &all(1)).await;
    until_it_waits_for_a_lock(world, &owner).await;
    eventually("all is in hand", async || world.pending().await == FEATURES as u64).await;

    let start = Instant::now();
    frozen.signal("STOP");
    assert_eq!(settled(world, &[&other]).await, std::slice::from_ref(&other));
    until_it_waits_for_a_lock(world, &other).await;
    eprintln!("frozen owner: another one writes {:?} after SIGSTOP", start.elapsed());
    let sent = if answered {
        holder.batch_execute("ROLLBACK").await.unwrap();
        world.drained().await;
        // The other one may be done before the server has come to the end of this one's statement.
        until_nothing_of_it_runs(world, &owner).await;
        rows_sent_by(world, &owner).await
    } else {
        0
    };
    frozen.signal("CONT");
    eventually("it notices", async || frozen.log().contains("\"released\"")).await;
    if !answered {
        holder.batch_execute("ROLLBACK").await.unwrap();
    }
    // The same two are live again, so the shard goes back to where it was.
    assert_eq!(settled(world, &["a", "b"]).await, owners);
    world.drained().await;
    let sent_in_the_end = rows_sent_by(world, &owner).await;
    if answered {
        assert_eq!(sent_in_the_end, sent, "it writes nothing more");
    }
    assert!(sent_in_the_end <= 40, "only the statement that was under way: {sent_in_the_end} rows");
    assert_eq!(rows_of(world, 1).await, FEATURES as i64);

    world.add_together(0, &all(2)).await;
    world.drained().await;
    assert_eq!(rows_of(world, 2).await, FEATURES as i64);
    let (counts, others) = (frozen.stop().await, healthy.stop().await);
    counts.assert_balanced();
    others.assert_balanced();
    let features = FEATURES as u64;
    assert_eq!((counts.applied, counts.settled(), counts.released), (features, features, features), "{counts:?}");
    assert_eq!((others.read, others.settled()), (features, features), "{others:?}");
    // Both statements were let go together: of each row one of them was too late.
    assert!(others.stale <= sent_in_the_end as u64, "stale is what the frozen one had sent: {others:?}");
    assert_eq!(world.dead_letters().await.len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_owner_wakes_up_to_an_answer_and_settles_nothing() {
    frozen_owner(&World::shared("frozen_answered", 1).await, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_owner_wakes_up_in_its_write_and_goes_no_further() {
    frozen_owner(&World::shared("frozen_waiting", 1).await, false).await;
}

/// Stopped while a new connection prepares the statement: what comes next after that is the sending.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_owner_wakes_up_with_its_statement_prepared_and_does_not_send_it() {
    let world = World::shared("frozen_preparing", 1).await;
    let mut workers = Vec::new();
    for name in ["a", "b"] {
        let command = named(&world, name).set("STATEMENT_TIMEOUT", PATIENT).set("POOL_SIZE", "1");
        workers.push((name.to_owned(), command.set("REORDER_WINDOW", "0s").ready().await));
    }
    let owners = settled(&world, &["a", "b"]).await;
    let (owner, frozen) = take_busiest(&mut workers, &owners);
    let (other, healthy) = workers.remove(0);
    world.sql(WRITERS).await;
    let holder = world.postgres().await;
    end_connections(&world, &owner).await;
    holder.batch_execute("BEGIN; LOCK TABLE feature_state IN ACCESS EXCLUSIVE MODE").await.unwrap();
    world.add(0, &point("F", 1, 4.3, 52.1)).await;
    until_it_waits_for_a_lock(&world, &owner).await;

    frozen.signal("STOP");
    assert_eq!(settled(&world, &[&other]).await, std::slice::from_ref(&other));
    holder.batch_execute("ROLLBACK").await.unwrap();
    world.drained().await;
    until_nothing_of_it_runs(&world, &owner).await;
    frozen.signal("CONT");
    assert_eq!(settled(&world, &["a", "b"]).await, owners);
    let counts = frozen.stop().await;
    assert_eq!(rows_sent_by(&world, &owner).await, 0, "it writes nothing");
    assert_eq!((counts.read, counts.released, counts.settled()), (1, 1, 0), "{counts:?}");
    healthy.stop().await.assert_balanced();
    assert_eq!(rows_of(&world, 1).await, 1);
}

/// Its next write has to connect and to prepare.
async fn end_connections(world: &World, name: &str) {
    let postgres = world.postgres().await;
    let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = $1";
    let application = format!("hexlane worker {name}");
    eventually(&format!("{name} has no connection"), async || {
        postgres.query_one(sql, &[&application]).await.unwrap().get::<_, i64>(0) == 0
    })
    .await;
}

async fn consumers(world: &World, shard: u16) -> Vec<String> {
    type Consumer = std::collections::HashMap<String, redis::Value>;
    let found: Vec<Consumer> = world.ask(&format!("XINFO CONSUMERS {} hexlane", world.events_key(shard))).await;
    let mut names: Vec<String> = found.iter().map(|one| redis::from_redis_value_ref(&one["name"]).unwrap()).collect();
    names.sort();
    names
}

/// One that is killed with its hands full: its entries land first, then its name goes.
#[tokio::test(flavor = "multi_thread")]
async fn the_name_of_a_killed_worker_goes_once_it_holds_nothing() {
    let world = World::shared("consumers", 4).await;
    let mut workers = Vec::new();
    for name in ["a", "b"] {
        workers.push((name.to_owned(), named(&world, name).set("STATEMENT_TIMEOUT", PATIENT).ready().await));
    }
    let owners = settled(&world, &["a", "b"]).await;
    let (gone, killed) = take_busiest(&mut workers, &owners);
    let (rest, holder) = (workers[0].0.clone(), world.postgres().await);
    holder.batch_execute("BEGIN; LOCK TABLE feature_state IN ACCESS EXCLUSIVE MODE").await.unwrap();
    for shard in 0..4 {
        let events: Vec<_> = (0..50).map(|n| point(&format!("s{shard}-{n}"), 1, 4.3, 52.1)).collect();
        world.add_together(shard, &events).await;
    }
    eventually("all is in hand", async || world.pending().await == 200).await;
    killed.kill().await;
    holder.batch_execute("ROLLBACK").await.unwrap();
    settled(&world, &[&rest]).await;
    world.drained().await;
    assert_eq!(rows_of(&world, 1).await, 200);
    eventually(&format!("the name {gone} is gone, and {rest} is not"), async || {
        let mut left = Vec::new();
        for shard in 0..4 {
            left.push(consumers(&world, shard).await);
        }
        left.iter().all(|names| *names == [rest.clone()])
    })
    .await;
    assert_eq!(names(&workers), [rest]);
    workers.remove(0).1.stop().await.assert_balanced();
}

/// Asked of the script itself: a worker would take the entries before anybody could look.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_holds_entries_or_lives_or_was_busy_keeps_its_name() {
    let world = World::shared("holder", 1).await;
    let key = world.events_key(0);
    let id = world.add(0, &point("F", 1, 4.3, 52.1)).await;
    let _: String = world.ask(&format!("XGROUP CREATE {key} hexlane 0")).await;
    let _: redis::Value = world.ask(&format!("XREADGROUP GROUP hexlane holder STREAMS {key} >")).await;
    for name in ["idle", "live"] {
        let _: u32 = world.ask(&format!("XGROUP CREATECONSUMER {key} hexlane {name}")).await;
    }
    let stream = Stream::new(
        Server::open(&world.redis_url, None, &Certificates::default()).unwrap(),
        Keys::new(&world.namespace),
        "hexlane",
        "",
    );
    let remove = async |idle| stream.remove_consumers(&[0], idle, &["live"]).await.unwrap();
    assert_eq!(remove(Duration::from_secs(600)).await, 0);
    assert_eq!(consumers(&world, 0).await, ["holder", "idle", "live"]);
    assert_eq!(remove(Duration::ZERO).await, 1);
    assert_eq!(consumers(&world, 0).await, ["holder", "live"]);
    assert_eq!(world.pending().await, 1, "removing a consumer drops what it holds");
    let _: u32 = world.ask(&format!("XACK {key} hexlane {id}")).await;
    assert_eq!(remove(Duration::ZERO).await, 1);
    assert_eq!(consumers(&world, 0).await, ["live"]);
}
