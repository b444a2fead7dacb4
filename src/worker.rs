//! Start, run and leave: what has to be right before the first entry is read, and what ends it all.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::RwLock;
use tokio_util::sync::CancellationToken;

use crate::admin::{self, Watched};
use crate::cli::WorkerArgs;
use crate::commands::check;
use crate::event::EntryId;
use crate::failure::{Failure, RetryPolicy};
use crate::fleet::yielding::WriteHealth;
use crate::fleet::{Fleet, FleetSettings};
use crate::lane::group_commit::GroupCommit;
use crate::lane::{LaneSettings, Shared};
use crate::metrics::Meter;
use crate::shard::Topology;
use crate::store::{Store, StoreSettings};
use crate::stream::Stream;

/// Entries in one read; more gain nothing.
const READ_ROWS: usize = 1000;
/// Entries that the lanes of all workers may ask for at the same moment. Redis answers one after the
/// other: so many keep it busy for half a second, and renewals of leases wait behind them.
const READ_ROWS_OF_ALL_LANES: usize = 64_000;
const READ_ROWS_AT_LEAST: usize = 16;
/// Bytes of events that all lanes together should have in one batch each.
const BATCH_BYTES_OF_ALL_LANES: usize = 16 << 20;
const BATCH_BYTES_AT_LEAST: usize = 64 << 10;
const CLOCK_SYNC_EVERY: Duration = Duration::from_secs(30);
const DRAIN_CHECK_EVERY: Duration = Duration::from_millis(100);

/// Runs a worker until it is told to stop, or with `--once` until everything is drained. Answers
/// the counts of this process as JSON.
///
/// # Errors
/// A sentence for the user.
pub async fn run(args: WorkerArgs) -> Result<String, String> {
    args.times.check(&args.retry)?;
    let name = args.worker_name.clone().unwrap_or_else(default_name);
    let stream = args.redis.stream_of(&name).await?;
    let store = Store::open(&store_settings(&args, &name)?).await?;
    let meter = Arc::new(Meter::new().map_err(|error| error.to_string())?);
    let (stop, abort) = (CancellationToken::new(), CancellationToken::new());
    listen_for_signals(stop.clone(), abort.clone()).map_err(|error| format!("cannot listen for signals: {error}"))?;

    let started = Arc::new(AtomicBool::new(false));
    let watched = Watched {
        meter: meter.clone(),
        stream: stream.clone(),
        store: store.clone(),
        started: started.clone(),
        stop: stop.clone(),
        pauses: args.retry.retry_cap + args.times.reorder_window + 2 * args.times.block,
        answered: admin::Answered::default(),
        recent: Arc::default(),
    };
    let address = admin::serve(args.admin_addr, watched).await.map_err(|error| {
        format!("--admin-addr {}: {error}; choose another, or port 0 for a free one", args.admin_addr)
    })?;
    tracing::info!(%address, worker = name, "admin server listens");
    tracing::info!(redis = stream.address(), postgres = store.address(), "connecting");

    let retry = args.retry.policy();
    let failed = |failure: &Failure| meter.retried(failure);
    let up = until_up(retry, &stop, failed, async || prepare(&stream, &store, &args).await).await;
    let Some(topology) = up? else {
        return Ok(meter.summary());
    };
    meter.there_are(topology.shards);
    let settings = Arc::new(lane_settings(&args, topology));
    tracing::info!(
        worker = name, group = args.redis.group, namespace = args.redis.namespace,
        shards = topology.shards, shard_by = %topology.shard_by, h3_resolution = %topology.h3_resolution,
        ?settings, "settings in force"
    );
    let commits = Arc::new(GroupCommit::start(&store, pool_size(&args), args.batch_rows));
    let shared = Shared {
        stream,
        store,
        commits,
        meter: meter.clone(),
        settings,
        write_health: WriteHealth::default(),
        preparing: Arc::new(RwLock::new(())),
        stop: stop.clone(),
        abort: abort.clone(),
    };
    let targets = match args.once {
        true => until_up(retry, &stop, failed, async || last_ids(&shared.stream, topology).await).await?,
        false => None,
    };
    tokio::spawn(keep_clock(shared.stream.clone(), stop.clone()));
    if let Some(targets) = targets {
        tokio::spawn(stop_when_drained(shared.stream.clone(), targets, stop.clone()));
    }
    tokio::spawn(limit_drain(args.drain_timeout, stop.clone(), abort));

    let fleet = FleetSettings { lease: args.times.lease, renew: args.times.renew, yield_after: args.yield_after };
    let ended = Fleet::new(shared, fleet, topology, &name, started).run().await;
    let summary = meter.summary();
    tracing::info!(counts = summary, "stopped");
    ended.map(|()| summary)
}

/// Tries until it works, and hands on each failure; `None` if `stop` came first.
///
/// # Errors
/// At once, where waiting will not help.
pub async fn until_up<T>(
    policy: RetryPolicy,
    stop: &CancellationToken,
    failed: impl Fn(&Failure),
    work: impl AsyncFn() -> Result<T, Failure>,
) -> Result<Option<T>, Failure> {
    let mut retry = policy.start();
    loop {
        let answer = tokio::select! {
            answer = work() => answer,
            () = stop.cancelled() => return Ok(None),
        };
        match answer {
            Ok(value) => return Ok(Some(value)),
            Err(failure) if failure.is_fatal() => return Err(failure),
            Err(failure) => {
                failed(&failure);
                tracing::warn!(error = %failure, "waiting for the servers");
                if !retry.pause(stop).await {
                    return Ok(None);
                }
            }
        }
    }
}

/// Everything that must be right before the first entry is read.
async fn prepare(stream: &Stream, store: &Store, args: &WorkerArgs) -> Result<Topology, Failure> {
    stream.check_server().await?;
    stream.check_rights().await?;
    let topology = stream.settle_topology(args.topology.wanted()).await?;
    stream.refuse_stranded(topology).await?;
    stream.sync_clock().await?;
    store.check_pooling().await?;
    if args.no_migrate {
        store.check_schema().await?;
    } else {
        store.migrate().await?;
    }
    store.check_server().await?;
    let inspection = store.inspect().await?;
    inspection.check_columns()?;
    inspection.check_rights(&["SELECT", "INSERT", "UPDATE", "USAGE"])?;
    store.probe_write().await?;
    check::log_at_start(&stream.inspect().await?, inspection);
    Ok(topology)
}

async fn last_ids(stream: &Stream, topology: Topology) -> Result<Vec<(u16, EntryId)>, Failure> {
    let mut ids = Vec::new();
    for shard in 0..topology.shards {
        ids.push((shard, stream.shard_state(shard).await?.last_id));
    }
    Ok(ids)
}

/// `--once`: whoever did the work, it ends when no shard holds unsettled entries from before the start.
async fn stop_when_drained(stream: Stream, mut targets: Vec<(u16, EntryId)>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        while let Some((shard, target)) = targets.last() {
            match stream.is_drained(*shard, *target).await {
                Ok(true) => drop(targets.pop()),
                // The lanes tell of errors; here it is asked again.
                Ok(false) | Err(_) => break,
            }
        }
        if targets.is_empty() {
            stop.cancel();
        }
        tokio::select! {
            () = tokio::time::sleep(DRAIN_CHECK_EVERY) => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Entry ids carry the server's time; ours may drift from it.
async fn keep_clock(stream: Stream, stop: CancellationToken) {
    while !stop.is_cancelled() {
        tokio::select! {
            () = tokio::time::sleep(CLOCK_SYNC_EVERY) => {}
            () = stop.cancelled() => return,
        }
        if let Err(failure) = stream.sync_clock().await {
            tracing::debug!(error = %failure, "the server's clock could not be read");
        }
    }
}

async fn limit_drain(timeout: Duration, stop: CancellationToken, abort: CancellationToken) {
    stop.cancelled().await;
    tokio::time::sleep(timeout).await;
    tracing::warn!(?timeout, "the drain timeout is over: what is in hand stays pending and comes again");
    abort.cancel();
}

/// The first signal drains, the second ends at once; either way nothing is lost.
fn listen_for_signals(stop: CancellationToken, abort: CancellationToken) -> std::io::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn(async move {
        for (token, then) in [(stop, "finishing what is in hand"), (abort, "leaving at once")] {
            let name = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            };
            tracing::info!(signal = name, then, "stopping");
            token.cancel();
        }
    });
    Ok(())
}

/// Unique among processes of a host and among containers, and the same after a container's restart.
fn default_name() -> String {
    let host: String = gethostname::gethostname()
        .to_string_lossy()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '-' || c == '.' { c } else { '-' })
        .take(100)
        .collect();
    format!("{host}-{}", std::process::id())
}

fn pool_size(args: &WorkerArgs) -> usize {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    args.pool_size.unwrap_or(cores.clamp(2, 16))
}

fn store_settings(args: &WorkerArgs, name: &str) -> Result<StoreSettings, String> {
    Ok(StoreSettings {
        url: args.database.address.url()?.to_owned(),
        password: args.database.address.password(),
        application_name: format!("hexlane worker {name}"),
        pool_size: pool_size(args),
        statement_timeout: args.database.statement_timeout,
        dedup_window: args.times.dedup_window,
        transaction_pooling: args.database.transaction_pooling,
    })
}

fn lane_settings(args: &WorkerArgs, topology: Topology) -> LaneSettings {
    LaneSettings {
        block: args.times.block,
        min_idle: args.min_idle,
        max_deliveries: args.max_deliveries,
        reorder_window: args.times.reorder_window,
        read_rows: (READ_ROWS_OF_ALL_LANES / usize::from(topology.shards).max(1)).clamp(READ_ROWS_AT_LEAST, READ_ROWS),
        batch_rows: args.batch_rows,
        batch_bytes: (BATCH_BYTES_OF_ALL_LANES / usize::from(topology.shards).max(1)).max(BATCH_BYTES_AT_LEAST),
        limits: args.limits.limits(),
        h3_resolution: topology.h3_resolution,
        retry: args.retry.policy(),
        retention: args.times.retention,
    }
}
