//! Encrypted connections: what is wrong with a certificate is said, and nothing goes through it.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::{Authority, Pair, Program, ended};
use crate::world::{World, eventually, point};

/// PEM files with short names.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(TempDir::with_prefix("hexlane-tls-").unwrap())
    }

    fn write(&self, name: &str, pem: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, pem).unwrap();
        path
    }

    fn pair(&self, name: &str, pair: &Pair) -> (PathBuf, PathBuf) {
        (self.write(&format!("{name}.crt"), &pair.certificate), self.write(&format!("{name}.key"), &pair.key))
    }
}

/// A Redis that speaks TLS only.
async fn redis(files: &Files, pair: &Pair, authority: &Path, asks_for_clients: bool) -> Program {
    let (certificate, key) = files.pair("redis", pair);
    Program::start("redis-server", |_, port| {
        let (port, clients) = (port.to_string(), if asks_for_clients { "yes" } else { "no" });
        [
            ["--port", "0"],
            ["--tls-port", &port],
            ["--bind", "127.0.0.1"],
            ["--tls-cert-file", certificate.to_str().unwrap()],
            ["--tls-key-file", key.to_str().unwrap()],
            ["--tls-ca-cert-file", authority.to_str().unwrap()],
            ["--tls-auth-clients", clients],
        ]
        .concat()
        .into_iter()
        .map(str::to_owned)
        .collect()
    })
    .await
}

/// A Sentinel that speaks TLS only, also to the Redis that it watches.
async fn sentinel(files: &Files, pair: &Pair, authority: &Path, watched: &Program) -> Program {
    let (certificate, key) = files.pair("sentinel", pair);
    let (certificate, key, authority) = (certificate.display(), key.display(), authority.display());
    Program::start("redis-server", |folder, port| {
        let config = format!(
            "bind 127.0.0.1\nport 0\ntls-port {port}\ntls-replication yes\ntls-auth-clients no\n\
             tls-cert-file {certificate}\ntls-key-file {key}\ntls-ca-cert-file {authority}\n\
             sentinel monitor events 127.0.0.1 {} 1\n",
            watched.port
        );
        let path = folder.join("sentinel.conf");
        std::fs::write(&path, config).unwrap();
        vec![path.to_str().unwrap().into(), "--sentinel".into()]
    })
    .await
}

const REFUSALS: [(&str, &str); 3] = [
    ("name", "made out to another host name"),
    ("expired", "has expired"),
    ("stranger", "signed by an authority that is not trusted here"),
];

const OWN_REFUSALS: [&str; 2] = ["our certificate has expired", "an authority that the server does not trust"];

#[tokio::test(flavor = "multi_thread")]
async fn redis_is_checked_by_name_date_and_authority() {
    let world = World::shared("tls_redis", 2).await;
    let (files, ours, other) = (Files::new(), Authority::new("ours"), Authority::new("other"));
    let ca = files.write("ca.pem", &ours.pem());
    let status = |redis: &Program, host: &str, more: &[&str]| {
        let mut command = world.command(&["status"]);
        command.args(more).env("HEXLANE_REDIS_URL", format!("rediss://{host}:{}", redis.port));
        command
    };
    let trusting = ["--redis-ca", ca.to_str().unwrap()];

    let right = redis(&files, &ours.sign(&["localhost"]), &ca, false).await;
    let (code, words) = ended(status(&right, "localhost", &trusting)).await;
    assert_eq!(code, 0, "{words}");
    // The system knows nothing of this authority.
    let untold = ended(status(&right, "localhost", &[])).await;
    let name = ended(status(&right, "127.0.0.1", &trusting)).await;
    let stranger = redis(&files, &other.sign(&["localhost"]), &ca, false).await;
    let stranger = ended(status(&stranger, "localhost", &trusting)).await;
    let expired = redis(&files, &ours.sign_until(&["localhost"], 2020), &ca, false).await;
    let expired = ended(status(&expired, "localhost", &trusting)).await;
    for (sentence, (code, words)) in
        [(REFUSALS[0].1, name), (REFUSALS[1].1, expired), (REFUSALS[2].1, stranger), (REFUSALS[2].1, untold)]
    {
        assert_eq!(code, 1, "{words}");
        assert!(words.contains(sentence), "{sentence}: {words}");
    }

    // It wants to know who we are as well.
    let asking = redis(&files, &ours.sign(&["localhost"]), &ca, true).await;
    let (code, words) = ended(status(&asking, "localhost", &trusting)).await;
    assert_eq!(code, 1);
    // Its own word for it does not always get through.
    let named = ["wants a certificate of ours", "name --redis-cert"];
    assert!(named.iter().any(|sentence| words.contains(sentence)), "{words}");
    let presenting = async |pair: &Pair| {
        let (certificate, key) = files.pair("client", pair);
        let own = ["--redis-cert", certificate.to_str().unwrap(), "--redis-key", key.to_str().unwrap()];
        ended(status(&asking, "localhost", &[&trusting[..], &own].concat())).await
    };
    let (code, words) = presenting(&ours.sign_as("client")).await;
    assert_eq!(code, 0, "{words}");
    for (sentence, pair) in
        [(OWN_REFUSALS[0], ours.sign_as_until("client", 2020)), (OWN_REFUSALS[1], other.sign_as("client"))]
    {
        let (code, words) = presenting(&pair).await;
        assert_eq!(code, 1, "{words}");
        let named = [sentence, "refuses the certificate in --redis-cert"];
        assert!(named.iter().any(|sentence| words.contains(sentence)), "{sentence}: {words}");
    }

    // Options that would do nothing are refused.
    let mut plain = world.command(&["status"]);
    plain.args(trusting);
    let (code, words) = ended(plain).await;
    assert_eq!(code, 1);
    assert!(words.contains("write it as rediss://"), "{words}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinel_and_the_primary_that_it_names_are_both_asked_by_tls() {
    let mut world = World::shared("tls_sentinel", 1).await;
    let (files, ours, other) = (Files::new(), Authority::new("ours"), Authority::new("other"));
    let (ca, strange) = (files.write("ca.pem", &ours.pem()), files.write("other.pem", &other.pem()));
    let redis = redis(&files, &ours.sign(&["127.0.0.1"]), &ca, false).await;
    let sentinel = sentinel(&files, &ours.sign(&["localhost"]), &ca, &redis).await;
    world.redis_url = format!("rediss+sentinel://localhost:{}/events", sentinel.port);

    let event = String::from_utf8(point("A", 1, 4.3, 52.1)).unwrap();
    let events = files.write("events", &event);
    world.hexlane(&["publish", "--redis-ca", ca.to_str().unwrap(), events.to_str().unwrap()]).await;
    let counts = world.worker().set("REDIS_CA", ca.to_str().unwrap()).once().await;
    assert_eq!(counts.applied, 1);

    let (code, words) = ended(world.command(&["status", "--redis-ca", strange.to_str().unwrap()])).await;
    assert_eq!(code, 1);
    assert!(words.contains(REFUSALS[2].1), "{words}");
}

/// Switches TLS on in the world's own PostgreSQL.
async fn postgres_speaks_tls(world: &World, pair: &Pair, authority: &Authority) {
    let admin = world.postgres().await;
    let folder: String = admin.query_one("SHOW data_directory", &[]).await.unwrap().get(0);
    for (name, pem) in [("server.crt", &pair.certificate), ("server.key", &pair.key), ("ca.crt", &authority.pem())] {
        // By the server's own user, to whom the key has to belong.
        let copy = format!(
            "COPY (SELECT line FROM unnest(string_to_array('{}', E'\\n')) AS line)
             TO PROGRAM 'umask 077; cat > {folder}/{name}'",
            pem.trim()
        );
        admin.batch_execute(&copy).await.unwrap();
    }
    for setting in ["ssl = on", "ssl_ca_file = 'ca.crt'"] {
        admin.batch_execute(&format!("ALTER SYSTEM SET {setting}")).await.unwrap();
    }
    admin.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    eventually("TLS is on", async || {
        let client = world.postgres().await;
        client.query_one("SHOW ssl", &[]).await.unwrap().get::<_, &str>(0) == "on"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_is_checked_as_sslmode_says() {
    let world = World::private("tls_postgres", 2).await;
    let (files, ours, other) = (Files::new(), Authority::new("ours"), Authority::new("other"));
    let (ca, stranger) = (files.write("ca.pem", &ours.pem()), files.write("other.pem", &other.pem()));
    let (ca, stranger) = (ca.to_str().unwrap(), stranger.to_str().unwrap());
    let migrate = |host: &str, words: &str| {
        let url = world.database_url.replace("127.0.0.1", host);
        let mut command = world.command(&["migrate"]);
        command.env("HEXLANE_DATABASE_URL", format!("{url}?{words}"));
        command
    };
    let (code, words) = ended(migrate("127.0.0.1", "sslmode=require")).await;
    assert_eq!(code, 1);
    assert!(words.contains("the server does not speak TLS"), "{words}");

    let accepted = async |host: &str, words: &str| {
        let (code, said) = ended(migrate(host, words)).await;
        assert_eq!(code, 0, "{host} {words}: {said}");
    };
    let refused = async |host: &str, words: &str, sentence: &str| {
        let (code, said) = ended(migrate(host, words)).await;
        assert_eq!(code, 1, "{host} {words}: {said}");
        assert!(said.contains(sentence), "{sentence}: {said}");
    };
    postgres_speaks_tls(&world, &ours.sign(&["localhost"]), &ours).await;
    let full = format!("sslmode=verify-full&sslrootcert={ca}");
    accepted("localhost", &full).await;
    refused("127.0.0.1", &full, REFUSALS[0].1).await;
    accepted("127.0.0.1", &format!("sslmode=verify-ca&sslrootcert={ca}")).await;
    for mode in ["require", "verify-ca", "verify-full"] {
        refused("localhost", &format!("sslmode={mode}&sslrootcert={stranger}"), REFUSALS[2].1).await;
    }
    refused("localhost", "sslmode=verify-full", REFUSALS[2].1).await;
    refused("localhost", "sslmode=verify-full&sslrootcert=/nowhere.pem", "/nowhere.pem").await;
    for mode in ["disable", "prefer", "require"] {
        accepted("127.0.0.1", &format!("sslmode={mode}")).await;
    }

    // A socket has no name to be checked, and needs none.
    let admin = world.postgres().await;
    let row = admin.query_one(
        "SELECT current_setting('unix_socket_directories'), current_setting('port'), current_database()",
        &[],
    );
    let row = row.await.unwrap();
    let (folder, port, database): (&str, &str, &str) = (row.get(0), row.get(1), row.get(2));
    let mut by_socket = world.command(&["migrate"]);
    by_socket.env("HEXLANE_DATABASE_URL", format!("host={folder} port={port} user=postgres dbname={database}"));
    let (code, said) = ended(by_socket).await;
    assert_eq!(code, 0, "{said}");

    // Who we are is asked of one user.
    admin.batch_execute("CREATE ROLE certified SUPERUSER LOGIN").await.unwrap();
    world.let_in("hostssl all certified all cert").await;
    let presenting = |pair: &Pair| {
        let (certificate, key) = files.pair("client", pair);
        format!("{full}&sslcert={}&sslkey={}", certificate.display(), key.display())
    };
    let as_certified = |words: &str| {
        let url = world.database_url.replace("postgres@127.0.0.1", "certified@localhost");
        let mut command = world.command(&["migrate"]);
        command.env("HEXLANE_DATABASE_URL", format!("{url}?{words}"));
        command
    };
    // The reload is not instant.
    eventually("a certificate is asked for", async || ended(as_certified(&full)).await.0 == 1).await;
    let (_, said) = ended(as_certified(&full)).await;
    assert!(said.contains("certificate") && said.contains("sslcert"), "{said}");
    let (code, said) = ended(as_certified(&presenting(&ours.sign_as("certified")))).await;
    assert_eq!(code, 0, "{said}");
    for (sentence, pair) in
        [(OWN_REFUSALS[0], ours.sign_as_until("certified", 2020)), (OWN_REFUSALS[1], other.sign_as("certified"))]
    {
        let (code, said) = ended(as_certified(&presenting(&pair))).await;
        assert_eq!(code, 1, "{said}");
        assert!(said.contains(sentence), "{sentence}: {said}");
    }

    postgres_speaks_tls(&world, &ours.sign_until(&["localhost"], 2020), &ours).await;
    eventually("the new certificate is shown", async || ended(migrate("localhost", &full)).await.0 == 1).await;
    refused("localhost", &full, REFUSALS[1].1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_lands_events_with_both_connections_encrypted() {
    let mut world = World::private("tls_both", 2).await;
    let (files, ours) = (Files::new(), Authority::new("ours"));
    let ca = files.write("ca.pem", &ours.pem());
    postgres_speaks_tls(&world, &ours.sign(&["localhost"]), &ours).await;
    let redis = redis(&files, &ours.sign(&["localhost"]), &ca, false).await;
    let url = world.database_url.replace("127.0.0.1", "localhost");
    world.database_url = format!("{url}?sslmode=verify-full&sslrootcert={}", ca.display());
    world.redis_url = format!("rediss://localhost:{}", redis.port);

    let mut publish = world.command(&["publish"]);
    let input = files.write(
        "events",
        &[point("A", 1, 4.3, 52.1), point("B", 1, 4.3, 52.1)].map(|event| String::from_utf8(event).unwrap()).join("\n"),
    );
    publish.args(["--redis-ca", ca.to_str().unwrap(), input.to_str().unwrap()]);
    let (code, said) = ended(publish).await;
    assert_eq!(code, 0, "{said}");
    let worker = world.worker().set("REDIS_CA", ca.to_str().unwrap()).ready().await;
    worker.until_metric("hexlane_events_total{outcome=\"applied\"}", 2.0).await;
    // PostgreSQL agrees.
    let (plain, _) = world.database_url.split_once('?').unwrap();
    let (admin, link) = tokio_postgres::connect(plain, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(link);
    let sql = "SELECT count(*) FILTER (WHERE ssl), count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
        WHERE application_name LIKE 'hexlane worker%'";
    let row = admin.query_one(sql, &[]).await.unwrap();
    let (encrypted, all): (i64, i64) = (row.get(0), row.get(1));
    assert!(encrypted > 0 && encrypted == all, "{encrypted} of {all}");
    worker.stop().await.assert_balanced();
}
