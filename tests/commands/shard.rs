//! `hexlane shard`.

use super::{Ended, lines, run};
use crate::world::World;

/// Charing Cross; the shards of 16 are Python's `zlib.crc32(b"87195da49ffffff") % 16` and
/// `zlib.crc32(b"F7") % 16`.
const LONDON: &[u8] = br#"{"feature_id":"F7","geometry":{"type":"Point","coordinates":[-0.1276,51.5074]}}"#;
const DELETE: &[u8] = br#"{"feature_id":"F7","op":"delete","geometry":null}"#;
const OWN_CELL: &[u8] = br#"{"feature_id":"F7","op":"delete","cell":"87195DA49FFFFFF"}"#;

async fn shard(world: &World, args: &[&str], with_redis: bool, input: &[u8]) -> Ended {
    let mut command = world.command(&[&["shard"], args].concat());
    command.env_remove("HEXLANE_SHARDS").env("HEXLANE_NAMESPACE", "hexlane");
    if with_redis {
        command.env("HEXLANE_NAMESPACE", &world.namespace);
    } else {
        command.env_remove("HEXLANE_REDIS_URL");
    }
    run(command, input).await
}

#[tokio::test(flavor = "multi_thread")]
async fn one_line_for_each_event() {
    let world = World::shared("shard", 4).await;
    let odd = "{\"feature_id\":\"a\\tb\\n\",\"cell\":7}".as_bytes();
    let input = lines(&[LONDON, DELETE, b"", OWN_CELL, b"{", odd]);
    let ended = shard(&world, &[], false, &input).await;
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    let (known, last) = ended.stdout.split_at(ended.stdout.find("a\\t").unwrap());
    assert_eq!(
        known,
        "F7\t87195da49ffffff\t4\thexlane:{004}:events\n\
         F7\t-\t3\thexlane:{003}:events\n\
         F7\t87195da49ffffff\t4\thexlane:{004}:events\n\
         -\t-\t0\thexlane:{000}:events\n"
    );
    // A tab or a line's end inside an id would be taken for the next column or line.
    assert!(last.starts_with("a\\tb\\n\t-\t") && last.lines().count() == 1, "{last:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_come_from_options_or_from_redis() {
    let world = World::shared("shard_settings", 4).await;
    let by_feature = shard(&world, &["--shard-by", "feature"], false, LONDON).await;
    assert_eq!(by_feature.stdout, "F7\t87195da49ffffff\t3\thexlane:{003}:events\n");
    let coarse = shard(&world, &["--h3-resolution", "0", "--shards", "1"], false, LONDON).await;
    assert_eq!(coarse.stdout, "F7\t8019fffffffffff\t0\thexlane:{000}:events\n");

    // Nobody has set it: the defaults.
    let unset = shard(&world, &[], true, LONDON).await;
    assert_eq!(unset.stdout, format!("F7\t87195da49ffffff\t4\t{}:{{004}}:events\n", world.namespace));
    assert_eq!(world.ask::<i64>(&format!("EXISTS {}:topology", world.namespace)).await, 0, "asking sets nothing");
    // What the first producer has set.
    let mut first = world.command(&["publish", "--shard-by", "feature"]);
    first.env("HEXLANE_SHARDS", "2");
    assert_eq!(run(first, b"").await.code, 0);
    let in_force = shard(&world, &[], true, LONDON).await;
    assert_eq!(in_force.stdout, format!("F7\t87195da49ffffff\t1\t{}\n", world.events_key(1)));
    let differs = shard(&world, &["--shards", "5"], true, LONDON).await;
    assert_eq!((differs.code, differs.stdout.as_str()), (1, ""));
}
