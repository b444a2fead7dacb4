//! README's rule for producers in other languages is the rule of the product: its program in Python
//! is taken from there and run.

use std::path::PathBuf;
use std::process::Stdio;

use tokio::io::AsyncWriteExt;

use crate::recorded::read;
use crate::world::{World, data, delete, event, point};

/// Prints what `hexlane shard` prints.
const COMPARE: &str = r#"
import json
import sys

import producer

shards, resolution = int(sys.argv[1]), int(sys.argv[2])
for line in sys.stdin:
    event = json.loads(line)
    shard = producer.shard_of(event, shards, resolution)
    cell = producer.cell_of(event, resolution) or "-"
    print(event["feature_id"], cell, shard, producer.stream_key(shard), sep="\t")
"#;

/// README's program as `producer.py`, and beside it the one that compares.
struct Python {
    interpreter: PathBuf,
    folder: tempfile::TempDir,
}

impl Python {
    /// `None` where there is no Python with the packages h3 and redis.
    fn find() -> Option<Self> {
        let Some(interpreter) =
            std::env::var_os("HEXLANE_TEST_PYTHON").map(PathBuf::from).filter(|path| path.is_file())
        else {
            eprintln!("skipped: HEXLANE_TEST_PYTHON names no program");
            return None;
        };
        let readme = include_str!("../README.md");
        let (_, block) = readme.split_once("```python\n").expect("README has a program in Python");
        let (program, _) = block.split_once("\n```").unwrap();
        let folder = tempfile::TempDir::with_prefix("hexlane-producer-").unwrap();
        std::fs::write(folder.path().join("producer.py"), program).unwrap();
        std::fs::write(folder.path().join("compare.py"), COMPARE).unwrap();
        Some(Self { interpreter, folder })
    }

    /// Runs one of the two; its stdout.
    async fn run(&self, program: &str, args: &[&str], redis_url: &str, input: &[u8]) -> String {
        let mut command = tokio::process::Command::new(&self.interpreter);
        command.arg(self.folder.path().join(program)).args(args).env("HEXLANE_REDIS_URL", redis_url);
        fed(command, input).await
    }
}

async fn fed(mut command: tokio::process::Command, input: &[u8]) -> String {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let send = async {
        stdin.write_all(input).await.unwrap();
        drop(stdin);
    };
    let (_, output) = tokio::join!(send, child.wait_with_output());
    let output = output.unwrap();
    assert!(output.status.success(), "{command:?}: {}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Compares the two feature by feature; answers how many shards were met.
async fn agree(world: &World, python: &Python, settings: Option<(&str, &str)>, events: &[u8]) -> usize {
    let mut command = world.command(&["shard"]);
    command.env_remove("HEXLANE_SHARDS").env_remove("HEXLANE_REDIS_URL").env_remove("HEXLANE_NAMESPACE");
    if let Some((shards, resolution)) = settings {
        command.args(["--shards", shards, "--h3-resolution", resolution]);
    }
    let (shards, resolution) = settings.unwrap_or(("16", "7"));
    let ours = fed(command, events).await;
    let theirs = python.run("compare.py", &[shards, resolution], &world.redis_url, events).await;
    for (ours, theirs) in ours.lines().zip(theirs.lines()) {
        assert_eq!(ours, theirs);
    }
    let count = events.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
    assert_eq!((ours.lines().count(), theirs.lines().count()), (count, count));
    let met: std::collections::HashSet<&str> = ours.lines().map(|line| line.split('\t').next_back().unwrap()).collect();
    met.len()
}

/// Points near every kind of edge, the other types, deletes with and without a cell, and what is no
/// geometry.
fn fixtures() -> Vec<u8> {
    let mut events = vec![
        delete("gone", 2),
        event("gone-cell", 2, "delete", "null", r#","cell":"87195da49ffffff""#),
        event("gone-capitals", 2, "delete", "null", r#","cell":"87195DA49FFFFFF""#),
        event(
            "own-coarse",
            1,
            "create",
            r#"{"type":"Point","coordinates":[4.3,52.1]}"#,
            r#","cell":"8019fffffffffff""#,
        ),
        event("own-bad", 1, "create", r#"{"type":"Point","coordinates":[4.3,52.1]}"#, r#","cell":"nonsense""#),
        event("été-😀", 1, "delete", "null", ""),
    ];
    for (number, geometry) in [
        r#"{"type":"Point","coordinates":[4.3,52.1,-7.5]}"#,
        r#"{"type":"LineString","coordinates":[[4.3,52.1],[-70,3]]}"#,
        r#"{"type":"MultiPoint","coordinates":[[-4.3,-52.1],[70,3]]}"#,
        r#"{"type":"Polygon","coordinates":[[[5,5],[6,5],[6,6],[5,5]],[[5.2,5.1],[5.3,5.1],[5.3,5.2],[5.2,5.1]]]}"#,
        r#"{"type":"MultiPolygon","coordinates":[[[[7,5],[8,5],[8,6],[7,5]]],[[[5,5],[6,5],[6,6],[5,5]]]]}"#,
        r#"{"type":"GeometryCollection","geometries":[{"type":"GeometryCollection","geometries":[{"type":"LineString","coordinates":[[9,8],[7,6]]}]},{"type":"Point","coordinates":[1,2]}]}"#,
        r#"{"type":"GeometryCollection","geometries":[]}"#,
        r#"{"type":"Point","coordinates":[]}"#,
        r#"{"type":"Point","coordinates":[7]}"#,
        r#"{"type":"Point","coordinates":["7","8"]}"#,
        r#"{"type":"Point","coordinates":[null,8]}"#,
        r#"{"type":"Point","coordinates":[181,8]}"#,
        r#"{"type":"Point","coordinates":[8,-90.5]}"#,
        r#"{"type":"Polygon","coordinates":[[],[[5,5],[6,5]]]}"#,
        r#"{"type":"Nonsense","coordinates":[1e0,2.50E1]}"#,
        r#""POINT(1 2)""#,
        "[1,2]",
        "7",
        "{}",
    ]
    .into_iter()
    .enumerate()
    {
        events.push(event(&format!("shape-{number}"), 1, "create", geometry, ""));
    }
    for lon in [-180.0, -179.999_999, -0.0, 0.1, 45.0, 179.999_999, 180.0] {
        for lat in [-90.0, -89.9, -33.3, 0.0, 51.507_4, 89.999_999, 90.0] {
            events.push(point(&format!("point-{lon}-{lat}"), 1, lon, lat));
        }
    }
    events.join(&b'\n')
}

#[tokio::test(flavor = "multi_thread")]
async fn readmes_producer_finds_the_same_shards() {
    let Some(python) = Python::find() else { return };
    let world = World::shared("producer", 16).await;
    let events = fixtures();
    let met = agree(&world, &python, None, &events).await;
    assert!(met > 12, "the events meet {met} of 16 shards only");
    for settings in [("16", "7"), ("1", "0"), ("7", "4"), ("1000", "15")] {
        agree(&world, &python, Some(settings), &events).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readmes_producer_agrees_about_real_outlines() {
    let (Some(python), Some(folder)) = (Python::find(), data()) else { return };
    let world = World::shared("producer_real", 16).await;
    let events = read(&folder.join("polygons/countries.events.ndjson"));
    agree(&world, &python, None, events.as_bytes()).await;
    agree(&world, &python, Some(("16", "7")), events.as_bytes()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_readmes_producer_sends_lands() {
    let Some(python) = Python::find() else { return };
    // The program knows one namespace only, so it gets a database of Redis to itself.
    let mut world = World::shared("producer_sends", 16).await;
    world.redis_url = format!("{}/9", world.redis_url.trim_end_matches('/'));
    world.namespace = "hexlane".into();
    let client = redis::Client::open(world.redis_url.as_str()).unwrap();
    let mut redis = client.get_multiplexed_async_connection().await.unwrap();
    redis::cmd("FLUSHDB").exec_async(&mut redis).await.unwrap();

    let events: Vec<Vec<u8>> = (0..40).map(|n| point(&format!("F{n}"), 1, f64::from(n), 52.1)).collect();
    let events = events.join(&b'\n');
    assert_eq!(python.run("producer.py", &[], &world.redis_url, &events).await, "");
    let counts = world.worker().once().await;
    assert_eq!((counts.read, counts.applied), (40, 40));
    redis::cmd("FLUSHDB").exec_async(&mut redis).await.unwrap();
}
