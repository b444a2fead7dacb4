//! What people call, but for the worker itself.

pub mod check;
pub mod dead;
pub mod migrate;
pub mod prune;
pub mod publish;
pub mod rewind;
pub mod shard;
pub mod status;
pub mod topology;

use std::io::{self, BufRead, Read};

/// What ends a line of NDJSON.
const LINE_FEED: u8 = b'\n';

/// One line of NDJSON input, or one record of another kind.
enum Line {
    /// Its text, without the line's end.
    Text(Vec<u8>),
    /// It is longer than allowed; skipped.
    TooLong,
}

impl Line {
    fn is_blank(&self) -> bool {
        matches!(self, Self::Text(text) if text.trim_ascii().is_empty())
    }
}

/// Reads what ends with `end`, at most `longest` bytes; `None` at the end of the input.
fn read_line(input: &mut impl BufRead, longest: usize, end: u8) -> io::Result<Option<Line>> {
    let mut text = Vec::new();
    // Both bytes of a line's end may follow the longest line.
    let limit = (longest as u64).saturating_add(2);
    if input.by_ref().take(limit).read_until(end, &mut text)? == 0 {
        return Ok(None);
    }
    let complete = text.pop_if(|last| *last == end).is_some();
    if complete && end == LINE_FEED {
        text.pop_if(|last| *last == b'\r');
    }
    if text.len() > longest {
        if !complete {
            skip_line(input, end)?;
        }
        return Ok(Some(Line::TooLong));
    }
    Ok(Some(Line::Text(text)))
}

fn skip_line(input: &mut impl BufRead, end: u8) -> io::Result<()> {
    loop {
        let buffer = input.fill_buf()?;
        let (used, found) = match buffer.iter().position(|byte| *byte == end) {
            Some(place) => (place + 1, true),
            None => (buffer.len(), buffer.is_empty()),
        };
        input.consume(used);
        if found {
            return Ok(());
        }
    }
}
