//! What `hexlane check` asks of Redis.

use std::collections::HashMap;

use super::Stream;
use crate::failure::Failure;

/// How a server is set up.
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    /// Fields of INFO, by their names.
    info: HashMap<String, String>,
    /// The setting `appendfsync`, where it was asked for and this user may know it.
    pub appendfsync: Option<String>,
    /// The server's clock less ours, in microseconds.
    pub clock_ahead_us: i64,
}

impl Inspection {
    /// What INFO answers.
    pub fn of(info: &str) -> Self {
        let field = |line: &str| line.trim().split_once(':').map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self { info: info.lines().filter_map(field).collect(), ..Self::default() }
    }

    /// A field of INFO; empty where the server does not tell it.
    pub fn info(&self, name: &str) -> &str {
        self.info.get(name).map_or("", String::as_str)
    }
}

impl Stream {
    /// Asks for everything at once. Changes nothing.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn inspect(&self) -> Result<Inspection, Failure> {
        let mut command = redis::cmd("INFO");
        command.arg("server").arg("memory").arg("persistence").arg("replication");
        let text: String = self.ask("inspecting the server", &command).await?;
        self.sync_clock().await?;
        Ok(Inspection {
            clock_ahead_us: self.clock_offset_us.load(std::sync::atomic::Ordering::Relaxed),
            ..Inspection::of(&text)
        })
    }

    /// The setting `appendfsync`, if this user may know it: few may, and an attempt stands in the server's ACL LOG.
    pub async fn appendfsync(&self) -> Option<String> {
        let mut setting = redis::cmd("CONFIG");
        setting.arg("GET").arg("appendfsync");
        let mut answer: Vec<String> = self.ask("asking for a setting", &setting).await.ok()?;
        answer.pop()
    }
}
