//! The one place that decides what an error of a server means, and how long to wait.
//!
//! Everything that Redis or PostgreSQL can answer falls into one [`Class`]; the adapters hand over
//! the server's own code and never decide themselves.

use std::fmt;
use std::time::Duration;

use backoff::backoff::Backoff;
use backoff::exponential::ExponentialBackoff;
use backoff::{Clock, SystemClock};
use tokio_util::sync::CancellationToken;

/// Which server an error came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The streams.
    Redis,
    /// The table.
    Postgres,
}

impl Target {
    /// The label used in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Postgres => "postgres",
        }
    }
}

/// What is to be done about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The server is away, busy or changing: the same work again, later, for ever.
    Transient,
    /// As transient, but the work itself may be what ends the connection or the backend.
    Suspect,
    /// The row is what the database refuses.
    Row,
    /// The consumer group or its stream is not there (any more).
    GroupMissing,
    /// Nothing will change until somebody changes it. Ends the process at start; at run time it is
    /// retried like a transient error and logged with the remedy.
    Fatal,
}

/// An error of a server, judged.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The server.
    pub target: Target,
    /// The verdict.
    pub class: Class,
    /// SQLSTATE or Redis error code; `io` or `timeout` where the server did not answer.
    pub code: String,
    /// What was being done and what went wrong. Never holds a password or a row's contents.
    pub text: String,
    /// What an operator can do about it.
    pub remedy: Option<&'static str>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} [{}]", self.target.as_str(), self.text, self.code)?;
        match self.remedy {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}

/// The sentence for the user that a command ends with.
impl From<Failure> for String {
    fn from(failure: Failure) -> Self {
        failure.to_string()
    }
}

impl Failure {
    /// Judges an answer of PostgreSQL by its SQLSTATE.
    /// See <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
    pub fn postgres(sqlstate: &str, text: String) -> Self {
        let (class, remedy) = judge_sqlstate(sqlstate, &text);
        Self { target: Target::Postgres, class, code: sqlstate.to_owned(), text, remedy }
    }

    /// Judges an answer of Redis by its error code.
    pub fn redis(code: &str, text: String) -> Self {
        let (class, remedy) = judge_redis_code(code);
        Self { target: Target::Redis, class, code: code.to_owned(), text, remedy }
    }

    /// The server did not answer: the connection was refused, lost, or too slow.
    pub fn silence(target: Target, class: Class, code: &'static str, text: String) -> Self {
        Self { target, class, code: code.to_owned(), text, remedy: None }
    }

    /// The server took longer than it may.
    pub fn no_answer(target: Target, doing: &str) -> Self {
        Self::silence(target, Class::Transient, "timeout", format!("{doing}: no answer in time"))
    }

    /// If the text of an error is about TLS: what is wrong with which certificate.
    pub fn tls(target: Target, text: &str) -> Option<Self> {
        let (_, sentence, remedy) = TLS_TROUBLE.iter().find(|(sign, ..)| text.contains(sign))?;
        Some(Self::fatal(target, "tls", format!("{sentence} ({text})"), remedy))
    }

    /// The lease was over before `doing` was sent.
    pub fn lease_over(target: Target, doing: &str) -> Self {
        Self::silence(target, Class::Transient, "lease", format!("{doing}: the lease was over before it was sent"))
    }

    /// Something that only a change of settings or servers can mend.
    pub fn fatal(target: Target, code: &'static str, text: String, remedy: &'static str) -> Self {
        Self { target, class: Class::Fatal, code: code.to_owned(), text, remedy: Some(remedy) }
    }

    /// Of a step that no row takes part in: whatever the code, no row is to blame.
    pub fn about_no_row(mut self) -> Self {
        if matches!(self.class, Class::Row | Class::Suspect) {
            self.class = Class::Transient;
        }
        self
    }

    /// Whether the server did not answer at all.
    pub fn is_silence(&self) -> bool {
        matches!(self.code.as_str(), "io" | "timeout")
    }

    /// Whether waiting will not help.
    pub fn is_fatal(&self) -> bool {
        self.class == Class::Fatal
    }
}

/// As rustls words it, as we do, and what to do about it.
const TLS_TROUBLE: [(&str, &str, &str); 11] = [
    (
        "not valid for name",
        "the server's certificate is made out to another host name",
        "use the name that stands in the certificate, or have one made out to this name",
    ),
    ("certificate expired", "the server's certificate has expired", "renew it, and look at this machine's clock"),
    ("certificate not valid yet", "the server's certificate is not valid yet", "look at this machine's clock"),
    (
        "UnknownIssuer",
        "the server's certificate is signed by an authority that is not trusted here",
        "name the authority's certificate with sslrootcert in --database-url, or with --redis-ca",
    ),
    (
        "BadSignature",
        "the server's certificate is not signed by the authority that it names",
        "name the right authority's certificate with sslrootcert in --database-url, or with --redis-ca",
    ),
    (
        "invalid peer certificate",
        "the server's certificate is refused",
        "have a certificate made that is right for a server of this name",
    ),
    (
        "CertificateRequired",
        "the server wants a certificate of ours",
        "name it and its key: sslcert and sslkey in --database-url, --redis-cert and --redis-key",
    ),
    ("fatal alert: CertificateExpired", "our certificate has expired", "renew it, and look at the server's clock"),
    (
        "fatal alert: UnknownCA",
        "our certificate is signed by an authority that the server does not trust",
        "have it signed by one that it trusts: ssl_ca_file of PostgreSQL, tls-ca-cert-file of Redis",
    ),
    (
        "received fatal alert",
        "the server refuses our certificate or our TLS",
        "have a certificate signed by an authority that the server trusts; TLS 1.2 or newer is needed",
    ),
    (
        "server does not support TLS",
        "the server does not speak TLS",
        "switch TLS on there; if it is on, somebody stands between",
    ),
];

fn judge_sqlstate(sqlstate: &str, text: &str) -> (Class, Option<&'static str>) {
    let class = match sqlstate {
        "28000" if text.contains("client certificate") => {
            return (Class::Fatal, Some("name one and its key with sslcert and sslkey in --database-url"));
        }
        "28000" if text.contains("pg_hba.conf") => {
            let remedy = "have a line for this user, host and encryption put into pg_hba.conf, or change sslmode";
            return (Class::Fatal, Some(remedy));
        }
        "28P01" | "28000" => return (Class::Fatal, Some("check user and password in --database-url")),
        "3D000" => return (Class::Fatal, Some("create the database, or correct its name in --database-url")),
        "42501" => return (Class::Fatal, Some("grant the missing right to the user in --database-url")),
        "42P01" | "42703" => {
            return (Class::Fatal, Some("run `hexlane migrate` against this database, or grant USAGE on its schema"));
        }
        "3F000" => return (Class::Fatal, Some("grant USAGE and CREATE on a schema of the search_path")),
        "42883" | "42704" | "0A000" | "58P01" => {
            return (Class::Fatal, Some("install PostGIS 3.3 or newer and run `hexlane migrate`"));
        }
        "25006" => return (Class::Transient, Some("the server is read-only: waiting for a writable primary")),
        "26000" | "42P05" => {
            return (
                Class::Transient,
                Some("if a pooler in transaction mode stands between, say --transaction-pooling"),
            );
        }
        // 57014 is the statement timeout, 53200 out of memory: the batch itself may be the cause.
        "57014" | "53200" => Class::Suspect,
        "XX000" => Class::Row,
        // A trigger or a view of the user's that refuses the row.
        "P0001" | "44000" => Class::Row,
        _ => match sqlstate.get(..2) {
            Some("22" | "23" | "54") => Class::Row,
            _ => Class::Transient,
        },
    };
    (class, None)
}

fn judge_redis_code(code: &str) -> (Class, Option<&'static str>) {
    match code {
        "NOGROUP" | "UNBLOCKED" => (Class::GroupMissing, None),
        "WRONGPASS" | "NOAUTH" => (Class::Fatal, Some("check user and password in --redis-url")),
        "NOPERM" => (Class::Fatal, Some("grant the missing command or key to the user in --redis-url")),
        "WRONGTYPE" => (Class::Fatal, Some("a key of hexlane's holds something else: rename or delete that key")),
        "OOM" => (Class::Transient, Some("Redis is at its memory limit: raise maxmemory or free memory")),
        "MISCONF" => (Class::Transient, Some("Redis cannot persist: look at its log and disk")),
        "READONLY" | "MASTERDOWN" => (Class::Transient, Some("this Redis is a replica: waiting for the primary")),
        "NOREPLICAS" => (
            Class::Transient,
            Some("too few replicas follow closely: look at them, at min-replicas-to-write and min-replicas-max-lag"),
        ),
        "LOADING" => (Class::Transient, Some("Redis is reading its data after a start: waiting for it")),
        _ => (Class::Transient, None),
    }
}

/// How long to wait between attempts.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// The longest first wait.
    pub base: Duration,
    /// The longest wait ever, jitter included.
    pub cap: Duration,
}

impl RetryPolicy {
    /// Full jitter: wait number n is drawn evenly from 0 to min(cap, base × 2^n), so that replicas
    /// that failed together do not come back together. It never gives up.
    /// See <https://aws.amazon.com/builders-library/timeouts-retries-and-backoff-with-jitter/>.
    pub fn start(self) -> Retry {
        self.start_by(SystemClock::default())
    }

    fn start_by<C: Clock>(self, clock: C) -> Retry<C> {
        // A randomization factor of 1 draws from 0 to twice the interval: hence the halves.
        Retry(ExponentialBackoff {
            current_interval: self.base / 2,
            initial_interval: self.base / 2,
            max_interval: self.cap / 2,
            multiplier: 2.0,
            randomization_factor: 1.0,
            max_elapsed_time: None,
            start_time: clock.now(),
            clock,
        })
    }
}

/// One series of attempts.
pub struct Retry<C = SystemClock>(ExponentialBackoff<C>);

impl<C: Clock> Retry<C> {
    /// The next wait.
    pub fn next_wait(&mut self) -> Duration {
        self.0.next_backoff().unwrap_or(self.0.max_interval)
    }

    /// Waits; false if `cancel` came first.
    pub async fn pause(&mut self, cancel: &CancellationToken) -> bool {
        let wait = self.next_wait();
        tokio::select! {
            () = tokio::time::sleep(wait) => true,
            () = cancel.cancelled() => false,
        }
    }

    /// The same, but where `hope` comes first, only for as long as a first wait: not all at once.
    pub async fn pause_unless<T>(&mut self, hope: impl Future<Output = T>, cancel: &CancellationToken) -> bool {
        let wait = self.next_wait();
        tokio::select! {
            () = tokio::time::sleep(wait) => true,
            () = cancel.cancelled() => false,
            _ = hope => {
                self.reset();
                self.pause(cancel).await
            }
        }
    }

    /// Starts anew after a success.
    pub fn reset(&mut self) {
        self.0.reset();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::Cell;
    use std::time::Instant;

    use super::*;

    #[test]
    fn sqlstates_fall_into_the_designed_classes() {
        let class = |code| Failure::postgres(code, String::new()).class;
        for code in ["08006", "25006", "40001", "40P01", "53100", "53300", "55P03", "57P01", "57P02", "57P03"] {
            assert_eq!(class(code), Class::Transient, "{code}");
        }
        for code in ["22P05", "22003", "23514", "54000", "XX000"] {
            assert_eq!(class(code), Class::Row, "{code}");
        }
        for code in ["53200", "57014"] {
            assert_eq!(class(code), Class::Suspect, "{code}");
        }
        for code in ["28P01", "42501", "42P01"] {
            assert_eq!(class(code), Class::Fatal, "{code}");
        }
    }

    #[test]
    fn full_jitter_stays_within_base_and_cap_and_never_ends() {
        let policy = RetryPolicy { base: Duration::from_millis(300), cap: Duration::from_secs(30) };
        let mut longest = Duration::ZERO;
        for _ in 0..200 {
            let mut retry = policy.start();
            assert!(retry.next_wait() <= policy.base);
            longest = (0..50).map(|_| retry.next_wait()).max().unwrap().max(longest);
        }
        assert!(longest <= policy.cap, "{longest:?}");
        assert!(longest > policy.cap / 2, "{longest:?}");
    }

    /// Left to itself the library gives up after 15 minutes, counted from the start.
    #[test]
    fn no_time_ends_or_evens_out_the_waits() {
        struct Told<'a>(&'a Cell<Instant>);
        impl Clock for Told<'_> {
            fn now(&self) -> Instant {
                self.0.get()
            }
        }
        let policy = RetryPolicy { base: Duration::from_millis(300), cap: Duration::from_secs(30) };
        let now = Cell::new(Instant::now());
        let mut retry = policy.start_by(Told(&now));
        let pass = |hours: u64| now.set(now.get() + Duration::from_secs(hours * 3600));
        // A day in which all is well, then two in which nothing is.
        pass(24);
        let waits: Vec<Duration> = std::iter::repeat_with(|| {
            pass(1);
            retry.next_wait()
        })
        .take(48)
        .collect();
        assert!(waits.windows(2).all(|two| two[0] != two[1]), "each is drawn: {waits:?}");
        assert!(waits.iter().all(|wait| *wait <= policy.cap), "{waits:?}");
        assert!(waits.iter().any(|wait| *wait > policy.cap / 2), "{waits:?}");
    }

    #[tokio::test]
    async fn hope_shortens_a_long_pause() {
        let policy = RetryPolicy { base: Duration::from_millis(1), cap: Duration::from_secs(24 * 3600) };
        let mut retry = policy.start();
        for _ in 0..40 {
            retry.next_wait();
        }
        let never = CancellationToken::new();
        let paused = retry.pause_unless(std::future::ready(()), &never);
        assert_eq!(tokio::time::timeout(Duration::from_secs(60), paused).await, Ok(true));
        never.cancel();
        assert!(!retry.pause_unless(std::future::pending::<()>(), &never).await);
    }
}
