//! The producer's end: entries appended to their shards.

use super::Stream;
use crate::failure::Failure;

impl Stream {
    /// Appends events in one pipeline, in order.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`]: some, none or all of the events may have been appended.
    /// Appending them again is harmless.
    pub async fn append(&self, events: &[(u16, Vec<u8>)]) -> Result<(), Failure> {
        let doing = "publishing";
        if events.is_empty() {
            return Ok(());
        }
        let mut pipe = redis::pipe();
        for (shard, event) in events {
            pipe.cmd("XADD").arg(self.keys().events(*shard)).arg("*").arg("event").arg(event).ignore();
        }
        self.send(doing, &pipe, || true).await
    }
}
