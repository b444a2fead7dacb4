//! The only module that speaks to PostgreSQL.
//!
//! Comes in: events of one batch. Goes out: what the guard decided about each of them, or one
//! judged [`Failure`] for all of them. Every write is one auto-committed statement; nothing is
//! retried here.

pub mod inspect;
pub mod migrate;
mod parameter;
pub mod prune;
pub mod statement;

use std::str::FromStr;
use std::time::Duration;

use deadpool_postgres::{Hook, HookError, Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod};
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config, NoTls};

use crate::failure::{Class, Failure, Target};

/// How to reach the database and how long it may take to answer.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// A connection string, as libpq takes it.
    pub url: String,
    /// What `pg_stat_activity` shows.
    pub application_name: String,
    /// Connections, and with that statements under way at once.
    pub pool_size: usize,
    /// The server ends a statement after this time.
    pub statement_timeout: Duration,
    /// A known `event_id` is a duplicate for this long.
    pub dedup_window: Duration,
}

/// A PostgreSQL database with PostGIS.
#[derive(Clone)]
pub struct Store {
    config: Config,
    pool: Pool,
    /// When the server itself is silent for longer, the connection is given up.
    deadline: Duration,
    lock_timeout: Duration,
    dedup_window: Duration,
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Connecting, the handshake and the session's settings together.
const CREATE_TIMEOUT: Duration = Duration::from_secs(10);
/// What the network may add to the statement timeout.
const DEADLINE_MARGIN: Duration = Duration::from_secs(5);

impl Store {
    /// Prepares a pool; the first connection is made when it is needed.
    ///
    /// # Errors
    /// [`Class::Fatal`] if the URL cannot be read.
    pub fn new(settings: &StoreSettings) -> Result<Self, Failure> {
        let bad_url = || {
            // The parser's error may quote the string, and with it the password.
            let remedy = "write --database-url as postgres://user:password@host:port/database";
            Failure::fatal(Target::Postgres, "url", "the connection string cannot be read".into(), remedy)
        };
        let mut config = Config::from_str(&settings.url).map_err(|_| bad_url())?;
        if config.get_hosts().is_empty() {
            return Err(bad_url());
        }
        config.application_name(&settings.application_name);
        config
            .keepalives_idle(Duration::from_secs(10))
            .keepalives_interval(Duration::from_secs(5))
            .keepalives_retries(3);
        config.tcp_user_timeout(Duration::from_secs(30));
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        let lock_timeout = lock_timeout(settings.statement_timeout);
        let session = session_settings(settings.statement_timeout, lock_timeout);
        let set_session = Hook::async_fn(move |client: &mut deadpool_postgres::ClientWrapper, _| {
            let session = session.clone();
            Box::pin(async move { client.batch_execute(&session).await.map_err(HookError::Backend) })
        });
        let manager =
            Manager::from_config(config.clone(), NoTls, ManagerConfig { recycling_method: RecyclingMethod::Fast });
        let pool = Pool::builder(manager)
            .max_size(settings.pool_size)
            .post_create(set_session)
            // `connect_timeout` bounds the TCP part only; a frozen server would hang the handshake.
            .runtime(deadpool_postgres::Runtime::Tokio1)
            .create_timeout(Some(CREATE_TIMEOUT))
            .build()
            .map_err(|error| Failure::fatal(Target::Postgres, "pool", error.to_string(), "this is a bug: report it"))?;
        let deadline = settings.statement_timeout + DEADLINE_MARGIN;
        Ok(Self { config, pool, deadline, lock_timeout, dedup_window: settings.dedup_window })
    }

    /// Hosts and database, for logs.
    pub fn address(&self) -> String {
        let hosts = self.config.get_hosts().iter().map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(folder) => folder.display().to_string(),
        });
        let ports = self.config.get_ports().iter().map(u16::to_string).collect::<Vec<_>>().join(",");
        format!("{}:{ports}/{}", hosts.collect::<Vec<_>>().join(","), self.config.get_dbname().unwrap_or_default())
    }

    /// Asks whether the server answers.
    ///
    /// # Errors
    /// As judged by [`Failure::postgres`].
    pub async fn ping(&self) -> Result<(), Failure> {
        let doing = "pinging";
        let client = self.connection(doing).await?;
        let answer = in_time(CONNECT_TIMEOUT, doing, client.batch_execute("SELECT 1")).await;
        give_back(client, answer)
    }

    /// Refuses servers that lack what the statements rest on.
    ///
    /// # Errors
    /// [`Class::Fatal`] for a PostgreSQL older than 15 and a PostGIS older than 3.3; else as judged
    /// by [`Failure::postgres`].
    pub async fn check_server(&self) -> Result<(), Failure> {
        let doing = "asking for the server's version";
        let client = self.connection(doing).await?;
        let asked = async {
            let sql = "SELECT current_setting('server_version_num')::int,
                (SELECT extversion FROM pg_extension WHERE extname = 'postgis')";
            let row = client.query_one(sql, &[]).await?;
            Ok((row.try_get(0)?, row.try_get(1)?))
        };
        let answer = in_time(self.deadline, doing, asked).await;
        let (number, postgis): (i32, Option<String>) = give_back(client, answer)?;
        if number < 150_000 {
            let text = format!("the server is PostgreSQL {}", number / 10_000);
            return Err(Failure::fatal(Target::Postgres, "version", text, "use PostgreSQL 15 or newer"));
        }
        let Some(postgis) = postgis else {
            let text = "the database has no extension postgis".into();
            return Err(Failure::fatal(
                Target::Postgres,
                "postgis",
                text,
                "run `hexlane migrate` as a user who may create it",
            ));
        };
        let mut parts = postgis.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        if (parts.next(), parts.next()) < (Some(3), Some(3)) {
            let text = format!("the database has PostGIS {postgis}");
            return Err(Failure::fatal(Target::Postgres, "postgis", text, "use PostGIS 3.3 or newer"));
        }
        Ok(())
    }

    /// A server or a pooler may refuse a connection with a code that would otherwise blame a row.
    async fn connection(&self, doing: &str) -> Result<Object, Failure> {
        let connected = self.pool.get().await.map_err(|error| match error {
            PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => {
                failure(&error, &format!("{doing}: connecting"), Class::Transient)
            }
            PoolError::Timeout(_) => {
                let text = format!("{doing}: connecting: no answer in time");
                Failure::silence(Target::Postgres, Class::Transient, "timeout", text)
            }
            other => Failure::silence(Target::Postgres, Class::Transient, "io", format!("{doing}: {other}")),
        });
        connected.map_err(Failure::about_no_row)
    }

    async fn unpooled(&self, doing: &str) -> Result<Client, Failure> {
        let connected = self.config.connect(NoTls).await;
        let (client, link) = connected.map_err(|error| failure(&error, doing, Class::Transient))?;
        // Ends with the client; its errors reach whoever waits for an answer.
        tokio::spawn(link);
        Ok(client)
    }
}

/// Waits for an answer, but not for ever.
async fn in_time<T>(
    deadline: Duration,
    doing: &str,
    answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(deadline, answer).await {
        Ok(answer) => answer.map_err(|error| failure(&error, doing, Class::Suspect)),
        Err(_) => {
            let text = format!("{doing}: no answer in time");
            Err(Failure::silence(Target::Postgres, Class::Transient, "timeout", text))
        }
    }
}

/// Puts the connection back into the pool, unless its state is unknown or its server cannot be
/// written to: then it is closed.
fn give_back<T>(client: Object, answer: Result<T, Failure>) -> Result<T, Failure> {
    if answer.as_ref().is_err_and(|failure| failure.class != Class::Row) {
        drop(Object::take(client));
    }
    answer
}

/// Sent once for each connection. `synchronous_commit`: an acknowledged entry must not be lost with
/// a crash of the server. `read committed`: under a stricter level the guard would fail with 40001
/// where it can simply compare with the newest row.
/// See <https://www.postgresql.org/docs/current/runtime-config-client.html>.
fn session_settings(statement_timeout: Duration, lock_timeout: Duration) -> String {
    let (statement_ms, lock_ms) = (statement_timeout.as_millis().max(1), lock_timeout.as_millis());
    format!(
        "SET statement_timeout = {statement_ms}; SET lock_timeout = {lock_ms};
         SET idle_in_transaction_session_timeout = {statement_ms}; SET synchronous_commit = on;
         SET default_transaction_isolation = 'read committed'"
    )
}

/// Shorter than the statement's, so that waiting for a lock is told from a statement that is too slow.
fn lock_timeout(statement_timeout: Duration) -> Duration {
    (statement_timeout * 2 / 3).max(Duration::from_millis(1))
}

/// Judges an error of the driver; `lost` is the class of a connection that ended without a word.
fn failure(error: &tokio_postgres::Error, doing: &str, lost: Class) -> Failure {
    match error.as_db_error() {
        // Only the primary message: DETAIL may quote the row.
        Some(answer) => Failure::postgres(answer.code().code(), format!("{doing}: {}", answer.message())),
        None => {
            let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
            Failure::silence(Target::Postgres, lost, "io", format!("{doing}: {error}{cause}"))
        }
    }
}
