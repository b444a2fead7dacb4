//! Reads the members of a JSON object without building a tree of it.

use std::borrow::Cow;
use std::fmt;

use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// How deep brackets may nest in a payload.
pub(crate) const MAX_DEPTH: usize = 128;

/// The members of interest of one object, in the order of the names asked for, as they are written.
pub(crate) struct Members<'t, 'n, const N: usize> {
    pub values: [Option<&'t RawValue>; N],
    /// A name that stood twice; the first value is kept.
    pub twice: Option<&'n str>,
}

/// Reads `text`, which has to be one JSON object. What was read up to an error is in `members` all
/// the same.
///
/// The whole text is checked against the grammar of RFC 8259, skipped members included; names may
/// be written with escapes. Does not recurse, however deep the text nests.
pub(crate) fn members<'t, 'n, const N: usize>(
    text: &'t str,
    names: &[&'n str; N],
) -> (Members<'t, 'n, N>, serde_json::Result<()>) {
    let mut members = Members { values: [None; N], twice: None };
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let result = deserializer.deserialize_map(Collect { names, members: &mut members, expected: 0 });
    let result = result.and_then(|()| deserializer.end());
    (members, result)
}

struct Collect<'m, 't, 'n, const N: usize> {
    names: &'m [&'n str; N],
    members: &'m mut Members<'t, 'n, N>,
    /// Where the next name is looked for first: producers write members in one order.
    expected: usize,
}

impl<const N: usize> Collect<'_, '_, '_, N> {
    fn place_of(&mut self, name: &str) -> Option<usize> {
        let (before, after) = self.names.split_at_checked(self.expected)?;
        let found = after.iter().position(|known| *known == name).map(|place| place + before.len());
        let place = found.or_else(|| before.iter().position(|known| *known == name))?;
        self.expected = place + 1;
        Some(place)
    }
}

impl<'t, const N: usize> Visitor<'t> for Collect<'_, 't, '_, N> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'t>>(mut self, mut map: A) -> Result<(), A::Error> {
        // Names are taken raw: a lone surrogate in a name that is none of ours is no error.
        while let Some(written) = map.next_key::<&'t RawValue>()? {
            let place = string(written).and_then(|name| self.place_of(&name));
            match place.and_then(|place| Some((self.names.get(place)?, self.members.values.get_mut(place)?))) {
                Some((_, slot @ None)) => *slot = Some(map.next_value()?),
                Some((name, Some(_))) => {
                    self.members.twice = Some(name);
                    map.next_value::<IgnoredAny>()?;
                }
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// The string that a value is; none if it is no string or holds a lone surrogate.
pub(crate) fn string(value: &RawValue) -> Option<Cow<'_, str>> {
    let text = value.get();
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    if inner.as_bytes().contains(&b'\\') {
        serde_json::from_str(text).ok().map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(inner))
    }
}

/// Whether a value is a string, readable or not.
pub(crate) fn is_string(value: &RawValue) -> bool {
    value.get().starts_with('"')
}

/// The value, unless it is `null`.
pub(crate) fn not_null(value: Option<&RawValue>) -> Option<&RawValue> {
    value.filter(|v| v.get() != "null")
}

/// Whether brackets nest deeper than [`MAX_DEPTH`]. Says nothing useful of text that is not JSON.
pub(crate) fn is_too_deep(text: &[u8]) -> bool {
    // Few brackets cannot nest deep, and counting them costs next to nothing: many bytes at once, as
    // long as the count of a piece fits in one.
    let opening: usize = text
        .chunks(usize::from(u8::MAX))
        .map(|piece| usize::from(piece.iter().fold(0_u8, |count, byte| count + u8::from(byte | 0x20 == b'{'))))
        .sum();
    opening > MAX_DEPTH && deepest(text) > MAX_DEPTH
}

fn deepest(text: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0_usize);
    let (mut in_string, mut escaped) = (false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn finds_members_under_escaped_names_and_keeps_what_precedes_an_error() {
        let (found, result) = members(r#"{"\ud800":1,"\u006fp":"x","id":[1, 2],"op":2,"#, &["id", "op"]);
        assert!(result.is_err());
        assert_eq!(found.values.map(|v| v.unwrap().get()), ["[1, 2]", "\"x\""]);
        assert_eq!(found.twice, Some("op"));
    }

    #[test]
    fn brackets_inside_strings_do_not_nest() {
        let text = format!("[\"{}\\\"{}\"]", "[".repeat(200), "[".repeat(200));
        assert!(!is_too_deep(text.as_bytes()));
        assert!(!is_too_deep("[]".repeat(200).as_bytes()));
        assert!(!is_too_deep("{[".repeat(64).as_bytes()));
        assert!(is_too_deep("{[".repeat(65).as_bytes()));
    }
}
