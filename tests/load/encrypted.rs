//! TLS, switched on in servers that run already, and off again: in Redis on a second port, in PostgreSQL on the same.

use std::time::{Duration, Instant};

use redis::ConnectionAddr;
use tempfile::TempDir;
use tokio_postgres::config::Host;

use crate::authority::{Authority, Pair};
use crate::bare::connect;
use crate::server::{Servers, free_port};

/// In PostgreSQL's data folder.
const CERTIFICATE: &str = "hexlane-bench.crt";
const KEY: &str = "hexlane-bench.key";
const POLL: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Encrypted {
    /// Redis reads its certificate again whenever a setting changes, workers the authority's when they start.
    files: TempDir,
    redis_port: u16,
    redis_before: Vec<(String, String)>,
}

impl Encrypted {
    pub async fn switch_on(servers: &mut Servers) -> Self {
        let ssl: String = servers.postgres.query_one("SHOW ssl", &[]).await.expect("PostgreSQL answers").get(0);
        assert!(ssl == "off", "PostgreSQL speaks TLS already, and would not afterwards: set ssl = off");
        let authority = Authority::new("hexlane bench");
        let pair = authority.sign(&[&redis_address(servers).0, &postgres_host(servers)]);
        let files = TempDir::with_prefix("hexlane-bench-").expect("a temporary folder can be made");
        for (name, pem) in [("ca.pem", &authority.pem()), (CERTIFICATE, &pair.certificate), (KEY, &pair.key)] {
            std::fs::write(files.path().join(name), pem).expect("the file can be written");
        }
        let redis_before = redis::cmd("CONFIG")
            .arg("GET")
            .arg(&["tls-cert-file", "tls-key-file", "tls-auth-clients", "tls-port"])
            .query_async(&mut servers.redis)
            .await
            .expect("Redis answers");
        let encrypted = Self { files, redis_port: free_port(), redis_before };
        let redis = [
            ("tls-cert-file", encrypted.path(CERTIFICATE)),
            ("tls-key-file", encrypted.path(KEY)),
            ("tls-auth-clients", "no".to_owned()),
            ("tls-port", encrypted.redis_port.to_string()),
        ];
        configure_redis(servers, &redis.map(|(name, value)| (name.to_owned(), value))).await;
        switch_on_postgres(servers, &pair).await;
        encrypted
    }

    /// For a worker that can reach neither server but by TLS.
    pub fn args(&self, servers: &Servers) -> Vec<String> {
        let (host, port) = redis_address(servers);
        let (plain, other) = (format!("{host}:{port}"), format!("{host}:{}", self.redis_port));
        let redis = servers.redis_url.replacen("redis://", "rediss://", 1).replacen(&plain, &other, 1);
        let authority = self.path("ca.pem");
        let database = format!("{}?sslmode=verify-full&sslrootcert={authority}", servers.database_url);
        ["--redis-url", &redis, "--redis-ca", &authority, "--database-url", &database].map(str::to_owned).into()
    }

    pub async fn switch_off(self, servers: &mut Servers) {
        configure_redis(servers, &self.redis_before).await;
        for setting in ["ssl", "ssl_cert_file", "ssl_key_file"] {
            servers.postgres.batch_execute(&format!("ALTER SYSTEM RESET {setting}")).await.expect("a superuser");
        }
        reload_postgres(servers, "off").await;
        let remove = format!("COPY (SELECT WHERE false) TO PROGRAM 'rm {CERTIFICATE} {KEY}'");
        servers.postgres.batch_execute(&remove).await.expect("a superuser");
    }

    fn path(&self, name: &str) -> String {
        self.files.path().join(name).to_str().expect("a path in UTF-8").to_owned()
    }
}

/// For a worker that does not use TLS where PostgreSQL offers it, as it would by default.
pub fn plain_args(servers: &Servers) -> Vec<String> {
    vec!["--database-url".to_owned(), format!("{}?sslmode=disable", servers.database_url)]
}

fn redis_address(servers: &Servers) -> (String, u16) {
    let client = redis::Client::open(servers.redis_url.as_str()).expect("a Redis URL");
    match client.get_connection_info().addr() {
        ConnectionAddr::Tcp(host, port) => (host.clone(), *port),
        other => panic!("{other} is not reached by TCP without TLS"),
    }
}

fn postgres_host(servers: &Servers) -> String {
    let config: tokio_postgres::Config = servers.database_url.parse().expect("a database URL");
    match config.get_hosts() {
        [Host::Tcp(host)] => host.clone(),
        others => panic!("{others:?} is not one host that is reached by TCP"),
    }
}

/// All at once: Redis looks at them together.
async fn configure_redis(servers: &mut Servers, settings: &[(String, String)]) {
    let mut command = redis::cmd("CONFIG");
    command.arg("SET").arg(settings).exec_async(&mut servers.redis).await.expect("Redis takes the settings for TLS");
}

async fn switch_on_postgres(servers: &Servers, pair: &Pair) {
    for (name, pem) in [(CERTIFICATE, &pair.certificate), (KEY, &pair.key)] {
        // Written by the server's own user, to whom the key has to belong.
        let copy =
            format!("COPY (SELECT string_to_table('{}', E'\\n')) TO PROGRAM 'umask 077 && cat > {name}'", pem.trim());
        servers.postgres.batch_execute(&copy).await.expect("a superuser");
    }
    for (setting, value) in [("ssl_cert_file", CERTIFICATE), ("ssl_key_file", KEY), ("ssl", "on")] {
        let sql = format!("ALTER SYSTEM SET {setting} = '{value}'");
        servers.postgres.batch_execute(&sql).await.expect("a superuser");
    }
    reload_postgres(servers, "on").await;
}

/// Until new connections find `ssl` as it should be.
async fn reload_postgres(servers: &Servers, wanted: &str) {
    servers.postgres.batch_execute("SELECT pg_reload_conf()").await.expect("a superuser");
    let patience = Instant::now() + PATIENCE;
    loop {
        let client = connect(&servers.database_url).await;
        let ssl: String = client.query_one("SHOW ssl", &[]).await.expect("PostgreSQL answers").get(0);
        if ssl == wanted {
            return;
        }
        assert!(Instant::now() < patience, "ssl stays {ssl} in PostgreSQL");
        tokio::time::sleep(POLL).await;
    }
}
