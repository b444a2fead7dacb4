//! A password never appears in what a command says, whatever goes wrong.

use super::run;
use crate::world::{PATIENCE, World, eventually};

const SECRET: &str = "hunter2Secret";
const OTHER: &str = "notThatOneEither";

fn assert_silent(words: &str) {
    assert!(!words.contains(SECRET) && !words.contains(OTHER), "a password in:\n{words}");
}

/// Servers that ask for a password, and the URLs with the right one.
async fn walled() -> (World, String, String) {
    let world = World::private("walled", 2).await;
    world.sql(&format!("CREATE ROLE walled SUPERUSER LOGIN PASSWORD '{SECRET}'")).await;
    world.let_in("host all walled 127.0.0.1/32 scram-sha-256").await;
    world.ask::<redis::Value>(&format!("ACL SETUSER walled on >{SECRET} ~* +@all")).await;
    let (_, place) = world.database_url.split_once('@').unwrap();
    let database_url = format!("postgres://walled:{SECRET}@{place}");
    let (_, place) = world.redis_url.split_once("://").unwrap();
    let redis_url = format!("redis://walled:{SECRET}@{place}");
    (world, redis_url, database_url)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_right_one_is_not_logged_and_a_wrong_one_is_said_to_be_wrong() {
    let (world, redis_url, database_url) = walled().await;
    let worker = |redis_url: &str, database_url: &str| {
        let mut command = world.command(&["worker", "--once", "--admin-addr", "127.0.0.1:0"]);
        command.env("HEXLANE_REDIS_URL", redis_url).env("HEXLANE_DATABASE_URL", database_url).env("RUST_LOG", "trace");
        command
    };
    // The reload is not instant.
    let wrong = database_url.replace(SECRET, OTHER);
    eventually("the password is asked for", async || {
        tokio_postgres::connect(&wrong, tokio_postgres::NoTls).await.is_err()
    })
    .await;
    let ended = run(worker(&redis_url, &database_url), b"").await;
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains("settings in force"));
    assert_silent(&ended.words());

    let ended = run(worker(&redis_url, &wrong), b"").await;
    assert_eq!(ended.code, 1);
    assert!(ended.stderr.contains("check user and password in --database-url"), "{ended:?}");
    assert_silent(&ended.words());

    let wrong = redis_url.replace(SECRET, OTHER);
    let ended = run(worker(&wrong, &database_url), b"").await;
    assert_eq!(ended.code, 1);
    assert!(ended.stderr.contains("check user and password in --redis-url"), "{ended:?}");
    assert_silent(&ended.words());
    for args in [&["publish"][..], &["status"], &["shard"]] {
        let mut command = world.command(args);
        command.env("HEXLANE_REDIS_URL", &wrong);
        let ended = run(command, b"{}\n").await;
        assert_eq!(ended.code, 1, "{args:?} {ended:?}");
        assert_silent(&ended.words());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_help_nor_usage_nor_a_url_that_cannot_be_read_shows_one() {
    let world = World::shared("secret_urls", 1).await;
    for (redis_url, database_url) in [
        (format!("redis://:{SECRET}@127.0.0.1:none"), format!("postgres://u:{SECRET}@127.0.0.1:none/d")),
        (format!("{SECRET}@127.0.0.1"), format!("{SECRET}@127.0.0.1")),
        (format!("http://u:{SECRET}@127.0.0.1"), format!("password={SECRET}")),
        (format!("redis://u:{SECRET}@127.0.0.1:1"), format!("postgres://u:{SECRET}@:none")),
    ] {
        for args in [
            &["worker", "--help"][..],
            &["publish", "--help"],
            &["migrate", "--help"],
            &["worker", "--sideways"],
            &["publish"],
            &["status"],
            &["migrate"],
            &[
                "worker",
                "--once",
                "--database-url",
                "postgres://127.0.0.1:1/d",
                "--redis-url",
                &redis_url,
                "--block",
                "x",
            ],
        ] {
            let mut command = world.command(args);
            command.env("HEXLANE_REDIS_URL", &redis_url).env("HEXLANE_DATABASE_URL", &database_url);
            let ended = run(command, b"{}\n").await;
            assert_eq!(ended.code == 0, args.contains(&"--help"), "{args:?} {ended:?}");
            assert_silent(&ended.words());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_servers_that_are_away_shows_none() {
    let world = World::shared("secret_away", 1).await;
    let away = [
        ("HEXLANE_REDIS_URL", format!("redis://u:{SECRET}@127.0.0.1:1")),
        ("HEXLANE_DATABASE_URL", format!("postgres://u:{SECRET}@127.0.0.1:1/d")),
    ];
    for (name, url) in away {
        let mut worker =
            world.worker().set(name.strip_prefix("HEXLANE_").unwrap(), &url).set("RETRY_CAP", "100ms").start();
        eventually("it says that it waits", async || worker.log().contains("waiting for the servers")).await;
        worker.signal("TERM");
        let status = tokio::time::timeout(PATIENCE, worker.wait()).await.unwrap();
        assert!(status.success(), "{}", worker.log());
        assert_silent(&worker.log());
    }
}
