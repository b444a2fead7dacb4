//! `hexlane check`: whether both servers are set up as the guarantee needs them, and what to change.

use std::io::{self, Write};
use std::time::Duration;

use serde_json::json;

use crate::cli::CheckArgs;
use crate::failure::Failure;
use crate::store::{self, Store};
use crate::stream::{self, Stream};

/// Clocks that differ by more make latencies and ages wrong, and observations seem to be in the future.
const CLOCKS_MAY_DIFFER: Duration = Duration::from_secs(1);

/// A dead letter that has lain there for longer holds `hexlane prune` back by as much.
const LETTERS_MAY_LIE: Duration = Duration::from_secs(24 * 3600);

/// As `hexlane migrate` makes them.
const COLUMNS: [(&str, &str); 9] = [
    ("feature_id", "text"),
    ("version", "bigint"),
    ("op", "text"),
    ("observation_time", "timestamp with time zone"),
    ("geometry", "geometry(Geometry,4326)"),
    ("geometry_z", "geometry(GeometryZ,4326)"),
    ("properties", "jsonb"),
    ("cell", "bigint"),
    ("applied_at", "timestamp with time zone"),
];

/// How bad it is; in the order of the exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// As it should be.
    Good,
    /// Something can be lost, or is misleading.
    Warning,
    /// A worker would not start, or could not keep its promise.
    Error,
}

impl Severity {
    fn as_str(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

struct Finding {
    severity: Severity,
    what: String,
    remedy: &'static str,
}

/// Everything that was found, in the order in which it was looked at.
#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn good(&mut self, what: impl Into<String>) {
        self.add(Severity::Good, what, "");
    }

    fn add(&mut self, severity: Severity, what: impl Into<String>, remedy: &'static str) {
        self.0.push(Finding { severity, what: what.into(), remedy });
    }

    /// True if it is well.
    fn result(&mut self, what: &str, result: Result<(), Failure>) -> bool {
        match result {
            Ok(()) => self.good(what),
            // Its own remedy is part of what it says.
            Err(failure) => self.add(Severity::Error, failure.to_string(), ""),
        }
        self.0.last().is_some_and(|last| last.severity == Severity::Good)
    }

    fn worst(&self) -> Severity {
        self.0.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Good)
    }
}

/// Runs the command; answers the worst that was found.
///
/// # Errors
/// A sentence for the user, if nothing could be asked.
pub async fn run(args: CheckArgs) -> Result<Severity, String> {
    let stream = args.redis.stream().await?;
    let store = args.database.store("hexlane check", Duration::ZERO).await?;
    let mut findings = Findings::default();
    judge_settings(&args, &mut findings);
    let redis = check_redis(&stream, &args, &mut findings).await;
    let postgres = check_postgres(&store, args.database.transaction_pooling, &mut findings).await;
    if let (Some(redis), Some(postgres)) = (redis, postgres) {
        judge_clock("Redis", "PostgreSQL's", redis - postgres, &mut findings);
    }
    let text = if args.json { as_json(&findings) } else { as_text(&findings) };
    io::stdout().write_all(text.as_bytes()).map_err(|error| error.to_string())?;
    Ok(findings.worst())
}

fn judge_settings(args: &CheckArgs, findings: &mut Findings) {
    match args.times.check(&args.retry) {
        Ok(()) => findings.good("the settings of a worker go together"),
        Err(sentence) => findings.add(Severity::Error, sentence, "change one of them; a worker would not start"),
    }
    if args.times.retention >= args.tombstone_retention {
        findings.add(
            Severity::Warning,
            "--retention is not shorter than --tombstone-retention: entries that come again from so long ago could \
             find no tombstone",
            "make --tombstone-retention longer",
        );
    }
}

/// Answers how far the server's clock is ahead of ours, in microseconds.
async fn check_redis(stream: &Stream, args: &CheckArgs, findings: &mut Findings) -> Option<i64> {
    if !findings.result(&format!("Redis answers at {}", stream.address()), stream.ping().await) {
        return None;
    }
    findings.result("Redis is of a version that hexlane works with, and no cluster", stream.check_server().await);
    match stream.read_topology(args.topology.wanted()).await {
        Ok(topology) => {
            findings.good(format!("{} shards by {}", topology.shards, topology.shard_by));
            findings.result("no stream beyond them holds anything unread", stream.refuse_stranded(topology).await);
            judge_letters(stream, topology.shards, findings).await;
        }
        Err(failure) => findings.add(Severity::Error, failure.to_string(), ""),
    }
    match stream.missing_rights().await {
        Ok(missing) if missing.is_empty() => findings.good("this user may run every command of a worker"),
        Ok(missing) => findings.add(
            Severity::Warning,
            format!("a worker could not work as this user, who may not run {}", missing.join(", ")),
            "nothing, if workers are other users; scripts/rights/redis.acl has what they need",
        ),
        Err(failure) => findings.add(Severity::Error, failure.to_string(), ""),
    }
    match stream.inspect().await {
        Ok(inspection) => {
            judge_redis(&inspection, findings);
            Some(inspection.clock_ahead_us)
        }
        Err(failure) => {
            findings.add(Severity::Error, failure.to_string(), "");
            None
        }
    }
}

async fn judge_letters(stream: &Stream, shards: u16, findings: &mut Findings) {
    let oldest = match stream.oldest_dead_letter(shards).await {
        Ok(oldest) => oldest,
        Err(failure) => return findings.add(Severity::Error, failure.to_string(), ""),
    };
    let Some(oldest) = oldest else { return findings.good("no dead letter holds `hexlane prune` back") };
    let age = Duration::from_secs_f64(oldest.entered.seconds_until(stream.server_now_ms()).max(0.0));
    if age > LETTERS_MAY_LIE {
        findings.add(
            Severity::Warning,
            format!(
                "dead letter {} in {}, whose event came {} days ago, holds `hexlane prune` back by as long",
                oldest.id,
                oldest.stream,
                age.as_secs() / (24 * 3600)
            ),
            "look at it with `hexlane dead show`, then replay or purge it",
        );
    } else {
        findings.good("no dead letter holds `hexlane prune` back for long");
    }
}

fn judge_redis(server: &stream::inspect::Inspection, findings: &mut Findings) {
    // Valkey calls itself Redis 7 as well.
    findings.good(match server.info("valkey_version") {
        "" => format!("it is Redis {}", server.info("redis_version")),
        version => format!("it is Valkey {version}"),
    });
    if server.info("role") == "slave" {
        findings.add(
            Severity::Error,
            "this Redis is a replica, which takes no writes",
            "point --redis-url at the primary",
        );
    }
    match (server.info("maxmemory_policy"), server.info("maxmemory")) {
        ("noeviction", _) => findings.good("Redis evicts nothing"),
        (policy, _) if policy.starts_with("volatile-") => findings.add(
            Severity::Warning,
            format!("maxmemory-policy is {policy}: at its limit Redis evicts what expires, which is the leases"),
            "set maxmemory-policy noeviction",
        ),
        (policy, "0" | "") => findings.add(
            Severity::Warning,
            format!("maxmemory-policy is {policy}: with a maxmemory, Redis would evict whole streams"),
            "set maxmemory-policy noeviction",
        ),
        (policy, _) => findings.add(
            Severity::Error,
            format!("maxmemory-policy is {policy}: at its limit Redis evicts whole streams, unread events with them"),
            "set maxmemory-policy noeviction",
        ),
    }
    if server.info("aof_last_write_status") == "err" {
        let what = "Redis could not write its append-only file";
        findings.add(Severity::Error, what, "see its log; mostly the disk is full");
    } else if server.info("aof_enabled") == "1" && server.appends_without_sync {
        findings.add(
            Severity::Warning,
            "appendfsync is no: a crash of its machine loses what the kernel had not written yet, mostly half a minute",
            "set appendfsync everysec or always",
        );
    } else if server.info("aof_enabled") == "1" {
        findings.good("Redis keeps an append-only file");
    } else {
        findings.add(
            Severity::Warning,
            "Redis keeps no append-only file: a restart loses events that were accepted since its last snapshot",
            "set appendonly yes, and appendfsync everysec or always",
        );
    }
    judge_clock("Redis", "this machine's", server.clock_ahead_us, findings);
}

/// Answers how far the server's clock is ahead of ours, in microseconds.
async fn check_postgres(store: &Store, pooled: bool, findings: &mut Findings) -> Option<i64> {
    if !findings.result(&format!("PostgreSQL answers at {}", store.address()), store.ping().await) {
        return None;
    }
    findings.result("no pooler stands between that hexlane was not told of", store.check_pooling().await);
    findings.result("PostgreSQL and PostGIS are of versions that hexlane works with", store.check_server().await);
    if !findings.result("the schema is the right one", store.check_schema().await) {
        return None;
    }
    match store.inspect().await {
        Ok(inspection) => {
            judge_postgres(&inspection, findings);
            if pooled && inspection.settings.get("statement_timeout").is_some_and(|timeout| timeout == "0") {
                findings.add(
                    Severity::Warning,
                    "statement_timeout is 0, and through a pooler hexlane cannot set it: a statement that hangs goes on \
                     on the server after hexlane has given it up",
                    "ALTER ROLE … SET statement_timeout = '30s' for the user in --database-url",
                );
            }
            Some(inspection.clock_ahead_us)
        }
        Err(failure) => {
            findings.add(Severity::Error, failure.to_string(), "");
            None
        }
    }
}

fn judge_postgres(server: &store::inspect::Inspection, findings: &mut Findings) {
    let setting = |name: &str| server.settings.get(name).map_or("", String::as_str);
    findings.good(format!("it is PostgreSQL {}, with PostGIS {}", setting("server_version"), server.postgis));
    if server.in_recovery {
        let remedy = "point --database-url at the primary";
        findings.add(Severity::Error, "this PostgreSQL is a standby, which takes no writes", remedy);
    }
    let found = |column: &str| server.columns.get(column).map_or("absent", String::as_str);
    let wrong: Vec<_> = COLUMNS.into_iter().filter(|(column, wanted)| found(column) != *wanted).collect();
    for (column, wanted) in &wrong {
        findings.add(
            Severity::Error,
            format!("feature_state.{column} is {}, not {wanted}", found(column)),
            "give it back the type that `hexlane migrate --print` shows",
        );
    }
    if wrong.is_empty() {
        findings.good("every column of feature_state has its type, the geometries SRID 4326");
    }
    let (to_prune, to_work): (Vec<&String>, Vec<&String>) =
        server.missing_rights.iter().partition(|right| right.ends_with(" DELETE"));
    for (severity, rights, remedy) in [
        (Severity::Error, to_work, "grant it"),
        (Severity::Warning, to_prune, "grant it to whoever runs `hexlane prune`; a worker does not need it"),
    ] {
        if !rights.is_empty() {
            let rights: Vec<&str> = rights.into_iter().map(String::as_str).collect();
            findings.add(severity, format!("this user lacks {}", rights.join(", ")), remedy);
        }
    }
    if server.missing_rights.is_empty() {
        findings.good("this user may read and write both tables");
    }
    for (name, loses) in [
        ("fsync", "a crash of its machine can leave a database that cannot be used"),
        ("full_page_writes", "a crash of its machine can leave torn pages"),
    ] {
        match server.settings.get(name).map(String::as_str) {
            Some("off") => {
                findings.add(Severity::Error, format!("{name} is off: {loses}"), "set it to on, and restart");
            }
            _ => findings.good(format!("{name} is on")),
        }
    }
    let by_default = &server.synchronous_commit;
    findings.good(format!("synchronous_commit is {by_default} by default, and hexlane's own setting is on"));
    let waits_for_none = setting("synchronous_standby_names").is_empty();
    if server.asynchronous_standbys > 0 && waits_for_none {
        findings.add(
            Severity::Warning,
            format!(
                "commits wait for none of {} standbys: one that is promoted may lack rows that were answered",
                server.asynchronous_standbys
            ),
            "set synchronous_standby_names, or run `hexlane rewind` after a promotion",
        );
    }
    if server.hidden_standbys > 0 {
        findings.add(
            Severity::Warning,
            format!(
                "there are {} standbys, and this user may not see whether commits wait for them",
                server.hidden_standbys
            ),
            "look into pg_stat_replication as a superuser, or GRANT pg_read_all_stats to this user",
        );
    }
    judge_clock("PostgreSQL", "this machine's", server.clock_ahead_us, findings);
}

fn judge_clock(server: &str, other: &str, ahead_us: i64, findings: &mut Findings) {
    let seconds = ahead_us as f64 / 1e6;
    if seconds.abs() > CLOCKS_MAY_DIFFER.as_secs_f64() {
        findings.add(
            Severity::Warning,
            format!("the clock of {server} is {seconds:+.1} s from {other}"),
            "let both keep time by NTP",
        );
    } else {
        findings.good(format!("the clock of {server} agrees with {other}"));
    }
}

fn as_text(findings: &Findings) -> String {
    let line = |finding: &Finding| {
        let remedy = if finding.remedy.is_empty() { String::new() } else { format!("; {}", finding.remedy) };
        format!("{:<8} {}{remedy}\n", finding.severity.as_str(), finding.what.replace('\n', " "))
    };
    findings.0.iter().map(line).collect()
}

fn as_json(findings: &Findings) -> String {
    let object = |finding: &Finding| json!({ "severity": finding.severity.as_str(), "what": finding.what, "remedy": finding.remedy });
    let all: Vec<_> = findings.0.iter().map(object).collect();
    format!("{}\n", json!({ "worst": findings.worst().as_str(), "findings": all }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_redis(info: &str, appends_without_sync: bool) -> String {
        let mut findings = Findings::default();
        let good = "maxmemory_policy:noeviction\naof_enabled:1\naof_last_write_status:ok\n";
        let mut server = stream::inspect::Inspection::of(&format!("{good}{info}"));
        server.appends_without_sync = appends_without_sync;
        judge_redis(&server, &mut findings);
        as_text(&findings)
    }

    #[test]
    fn each_fault_of_a_redis_is_found() {
        for (info, wanted) in [
            ("redis_version:7.0.15", "good     it is Redis 7.0.15"),
            ("redis_version:7.2.4\nvalkey_version:8.1.1", "good     it is Valkey 8.1.1"),
            ("role:slave", "error    this Redis is a replica"),
            ("maxmemory_policy:volatile-lru", "warning  maxmemory-policy is volatile-lru"),
            ("maxmemory_policy:allkeys-lru\nmaxmemory:0", "warning  maxmemory-policy is allkeys-lru: with a maxmemory"),
            ("maxmemory_policy:allkeys-lru\nmaxmemory:9", "error    maxmemory-policy is allkeys-lru"),
            ("aof_enabled:0", "warning  Redis keeps no append-only file"),
            ("aof_last_write_status:err", "error    Redis could not write its append-only file"),
        ] {
            let text = of_redis(info, false);
            assert!(text.contains(wanted), "{info}: {text}");
        }
        assert!(of_redis("", true).contains("warning  appendfsync is no"));
        assert!(!of_redis("", false).contains("warning"));
    }

    fn of_postgres(change: impl FnOnce(&mut store::inspect::Inspection)) -> String {
        let mut server = store::inspect::Inspection {
            columns: COLUMNS.map(|(name, of_type)| (name.to_owned(), of_type.to_owned())).into(),
            synchronous_commit: "on".into(),
            ..Default::default()
        };
        change(&mut server);
        let mut findings = Findings::default();
        judge_postgres(&server, &mut findings);
        as_text(&findings)
    }

    #[test]
    fn each_fault_of_a_postgres_is_found() {
        assert!(!of_postgres(|_| {}).lines().any(|line| !line.starts_with("good ")));
        let wrong = of_postgres(|server| server.in_recovery = true);
        assert!(wrong.contains("error    this PostgreSQL is a standby"), "{wrong}");
        let wrong = of_postgres(|server| drop(server.columns.insert("cell".into(), "text".into())));
        assert!(wrong.contains("error    feature_state.cell is text, not bigint; give it back"), "{wrong}");
        let wrong = of_postgres(|server| drop(server.columns.remove("geometry_z")));
        assert!(wrong.contains("error    feature_state.geometry_z is absent"), "{wrong}");
        let wrong = of_postgres(|server| server.missing_rights.push("processed_event DELETE".into()));
        assert!(wrong.contains("warning  this user lacks processed_event DELETE; grant it to whoever"), "{wrong}");
        let wrong = of_postgres(|server| server.missing_rights.push("feature_state UPDATE".into()));
        assert!(wrong.contains("error    this user lacks feature_state UPDATE"), "{wrong}");
        for name in ["fsync", "full_page_writes"] {
            let wrong = of_postgres(|server| drop(server.settings.insert(name.into(), "off".into())));
            assert!(wrong.contains(&format!("error    {name} is off")), "{wrong}");
        }
        let wrong = of_postgres(|server| server.asynchronous_standbys = 2);
        assert!(wrong.contains("warning  commits wait for none of 2 standbys"), "{wrong}");
        let right = of_postgres(|server| {
            server.asynchronous_standbys = 1;
            server.settings.insert("synchronous_standby_names".into(), "*".into());
        });
        assert!(!right.contains("warning"), "{right}");
        let wrong = of_postgres(|server| server.hidden_standbys = 1);
        assert!(wrong.contains("warning  there are 1 standbys"), "{wrong}");
        let said = of_postgres(|server| server.synchronous_commit = "off".into());
        assert!(said.contains("synchronous_commit is off by default, and hexlane's own setting is on"), "{said}");
    }

    #[test]
    fn clocks_may_differ_by_a_second() {
        let judge = |ahead_us| {
            let mut findings = Findings::default();
            judge_clock("Redis", "PostgreSQL's", ahead_us, &mut findings);
            as_text(&findings)
        };
        assert!(judge(900_000).starts_with("good     the clock of Redis agrees with PostgreSQL's"));
        assert!(judge(-2_000_000).starts_with("warning  the clock of Redis is -2.0 s from PostgreSQL's"));
    }
}
