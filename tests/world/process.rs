//! Worker processes: the real binary, started, signalled, killed.

use std::fs::File;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;
use tempfile::TempDir;
use tokio::process::Child;

use super::{PATIENCE, World, eventually};

/// What a worker says last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Counts {
    pub read: u64,
    pub applied: u64,
    pub superseded: u64,
    pub stale: u64,
    pub duplicate: u64,
    pub dead_lettered: u64,
    pub released: u64,
    pub lost: u64,
}

impl Counts {
    /// Entries that came to an end.
    pub fn settled(&self) -> u64 {
        self.applied + self.superseded + self.stale + self.duplicate + self.dead_lettered
    }

    /// Nothing is lost silently: holds at every clean end.
    pub fn assert_balanced(&self) {
        assert_eq!(self.read, self.settled() + self.released + self.lost, "{self:?}");
    }
}

/// A worker that is not started yet.
pub struct WorkerCommand {
    command: tokio::process::Command,
}

impl WorkerCommand {
    pub(super) fn new(world: &World) -> Self {
        let mut command = world.command(&["worker", "--no-migrate"]);
        command
            .env("HEXLANE_ADMIN_ADDR", "127.0.0.1:0")
            .env("HEXLANE_LOG_FORMAT", "json")
            .env("HEXLANE_BLOCK", "200ms")
            .env("HEXLANE_LEASE", "1s")
            .env("HEXLANE_RENEW", "300ms");
        command.env("HEXLANE_RETRY_BASE", "50ms").env("HEXLANE_RETRY_CAP", "1s");
        Self { command }
    }

    /// An option in its environment form, `REORDER_WINDOW` for `--reorder-window`; the last one wins.
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.command.env(format!("HEXLANE_{name}"), value);
        self
    }

    /// Runs `--once` to its end; panics unless it exits with 0.
    pub async fn once(self) -> Counts {
        let mut worker = self.arg("--once").start();
        let status = worker.wait().await;
        assert!(status.success(), "{status}\n{}", worker.log());
        let counts = worker.counts();
        counts.assert_balanced();
        counts
    }

    /// Starts it and waits until it is ready.
    pub async fn ready(self) -> Worker {
        let worker = self.start();
        eventually("the worker is ready", async || worker.is_ready().await).await;
        worker
    }

    /// Starts it and goes on at once.
    pub fn start(mut self) -> Worker {
        let folder = TempDir::with_prefix("hexlane-worker-").unwrap();
        let file = |name: &str| Stdio::from(File::create(folder.path().join(name)).unwrap());
        self.command.stdin(Stdio::null()).stdout(file("stdout")).stderr(file("stderr"));
        let child = self.command.spawn().unwrap();
        Worker { child, folder }
    }

    pub fn arg(mut self, arg: &str) -> Self {
        self.command.arg(arg);
        self
    }
}

/// A running worker; killed when dropped.
pub struct Worker {
    child: Child,
    folder: TempDir,
}

impl Worker {
    /// Everything it has logged, one JSON object a line.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("stderr")).unwrap_or_default()
    }

    /// The counts it printed last (`--once`), or logged last (a signal).
    pub fn counts(&self) -> Counts {
        let stdout = std::fs::read_to_string(self.folder.path().join("stdout")).unwrap();
        if let Some(line) = stdout.lines().last() {
            return serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        }
        let log = self.log();
        let fields = log.lines().rev().find_map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            line["fields"]["counts"].as_str().map(str::to_owned)
        });
        serde_json::from_str(&fields.unwrap_or_else(|| panic!("no counts in\n{log}"))).unwrap()
    }

    /// `host:port` of its admin server, once it listens.
    pub async fn admin(&self) -> String {
        let find = || {
            self.log().lines().find_map(|line| {
                let line: serde_json::Value = serde_json::from_str(line).ok()?;
                line["fields"]["address"].as_str().map(str::to_owned)
            })
        };
        eventually("the admin server listens", async || find().is_some()).await;
        find().unwrap()
    }

    /// Status and body of a GET on its admin server; `None` while it does not answer.
    pub async fn get(&self, path: &str) -> Option<(u16, String)> {
        http_get(&self.admin().await, path).await
    }

    pub async fn is_ready(&self) -> bool {
        self.get("/readyz").await.is_some_and(|(status, _)| status == 200)
    }

    /// The value of one line of /metrics, named with its labels.
    pub async fn metric(&self, name: &str) -> Option<f64> {
        let (_, body) = self.get("/metrics").await?;
        body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    /// The most memory that it has held.
    pub fn peak_mib(&self) -> f64 {
        let pid = self.child.id().expect("the worker runs");
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB")).unwrap();
        peak.trim().parse::<f64>().unwrap() / 1024.0
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.child.id().expect("the worker runs")
    }

    /// Sends a signal by its name, such as TERM.
    pub fn signal(&self, name: &str) {
        let sent = std::process::Command::new("kill").args(["-s", name, &self.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits until /readyz says so, or says that it is not.
    pub async fn until_ready(&self, wanted: bool) {
        let what = if wanted { "ready" } else { "not ready" };
        eventually(&format!("the worker is {what}"), async || self.is_ready().await == wanted).await;
    }

    /// Waits until one line of /metrics has reached a value.
    pub async fn until_metric(&self, name: &str, at_least: f64) {
        let start = Instant::now();
        while self.metric(name).await.is_none_or(|value| value < at_least) {
            assert!(start.elapsed() < PATIENCE, "{name} does not reach {at_least}:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// SIGTERM, then its end; panics unless it exits with 0.
    pub async fn stop(mut self) -> Counts {
        self.signal("TERM");
        let status = self.wait().await;
        assert!(status.success(), "{status}\n{}", self.log());
        self.counts()
    }

    /// SIGKILL, then its end.
    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// Whether the process has not ended by itself; a frozen one runs too.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub async fn wait(&mut self) -> ExitStatus {
        tokio::time::timeout(PATIENCE, self.child.wait())
            .await
            .unwrap_or_else(|_| panic!("no end:\n{}", self.log()))
            .unwrap()
    }
}

/// Status and body of a GET; `None` while nobody answers.
pub async fn http_get(address: &str, path: &str) -> Option<(u16, String)> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let ask = async {
        let mut socket = tokio::net::TcpStream::connect(address).await?;
        // In 1.0 the body comes in one piece.
        socket.write_all(format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = tokio::time::timeout(Duration::from_secs(10), ask).await.ok()?.ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

/// A test that fails shows what its workers said.
impl Drop for Worker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("log of the worker with process id {:?}:\n{}", self.child.id(), self.log());
        }
    }
}
