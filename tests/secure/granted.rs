//! The users and roles that are shipped can do what they must, and no more.

use std::path::Path;

use super::ended;
use super::rights::{as_user, roles, set_user, users};
use crate::world::{World, delete, eventually, point};

#[tokio::test(flavor = "multi_thread")]
async fn everything_works_with_the_shipped_rights() {
    let mut world = World::private("least_rights", 2).await;
    users(&world).await;
    roles(&world);
    // Again, over what is there.
    roles(&world);
    let (admin_redis, admin_database) = (world.redis_url.clone(), world.database_url.clone());
    let (worker_redis, worker_database) =
        (as_user(&admin_redis, "hexlane-worker"), as_user(&admin_database, "hexlane_worker"));
    world.postgres().await.batch_execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public").await.unwrap();
    roles(&world);

    world.database_url = as_user(&admin_database, "hexlane_owner");
    assert!(world.hexlane(&["migrate"]).await.contains("1 migrations applied"));
    world.database_url.clone_from(&admin_database);
    roles(&world);

    (world.redis_url, world.database_url) = (as_user(&admin_redis, "hexlane-producer"), worker_database.clone());
    let folder = tempfile::TempDir::with_prefix("hexlane-rights-").unwrap();
    let input = folder.path().join("events");
    let id = r#","event_id":"one""#;
    let good = crate::world::event("A", 1, "create", r#"{"type":"Point","coordinates":[4,52]}"#, id);
    std::fs::write(&input, [point("B", 1, 4.3, 52.1), good, b"{}".to_vec(), delete("C", 1)].join(&b'\n')).unwrap();
    world.hexlane(&["publish", "--unchecked", input.to_str().unwrap()]).await;

    world.redis_url.clone_from(&worker_redis);
    let mut worker = world.command(&["worker", "--once", "--admin-addr", "127.0.0.1:0", "--retention", "0"]);
    worker.env("RUST_LOG", "warn");
    let (code, said) = ended(worker).await;
    assert_eq!(code, 0, "{said}");
    assert!(!said.contains("NOPERM") && !said.contains("permission"), "{said}");
    assert_eq!(world.dead_letters().await.len(), 1);
    let (_, said) = ended(world.command(&["check"])).await;
    assert!(!said.lines().any(|line| line.starts_with("error")), "{said}");
    assert!(said.contains("this user may run every command of a worker"), "{said}");

    // A worker cannot add events, nor remove dead letters, nor change what others keep there.
    let client = redis::Client::open(worker_redis.as_str()).unwrap();
    let mut link = client.get_multiplexed_async_connection().await.unwrap();
    for (command, arguments) in [
        ("XADD", vec![world.events_key(0), "*".into(), "event".into(), "{}".into()]),
        ("XTRIM", vec![world.dead_key(0), "MAXLEN".into(), "0".into()]),
        ("SET", vec!["somebody's".into(), "1".into()]),
        ("CONFIG", vec!["GET".into(), "*".into()]),
    ] {
        let answer: Result<redis::Value, _> = redis::cmd(command).arg(arguments).query_async(&mut link).await;
        assert_eq!(answer.unwrap_err().code(), Some("NOPERM"), "{command}");
    }

    world.redis_url = as_user(&admin_redis, "hexlane-operator");
    for command in [
        &["status"][..],
        &["topology"],
        &["dead", "list"],
        &["dead", "replay", "--dry-run"],
        &["dead", "replay"],
        &["rewind", "--to", "0"],
        &["prune", "--tombstone-retention", "1d"],
        &["dead", "purge", "--all"],
    ] {
        world.hexlane(command).await;
    }
    let (code, said) = ended(world.command(&["check"])).await;
    assert!(code == 0 || code == 3, "{said}");
}

/// Trimming and clearing up are not what a worker is for.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_may_not_clear_up_any_more_goes_on() {
    let mut world = World::shared("no_housekeeping", 1).await;
    let user = world.namespace.clone();
    set_user(&world, &format!("{user} on nopass ~* &* +@all")).await;
    world.redis_url = world.redis_url.replace("redis://", &format!("redis://{user}:any@"));
    let worker = world.worker().set("RETENTION", "1s").ready().await;
    let _: i64 = world.ask(&format!("XGROUP CREATECONSUMER {} hexlane gone", world.events_key(0))).await;
    set_user(&world, &format!("{user} -xtrim -xgroup|delconsumer")).await;
    let lands = async |n: i64| {
        world.add(0, &point("F", n, 4.3, 52.1)).await;
        eventually("the event lands", async || world.state("F").await == Some((n, "update".into()))).await;
    };
    // One after the other, so that there is something to be trimmed.
    let mut n = 0;
    while !["cannot trim", "consumers of gone workers stay"].iter().all(|words| worker.log().contains(words)) {
        n += 1;
        assert!(n < 600, "{}", worker.log());
        lands(n).await;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    worker.until_metric("hexlane_retries_total{error=\"NOPERM\",target=\"redis\"}", 2.0).await;
    lands(n + 1).await;
    assert_eq!(worker.metric("hexlane_lanes_owned").await, Some(1.0));
    assert!(!worker.log().contains("cannot take part"), "{}", worker.log());
    worker.stop().await.assert_balanced();
}

/// The tables of README, as somebody would type it who looks after dead letters.
#[tokio::test(flavor = "multi_thread")]
async fn what_people_type_into_redis_cli_works_with_the_shipped_rights() {
    let world = World::private("redis_cli", 16).await;
    users(&world).await;
    world.add(7, b"nonsense").await;
    world.worker().once().await;
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let (_, table) = readme.split_once("| what | redis-cli |").unwrap();
    let rows: Vec<&str> = table.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() > 12, "{rows:?}");
    for row in rows {
        let command = row
            .split('|')
            .nth(2)
            .unwrap()
            .split('`')
            .nth(1)
            .unwrap()
            .replace("hexlane:", &format!("{}:", world.namespace));
        let script = format!("redis-cli -e --no-auth-warning -u \"$URL\" {command}");
        let mut shell = tokio::process::Command::new("sh");
        shell.args(["-c", &script]).env("URL", as_user(&world.redis_url, "hexlane-operator"));
        let (code, said) = ended(shell).await;
        assert!(code == 0 && !said.contains("ERR") && !said.contains("NOPERM"), "{command}: {said}");
    }
}

/// The three steps of README, in place of `hexlane dead replay`.
#[tokio::test(flavor = "multi_thread")]
async fn a_letter_that_is_sent_back_by_hand_is_what_prune_waits_for() {
    const DAY_MS: i64 = 86_400_000;
    type Letters = Vec<(String, Vec<(String, String)>)>;
    let world = World::private("by_hand", 1).await;
    users(&world).await;
    let entered = chrono::Utc::now().timestamp_millis() - 35 * DAY_MS;
    world.sql("ALTER TABLE feature_state ADD CONSTRAINT nothing CHECK (op = 'delete')").await;
    let mut command = redis::cmd("XADD");
    command.arg(world.events_key(0)).arg(format!("{entered}-5")).arg("event").arg(point("gone", 1, 4.3, 52.1));
    command.query_async::<String>(&mut world.redis()).await.unwrap();
    world.add(0, &delete("gone", 2)).await;
    assert_eq!(world.worker().once().await.dead_lettered, 1);
    world.sql("UPDATE feature_state SET applied_at = applied_at - interval '32 days'").await;
    let _: u64 = world.ask(&format!("XTRIM {} MAXLEN 0", world.events_key(0))).await;

    let client = redis::Client::open(as_user(&world.redis_url, "hexlane-operator")).unwrap();
    let mut link = client.get_multiplexed_async_connection().await.unwrap();
    let mut look = redis::cmd("XRANGE");
    let letters: Letters = look.arg(world.dead_key(0)).arg("-").arg("+").query_async(&mut link).await.unwrap();
    let (letter, fields) = &letters[0];
    let source = &fields.iter().find(|(name, _)| name == "dead:source_id").unwrap().1;
    let mut send = redis::cmd("XADD");
    send.arg(world.events_key(0)).arg("*");
    for (name, value) in fields.iter().take_while(|(name, _)| name != "dead:reason") {
        send.arg(name).arg(value);
    }
    let sent: String = send.arg("dead:entered").arg(source).query_async(&mut link).await.unwrap();
    let mut remember = redis::cmd("ZADD");
    remember.arg(format!("{}:{{000}}:sent-back", world.namespace)).arg(entered).arg(&sent);
    assert_eq!(remember.query_async::<i64>(&mut link).await.unwrap(), 1);
    let mut remove = redis::cmd("XDEL");
    assert_eq!(remove.arg(world.dead_key(0)).arg(letter).query_async::<i64>(&mut link).await.unwrap(), 1);

    let pruned = async || world.hexlane(&["prune"]).await;
    let said = pruned().await;
    assert!(said.contains("removed 0 tombstones"), "{said}");
    world.sql("ALTER TABLE feature_state DROP CONSTRAINT nothing").await;
    assert_eq!(world.worker().once().await.stale, 1);
    let _: u64 = world.ask(&format!("XTRIM {} MAXLEN 0", world.events_key(0))).await;
    let said = pruned().await;
    assert!(said.contains("removed 1 tombstones"), "{said}");
    assert_eq!(world.state("gone").await, None);
}
