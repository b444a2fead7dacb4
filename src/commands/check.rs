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
    check_redis(&stream, &args, &mut findings).await;
    check_postgres(&store, args.database.transaction_pooling, &mut findings).await;
    let text = if args.json { as_json(&findings) } else { as_text(&findings) };
    io::stdout().write_all(text.as_bytes()).map_err(|error| error.to_string())?;
    Ok(findings.worst())
}

async fn check_redis(stream: &Stream, args: &CheckArgs, findings: &mut Findings) {
    if !findings.result(&format!("Redis answers at {}", stream.address()), stream.ping().await) {
        return;
    }
    findings.result("Redis is of a version that hexlane works with, and no cluster", stream.check_server().await);
    match stream.read_topology(args.topology.wanted()).await {
        Ok(topology) => {
            findings.good(format!("{} shards by {}", topology.shards, topology.shard_by));
            findings.result("no stream beyond them holds anything unread", stream.refuse_stranded(topology).await);
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
        Ok(inspection) => judge_redis(&inspection, findings),
        Err(failure) => findings.add(Severity::Error, failure.to_string(), ""),
    }
}

fn judge_redis(server: &stream::inspect::Inspection, findings: &mut Findings) {
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
    } else if server.info("aof_enabled") == "1" {
        findings.good("Redis keeps an append-only file");
    } else {
        findings.add(
            Severity::Warning,
            "Redis keeps no append-only file: a restart loses events that were accepted since its last snapshot",
            "set appendonly yes, and appendfsync everysec or always",
        );
    }
    judge_clock("Redis", server.clock_ahead_us, findings);
}

async fn check_postgres(store: &Store, pooled: bool, findings: &mut Findings) {
    if !findings.result(&format!("PostgreSQL answers at {}", store.address()), store.ping().await) {
        return;
    }
    findings.result("no pooler stands between that hexlane was not told of", store.check_pooling().await);
    findings.result("PostgreSQL and PostGIS are of versions that hexlane works with", store.check_server().await);
    if !findings.result("the schema is the right one", store.check_schema().await) {
        return;
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
        }
        Err(failure) => findings.add(Severity::Error, failure.to_string(), ""),
    }
}

fn judge_postgres(server: &store::inspect::Inspection, findings: &mut Findings) {
    if server.in_recovery {
        let remedy = "point --database-url at the primary";
        findings.add(Severity::Error, "this PostgreSQL is a standby, which takes no writes", remedy);
    }
    for (column, wanted) in [("geometry", "geometry(Geometry,4326)"), ("geometry_z", "geometry(GeometryZ,4326)")] {
        match server.columns.get(column) {
            Some(found) if found == wanted => findings.good(format!("feature_state.{column} is {wanted}")),
            found => findings.add(
                Severity::Error,
                format!("feature_state.{column} is {}, not {wanted}", found.map_or("absent", String::as_str)),
                "give it back the type that `hexlane migrate --print` shows",
            ),
        }
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
    for (setting, loses) in [
        ("fsync", "a crash of its machine can leave a database that cannot be used"),
        ("full_page_writes", "a crash of its machine can leave torn pages"),
    ] {
        match server.settings.get(setting).map(String::as_str) {
            Some("off") => {
                findings.add(Severity::Error, format!("{setting} is off: {loses}"), "set it to on, and restart");
            }
            _ => findings.good(format!("{setting} is on")),
        }
    }
    let waits_for_none = server.settings.get("synchronous_standby_names").is_none_or(String::is_empty);
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
    judge_clock("PostgreSQL", server.clock_ahead_us, findings);
}

fn judge_clock(server: &str, ahead_us: i64, findings: &mut Findings) {
    let seconds = ahead_us as f64 / 1e6;
    if seconds.abs() > CLOCKS_MAY_DIFFER.as_secs_f64() {
        findings.add(
            Severity::Warning,
            format!("the clock of {server} is {seconds:+.1} s from this machine's"),
            "let both keep time by NTP",
        );
    } else {
        findings.good(format!("the clock of {server} agrees with this machine's"));
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
