//! Sets the group back, so that entries come again that were settled.

use super::{Stream, script};
use crate::event::EntryId;
use crate::failure::Failure;

/// What became of a shard's group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rewound {
    /// It was set back; and the oldest entry that is there, if there is one.
    Back(Option<EntryId>),
    /// It has not come so far yet.
    NotNeeded,
    /// Nobody has read the shard's stream yet, or there is none.
    NothingRead,
}

impl Stream {
    /// Sets the group of a shard back to right before `first`, in one step; never forward.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn rewind(&self, shard: u16, first: EntryId) -> Result<Rewound, Failure> {
        let before = before(first);
        let mut command = script(include_str!("lua/rewind.lua"), &[self.keys.events(shard)]);
        command.arg(&*self.group).arg(before.ms).arg(before.seq);
        let (answer, oldest): (i64, String) = self.ask("setting the group back", &command).await?;
        Ok(match answer {
            1 => Rewound::Back(EntryId::parse(oldest.as_bytes())),
            0 => Rewound::NotNeeded,
            _ => Rewound::NothingRead,
        })
    }
}

/// The id right before another; before the first there is itself.
fn before(id: EntryId) -> EntryId {
    match (id.ms, id.seq) {
        (0, 0) => id,
        (ms, 0) => EntryId { ms: ms - 1, seq: u64::MAX },
        (ms, seq) => EntryId { ms, seq: seq - 1 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_id_before() {
        let id = |ms, seq| EntryId { ms, seq };
        assert_eq!(before(id(5, 3)), id(5, 2));
        assert_eq!(before(id(5, 0)), id(4, u64::MAX));
        assert_eq!(before(id(0, 0)), id(0, 0));
    }
}
