//! `hexlane publish`, which checks and routes, against nothing but XADD.

use std::io::{BufWriter, Write};
use std::time::Instant;

use tempfile::NamedTempFile;

use crate::bench::Prepared;
use crate::cli::{Common, Load};
use crate::report::Report;
use crate::server::Servers;
use crate::worker;

const PIPELINE: usize = 1000;

pub async fn publish(servers: &mut Servers, common: &Common, load: &Load) -> Report {
    let prepared = Prepared::new(load);
    let file = write_lines(&prepared);
    let pipelines = pipelines(servers, &prepared);
    let mut report = Report::default();
    for _ in 0..common.runs {
        servers.empty_redis().await;
        servers.settle_redis().await;
        let start = Instant::now();
        for pipeline in &pipelines {
            pipeline.exec_async(&mut servers.redis).await.expect("Redis takes the events");
        }
        report.add("bare XADD", load.events as f64 / start.elapsed().as_secs_f64(), "events/s");
        check(servers, load).await;

        servers.empty_redis().await;
        servers.settle_redis().await;
        let mut command = worker::command(servers, "publish");
        command.arg("--shards").arg(load.shards.to_string()).arg(file.path());
        let start = Instant::now();
        let status = command.status().await.expect("hexlane starts");
        report.add("hexlane publish", load.events as f64 / start.elapsed().as_secs_f64(), "events/s");
        assert!(status.success(), "hexlane publish ended with {status}");
        check(servers, load).await;
    }
    servers.empty_redis().await;
    let ratio = report.median("hexlane publish") / report.median("bare XADD");
    report.ratio("hexlane publish / bare XADD", ratio);
    report
}

fn write_lines(prepared: &Prepared) -> NamedTempFile {
    let file = NamedTempFile::new().expect("a temporary file can be made");
    let mut lines = BufWriter::new(&file);
    for event in &prepared.traffic.events {
        lines.write_all(event).and_then(|()| lines.write_all(b"\n")).expect("the file can be written");
    }
    lines.flush().expect("the file can be written");
    drop(lines);
    file
}

fn pipelines(servers: &Servers, prepared: &Prepared) -> Vec<redis::Pipeline> {
    let keys = servers.keys();
    let addressed: Vec<(u16, &Vec<u8>)> = prepared.addressed().collect();
    let pipeline = |chunk: &[(u16, &Vec<u8>)]| {
        let mut pipe = redis::pipe();
        for (shard, event) in chunk {
            pipe.cmd("XADD").arg(keys.events(*shard)).arg("*").arg("event").arg(*event).ignore();
        }
        pipe
    };
    addressed.chunks(PIPELINE).map(pipeline).collect()
}

async fn check(servers: &mut Servers, load: &Load) {
    let mut pipe = redis::pipe();
    for shard in 0..load.shards {
        pipe.cmd("XLEN").arg(servers.keys().events(shard));
    }
    let lengths: Vec<usize> = pipe.query_async(&mut servers.redis).await.expect("Redis answers");
    assert!(lengths.iter().sum::<usize>() == load.events, "the streams do not hold every event");
}
