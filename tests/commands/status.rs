//! `hexlane status`.

use super::run;
use crate::world::{World, point};

async fn json(world: &World) -> serde_json::Value {
    serde_json::from_str(&world.hexlane(&["status", "--json"]).await).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn shows_each_shard_and_the_totals() {
    let world = World::shared("status", 2).await;
    assert_eq!(run(world.command(&["publish"]), b"").await.code, 0);
    for version in 1..=3 {
        world.add(0, &point("F", version, 4.3, 52.1)).await;
    }
    world.add(1, b"{}").await;

    let before = json(&world).await;
    assert_eq!(before["totals"], serde_json::json!({"length": 4, "lag": 4, "pending": 0, "dead_letters": 0}));
    // Somebody takes one and does not settle it.
    let key = world.events_key(0);
    world.ask::<redis::Value>(&format!("XGROUP CREATE {key} hexlane 0")).await;
    world.ask::<redis::Value>(&format!("XREADGROUP GROUP hexlane other COUNT 1 STREAMS {key} >")).await;
    let taken = json(&world).await;
    let shard = &taken["shards"][0];
    assert_eq!((&shard["shard"], &shard["lag"], &shard["pending"]), (&0.into(), &2.into(), &1.into()));
    assert!(shard["oldest_pending_seconds"].as_f64().unwrap() >= 0.0);
    assert!(taken["shards"][1]["oldest_pending_seconds"].is_null());

    world.worker().once().await;
    let after = json(&world).await;
    assert_eq!(after["totals"], serde_json::json!({"length": 4, "lag": 0, "pending": 0, "dead_letters": 1}));
    assert_eq!(after["shards"][1]["dead_letters"], 1);

    let table = world.hexlane(&["status"]).await;
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        rows,
        [
            vec!["shard", "length", "lag", "pending", "oldest", "dead", "owner"],
            vec!["000", "3", "0", "0", "-", "0", "-"],
            vec!["001", "1", "0", "0", "-", "1", "-"],
            vec!["total", "4", "0", "0", "1", "0", "workers"],
            vec!["fullest:", "shard", "000", "with", "3,", "1.5", "times", "the", "mean"],
        ]
    );
    assert_eq!(after["skew"], 1.5);
}

#[tokio::test(flavor = "multi_thread")]
async fn asking_changes_nothing() {
    let world = World::shared("status_quiet", 2).await;
    let status = json(&world).await;
    assert_eq!(status["shards"].as_array().unwrap().len(), 16, "the default, while nobody has set another");
    assert_eq!(world.ask::<Vec<String>>(&format!("KEYS {}:*", world.namespace)).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn watching_shows_it_again_until_it_is_interrupted() {
    use tokio::io::{AsyncBufReadExt, BufReader};
    let world = World::shared("status_watch", 1).await;
    world.add(0, &point("F", 1, 4.3, 52.1)).await;
    let mut command = world.command(&["status", "--watch", "--json"]);
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let length = |line: Option<String>| -> i64 {
        serde_json::from_str::<serde_json::Value>(&line.unwrap()).unwrap()["totals"]["length"].as_i64().unwrap()
    };
    assert_eq!(length(lines.next_line().await.unwrap()), 1);
    world.add(0, &point("F", 2, 4.3, 52.1)).await;
    while length(lines.next_line().await.unwrap()) != 2 {}
    let interrupt = std::process::Command::new("kill").args(["-s", "INT", &child.id().unwrap().to_string()]).status();
    assert!(interrupt.unwrap().success());
    let ended = tokio::time::timeout(crate::world::PATIENCE, child.wait()).await.expect("it ends").unwrap();
    assert!(ended.success(), "{ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_terminal_the_table_is_drawn_anew() {
    let world = World::shared("status_terminal", 1).await;
    world.add(0, &point("F", 1, 4.3, 52.1)).await;
    let watch =
        format!("timeout --foreground --preserve-status -s INT 5 {} status --watch", env!("CARGO_BIN_EXE_hexlane"));
    let mut command = tokio::process::Command::new("script");
    command.args(["-qec", &watch, "/dev/null"]);
    for (name, value) in world.command(&[]).as_std().get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let ended = run(command, b"").await;
    assert_eq!(ended.code, 0, "{ended:?}");
    let tables: Vec<&str> = ended.stdout.split("\x1b[H\x1b[2J").skip(1).collect();
    assert!(tables.len() >= 2, "{ended:?}");
    assert!(tables.iter().all(|table| table.contains("000") && table.contains("total")), "{tables:?}");
}
