//! The users and roles that are shipped can do what they must, and each right that is taken away is named.

use std::path::Path;

use super::ended;
use crate::world::{World, delete, eventually, point};

const PASSWORD: &str = "letters4tests";

fn shipped(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/rights").join(name)).unwrap()
}

/// Makes the shipped users on the world's own Redis, for its namespace. The world itself stays who it was.
async fn users(world: &World) {
    for line in shipped("redis.acl").lines().filter(|line| line.starts_with("user hexlane-")) {
        let rules = line.trim_start_matches("user ").replace("hexlane:", &format!("{}:", world.namespace));
        let rules = ["WORKER", "PRODUCER", "OPERATOR"]
            .iter()
            .fold(rules, |rules, who| rules.replace(&format!("{who}_PASSWORD"), PASSWORD));
        set_user(world, &rules).await;
    }
}

/// As Redis itself splits a line of its file: what stands in brackets is one word.
async fn set_user(world: &World, rules: &str) {
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER");
    let (mut word, mut in_selector) = (String::new(), false);
    for c in rules.chars().chain([' ']) {
        in_selector = c == '(' || in_selector && c != ')';
        if c == ' ' && !in_selector {
            command.arg(std::mem::take(&mut word));
        } else {
            word.push(c);
        }
    }
    let _: redis::Value = command.query_async(&mut world.redis()).await.unwrap();
}

fn as_user(url: &str, user: &str) -> String {
    let (scheme, place) = url.split_once("://").unwrap();
    format!("{scheme}://{user}:{PASSWORD}@{}", place.rsplit_once('@').map_or(place, |(_, place)| place))
}

/// Runs the shipped script; the roles are the whole server's.
fn roles(world: &World) {
    let output = std::process::Command::new("psql")
        .args(["--no-psqlrc", "-q", "-v", "ON_ERROR_STOP=1"])
        .args(["-v", &format!("owner_password={PASSWORD}"), "-v", &format!("worker_password={PASSWORD}")])
        .args(["-f", "scripts/rights/roles.sql", &world.database_url])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

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

#[tokio::test(flavor = "multi_thread")]
async fn each_right_that_is_taken_away_is_named_at_the_start() {
    let mut world = World::private("missing_rights", 2).await;
    users(&world).await;
    roles(&world);
    let admin_redis = world.redis_url.clone();
    world.redis_url = as_user(&admin_redis, "hexlane-worker");
    world.database_url = as_user(&world.database_url, "hexlane_worker");
    let refused = async |sentence: &str, right: &str| {
        eprintln!("without {right}");
        let (code, said) = ended(world.command(&["worker", "--once", "--admin-addr", "127.0.0.1:0"])).await;
        assert_eq!(code, 1, "without {right}: {said}");
        assert!(said.to_lowercase().contains(&sentence.to_lowercase()), "without {right}: {said}");
    };

    let line = shipped("redis.acl");
    let line = line.lines().find(|line| line.starts_with("user hexlane-worker")).unwrap();
    let line = line.trim_start_matches("user ").replace("hexlane:", &format!("{}:", world.namespace));
    let line = line.replace("WORKER_PASSWORD", PASSWORD);
    let rights: Vec<&str> = line.split([' ', '(', ')']).filter(|word| word.starts_with('+')).collect();
    assert!(rights.len() > 30, "{rights:?}");
    for right in rights {
        set_user(&world, "hexlane-worker reset").await;
        // Wherever it stands.
        let without: Vec<&str> = line.split(' ').filter(|word| word.trim_matches(['(', ')']) != right).collect();
        set_user(&world, &without.join(" ")).await;
        refused(&right.trim_start_matches('+').replace('|', " "), right).await;
    }
    set_user(&world, &line).await;
    for kind in ["{*}:events", "{*}:dead", "{*}:owner", "workers", "topology"] {
        set_user(&world, "hexlane-worker reset").await;
        let key = format!("~{}:{kind}", world.namespace);
        set_user(&world, &line.replace(&key, "~elsewhere:*")).await;
        refused(kind.trim_start_matches("{*}:"), &key).await;
    }
    set_user(&world, &line).await;

    let admin = world.postgres_as("postgres").await;
    for table in ["feature_state", "processed_event"] {
        for right in ["SELECT", "INSERT", "UPDATE"] {
            admin.batch_execute(&format!("REVOKE {right} ON {table} FROM hexlane_worker")).await.unwrap();
            refused(&format!("{table} {right}"), right).await;
            admin.batch_execute(&format!("GRANT {right} ON {table} TO hexlane_worker")).await.unwrap();
        }
        admin.batch_execute(&format!("REVOKE DELETE ON {table} FROM hexlane_worker")).await.unwrap();
        let (_, said) = ended(world.command(&["check"])).await;
        assert!(said.contains(&format!("{table} DELETE")), "{said}");
        admin.batch_execute(&format!("GRANT DELETE ON {table} TO hexlane_worker")).await.unwrap();
    }
    admin.batch_execute("REVOKE SELECT ON hexlane_schema_version FROM hexlane_worker").await.unwrap();
    refused("hexlane_schema_version", "SELECT").await;
    admin.batch_execute("GRANT SELECT ON hexlane_schema_version TO hexlane_worker").await.unwrap();

    // What goes later is named in the log, and nothing is lost by it.
    let worker = world.worker().ready().await;
    world.redis_url = admin_redis;
    set_user(&world, "hexlane-worker reset").await;
    set_user(&world, &line.replace("+xack ", "")).await;
    world.add(0, &point("A", 1, 4.3, 52.1)).await;
    eventually("it is named", async || worker.log().to_lowercase().contains("'xack'")).await;
    set_user(&world, &line).await;
    world.drained().await;
    assert_eq!(world.state("A").await, Some((1, "update".into())));
    worker.stop().await.assert_balanced();
}
