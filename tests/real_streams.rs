//! Recorded change streams: whatever the order, the copies and the number of shards, the table ends
//! at the state that an independent program has computed.

use std::collections::{BTreeMap, HashMap};

use crate::recorded::{Expected, Rejected, assert_state, dead_by_the_rule, parse, read};
use crate::world::{Counts, DeadLetter, World, data};

/// The order in which a stream is sent.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// As it was recorded.
    Recorded,
    /// Shuffled, three events in ten twice.
    Shuffled,
}

struct Recording {
    /// What is sent, one event a line.
    text: String,
    expected: Vec<Expected>,
    rejected: Vec<Rejected>,
    /// The refused events by their text, each with its reason.
    refused: HashMap<String, String>,
    stats: serde_json::Value,
}

impl Recording {
    /// `None` where there are no recordings.
    fn load(name: &str, form: Form) -> Option<Self> {
        let folder = data()?;
        let file = |suffix: &str| folder.join(format!("{name}.{suffix}"));
        let recorded = read(&file("events.ndjson"));
        let rejected = file("rejected.ndjson");
        let rejected: Vec<Rejected> = if rejected.exists() { parse(&read(&rejected)) } else { Vec::new() };
        let lines: Vec<&str> = recorded.lines().collect();
        let refused = rejected.iter().map(|r| (lines[r.line - 1].to_owned(), r.reason().to_owned())).collect();
        let stats: serde_json::Value = serde_json::from_str(&read(&file("stats.json"))).unwrap();
        let (text, stats) = match form {
            Form::Recorded => (recorded, stats["in_file_order"].clone()),
            Form::Shuffled => (read(&file("shuffled.events.ndjson")), stats["shuffled"]["in_file_order"].clone()),
        };
        Some(Self { text, expected: parse(&read(&file("expected.ndjson"))), rejected, refused, stats })
    }

    fn lines(&self) -> Vec<&str> {
        self.text.lines().collect()
    }

    fn refused(&self) -> HashMap<&str, &str> {
        self.refused.iter().map(|(line, reason)| (line.as_str(), reason.as_str())).collect()
    }

    /// What a consumer of one event at a time would count.
    fn stat(&self, name: &str) -> u64 {
        self.stats[name].as_u64().unwrap()
    }

    async fn publish(&self, world: &World) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &self.text).unwrap();
        let said = world.hexlane(&["publish", "--unchecked", file.path().to_str().unwrap()]).await;
        assert_eq!(said, format!("published {}, refused 0\n", self.lines().len()));
    }
}

/// Sends a stream, drains it, and looks at everything there is to see.
async fn lands(name: &str, form: Form, shards: u16) {
    let Some(recording) = Recording::load(name, form) else { return };
    let world = World::shared("real", shards).await;
    recording.publish(&world).await;
    let counts = world.worker().once().await;
    let sent = recording.lines().len() as u64;
    assert_eq!((counts.read, counts.settled(), world.pending().await), (sent, sent, 0), "{counts:?}");
    assert_eq!(counts.duplicate, 0, "no event has an event_id");
    assert!(counts.applied >= recording.expected.len() as u64, "{counts:?}");
    // In one stream nothing can be applied that is late to a consumer of one event at a time.
    assert!(shards > 1 || counts.applied <= recording.stat("applied"), "{counts:?}");
    assert_state(&world, &recording.expected).await;
    let letters = world.dead_letters().await;
    assert!(letters.iter().all(|letter| letter.text("dead:source_stream") == world.events_key(letter.shard)));
    assert_eq!(letters.len() as u64, counts.dead_lettered);
    assert_dead_letters(&recording, form, shards, &letters);
}

fn assert_dead_letters(recording: &Recording, form: Form, shards: u16, letters: &[DeadLetter]) {
    let refused = recording.refused();
    for letter in letters {
        let text = letter.text("event");
        assert_eq!(refused.get(text.as_str()).copied(), Some(letter.reason().as_str()), "{:.300}", text);
    }
    // Among several streams a refused event may be read after newer ones, and is stale then.
    if form == Form::Recorded && shards == 1 {
        let found = letters.iter().map(|l| (l.text("dead:feature_id"), l.text("dead:version"), l.reason()));
        let rejected = recording.rejected.iter();
        let wanted = rejected.map(|r| (r.feature_id.clone(), r.version.to_string(), r.reason().to_owned()));
        assert_eq!(found.collect::<Vec<_>>(), wanted.collect::<Vec<_>>());
    }
    let lines = recording.lines();
    if shards == 1 {
        // In one stream it is certain which copy of a refused event is late.
        let found: Vec<String> = letters.iter().map(|letter| letter.text("event")).collect();
        assert_eq!(counted(found.iter().map(String::as_str)), counted(dead_by_the_rule(&lines, &refused)));
    } else {
        let sent = counted(lines.into_iter().filter(|line| refused.contains_key(line)));
        let found: Vec<String> = letters.iter().map(|letter| letter.text("event")).collect();
        for (text, copies) in counted(found.iter().map(String::as_str)) {
            assert!(copies <= sent[text], "{copies} dead letters of {} copies: {text:.300}", sent[text]);
        }
    }
}

fn counted<'t>(texts: impl IntoIterator<Item = &'t str>) -> BTreeMap<&'t str, usize> {
    let mut counts = BTreeMap::new();
    for text in texts {
        *counts.entry(text).or_default() += 1;
    }
    counts
}

/// With one event in a statement nothing is superseded, and the counts are those of a consumer
/// that takes one event at a time.
async fn counts_one_at_a_time(name: &str, form: Form) {
    let Some(recording) = Recording::load(name, form) else { return };
    let world = World::shared("real_single", 1).await;
    recording.publish(&world).await;
    let counts = world.worker().set("BATCH_ROWS", "1").set("REORDER_WINDOW", "0s").once().await;
    let (applied, late) = (recording.stat("applied"), recording.stat("duplicate") + recording.stat("stale"));
    // Refused events that are late as well are stale here, and dead letters there.
    let dead = dead_by_the_rule(&recording.lines(), &recording.refused()).len() as u64;
    let sent = recording.lines().len() as u64;
    let also_late = sent - applied - late - dead;
    let wanted = Counts { read: sent, applied, stale: late + also_late, dead_lettered: dead, ..Counts::default() };
    assert_eq!(counts, wanted);
    assert_state(&world, &recording.expected).await;
}

macro_rules! streams {
    ($($test:ident: $call:ident($name:literal, $($more:expr),+);)+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                $call($name, $($more),+).await;
            }
        )+
    };
}

streams! {
    osm_ch_in_one_shard: lands("osm/osm-ch-2013-04-10", Form::Recorded, 1);
    osm_ch_in_sixteen: lands("osm/osm-ch-2013-04-10", Form::Recorded, 16);
    osm_ch_shuffled_in_one_shard: lands("osm/osm-ch-2013-04-10", Form::Shuffled, 1);
    osm_ch_shuffled_in_sixteen: lands("osm/osm-ch-2013-04-10", Form::Shuffled, 16);
    osm_minute_in_one_shard: lands("osm/osm-minute-2013-08-04", Form::Recorded, 1);
    osm_minute_in_sixteen: lands("osm/osm-minute-2013-08-04", Form::Recorded, 16);
    osm_minute_shuffled_in_one_shard: lands("osm/osm-minute-2013-08-04", Form::Shuffled, 1);
    osm_minute_shuffled_in_sixteen: lands("osm/osm-minute-2013-08-04", Form::Shuffled, 16);
    usgs_in_one_shard: lands("usgs/usgs-2025-05", Form::Recorded, 1);
    usgs_in_sixteen: lands("usgs/usgs-2025-05", Form::Recorded, 16);
    usgs_shuffled_in_one_shard: lands("usgs/usgs-2025-05", Form::Shuffled, 1);
    usgs_shuffled_in_sixteen: lands("usgs/usgs-2025-05", Form::Shuffled, 16);
    calfire_in_one_shard: lands("calfire/calfire-2020-2024", Form::Recorded, 1);
    calfire_in_sixteen: lands("calfire/calfire-2020-2024", Form::Recorded, 16);
    calfire_shuffled_in_one_shard: lands("calfire/calfire-2020-2024", Form::Shuffled, 1);
    calfire_shuffled_in_sixteen: lands("calfire/calfire-2020-2024", Form::Shuffled, 16);
    wof_in_one_shard: lands("wof/wof-fiji", Form::Recorded, 1);
    wof_in_sixteen: lands("wof/wof-fiji", Form::Recorded, 16);
    wof_shuffled_in_one_shard: lands("wof/wof-fiji", Form::Shuffled, 1);
    wof_shuffled_in_sixteen: lands("wof/wof-fiji", Form::Shuffled, 16);
    countries_in_one_shard: lands("polygons/countries", Form::Recorded, 1);
    countries_in_sixteen: lands("polygons/countries", Form::Recorded, 16);
    calfire_one_event_at_a_time: counts_one_at_a_time("calfire/calfire-2020-2024", Form::Recorded);
    wof_shuffled_one_event_at_a_time: counts_one_at_a_time("wof/wof-fiji", Form::Shuffled);
}
