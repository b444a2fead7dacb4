//! What is written is acknowledged or made a dead letter once, whatever happens to the connection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::task::JoinHandle;

use super::{make_group, strand};
use crate::world::{Traffic, World, eventually, point, seed};

/// CLIENT KILL in a loop until it is told to end.
struct Cutter {
    stop: Arc<AtomicBool>,
    task: JoinHandle<u32>,
}

impl Cutter {
    fn start(world: &World, pause: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, url) = (stop.clone(), world.redis_url.clone());
        let task = tokio::spawn(async move {
            let client = redis::Client::open(url.as_str()).unwrap();
            let mut redis = client.get_multiplexed_async_connection().await.unwrap();
            let mut cuts = 0;
            while !stopped.load(Ordering::Relaxed) {
                let mut kill = redis::cmd("CLIENT");
                kill.arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]);
                let killed: u32 = kill.query_async(&mut redis).await.unwrap();
                cuts += killed;
                tokio::time::sleep(pause).await;
            }
            cuts
        });
        Self { stop, task }
    }

    async fn end(self, world: &World) {
        self.stop.store(true, Ordering::Relaxed);
        assert!(self.task.await.unwrap() > 0, "no connection was cut");
        // The test's own connection notices only by a command that fails.
        let ping = async || redis::cmd("PING").exec_async(&mut world.redis()).await.is_ok();
        eventually("the test is connected again", ping).await;
    }
}

/// Every row, with what shows that it was not written again.
async fn rows(world: &World) -> BTreeMap<String, (i64, String, String)> {
    let sql = "SELECT feature_id, version, applied_at::text, xmin::text FROM feature_state";
    let rows = world.postgres().await.query(sql, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), (row.get(1), row.get(2), row.get(3)))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_acknowledgements_change_no_row() {
    const SHARDS: u16 = 4;
    let world = World::private("lost_acks", SHARDS).await;
    let traffic = Traffic::new(&mut StdRng::seed_from_u64(seed()), 6000, SHARDS);
    let workers = [
        world.worker().set("WORKER_NAME", "one").ready().await,
        world.worker().set("WORKER_NAME", "two").ready().await,
    ];
    let cutter = Cutter::start(&world, Duration::from_millis(100));
    traffic.produce(&world, 1500).await.unwrap();
    cutter.end(&world).await;
    traffic.until_landed(&world).await;

    let before = rows(&world).await;
    for shard in 0..SHARDS {
        let _: String = world.ask(&format!("XGROUP SETID {} hexlane 0", world.events_key(shard))).await;
    }
    world.drained().await;
    assert_eq!(world.pending().await, 0);
    assert_eq!(world.dead_letters().await.len(), 0);
    assert!(rows(&world).await == before, "rows were written again");
    let mut read = 0;
    for worker in workers {
        let counts = worker.stop().await;
        counts.assert_balanced();
        read += counts.read;
    }
    assert!(read >= 2 * traffic.sends.len() as u64, "the history did not come again");

    takeover_under_cuts_leaves_no_mark(&world).await;
}

/// The counter is raised and put back around every preparation; a cut in between must not leave
/// it raised, or enough cuts would make healthy entries dead letters. In the same world, because
/// servers of one's own take long to make.
async fn takeover_under_cuts_leaves_no_mark(world: &World) {
    let events: Vec<_> = (0..400).map(|n| point(&format!("marked{n}"), 1, 4.3, 52.1)).collect();
    let ids = strand(world, 0, "gone", &events, &[]).await;
    // One end of a process more, and each of them would be given up.
    let mark = format!("XCLAIM {} hexlane gone 0 {} RETRYCOUNT 4 JUSTID", world.events_key(0), ids.join(" "));
    let _: redis::Value = world.ask(&mark).await;
    let worker = world.worker().ready().await;
    let cutter = Cutter::start(world, Duration::from_millis(7));
    tokio::time::sleep(Duration::from_secs(3)).await;
    cutter.end(world).await;
    world.drained().await;
    let letters = world.dead_letters().await;
    assert!(letters.is_empty(), "{} healthy entries: {:?}", letters.len(), letters[0]);
    worker.stop().await.assert_balanced();
}

/// Between the copy and the acknowledgement there is no moment in which to be killed.
#[tokio::test(flavor = "multi_thread")]
async fn fifty_bad_events_and_a_worker_that_is_killed_again_and_again() {
    let world = World::shared("fifty", 2).await;
    for shard in 0..2 {
        make_group(&world, shard).await;
    }
    let mut sent = Vec::new();
    let mut worker = world.worker().set("WORKER_NAME", "w0").ready().await;
    for round in 0..5 {
        for n in 0..10 {
            let shard = n % 2;
            let id = world.add(shard, format!("{{bad {round} {n}").as_bytes()).await;
            sent.push((shard, id));
            world.add(shard, &point(&format!("g{round}-{n}"), 1, 4.3, 52.1)).await;
        }
        // In the middle of them, wherever that is: after the first dead letter of this round.
        let some = 10 * round as usize + 1;
        eventually("some are dead letters", async || world.dead_letters().await.len() >= some).await;
        worker.kill().await;
        worker = world.worker().set("WORKER_NAME", &format!("w{}", (round + 1) % 3)).start();
    }
    world.drained().await;
    let mut dead: Vec<_> =
        world.dead_letters().await.iter().map(|letter| (letter.shard, letter.text("dead:source_id"))).collect();
    dead.sort();
    sent.sort();
    assert_eq!(dead, sent);
    worker.until_ready(true).await;
    worker.stop().await.assert_balanced();
}

/// CRC-16/XMODEM of the hash tag, modulo 16384: the slot of a key in Redis Cluster.
/// See <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>.
fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let tag = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    let crc = tag.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 })
    });
    crc % 16_384
}

#[tokio::test(flavor = "multi_thread")]
async fn the_keys_of_a_shard_share_a_slot() {
    assert_eq!((slot("123456789"), slot("{user1000}.following")), (0x31c3, slot("user1000")));
    let world = World::shared("slots", 3).await;
    let worker = world.worker().ready().await;
    for shard in 0..3 {
        world.add(shard, b"{bad").await;
    }
    world.drained().await;
    let mut slots: BTreeMap<String, (usize, Vec<u16>)> = BTreeMap::new();
    let keys: Vec<String> = world.ask(&format!("KEYS {}:{{*", world.namespace)).await;
    for key in &keys {
        let shard = key.split([':', '{', '}']).nth(2).unwrap().to_owned();
        let (count, found) = slots.entry(shard).or_default();
        *count += 1;
        found.push(slot(key));
        found.dedup();
    }
    assert_eq!(slots.keys().map(String::as_str).collect::<Vec<_>>(), ["000", "001", "002"], "{keys:?}");
    // Events, dead letters, owner.
    assert!(slots.values().all(|(count, slots)| *count == 3 && slots.len() == 1), "{slots:?}");
    let mut different: Vec<u16> = slots.values().map(|(_, slots)| slots[0]).collect();
    different.dedup();
    assert_eq!(different.len(), 3);
    worker.stop().await.assert_balanced();
}
