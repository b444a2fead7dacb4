//! What is compared with: rows already decoded, encoded, coalesced and sorted, straight into the
//! table over two connections; and the loop that people write first, one event at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hexlane::event::Event;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, NoTls};

const CONNECTIONS: usize = 2;

const UPSERT: &str = "INSERT INTO feature_state AS s
        (feature_id, version, op, observation_time, geometry, geometry_z, properties, cell, applied_at)
    SELECT *, now() FROM unnest($1::text[], $2::bigint[], $3::text[], $4::timestamptz[], $5::geometry[],
        $6::geometry[], $7::jsonb[], $8::bigint[])
    ON CONFLICT (feature_id) DO UPDATE SET
        version = excluded.version, op = excluded.op, observation_time = excluded.observation_time,
        geometry = excluded.geometry, geometry_z = excluded.geometry_z,
        properties = excluded.properties, cell = excluded.cell, applied_at = excluded.applied_at
    WHERE (excluded.version, excluded.observation_time) > (s.version, s.observation_time)";

/// Bytes in PostgreSQL's own binary form.
#[derive(Debug)]
struct Ready<'a>(&'a [u8], &'a [u8]);

impl ToSql for Ready<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(self.0);
        out.extend_from_slice(self.1);
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// Connects and sets what hexlane sets.
pub async fn connect(url: &str) -> Client {
    let (client, link) = tokio_postgres::connect(url, NoTls).await.expect("PostgreSQL answers");
    tokio::spawn(link);
    client.batch_execute("SET synchronous_commit = on").await.expect("the session can be set up");
    client
}

/// The newest event of each feature within every `size` events, sorted by feature.
fn batches(events: &[Event], order: &[usize], size: usize) -> Vec<Vec<usize>> {
    order
        .chunks(size)
        .map(|chunk| {
            let mut batch = chunk.to_vec();
            batch.sort_by(|&a, &b| {
                events[a].feature_id.cmp(&events[b].feature_id).then_with(|| events[b].key.cmp(&events[a].key))
            });
            batch.dedup_by(|b, a| events[*a].feature_id == events[*b].feature_id);
            batch
        })
        .collect()
}

/// How long it takes to write all `events`, in batches of `size` in this order.
pub async fn write(url: &str, events: &Arc<Vec<Event>>, order: &[usize], size: usize) -> Duration {
    let batches = Arc::new(batches(events, order, size));
    let next = Arc::new(AtomicUsize::new(0));
    let mut writers = Vec::new();
    for _ in 0..CONNECTIONS {
        let client = connect(url).await;
        let statement = client.prepare(UPSERT).await.expect("the statement is good");
        writers.push((client, statement));
    }
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for (client, statement) in writers {
        let (events, batches, next) = (events.clone(), batches.clone(), next.clone());
        tasks.spawn(async move {
            while let Some(batch) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
                let rows: Vec<&Event> = batch.iter().map(|&place| &events[place]).collect();
                write_rows(&client, &statement, &rows).await;
            }
        });
    }
    tasks.join_all().await;
    start.elapsed()
}

/// One statement.
pub async fn write_rows(client: &Client, statement: &tokio_postgres::Statement, rows: &[&Event]) {
    const FROM_1970_TO_2000_US: i64 = 946_684_800_000_000;
    let times: Vec<[u8; 8]> =
        rows.iter().map(|event| (event.key.observed_us - FROM_1970_TO_2000_US).to_be_bytes()).collect();
    let feature_id: Vec<&str> = rows.iter().map(|event| event.feature_id.as_str()).collect();
    let version: Vec<i64> = rows.iter().map(|event| event.key.version).collect();
    let op: Vec<&str> = rows.iter().map(|event| event.op.as_str()).collect();
    let time: Vec<Ready> = times.iter().map(|time| Ready(&[], time)).collect();
    let geometry: Vec<Option<Ready>> =
        rows.iter().map(|event| Some(Ready(&[], event.shape.as_ref()?.footprint.as_ref()))).collect();
    let heights: Vec<Option<Ready>> =
        rows.iter().map(|event| Some(Ready(&[], event.shape.as_ref()?.with_heights.as_deref()?))).collect();
    let properties: Vec<Option<Ready>> =
        rows.iter().map(|event| Some(Ready(&[1], event.properties.as_deref()?.as_bytes()))).collect();
    let cell: Vec<Option<i64>> = rows.iter().map(|event| event.cell.map(|cell| cell as i64)).collect();
    let parameters: [&(dyn ToSql + Sync); 8] =
        [&feature_id, &version, &op, &time, &geometry, &heights, &properties, &cell];
    client.execute(statement, &parameters).await.expect("PostgreSQL takes the rows");
}

/// Prepares the bare statement.
pub async fn prepare(client: &Client) -> tokio_postgres::Statement {
    client.prepare(UPSERT).await.expect("the statement is good")
}
