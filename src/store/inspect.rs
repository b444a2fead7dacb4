//! What `hexlane check` asks of PostgreSQL.

use std::collections::HashMap;

use tokio_postgres::types::Type;

use super::{Store, give_back, in_time};
use crate::failure::{Failure, Target};

const TABLES: [&str; 2] = ["feature_state", "processed_event"];
/// As `hexlane migrate` makes them.
pub(crate) const COLUMNS: [(&str, &str); 12] = [
    ("feature_state.feature_id", "text"),
    ("feature_state.version", "bigint"),
    ("feature_state.op", "text"),
    ("feature_state.observation_time", "timestamp with time zone"),
    ("feature_state.geometry", "geometry(Geometry,4326)"),
    ("feature_state.geometry_z", "geometry(GeometryZ,4326)"),
    ("feature_state.properties", "jsonb"),
    ("feature_state.cell", "bigint"),
    ("feature_state.applied_at", "timestamp with time zone"),
    ("processed_event.feature_id", "text"),
    ("processed_event.event_id", "text"),
    ("processed_event.processed_at", "timestamp with time zone"),
];

/// How a server and a database are set up.
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    /// Whether it is a standby.
    pub in_recovery: bool,
    /// Settings of the server, by their names.
    pub settings: HashMap<String, String>,
    /// As it is for this user without our own setting.
    pub synchronous_commit: String,
    /// The same, in milliseconds. What the session itself has set says nothing of a pooler's other connections.
    pub statement_timeout: String,
    /// The version of the extension.
    pub postgis: String,
    /// Standbys that a commit does not wait for.
    pub asynchronous_standbys: i64,
    /// Standbys of which this user may know no more than that they are there.
    pub hidden_standbys: i64,
    /// Columns of our tables as `TABLE.COLUMN`, and their types as PostgreSQL writes them.
    pub columns: HashMap<String, String>,
    /// `TABLE RIGHT`, for each right that a worker or `prune` needs and this user lacks; and `plpgsql USAGE`, of the
    /// language in which a write is rehearsed.
    pub missing_rights: Vec<String>,
    /// Of our tables and their partitions, those of which autovacuum has been told to leave a part or all alone.
    pub without_autovacuum: Vec<String>,
    /// The server's clock less ours, in microseconds.
    pub clock_ahead_us: i64,
}

impl Inspection {
    /// Whether a setting that is `on` or `off` is off; one that the server does not know is not.
    pub fn is_off(&self, setting: &str) -> bool {
        self.settings.get(setting).is_some_and(|value| value == "off")
    }

    /// Tables and columns that are not as they have to be, and what to do about each.
    pub fn wrong_columns(&self) -> Vec<(String, &'static str)> {
        let is_missing = |table: &&str| !self.columns.keys().any(|column| column.starts_with(&format!("{table}.")));
        let missing: Vec<&str> = TABLES.into_iter().filter(is_missing).collect();
        let wrong = COLUMNS.into_iter().filter_map(|(column, wanted)| {
            let is_told = missing.iter().any(|table| column.starts_with(table));
            match self.columns.get(column) {
                _ if is_told => None,
                None => Some((
                    format!("{column} is absent"),
                    "name it so again, or add it as `hexlane migrate --print` shows",
                )),
                Some(found) if found != wanted => Some((
                    format!("{column} is {found}, not {wanted}"),
                    "give it back the type that `hexlane migrate --print` shows",
                )),
                Some(_) => None,
            }
        });
        let remedy = "restore it, or make it as `hexlane migrate --print` shows";
        missing.iter().map(|table| (format!("the table {table} is absent"), remedy)).chain(wrong).collect()
    }

    /// Refuses to go on with columns of other types than those that are written.
    ///
    /// # Errors
    /// [`crate::failure::Class::Fatal`], naming them.
    pub fn check_columns(&self) -> Result<(), Failure> {
        let wrong = self.wrong_columns();
        let Some((_, remedy)) = wrong.first() else { return Ok(()) };
        let what: Vec<&str> = wrong.iter().map(|(what, _)| what.as_str()).collect();
        Err(Failure::fatal(Target::Postgres, "schema", what.join(", "), remedy))
    }

    /// Refuses to go on without `rights`.
    ///
    /// # Errors
    /// [`crate::failure::Class::Fatal`], naming those that are missing.
    pub fn check_rights(&self, rights: &[&str]) -> Result<(), Failure> {
        let is_wanted = |missing: &&str| rights.iter().any(|right| missing.ends_with(right));
        let missing: Vec<&str> = self.missing_rights.iter().map(String::as_str).filter(is_wanted).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let text = format!("the user in --database-url lacks {}", missing.join(", "));
        let remedy = "grant it; scripts/rights/roles.sql has all that is needed";
        Err(Failure::fatal(Target::Postgres, "42501", text, remedy))
    }
}

impl Store {
    /// Asks for everything at once. Changes nothing.
    ///
    /// # Errors
    /// As judged by [`Failure::postgres`].
    pub async fn inspect(&self) -> Result<Inspection, Failure> {
        let doing = "inspecting the server";
        let client = self.connection(doing).await?;
        let asked = async {
            let sql = "SELECT pg_is_in_recovery(),
                (SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'async' AND state = 'streaming'),
                (SELECT coalesce(array_agg(name), '{}') FROM unnest($1::text[]) AS name),
                (SELECT coalesce(array_agg(coalesce(current_setting(name, true), '')), '{}') FROM unnest($1::text[]) AS name),
                (SELECT coalesce(array_agg(name || '.' || attname ORDER BY name, attnum), '{}')
                    FROM unnest($2::text[]) AS name JOIN pg_attribute ON attrelid = to_regclass(name)
                    WHERE attnum > 0 AND NOT attisdropped),
                (SELECT coalesce(array_agg(format_type(atttypid, atttypmod) ORDER BY name, attnum), '{}')
                    FROM unnest($2::text[]) AS name JOIN pg_attribute ON attrelid = to_regclass(name)
                    WHERE attnum > 0 AND NOT attisdropped),
                (SELECT coalesce(array_agg(name || ' ' || privilege), '{}')
                    FROM unnest($2::text[]) AS name, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS privilege
                    WHERE NOT coalesce(has_table_privilege(to_regclass(name), privilege), false))
                    || CASE WHEN EXISTS (SELECT FROM pg_language
                        WHERE lanname = 'plpgsql' AND has_language_privilege(oid, 'USAGE'))
                    THEN '{}'::text[] ELSE '{plpgsql USAGE}' END,
                (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
                (SELECT count(*) FROM pg_stat_replication WHERE state IS NULL),
                (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'),
                (SELECT extversion FROM pg_extension WHERE extname = 'postgis'),
                (SELECT reset_val FROM pg_settings WHERE name = 'statement_timeout'),
                (WITH RECURSIVE ours AS (
                        SELECT to_regclass(name)::oid AS oid FROM unnest($2::text[]) AS name
                        UNION SELECT inhrelid FROM pg_inherits JOIN ours ON inhparent = oid)
                    SELECT coalesce(array_agg(c.oid::regclass::text ORDER BY c.oid::regclass::text), '{}')
                    FROM ours JOIN pg_class AS c USING (oid) LEFT JOIN pg_class AS toast ON toast.oid = c.reltoastrelid
                    WHERE EXISTS (
                        SELECT FROM pg_options_to_table(coalesce(c.reloptions, '{}') || coalesce(toast.reloptions, '{}'))
                        WHERE CASE option_name WHEN 'autovacuum_enabled' THEN NOT option_value::boolean END))";
            let names = [
                "autovacuum",
                "fsync",
                "full_page_writes",
                "server_version",
                "synchronous_standby_names",
                "track_counts",
            ];
            let before_us = chrono::Utc::now().timestamp_micros();
            let row = client
                .query_typed_one(sql, &[(&names.as_slice(), Type::TEXT_ARRAY), (&TABLES.as_slice(), Type::TEXT_ARRAY)])
                .await?;
            let half_way_us = i64::midpoint(before_us, chrono::Utc::now().timestamp_micros());
            let zip = |names: Vec<String>, values: Vec<String>| names.into_iter().zip(values).collect();
            Ok(Inspection {
                in_recovery: row.try_get(0)?,
                asynchronous_standbys: row.try_get(1)?,
                settings: zip(row.try_get(2)?, row.try_get(3)?),
                columns: zip(row.try_get(4)?, row.try_get(5)?),
                missing_rights: row.try_get(6)?,
                hidden_standbys: row.try_get(8)?,
                synchronous_commit: row.try_get(9)?,
                postgis: row.try_get::<_, Option<String>>(10)?.unwrap_or_default(),
                statement_timeout: row.try_get(11)?,
                without_autovacuum: row.try_get(12)?,
                clock_ahead_us: row.try_get::<_, i64>(7)? - half_way_us,
            })
        };
        let answer = in_time(self.deadline, doing, asked).await;
        give_back(client, answer)
    }
}
