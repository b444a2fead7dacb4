//! Everything at once, at random: four workers killed, frozen, ended and started again while both
//! servers restart and connections are cut. What must be there in the end is known exactly.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_postgres::NoTls;

use crate::world::{Counts, Server, Traffic, Worker, World, eventually, full, seed};

const SHARDS: u16 = 16;
const WORKERS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    /// SIGKILL, and another process in its place.
    Kill,
    /// SIGSTOP for longer than a lease, then SIGCONT.
    Freeze,
    /// SIGTERM, and another process in its place at once.
    Terminate,
    RestartPostgres,
    TerminateBackends,
    RestartRedis,
    CutConnections,
}

/// How often each act comes in a round; every round brings each of them.
const ROUND: [(Act, usize); 7] = [
    (Act::Kill, 6),
    (Act::Freeze, 5),
    (Act::Terminate, 4),
    (Act::RestartPostgres, 1),
    (Act::TerminateBackends, 4),
    (Act::RestartRedis, 1),
    (Act::CutConnections, 4),
];

/// 30 % copies, 10 % late ones, deletes and re-creates, 1 % that no worker can write.
fn traffic(rng: &mut StdRng, count: usize) -> Arc<Traffic> {
    let (copies, invalid) = (count * 30 / 100, count / 100);
    let originals = count - copies - invalid;
    // A fifth of what comes from there are copies already.
    let mut valid = Arc::into_inner(Traffic::new(rng, originals * 5 / 4, SHARDS)).unwrap();
    let mut sends: Vec<(usize, (u16, Vec<u8>))> = valid.sends.iter().cloned().enumerate().collect();
    for _ in 0..count - invalid - valid.sends.len() {
        let place = rng.random_range(0..valid.sends.len());
        sends.push((place + rng.random_range(0..2000), valid.sends[place].clone()));
    }
    for n in 0..invalid {
        let place = rng.random_range(0..valid.sends.len());
        sends.push((place, (rng.random_range(0..SHARDS), invalid_event(n))));
    }
    sends.sort_by_key(|(place, _)| *place);
    valid.sends = sends.into_iter().map(|(_, send)| send).collect();
    Arc::new(valid)
}

/// Of features of their own, so that none of them is stale before it is invalid.
fn invalid_event(n: usize) -> Vec<u8> {
    let time = "2026-01-01T00:00:00Z";
    let head = format!(r#"{{"feature_id":"invalid{n}","version":1,"op":"update","observation_time":"{time}""#);
    match n % 5 {
        0 => format!("{{invalid {n}"),
        1 => format!(r#"{{"feature_id":"invalid{n}"}}"#),
        2 => format!(r#"{head},"geometry":{{"type":"Point","coordinates":[4.3]}}}}"#),
        3 => format!(r#"{head},"geometry":{{"type":"Point","coordinates":[4.3,95]}}}}"#),
        _ => format!(r#"{head},"crs":"EPSG:3857","geometry":{{"type":"Point","coordinates":[4.3,52]}}}}"#),
    }
    .into_bytes()
}

fn is_invalid(text: &[u8]) -> bool {
    text.windows(7).any(|window| window == b"invalid")
}

struct Slot {
    name: String,
    worker: Worker,
    /// Until when it is frozen.
    frozen: Option<Instant>,
}

struct Storm {
    world: World,
    rng: StdRng,
    slots: Vec<Slot>,
    started: usize,
    retention: &'static str,
    /// Those that were told to leave.
    leaving: Vec<JoinHandle<Counts>>,
}

impl Storm {
    fn start(&mut self, name: Option<String>) -> Slot {
        self.started += 1;
        let name = name.unwrap_or_else(|| format!("w{}", self.started));
        // Most of the time something is away: without a short limit those that leave would wait.
        let worker = self.world.worker().set("WORKER_NAME", &name).set("DRAIN_TIMEOUT", "3s");
        let worker = worker.set("RETENTION", self.retention).start();
        Slot { name, worker, frozen: None }
    }

    /// A worker that is not frozen, and for which this holds.
    fn awake(&mut self, fits: impl Fn(&Worker) -> bool) -> Option<usize> {
        let fits = |slot: &Slot| slot.frozen.is_none() && fits(&slot.worker);
        let awake: Vec<usize> = (0..WORKERS).filter(|n| fits(&self.slots[*n])).collect();
        (!awake.is_empty()).then(|| awake[self.rng.random_range(0..awake.len())])
    }

    async fn act(&mut self, act: Act) {
        match act {
            Act::Kill => {
                let n = self.rng.random_range(0..WORKERS);
                // A container that starts again keeps its name.
                let name = self.rng.random_bool(0.3).then(|| self.slots[n].name.clone());
                self.slots.remove(n).worker.kill().await;
                let new = self.start(name);
                self.slots.insert(n, new);
            }
            Act::Freeze => {
                let Some(n) = self.awake(|_| true) else { return };
                self.slots[n].worker.signal("STOP");
                let lasts = Duration::from_millis(self.rng.random_range(1100..2500));
                self.slots[n].frozen = Some(Instant::now() + lasts);
            }
            Act::Terminate => {
                // One that waits for its servers has neither counts to tell nor, at first, ears.
                let Some(n) = self.awake(|worker| worker.log().contains("settings in force")) else { return };
                let new = self.start(None);
                let old = std::mem::replace(&mut self.slots[n], new);
                self.leaving.push(tokio::spawn(old.worker.stop()));
            }
            Act::RestartPostgres => self.restart(Server::Postgres).await,
            Act::RestartRedis => self.restart(Server::Redis).await,
            Act::TerminateBackends => self.terminate_backends().await,
            Act::CutConnections => {
                let client = redis::Client::open(self.world.redis_url.as_str()).unwrap();
                let Ok(mut redis) = client.get_multiplexed_async_connection().await else { return };
                let _: Result<redis::Value, _> =
                    redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal"]).query_async(&mut redis).await;
            }
        }
    }

    async fn restart(&mut self, server: Server) {
        let kill = self.rng.random_bool(0.5);
        self.world
            .servers(|servers| {
                if kill {
                    servers.kill(server)
                } else {
                    servers.stop(server)
                }
                servers.restart(server);
            })
            .await;
    }

    async fn terminate_backends(&self) {
        let Ok((client, link)) = tokio_postgres::connect(&self.world.database_url, NoTls).await else { return };
        tokio::spawn(link);
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid()";
        // It may be ended by somebody else's restart itself.
        let _ = client.query(sql, &[]).await;
    }

    /// Wakes those whose time has come.
    fn thaw(&mut self, now: Option<Instant>) {
        for slot in &mut self.slots {
            if slot.frozen.is_some_and(|until| now.is_none_or(|now| until <= now)) {
                slot.worker.signal("CONT");
                slot.frozen = None;
            }
        }
    }

    async fn rage(&mut self, moments: Vec<(Duration, Act)>) {
        let start = Instant::now();
        for (moment, act) in moments {
            loop {
                self.thaw(Some(Instant::now()));
                let next = self.slots.iter().filter_map(|slot| slot.frozen).min();
                let until = next.unwrap_or(start + moment).min(start + moment);
                tokio::time::sleep_until(until).await;
                if Instant::now() >= start + moment {
                    break;
                }
            }
            self.act(act).await;
            for slot in &mut self.slots {
                assert!(slot.worker.is_running(), "{} has ended by itself:\n{}", slot.name, slot.worker.log());
            }
        }
        self.thaw(None);
    }
}

/// `scripts/storm` runs it in full size.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_in_a_storm() {
    let (count, per_second, rounds) = if full() { (300_000, 2500, 8) } else { (60_000, 2000, 2) };
    let mut rng = StdRng::seed_from_u64(seed());
    let traffic = traffic(&mut rng, count);
    let mut acts: Vec<Act> = Vec::new();
    for _ in 0..rounds {
        let mut round: Vec<Act> = ROUND.iter().flat_map(|(act, times)| vec![*act; *times]).collect();
        round.shuffle(&mut rng);
        acts.extend(round);
    }
    let lasts = traffic.lasts(per_second);
    let mut moments: Vec<Duration> = acts.iter().map(|_| lasts.mul_f64(rng.random())).collect();
    moments.sort_unstable();

    // Every second storm trims all the while; in the others the streams tell what was sent.
    let trims = seed().is_multiple_of(2);
    let retention = if trims { "1s" } else { "10min" };
    let world = World::private("storm", SHARDS).await;
    let mut storm = Storm { world, rng, slots: Vec::new(), started: 0, retention, leaving: Vec::new() };
    for _ in 0..WORKERS {
        let slot = storm.start(None);
        storm.slots.push(slot);
    }
    let producer = traffic.produce(&storm.world, per_second);
    storm.rage(moments.into_iter().zip(acts).collect()).await;
    producer.await.unwrap();
    storm.world.drained().await;

    let Storm { world, mut slots, leaving, .. } = storm;
    traffic.assert_landed(&world).await;
    assert_eq!(world.pending().await, 0);
    let dead = assert_dead_letters_are_the_invalid_ones(&world, &traffic).await;
    if trims {
        let left = entries(&world).await.len();
        assert!(left < count / 2, "{left} of {count} entries are left");
    } else {
        let mut sent = entries(&world).await;
        sent.retain(|(.., event)| is_invalid(event));
        sent.sort();
        assert!(sent == dead, "{} invalid events, {} dead letters", sent.len(), dead.len());
    }
    for left in leaving {
        left.await.unwrap().assert_balanced();
    }
    let live: BTreeSet<String> = slots.iter().map(|slot| slot.name.clone()).collect();
    assert!(slots.iter_mut().all(|slot| slot.worker.is_running()));
    assert_only_the_living_remain(&world, &live).await;
    for slot in slots {
        slot.worker.stop().await.assert_balanced();
    }
}

/// Shard, id and event.
type Sent = (u16, String, Vec<u8>);

/// What the streams hold.
async fn entries(world: &World) -> Vec<Sent> {
    type Entry = (String, Vec<(String, Vec<u8>)>);
    let mut sent = Vec::new();
    for shard in 0..world.shards {
        let entries: Vec<Entry> = world.ask(&format!("XRANGE {} - +", world.events_key(shard))).await;
        sent.extend(entries.into_iter().map(|(id, mut fields)| (shard, id, fields.remove(0).1)));
    }
    sent
}

/// Each entry once, by its source id, and every invalid event that was sent; answers them sorted.
async fn assert_dead_letters_are_the_invalid_ones(world: &World, traffic: &Traffic) -> Vec<Sent> {
    let letters = world.dead_letters().await;
    let extra: Vec<_> = letters.iter().filter(|letter| !is_invalid(letter.bytes("event").unwrap())).collect();
    assert!(extra.is_empty(), "dead letters of good events: {:#?}", extra.first());
    let mut dead: Vec<Sent> = letters
        .iter()
        .map(|letter| (letter.shard, letter.text("dead:source_id"), letter.bytes("event").unwrap().to_vec()))
        .collect();
    dead.sort();
    let twice = dead.windows(2).find(|two| (two[0].0, &two[0].1) == (two[1].0, &two[1].1));
    assert!(twice.is_none(), "{twice:?}");
    // A piece of which the answer was lost was sent twice, so there may be more of them.
    let mut missing = BTreeMap::<(u16, &[u8]), i64>::new();
    for (shard, event) in traffic.sends.iter().filter(|(_, event)| is_invalid(event)) {
        *missing.entry((*shard, event)).or_default() += 1;
    }
    assert!(missing.values().sum::<i64>() >= traffic.sends.len() as i64 / 100);
    for (shard, _, event) in &dead {
        *missing.entry((*shard, event)).or_default() -= 1;
    }
    missing.retain(|_, count| *count > 0);
    assert!(missing.is_empty(), "{} are no dead letters, such as {:?}", missing.len(), missing.first_key_value());
    dead
}

/// Leases, heartbeats and consumer names of those that are gone vanish by themselves.
async fn assert_only_the_living_remain(world: &World, live: &BTreeSet<String>) {
    let name = |token: &str| token.rsplit_once('/').map(|(name, _)| name.to_owned());
    eventually("every shard is owned by a live worker", async || {
        let mut owners = Vec::new();
        for shard in 0..world.shards {
            owners.push(world.ask::<Option<String>>(&format!("GET {}", world.owner_key(shard))).await);
        }
        owners.iter().all(|owner| owner.as_deref().and_then(name).is_some_and(|name| live.contains(&name)))
    })
    .await;
    eventually("the live workers are known, and no others", async || {
        let known: Vec<String> = world.ask(&format!("ZRANGE {}:workers 0 -1", world.namespace)).await;
        known.len() == live.len() && known.iter().all(|token| name(token).is_some_and(|name| live.contains(&name)))
    })
    .await;
    eventually("no consumer of a gone worker is left over", async || {
        for shard in 0..world.shards {
            let consumers: Vec<std::collections::HashMap<String, redis::Value>> =
                world.ask(&format!("XINFO CONSUMERS {} hexlane", world.events_key(shard))).await;
            let names = consumers.iter().map(|consumer| match &consumer["name"] {
                redis::Value::BulkString(name) => String::from_utf8_lossy(name).into_owned(),
                other => panic!("{other:?}"),
            });
            if names.into_iter().any(|name| !live.contains(&name)) {
                return false;
            }
        }
        true
    })
    .await;
}
