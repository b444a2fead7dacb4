//! What a scrape of a worker tells about its shards.

use std::collections::BTreeSet;
use std::io::Read;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::world::{Proxy, Traffic, Way, World, eventually, in_time, point, seed};

#[tokio::test(flavor = "multi_thread")]
async fn shards_are_measured_when_asked_and_only_by_their_owner() {
    // Enough that each of two workers surely has some of them.
    const SHARDS: u16 = 24;
    let every: Vec<u16> = (0..SHARDS).collect();
    let world = World::shared("scrape", SHARDS).await;
    let first = world.worker().set("WORKER_NAME", "a").ready().await;
    let names = ["hexlane_lag", "hexlane_pending", "hexlane_oldest_pending_seconds", "hexlane_dead_letter_entries"];
    let told = async |worker: &crate::world::Worker, name: &str| -> Vec<u16> {
        let (_, body) = worker.get("/metrics").await.unwrap();
        let shard = |line: &str| line.strip_prefix(name)?.strip_prefix("{shard=\"")?.split('"').next()?.parse().ok();
        body.lines().filter_map(shard).collect()
    };
    for name in names {
        eventually(name, async || {
            let mut told = told(&first, name).await;
            told.sort_unstable();
            told == every
        })
        .await;
    }
    let second = world.worker().set("WORKER_NAME", "b").ready().await;
    // Each shard by one of them; what one has given back it tells no more.
    let shared_out = async || {
        let (ours, theirs) = (told(&first, "hexlane_lag").await, told(&second, "hexlane_lag").await);
        let mut all = [ours.clone(), theirs.clone()].concat();
        all.sort_unstable();
        all == every && !ours.is_empty() && !theirs.is_empty()
    };
    eventually("each shard is told by its owner", shared_out).await;
    second.stop().await;
    eventually("all of them again", async || told(&first, "hexlane_lag").await.len() == every.len()).await;

    // A row that somebody has locked, and a dead letter.
    let somebody = world.postgres().await;
    somebody.batch_execute("BEGIN; LOCK TABLE feature_state").await.unwrap();
    world.add(1, b"{}").await;
    world.add(2, &point("F", 1, 4.3, 52.1)).await;
    first.until_metric("hexlane_dead_letter_entries{shard=\"1\"}", 1.0).await;
    first.until_metric("hexlane_dead_letter_oldest_seconds{shard=\"1\"}", 0.001).await;
    first.until_metric("hexlane_pending{shard=\"2\"}", 1.0).await;
    first.until_metric("hexlane_oldest_pending_seconds{shard=\"2\"}", 0.5).await;
    first.until_metric("hexlane_shard_skew", 2.0).await;
    first.until_metric(&format!("hexlane_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION")), 1.0).await;
    assert_eq!(first.metric("hexlane_pending{shard=\"0\"}").await, Some(0.0));
    somebody.batch_execute("COMMIT").await.unwrap();
    let settled = async || first.metric("hexlane_oldest_pending_seconds{shard=\"2\"}").await == Some(0.0);
    eventually("nothing is pending", settled).await;
    // What sums up: entries read, and the ends they came to.
    let counts = first.stop().await;
    counts.assert_balanced();
    assert_eq!((counts.read, counts.applied, counts.dead_lettered), (2, 1, 1));
}

/// The names, kinds, labels and buckets that README promises; and the numbers add up.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_measured_is_what_readme_says_and_it_adds_up() {
    let world = World::shared("exact", 2).await;
    let (way, redis_url) = Proxy::to(&world.redis_url).await;
    let worker = world.worker().set("REDIS_URL", &redis_url).ready().await;
    let body = async || worker.get("/metrics").await.unwrap().1;
    // Skew is what came since an earlier look.
    body().await;
    let mut rng = rand::SeedableRng::seed_from_u64(seed());
    let traffic = Traffic::new(&mut rng, 3000, 2);
    traffic.send_all(&world).await;
    world.add(0, b"nonsense").await;
    world.drained().await;
    // Before they are counted they are settled.
    let sum = async |name: &str| {
        let of = |line: &str| {
            let (metric, value) = line.rsplit_once(' ')?;
            (metric.split('{').next() == Some(name)).then(|| value.parse::<f64>().unwrap())
        };
        body().await.lines().filter_map(of).sum::<f64>()
    };
    let all = traffic.sends.len() as f64 + 1.0;
    eventually("all is counted", async || sum("hexlane_events_total").await == all).await;
    assert_eq!(sum("hexlane_entries_read_total").await, all);
    for nothing in ["hexlane_released_total", "hexlane_lost_total", "hexlane_missing_total", "hexlane_buffered_events"]
    {
        assert_eq!(sum(nothing).await, 0.0, "{nothing}");
    }
    assert_eq!(worker.metric("hexlane_dead_letters_total{reason=\"not_json\"}").await, Some(1.0));
    assert_eq!(sum("hexlane_dead_letters_total").await, 1.0);
    assert_eq!(worker.metric("hexlane_events_total{outcome=\"dead_lettered\"}").await, Some(1.0));
    assert_eq!(worker.metric("hexlane_batch_rows_sum").await, Some(all));
    assert_eq!(worker.metric("hexlane_commit_latency_seconds_count").await, Some(all - 1.0), "no dead letter");
    assert_eq!(worker.metric("hexlane_shards").await, Some(2.0));
    let limits: Vec<f64> = body()
        .await
        .lines()
        .filter_map(|line| line.strip_prefix("hexlane_commit_latency_seconds_bucket{le=\"")?.split('"').next())
        .map(|limit| limit.parse().unwrap())
        .collect();
    assert_eq!((limits[0], limits[limits.len() - 2]), (0.001, 60.0));

    // Without Redis nobody knows what the shards hold.
    eventually("the skew is told", async || body().await.contains("hexlane_shard_skew")).await;
    let healthy = body().await;
    way.set(Way::Closed);
    eventually("no shard is told", async || !body().await.contains("{shard=\"")).await;
    assert!(!body().await.contains("hexlane_shard_skew"));
    worker.until_metric("hexlane_retries_total{error=\"io\",target=\"redis\"}", 1.0).await;
    let told: BTreeSet<String> = [healthy, body().await]
        .iter()
        .flat_map(|body| body.lines())
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next().map(str::to_owned))
        .collect();
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let promised: BTreeSet<String> = readme
        .lines()
        .filter(|line| line.starts_with("| `hexlane_"))
        .flat_map(|line| line.split('|').nth(1).unwrap().split('`'))
        .filter(|word| word.starts_with("hexlane_"))
        .map(|word| word.split('{').next().unwrap().to_owned())
        .collect();
    assert_eq!(told, promised);
    way.set(Way::Open);
    worker.until_ready(true).await;
    worker.stop().await.assert_balanced();
}

/// Every lane turns, or the process is of no use: whoever supervises it has to know.
#[tokio::test(flavor = "multi_thread")]
async fn a_lane_that_hangs_is_no_longer_healthy_and_one_that_waits_is() {
    let world = World::shared("healthy", 2).await;
    let settings = [("STATEMENT_TIMEOUT", "1s"), ("RETRY_CAP", "200ms"), ("RETRY_BASE", "100ms"), ("POOL_SIZE", "2")];
    let mut command = world.worker();
    for (name, value) in settings {
        command = command.set(name, value);
    }
    let worker = command.ready().await;
    let health = async || worker.get("/healthz").await.unwrap();

    // A locked table for longer than a lane that hangs would be forgiven: alive, and not ready.
    let somebody = world.postgres().await;
    somebody.batch_execute("BEGIN; LOCK TABLE feature_state").await.unwrap();
    for shard in 0..2 {
        world.add(shard, &point(&format!("waits {shard}"), 1, 4.3, 52.1)).await;
    }
    worker.until_ready(false).await;
    worker.until_metric("hexlane_oldest_pending_seconds{shard=\"1\"}", 50.0).await;
    assert_eq!(health().await, (200, "ok\n".into()));
    assert!(!worker.is_ready().await);
    somebody.batch_execute("COMMIT").await.unwrap();
    world.drained().await;

    // Large enough for a thread of its own.
    let hangs = format!(r#","properties":{{"k":"hexlane-hang-test{}"}}"#, " ".repeat(70_000));
    let point_text = r#"{"type":"Point","coordinates":[4.3,52.1]}"#;
    world.add(1, &crate::world::event("hangs", 1, "update", point_text, &hangs)).await;
    eventually("it is no longer healthy", async || health().await.0 == 503).await;
    assert!(health().await.1.contains("the lane of shard 1 has not come to the end of a step"), "{}", health().await.1);
    worker.kill().await;
}

/// Whoever reaches the admin address can make it hold no more than a little, and not for long.
#[tokio::test(flavor = "multi_thread")]
async fn requests_have_their_bounds() {
    let world = World::shared("admin_bounds", 1).await;
    let worker = world.worker().ready().await;
    let address = worker.admin().await;
    let answer = async |request: String| {
        let mut connection = tokio::net::TcpStream::connect(&address).await.unwrap();
        // It may have hung up before the end of it.
        let _ = connection.write_all(request.as_bytes()).await;
        let mut answer = String::new();
        let _ = in_time(connection.read_to_string(&mut answer)).await;
        answer
    };
    let long = format!("GET /metrics HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "a".repeat(64 << 10));
    let many = format!("GET /metrics HTTP/1.1\r\nhost: a\r\n{}\r\n", "x: a\r\n".repeat(200));
    for request in [long, many, "GET /metrics HTTP/1.1\r\nhost: a\r\n".into(), "nonsense\r\n\r\n".into()] {
        let said = answer(request).await;
        assert!(!said.contains("hexlane_"), "{said}");
    }
    // It has room for 64, and those that say nothing hold up no other until they are so many.
    let open = || {
        let connection = std::net::TcpStream::connect(&address).unwrap();
        connection.set_nonblocking(true).unwrap();
        connection
    };
    let opened = Instant::now();
    let mut silent: Vec<_> = std::iter::repeat_with(open).take(63).collect();
    assert_eq!(worker.get("/healthz").await.unwrap().0, 200);
    silent.push(open());
    let is_open = |mut connection: &std::net::TcpStream| {
        connection.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    // One more is answered once a place is free.
    let said = answer("GET /healthz HTTP/1.0\r\n\r\n".into()).await;
    let left = silent.iter().filter(|connection| is_open(connection)).count();
    assert!(said.starts_with("HTTP/1.0 200") && left < 64, "{left} are there, and one more got {said}");
    eventually("no silent one is left", async || !silent.iter().any(is_open)).await;
    assert!(opened.elapsed() < Duration::from_secs(25), "the library's own limit would be 30 s");
    assert_eq!(worker.get("/healthz").await.unwrap().0, 200);
    for path in ["/", "/metrics/../healthz", "/%00"] {
        assert_eq!(worker.get(path).await.unwrap().0, 404, "{path}");
    }
    worker.stop().await.assert_balanced();
}
