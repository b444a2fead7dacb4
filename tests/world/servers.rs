//! Private servers, through the same script that people use.

use std::path::Path;
use std::process::Command;

/// One of the two servers.
#[derive(Clone, Copy, Debug)]
pub enum Server {
    Redis,
    Postgres,
}

impl Server {
    fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Postgres => "postgres",
        }
    }
}

/// A Redis and a PostgreSQL of one test's own; stopped and removed with it. Every call blocks.
pub struct Servers {
    folder: tempfile::TempDir,
    pub redis_url: String,
    pub database_url: String,
}

impl Servers {
    pub fn start() -> Self {
        let folder = tempfile::TempDir::with_prefix("hexlane-test-").unwrap();
        let output = run(folder.path(), &["start"]);
        let line = |name: &str| {
            let found = output.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            found.unwrap_or_else(|| panic!("no {name} in {output}")).to_owned()
        };
        Self { redis_url: line("HEXLANE_REDIS_URL"), database_url: line("HEXLANE_DATABASE_URL"), folder }
    }

    /// A second PostgreSQL that follows the first: its folder goes with it.
    pub fn standby(&self) -> Standby {
        let folder = tempfile::TempDir::with_prefix("hexlane-test-").unwrap();
        let output = run(folder.path(), &["standby", self.folder.path().to_str().unwrap()]);
        let url = output.lines().find_map(|line| line.strip_prefix("HEXLANE_DATABASE_URL=")).unwrap();
        Standby { url: url.to_owned(), folder }
    }

    /// An orderly stop.
    pub fn stop(&self, server: Server) {
        run(self.folder.path(), &["stop", server.name()]);
    }

    /// SIGKILL.
    pub fn kill(&self, server: Server) {
        run(self.folder.path(), &["kill", server.name()]);
    }

    /// SIGSTOP to all its processes, until the answer is dropped.
    pub fn freeze(&self, server: Server) -> Frozen {
        let noted = std::fs::read_to_string(self.folder.path().join(format!("{}.pid", server.name()))).unwrap();
        let main = noted.split(' ').next().unwrap().to_owned();
        let mut frozen = Frozen { pids: vec![main.clone()] };
        // The main process first, or it would go on to start others.
        signal("STOP", &frozen.pids);
        let children = Command::new("ps").args(["-o", "pid=", "--ppid", &main]).output().unwrap();
        let children = String::from_utf8(children.stdout).unwrap();
        frozen.pids.extend(children.split_whitespace().map(str::to_owned));
        signal("STOP", &frozen.pids);
        frozen
    }

    /// On the same port, with the same data.
    pub fn restart(&self, server: Server) {
        run(self.folder.path(), &["start", server.name()]);
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        // Before the folder goes, or nobody knows the processes any more.
        run(self.folder.path(), &["stop", "--purge"]);
    }
}

/// A PostgreSQL that follows another one.
pub struct Standby {
    /// Of its database `hexlane`.
    pub url: String,
    folder: tempfile::TempDir,
}

impl Drop for Standby {
    fn drop(&mut self) {
        run(self.folder.path(), &["stop", "--purge"]);
    }
}

/// A server that does not answer and does not go away.
pub struct Frozen {
    pids: Vec<String>,
}

impl Drop for Frozen {
    fn drop(&mut self) {
        signal("CONT", &self.pids);
    }
}

/// A process that has ended meanwhile is no error.
fn signal(name: &str, pids: &[String]) {
    Command::new("kill").args(["-s", name]).args(pids).status().unwrap();
}

fn run(folder: &Path, args: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/servers");
    let output = Command::new(script).arg(folder).args(args).env("REDIS_APPENDFSYNC", "always").output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "scripts/servers {args:?}: {}\n{stderr}", output.status);
    String::from_utf8(output.stdout).unwrap()
}
