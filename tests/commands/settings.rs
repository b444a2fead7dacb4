//! Usage, environment variables, contradictions, and the topology that all have to share.

use super::run;
use crate::world::{World, point};

/// Exit codes of commands that must not start; their words.
async fn refused(world: &World, args: &[&str], env: &[(&str, &str)]) -> (i32, String) {
    let mut command = world.command(args);
    command.envs(env.iter().copied());
    let ended = run(command, b"").await;
    assert_eq!(ended.stdout, "", "{args:?}");
    (ended.code, ended.stderr)
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_usage_exits_with_2() {
    let world = World::shared("usage", 1).await;
    for args in [
        &[] as &[&str],
        &["walk"],
        &["worker", "--sideways"],
        &["worker", "--shards", "0"],
        &["worker", "--shards", "1001"],
        &["worker", "--block", "soon"],
        &["worker", "--block", "0"],
        &["worker", "--h3-resolution", "16"],
        &["worker", "--namespace", "a{b}"],
        &["worker", "--batch-rows", "0"],
        &["publish", "--shard-by", "colour"],
        &["publish", "--dry-run", "--unchecked"],
        &["publish", "--strict", "--unchecked"],
        &["publish", "--format", "shapefile"],
        &["publish", "--id-property", "code"],
        &["publish", "--time-property", "seen", "parks.geojson", "more.ndjson"],
        &["publish", "--unchecked", "parks.geojsonl"],
        &["publish", "--max-event-bytes", "4 parsecs"],
        &["status", "--log-format", "xml"],
    ] {
        let (code, words) = refused(&world, args, &[]).await;
        assert_eq!(code, 2, "{args:?}: {words}");
        assert!(!words.is_empty(), "{args:?}");
    }
    for (name, value) in [("HEXLANE_SHARDS", "many"), ("HEXLANE_RETRY_CAP", "1"), ("HEXLANE_ADMIN_ADDR", "here")] {
        let (code, words) = refused(&world, &["worker"], &[(name, value)]).await;
        assert_eq!(code, 2, "{name}={value}: {words}");
    }
    let mut nowhere = world.command(&["worker"]);
    nowhere.env_remove("HEXLANE_DATABASE_URL");
    let ended = run(nowhere, b"").await;
    assert_eq!(ended.code, 2);
    assert!(ended.stderr.contains("--database-url"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_contradict_each_other_are_refused_by_name() {
    let world = World::shared("contradiction", 1).await;
    for (args, names) in [
        (["--retry-base", "2s", "--retry-cap", "1s"], ["--retry-base", "--retry-cap"]),
        (["--reorder-window", "11s", "--lease", "10s"], ["--reorder-window", "--lease"]),
        (["--renew", "6s", "--lease", "10s"], ["--renew", "--lease"]),
        (["--block", "7s", "--lease", "10s"], ["--block", "--lease"]),
        (["--retention", "2d", "--dedup-window", "2d"], ["--retention", "--dedup-window"]),
    ] {
        let (code, words) = refused(&world, &[&["worker", "--once"], &args[..]].concat(), &[]).await;
        assert_eq!(code, 2, "{args:?}");
        assert!(names.iter().all(|name| words.contains(name)), "{args:?}: {words}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_option_is_an_environment_variable() {
    let world = World::shared("environment", 2).await;
    let mut command = world.command(&["publish"]);
    command.env("HEXLANE_UNCHECKED", "1").env("HEXLANE_DRY_RUN", "false");
    assert_eq!(run(command, b"{}\n").await.stdout, "published 1, refused 0\n");
    let mut command = world.command(&["publish"]);
    command.env("HEXLANE_DRY_RUN", "true").env("HEXLANE_UNCHECKED", "0");
    assert!(run(command, b"{}\n").await.stdout.starts_with("valid 0, refused 1 "));

    let mut command = world.command(&["worker"]);
    command.env("HEXLANE_ONCE", "true").env("HEXLANE_ADMIN_ADDR", "127.0.0.1:0").env("HEXLANE_LOG_FORMAT", "json");
    command.env("HEXLANE_WORKER_NAME", "w-1").env("HEXLANE_BATCH_ROWS", "17").env("HEXLANE_BLOCK", "100ms");
    let ended = run(command, b"").await;
    assert_eq!(ended.code, 0, "{ended:?}");
    // The order of the counts is part of the interface.
    let counts = "{\"read\":1,\"applied\":0,\"superseded\":0,\"stale\":0,\"duplicate\":0,\"dead_lettered\":1,\
                  \"released\":0,\"lost\":0}\n";
    assert_eq!(ended.stdout, counts);
    let logged: Vec<serde_json::Value> = ended.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let in_force = logged.iter().find(|line| line["fields"]["message"] == "settings in force").unwrap();
    assert_eq!((&in_force["fields"]["worker"], &in_force["fields"]["shards"]), (&"w-1".into(), &2.into()));
    assert!(in_force["fields"]["settings"].as_str().unwrap().contains("batch_rows: 17"), "{in_force}");
    assert_eq!(world.dead_letters().await[0].text("dead:worker"), "w-1");
    assert_eq!(world.dead_letters().await[0].reason(), "missing_field");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_topology_is_refused_by_both_values() {
    let world = World::shared("topology", 4).await;
    let mut first = world.command(&["publish"]);
    first.env("HEXLANE_SHARD_BY", "feature").env("HEXLANE_H3_RESOLUTION", "9");
    assert_eq!(run(first, &point("F", 1, 4.3, 52.1)).await.code, 0);
    let topology: Vec<String> =
        world.ask(&format!("HMGET {}:topology shards shard_by h3_resolution format", world.namespace)).await;
    assert_eq!(topology, ["4", "feature", "9", "1"]);

    let worker = ["worker", "--once", "--admin-addr", "127.0.0.1:0"];
    for command in [&worker[..], &["publish"]] {
        for (option, ours, theirs) in
            [("--shards", "8", "4"), ("--shard-by", "cell", "feature"), ("--h3-resolution", "7", "9")]
        {
            let (code, words) = refused(&world, &[command, &[option, ours]].concat(), &[]).await;
            assert_eq!(code, 1, "{words}");
            let wanted = format!("{option} is {ours} here, but {}:topology says {theirs}", world.namespace);
            assert!(words.contains(&wanted), "{words}");
        }
    }
    // Without settings of its own it takes what is there.
    let mut silent = world.command(&worker);
    silent.env_remove("HEXLANE_SHARDS");
    let ended = run(silent, b"").await;
    assert!(ended.code == 0 && ended.stdout.starts_with("{\"read\":1,\"applied\":1,"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_beyond_the_topology_are_named() {
    let world = World::shared("stranded", 2).await;
    world.add(5, &point("F", 1, 4.3, 52.1)).await;
    let (code, words) = refused(&world, &["worker", "--once", "--admin-addr", "127.0.0.1:0"], &[]).await;
    assert_eq!(code, 1);
    assert!(words.contains(&world.events_key(5)), "{words}");
}
