//! What `hexlane check` says of Redis.

use std::time::Duration;

use super::findings::{Findings, Severity};
use crate::cli::CheckArgs;
use crate::stream::Stream;
use crate::stream::inspect::Inspection;

/// A dead letter that has lain there for longer holds `hexlane prune` back by as much.
const LETTERS_MAY_LIE: Duration = Duration::from_secs(24 * 3600);

/// Answers how far the server's clock is ahead of ours, in microseconds.
pub(super) async fn check(stream: &Stream, args: &CheckArgs, findings: &mut Findings) -> Option<i64> {
    let answer = stream.ping().await;
    // One that cannot persist refuses even this, and tells the reason where it is asked for that.
    let is_away = answer.as_ref().is_err_and(|failure| failure.code != "MISCONF");
    findings.result(&format!("Redis answers at {}", stream.address()), answer);
    if is_away {
        return None;
    }
    findings.result("Redis is of a version that hexlane works with, and no cluster", stream.check_server().await);
    match stream.read_topology(args.topology.wanted()).await {
        Ok(topology) => {
            findings.good(format!("{} shards by {}", topology.shards, topology.shard_by));
            findings.result("no stream beyond them holds anything unread", stream.refuse_stranded(topology).await);
            judge_letters(stream, topology.shards, findings).await;
        }
        Err(failure) => findings.failed(failure),
    }
    match stream.missing_rights().await {
        Ok(missing) if missing.is_empty() => findings.good("this user may run every command of a worker"),
        Ok(missing) => findings.add(
            Severity::Warning,
            format!("a worker could not work as this user, who may not run {}", missing.join(", ")),
            "nothing, if workers are other users; scripts/rights/redis.acl has what they need",
        ),
        Err(failure) => findings.failed(failure),
    }
    match stream.inspect().await {
        Ok(mut inspection) => {
            inspection.appendfsync = stream.appendfsync().await;
            judge(&inspection, findings);
            Some(inspection.clock_ahead_us)
        }
        Err(failure) => {
            findings.failed(failure);
            None
        }
    }
}

async fn judge_letters(stream: &Stream, shards: u16, findings: &mut Findings) {
    let oldest = match stream.oldest_dead_letter(shards).await {
        Ok(oldest) => oldest,
        Err(failure) => return findings.failed(failure),
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

pub(super) fn judge(server: &Inspection, findings: &mut Findings) {
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
    } else if server.info("aof_enabled") == "1" {
        match server.appendfsync.as_deref() {
            Some("no") => findings.add(
                Severity::Warning,
                "appendfsync is no: a crash of its machine loses what the kernel had not written yet, mostly half a \
                 minute",
                "set appendfsync everysec or always",
            ),
            Some(sync) => findings.good(format!("Redis keeps an append-only file, with appendfsync {sync}")),
            None => findings.good(
                "Redis keeps an append-only file; its appendfsync, which should be everysec or always, this user may \
                 not ask for",
            ),
        }
    } else {
        findings.add(
            Severity::Warning,
            "Redis keeps no append-only file: a restart loses events that were accepted since its last snapshot",
            "set appendonly yes, and appendfsync everysec or always",
        );
    }
    findings.clock("Redis", "this machine's", server.clock_ahead_us);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_redis(info: &str, appendfsync: Option<&str>) -> String {
        let mut findings = Findings::default();
        let good = "maxmemory_policy:noeviction\naof_enabled:1\naof_last_write_status:ok\n";
        let mut server = Inspection::of(&format!("{good}{info}"));
        server.appendfsync = appendfsync.map(str::to_owned);
        judge(&server, &mut findings);
        findings.as_text()
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
            let text = of_redis(info, Some("everysec"));
            assert!(text.contains(wanted), "{info}: {text}");
        }
        assert!(of_redis("", Some("no")).contains("warning  appendfsync is no"));
        assert!(of_redis("", None).contains("this user may not ask"));
        assert!(!of_redis("", Some("always")).contains("warning"));
    }
}
