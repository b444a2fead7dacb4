//! `hexlane migrate`.

use futures_util::future::join_all;

use super::run;
use crate::world::World;

/// Another database on the same server, with nothing in it.
async fn fresh_database(world: &World, suffix: &str) -> String {
    let name = format!("{}_{suffix}", world.namespace);
    world.postgres().await.batch_execute(&format!("CREATE DATABASE \"{name}\"")).await.unwrap();
    let (server, _) = world.database_url.rsplit_once('/').unwrap();
    format!("{server}/{name}")
}

fn migrate(world: &World, database_url: &str) -> tokio::process::Command {
    let mut command = world.command(&["migrate"]);
    command.env("HEXLANE_DATABASE_URL", database_url);
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_at_once_migrate_once() {
    let world = World::shared("migrate", 1).await;
    let url = fresh_database(&world, "fresh").await;
    let all = join_all((0..8).map(|_| run(migrate(&world, &url), b""))).await;
    let (mut did, mut did_not) = (0, 0);
    for ended in &all {
        assert_eq!(ended.code, 0, "{ended:?}");
        match ended.stdout.as_str() {
            "schema version 1, 1 migrations applied\n" => did += 1,
            "schema version 1, 0 migrations applied\n" => did_not += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((did, did_not), (1, 7));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_printed_script_is_the_whole_schema() {
    let world = World::shared("migrate_print", 1).await;
    let url = fresh_database(&world, "printed").await;
    let mut offline = world.command(&["migrate", "--print"]);
    offline.env_remove("HEXLANE_DATABASE_URL");
    let printed = run(offline, b"").await;
    assert_eq!((printed.code, printed.stderr.as_str()), (0, ""));

    let (postgres, link) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(link);
    postgres.batch_execute(&printed.stdout).await.unwrap();
    let ended = run(migrate(&world, &url), b"").await;
    assert_eq!(ended.stdout, "schema version 1, 0 migrations applied\n", "{ended:?}");

    // The same as a migrated one, to the last column, index and option.
    let shape = "SELECT string_agg(concat_ws(' ', c.relname, c.relkind, c.reloptions, a.attname,
            format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid)), E'\\n'
            ORDER BY c.relname, a.attnum)
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
        LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        WHERE c.relname ~ '^(feature|processed_event|hexlane)'";
    let printed: String = postgres.query_one(shape, &[]).await.unwrap().get(0);
    let migrated: String = world.postgres().await.query_one(shape, &[]).await.unwrap().get(0);
    assert!(printed.contains("feature_state_geometry"), "{printed}");
    assert_eq!(printed, migrated);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_told_not_to_migrate_says_what_is_missing() {
    let world = World::shared("migrate_none", 1).await;
    let url = fresh_database(&world, "empty").await;
    let mut command = world.command(&["worker", "--once", "--no-migrate", "--admin-addr", "127.0.0.1:0"]);
    command.env("HEXLANE_DATABASE_URL", &url);
    let ended = run(command, b"").await;
    assert_eq!(ended.code, 1);
    assert!(ended.stderr.contains("run `hexlane migrate`"), "{ended:?}");

    let mut command = world.command(&["worker", "--once", "--admin-addr", "127.0.0.1:0"]);
    command.env("HEXLANE_DATABASE_URL", &url);
    assert_eq!(run(command, b"").await.code, 0, "by itself it migrates");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_schema_is_refused() {
    let world = World::shared("migrate_newer", 1).await;
    world.postgres().await.execute("INSERT INTO hexlane_schema_version (version) VALUES (999)", &[]).await.unwrap();
    let ended = run(world.command(&["migrate"]), b"").await;
    assert_eq!(ended.code, 1);
    assert!(ended.stderr.contains("the schema has version 999") && ended.stderr.contains("newer hexlane"), "{ended:?}");
}
