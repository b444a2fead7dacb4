//! Who is let in, by what, and to what.

mod authority;
mod granted;
mod payloads;
mod pooler;
mod rights;
mod secrets;
mod tls;

use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::process::{Child, Command};

pub use authority::{Authority, Pair};

use crate::world::{eventually, free_port, in_time};

/// A program with a folder and a port of its own; killed when dropped.
pub struct Program {
    child: Child,
    pub folder: TempDir,
    pub port: u16,
}

impl Program {
    /// Starts it with the arguments that `arguments` makes of its folder and its port, as often as its port
    /// turns out to be taken, and waits until it listens.
    pub async fn start(name: &str, arguments: impl Fn(&std::path::Path, u16) -> Vec<String>) -> Self {
        for _ in 0..5 {
            let (folder, port) = (TempDir::with_prefix("hexlane-program-").unwrap(), free_port());
            let log = Stdio::from(std::fs::File::create(folder.path().join("log")).unwrap());
            let mut command = Command::new(name);
            command.args(arguments(folder.path(), port)).current_dir(folder.path());
            let mut child =
                command.stdin(Stdio::null()).stdout(log).stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap();
            let listens = async {
                while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
                    if child.try_wait().unwrap().is_some() {
                        return false;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                true
            };
            if in_time(listens).await {
                return Self { child, folder, port };
            }
            eprintln!("{name} has ended: {}", std::fs::read_to_string(folder.path().join("log")).unwrap());
        }
        panic!("{name} does not start");
    }

    /// Another one on the same port and with the same folder.
    pub async fn again(self, name: &str, arguments: impl Fn(&std::path::Path, u16) -> Vec<String>) -> Self {
        let Self { mut child, folder, port } = self;
        child.kill().await.unwrap();
        let start = || {
            let mut command = Command::new(name);
            command.args(arguments(folder.path(), port)).current_dir(folder.path());
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap()
        };
        let child = start();
        eventually("it listens again", async || tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok())
            .await;
        Self { child, folder, port }
    }

    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }
}

/// What a command of the binary has ended with.
pub async fn ended(mut command: Command) -> (i32, String) {
    let output = in_time(command.output()).await.unwrap();
    let words = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(words).unwrap())
}
