//! Where the two servers are, and what it takes to be let in.

use std::fmt;
use std::time::Duration;

use clap::Args;

use super::values::{parse_name, parse_pause};
use crate::failure::Failure;
use crate::shard::Keys;
use crate::store::{Store, StoreSettings};
use crate::stream::Stream;
use crate::stream::place::Certificates;
use crate::stream::server::Server;

/// The contents of a file, read when the options are. Never shown.
#[derive(Clone)]
pub struct Contents(Vec<u8>);

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Contents(…)")
    }
}

fn read(path: &str) -> Result<Contents, String> {
    std::fs::read(path).map(Contents).map_err(|error| error.to_string())
}

/// One line, as secrets of containers are.
fn read_secret(path: &str) -> Result<String, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    match text.trim() {
        "" => Err("is empty".into()),
        secret => Ok(secret.to_owned()),
    }
}

/// How to reach Redis.
#[derive(Clone, Args)]
pub struct RedisUrlArgs {
    /// Redis, as redis://[user:password@]host:port[/database]; with TLS rediss://…; by Sentinel
    /// redis+sentinel://[user:password@]host:port,host:port/service [default: redis://127.0.0.1:6379].
    #[arg(long, env = "HEXLANE_REDIS_URL", hide_env_values = true)]
    redis_url: Option<String>,
    /// A file that holds the URL.
    #[arg(long, env = "HEXLANE_REDIS_URL_FILE", conflicts_with = "redis_url", value_parser = read_secret, value_name = "FILE")]
    redis_url_file: Option<String>,
    /// A file that holds the password, for a URL without one.
    #[arg(long, env = "HEXLANE_REDIS_PASSWORD_FILE", value_parser = read_secret, value_name = "FILE")]
    redis_password_file: Option<String>,
    /// Certificates of authorities to trust, PEM [default: those of the system].
    #[arg(long, env = "HEXLANE_REDIS_CA", value_parser = read, value_name = "FILE")]
    redis_ca: Option<Contents>,
    /// Our own certificate, PEM.
    #[arg(long, env = "HEXLANE_REDIS_CERT", value_parser = read, value_name = "FILE", requires = "redis_key")]
    redis_cert: Option<Contents>,
    /// Its key, PEM.
    #[arg(long, env = "HEXLANE_REDIS_KEY", value_parser = read, value_name = "FILE", requires = "redis_cert")]
    redis_key: Option<Contents>,
}

impl fmt::Debug for RedisUrlArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RedisUrlArgs(…)")
    }
}

impl RedisUrlArgs {
    /// Whether it says anything.
    pub fn is_given(&self) -> bool {
        self.redis_url.is_some() || self.redis_url_file.is_some()
    }

    /// The server.
    ///
    /// # Errors
    /// As [`Server::open`].
    pub async fn server(&self) -> Result<Server, Failure> {
        let url = self.redis_url.as_deref().or(self.redis_url_file.as_deref()).unwrap_or("redis://127.0.0.1:6379");
        let own = self.redis_cert.clone().zip(self.redis_key.clone()).map(|(cert, key)| (cert.0, key.0));
        let authority = self.redis_ca.clone().map(|authority| authority.0);
        let mut certificates = Certificates { authority, own };
        if url.starts_with("rediss") && certificates.authority.is_none() {
            certificates.trust_system().await?;
        }
        Server::open(url, self.redis_password_file.as_deref(), &certificates)
    }
}

/// Where the streams are.
#[derive(Clone, Debug, Args)]
pub struct RedisArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub url: RedisUrlArgs,
    /// Prefix of every key.
    #[arg(long, env = "HEXLANE_NAMESPACE", default_value = "hexlane", value_parser = parse_name)]
    pub namespace: String,
    /// The consumer group.
    #[arg(long, env = "HEXLANE_GROUP", default_value = "hexlane", value_parser = parse_name)]
    pub group: String,
}

impl RedisArgs {
    /// The server as a command sees it, which is no consumer.
    ///
    /// # Errors
    /// As [`Server::open`].
    pub async fn stream(&self) -> Result<Stream, Failure> {
        self.stream_of("").await
    }

    /// The server as this consumer sees it.
    ///
    /// # Errors
    /// As [`Server::open`].
    pub async fn stream_of(&self, consumer: &str) -> Result<Stream, Failure> {
        Ok(Stream::new(self.url.server().await?, Keys::new(&self.namespace), &self.group, consumer))
    }
}

/// How to reach PostgreSQL.
#[derive(Clone, Args)]
pub struct DatabaseUrlArgs {
    /// PostgreSQL, as postgres://user:password@host:port,host:port/database?sslmode=verify-full.
    #[arg(long, env = "HEXLANE_DATABASE_URL", hide_env_values = true)]
    database_url: Option<String>,
    /// A file that holds the URL.
    #[arg(long, env = "HEXLANE_DATABASE_URL_FILE", conflicts_with = "database_url", value_parser = read_secret, value_name = "FILE")]
    database_url_file: Option<String>,
    /// A file that holds the password, for a URL without one.
    #[arg(long, env = "HEXLANE_DATABASE_PASSWORD_FILE", value_parser = read_secret, value_name = "FILE")]
    database_password_file: Option<String>,
}

impl fmt::Debug for DatabaseUrlArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DatabaseUrlArgs(…)")
    }
}

impl DatabaseUrlArgs {
    /// The URL, wherever it stands.
    ///
    /// # Errors
    /// A sentence that names the options.
    pub fn url(&self) -> Result<&str, String> {
        let url = self.database_url.as_deref().or(self.database_url_file.as_deref());
        url.ok_or_else(|| "--database-url or --database-url-file is missing".into())
    }

    /// The password, where it stands in a file of its own.
    pub fn password(&self) -> Option<String> {
        self.database_password_file.clone()
    }
}

/// Where the table is.
#[derive(Clone, Debug, Args)]
pub struct DatabaseArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub address: DatabaseUrlArgs,
    /// The server ends a statement after this time; the same batch is then tried again.
    #[arg(long, env = "HEXLANE_STATEMENT_TIMEOUT", default_value = "30s", value_parser = parse_pause)]
    pub statement_timeout: Duration,
    /// A pooler in transaction mode stands between, such as PgBouncer: rest on nothing that a connection would keep.
    #[arg(long, env = "HEXLANE_TRANSACTION_POOLING", value_parser = clap::builder::FalseyValueParser::new())]
    pub transaction_pooling: bool,
}

impl DatabaseArgs {
    /// The database as a command sees it, which asks one thing after the other.
    ///
    /// # Errors
    /// A sentence for the user.
    pub async fn store(&self, application_name: &str, dedup_window: Duration) -> Result<Store, String> {
        let settings = StoreSettings {
            url: self.address.url()?.to_owned(),
            password: self.address.password(),
            application_name: application_name.into(),
            pool_size: 1,
            statement_timeout: self.statement_timeout,
            dedup_window,
            transaction_pooling: self.transaction_pooling,
        };
        Ok(Store::open(&settings).await?)
    }
}
