//! Each right that is taken away from the users and roles that are shipped is named.

use std::path::Path;

use super::ended;
use crate::failover::sentinel_with;
use crate::world::{World, eventually, point};

const PASSWORD: &str = "letters4tests";

fn shipped(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/rights").join(name)).unwrap()
}

/// Makes the shipped users on the world's own Redis, for its namespace. The world itself stays who it was.
pub(super) async fn users(world: &World) {
    for line in shipped("redis.acl").lines().filter(|line| line.starts_with("user hexlane-")) {
        let rules = line.trim_start_matches("user ").replace("hexlane:", &format!("{}:", world.namespace));
        let rules = ["WORKER", "PRODUCER", "OPERATOR"]
            .iter()
            .fold(rules, |rules, who| rules.replace(&format!("{who}_PASSWORD"), PASSWORD));
        set_user(world, &rules).await;
    }
}

/// As Redis itself splits a line of its file: what stands in brackets is one word.
pub(super) async fn set_user(world: &World, rules: &str) {
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

pub(super) fn as_user(url: &str, user: &str) -> String {
    let (scheme, place) = url.split_once("://").unwrap();
    format!("{scheme}://{user}:{PASSWORD}@{}", place.rsplit_once('@').map_or(place, |(_, place)| place))
}

/// Runs the shipped script; the roles are the whole server's.
pub(super) fn roles(world: &World) {
    let (done, said) = try_roles(world, PASSWORD, PASSWORD);
    assert!(done, "{said}");
}

/// As its head says, with passwords in files.
fn try_roles(world: &World, owner: &str, worker: &str) -> (bool, String) {
    let folder = tempfile::TempDir::with_prefix("hexlane-roles-").unwrap();
    let set = |name: &str, password: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, password).unwrap();
        format!("\\set {name} `cat {}`", file.display())
    };
    let output = std::process::Command::new("psql")
        .args(["--no-psqlrc", "-q", "-c", &set("owner_password", owner), "-c", &set("worker_password", worker)])
        .args(["-f", "scripts/rights/roles.sql", &world.database_url])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// PostgreSQL would take an empty password as none, and let nobody in any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_cannot_be_read_changes_nothing() {
    let world = World::private("empty_password", 1).await;
    roles(&world);
    for (owner, worker) in [("", PASSWORD), (PASSWORD, "")] {
        let (done, said) = try_roles(&world, owner, worker);
        assert!(!done && said.contains("is empty, or cannot be read"), "{said}");
    }
    let sql = "SELECT count(*) FROM pg_authid WHERE rolname LIKE 'hexlane_%' AND rolpassword IS NOT NULL";
    assert_eq!(world.postgres().await.query_one(sql, &[]).await.unwrap().get::<_, i64>(0), 2);
}

/// Of many commands that go out together, the one that was refused.
#[tokio::test(flavor = "multi_thread")]
async fn the_key_that_a_user_lacks_is_named_among_many() {
    let mut world = World::private("key_among_many", 4).await;
    world.worker().once().await;
    let user = world.namespace.clone();
    let may_some = format!("~{user}:topology ~{user}:{{000}}:events ~{user}:{{001}}:events ~{user}:{{003}}:events");
    set_user(&world, &format!("{user} on nopass {may_some} +@all")).await;
    world.redis_url = world.redis_url.replace("redis://", &format!("redis://{user}:any@"));
    let events: Vec<Vec<u8>> = (0..40).map(|n| point(&format!("F-{n}"), 1, f64::from(n) * 9.0 - 180.0, 52.1)).collect();
    let input = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&input, events.join(&b'\n')).unwrap();
    let (code, said) = ended(world.command(&["publish", input.path().to_str().unwrap()])).await;
    assert!(code == 1 && said.contains(&format!("it was XADD {user}:{{002}}:events")), "{said}");
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
        for command in ["check", "prune"] {
            let (_, said) = ended(world.command(&[command])).await;
            assert!(said.contains(&format!("{table} DELETE")), "{command}: {said}");
        }
        admin.batch_execute(&format!("GRANT DELETE ON {table} TO hexlane_worker")).await.unwrap();
    }
    admin.batch_execute("REVOKE SELECT ON hexlane_schema_version FROM hexlane_worker").await.unwrap();
    refused("hexlane_schema_version", "SELECT").await;
    admin.batch_execute("GRANT SELECT ON hexlane_schema_version TO hexlane_worker").await.unwrap();
    let database = &world.namespace;
    for (taken, given, sentence) in [
        (
            "REVOKE USAGE ON SCHEMA public FROM hexlane_worker, PUBLIC".to_owned(),
            "GRANT USAGE ON SCHEMA public TO hexlane_worker, PUBLIC".to_owned(),
            "grant USAGE",
        ),
        (
            "REVOKE EXECUTE ON FUNCTION geometry(bytea) FROM PUBLIC".into(),
            "GRANT EXECUTE ON FUNCTION geometry(bytea) TO PUBLIC".into(),
            "permission denied for function geometry",
        ),
        (
            format!("REVOKE CONNECT ON DATABASE \"{database}\" FROM PUBLIC"),
            format!("GRANT CONNECT ON DATABASE \"{database}\" TO PUBLIC"),
            "permission denied for database",
        ),
        (
            "REVOKE USAGE ON LANGUAGE plpgsql FROM hexlane_worker, PUBLIC".into(),
            "GRANT USAGE ON LANGUAGE plpgsql TO hexlane_worker, PUBLIC".into(),
            "lacks plpgsql USAGE",
        ),
    ] {
        admin.batch_execute(&taken).await.unwrap();
        refused(sentence, &taken).await;
        admin.batch_execute(&given).await.unwrap();
    }
    admin.batch_execute(&format!("CREATE DATABASE \"{database}_new\"")).await.unwrap();
    let old = world.database_url.replace("hexlane_worker", "postgres");
    let new = old.replace(&format!("/{database}"), &format!("/{database}_new"));
    world.database_url.clone_from(&new);
    roles(&world);
    let fresh = world.postgres().await;
    for right in ["USAGE", "CREATE"] {
        fresh.batch_execute(&format!("REVOKE {right} ON SCHEMA public FROM hexlane_owner, PUBLIC")).await.unwrap();
        let mut migrate = world.command(&["migrate"]);
        migrate.env("HEXLANE_DATABASE_URL", as_user(&new, "hexlane_owner"));
        let (code, said) = ended(migrate).await;
        assert!(code == 1 && said.contains("schema"), "without {right}: {said}");
        fresh.batch_execute(&format!("GRANT {right} ON SCHEMA public TO hexlane_owner")).await.unwrap();
    }
    world.database_url = as_user(&old, "hexlane_worker");

    // What goes later is named in the log, and nothing is lost by it.
    let worker = world.worker().ready().await;
    world.redis_url = admin_redis;
    set_user(&world, "hexlane-worker reset").await;
    set_user(&world, &line.replace("+xack ", "")).await;
    world.add(0, &point("A", 1, 4.3, 52.1)).await;
    eventually("it is named", async || worker.log().to_lowercase().contains("'xack'")).await;
    set_user(&world, "hexlane-worker reset").await;
    set_user(&world, &line.replace("+xreadgroup ", "")).await;
    let read = format!("it was XREADGROUP {}", world.namespace);
    eventually("it is named with its key", async || worker.log().contains(&read)).await;
    set_user(&world, &line).await;
    world.drained().await;
    assert_eq!(world.state("A").await, Some((1, "update".into())));
    worker.stop().await.assert_balanced();
}

/// The commands of people and of producers name what they lack when they come to it; and nothing is granted
/// that nobody would miss.
#[tokio::test(flavor = "multi_thread")]
async fn commands_name_the_right_that_they_lack() {
    let mut world = World::private("lacking_rights", 1).await;
    users(&world).await;
    let admin = world.redis_url.clone();
    world.add(0, b"nonsense").await;
    world.worker().once().await;
    let all = shipped("redis.acl").replace("hexlane:", &format!("{}:", world.namespace));
    let folder = tempfile::TempDir::with_prefix("hexlane-rights-").unwrap();
    let input = folder.path().join("events");
    std::fs::write(&input, point("A", 1, 4.3, 52.1)).unwrap();
    let patient = "sentinel down-after-milliseconds events 60000\n";
    let sentinel =
        sentinel_with(admin.rsplit_once(':').unwrap().1.trim_end_matches('/').parse().unwrap(), patient).await;
    let by_sentinel = format!("redis+sentinel://hexlane-producer:{PASSWORD}@127.0.0.1:{}/events", sentinel.port);
    let (topology, input) = (format!("{}:topology", world.namespace), input.to_str().unwrap());
    let topology = topology.as_str();
    let publish = &["publish", input][..];
    let removals: [(&str, &str, &[&str], &str); 21] = [
        ("producer", "+ping", publish, "'ping'"),
        ("producer", "+unwatch", publish, "'unwatch'"),
        ("producer", "+role", &["publish", "--redis-url", &by_sentinel, input], "'role'"),
        ("producer", "+xadd", publish, "xadd"),
        ("producer", "+eval", publish, "eval"),
        ("producer", "+hget", publish, "hget"),
        ("producer", "+hsetnx", publish, "hsetnx"),
        ("producer", "+hgetall", &["redis-cli", "HGETALL", topology], "hgetall"),
        ("operator", "+ping", &["status"], "'ping'"),
        ("operator", "+unwatch", &["status"], "'unwatch'"),
        ("operator", "+info", &["check"], "'info'"),
        ("operator", "+eval", &["status"], "eval"),
        ("operator", "+time", &["status"], "'time'"),
        ("operator", "+@read", &["status"], "hget"),
        ("operator", "+@stream", &["dead", "replay"], "xdel"),
        ("operator", "+@stream", &["dead", "purge", "--all"], "xdel"),
        ("operator", "+zadd", &["dead", "replay"], "zadd"),
        ("operator", "+zrem", &["prune"], "zrem"),
        ("operator", "+@stream", &["rewind", "--to", "0"], "xgroup setid"),
        ("operator", "+hsetnx", publish, "hsetnx"),
        ("operator", "+hset", &["redis-cli", "HSET", topology, "shards", "2"], "hset"),
    ];
    for user in ["producer", "operator"] {
        let name = format!("hexlane-{user}");
        let line = all.lines().find(|line| line.starts_with(&format!("user {name} "))).unwrap();
        let line = line.trim_start_matches("user ").replace(&format!("{}_PASSWORD", user.to_uppercase()), PASSWORD);
        let granted = line.split(' ').map(|word| word.trim_matches(['(', ')'])).filter(|word| word.starts_with('+'));
        for right in granted {
            assert!(removals.iter().any(|&(who, removed, ..)| (who, removed) == (user, right)), "{user} {right}");
        }
        for (_, right, command, named) in removals.iter().filter(|(who, ..)| *who == user) {
            let without: Vec<&str> = line.split(' ').filter(|word| word.trim_matches(['(', ')']) != *right).collect();
            set_user(&world, &format!("{name} reset")).await;
            set_user(&world, &without.join(" ")).await;
            // As it is before the first one has come, and with something to be forgotten.
            let _: i64 = match *command {
                ["publish", ..] => world.ask(&format!("DEL {topology}")).await,
                _ => world.ask(&format!("HSETNX {topology} shards 1")).await,
            };
            let _: i64 = world.ask(&format!("ZADD {}:{{000}}:sent-back 1 1-0", world.namespace)).await;
            world.redis_url = as_user(&admin, &name);
            let (code, said) = match *command {
                ["redis-cli", words @ ..] => {
                    let mut cli = tokio::process::Command::new("redis-cli");
                    cli.args(["-e", "--no-auth-warning", "-u", &world.redis_url]).args(words);
                    ended(cli).await
                }
                words => ended(world.command(words)).await,
            };
            assert_eq!(code, 1, "{command:?} without {right}: {said}");
            assert!(said.to_lowercase().contains(named), "{command:?} without {right}: {said}");
            let remedy = if command[0] == "redis-cli" { "NOPERM" } else { "grant the missing command" };
            assert!(said.contains(remedy), "{command:?} without {right}: {said}");
        }
        let keys = line.split(' ').map(|word| word.trim_matches(['(', ')'])).filter(|word| word.starts_with('~'));
        for key in keys {
            let (command, named) = match (user, key.rsplit(':').next().unwrap()) {
                ("producer", "events" | "topology") | ("operator", "topology") => (publish, key),
                ("operator", "*") => (&["status"][..], "topology"),
                ("operator", "sent-back") => (&["dead", "replay"][..], "sent-back"),
                _ => panic!("{user} has {key}"),
            };
            let named = named.rsplit(':').next().unwrap();
            let elsewhere = |word: &str| match word.trim_matches(['(', ')']) == key {
                true => word.replace(key, "~elsewhere:*"),
                false => word.to_owned(),
            };
            set_user(&world, &format!("{name} reset")).await;
            set_user(&world, &line.split(' ').map(elsewhere).collect::<Vec<_>>().join(" ")).await;
            let _: i64 = world.ask(&format!("DEL {topology}")).await;
            let (code, said) = ended(world.command(command)).await;
            assert!(code == 1 && said.contains(named), "{command:?} without {key}: {said}");
            assert!(said.contains("grant the missing command or key"), "{command:?} without {key}: {said}");
        }
    }

    // The driver asks for the primary's role in one way or another.
    users(&world).await;
    let admin_place = format!("127.0.0.1:{}/events", sentinel.port);
    for (user, command) in
        [("worker", &["worker", "--once", "--admin-addr", "127.0.0.1:0"][..]), ("operator", &["status"])]
    {
        world.redis_url = format!("redis+sentinel://hexlane-{user}:{PASSWORD}@{admin_place}");
        let (code, said) = ended(world.command(command)).await;
        assert_eq!(code, 0, "{user} by Sentinel: {said}");
    }
}

/// Sentinels may have users of their own, with the two rights that README names.
#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_that_wants_a_password_gets_it_and_nobody_else() {
    let mut world = World::private("sentinel_user", 1).await;
    let port = world.redis_url.rsplit_once(':').unwrap().1.trim_end_matches('/').parse().unwrap();
    let users = format!(
        "user default off\nuser watcher on >{PASSWORD} -@all +role +sentinel|masters\n\
        sentinel down-after-milliseconds events 60000\n"
    );
    let sentinel = sentinel_with(port, &users).await;
    let url = format!("redis+sentinel://127.0.0.1:{}/events", sentinel.port);
    for (password, expected) in [(PASSWORD, 0), ("wrong4sentinel", 1)] {
        world.redis_url = format!("{url}?sentinel-user=watcher&sentinel-password={password}");
        let mut status = world.command(&["status"]);
        status.env("RUST_LOG", "trace");
        let (code, said) = ended(status).await;
        assert_eq!(code, expected, "{said}");
        assert!(!said.contains(password), "{said}");
    }
    world.redis_url = url;
    let (code, said) = ended(world.command(&["status"])).await;
    assert!(code == 1 && said.contains("Sentinel"), "{said}");
}
