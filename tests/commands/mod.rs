//! The command line: what each command prints, refuses and answers with its exit code.

mod check;
mod dead;
mod migrate;
mod passwords;
mod prune;
mod publish;
mod publish_geojson;
mod rewind;
mod settings;
mod shard;
mod status;

use std::process::Stdio;

use tokio::io::AsyncWriteExt;

use crate::world::PATIENCE;

/// The end of a command.
#[derive(Debug)]
struct Ended {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Ended {
    /// Everything that it said.
    fn words(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

/// Runs a command to its end with `input` on stdin.
async fn run(mut command: tokio::process::Command, input: &[u8]) -> Ended {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let send = async {
        // A command that reads no input, or not all of it, closes its end.
        let _ = stdin.write_all(input).await;
        drop(stdin);
    };
    let ended = async { tokio::join!(send, child.wait_with_output()).1.unwrap() };
    let output = tokio::time::timeout(PATIENCE, ended).await.expect("the command ends");
    Ended {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Lines of a file.
fn lines(parts: &[&[u8]]) -> Vec<u8> {
    parts.iter().flat_map(|part| [*part, b"\n"].concat()).collect()
}
