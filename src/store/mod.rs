//! The only module that speaks to PostgreSQL.
//!
//! Comes in: events of one batch. Goes out: what the guard decided about each of them, or one
//! judged [`Failure`] for all of them. Every write is one auto-committed statement; nothing is
//! retried here.

mod address;
mod hosts;
pub mod inspect;
pub mod migrate;
mod parameter;
pub mod prune;
pub mod statement;
mod tls;

use std::time::Duration;

use deadpool_postgres::{Hook, HookError, Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod};
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config};

use crate::failure::{Class, Failure, Target};
use address::Address;
use hosts::Hosts;

/// How to reach the database and how long it may take to answer. Holds passwords, so it cannot be shown.
#[derive(Clone)]
pub struct StoreSettings {
    /// A connection string, as libpq takes it.
    pub url: String,
    /// Where it does not stand in there.
    pub password: Option<String>,
    /// What `pg_stat_activity` shows.
    pub application_name: String,
    /// Connections, and with that statements under way at once.
    pub pool_size: usize,
    /// The server ends a statement after this time.
    pub statement_timeout: Duration,
    /// A known `event_id` is a duplicate for this long.
    pub dedup_window: Duration,
    /// A pooler stands between, which may give each transaction another server connection: nothing may rest
    /// on what an earlier one has set or prepared.
    pub transaction_pooling: bool,
}

/// A PostgreSQL database with PostGIS.
#[derive(Clone)]
pub struct Store {
    config: Config,
    hosts: Hosts,
    pool: Pool,
    /// When the server itself is silent for longer, the connection is given up.
    deadline: Duration,
    lock_timeout: Duration,
    dedup_window: Duration,
    transaction_pooling: bool,
    create_timeout: Duration,
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// As libpq has it.
const SHORTEST_CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// For the handshake, and again for the session's settings.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// What the network may add to the statement timeout.
const DEADLINE_MARGIN: Duration = Duration::from_secs(5);

impl Store {
    /// Prepares a pool; the first connection is made when it is needed.
    ///
    /// # Errors
    /// [`Class::Fatal`] if the URL, or a file that it names, cannot be read.
    pub async fn open(settings: &StoreSettings) -> Result<Self, Failure> {
        let refuse = |sentence| Failure::fatal(Target::Postgres, "url", sentence, "correct --database-url");
        let Address { mut config, tls } = Address::parse(&settings.url).map_err(refuse)?;
        let tls = tls.connector().await.map_err(refuse)?;
        match &settings.password {
            Some(_) if config.get_password().is_some() => return Err(refuse("there are two passwords".into())),
            Some(password) => drop(config.password(password)),
            None => {}
        }
        config.application_name(&settings.application_name);
        config
            .keepalives_idle(Duration::from_secs(10))
            .keepalives_interval(Duration::from_secs(5))
            .keepalives_retries(3);
        config.tcp_user_timeout(Duration::from_secs(30));
        let patience = config.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT).max(SHORTEST_CONNECT_TIMEOUT);
        config.connect_timeout(patience);
        let lock_timeout = lock_timeout(settings.statement_timeout);
        let hosts = Hosts::new(&config, tls, patience);
        let count = u32::try_from(config.get_hosts().len()).unwrap_or(u32::MAX);
        let create_timeout = patience.saturating_mul(count).saturating_add(HANDSHAKE_TIMEOUT);
        let session = session_settings(settings.statement_timeout, lock_timeout);
        let set_session = Hook::async_fn(move |client: &mut deadpool_postgres::ClientWrapper, _| {
            let session = session.clone();
            Box::pin(async move {
                // The pool's own timeout is over before its hooks.
                match tokio::time::timeout(HANDSHAKE_TIMEOUT, client.batch_execute(&session)).await {
                    Ok(answer) => answer.map_err(HookError::Backend),
                    Err(_) => Err(HookError::message("no answer in time")),
                }
            })
        });
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_connect(config.clone(), hosts.clone(), recycling);
        let builder = Pool::builder(manager).max_size(settings.pool_size);
        let builder = if settings.transaction_pooling { builder } else { builder.post_create(set_session) };
        let deadline = settings.statement_timeout + DEADLINE_MARGIN;
        let pool = builder
            // `connect_timeout` bounds the TCP part only; a frozen server would hang the handshake.
            .runtime(deadpool_postgres::Runtime::Tokio1)
            .create_timeout(Some(create_timeout))
            // Others hold a connection for as long as they connect or wait for an answer.
            .wait_timeout(Some(deadline))
            .build()
            .map_err(|error| Failure::fatal(Target::Postgres, "pool", error.to_string(), "this is a bug: report it"))?;
        Ok(Self {
            config,
            hosts,
            pool,
            deadline,
            lock_timeout,
            dedup_window: settings.dedup_window,
            transaction_pooling: settings.transaction_pooling,
            create_timeout,
        })
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

    /// After which time a statement is given up.
    pub fn answer_timeout(&self) -> Duration {
        self.deadline
    }

    /// How long it may take until a connection is there, or is known not to be.
    pub fn connect_timeout(&self) -> Duration {
        self.create_timeout
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
            let row = client.query_typed_one(sql, &[]).await?;
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

    /// Refuses to go on through a pooler in transaction mode that nobody has told us of: there a connection is
    /// not always the same one on the server, nor is it ours alone. And through one of which we know, with timeouts
    /// under which a row that somebody has locked would look like a row that is too slow.
    ///
    /// # Errors
    /// [`Class::Fatal`] if it is so; else as judged by [`Failure::postgres`].
    pub async fn check_pooling(&self) -> Result<(), Failure> {
        if self.transaction_pooling {
            return self.check_pooled_timeouts().await;
        }
        const LOOKS: usize = 3;
        let doing = "looking for a pooler";
        let (first, second) = (self.unpooled(doing).await?, self.unpooled(doing).await?);
        let asked = async {
            let pid = async |client: &Client| -> Result<i32, tokio_postgres::Error> {
                client.query_typed_one("SELECT pg_backend_pid()", &[]).await?.try_get(0)
            };
            let before = pid(&first).await?;
            second.batch_execute("BEGIN").await?;
            let mut is_shared = pid(&second).await? == before;
            for _ in 0..LOOKS {
                is_shared |= pid(&first).await? != before;
            }
            second.batch_execute("ROLLBACK").await?;
            Ok(is_shared)
        };
        if !in_time(self.deadline, doing, asked).await? {
            return Ok(());
        }
        let text = "a pooler in transaction mode stands between".into();
        Err(Failure::fatal(Target::Postgres, "pooler", text, "say --transaction-pooling"))
    }

    async fn check_pooled_timeouts(&self) -> Result<(), Failure> {
        let doing = "asking for the timeouts";
        let client = self.connection(doing).await?;
        let asked = async {
            let sql = "SELECT (SELECT reset_val::bigint FROM pg_settings WHERE name = 'statement_timeout'),
                (SELECT reset_val::bigint FROM pg_settings WHERE name = 'lock_timeout')";
            let row = client.query_typed_one(sql, &[]).await?;
            Ok((row.try_get(0)?, row.try_get(1)?))
        };
        let answer = in_time(self.deadline, doing, asked).await;
        let (statement_ms, lock_ms): (i64, i64) = give_back(client, answer)?;
        let patience_ms = i64::try_from(self.lock_timeout.as_millis()).unwrap_or(i64::MAX);
        let is_told_apart = lock_ms > 0 && lock_ms < statement_ms && patience_ms < statement_ms;
        if statement_ms == 0 || is_told_apart {
            return Ok(());
        }
        let text = format!(
            "through a pooler statement_timeout is {statement_ms} ms and lock_timeout {lock_ms} ms: a row that somebody \
             has locked would look like one that is too slow"
        );
        let remedy = "ALTER ROLE … SET lock_timeout = '20s', and statement_timeout no shorter than --statement-timeout, \
                      as scripts/rights/roles.sql does";
        Err(Failure::fatal(Target::Postgres, "pooler", text, remedy))
    }

    /// A server or a pooler may refuse a connection with a code that would otherwise blame a row.
    async fn connection(&self, doing: &str) -> Result<Object, Failure> {
        let connected = self.pool.get().await.map_err(|error| match error {
            PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => {
                failure(&error, &format!("{doing}: connecting"), Class::Transient)
            }
            PoolError::Timeout(_) => Failure::no_answer(Target::Postgres, &format!("{doing}: connecting")),
            other => Failure::silence(Target::Postgres, Class::Transient, "io", format!("{doing}: {other}")),
        });
        connected.map_err(Failure::about_no_row)
    }

    async fn unpooled(&self, doing: &str) -> Result<Client, Failure> {
        let Ok(connected) = tokio::time::timeout(self.create_timeout, self.hosts.connect()).await else {
            return Err(Failure::no_answer(Target::Postgres, &format!("{doing}: connecting")));
        };
        connected.map(|(client, _)| client).map_err(|error| failure(&error, doing, Class::Transient))
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
        Err(_) => Err(Failure::no_answer(Target::Postgres, doing)),
    }
}

/// Puts the connection back into the pool, unless its state is unknown or its server cannot be
/// written to: then it is closed, and with a server that has become read-only all that lead there.
fn give_back<T>(client: Object, answer: Result<T, Failure>) -> Result<T, Failure> {
    if answer.as_ref().is_err_and(|failure| failure.code == "25006")
        && let Some(pool) = Object::pool(&client)
    {
        pool.retain(|_, _| false);
    }
    if answer.as_ref().is_err_and(|failure| failure.class != Class::Row) {
        drop(Object::take(client));
    }
    answer
}

/// Sent once for each connection. `synchronous_commit`: an acknowledged entry must not be lost with
/// a crash of the server; the write statement itself says so too, because a pooler may forget it.
/// `read committed`: under a stricter level the guard would fail with 40001 where it can simply
/// compare with the newest row.
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
        // PgBouncer's word for a server connection that ended: https://www.pgbouncer.org/faq.html
        Some(answer) if answer.code().code() == "08P01" => {
            Failure::silence(Target::Postgres, lost, "io", format!("{doing}: {}", answer.message()))
        }
        // Only the primary message: DETAIL may quote the row.
        Some(answer) => Failure::postgres(answer.code().code(), format!("{doing}: {}", answer.message())),
        None => {
            let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
            let text = format!("{doing}: {error}{cause}");
            Failure::tls(Target::Postgres, &text)
                .unwrap_or_else(|| Failure::silence(Target::Postgres, lost, "io", text))
        }
    }
}
