//! Valid events from a seed: duplicates, late ones, deletes and re-creates; who sends them; and
//! the state they must end in, worked out from all of them by "newest (version, time) wins".

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use tokio::task::JoinHandle;

use super::World;

/// How long the producer waits between its sends.
const TICK: Duration = Duration::from_millis(10);
/// 2026-01-01T00:00:00Z
const FIRST_OBSERVED_US: i64 = 1_767_225_600_000_000;

/// A row of `feature_state`, with the number of the event it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub version: i64,
    pub observed_us: i64,
    pub op: String,
    /// Longitude, latitude and number; a tombstone has none.
    pub content: Option<(f64, f64, i64)>,
}

/// What is sent, in order, and what must be there in the end.
#[derive(Default)]
pub struct Traffic {
    pub sends: Vec<(u16, Vec<u8>)>,
    expected: BTreeMap<String, Row>,
}

impl Traffic {
    /// About `count` events: a fifth are copies of others that come up to 2 000 places later, a
    /// tenth come up to 1 000 places late, an eighth delete what the feature's next event creates
    /// again. Some versions stand twice, and the observation time decides. Features move from shard
    /// to shard, and those of every third feature carry an event id.
    pub fn new(rng: &mut StdRng, count: usize, shards: u16) -> Arc<Self> {
        let features = (count / 12).max(1);
        let mut states = vec![(0_i64, false); features];
        let mut traffic = Self::default();
        let mut sends = Vec::with_capacity(count);
        for n in 0..count * 4 / 5 {
            let feature = rng.random_range(0..features);
            let (version, live) = &mut states[feature];
            if *version == 0 || rng.random_bool(0.9) {
                *version += 1;
            }
            let op = match *live {
                false => "create",
                true if rng.random_bool(0.125) => "delete",
                true => "update",
            };
            *live = op != "delete";
            let event_id = if feature % 3 == 0 { format!(r#","event_id":"e{n}""#) } else { String::new() };
            let text = traffic.expect(&format!("F{feature}"), *version, op, n as i64, &event_id);
            let shard = ((feature as i64 + *version / 4) % i64::from(shards)) as u16;
            let place = n + if rng.random_bool(0.1) { rng.random_range(1..1000) } else { 0 };
            if rng.random_bool(0.25) {
                sends.push((place + rng.random_range(0..2000), shard, text.clone()));
            }
            sends.push((place, shard, text));
        }
        sends.sort_by_key(|(place, ..)| *place);
        traffic.sends = sends.into_iter().map(|(_, shard, text)| (shard, text)).collect();
        Arc::new(traffic)
    }

    /// The text of event number `n`, which counts for the expected state. Later numbers are
    /// observed later; `more` is further members, beginning with a comma.
    pub fn expect(&mut self, feature_id: &str, version: i64, op: &str, n: i64, more: &str) -> Vec<u8> {
        // Binary fractions: what goes in as text comes out as the same number.
        let (lon, lat) = ((n % 180_000) as f64 / 1024.0, (n % 80_000) as f64 / 1024.0);
        let observed_us = FIRST_OBSERVED_US + n * 1000;
        let content = (op != "delete").then_some((lon, lat, n));
        let row = Row { version, observed_us, op: op.to_owned(), content };
        match self.expected.get(feature_id) {
            Some(newest) if (newest.version, newest.observed_us) >= (version, observed_us) => {}
            _ => drop(self.expected.insert(feature_id.to_owned(), row)),
        }
        let time = chrono::DateTime::from_timestamp_micros(observed_us).unwrap();
        let body = match op {
            "delete" => String::new(),
            _ => format!(r#","geometry":{{"type":"Point","coordinates":[{lon},{lat}]}},"properties":{{"n":{n}}}"#),
        };
        format!(
            r#"{{"feature_id":"{feature_id}","version":{version},"op":"{op}","observation_time":"{}"{body}{more}}}"#,
            time.to_rfc3339()
        )
        .into_bytes()
    }

    /// How long it takes to send everything.
    pub fn lasts(&self, per_second: usize) -> Duration {
        TICK * u32::try_from(self.sends.chunks(per_tick(per_second)).count()).unwrap()
    }

    /// Sends everything at a steady pace, each piece until Redis has taken it; a piece of which the
    /// answer was lost goes twice.
    pub fn produce(self: &Arc<Self>, world: &World, per_second: usize) -> JoinHandle<()> {
        let (traffic, mut redis) = (self.clone(), world.redis());
        let keys: Vec<String> = (0..world.shards).map(|shard| world.events_key(shard)).collect();
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(TICK);
            for piece in traffic.sends.chunks(per_tick(per_second)) {
                ticks.tick().await;
                let mut pipe = redis::pipe();
                for (shard, event) in piece {
                    pipe.cmd("XADD").arg(&keys[usize::from(*shard)]).arg("*").arg("event").arg(event).ignore();
                }
                while pipe.exec_async(&mut redis).await.is_err() {
                    tokio::time::sleep(TICK).await;
                }
            }
        })
    }

    /// Sends everything as fast as it goes.
    pub async fn send_all(self: &Arc<Self>, world: &World) {
        self.produce(world, self.sends.len().max(1) * 10).await.unwrap();
    }

    /// Waits until everything is settled: then all of it has landed, and nothing was given up.
    pub async fn until_landed(&self, world: &World) {
        world.drained().await;
        self.assert_landed(world).await;
        assert_eq!(world.dead_letters().await.len(), 0);
    }

    /// The table holds exactly what it must.
    pub async fn assert_landed(&self, world: &World) {
        let sql = "SELECT feature_id, version, (extract(epoch FROM observation_time) * 1000000)::bigint, op,
            ST_X(geometry), ST_Y(geometry), (properties->>'n')::bigint FROM feature_state";
        let found: BTreeMap<String, Row> = world
            .postgres()
            .await
            .query(sql, &[])
            .await
            .unwrap()
            .iter()
            .map(|row| {
                let place: (Option<f64>, Option<f64>, Option<i64>) = (row.get(4), row.get(5), row.get(6));
                let content = match place {
                    (Some(lon), Some(lat), Some(n)) => Some((lon, lat, n)),
                    (None, None, None) => None,
                    half => panic!("{half:?}"),
                };
                let row_found = Row { version: row.get(1), observed_us: row.get(2), op: row.get(3), content };
                (row.get(0), row_found)
            })
            .collect();
        let wrong: Vec<_> = self
            .expected
            .iter()
            .filter(|(id, row)| found.get(*id) != Some(row))
            .map(|(id, row)| format!("{id}: {:?} instead of {row:?}", found.get(id)))
            .collect();
        assert!(
            wrong.is_empty(),
            "{} of {} rows: {:#?}",
            wrong.len(),
            self.expected.len(),
            &wrong[..wrong.len().min(5)]
        );
        assert_eq!(found.len(), self.expected.len(), "rows that nobody sent");
    }
}

fn per_tick(per_second: usize) -> usize {
    (per_second / 100).max(1)
}
