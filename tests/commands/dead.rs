//! `hexlane dead`: what people and programs see of dead letters, and what becomes of those sent back.

use serde_json::Value;

use super::run;
use crate::world::{World, delete, event, eventually, point};

const POINT: &str = r#"{"type":"Point","coordinates":[4.3,52.1]}"#;

async fn dead(world: &World, args: &[&str]) -> String {
    let ended = run(world.command(&[&["dead"], args].concat()), b"").await;
    assert_eq!(ended.code, 0, "{args:?}: {ended:?}");
    ended.stdout
}

async fn listed(world: &World, args: &[&str]) -> Vec<Value> {
    let text = dead(world, &[&["list", "--json"], args].concat()).await;
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

async fn features(world: &World, args: &[&str]) -> Vec<String> {
    let mut features: Vec<String> =
        listed(world, args).await.iter().map(|l| l["feature_id"].as_str().unwrap_or("-").to_owned()).collect();
    features.sort();
    features
}

/// A row that the database refuses, one that is open, one that is no JSON.
async fn three_letters(world: &World) {
    world.sql("ALTER TABLE feature_state ADD CONSTRAINT no_ghosts CHECK (feature_id NOT LIKE 'ghost%')").await;
    world.add(0, &point("ghost", 3, 4.3, 52.1)).await;
    world.add(1, &event("open", 1, "update", r#"{"type":"Point","coordinates":[4.3]}"#, "")).await;
    world.add(1, b"\xff\x1b[31m").await;
    assert_eq!(world.worker().once().await.dead_lettered, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_choose_and_show_tells_everything() {
    let world = World::shared("dead_filters", 2).await;
    assert_eq!(dead(&world, &["list"]).await, "");
    three_letters(&world).await;
    assert_eq!(features(&world, &[]).await, ["-", "ghost", "open"]);
    assert_eq!(features(&world, &["--reason", "bad_geometry"]).await, ["open"]);
    assert_eq!(features(&world, &["--reason", "bad_geometry", "--reason", "not_json"]).await, ["-", "open"]);
    assert_eq!(features(&world, &["--shard", "0"]).await, ["ghost"]);
    assert_eq!(features(&world, &["--feature", "open"]).await, ["open"]);
    assert_eq!(features(&world, &["--feature", "open", "--shard", "0"]).await, [""; 0]);
    assert_eq!(features(&world, &["--newer-than", "1h"]).await.len(), 3);
    assert_eq!(features(&world, &["--older-than", "1h"]).await, [""; 0]);
    assert_eq!(features(&world, &["--older-than", "1ms"]).await.len(), 3);
    assert_eq!(features(&world, &["--newer-than", "1ms"]).await, [""; 0]);
    assert_eq!(listed(&world, &["--limit", "2"]).await.len(), 2);

    let ghost = &listed(&world, &["--feature", "ghost"]).await[0];
    for id in ["id", "source_id"] {
        assert_eq!(features(&world, &["--shard", "0", "--id", ghost[id].as_str().unwrap()]).await, ["ghost"]);
    }
    assert_eq!((&ghost["version"], &ghost["sqlstate"], &ghost["times"]), (&3.into(), &"23514".into(), &1.into()));
    assert_eq!(ghost["source_stream"], world.events_key(0));
    assert!(chrono::DateTime::parse_from_rfc3339(ghost["at"].as_str().unwrap()).is_ok());

    // As it lies there, and nothing that a terminal would obey.
    let text = dead(&world, &["show", "--reason", "not_json"]).await;
    assert!(text.contains(r"\u{1b}[31m") && !text.contains('\x1b'), "{text}");
    let whole: Value = serde_json::from_str(&dead(&world, &["show", "--json", "--reason", "not_json"]).await).unwrap();
    assert_eq!(whole["fields"][0], serde_json::json!({"name": "event", "base64": "/xtbMzFt"}));
    let text = dead(&world, &["list"]).await;
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(text.contains("  rejected_by_database  ghost  "), "{text}");

    let ended = run(world.command(&["dead", "list", "--reason", "bad_luck"]), b"").await;
    assert!(ended.code == 2 && ended.stderr.contains("internal_error"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_mended_lands_and_a_second_replay_finds_nothing() {
    let world = World::shared("dead_replay", 2).await;
    three_letters(&world).await;
    let trace = world.add_fields(0, &[("event", &point("ghost 2", 1, 4.3, 52.1)), ("traceparent", b"00-ab")]).await;
    assert_eq!(world.worker().once().await.dead_lettered, 1);
    let refused = ["replay", "--reason", "rejected_by_database"];
    let said = dead(&world, &[&refused[..], &["--dry-run"]].concat()).await;
    assert_eq!(said, "would replay 2 (rejected_by_database 2)\n");
    assert_eq!(world.dead_letters().await.len(), 4);

    // In vain while the cause is there, and once: not again and again.
    assert_eq!(dead(&world, &refused).await, "replayed 2 (rejected_by_database 2)\n");
    assert_eq!(world.worker().once().await.dead_lettered, 2);
    let again = &listed(&world, &["--feature", "ghost 2"]).await[0];
    assert_ne!(again["source_id"], trace.as_str());

    world.sql("ALTER TABLE feature_state DROP CONSTRAINT no_ghosts").await;
    let summary: Value = serde_json::from_str(&dead(&world, &[&refused[..], &["--json"]].concat()).await).unwrap();
    assert_eq!((&summary["done"], &summary["reasons"]["rejected_by_database"]), (&2.into(), &2.into()));
    let entries: Vec<(String, Vec<(String, String)>)> =
        world.ask(&format!("XREVRANGE {} + - COUNT 1", world.events_key(0))).await;
    let names: Vec<&str> = entries[0].1.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["event", "traceparent", "dead:entered"], "as it was, and when it entered first");
    assert_eq!(entries[0].1[2].1, trace);
    assert_eq!(world.worker().once().await.applied, 2);
    assert_eq!(world.state("ghost").await, Some((3, "update".into())));
    assert_eq!(dead(&world, &refused).await, "replayed 0\n");
    assert_eq!(features(&world, &[]).await, ["-", "open"]);
}

/// The group was made anew, so that everything came again.
#[tokio::test(flavor = "multi_thread")]
async fn what_died_twice_is_shown_and_replayed_once() {
    let world = World::shared("dead_twice", 2).await;
    three_letters(&world).await;
    for shard in 0..2 {
        let _: i64 = world.ask(&format!("XGROUP DESTROY {} hexlane", world.events_key(shard))).await;
    }
    assert_eq!(world.worker().once().await.dead_lettered, 3);
    assert_eq!(world.dead_letters().await.len(), 6);
    let letters = listed(&world, &[]).await;
    assert_eq!(letters.iter().map(|letter| letter["times"].as_i64().unwrap()).collect::<Vec<_>>(), [2, 2, 2]);
    assert!(dead(&world, &["list"]).await.contains("(2 times)"));
    world.sql("ALTER TABLE feature_state DROP CONSTRAINT no_ghosts").await;
    let said = dead(&world, &["replay", "--feature", "ghost"]).await;
    assert_eq!(said, "replayed 1 (rejected_by_database 1); 1 letters of the same entries removed\n");
    assert_eq!(world.worker().once().await.applied, 1);
    assert_eq!(world.dead_letters().await.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn purge_removes_what_is_meant_and_nothing_by_mistake() {
    let world = World::shared("dead_purge", 2).await;
    three_letters(&world).await;
    for wrong in [&["dead", "purge"][..], &["dead", "purge", "--all", "--shard", "1"]] {
        let ended = run(world.command(wrong), b"").await;
        assert!(ended.code == 2 && ended.stderr.contains("--all"), "{ended:?}");
    }
    assert_eq!(
        dead(&world, &["purge", "--shard", "1", "--dry-run"]).await,
        "would remove 2 (bad_geometry 1, not_json 1)\n"
    );
    assert_eq!(dead(&world, &["purge", "--older-than", "1h"]).await, "removed 0\n");
    assert_eq!(dead(&world, &["purge", "--shard", "1"]).await, "removed 2 (bad_geometry 1, not_json 1)\n");
    assert_eq!(features(&world, &[]).await, ["ghost"]);
    assert_eq!(dead(&world, &["purge", "--all"]).await, "removed 1 (rejected_by_database 1)\n");
    assert_eq!(listed(&world, &[]).await.len(), 0);
}

/// Many pages; the command is killed on the way and run again.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_killed_half_way_goes_on_where_it_was() {
    const COUNT: usize = 1500;
    let world = World::shared("dead_killed", 1).await;
    world.sql("ALTER TABLE feature_state ADD CONSTRAINT nothing CHECK (false) NOT VALID").await;
    let events: Vec<Vec<u8>> = (0..COUNT).map(|n| point(&format!("f{n}"), 1, 4.3, 52.1)).collect();
    world.add_together(0, &events).await;
    assert_eq!(world.worker().once().await.dead_lettered, COUNT as u64);
    world.sql("ALTER TABLE feature_state DROP CONSTRAINT nothing").await;
    let mut command = world.command(&["dead", "replay", "--rate", "500"]);
    let mut child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    eventually("some were sent back", async || {
        world.ask::<usize>(&format!("XLEN {}", world.dead_key(0))).await < COUNT - 100
    })
    .await;
    child.kill().await.unwrap();
    let left: usize = world.ask(&format!("XLEN {}", world.dead_key(0))).await;
    assert!(left > 0, "it was too quick to be killed");
    let said = dead(&world, &["replay"]).await;
    assert_eq!(said, format!("replayed {left} (rejected_by_database {left})\n"));
    assert_eq!(world.worker().once().await.applied, COUNT as u64);
    assert_eq!(dead(&world, &["replay"]).await, "replayed 0\n");
}

/// By the ids that Redis gave them: the time between the first and the last is never too short, however slow the
/// machine is.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_goes_no_faster_than_its_rate() {
    const COUNT: u64 = 30;
    const PER_SECOND: u64 = 20;
    let world = World::shared("dead_rate", 1).await;
    let nonsense: Vec<Vec<u8>> = (0..COUNT).map(|n| n.to_string().into_bytes()).collect();
    world.add_together(0, &nonsense).await;
    assert_eq!(world.worker().once().await.dead_lettered, COUNT);
    dead(&world, &["replay", "--rate", &PER_SECOND.to_string()]).await;
    let entries: Vec<(String, redis::Value)> = world.ask(&format!("XRANGE {} - +", world.events_key(0))).await;
    let entered: Vec<u64> = entries.iter().map(|(id, _)| id.split_once('-').unwrap().0.parse().unwrap()).collect();
    // Those that died may still lie there, before the ones that were sent back.
    let sent = &entered[entered.len() - COUNT as usize..];
    // They go in pieces of a tenth of a second, the first of them at once.
    let piece = PER_SECOND.div_ceil(10);
    let least = (COUNT - piece) * 1000 / PER_SECOND;
    let took = sent[sent.len() - 1] - sent[0];
    assert!(took >= least, "{took} ms, and no less than {least}");
}

/// Its entry is young, its event is not: what protects against it has to stay until it has landed.
#[tokio::test(flavor = "multi_thread")]
async fn a_replayed_event_keeps_its_age_for_prune() {
    const DAY_MS: i64 = 86_400_000;
    let world = World::shared("dead_age", 1).await;
    let id = format!("{}-5", chrono::Utc::now().timestamp_millis() - 35 * DAY_MS);
    world.sql("ALTER TABLE feature_state ADD CONSTRAINT nothing CHECK (op = 'delete')").await;
    let mut command = redis::cmd("XADD");
    command.arg(world.events_key(0)).arg(&id).arg("event").arg(event("gone", 1, "create", POINT, ""));
    command.query_async::<String>(&mut world.redis()).await.unwrap();
    assert_eq!(world.worker().once().await.dead_lettered, 1);
    world.add(0, &delete("gone", 2)).await;
    assert_eq!(world.worker().once().await.applied, 1);
    world.sql("UPDATE feature_state SET applied_at = applied_at - interval '32 days'").await;
    let _: u64 = world.ask(&format!("XTRIM {} MAXLEN 0", world.events_key(0))).await;
    let prune = async || run(world.command(&["prune"]), b"").await.stdout;
    assert!(prune().await.contains("removed 0 tombstones"));

    // Twice on its way back, and dead again in between.
    for _ in 0..2 {
        assert_eq!(dead(&world, &["replay"]).await, "replayed 1 (rejected_by_database 1)\n");
        assert!(prune().await.contains("removed 0 tombstones"), "as an entry");
        world.sql("UPDATE feature_state SET version = 0").await;
        assert_eq!(world.worker().once().await.dead_lettered, 1);
        world.sql("UPDATE feature_state SET version = 2").await;
        let _: u64 = world.ask(&format!("XTRIM {} MAXLEN 0", world.events_key(0))).await;
        assert!(prune().await.contains("removed 0 tombstones"), "as a dead letter");
        assert_eq!(listed(&world, &[]).await[0]["feature_id"], "gone");
    }
    world.sql("ALTER TABLE feature_state DROP CONSTRAINT nothing").await;
    dead(&world, &["replay"]).await;
    assert_eq!(world.worker().once().await.stale, 1);
    assert_eq!(world.state("gone").await, Some((2, "delete".into())));
    let _: u64 = world.ask(&format!("XTRIM {} MAXLEN 0", world.events_key(0))).await;
    let said = prune().await;
    assert!(said.contains("removed 1 tombstones"), "nothing is left that could bring it back: {said}");
}
