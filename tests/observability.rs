//! Rules and dashboard, asked of a real Prometheus that scrapes real workers.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

use crate::world::{Traffic, World, delete, eventually, free_port, http_get, point, seed};

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
            .replace("(hexlane_oldest_pending_seconds) > 60", "(hexlane_oldest_pending_seconds) > 2");
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
    for arguments in [["check", "rules", "rules.yml"], ["test", "rules", "rules_test.yml"]] {
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

#[tokio::test(flavor = "multi_thread")]
async fn panels_show_something_and_each_alert_fires_for_its_own_failure_only() {
    let world = World::shared("alerts", 4).await;
    let settings = [("STATEMENT_TIMEOUT", "1s"), ("RETRY_CAP", "200ms"), ("RETRY_BASE", "100ms")];
    let command = settings.iter().fold(world.worker(), |command, (name, value)| command.set(name, value));
    let worker = command.ready().await;
    let prometheus = Prometheus::start(&[worker.admin().await]).await;

    // All of it comes twice: nothing to be alarmed at.
    let mut rng = rand::SeedableRng::seed_from_u64(seed());
    let traffic = Traffic::new(&mut rng, 8000, 4);
    let sending = [traffic.produce(&world, 1000), traffic.produce(&world, 1000)];
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
    let late = "sum(hexlane_events_total{outcome=~\"stale|superseded|duplicate\"}) > 2000";
    eventually("much is late", async || prometheus.query(late).await.len() == 1).await;
    assert_eq!(prometheus.firing().await, Vec::<String>::new());
    for sent in sending {
        sent.await.unwrap();
    }
    world.drained().await;
    assert_eq!(prometheus.firing().await, Vec::<String>::new());

    // Somebody locks the table.
    let somebody = world.postgres().await;
    somebody.batch_execute("BEGIN; LOCK TABLE feature_state").await.unwrap();
    for shard in 0..4 {
        world.add(shard, &point(&format!("waits {shard}"), 1, 4.3, 52.1)).await;
    }
    let locked = ["HexlaneNoCommits", "HexlaneOldestPending", "HexlaneRetries"];
    eventually("the lock is told", async || prometheus.firing().await == locked).await;
    for (title, expression) in panels() {
        if expression.contains("retries") || expression.contains("oldest_pending") {
            assert!(!prometheus.query(&expression).await.is_empty(), "{title}");
        }
    }
    somebody.batch_execute("COMMIT").await.unwrap();
    eventually("and over", async || prometheus.firing().await.is_empty()).await;

    // Somebody sends nonsense.
    world.add(1, b"nonsense").await;
    eventually("the dead letter is told", async || prometheus.firing().await == ["HexlaneDeadLetters"]).await;
    for (title, expression) in panels().iter().filter(|(_, expression)| expression.contains("dead_letter")) {
        assert!(!prometheus.query(expression).await.is_empty(), "{title}");
    }

    // A shard is a worker's that nobody hears of.
    let unowned = async || prometheus.firing().await.contains(&"HexlaneShardsUnowned".to_owned());
    let _: redis::Value = world.ask(&format!("SET {} ghost PX 600000", world.owner_key(2))).await;
    eventually("the shard is told", unowned).await;
    let _: redis::Value = world.ask(&format!("DEL {}", world.owner_key(2))).await;
    eventually("and taken", async || !unowned().await).await;

    // Somebody trims by length what nobody has read, and then there is nobody left.
    worker.stop().await.assert_balanced();
    let alone = async || prometheus.firing().await.contains(&"HexlaneNoWorker".to_owned());
    eventually("nobody is left", alone).await;
    world.add_together(0, &(0..5).map(|n| delete(&format!("unread {n}"), 1)).collect::<Vec<_>>()).await;
    let _: i64 = world.ask(&format!("XTRIM {} MAXLEN 0", world.events_key(0))).await;
    let worker = world.worker().ready().await;
    worker.until_metric("hexlane_missing_total", 5.0).await;
}
