//! A delivery counter stays raised only where a process died while it prepared the entry: an outage
//! of either server, however unlucky its moment, leaves no mark on what is healthy.

use crate::world::{Fault, Proxy, Way, World, eventually, holds, point};

/// The database answers and takes no row: what is in hand stays pending, for everybody to see.
const FULL_DISK: &str = "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
        $$BEGIN RAISE EXCEPTION 'no space left' USING ERRCODE = '53100'; END$$;
    CREATE TRIGGER full_disk BEFORE INSERT ON feature_state FOR EACH ROW EXECUTE FUNCTION full_disk()";
const ROOM_AGAIN: &str = "DROP TRIGGER full_disk ON feature_state";
const REFUSED: &str = "hexlane_retries_total{error=\"53100\",target=\"postgres\"}";

async fn count_rows(world: &World) -> i64 {
    world.postgres().await.query_one("SELECT count(*) FROM feature_state", &[]).await.unwrap().get(0)
}

/// Redis goes away around the mark of the first page that is taken over, and comes back.
async fn no_mark_stays(name: &str, fault: Fault) {
    const ENTRIES: usize = 100;
    let world = World::shared(name, 1).await;
    world.sql(FULL_DISK).await;
    let key = world.events_key(0);
    let _: String = world.ask(&format!("XGROUP CREATE {key} hexlane 0 MKSTREAM")).await;
    let events: Vec<_> = (0..ENTRIES).map(|n| point(&format!("F{n}"), 1, 4.3, 52.1)).collect();
    world.add_together(0, &events).await;
    let _: redis::Value = world.ask(&format!("XREADGROUP GROUP hexlane gone COUNT 1000 STREAMS {key} >")).await;
    assert_eq!(world.deliveries(0).await, [1; ENTRIES]);

    let (proxy, url) = Proxy::to(&world.redis_url).await;
    proxy.once(fault);
    let worker = world.worker().set("REDIS_URL", &url).set("LEASE", "2m").set("RETRY_CAP", "100ms").start();
    proxy.until(Way::Closed).await;
    let raised = world.deliveries(0).await.into_iter().filter(|count| *count == 2).count();
    assert!(raised > 0, "the mark was made, and cannot be taken back yet");
    proxy.set(Way::Open);
    eventually("all of it is in hand, and every counter stands at 1", async || {
        let in_hand = worker.metric("hexlane_buffered_events").await == Some(ENTRIES as f64);
        in_hand && world.deliveries(0).await == [1; ENTRIES]
    })
    .await;
    worker.until_metric(REFUSED, 2.0).await;
    assert_eq!(world.deliveries(0).await, [1; ENTRIES], "waiting for the database counts for nothing");
    world.sql(ROOM_AGAIN).await;
    world.drained().await;
    assert_eq!((count_rows(&world).await, world.dead_letters().await.len()), (ENTRIES as i64, 0));
    let counts = worker.stop().await;
    counts.assert_balanced();
    assert_eq!(counts.applied, ENTRIES as u64, "{counts:?}");
}

fn sets_counters(request: &[u8]) -> bool {
    holds(request, b"RETRYCOUNT")
}

/// To 2, from the 1 that every entry here has.
fn raises(request: &[u8]) -> bool {
    sets_counters(request) && holds(request, b"\r\n2\r\n")
}

fn puts_back(request: &[u8]) -> bool {
    sets_counters(request) && !holds(request, b"\r\n2\r\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mark_whose_answer_was_lost_is_taken_back() {
    no_mark_stays("mark_answer", Fault::LoseAnswerTo(raises)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mark_is_taken_back_though_redis_went_away_meanwhile() {
    no_mark_stays("mark_taken_back", Fault::LoseRequest(puts_back)).await;
}

/// The database answers and takes no row, however often workers are killed and started again.
#[tokio::test(flavor = "multi_thread")]
async fn ten_restarts_during_an_outage_leave_no_mark() {
    let world = World::shared("no_mark", 2).await;
    world.sql(FULL_DISK).await;
    for shard in 0..2 {
        let events: Vec<_> = (0..150).map(|n| point(&format!("s{shard}-{n}"), 1, 4.3, 52.1)).collect();
        world.add_together(shard, &events).await;
    }
    let named = |n: usize| world.worker().set("WORKER_NAME", &format!("w{}", n % 3)).set("RETRY_CAP", "100ms");
    for n in 0..=10 {
        let mut worker = named(n).start();
        worker.until_metric("hexlane_buffered_events", 300.0).await;
        worker.until_metric(REFUSED, 2.0).await;
        // Those of the last page are put back in a moment.
        eventually("every counter stands at 1", async || {
            let deliveries = [world.deliveries(0).await, world.deliveries(1).await].concat();
            deliveries == [1; 300]
        })
        .await;
        match n {
            10 => {
                world.sql(ROOM_AGAIN).await;
                world.drained().await;
                let counts = worker.stop().await;
                counts.assert_balanced();
                assert_eq!(counts.applied, 300);
            }
            _ if n % 2 == 0 => worker.kill().await,
            _ => {
                worker.signal("TERM");
                worker.signal("TERM");
                assert!(worker.wait().await.success(), "{}", worker.log());
            }
        }
    }
    assert_eq!(world.dead_letters().await.len(), 0);
    assert_eq!(count_rows(&world).await, 300);
}
