//! README's way to a table in partitions, taken from there and run: what was stored stays, and the
//! guard holds.

use crate::world::{World, delete, event, point};

fn from_readme() -> &'static str {
    let (_, rest) = include_str!("../README.md").split_once("**Partitions by hash").expect("README has the section");
    let (_, block) = rest.split_once("```sql\n").expect("it has the SQL");
    block.split_once("```").unwrap().0
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guard_holds_in_a_table_of_partitions() {
    const MANY: i64 = 200;
    let world = World::shared("partitions", 1).await;
    for before in [point("gone", 1, 4.3, 52.1), delete("gone", 2), point("here", 5, 4.3, 52.1)] {
        world.add(0, &before).await;
    }
    world.worker().once().await.assert_balanced();
    world.sql(from_readme()).await;
    assert_eq!(world.state("gone").await, Some((2, "delete".into())));

    let place = r#"{"type":"Point","coordinates":[4.3,52.1]}"#;
    let identified = event("marked", 1, "create", place, r#","event_id":"once""#);
    for late in [point("gone", 1, 4.3, 52.1), point("here", 4, 4.3, 52.1), identified.clone(), identified] {
        world.add(0, &late).await;
    }
    // Newest first, and in two statements: the older ones are late.
    for version in [2, 1] {
        let events: Vec<_> = (0..MANY).map(|n| point(&format!("F{n}"), version, 4.3, 52.1)).collect();
        world.add_together(0, &events).await;
        let counts = world.worker().set("REORDER_WINDOW", "0s").once().await;
        counts.assert_balanced();
        match version {
            2 => assert_eq!((counts.stale, counts.duplicate), (2, 1), "{counts:?}"),
            _ => assert_eq!(counts.stale, MANY as u64, "{counts:?}"),
        }
    }
    assert_eq!(world.state("gone").await, Some((2, "delete".into())));
    assert_eq!(world.state("here").await, Some((5, "update".into())));
    let postgres = world.postgres().await;
    let visible = "SELECT count(*), count(*) FILTER (WHERE version = 2) FROM feature";
    let row = postgres.query_one(visible, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (MANY + 2, MANY));
    let used = "SELECT count(DISTINCT tableoid) FROM feature_state";
    assert_eq!(postgres.query_one(used, &[]).await.unwrap().get::<_, i64>(0), 8);

    world.sql("ALTER TABLE feature_state_3 SET (autovacuum_enabled = off)").await;
    let said = world.command(&["check"]).output().await.unwrap().stdout;
    let said = String::from_utf8(said).unwrap();
    assert!(said.contains("warning  autovacuum leaves feature_state_3 alone"), "{said}");
}
