//! Rules and dashboard, asked of a real Prometheus that scrapes real workers.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::world::{Server, Traffic, World, delete, eventually, free_port, http_get, point};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/observability")
}

fn program(name: &str) -> PathBuf {
    let folder = std::env::var("HEXLANE_TEST_PROMETHEUS").expect("run the tests by scripts/test");
    Path::new(&folder).join(name)
}

/// A Prometheus of this test's own; killed when dropped.
struct Prometheus {
    _process: tokio::process::Child,
    _folder: tempfile::TempDir,
    address: String,
}

impl Prometheus {
    /// The rules as they are shipped, but for times: minutes become seconds.
    async fn start(targets: &[String]) -> Self {
        let folder_of_test = tempfile::TempDir::with_prefix("hexlane-prometheus-").unwrap();
        let rules = std::fs::read_to_string(folder().join("rules.yml")).unwrap();
        let rules = ["for: 30s", "for: 1m", "for: 5m", "for: 10m"]
            .iter()
            .fold(rules, |rules, wait| rules.replace(wait, "for: 2s"))
            .replace("[1m]", "[5s]")
            .replace("[10m]", "[5s]")
            .replace("[5m]", "[10s]")
            .replace("offset 5m", "offset 10s")
            .replace("[1h]", "[10s]")
            .replace("offset 1h", "offset 10s")
            .replace("(hexlane_oldest_pending_seconds) > 60", "(hexlane_oldest_pending_seconds) > 2")
            .replace("hexlane:lag > 10000", "hexlane:lag > 500");
        std::fs::write(folder_of_test.path().join("rules.yml"), rules).unwrap();
        let config = format!(
            "global: {{scrape_interval: 500ms, evaluation_interval: 500ms}}\nrule_files: [rules.yml]\n\
             scrape_configs: [{{job_name: hexlane, static_configs: [{{targets: {targets:?}}}]}}]\n"
        );
        std::fs::write(folder_of_test.path().join("prometheus.yml"), config).unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let process = tokio::process::Command::new(program("prometheus"))
            .arg(format!("--config.file={}", folder_of_test.path().join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", folder_of_test.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let prometheus = Self { _process: process, _folder: folder_of_test, address };
        let is_ready =
            async || http_get(&prometheus.address, "/-/ready").await.is_some_and(|(status, _)| status == 200);
        eventually("Prometheus is ready", is_ready).await;
        prometheus
    }

    async fn query(&self, expression: &str) -> Vec<Value> {
        let encoded: String = expression.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let (status, body) = http_get(&self.address, &format!("/api/v1/query?query={encoded}")).await.unwrap();
        assert_eq!(status, 200, "{expression}: {body}");
        let answer: Value = serde_json::from_str(&body).unwrap();
        answer["data"]["result"].as_array().unwrap().clone()
    }

    async fn firing(&self) -> Vec<String> {
        let alerts = self.query("ALERTS{alertstate=\"firing\"}").await;
        let mut names: Vec<String> =
            alerts.iter().map(|alert| alert["metric"]["alertname"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names.dedup();
        names
    }
}

#[test]
fn the_rules_pass_their_own_tests() {
    for arguments in
        [["check", "rules", "rules.yml"], ["test", "rules", "rules_test.yml"], ["check", "config", "prometheus.yml"]]
    {
        let output = std::process::Command::new(program("promtool")).args(arguments).current_dir(folder()).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

/// Every expression of the dashboard.
fn panels() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(folder().join("grafana/dashboards/hexlane.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    panels
        .flat_map(|panel| {
            let title = panel["title"].as_str().unwrap();
            let targets = panel["targets"].as_array().unwrap().iter();
            targets.map(|target| (title.to_owned(), target["expr"].as_str().unwrap().to_owned()))
        })
        .collect()
}

/// Every alert there is.
fn alerts() -> Vec<String> {
    let rules = std::fs::read_to_string(folder().join("rules.yml")).unwrap();
    let mut names: Vec<String> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ").map(str::to_owned)).collect();
    names.sort();
    names
}

/// One after the other, whatever can go wrong does.
#[tokio::test(flavor = "multi_thread")]
async fn panels_show_something_and_each_alert_fires_for_its_own_failure_only() {
    let world = World::private("alerts", 4).await;
    let address = format!("127.0.0.1:{}", free_port());
    let start = || {
        let settings = [
            ("STATEMENT_TIMEOUT", "1s"),
            ("RETRY_CAP", "200ms"),
            ("RETRY_BASE", "100ms"),
            // A lease that no pause of a busy machine outlasts.
            ("LEASE", "5s"),
            ("RENEW", "1s"),
            ("BATCH_ROWS", "100"),
            ("ADMIN_ADDR", &*address),
        ];
        settings.iter().fold(world.worker(), |command, (name, value)| command.set(name, value))
    };
    let worker = start().ready().await;
    let prometheus = Prometheus::start(std::slice::from_ref(&address)).await;
    // Before its first scrape nobody was there.
    let is_calm = async || prometheus.query("up == 1").await.len() == 1 && prometheus.firing().await.is_empty();
    eventually("the worker is seen", is_calm).await;
    let calm = std::time::Instant::now();
    let fires = async |wanted: &[&str]| {
        eventually(&format!("{wanted:?} fire"), async || prometheus.firing().await == wanted).await;
    };
    let is_over = async || eventually("it is over", async || prometheus.firing().await.is_empty()).await;
    let add_to_all = async |name: &str| {
        for shard in 0..4 {
            world.add(shard, &point(&format!("{name} {shard}"), 1, 4.3, 52.1)).await;
        }
    };

    // All of it comes twice, the second time when everything is there already: nothing to be alarmed at.
    let mut traffic = Traffic::default();
    for n in 0..5000 {
        let text = traffic.expect(&format!("F{n}"), 1, "create", n, "");
        traffic.sends.push((u16::try_from(n % 4).unwrap(), text));
    }
    let traffic = Arc::new(traffic);
    traffic.produce(&world, 1500).await.unwrap();
    world.drained().await;
    let again = traffic.produce(&world, 1500);
    eventually("every panel shows something", async || {
        for (title, expression) in panels() {
            // What is compared shows faults only, and there are none.
            if !expression.contains(" > ") && prometheus.query(&expression).await.is_empty() {
                eprintln!("{title}: nothing yet");
                return false;
            }
        }
        true
    })
    .await;
    again.await.unwrap();
    world.drained().await;
    let half = "sum(hexlane_events_total{outcome=\"stale\"}) >= sum(hexlane_events_total) / 2";
    eventually("half of it is stale", async || prometheus.query(half).await.len() == 1).await;
    let fired_within =
        |seconds: u64| format!("count by (alertname) (count_over_time(ALERTS{{alertstate=\"firing\"}}[{seconds}s]))");
    assert_eq!(prometheus.query(&fired_within(calm.elapsed().as_secs())).await, Vec::<Value>::new());

    // Somebody locks the table.
    let somebody = world.postgres().await;
    somebody.batch_execute("BEGIN; LOCK TABLE feature_state").await.unwrap();
    add_to_all("locked").await;
    fires(&["HexlaneNoCommits", "HexlaneOldestPending", "HexlaneRetries"]).await;
    for (title, expression) in panels() {
        if expression.contains("retries") || expression.contains("oldest_pending") {
            assert!(!prometheus.query(&expression).await.is_empty(), "{title}");
        }
    }
    somebody.batch_execute("COMMIT").await.unwrap();
    drop(somebody);
    is_over().await;

    // Somebody sends nonsense, and what the database refuses: the producers' fault, and no server's.
    world.sql("ALTER TABLE feature_state ADD CONSTRAINT not_here CHECK (feature_id <> 'refused 1')").await;
    world.add(1, b"nonsense").await;
    add_to_all("refused").await;
    fires(&["HexlaneDeadLetters"]).await;
    let reasons = "ALERTS{alertstate=\"firing\",reason=~\"not_json|rejected_by_database\"}";
    eventually("both reasons are told", async || prometheus.query(reasons).await.len() == 2).await;
    for (title, expression) in panels().iter().filter(|(_, expression)| expression.contains("dead_letter")) {
        assert!(!prometheus.query(expression).await.is_empty(), "{title}");
    }
    is_over().await;

    // PostgreSQL goes, and then Redis.
    world.servers(|servers| servers.stop(Server::Postgres)).await;
    add_to_all("no postgres").await;
    fires(&["HexlaneNoCommits", "HexlaneOldestPending", "HexlaneRetries"]).await;
    world.servers(|servers| servers.restart(Server::Postgres)).await;
    is_over().await;
    world.servers(|servers| servers.stop(Server::Redis)).await;
    fires(&["HexlaneRetries", "HexlaneShardsUnowned"]).await;
    let target = "ALERTS{alertname=\"HexlaneRetries\",alertstate=\"firing\",target=\"redis\"}";
    assert!(!prometheus.query(target).await.is_empty());
    world.servers(|servers| servers.restart(Server::Redis)).await;
    is_over().await;
    // Our own connection notices with its first command.
    let answers = async || redis::cmd("PING").query_async::<String>(&mut world.redis()).await.is_ok();
    eventually("Redis answers us again", answers).await;

    // A shard is a worker's that nobody hears of.
    let _: redis::Value = world.ask(&format!("SET {} ghost PX 600000", world.owner_key(2))).await;
    fires(&["HexlaneShardsUnowned"]).await;
    let _: redis::Value = world.ask(&format!("DEL {}", world.owner_key(2))).await;
    is_over().await;

    // Nobody is left; and who comes while PostgreSQL is away cannot take over.
    worker.stop().await.assert_balanced();
    fires(&["HexlaneNoWorker"]).await;
    world.servers(|servers| servers.stop(Server::Postgres)).await;
    let worker = start().start();
    fires(&["HexlaneRetries", "HexlaneShardsUnowned"]).await;
    world.servers(|servers| servers.restart(Server::Postgres)).await;
    worker.until_ready(true).await;
    is_over().await;

    // One place gets everything.
    let busy: Vec<Vec<u8>> = (0..100).map(|n| point(&format!("busy {n}"), 1, 4.3, 52.1)).collect();
    let mut n = 0;
    while prometheus.firing().await != ["HexlaneSkew"] {
        n += 1;
        assert!(n < 600, "the skew is not told");
        world.add_together(3, &busy).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    is_over().await;

    // More comes than a slow database can write; what was read waits long, too.
    world
        .sql(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM pg_sleep(0.005); RETURN new; END$$;
             CREATE TRIGGER slow BEFORE INSERT OR UPDATE ON feature_state FOR EACH ROW EXECUTE FUNCTION slow()",
        )
        .await;
    let told = async || prometheus.firing().await.contains(&"HexlaneLagGrows".to_owned());
    let mut n = 0;
    while !told().await {
        n += 1;
        assert!(n < 300, "the lag is not told");
        for shard in 0..4 {
            let some: Vec<_> = (0..100).map(|m| point(&format!("{shard} {n} {m}"), 1, 4.3, 52.1)).collect();
            world.add_together(shard, &some).await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(!prometheus.firing().await.contains(&"HexlaneNoCommits".to_owned()), "it is slow, and goes on");
    world.sql("DROP TRIGGER slow ON feature_state").await;
    world.drained().await;
    is_over().await;
    worker.stop().await.assert_balanced();

    // Somebody trims by length what nobody has read.
    world.add_together(0, &(0..5).map(|n| delete(&format!("unread {n}"), 1)).collect::<Vec<_>>()).await;
    let _: i64 = world.ask(&format!("XTRIM {} MAXLEN 0", world.events_key(0))).await;
    let worker = start().ready().await;
    let missing = async || prometheus.firing().await.contains(&"HexlaneEventsMissing".to_owned());
    eventually("the gap is told", missing).await;
    worker.stop().await.assert_balanced();

    let fired = prometheus.query(&fired_within(3600)).await;
    let mut fired: Vec<&str> = fired.iter().map(|row| row["metric"]["alertname"].as_str().unwrap()).collect();
    fired.sort_unstable();
    assert_eq!(fired, alerts(), "every alert there is has fired");
}
