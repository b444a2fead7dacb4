//! The guard: one statement that writes what is newer than the stored state, and nothing else.
//!
//! Two forms. Without any `event_id` in the batch the rows are already coalesced and the statement
//! is a plain conditional upsert. With one, the ledger, the coalescing and the guard are one
//! statement, because only those whose id is new may compete for newest.

use std::time::Duration;

use deadpool_postgres::Object;
use futures_util::TryStreamExt as _;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Row, RowStream, Statement};

use super::parameter::{Ewkb, Json, Micros};
use super::{Store, give_back, in_time};
use crate::event::{Event, Key, Outcome};
use crate::failure::{Class, Failure};

/// The write itself. The comparison is strict: an equal key changes nothing. Geometries come as `bytea`, which
/// PostGIS casts: the number of its own type is another one in every database.
/// Rows come sorted by feature, so that concurrent statements lock in one order.
macro_rules! guarded_upsert {
    ($source:literal) => {
        concat!(
            "INSERT INTO feature_state AS s
                (feature_id, version, op, observation_time, geometry, geometry_z, properties, cell, applied_at)
             SELECT feature_id, version, op, observation_time, geometry, geometry_z, properties, cell, now()
             FROM ",
            $source,
            "
             ON CONFLICT (feature_id) DO UPDATE SET
                version = excluded.version, op = excluded.op, observation_time = excluded.observation_time,
                geometry = excluded.geometry, geometry_z = excluded.geometry_z,
                properties = excluded.properties, cell = excluded.cell, applied_at = excluded.applied_at
             WHERE (excluded.version, excluded.observation_time) > (s.version, s.observation_time)
             RETURNING feature_id"
        )
    };
}

const WRITE_NEWEST: &str = guarded_upsert!(
    "unnest($1::text[], $2::bigint[], $3::text[], $4::timestamptz[], $5::bytea[], $6::bytea[], $7::jsonb[],
        $8::bigint[])
        AS given(feature_id, version, op, observation_time, geometry, geometry_z, properties, cell),
        (SELECT set_config('lock_timeout', $9, true), set_config('synchronous_commit', 'on', true)) AS settings"
);

/// Ids are locked in sorted order before any state row is: `newest` sorts, and so reads all of
/// `recorded` first.
const WRITE_WITH_LEDGER: &str = concat!(
    "WITH given AS MATERIALIZED (
        SELECT u.* FROM unnest($1::text[], $2::bigint[], $3::text[], $4::timestamptz[], $5::bytea[], $6::bytea[],
            $7::jsonb[], $8::bigint[], $9::text[]) WITH ORDINALITY
            AS u(feature_id, version, op, observation_time, geometry, geometry_z, properties, cell, event_id, n),
            (SELECT set_config('lock_timeout', $11, true), set_config('synchronous_commit', 'on', true))
                AS settings
    ), recorded AS (
        INSERT INTO processed_event AS p (feature_id, event_id, processed_at)
        SELECT feature_id, event_id, now() FROM given WHERE event_id IS NOT NULL
        ORDER BY feature_id COLLATE \"C\", event_id COLLATE \"C\"
        ON CONFLICT (feature_id, event_id) DO UPDATE SET processed_at = excluded.processed_at
        WHERE p.processed_at < now() - make_interval(secs => $10::double precision)
        RETURNING feature_id, event_id
    ), fresh AS MATERIALIZED (
        SELECT g.* FROM given g LEFT JOIN recorded r ON r.feature_id = g.feature_id AND r.event_id = g.event_id
        WHERE g.event_id IS NULL OR r.event_id IS NOT NULL
    ), newest AS MATERIALIZED (
        SELECT DISTINCT ON (feature_id COLLATE \"C\") * FROM fresh
        ORDER BY feature_id COLLATE \"C\", version DESC, observation_time DESC, n
    ), written AS (",
    guarded_upsert!("newest ORDER BY feature_id COLLATE \"C\""),
    ")
    SELECT f.n IS NOT NULL, w.n IS NOT NULL, a.feature_id IS NOT NULL
    FROM given g
    LEFT JOIN fresh f ON f.n = g.n
    LEFT JOIN newest w ON w.n = g.n
    LEFT JOIN written a ON a.feature_id = w.feature_id
    ORDER BY g.n"
);

const LOOK_UP: &str = "SELECT s.version, s.observation_time, p.event_id IS NOT NULL
    FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS asked(feature_id, event_id, n)
    LEFT JOIN feature_state s ON s.feature_id = asked.feature_id
    LEFT JOIN processed_event p ON p.feature_id = asked.feature_id AND p.event_id = asked.event_id
        AND p.processed_at >= now() - make_interval(secs => $3::double precision)
    ORDER BY n";

/// A row of our own, inserted and updated, and taken back before the statement ends: whoever is
/// slow or broken for every row is so for this one too. The sub-block's error undoes its work
/// without failing the statement, so no transaction is ever left open. By backend, so that no two
/// wait for each other.
const REHEARSE: &str = "DO $$
BEGIN
    FOR round IN 1..2 LOOP
        INSERT INTO feature_state AS s (feature_id, version, op, observation_time, geometry)
        VALUES ('hexlane rehearsal ' || pg_backend_pid(), round, 'create', now(), 'SRID=4326;POINT(0 0)')
        ON CONFLICT (feature_id) DO UPDATE SET version = excluded.version, geometry = excluded.geometry
        WHERE excluded.version > s.version;
    END LOOP;
    RAISE EXCEPTION USING ERRCODE = 'HX001';
EXCEPTION WHEN SQLSTATE 'HX001' THEN
    NULL;
END $$";

/// What is stored about the feature of one event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// The key of its state, a tombstone's included.
    pub key: Option<Key>,
    /// Whether the event's id is in the ledger.
    pub event_id_known: bool,
}

/// A statement, named on the connection; or, where a pooler may give the next one another connection, by its
/// text each time.
enum Plan {
    Prepared(Statement),
    Typed(&'static str),
}

/// A connection on which one write can be sent at once: nothing has to be asked or prepared before.
/// Whoever may write for a limited time only decides when this is in hand.
pub struct Writer<'a> {
    store: &'a Store,
    client: Object,
    newest: Plan,
    with_ledger: Plan,
}

impl Writer<'_> {
    /// Writes each event that is newer than its feature's state; answers, in the order given,
    /// whether it was. `events` holds each feature once, sorted by its id. `lock_timeout` is for
    /// this statement, where the session's is too long.
    ///
    /// # Errors
    /// As judged by [`Failure::postgres`]: nothing was written, or, where the connection was lost,
    /// nothing is known. Writing the same events again is harmless.
    pub async fn write_newest(self, events: &[&Event], lock_timeout: Option<Duration>) -> Result<Vec<bool>, Failure> {
        debug_assert!(events.is_sorted_by(|a, b| a.feature_id < b.feature_id));
        let columns = Columns::new(events);
        let patience = self.patience(lock_timeout);
        let asked = async {
            let parameters = columns.parameters().into_iter().chain([(&patience as &(dyn ToSql + Sync), Type::TEXT)]);
            let rows = run(&self.client, &self.newest, parameters).await?;
            tokio::pin!(rows);
            let mut written = vec![false; events.len()];
            let mut next = 0;
            while let Some(row) = rows.try_next().await? {
                let feature_id: &str = row.try_get(0)?;
                // They come in the order in which they went, without those that were stale.
                let skipped = columns.feature_id.get(next..).unwrap_or_default().iter();
                let place = match skipped.take_while(|known| **known != feature_id).count() + next {
                    place if place < events.len() => place,
                    // Nothing promises that order.
                    _ => columns.feature_id.binary_search(&feature_id).unwrap_or(events.len()),
                };
                if let Some(slot) = written.get_mut(place) {
                    *slot = true;
                    next = place + 1;
                }
            }
            Ok(written)
        };
        let answer = in_time(self.store.deadline, "writing", asked).await;
        give_back(self.client, answer)
    }

    /// Records the event ids, drops events whose id is known, writes the newest of the rest of each
    /// feature under the guard; answers the outcome of each, in the order given. No two events
    /// may share feature and event id.
    ///
    /// # Errors
    /// As [`Self::write_newest`]; after a lost answer a second writing reports `duplicate`.
    pub async fn write_with_ledger(
        self,
        events: &[&Event],
        lock_timeout: Option<Duration>,
    ) -> Result<Vec<Outcome>, Failure> {
        let columns = Columns::new(events);
        let patience = self.patience(lock_timeout);
        let event_ids: Vec<Option<&str>> = events.iter().map(|event| event.event_id.as_deref()).collect();
        let window = self.store.dedup_window.as_secs_f64();
        let asked = async {
            let more: [(&(dyn ToSql + Sync), Type); 3] =
                [(&event_ids, Type::TEXT_ARRAY), (&window, Type::FLOAT8), (&patience, Type::TEXT)];
            let rows = run(&self.client, &self.with_ledger, columns.parameters().into_iter().chain(more)).await?;
            let rows: Vec<Row> = rows.try_collect().await?;
            rows.iter()
                .map(|row| {
                    let (fresh, newest, written) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
                    Ok(match (fresh, newest, written) {
                        (false, _, _) => Outcome::Duplicate,
                        (true, false, _) => Outcome::Superseded,
                        (true, true, false) => Outcome::Stale,
                        (true, true, true) => Outcome::Applied,
                    })
                })
                .collect()
        };
        let answer = in_time(self.store.deadline, "writing with the ledger", asked).await;
        give_back(self.client, answer)
    }

    fn patience(&self, lock_timeout: Option<Duration>) -> String {
        format!("{}ms", lock_timeout.unwrap_or(self.store.lock_timeout).as_millis())
    }
}

impl Store {
    /// Connects, where no connection is free, and prepares both statements, where that connection
    /// has not got them.
    ///
    /// # Errors
    /// As judged by [`Failure::postgres`], but never for what it would say about a row.
    pub async fn writer(&self) -> Result<Writer<'_>, Failure> {
        let doing = "preparing to write";
        let client = self.connection(doing).await?;
        if self.transaction_pooling {
            let (newest, with_ledger) = (Plan::Typed(WRITE_NEWEST), Plan::Typed(WRITE_WITH_LEDGER));
            return Ok(Writer { store: self, client, newest, with_ledger });
        }
        let asked = async {
            let newest = client.prepare_cached(WRITE_NEWEST).await?;
            Ok((Plan::Prepared(newest), Plan::Prepared(client.prepare_cached(WRITE_WITH_LEDGER).await?)))
        };
        let answer = in_time(self.deadline, doing, asked).await.map_err(Failure::about_no_row);
        match answer {
            Ok((newest, with_ledger)) => Ok(Writer { store: self, client, newest, with_ledger }),
            Err(failure) => give_back(client, Err(failure)),
        }
    }

    /// What is stored about each (feature, event id), in the order given.
    ///
    /// # Errors
    /// As judged by [`Failure::postgres`].
    pub async fn look_up(&self, asked: &[(&str, Option<&str>)]) -> Result<Vec<Stored>, Failure> {
        let (features, event_ids): (Vec<&str>, Vec<Option<&str>>) = asked.iter().copied().unzip();
        let window = self.dedup_window.as_secs_f64();
        let doing = "looking up stored versions";
        let client = self.connection(doing).await?;
        let asked = async {
            let parameters: [(&(dyn ToSql + Sync), Type); 3] =
                [(&features, Type::TEXT_ARRAY), (&event_ids, Type::TEXT_ARRAY), (&window, Type::FLOAT8)];
            let rows = client.query_typed(LOOK_UP, &parameters).await?;
            rows.iter()
                .map(|row| {
                    let version: Option<i64> = row.try_get(0)?;
                    let observed: Option<chrono::DateTime<chrono::Utc>> = row.try_get(1)?;
                    let key = version
                        .zip(observed)
                        .map(|(version, observed)| Key { version, observed_us: observed.timestamp_micros() });
                    Ok(Stored { key, event_id_known: row.try_get(2)? })
                })
                .collect()
        };
        let answer = in_time(self.deadline, doing, asked).await;
        give_back(client, answer)
    }

    /// Runs the write statement with no rows: proves server, schema and rights without a trace.
    ///
    /// # Errors
    /// As judged by [`Failure::postgres`].
    pub async fn probe_write(&self) -> Result<(), Failure> {
        self.writer().await?.write_newest(&[], None).await.map(|_| ())
    }

    /// Writes a row and takes it back: proves that the database takes rows at all, which a write
    /// without any does not. A constraint of somebody's that refuses the row is an answer too.
    ///
    /// # Errors
    /// As judged by [`Failure::postgres`].
    pub async fn rehearse(&self) -> Result<(), Failure> {
        let doing = "rehearsing a write";
        let client = self.connection(doing).await?;
        let answer = in_time(self.deadline, doing, client.batch_execute(REHEARSE)).await;
        match give_back(client, answer) {
            Err(failure) if failure.class == Class::Row => Ok(()),
            answer => answer,
        }
    }
}

/// The events, turned into one array for each column.
struct Columns<'a> {
    feature_id: Vec<&'a str>,
    version: Vec<i64>,
    op: Vec<&'static str>,
    observation_time: Vec<Micros>,
    geometry: Vec<Option<Ewkb<'a>>>,
    geometry_z: Vec<Option<Ewkb<'a>>>,
    properties: Vec<Option<Json<'a>>>,
    cell: Vec<Option<i64>>,
}

impl<'a> Columns<'a> {
    fn new(events: &[&'a Event]) -> Self {
        let shape = |event: &&'a Event| event.shape.as_ref();
        Self {
            feature_id: events.iter().map(|event| event.feature_id.as_str()).collect(),
            version: events.iter().map(|event| event.key.version).collect(),
            op: events.iter().map(|event| event.op.as_str()).collect(),
            observation_time: events.iter().map(|event| Micros(event.key.observed_us)).collect(),
            geometry: events.iter().map(|event| shape(event).map(|shape| Ewkb(&shape.footprint))).collect(),
            geometry_z: events.iter().map(|event| shape(event)?.with_heights.as_deref().map(Ewkb)).collect(),
            properties: events.iter().map(|event| event.properties.as_deref().map(Json)).collect(),
            // H3 indexes use 63 bits: https://h3geo.org/docs/core-library/h3Indexing
            cell: events.iter().map(|event| event.cell.and_then(|cell| i64::try_from(cell).ok())).collect(),
        }
    }

    fn parameters(&self) -> [(&(dyn ToSql + Sync), Type); 8] {
        [
            (&self.feature_id, Type::TEXT_ARRAY),
            (&self.version, Type::INT8_ARRAY),
            (&self.op, Type::TEXT_ARRAY),
            (&self.observation_time, Type::TIMESTAMPTZ_ARRAY),
            (&self.geometry, Type::BYTEA_ARRAY),
            (&self.geometry_z, Type::BYTEA_ARRAY),
            (&self.properties, Type::JSONB_ARRAY),
            (&self.cell, Type::INT8_ARRAY),
        ]
    }
}

async fn run<'a>(
    client: &Object,
    plan: &Plan,
    parameters: impl Iterator<Item = (&'a (dyn ToSql + Sync), Type)> + Send,
) -> Result<RowStream, tokio_postgres::Error> {
    match plan {
        Plan::Prepared(statement) => {
            let parameters: Vec<_> = parameters.map(|(value, _)| value).collect();
            client.query_raw(statement, parameters).await
        }
        Plan::Typed(sql) => client.query_typed_raw(sql, parameters).await,
    }
}
