//! PgBouncer in transaction mode between worker and database: each transaction may get another connection.

use std::path::Path;

use rand::SeedableRng;
use rand::rngs::StdRng;

use super::{Program, ended};
use crate::world::{Traffic, World, in_time, point, seed};

fn config(folder: &Path, port: u16, server: &str) -> Vec<String> {
    let (_, place) = server.split_once('@').unwrap();
    let (address, _) = place.split_once('/').unwrap();
    let (host, server_port) = address.split_once(':').unwrap();
    let text = format!(
        "[databases]\n* = host={host} port={server_port} user=postgres\n\
         [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\npool_mode = transaction\n\
         default_pool_size = 3\nmax_client_conn = 200\nunix_socket_dir =\nserver_idle_timeout = 1\nserver_login_retry = 1\n"
    );
    let path = folder.join("pgbouncer.ini");
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    // It refuses to run as root, and then has to be able to read its file.
    if std::fs::metadata("/proc/self").is_ok_and(|us| std::os::unix::fs::MetadataExt::uid(&us) == 0) {
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder, everybody).unwrap();
        return ["-u", "postgres", &path].map(str::to_owned).to_vec();
    }
    vec![path]
}

/// From now on this world's database is reached through a pooler, for as long as that lives; and what its own URL is.
async fn through_pooler(world: &mut World) -> (Program, String) {
    let direct = world.database_url.clone();
    let bouncer = Program::start("pgbouncer", |folder, port| config(folder, port, &direct)).await;
    let (_, database) = direct.rsplit_once('/').unwrap();
    world.database_url = format!("postgres://postgres@127.0.0.1:{}/{database}", bouncer.port);
    (bouncer, direct)
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_go_on_through_a_pooler_that_shares_connections_and_is_restarted() {
    let mut world = World::shared("pooler", 4).await;
    let (bouncer, direct) = through_pooler(&mut world).await;
    // Even the schema can be looked at through it.
    assert!(world.hexlane(&["migrate"]).await.contains("0 migrations applied"));

    let traffic = Traffic::new(&mut StdRng::seed_from_u64(seed()), 6000, 4);
    let workers: Vec<_> = ["a", "b", "c"]
        .map(|name| world.worker().set("WORKER_NAME", name).set("TRANSACTION_POOLING", "1").set("POOL_SIZE", "3"))
        .into_iter()
        .collect();
    let mut running = Vec::new();
    for worker in workers {
        running.push(worker.ready().await);
    }
    let producer = traffic.produce(&world, 3000);
    // The ledger's statement.
    for number in 0..300 {
        let id = format!(",\"event_id\":\"id-{}\"", number / 2);
        let geometry = format!("{{\"type\":\"Point\",\"coordinates\":[4,{}]}}", number % 50);
        let event = crate::world::event(&format!("ledger-{}", number / 2), 1, "create", &geometry, &id);
        world.add(u16::try_from(number % 4).unwrap(), &event).await;
    }
    let _bouncer = in_time(bouncer.again("pgbouncer", |folder, port| config(folder, port, &direct))).await;
    producer.await.unwrap();
    world.drained().await;

    let pooled = std::mem::replace(&mut world.database_url, direct);
    let admin = world.postgres().await;
    let gone = admin.execute("DELETE FROM feature_state WHERE feature_id LIKE 'ledger-%'", &[]).await.unwrap();
    assert_eq!(gone, 150);
    traffic.assert_landed(&world).await;
    assert_eq!(world.dead_letters().await.len(), 0);
    let known: i64 = admin
        .query_one("SELECT count(*) FROM processed_event WHERE feature_id LIKE 'ledger-%'", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(known, 150);
    // Nothing is left open on the connections that others are given.
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'";
    assert_eq!(admin.query_one(open, &[]).await.unwrap().get::<_, i64>(0), 0);
    for worker in running {
        worker.stop().await.assert_balanced();
    }

    // The other commands too; and `check` knows what the pooler forgets.
    world.database_url = pooled;
    let prune = ["prune", "--tombstone-retention", "1ms", "--dedup-window", "1d"];
    let (code, said) = ended(world.command(&prune)).await;
    assert!(code == 1 && said.contains("say --transaction-pooling"), "{said}");
    world.hexlane(&[&prune[..], &["--transaction-pooling"]].concat()).await;
    let (code, said) = ended(world.command(&["check", "--transaction-pooling"])).await;
    assert!(code == 3 || code == 0, "{said}");
    assert!(said.contains("statement_timeout is 0, and through a pooler"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_schema_is_brought_up_through_it_by_one_of_several() {
    let mut world = World::shared("pooler_migrate", 1).await;
    let fresh = format!("{}_fresh", world.namespace);
    world.sql(&format!("CREATE DATABASE \"{fresh}\"")).await;
    let (_bouncer, _) = through_pooler(&mut world).await;
    world.database_url = world.database_url.replace(&format!("/{}", world.namespace), &format!("/{fresh}"));
    let (first, second, third) =
        tokio::join!(world.hexlane(&["migrate"]), world.hexlane(&["migrate"]), world.hexlane(&["migrate"]));
    let applied = [first, second, third].iter().filter(|said| !said.contains("0 migrations applied")).count();
    assert_eq!(applied, 1);
    world.add(0, &point("A", 1, 4.3, 52.1)).await;
    assert_eq!(world.worker().set("TRANSACTION_POOLING", "1").once().await.applied, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_was_not_told_of_is_named() {
    let mut world = World::shared("pooler_untold", 4).await;
    let (_bouncer, _) = through_pooler(&mut world).await;
    let (code, said) = ended(world.command(&["worker", "--once", "--admin-addr", "127.0.0.1:0"])).await;
    assert!(code == 1 && said.contains("say --transaction-pooling"), "{said}");
    let (code, said) = ended(world.command(&["check"])).await;
    assert!(code == 1 && said.contains("say --transaction-pooling"), "{said}");
}

/// A row that crashes its backend: the pooler lives on, and says so in words of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_ends_its_connection_is_found_behind_a_pooler_too() {
    let mut world = World::private("pooler_bomb", 1).await;
    world
        .sql(
            "CREATE FUNCTION bomb() RETURNS trigger LANGUAGE plpgsql AS
                $$BEGIN COPY (SELECT 1) TO PROGRAM 'kill -9 $PPID'; RETURN new; END$$;
             CREATE TRIGGER bomb BEFORE INSERT OR UPDATE ON feature_state FOR EACH ROW
                WHEN (new.feature_id = 'bomb') EXECUTE FUNCTION bomb()",
        )
        .await;
    let (_bouncer, direct) = through_pooler(&mut world).await;
    let worker = world.worker().set("TRANSACTION_POOLING", "1").set("RETRY_CAP", "200ms");
    let worker = worker.ready().await;
    for name in ["a", "bomb", "b"] {
        world.add(0, &point(name, 1, 4.3, 52.1)).await;
    }
    world.drained().await;
    let letters = world.dead_letters().await;
    assert_eq!(letters.iter().map(|letter| letter.text("dead:feature_id")).collect::<Vec<_>>(), ["bomb"]);
    world.database_url = direct;
    for name in ["a", "b"] {
        assert_eq!(world.state(name).await, Some((1, "update".into())));
    }
    worker.stop().await.assert_balanced();
}
