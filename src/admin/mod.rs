//! HTTP for those who watch: `/metrics`, `/healthz`, `/readyz`.

mod serve;
pub(crate) mod shards;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::failure::{Failure, Target};
use crate::metrics::Meter;
use crate::store::Store;
use crate::stream::Stream;
use crate::stream::pending::ShardState;

/// For a machine that is busy with other things.
const GRACE: Duration = Duration::from_secs(10);
/// How long an answer is good enough.
const READY_FOR: Duration = Duration::from_millis(200);
/// A server that takes longer to answer a ping is not ready.
const PING_TIMEOUT: Duration = Duration::from_secs(2);

/// What the answers are made from.
#[derive(Clone)]
pub struct Watched {
    /// Counts.
    pub meter: Arc<Meter>,
    /// Pinged for readiness.
    pub stream: Stream,
    /// Pinged for readiness.
    pub store: Store,
    /// Whether the lanes run.
    pub started: Arc<AtomicBool>,
    /// Cancelled when the worker leaves.
    pub stop: CancellationToken,
    /// What a lane may wait for in one step, one after the other, besides the database.
    pub pauses: Duration,
    /// Whether the servers answered, and when they were asked: whoever asks us often, asks them no more often.
    pub answered: Answered,
    /// What came to each shard.
    pub recent: Arc<Mutex<shards::Recent>>,
}

/// Redis and PostgreSQL, and when.
pub type Answered = Arc<Mutex<Option<(Instant, bool, bool)>>>;

impl Watched {
    fn longest_silence(&self) -> Duration {
        // A writer's last statement, and for the next one to wait for a connection, to connect, to prepare it, and to
        // run it.
        let answers = self.store.answer_timeout().saturating_mul(4);
        answers.saturating_add(self.store.connect_timeout()).saturating_add(self.pauses + GRACE)
    }
}

/// Opens the address and answers until the process ends.
///
/// # Errors
/// If the address cannot be opened.
pub async fn serve(address: SocketAddr, watched: Watched) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    let routes = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthy))
        .route("/readyz", get(ready))
        .with_state(watched);
    tokio::spawn(serve::serve(listener, routes));
    Ok(address)
}

async fn metrics(State(watched): State<Watched>) -> impl IntoResponse {
    match exposition(&watched).await {
        Ok(text) => (StatusCode::OK, [(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            [(header::CONTENT_TYPE, "text/plain; charset=utf-8")],
            error.to_string().into_bytes(),
        ),
    }
}

async fn exposition(watched: &Watched) -> Result<Vec<u8>, prometheus::Error> {
    let mut text = watched.meter.exposition()?;
    // Without an answer of Redis they are absent: no number is better than an old one.
    if let Ok(Ok(owned)) = tokio::time::timeout(PING_TIMEOUT, of_shards(watched)).await {
        let skew = tokio::time::timeout(PING_TIMEOUT, skew_now(watched)).await.unwrap_or_default();
        text.extend(shards::exposition(&owned, skew, watched.stream.server_now_ms())?);
    }
    Ok(text)
}

/// How far the busiest shard of all is from the mean.
async fn skew_now(watched: &Watched) -> Option<f64> {
    let mut recent = watched.recent.lock().await;
    if recent.is_due(Instant::now()) {
        let added = watched.stream.entries_added(watched.meter.shards()).await.ok()?;
        recent.look(Instant::now(), added);
    }
    recent.skew()
}

/// The states of the shards that this worker owns.
async fn of_shards(watched: &Watched) -> Result<Vec<(u16, ShardState)>, Failure> {
    let owned = watched.meter.owned();
    let states = watched.stream.shard_states(&owned).await?;
    // What is wrong with one shard's keys hides no other.
    let mut known = Vec::new();
    for (shard, state) in owned.into_iter().zip(states) {
        match state {
            Ok(state) => known.push((shard, state)),
            // Its lane tells, and is counted: a scrape is no attempt.
            Err(failure) => tracing::debug!(error = %failure, "a shard cannot be measured"),
        }
    }
    Ok(known)
}

/// 200 while every lane comes to the end of its steps, whatever they wait for. A restart helps where
/// one does not; it helps nobody while a server is away.
async fn healthy(State(watched): State<Watched>) -> impl IntoResponse {
    match watched.meter.most_silent() {
        Some((shard, silence)) if silence > watched.longest_silence() => {
            let text = format!("the lane of shard {shard} has not come to the end of a step for {silence:?}\n");
            (StatusCode::SERVICE_UNAVAILABLE, text)
        }
        _ => (StatusCode::OK, "ok\n".to_owned()),
    }
}

/// 200 only while both servers answer and no lane waits for one of them.
async fn ready(State(watched): State<Watched>) -> impl IntoResponse {
    let (redis, postgres) = Box::pin(servers_answer(&watched)).await;
    let redis = redis && !watched.meter.is_troubled(Target::Redis);
    let postgres = postgres && !watched.meter.is_troubled(Target::Postgres);
    let started = watched.started.load(Ordering::Relaxed);
    let stopping = watched.stop.is_cancelled();
    let ready = redis && postgres && started && !stopping;
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = serde_json::json!({
        "ready": ready, "redis": redis, "postgres": postgres, "started": started, "stopping": stopping,
    });
    (status, [(header::CONTENT_TYPE, "application/json")], format!("{body}\n"))
}

async fn servers_answer(watched: &Watched) -> (bool, bool) {
    let mut answered = watched.answered.lock().await;
    if let Some((asked, redis, postgres)) = *answered
        && asked.elapsed() < READY_FOR
    {
        return (redis, postgres);
    }
    let (redis, postgres) = tokio::join!(answers(watched.stream.ping()), postgres_answers(&watched.store));
    *answered = Some((Instant::now(), redis, postgres));
    (redis, postgres)
}

/// In a task of its own: given up in mid-question, the connection would go back to the pool as it is.
async fn postgres_answers(store: &Store) -> bool {
    let store = store.clone();
    let ping = tokio::spawn(async move { store.ping().await });
    matches!(tokio::time::timeout(PING_TIMEOUT, ping).await, Ok(Ok(Ok(()))))
}

async fn answers(ping: impl Future<Output = Result<(), Failure>>) -> bool {
    matches!(tokio::time::timeout(PING_TIMEOUT, ping).await, Ok(Ok(())))
}
