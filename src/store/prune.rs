//! Removes what has protected long enough: tombstones, and rows of the ledger.
//!
//! Walks each table once along its primary key, a page in each statement, so that no index on the
//! age is needed that every write would have to keep up. Rows that somebody has locked right now are
//! left for the next time. A row is looked at again when it is locked: a feature may have been created
//! anew since the page was read.
//! See <https://www.postgresql.org/docs/current/transaction-iso.html#XACT-READ-COMMITTED>.

use chrono::{DateTime, Utc};
use tokio_postgres::types::{ToSql, Type};

use super::{Store, give_back, in_time};
use crate::failure::Failure;

/// Rows looked at in one statement.
const PAGE: i64 = 5000;

/// What is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expired {
    /// Tombstones of `feature_state`.
    Tombstones,
    /// Rows of `processed_event`.
    EventIds,
}

impl Expired {
    fn sql(self, only_count: bool) -> &'static str {
        match (self, only_count) {
            (Self::Tombstones, false) => {
                "WITH page AS MATERIALIZED (
                    SELECT feature_id FROM feature_state WHERE feature_id > $3 ORDER BY feature_id LIMIT $2),
                old AS MATERIALIZED (
                    SELECT feature_id FROM feature_state
                    WHERE feature_id IN (SELECT feature_id FROM page) AND op = 'delete' AND applied_at < $1
                    ORDER BY feature_id FOR UPDATE SKIP LOCKED),
                gone AS (
                    DELETE FROM feature_state WHERE feature_id IN (SELECT feature_id FROM old)
                        AND op = 'delete' AND applied_at < $1 RETURNING 1)
                SELECT max(feature_id), NULL, (SELECT count(*) FROM gone) FROM page"
            }
            (Self::Tombstones, true) => {
                "WITH page AS MATERIALIZED (
                    SELECT feature_id, op, applied_at FROM feature_state
                    WHERE feature_id > $3 ORDER BY feature_id LIMIT $2)
                SELECT max(feature_id), NULL, count(*) FILTER (WHERE op = 'delete' AND applied_at < $1) FROM page"
            }
            (Self::EventIds, false) => {
                "WITH page AS MATERIALIZED (
                    SELECT feature_id, event_id FROM processed_event
                    WHERE (feature_id, event_id) > ($3, $4) ORDER BY feature_id, event_id LIMIT $2),
                old AS MATERIALIZED (
                    SELECT feature_id, event_id FROM processed_event
                    WHERE (feature_id, event_id) IN (SELECT feature_id, event_id FROM page) AND processed_at < $1
                    ORDER BY feature_id, event_id FOR UPDATE SKIP LOCKED),
                gone AS (
                    DELETE FROM processed_event
                    WHERE (feature_id, event_id) IN (SELECT feature_id, event_id FROM old)
                        AND processed_at < $1 RETURNING 1),
                last AS (SELECT feature_id, event_id FROM page ORDER BY 1 DESC, 2 DESC LIMIT 1)
                SELECT (SELECT feature_id FROM last), (SELECT event_id FROM last), (SELECT count(*) FROM gone)"
            }
            (Self::EventIds, true) => {
                "WITH page AS MATERIALIZED (
                    SELECT feature_id, event_id, processed_at FROM processed_event
                    WHERE (feature_id, event_id) > ($3, $4) ORDER BY feature_id, event_id LIMIT $2),
                last AS (SELECT feature_id, event_id FROM page ORDER BY 1 DESC, 2 DESC LIMIT 1)
                SELECT (SELECT feature_id FROM last), (SELECT event_id FROM last),
                    (SELECT count(*) FROM page WHERE processed_at < $1)"
            }
        }
    }
}

impl Store {
    /// Removes what is older than `before`, by the database's clock; answers how many. With
    /// `only_count` nothing is removed.
    ///
    /// # Errors
    /// As judged by [`Failure::postgres`]; what was removed until then stays removed.
    pub async fn prune(&self, expired: Expired, before: DateTime<Utc>, only_count: bool) -> Result<u64, Failure> {
        let doing = "pruning";
        let sql = expired.sql(only_count);
        let (mut feature_id, mut event_id, mut removed) = (String::new(), String::new(), 0_u64);
        loop {
            let client = self.connection(doing).await?;
            let asked = async {
                let all: [(&(dyn ToSql + Sync), Type); 4] = [
                    (&before, Type::TIMESTAMPTZ),
                    (&PAGE, Type::INT8),
                    (&feature_id, Type::TEXT),
                    (&event_id, Type::TEXT),
                ];
                let row = match expired {
                    Expired::Tombstones => client.query_typed_one(sql, &all[..3]).await?,
                    Expired::EventIds => client.query_typed_one(sql, &all).await?,
                };
                Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))
            };
            let answer = in_time(self.deadline, doing, asked).await;
            let (last, event, count): (Option<String>, Option<String>, i64) = give_back(client, answer)?;
            removed += count.unsigned_abs();
            let Some(last) = last else { return Ok(removed) };
            (feature_id, event_id) = (last, event.unwrap_or_default());
        }
    }
}
