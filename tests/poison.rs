//! An event whose handling ends the process costs itself only: not its neighbours, and not those of
//! other shards that are handled beside it.

use hexlane::shard::Keys;
use hexlane::stream::Stream;
use hexlane::stream::place::Certificates;
use hexlane::stream::server::Server;

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
///
/// How many processes one event ends is exact only while no living worker loses a lease: a lane that
/// drops what is in hand may have raised a counter, or read an entry, and then not prepared it; and
/// one that does not know yet that its shard is another's prepares what that one prepares too. So
/// leases are long here, and those of a worker that has ended are given back in its place.
struct Restarted<'w> {
    world: &'w World,
    stream: Stream,
    workers: Vec<(String, Worker)>,
    ends: usize,
}

impl<'w> Restarted<'w> {
    fn start(world: &'w World, count: usize) -> Self {
        let stream = Stream::new(
            Server::open(&world.redis_url, None, &Certificates::default()).unwrap(),
            Keys::new(&world.namespace),
            "hexlane",
            "",
        );
        let workers = (0..count).map(|n| Self::worker(world, format!("w{n}"))).collect();
        Self { world, stream, workers, ends: 0 }
    }

    fn worker(world: &World, name: String) -> (String, Worker) {
        let worker = world.worker().set("WORKER_NAME", &name).set("LEASE", "2m").start();
        (name, worker)
    }

    async fn look_after(&mut self) {
        for (name, worker) in &mut self.workers {
            if !worker.is_running() {
                self.ends += 1;
                (*name, *worker) = Self::worker(self.world, format!("again{}", self.ends));
            }
        }
        self.give_back().await;
    }

    /// As running out would, and as often as needed: the last command of a process may be carried
    /// out after its end.
    async fn give_back(&self) {
        let has_ended = |token: &str| self.workers.iter().all(|(name, _)| !token.starts_with(&format!("{name}/")));
        let live: Vec<String> = self.world.ask(&format!("ZRANGE {}:workers 0 -1", self.world.namespace)).await;
        for token in live.iter().filter(|token| has_ended(token)) {
            self.stream.leave(token, false).await.unwrap();
        }
        for shard in 0..self.world.shards {
            let owner: Option<String> = self.world.ask(&format!("GET {}", self.world.owner_key(shard))).await;
            if let Some(token) = owner.filter(|token| has_ended(token)) {
                self.stream.release(&[shard], &token).await.unwrap();
            }
        }
    }

    /// Until nothing is left to do.
    async fn until_drained(&mut self) {
        let this = tokio::sync::Mutex::new(&mut *self);
        eventually("every shard is drained", async || {
            let mut this = this.lock().await;
            this.look_after().await;
            let status = this.world.hexlane(&["status", "--json"]).await;
            let status: serde_json::Value = serde_json::from_str(&status).unwrap();
            status["totals"]["lag"] == 0 && status["totals"]["pending"] == 0
        })
        .await;
    }

    async fn stop(self) -> usize {
        for (_, mut worker) in self.workers {
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
    // The one that read it, the one that took it over beside others, and those that prepared it alone.
    assert_eq!((workers.stop().await, letters[0].text("dead:deliveries")), (5, "5".to_owned()));
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
    let letters = world.dead_letters().await;
    assert_eq!(summary(&letters), [("deadly".to_owned(), "delivery_limit".to_owned())]);
    assert_eq!(count_rows(&world).await, i64::from(SHARDS) * 20 - 1);
    // It had one delivery before, which ended nobody.
    assert_eq!((workers.stop().await, letters[0].text("dead:deliveries")), (4, "5".to_owned()));
}
