//! Which dead letters are meant.

use std::time::Duration;

use crate::cli::FilterArgs;
use crate::event::{EntryId, Reason};
use crate::stream::dead::Letter;

pub(super) struct Filter {
    reasons: Vec<Reason>,
    features: Vec<String>,
    ids: Vec<EntryId>,
    /// The ids between which letters are old and new enough, in the form of XRANGE.
    pub(super) start: String,
    pub(super) end: String,
}

impl Filter {
    pub(super) fn new(args: FilterArgs, now_ms: i64) -> Self {
        let ago = |age: Duration| now_ms.saturating_sub(i64::try_from(age.as_millis()).unwrap_or(i64::MAX)).max(0);
        Self {
            reasons: args.reason,
            features: args.feature,
            ids: args.id,
            start: args.newer_than.map_or_else(|| "-".to_owned(), |age| ago(age).to_string()),
            end: ago(args.older_than.unwrap_or_default()).to_string(),
        }
    }

    pub(super) fn fits(&self, letter: &Letter) -> bool {
        let about = |name| letter.about(name).unwrap_or_default();
        let source = EntryId::parse(about("source_id").as_bytes());
        (self.reasons.is_empty() || self.reasons.iter().any(|reason| reason.as_str() == about("reason")))
            && (self.features.is_empty()
                || letter.about("feature_id").is_some_and(|id| self.features.iter().any(|f| f == id)))
            && (self.ids.is_empty() || self.ids.iter().any(|id| *id == letter.id || Some(*id) == source))
    }
}
