//! `hexlane prune`: what protects features goes late enough, and not one row too many.

use super::run;
use crate::world::{World, delete, event, point};

const POINT: &str = r#"{"type":"Point","coordinates":[4.3,52.1]}"#;
const DAY_MS: i64 = 86_400_000;

async fn prune(world: &World, args: &[&str]) -> String {
    let ended = run(world.command(&[&["prune"], args].concat()), b"").await;
    assert_eq!(ended.code, 0, "{ended:?}");
    ended.stdout
}

/// As if everything in the table had been written so many days ago.
async fn age(world: &World, days: i32) {
    let sql = format!(
        "UPDATE feature_state SET applied_at = applied_at - interval '{days} days';
         UPDATE processed_event SET processed_at = processed_at - interval '{days} days'"
    );
    world.sql(&sql).await;
}

async fn count(world: &World, table: &str) -> i64 {
    world.postgres().await.query_one(&format!("SELECT count(*) FROM {table}"), &[]).await.unwrap().get(0)
}

/// A live feature and a tombstone, both with an event id.
async fn land(world: &World) {
    world.add(0, &event("live", 1, "create", POINT, r#","event_id":"a""#)).await;
    world.add(1, &event("gone", 2, "delete", "null", r#","event_id":"b""#)).await;
    assert_eq!(world.worker().once().await.applied, 2);
}

async fn empty_streams(world: &World) {
    for shard in 0..world.shards {
        let _: u64 = world.ask(&format!("XTRIM {} MAXLEN 0", world.events_key(shard))).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_old_goes_and_the_live_stay() {
    let world = World::shared("prune", 2).await;
    land(&world).await;
    age(&world, 40).await;
    // A young tombstone too.
    world.add(0, &delete("just now", 1)).await;
    world.worker().once().await;
    empty_streams(&world).await;
    let said = prune(&world, &["--dry-run"]).await;
    assert!(said.contains("the streams are empty\nwould remove 1 tombstones from before 20"), "{said}");
    assert!(said.contains("would remove 2 event ids from before 20"), "{said}");
    assert_eq!((count(&world, "feature_state").await, count(&world, "processed_event").await), (3, 2));

    let said = prune(&world, &["--tombstone-retention", "50d", "--dedup-window", "50d"]).await;
    assert!(said.contains("removed 0 tombstones") && said.contains("removed 0 event ids"), "{said}");
    let said = prune(&world, &[]).await;
    assert!(said.contains("removed 1 tombstones") && said.contains("removed 2 event ids"), "{said}");
    assert_eq!((count(&world, "feature_state").await, count(&world, "processed_event").await), (2, 0));
    assert_eq!(world.state("gone").await, None);
    assert_eq!(world.state("just now").await, Some((1, "delete".into())));
}

/// Several pages of each table, old and young mixed.
#[tokio::test(flavor = "multi_thread")]
async fn it_goes_through_all_pages() {
    let world = World::shared("prune_pages", 2).await;
    land(&world).await;
    let sql = "INSERT INTO feature_state (feature_id, version, op, observation_time, applied_at)
            SELECT 'T' || n, 1, 'delete', now(), now() - CASE n % 3 WHEN 0 THEN interval '40 days' ELSE '0' END
            FROM generate_series(1, 12000) AS n;
        INSERT INTO processed_event (feature_id, event_id, processed_at)
            SELECT 'T' || n % 7, 'e' || n, now() - CASE n % 3 WHEN 0 THEN interval '40 days' ELSE '0' END
            FROM generate_series(1, 12000) AS n";
    world.sql(sql).await;
    empty_streams(&world).await;
    for verb in ["would remove", "removed"] {
        let said = prune(&world, if verb == "removed" { &[] } else { &["--dry-run"] }).await;
        assert!(said.contains(&format!("{verb} 4000 tombstones")), "{said}");
        assert!(said.contains(&format!("{verb} 4000 event ids")), "{said}");
    }
    assert_eq!((count(&world, "feature_state").await, count(&world, "processed_event").await), (8002, 8002));
}

/// An event that lies in a stream may still be written, and a dead letter may be sent back.
#[tokio::test(flavor = "multi_thread")]
async fn ages_count_from_the_oldest_entry_or_dead_letter() {
    let world = World::shared("prune_oldest", 2).await;
    let now_ms = chrono::Utc::now().timestamp_millis();
    // Invalid, and of 35 days ago: the create that the delete of 32 days ago has overtaken.
    let late = event("gone", 1, "create", r#"{"type":"Point","coordinates":[4.3]}"#, "");
    let add = async |shard: u16, days: i64, text: &[u8]| {
        let mut command = redis::cmd("XADD");
        command.arg(world.events_key(shard)).arg(format!("{}-7", now_ms - days * DAY_MS)).arg("event").arg(text);
        command.query_async::<String>(&mut world.redis()).await.unwrap()
    };
    let letter = add(1, 35, &late).await;
    assert_eq!(world.worker().once().await.dead_lettered, 1);
    land(&world).await;
    age(&world, 32).await;
    empty_streams(&world).await;
    let dead: Vec<(String, redis::Value)> = world.ask(&format!("XRANGE {} - +", world.dead_key(1))).await;
    let said = prune(&world, &[]).await;
    let names = format!("when the oldest entry came: {} in {}", dead[0].0, world.dead_key(1));
    assert!(said.contains(&names), "{said}");
    assert!(said.contains("removed 0 tombstones") && said.contains("removed 0 event ids"), "{said}");

    // Sent back and mended, it changes nothing.
    world.add(1, &point("gone", 1, 4.3, 52.1)).await;
    assert_eq!(world.worker().once().await.stale, 1);
    assert_eq!(world.state("gone").await, Some((2, "delete".into())));

    // An entry in a stream counts in the same way.
    let _: u64 = world.ask(&format!("DEL {} {}", world.dead_key(1), world.events_key(1))).await;
    let entry = add(1, 34, &point("another", 1, 4.3, 52.1)).await;
    let said = prune(&world, &[]).await;
    assert!(said.contains(&format!("{entry} in {}", world.events_key(1))), "{said}, {letter}");
    assert!(said.contains("removed 0 tombstones"), "{said}");
    let _: u64 = world.ask(&format!("DEL {}", world.events_key(1))).await;
    assert!(prune(&world, &[]).await.contains("removed 1 tombstones"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_feature_that_is_created_again_meanwhile_stays() {
    let world = World::shared("prune_race", 2).await;
    land(&world).await;
    age(&world, 40).await;
    empty_streams(&world).await;
    // Written and not committed: the page shows the old tombstone.
    let writer = world.postgres().await;
    let again = "BEGIN; UPDATE feature_state SET op = 'create', version = 3, applied_at = now(),
        geometry = ST_SetSRID(ST_MakePoint(4.3, 52.1), 4326) WHERE feature_id = 'gone'";
    writer.batch_execute(again).await.unwrap();
    let said = prune(&world, &[]).await;
    assert!(said.contains("removed 0 tombstones"), "it waits for nobody: {said}");
    writer.batch_execute("COMMIT").await.unwrap();
    assert_eq!(world.state("gone").await, Some((3, "create".into())));
}

/// Whichever comes first for a feature, and also where its page was read in between.
#[tokio::test(flavor = "multi_thread")]
async fn features_that_are_created_again_while_pages_are_pruned_stay() {
    const FEATURES: i64 = 4000;
    let world = World::shared("prune_meanwhile", 2).await;
    land(&world).await;
    empty_streams(&world).await;
    let sql = format!(
        "INSERT INTO feature_state (feature_id, version, op, observation_time, applied_at)
        SELECT 'T' || n, 1, 'delete', now(), now() - interval '40 days' FROM generate_series(1, {FEATURES}) AS n"
    );
    world.sql(&sql).await;
    let writer = world.postgres().await;
    let writing = tokio::spawn(async move {
        let again = "INSERT INTO feature_state AS stored (feature_id, version, op, observation_time, geometry)
            SELECT 'T' || n, 2, 'create', now(), ST_SetSRID(ST_MakePoint(4.3, 52.1), 4326)
            FROM generate_series($1::bigint, $1 + 19) AS n ORDER BY 1
            ON CONFLICT (feature_id) DO UPDATE SET version = excluded.version, op = excluded.op,
                geometry = excluded.geometry, applied_at = clock_timestamp()
            WHERE stored.version < excluded.version";
        for first in (1..=FEATURES).step_by(20) {
            writer.execute(again, &[&first]).await.unwrap();
        }
    });
    let mut rounds = 0;
    while !writing.is_finished() {
        prune(&world, &[]).await;
        rounds += 1;
    }
    writing.await.unwrap();
    let sql = "SELECT count(*) FROM feature_state WHERE op = 'create' AND version = 2";
    let live: i64 = world.postgres().await.query_one(sql, &[]).await.unwrap().get(0);
    assert_eq!(live, FEATURES, "after {rounds} rounds");
}

/// They lie in the order in which they died, not in that in which they came.
#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_of_many_dead_letters_is_found() {
    let world = World::shared("prune_letters", 2).await;
    land(&world).await;
    empty_streams(&world).await;
    let now_ms = chrono::Utc::now().timestamp_millis();
    let mut pipe = redis::pipe();
    for n in 0..130 {
        let source = match n {
            // Longer than an id can be; its own id counts.
            40 => "1-99999999999999999999999".to_owned(),
            120 => format!("{}-3", now_ms - 35 * DAY_MS),
            _ => format!("{}-{n}", now_ms - 34 * DAY_MS),
        };
        pipe.cmd("XADD").arg(world.dead_key(1)).arg(format!("{now_ms}-{n}")).arg("dead:source_id").arg(source).ignore();
    }
    pipe.exec_async(&mut world.redis()).await.unwrap();
    let said = prune(&world, &["--dry-run"]).await;
    assert!(said.contains(&format!("when the oldest entry came: {now_ms}-120 in {}", world.dead_key(1))), "{said}");
}
