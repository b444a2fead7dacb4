//! Real `hexlane worker` processes, and when they are done.

use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use redis::Value;
use tokio::process::{Child, Command};

use crate::server::{self, Servers};

const POLL: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(600);

pub struct Worker {
    child: Child,
    pid: u32,
}

/// What one process has used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    pub cpu_s: f64,
    pub peak_mib: f64,
}

/// `hexlane` itself, with the settings of the benchmark and none of the user's.
pub fn command(servers: &Servers, name: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hexlane"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("HEXLANE_")) {
        command.env_remove(name);
    }
    command
        .arg(name)
        .env("HEXLANE_REDIS_URL", &servers.redis_url)
        .env("HEXLANE_DATABASE_URL", &servers.database_url)
        .env("HEXLANE_NAMESPACE", servers.namespace())
        .env("RUST_LOG", "warn")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true);
    command
}

impl Worker {
    pub fn start(servers: &Servers, number: usize, args: &[String]) -> Self {
        let mut command = command(servers, "worker");
        command
            .args(args)
            .env("HEXLANE_WORKER_NAME", format!("bench-{number}"))
            .env("HEXLANE_ADMIN_ADDR", "127.0.0.1:0");
        let child = command.spawn().expect("the worker starts");
        let pid = child.id().expect("it has just been started");
        Self { child, pid }
    }

    pub fn used(&self) -> Used {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib: f64 = peak.and_then(|text| text.trim().strip_suffix("kB")?.trim().parse().ok()).unwrap_or(0.0);
        Used { cpu_s: server::seconds(self.pid, false), peak_mib: kib / 1024.0 }
    }

    pub async fn stop(mut self) {
        let pid = self.pid.to_string();
        Command::new("kill").args(["-s", "TERM", &pid]).status().await.expect("kill is there");
        let status = self.child.wait().await.expect("it is our child");
        assert!(status.success(), "the worker ended with {status}");
    }
}

/// Waits for what should not happen while there is work: that one of them ends.
pub async fn first_to_end(workers: &mut [Worker]) -> ExitStatus {
    let ends = workers.iter_mut().map(|worker| Box::pin(worker.child.wait()));
    futures_util::future::select_all(ends).await.0.expect("it is our child")
}

/// Entries of all shards that the group has read, and those that it has settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub read: u64,
    pub settled: u64,
}

pub async fn progress(servers: &mut Servers, shards: u16) -> Progress {
    let mut pipe = redis::pipe();
    for shard in 0..shards {
        pipe.cmd("XINFO").arg("GROUPS").arg(servers.keys().events(shard));
    }
    let replies: Vec<Value> = pipe.query_async(&mut servers.redis).await.expect("Redis answers");
    let groups = replies.iter().filter_map(|reply| reply.as_sequence()?.first()?.as_map_iter().map(Iterator::collect));
    let (mut read, mut pending) = (0, 0);
    for group in groups {
        let group: Vec<(&Value, &Value)> = group;
        let field = |name: &str| {
            let found = group.iter().find(|(key, _)| **key == Value::BulkString(name.as_bytes().to_vec()));
            match found {
                Some((_, Value::Int(count))) => count.unsigned_abs(),
                _ => 0,
            }
        };
        read += field("entries-read");
        pending += field("pending");
    }
    Progress { read, settled: read - pending }
}

/// Waits until every shard is somebody's.
pub async fn attend(servers: &mut Servers, shards: u16) {
    let patience = Instant::now() + PATIENCE;
    let owners: Vec<String> = (0..shards).map(|shard| servers.keys().owner(shard)).collect();
    loop {
        let owned: u16 =
            redis::cmd("EXISTS").arg(&owners).query_async(&mut servers.redis).await.expect("Redis answers");
        if owned == shards {
            return;
        }
        assert!(Instant::now() < patience, "only {owned} of {shards} shards are somebody's");
        tokio::time::sleep(POLL).await;
    }
}

/// From the first entry read to the last one settled; with a sample each `every`, and one at the end.
pub async fn drain(servers: &mut Servers, shards: u16, total: u64, every: Duration) -> (Duration, Vec<(f64, u64)>) {
    let patience = Instant::now() + PATIENCE;
    let mut start = Instant::now();
    let mut samples = Vec::new();
    let mut next_sample = Duration::ZERO;
    // Asking about many shards takes the server some time too.
    let poll = POLL * u32::from(shards / 64 + 1);
    loop {
        let asked = Instant::now();
        let progress = progress(servers, shards).await;
        if progress.read == 0 {
            start = asked;
        }
        let since = start.elapsed();
        if progress.settled >= total {
            samples.push((since.as_secs_f64(), progress.settled));
            return (since, samples);
        }
        if since >= next_sample {
            samples.push((since.as_secs_f64(), progress.settled));
            next_sample = since + every;
        }
        assert!(Instant::now() < patience, "not drained in time: {progress:?} of {total}");
        tokio::time::sleep(poll).await;
    }
}
