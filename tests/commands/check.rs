//! `hexlane check`: what it finds in servers that are set up wrongly, and that it changes nothing.

use serde_json::Value;

use super::run;
use crate::secure::Program;
use crate::world::{World, eventually};

async fn check(world: &World) -> (i32, Value) {
    let ended = run(world.command(&["check", "--json"]), b"").await;
    (ended.code, serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{ended:?}")))
}

fn found(answer: &Value, severity: &str) -> Vec<String> {
    let findings = answer["findings"].as_array().unwrap().iter();
    findings
        .filter(|finding| finding["severity"] == severity)
        .map(|finding| {
            let (what, remedy) = (finding["what"].as_str().unwrap(), finding["remedy"].as_str().unwrap());
            assert!(severity == "good" || !remedy.is_empty(), "{what}");
            format!("{what}; {remedy}")
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn good_servers_are_good_and_nothing_is_changed() {
    let world = World::private("check_good", 2).await;
    let (code, answer) = check(&world).await;
    assert_eq!((code, &answer["worst"]), (0, &"good".into()), "{answer:#}");
    assert_eq!(world.ask::<Vec<String>>("KEYS *").await, Vec::<String>::new());
    let text = run(world.command(&["check"]), b"").await.stdout;
    assert!(text.lines().all(|line| line.starts_with("good     ")), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_fault_is_named_with_what_to_do() {
    let world = World::private("check_bad", 2).await;
    for (setting, value) in [("maxmemory-policy", "allkeys-lru"), ("appendonly", "no")] {
        world.ask::<String>(&format!("CONFIG SET {setting} {value}")).await;
    }
    let (code, answer) = check(&world).await;
    assert_eq!((code, &answer["worst"]), (3, &"warning".into()), "{answer:#}");
    let warnings = found(&answer, "warning").join("\n");
    for words in ["would evict whole streams; set maxmemory-policy noeviction", "set appendonly yes"] {
        assert!(warnings.contains(words), "{warnings}");
    }
    world.ask::<String>("CONFIG SET maxmemory 1gb").await;
    assert_eq!(run(world.command(&["publish"]), b"").await.code, 0, "which writes down how many shards there are");
    // A dead letter of 2001, and settings that do not go together.
    let dead: String = world
        .ask(&format!(
            "XADD {} 1000000000000-0 event x dead:reason not_json dead:source_id 1000000000000-0",
            world.dead_key(1)
        ))
        .await;
    let mut command = world.command(&["check", "--json", "--renew", "9s", "--tombstone-retention", "1s"]);
    command.env("HEXLANE_SHARDS", "2");
    let answer: Value = serde_json::from_str(&run(command, b"").await.stdout).unwrap();
    let held = found(&answer, "warning").join("\n");
    assert!(held.contains(&format!("dead letter {dead} in {}, whose event came ", world.dead_key(1))), "{held}");
    assert!(held.contains("--retention is not shorter than --tombstone-retention"), "{held}");
    let contradict = "--renew is more than half of --lease: one lost renewal would lose the lease; change one of them";
    assert!(found(&answer, "error").join("\n").contains(contradict), "{answer:#}");
    world.ask::<i64>(&format!("HSET {}:topology shards 4", world.namespace)).await;
    for sql in [
        "DROP VIEW feature",
        "ALTER TABLE feature_state ALTER geometry TYPE geometry(Geometry, 0) USING ST_SetSRID(geometry, 0)",
        "ALTER TABLE processed_event SET (autovacuum_enabled = no)",
        "ALTER TABLE feature_state SET (toast.autovacuum_enabled = off)",
        "ALTER SYSTEM SET full_page_writes = off",
        "ALTER SYSTEM SET autovacuum = off",
        "SELECT pg_reload_conf()",
    ] {
        world.sql(sql).await;
    }
    eventually("each error is found", async || {
        let (code, answer) = check(&world).await;
        assert_eq!((code, &answer["worst"]), (1, &"error".into()), "{answer:#}");
        let errors = found(&answer, "error").join("\n");
        let all = [
            "at its limit Redis evicts whole streams",
            "feature_state.geometry is geometry, not geometry(Geometry,4326); give it back",
            "full_page_writes is off",
            "shards",
        ];
        let warnings = found(&answer, "warning").join("\n");
        let slow = ["autovacuum is off: dead rows stay", "autovacuum leaves feature_state, processed_event alone"];
        all.iter().all(|words| errors.contains(words)) && slow.iter().all(|words| warnings.contains(words))
    })
    .await;
}

/// What it can work with is told in its log, the rest ends it.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_finds_at_its_start_what_check_finds() {
    let world = World::private("check_start", 1).await;
    world.ask::<String>("CONFIG SET maxmemory-policy allkeys-lru").await;
    let worker = world.worker().ready().await;
    let log = worker.log();
    assert!(log.contains("would evict whole streams") && log.contains("set maxmemory-policy noeviction"), "{log}");
    worker.stop().await;
    world.sql("DROP VIEW feature; ALTER TABLE feature_state ALTER cell TYPE text").await;
    world.sql("ALTER TABLE processed_event RENAME processed_at TO at").await;
    let ended = run(world.command(&["worker", "--once", "--admin-addr", "127.0.0.1:0"]), b"").await;
    assert_eq!(ended.code, 1, "{ended:?}");
    let wrong = "feature_state.cell is text, not bigint, processed_event.processed_at is absent";
    assert!(ended.stderr.contains(wrong) && ended.stderr.contains("give it back the type"), "{}", ended.stderr);
    world.sql("DROP TABLE processed_event").await;
    let errors = found(&check(&world).await.1, "error");
    let missing = "the table processed_event is absent; restore it";
    assert!(errors.iter().any(|error| error.starts_with(missing)), "{errors:?}");
    assert!(!errors.iter().any(|error| error.contains("processed_event.")), "{errors:?}");
}

/// It refuses a ping then, but says why where it is asked; and what is in it can be looked at.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_cannot_persist_is_looked_into_all_the_same() {
    let world = World::private("check_misconf", 1).await;
    world.add(0, b"nonsense").await;
    world.worker().once().await;
    let folder: Vec<String> = world.ask("CONFIG GET dir").await;
    let in_the_way = std::path::Path::new(&folder[1]).join("dump.rdb");
    let _ = std::fs::remove_file(&in_the_way);
    std::fs::create_dir_all(in_the_way.join("full")).unwrap();
    let mut save = redis::cmd("CONFIG");
    let _: String = save.arg("SET").arg("save").arg("3600 1").query_async(&mut world.redis()).await.unwrap();
    world.ask::<String>("BGSAVE").await;
    eventually("Redis refuses writes", async || {
        world.ask::<String>("INFO persistence").await.contains("rdb_last_bgsave_status:err")
    })
    .await;
    let (code, answer) = check(&world).await;
    let errors = found(&answer, "error");
    assert!(code == 1 && errors[0].contains("MISCONF") && errors[0].contains("look at its log and disk"), "{answer:#}");
    assert!(found(&answer, "good").iter().any(|good| good.starts_with("it is Redis")), "{answer:#}");
    for command in [&["status"][..], &["topology"], &["dead", "list"]] {
        let ended = run(world.command(command), b"").await;
        assert_eq!(ended.code, 0, "{command:?}: {ended:?}");
    }
}

/// Each refuses to go on, as a worker does.
#[tokio::test(flavor = "multi_thread")]
async fn servers_that_hexlane_cannot_work_with_are_named() {
    let mut world = World::shared("check_servers", 1).await;
    let cluster = Program::start("redis-server", |_, port| {
        ["--bind", "127.0.0.1", "--save", "", "--cluster-enabled", "yes", "--port", &port.to_string()]
            .map(str::to_owned)
            .to_vec()
    })
    .await;
    let good = std::mem::replace(&mut world.redis_url, format!("redis://127.0.0.1:{}", cluster.port));
    let without = format!("{}_without", world.namespace);
    world.sql(&format!("CREATE DATABASE \"{without}\"")).await;
    let said = async |world: &World, sentence: &str| {
        for command in [&["check"][..], &["worker", "--once", "--no-migrate", "--admin-addr", "127.0.0.1:0"]] {
            let ended = run(world.command(command), b"").await;
            assert_eq!(ended.code, 1, "{command:?}: {ended:?}");
            let said = ended.stdout + &ended.stderr;
            assert!(said.contains(sentence), "{command:?}: {said}");
        }
    };
    said(&world, "the server runs in cluster mode").await;
    world.redis_url = good;
    world.database_url = world.database_url.replace(&format!("/{}", world.namespace), &format!("/{without}"));
    said(&world, "run `hexlane migrate`").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_named() {
    let world = World::shared("check_rights", 2).await;
    let role = format!("{}_reader", world.namespace);
    world
        .sql(&format!(
            "CREATE ROLE \"{role}\" LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO \"{role}\";
             GRANT INSERT, UPDATE ON feature_state TO \"{role}\""
        ))
        .await;
    let mut command = world.command(&["check", "--json"]);
    command.env("HEXLANE_DATABASE_URL", world.database_url.replace("postgres@", &format!("{role}@")));
    let ended = run(command, b"").await;
    assert_eq!(ended.code, 1, "{ended:?}");
    let errors = found(&serde_json::from_str(&ended.stdout).unwrap(), "error");
    assert_eq!(errors, ["this user lacks processed_event INSERT, processed_event UPDATE; grant it"]);
    world.sql(&format!("DROP OWNED BY \"{role}\"; DROP ROLE \"{role}\"")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_are_away_are_errors() {
    let world = World::shared("check_away", 2).await;
    let mut command = world.command(&["check", "--json"]);
    command.env("HEXLANE_REDIS_URL", "redis://127.0.0.1:1").env("HEXLANE_DATABASE_URL", "postgres://a@127.0.0.1:1/b");
    let answer: Value = serde_json::from_str(&run(command, b"").await.stdout).unwrap();
    let errors = found(&answer, "error");
    assert_eq!(errors.len(), 2, "{answer:#}");
    assert!(errors.iter().all(|error| error.ends_with("whether a firewall stands between")), "{answer:#}");
}
