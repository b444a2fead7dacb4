//! Any bytes as the payload of an entry: a verdict, never a panic, and what is accepted is fit for the database.
#![no_main]

use std::time::Duration;

use h3o::Resolution;
use hexlane::event::{Op, Reason};
use hexlane::judge::{Antimeridian, Limits, judge};
use hexlane::shard::{Topology, route};
use libfuzzer_sys::fuzz_target;
use serde_json::value::RawValue;

const NOW_US: i64 = 1_800_000_000_000_000;

fuzz_target!(|input: &[u8]| {
    let Some((&settings, payload)) = input.split_first() else { return };
    let limits = Limits {
        max_event_bytes: 1 << 16,
        max_vertices: 500,
        max_clock_skew: Duration::from_secs(300),
        antimeridian: [Antimeridian::Reject, Antimeridian::Split, Antimeridian::Keep][usize::from(settings % 3)],
        coordinate_tolerance: if settings < 128 { 0.0 } else { 1e-9 },
    };
    // A panic inside is caught there; the fuzzer's hook ends the process before that.
    let verdict = judge(payload, NOW_US, &limits, Resolution::Seven);
    assert_eq!(verdict, judge(payload, NOW_US, &limits, Resolution::Seven), "the text decides alone");
    let shard = route(payload, &Topology::default()).shard;
    assert!(shard < Topology::default().shards);
    match verdict {
        Ok(event) => {
            assert!(!event.feature_id.is_empty() && !event.feature_id.contains('\0'));
            assert_eq!(event.shape.is_none(), event.op == Op::Delete);
            assert!(event.key.version >= 0 && event.key.observed_us <= NOW_US + 300_000_000);
            if let Some(properties) = event.properties {
                // Not as a value: jsonb holds numbers that no double does.
                assert!(properties.starts_with('{') && serde_json::from_str::<&RawValue>(&properties).is_ok());
            }
        }
        Err(rejection) => {
            assert_ne!(rejection.reason, Reason::InternalError, "{}", rejection.detail);
            assert!(!rejection.detail.is_empty());
        }
    }
});
