//! Brings the schema up, once, however many processes ask for it together.

use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use super::{Store, failure, give_back, in_time};
use crate::failure::{Class, Failure, Target};

/// Every migration, oldest first; its place in the list, counted from 1, is the schema's version.
const MIGRATIONS: [&str; 1] = [include_str!("sql/0001_feature_state.sql")];

/// The version this program works with.
pub const SCHEMA_VERSION: i32 = MIGRATIONS.len() as i32;

/// Held until the migrating transaction ends, so that others wait and then find nothing to do.
const LOCK: &str = "SELECT pg_advisory_xact_lock(hashtextextended('hexlane schema', 0))";

const VERSION_TABLE: &str = "CREATE TABLE IF NOT EXISTS hexlane_schema_version (
    version    integer PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now()
)";

const RECORD: &str = "INSERT INTO hexlane_schema_version (version) VALUES ($1)";

/// The whole schema as one script, for those who run it by hand.
pub fn script() -> String {
    let mut out = format!("BEGIN;\n{LOCK};\n{VERSION_TABLE};\n");
    for (version, sql) in (1..).zip(MIGRATIONS) {
        out.push_str(&format!("\n-- schema version {version}\n{sql}"));
        out.push_str(&format!("{};\n", RECORD.replace("$1", &version.to_string())));
    }
    out.push_str("\nCOMMIT;\n");
    out
}

impl Store {
    /// Brings the schema up to [`SCHEMA_VERSION`]; answers how many migrations that took.
    ///
    /// # Errors
    /// [`Class::Fatal`] for a missing right or PostGIS, and for a schema that is newer than this
    /// program; else as judged by [`Failure::postgres`].
    pub async fn migrate(&self) -> Result<usize, Failure> {
        match self.check_schema().await {
            // Whoever may not change the schema need not, where there is nothing to change.
            Ok(()) => return Ok(0),
            Err(failure) if failure.code == "42501" => return Err(failure),
            Err(_) => {}
        }
        let doing = "migrating the schema";
        let mut client = self.unpooled(doing).await?;
        let applied = async {
            let transaction = client.transaction().await?;
            // Building an index or waiting for another migration may take longer than a write may.
            transaction.batch_execute("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0").await?;
            transaction.batch_execute(LOCK).await?;
            transaction.batch_execute(VERSION_TABLE).await?;
            let from = version(&transaction).await?;
            let missing = MIGRATIONS.get(usize::try_from(from).unwrap_or(0)..).unwrap_or_default();
            for (version, sql) in (from + 1..).zip(missing) {
                transaction.batch_execute(sql).await?;
                transaction.query_typed(RECORD, &[(&version, Type::INT4)]).await?;
            }
            // Every statement above has answered without an error, so this cannot be a ROLLBACK.
            transaction.commit().await?;
            Ok(missing.len())
        };
        let applied = applied.await.map_err(|error| failure(&error, doing, Class::Transient))?;
        self.check_schema().await?;
        Ok(applied)
    }

    /// Compares the schema with what this program works with.
    ///
    /// # Errors
    /// [`Class::Fatal`] if they differ; else as judged by [`Failure::postgres`].
    pub async fn check_schema(&self) -> Result<(), Failure> {
        let doing = "reading the schema's version";
        let client = self.connection(doing).await?;
        let answer = in_time(self.deadline, doing, version(&**client)).await.map_err(Failure::about_no_row);
        let found = give_back(client, answer)?;
        let refuse = |remedy| {
            let text = format!("the schema has version {found}, this hexlane works with {SCHEMA_VERSION}");
            Err(Failure::fatal(Target::Postgres, "schema", text, remedy))
        };
        match found.cmp(&SCHEMA_VERSION) {
            std::cmp::Ordering::Less => refuse("run `hexlane migrate`"),
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Greater => refuse("use a newer hexlane"),
        }
    }
}

async fn version(client: &impl GenericClient) -> Result<i32, tokio_postgres::Error> {
    let sql = "SELECT coalesce(max(version), 0) FROM hexlane_schema_version";
    let row = client.query_typed_one(sql, &[]).await?;
    row.try_get(0)
}
