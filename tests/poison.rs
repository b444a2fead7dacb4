//! An event whose handling ends the process costs itself only: not its neighbours, not those of
//! other shards that are handled beside it, and not those that only wait while workers come and go.

use crate::world::{DeadLetter, Worker, World, eventually, full, point};

/// The switch of a build for tests: preparing it ends the process.
fn deadly(feature_id: &str) -> Vec<u8> {
    let geometry = r#"{"type":"Point","coordinates":[4.3,52.1]}"#;
    crate::world::event(feature_id, 1, "update", geometry, r#","properties":{"k":"hexlane-crash-test"}"#)
}

async fn count_rows(world: &World) -> i64 {
    world.postgres().await.query_one("SELECT count(*) FROM feature_state", &[]).await.unwrap().get(0)
}

/// Workers that are started again, under new names, whenever they end.
struct Restarted<'w> {
    world: &'w World,
    workers: Vec<Worker>,
    ends: usize,
}

impl<'w> Restarted<'w> {
    fn start(world: &'w World, count: usize) -> Self {
        let mut restarted = Self { world, workers: Vec::new(), ends: 0 };
        for n in 0..count {
            restarted.workers.push(world.worker().set("WORKER_NAME", &format!("w{n}")).start());
        }
        restarted
    }

    fn look_after(&mut self) {
        for worker in &mut self.workers {
            if !worker.is_running() {
                self.ends += 1;
                *worker = self.world.worker().set("WORKER_NAME", &format!("again{}", self.ends)).start();
            }
        }
    }

    /// Until nothing is left to do.
    async fn until_drained(&mut self) {
        let this = tokio::sync::Mutex::new(&mut *self);
        eventually("every shard is drained", async || {
            let mut this = this.lock().await;
            this.look_after();
            let status = this.world.hexlane(&["status", "--json"]).await;
            let status: serde_json::Value = serde_json::from_str(&status).unwrap();
            status["totals"]["lag"] == 0 && status["totals"]["pending"] == 0
        })
        .await;
    }

    async fn stop(self) -> usize {
        for mut worker in self.workers {
            assert!(worker.is_running(), "{}", worker.log());
            worker.until_ready(true).await;
            worker.stop().await.assert_balanced();
        }
        self.ends
    }
}

fn summary(letters: &[DeadLetter]) -> Vec<(String, String)> {
    let features = letters.iter().map(|letter| {
        let event: serde_json::Value = serde_json::from_slice(letter.bytes("event").unwrap()).unwrap();
        (event["feature_id"].as_str().unwrap().to_owned(), letter.reason())
    });
    let mut features: Vec<_> = features.collect();
    features.sort();
    features
}

#[tokio::test(flavor = "multi_thread")]
async fn one_deadly_event_in_a_crowd_ends_alone() {
    const SHARDS: u16 = 16;
    let crowd = if full() { 20_000 } else { 5_000 };
    let world = World::shared("crowd", SHARDS).await;
    for shard in 0..SHARDS {
        let mut events: Vec<_> =
            (0..crowd / usize::from(SHARDS) + 1).map(|n| point(&format!("s{shard}-{n}"), 1, 4.3, 52.1)).collect();
        if shard == 5 {
            events.insert(events.len() / 2, deadly("deadly"));
        }
        world.add_together(shard, &events).await;
    }
    let mut workers = Restarted::start(&world, 3);
    workers.until_drained().await;
    let letters = world.dead_letters().await;
    assert_eq!(summary(&letters), [("deadly".to_owned(), "delivery_limit".to_owned())]);
    assert_eq!(letters[0].shard, 5);
    let rows = usize::from(SHARDS) * (crowd / usize::from(SHARDS) + 1);
    assert_eq!(count_rows(&world).await as usize, rows);
    // No more processes than it has attempts; fewer where one was too slow to keep its lease.
    let ends = workers.stop().await;
    assert!((1..=5).contains(&ends), "{ends} processes");
}

/// What has a mark already is one step from the end: it must get no further one while it waits
/// for its turn in a process that somebody else ends.
#[tokio::test(flavor = "multi_thread")]
async fn marked_neighbours_get_no_mark_from_an_end_that_is_not_theirs() {
    const SHARDS: u16 = 16;
    let world = World::shared("marked", SHARDS).await;
    for shard in 0..SHARDS {
        let key = world.events_key(shard);
        let _: String = world.ask(&format!("XGROUP CREATE {key} hexlane 0 MKSTREAM")).await;
        let mut ids = Vec::new();
        for n in 0..20 {
            let deadly_one = shard == 7 && n == 10;
            let event = if deadly_one { deadly("deadly") } else { point(&format!("s{shard}-{n}"), 1, 4.3, 52.1) };
            ids.push(world.add(shard, &event).await);
        }
        let _: redis::Value = world.ask(&format!("XREADGROUP GROUP hexlane gone COUNT 100 STREAMS {key} >")).await;
        let healthy: Vec<&str> =
            ids.iter().enumerate().filter(|(n, _)| shard != 7 || *n != 10).map(|(_, id)| id.as_str()).collect();
        let mark = format!("XCLAIM {key} hexlane gone 0 {} RETRYCOUNT 4 JUSTID", healthy.join(" "));
        let _: redis::Value = world.ask(&mark).await;
    }
    let mut workers = Restarted::start(&world, 1);
    workers.until_drained().await;
    assert_eq!(summary(&world.dead_letters().await), [("deadly".to_owned(), "delivery_limit".to_owned())]);
    assert_eq!(count_rows(&world).await, i64::from(SHARDS) * 20 - 1);
    let ends = workers.stop().await;
    assert!((1..=4).contains(&ends), "it had one delivery before: {ends} processes");
}

/// The database answers and takes no row, however often workers are killed and started again.
#[tokio::test(flavor = "multi_thread")]
async fn ten_restarts_during_an_outage_leave_no_mark() {
    let world = World::shared("no_mark", 2).await;
    world
        .sql(
            "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
                $$BEGIN RAISE EXCEPTION 'no space left' USING ERRCODE = '53100'; END$$;
            CREATE TRIGGER full_disk BEFORE INSERT ON feature_state FOR EACH ROW EXECUTE FUNCTION full_disk()",
        )
        .await;
    for shard in 0..2 {
        let events: Vec<_> = (0..150).map(|n| point(&format!("s{shard}-{n}"), 1, 4.3, 52.1)).collect();
        world.add_together(shard, &events).await;
    }
    let named = |n: usize| world.worker().set("WORKER_NAME", &format!("w{}", n % 3)).set("RETRY_CAP", "100ms");
    let deliveries = async || {
        let mut all = Vec::new();
        for shard in 0..2 {
            let ask = format!("XPENDING {} hexlane - + 1000", world.events_key(shard));
            let rows: Vec<(String, String, i64, i64)> = world.ask(&ask).await;
            all.extend(rows.into_iter().map(|(_, _, _, deliveries)| deliveries));
        }
        all
    };
    for n in 0..=10 {
        let mut worker = named(n).start();
        worker.until_metric("hexlane_buffered_events", 300.0).await;
        worker.until_metric("hexlane_retries_total{error=\"53100\",target=\"postgres\"}", 2.0).await;
        // Those of the last page are put back in a moment.
        eventually("every counter stands at 1", async || {
            let deliveries = deliveries().await;
            deliveries.len() == 300 && deliveries.iter().all(|count| *count == 1)
        })
        .await;
        match n {
            10 => {
                world.sql("DROP TRIGGER full_disk ON feature_state").await;
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
