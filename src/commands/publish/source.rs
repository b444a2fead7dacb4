//! The reading half: takes the input apart, makes events of GeoJSON features, checks, finds shards.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use tokio::sync::mpsc;

use super::collection;
use super::feature::Rules;
use crate::cli::InputFormat;
use crate::commands::{LINE_FEED, Line, read_line};
use crate::event::{Reason, Rejection};
use crate::judge::{self, Limits};
use crate::shard::{Topology, route};

/// As long as a Redis string can be: <https://redis.io/docs/latest/develop/data-types/strings/>.
const LONGEST_UNCHECKED: usize = 512 << 20;
const CHUNK_EVENTS: usize = 1000;
const CHUNK_BYTES: usize = 1 << 20;
/// Begins each text of a sequence: <https://datatracker.ietf.org/doc/html/rfc8142#section-2>.
const RECORD_SEPARATOR: u8 = 0x1e;

/// Why one line or feature is not sent.
pub(super) struct Refusal {
    pub(super) place: String,
    pub(super) reason: Reason,
    pub(super) detail: String,
}

/// What is sent in one pipeline.
#[derive(Default)]
pub(super) struct Chunk {
    pub(super) events: Vec<(u16, Vec<u8>)>,
    pub(super) refusals: Vec<Refusal>,
    pub(super) bytes: usize,
    taken: usize,
}

pub(super) struct Source {
    /// `None`: every line goes as it is.
    pub(super) check: Option<Limits>,
    pub(super) strict: bool,
    pub(super) topology: Topology,
    pub(super) rules: Rules,
    pub(super) format: Option<InputFormat>,
    pub(super) files: Vec<PathBuf>,
    pub(super) chunks: mpsc::Sender<Chunk>,
}

impl Source {
    /// Reads every file, or as far as somebody wants it.
    ///
    /// # Errors
    /// A sentence that names the file, if one cannot be read.
    pub(super) fn read(self) -> Result<(), String> {
        for file in &self.files {
            let format = self.format.unwrap_or_else(|| InputFormat::of(file));
            let (name, wanted) = if file == Path::new("-") {
                ("stdin".to_owned(), self.read_input("stdin", format, io::stdin().lock()))
            } else {
                let name = file.display().to_string();
                let input = File::open(file).map_err(|error| format!("{name}: {error}"))?;
                let wanted = self.read_input(&name, format, BufReader::with_capacity(1 << 20, input));
                (name, wanted)
            };
            if !wanted.map_err(|error| format!("{name}: {error}"))? {
                break;
            }
        }
        Ok(())
    }

    /// False if nothing more is to be read.
    fn read_input(&self, name: &str, format: InputFormat, mut input: impl BufRead) -> Result<bool, String> {
        let longest = self.check.as_ref().map_or(LONGEST_UNCHECKED, |limits| limits.max_event_bytes);
        let rules = (format != InputFormat::Events).then_some(&self.rules);
        let mut feed = Feed { source: self, rules, chunk: Chunk::default(), wanted: true };
        if format == InputFormat::Geojson {
            let read = collection::read(input, longest, |number, feature| {
                feed.take(Line::Text(feature), || format!("{name}: feature {number}"))
            });
            return feed.end(read);
        }
        let end = if format == InputFormat::GeojsonSeq { RECORD_SEPARATOR } else { LINE_FEED };
        let mut number = 0_u64;
        while feed.wanted {
            let line = match read_line(&mut input, longest, end) {
                Ok(Some(line)) => line,
                Ok(None) => break,
                Err(error) => return feed.end(Err(error.to_string())),
            };
            // Before the first separator there is nothing.
            let before_first = end == RECORD_SEPARATOR && number == 0 && line.is_blank();
            number += u64::from(!before_first);
            feed.take(line, || format!("{name}:{number}"));
        }
        feed.end(Ok(()))
    }
}

/// Gathers what one file brings into chunks.
struct Feed<'s> {
    source: &'s Source,
    /// For features; `None` where the input is events.
    rules: Option<&'s Rules>,
    chunk: Chunk,
    wanted: bool,
}

impl Feed<'_> {
    /// False if nothing more is to be read.
    fn take(&mut self, line: Line, place: impl Fn() -> String) -> bool {
        self.chunk.taken += 1;
        match line {
            Line::TooLong => {
                let detail = "longer than --max-event-bytes".to_owned();
                self.chunk.refusals.push(Refusal { place: place(), reason: Reason::TooLarge, detail });
            }
            line if line.is_blank() => {}
            Line::Text(text) => {
                self.chunk.bytes += text.len() + 1;
                match self.event(text) {
                    Ok(event) => self.chunk.events.push(event),
                    Err(rejection) => {
                        let Rejection { reason, detail, .. } = *rejection;
                        self.chunk.refusals.push(Refusal { place: place(), reason, detail });
                    }
                }
            }
        }
        if self.source.strict && !self.chunk.refusals.is_empty() {
            self.wanted = false;
        } else if self.chunk.taken >= CHUNK_EVENTS || self.chunk.bytes >= CHUNK_BYTES {
            self.send();
        }
        self.wanted
    }

    fn event(&self, text: Vec<u8>) -> Result<(u16, Vec<u8>), Box<Rejection>> {
        let text = match self.rules {
            Some(rules) => rules.event(&text)?,
            None => text,
        };
        let topology = &self.source.topology;
        if let Some(limits) = &self.source.check {
            let now_us = chrono::Utc::now().timestamp_micros();
            judge::judge(&text, now_us, limits, topology.h3_resolution)?;
        }
        // Not from the judged event: a delete's geometry counts here, though it is not stored.
        Ok((route(&text, topology).shard, text))
    }

    fn send(&mut self) {
        self.wanted &= self.source.chunks.blocking_send(std::mem::take(&mut self.chunk)).is_ok();
    }

    /// Sends what is left, of a file with an error too.
    fn end(mut self, read: Result<(), String>) -> Result<bool, String> {
        let wanted = self.wanted;
        self.send();
        // Whoever wants no more has caused whatever error there is.
        if wanted { read.map(|()| self.wanted) } else { Ok(false) }
    }
}
