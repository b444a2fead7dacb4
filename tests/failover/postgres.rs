//! A primary is lost and its standby promoted: once with every commit there, once without the last ones.

use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::world::{Server, Standby, Traffic, World, eventually, point, seed};

const PER_SECOND: usize = 1000;

fn address(url: &str) -> &str {
    url.rsplit_once('@').unwrap().1.split_once('/').unwrap().0
}

/// A world whose database has a standby, and the connection string that names both.
async fn with_standby(name: &str) -> (World, Standby, String) {
    let world = World::private(name, 4).await;
    let standby = tokio::task::block_in_place(|| world.servers.as_ref().unwrap().standby());
    let both = format!("{},{}", address(&world.database_url), address(&standby.url));
    let both = world.database_url.replace(address(&world.database_url), &both);
    (world, standby, both)
}

async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, link) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(link);
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn a_synchronous_standby_takes_over_and_nothing_is_lost() {
    let (mut world, standby, both) = with_standby("pg_synchronous").await;
    let admin = world.postgres().await;
    admin.batch_execute("ALTER SYSTEM SET synchronous_standby_names = '*'").await.unwrap();
    admin.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    eventually("the standby is waited for", async || {
        let sql = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
        admin.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == 1
    })
    .await;

    // With the pauses of production, because how long it takes is told in README.
    let worker = world.worker().set("DATABASE_URL", &both).set("RETRY_BASE", "300ms").set("RETRY_CAP", "30s");
    let worker = worker.ready().await;
    let traffic = Traffic::new(&mut StdRng::seed_from_u64(seed()), PER_SECOND * 5, 4);
    let producer = traffic.produce(&world, PER_SECOND);
    worker.until_metric("hexlane_events_total{outcome=\"applied\"}", 200.0).await;
    world.servers(|servers| servers.kill(Server::Postgres)).await;
    worker.until_ready(false).await;
    let promoted = Instant::now();
    connect(&standby.url).await.batch_execute("SELECT pg_promote()").await.unwrap();
    worker.until_ready(true).await;
    eprintln!("ready {:?} after the promotion", promoted.elapsed());
    producer.await.unwrap();
    world.drained().await;

    world.database_url = world.database_url.replace(address(&world.database_url), address(&standby.url));
    traffic.assert_landed(&world).await;
    assert_eq!(world.dead_letters().await.len(), 0);
    worker.stop().await.assert_balanced();
}

/// A standby that is behind lacks rows that were answered. They are in the streams still, however long the
/// promotion took: settled entries grow older only while the database works.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_asynchronous_standby_lacks_comes_again_by_rewinding() {
    const RETENTION: Duration = Duration::from_secs(4);
    let (mut world, standby, both) = with_standby("pg_asynchronous").await;
    let output = world.command(&["check"]).output().await.unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("warning  commits wait for none of 1 standbys"), "{said}");
    let behind = connect(&standby.url).await;
    let worker = world.worker().set("DATABASE_URL", &both).set("RETENTION", "4s").ready().await;
    world.add(0, &point("there", 1, 4.3, 52.1)).await;
    let on_standby = world.database_url.replace(address(&world.database_url), address(&standby.url));
    eventually("the standby follows", async || {
        let count = connect(&on_standby).await.query_one("SELECT count(*) FROM feature_state", &[]).await.unwrap();
        count.get::<_, i64>(0) == 1
    })
    .await;
    behind.batch_execute("ALTER SYSTEM SET primary_conninfo = ''").await.unwrap();
    behind.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    eventually("the standby receives no more", async || {
        behind.query_one("SELECT count(*) FROM pg_stat_wal_receiver", &[]).await.unwrap().get::<_, i64>(0) == 0
    })
    .await;

    let before = chrono::Utc::now() - chrono::TimeDelta::minutes(1);
    let traffic = Traffic::new(&mut StdRng::seed_from_u64(seed()), 1500, 4);
    traffic.send_all(&world).await;
    world.drained().await;
    world.servers(|servers| servers.kill(Server::Postgres)).await;
    worker.until_ready(false).await;
    // Longer than settled entries are kept while all is well.
    tokio::time::sleep(RETENTION * 2).await;
    behind.batch_execute("SELECT pg_promote()").await.unwrap();
    worker.until_ready(true).await;
    world.database_url = on_standby;
    let client = world.postgres().await;
    let count = async || client.query_one("SELECT count(*) FROM feature_state", &[]).await.unwrap().get::<_, i64>(0);
    assert_eq!(count().await, 1, "the test has to lose rows");

    // As README has it.
    worker.stop().await.assert_balanced();
    world.hexlane(&["rewind", "--to", &before.to_rfc3339()]).await;
    let worker = world.worker().set("DATABASE_URL", &both).set("RETENTION", "4s").ready().await;
    world.drained().await;
    client.batch_execute("DELETE FROM feature_state WHERE feature_id = 'there'").await.unwrap();
    traffic.until_landed(&world).await;
    worker.stop().await.assert_balanced();
}

/// It lives on, and takes no writes any more; its connections are up all the while.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_became_read_only_is_left_for_the_other_host() {
    let (mut world, standby, both) = with_standby("pg_demoted").await;
    // With the pauses of production, as above.
    let worker = world.worker().set("DATABASE_URL", &both).set("RETRY_BASE", "300ms").set("RETRY_CAP", "30s");
    let worker = worker.set("POOL_SIZE", "8").ready().await;
    let traffic = Traffic::new(&mut StdRng::seed_from_u64(seed()), PER_SECOND * 4, 4);
    let producer = traffic.produce(&world, PER_SECOND);
    worker.until_metric("hexlane_events_total{outcome=\"applied\"}", 200.0).await;
    let (old, new) = (world.postgres().await, connect(&standby.url).await);
    old.batch_execute("ALTER SYSTEM SET default_transaction_read_only = on").await.unwrap();
    old.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    worker.until_metric("hexlane_retries_total{error=\"25006\",target=\"postgres\"}", 1.0).await;
    // Nothing is written any more that it could lack.
    let position = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint";
    let received = "SELECT coalesce((pg_last_wal_replay_lsn() - '0/0')::bigint, 0)";
    eventually("the standby has everything", async || {
        let of = async |client: &tokio_postgres::Client, sql: &str| {
            client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0)
        };
        of(&new, received).await >= of(&old, position).await
    })
    .await;
    new.batch_execute("SELECT pg_promote()").await.unwrap();
    let promoted = Instant::now();
    worker.until_ready(true).await;
    eprintln!("ready {:?} after the promotion", promoted.elapsed());
    producer.await.unwrap();
    world.drained().await;
    world.database_url = world.database_url.replace(address(&world.database_url), address(&standby.url));
    traffic.until_landed(&world).await;
    worker.stop().await.assert_balanced();
}

/// The kernel takes connections for it, and it says nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_host_holds_up_one_connection_and_no_other() {
    let world = World::shared("pg_frozen_host", 1).await;
    let frozen = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    frozen.set_nonblocking(true).unwrap();
    let both = format!("{},{}", frozen.local_addr().unwrap(), address(&world.database_url));
    let url = world.database_url.replace(address(&world.database_url), &both) + "?connect_timeout=5";
    world.add(0, &point("A", 1, 4.3, 52.1)).await;
    let counts = world.worker().set("DATABASE_URL", &url).once().await;
    assert_eq!(counts.applied, 1);
    let asked = std::iter::from_fn(|| frozen.accept().ok()).count();
    assert_eq!(asked, 1, "the host that answered is asked first");
}
