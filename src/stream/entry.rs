//! Entries, parsed from plain replies: bytes stay bytes, and one odd entry costs itself only.

use redis::Value;

use crate::event::EntryId;
use crate::trace::Traced;

/// The field that holds the event.
const EVENT_FIELD: &[u8] = b"event";
/// Where the producer's trace goes on; see <https://www.w3.org/TR/trace-context/>.
const PARENT_FIELD: &[u8] = b"traceparent";
const STATE_FIELD: &[u8] = b"tracestate";

/// One stream entry as the server sent it.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its id.
    pub id: EntryId,
    /// What its field `event` holds.
    pub payload: Payload,
    /// Whose trace it belongs to.
    pub traced: Option<Box<Traced>>,
}

/// The field `event`.
#[derive(Clone, Debug, PartialEq)]
pub enum Payload {
    /// The event's text.
    One(Vec<u8>),
    /// There is no such field.
    Absent,
    /// It stands there more than once.
    Repeated,
}

impl Entry {
    /// Bytes held in memory for it.
    pub fn size(&self) -> usize {
        let payload = match &self.payload {
            Payload::One(bytes) => bytes.len(),
            Payload::Absent | Payload::Repeated => 0,
        };
        payload + 64 + self.traced.as_ref().map_or(0, |_| Traced::SIZE)
    }
}

/// The entries of one stream from the reply of XREADGROUP over that one stream.
/// `Nil` (nothing came within the block time) is no entry.
pub(super) fn from_read(reply: Value) -> Vec<Entry> {
    let Some(stream) = array(reply).into_iter().next() else { return Vec::new() };
    array(stream).into_iter().nth(1).map(from_range).unwrap_or_default()
}

/// The entries from the reply of XRANGE.
pub(super) fn from_range(reply: Value) -> Vec<Entry> {
    array(reply).into_iter().filter_map(entry).collect()
}

fn entry(value: Value) -> Option<Entry> {
    let mut parts = array(value).into_iter();
    let id = entry_id(&parts.next()?)?;
    let mut fields = array(parts.next().unwrap_or_default()).into_iter();
    let mut payload = Payload::Absent;
    let (mut traceparent, mut tracestate) = (None, None);
    while let (Some(Value::BulkString(name)), Some(Value::BulkString(value))) = (fields.next(), fields.next()) {
        match name.as_slice() {
            EVENT_FIELD => {
                payload = if payload == Payload::Absent { Payload::One(value) } else { Payload::Repeated };
            }
            PARENT_FIELD => traceparent = Some(value),
            STATE_FIELD => tracestate = Some(value),
            _ => {}
        }
    }
    let traced = traceparent.and_then(|parent| Traced::from_fields(&parent, tracestate.as_deref()));
    Some(Entry { id, payload, traced })
}

pub(super) fn entry_id(value: &Value) -> Option<EntryId> {
    match value {
        Value::BulkString(bytes) => EntryId::parse(bytes),
        Value::SimpleString(text) => EntryId::parse(text.as_bytes()),
        _ => None,
    }
}

pub(super) fn array(value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items,
        _ => Vec::new(),
    }
}
