//! Group commit: what several lanes want written at the same moment goes in one statement.
//!
//! A lane hands in one or two batches and waits. A few writers, as many as there are connections,
//! take what has gathered since the last statement: one lane's batch when little is going on, those
//! of many under load. So the number of shards decides neither the size of statements nor the number of
//! commits.
//!
//! A failure of a shared statement says nothing about any one batch. It is answered as
//! [`Refused::shared`], and the lane hands its batch in again, alone.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::event::{Event, Outcome};
use crate::failure::{Failure, Target};
use crate::fleet::lease::Lease;
use crate::store::Store;
use crate::store::statement::Writer;

use super::{Pulse, by_id};

/// Bytes of events in one shared statement.
const LARGEST_SHARED: usize = 4 << 20;
/// How long a shared statement waits for a row that somebody has locked: the lane whose row it is
/// then waits alone.
const SHARED_LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// One lane's batch, or a part of it.
pub(super) struct Request {
    /// The lane's events.
    pub events: Arc<Vec<Event>>,
    /// Which of them to write. Without the ledger: each feature once, sorted by its id. With it: in
    /// entry order.
    pub places: Vec<usize>,
    /// Their size.
    pub bytes: usize,
    /// Whether any has an event id.
    pub with_ledger: bool,
    /// Not in one statement with others.
    pub alone: bool,
    /// Nothing is sent once it is over.
    pub lease: Arc<Lease>,
    /// Nor once the lane is told to go.
    pub abort: CancellationToken,
    /// Of the lane: who waits while the writers turn is alive.
    pub pulse: Arc<Pulse>,
    /// What the batch is about.
    pub span: tracing::Span,
}

impl Request {
    /// What goes in its row `number`.
    fn event(&self, number: usize) -> &Event {
        &self.events[self.places[number]]
    }
}

/// Why a batch was not written.
#[derive(Clone)]
pub(super) struct Refused {
    /// What went wrong.
    pub failure: Failure,
    /// The statement held batches of other lanes too.
    pub shared: bool,
}

/// The outcome of each event, in the order of the request's places.
type Answer = Result<Vec<Outcome>, Refused>;

struct Waiting {
    request: Request,
    answer: oneshot::Sender<Answer>,
}

impl Waiting {
    /// Not if its lane has gone, whose shard may be somebody else's by now.
    fn is_wanted(&self) -> bool {
        self.request.lease.is_held() && !self.request.abort.is_cancelled() && !self.answer.is_closed()
    }
}

/// Takes the batches of all lanes of a worker.
pub struct GroupCommit {
    queue: Arc<Queue>,
    writers: usize,
    /// Cancelled when a writer has ended.
    broken: CancellationToken,
    /// End with this.
    _writers: JoinSet<()>,
}

#[derive(Default)]
struct Queue {
    /// For each lane, at the most, two batches in as many parts each as there are writers.
    waiting: Mutex<VecDeque<Waiting>>,
    arrived: Notify,
}

impl GroupCommit {
    /// Starts `writers`; a statement holds at most `most_rows`, unless one batch alone has more.
    pub fn start(store: &Store, writers: usize, most_rows: usize) -> Self {
        let queue = Arc::new(Queue::default());
        let broken = CancellationToken::new();
        let mut tasks = JoinSet::new();
        for _ in 0..writers.max(1) {
            let (queue, store, ended) = (queue.clone(), store.clone(), broken.clone().drop_guard());
            tasks.spawn(async move {
                let _ended = ended;
                write_for_ever(&queue, &store, most_rows).await;
            });
        }
        Self { queue, writers: writers.max(1), broken, _writers: tasks }
    }

    /// Statements that may be under way at once.
    pub(super) fn writers(&self) -> usize {
        self.writers
    }

    /// Whether no batch waits for a writer.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.locked().is_empty()
    }

    /// Waits until a writer has ended, which only a panic makes it do: the process has to end.
    pub async fn broken(&self) {
        self.broken.cancelled().await;
    }

    pub(super) async fn write(&self, request: Request) -> Answer {
        let (answer, answered) = oneshot::channel();
        self.queue.locked().push_back(Waiting { request, answer });
        self.queue.arrived.notify_one();
        answered.await.unwrap_or_else(|_| {
            Err(Refused { failure: Failure::lease_over(Target::Postgres, "writing"), shared: false })
        })
    }
}

impl Queue {
    fn locked(&self) -> std::sync::MutexGuard<'_, VecDeque<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The oldest request, and the next ones that may go with it.
    fn take(&self, most_rows: usize) -> Vec<Waiting> {
        let mut waiting = self.locked();
        let mut taken: Vec<Waiting> = Vec::new();
        let (mut rows, mut bytes) = (0, 0);
        while let Some(next) = waiting.front() {
            let (more_rows, more_bytes) = (next.request.places.len(), next.request.bytes);
            let fits = taken.first().is_none_or(|first: &Waiting| {
                !first.request.alone
                    && !next.request.alone
                    && first.request.with_ledger == next.request.with_ledger
                    && rows + more_rows <= most_rows
                    && bytes + more_bytes <= LARGEST_SHARED
            });
            if !fits {
                // For another writer, which may have been woken for something that is gone.
                self.arrived.notify_one();
                break;
            }
            (rows, bytes) = (rows + more_rows, bytes + more_bytes);
            taken.extend(waiting.pop_front());
        }
        taken.iter().chain(&*waiting).for_each(|each| each.request.pulse.lane());
        taken
    }

    fn put_back(&self, postponed: Vec<Waiting>) {
        let mut waiting = self.locked();
        for request in postponed.into_iter().rev() {
            waiting.push_front(request);
        }
        self.arrived.notify_one();
    }
}

async fn write_for_ever(queue: &Queue, store: &Store, most_rows: usize) {
    loop {
        if queue.locked().is_empty() {
            queue.arrived.notified().await;
            continue;
        }
        // Before anything is taken: connecting and preparing can last, and leases can end meanwhile.
        let writer = store.writer().await;
        let mut taken = queue.take(most_rows);
        let writer = match writer {
            Ok(writer) => writer,
            Err(failure) => {
                answer_all(taken, &Refused { failure, shared: false });
                continue;
            }
        };
        let (all, mut rows) = (taken.len(), sorted(&taken));
        let twice = in_two_requests(&taken, &rows);
        if !twice.is_empty() {
            queue.put_back(leave_out(&mut taken, &twice));
        }
        // The last moment before it is sent.
        taken.retain(Waiting::is_wanted);
        if taken.len() < all {
            rows = sorted(&taken);
        }
        write(writer, taken, &rows).await;
    }
}

fn answer_all(taken: Vec<Waiting>, refused: &Refused) {
    for waiting in taken {
        // Nobody waits any more if the lane has gone meanwhile.
        let _ = waiting.answer.send(Err(refused.clone()));
    }
}

/// A feature that has moved from one cell to another may stand in two lanes' batches. One statement
/// can write a row once only, so the later batch goes with the next one.
fn in_two_requests(taken: &[Waiting], rows: &[Row]) -> Vec<usize> {
    let pairs = rows.iter().zip(rows.iter().skip(1));
    let mut later: Vec<usize> = pairs
        .filter(|(a, b)| a.request != b.request && a.event(taken).feature_id == b.event(taken).feature_id)
        .map(|(_, later)| later.request)
        .collect();
    later.sort_unstable();
    later.dedup();
    later
}

fn leave_out(taken: &mut Vec<Waiting>, numbers: &[usize]) -> Vec<Waiting> {
    let (mut stay, mut postponed) = (Vec::with_capacity(taken.len()), Vec::new());
    for (number, waiting) in std::mem::take(taken).into_iter().enumerate() {
        let to = if numbers.binary_search(&number).is_ok() { &mut postponed } else { &mut stay };
        to.push(waiting);
    }
    *taken = stay;
    postponed
}

async fn write(writer: Writer<'_>, taken: Vec<Waiting>, rows: &[Row]) {
    let Some(first) = taken.first() else { return };
    let shared = taken.len() > 1;
    let lock_timeout = shared.then_some(SHARED_LOCK_TIMEOUT);
    let events: Vec<&Event> = rows.iter().map(|row| row.event(&taken)).collect();
    let span = statement_span(&taken, rows.len());
    let written = if first.request.with_ledger {
        writer.write_with_ledger(&events, lock_timeout).instrument(span).await
    } else {
        let written = writer.write_newest(&events, lock_timeout).instrument(span).await;
        written
            .map(|written| written.into_iter().map(|new| if new { Outcome::Applied } else { Outcome::Stale }).collect())
    };
    let outcomes = written.map(|outcomes| {
        let mut of_each: Vec<Vec<Outcome>> =
            taken.iter().map(|waiting| vec![Outcome::Stale; waiting.request.places.len()]).collect();
        for (row, outcome) in rows.iter().zip(outcomes) {
            of_each[row.request][row.number] = outcome;
        }
        of_each
    });
    match outcomes {
        Ok(of_each) => {
            for (waiting, outcomes) in taken.into_iter().zip(of_each) {
                // As in `answer_all`.
                let _ = waiting.answer.send(Ok(outcomes));
            }
        }
        Err(failure) => answer_all(taken, &Refused { failure, shared }),
    }
}

/// Below the first batch; the others are linked to it.
fn statement_span(taken: &[Waiting], rows: usize) -> tracing::Span {
    let mut batches = taken.iter().map(|waiting| &waiting.request.span);
    let span = tracing::debug_span!(
        parent: batches.next().and_then(tracing::Span::id), "statement", otel.kind = "client",
        db.system.name = "postgresql", statement.rows = rows, statement.batches = taken.len()
    );
    batches.for_each(|batch| {
        span.follows_from(batch);
    });
    span
}

/// One row of a statement: whose it is, and its number there.
#[derive(Clone, Copy)]
struct Row {
    request: usize,
    number: usize,
}

impl Row {
    fn event(self, taken: &[Waiting]) -> &Event {
        taken[self.request].request.event(self.number)
    }
}

/// Every row, sorted by feature: all writers lock in one order. Requests come sorted, so this merges
/// them; with the ledger, whose statement sorts for itself, the entry order within a feature stays.
fn sorted(taken: &[Waiting]) -> Vec<Row> {
    let mut rows = Vec::with_capacity(taken.iter().map(|waiting| waiting.request.places.len()).sum());
    for (request, waiting) in taken.iter().enumerate() {
        rows.extend((0..waiting.request.places.len()).map(|number| Row { request, number }));
    }
    if taken.len() > 1 {
        by_id::sort(&mut rows, |row| row.event(taken).feature_id.as_str());
    }
    rows
}
