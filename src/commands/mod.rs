//! What people call, but for the worker itself.

pub mod migrate;
pub mod publish;
pub mod shard;
pub mod status;
pub mod topology;

use std::io::{self, BufRead, Read};

/// One line of NDJSON input.
enum Line {
    /// Its text, without the line's end.
    Text(Vec<u8>),
    /// It is longer than allowed; skipped.
    TooLong,
}

/// Reads one line of at most `longest` bytes; `None` at the end.
fn read_line(input: &mut impl BufRead, longest: usize) -> io::Result<Option<Line>> {
    let mut text = Vec::new();
    // Both bytes of a line's end may follow the longest line.
    let limit = (longest as u64).saturating_add(2);
    if input.by_ref().take(limit).read_until(b'\n', &mut text)? == 0 {
        return Ok(None);
    }
    let complete = text.pop_if(|last| *last == b'\n').is_some();
    if complete {
        text.pop_if(|last| *last == b'\r');
    }
    if text.len() > longest {
        if !complete {
            skip_line(input)?;
        }
        return Ok(Some(Line::TooLong));
    }
    Ok(Some(Line::Text(text)))
}

fn skip_line(input: &mut impl BufRead) -> io::Result<()> {
    loop {
        let buffer = input.fill_buf()?;
        let (used, found) = match buffer.iter().position(|byte| *byte == b'\n') {
            Some(place) => (place + 1, true),
            None => (buffer.len(), buffer.is_empty()),
        };
        input.consume(used);
        if found {
            return Ok(());
        }
    }
}
