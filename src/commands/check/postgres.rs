//! What `hexlane check` says of PostgreSQL.

use super::findings::{Findings, Severity};
use crate::store::Store;
use crate::store::inspect::Inspection;

/// Answers how far the server's clock is ahead of ours, in microseconds.
pub(super) async fn check(store: &Store, pooled: bool, findings: &mut Findings) -> Option<i64> {
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
            judge(&inspection, findings);
            if pooled && inspection.statement_timeout == "0" {
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
            findings.failed(failure);
            None
        }
    }
}

pub(super) fn judge(server: &Inspection, findings: &mut Findings) {
    let setting = |name: &str| server.settings.get(name).map_or("", String::as_str);
    findings.good(format!("it is PostgreSQL {}, with PostGIS {}", setting("server_version"), server.postgis));
    if server.in_recovery {
        let remedy = "point --database-url at the primary";
        findings.add(Severity::Error, "this PostgreSQL is a standby, which takes no writes", remedy);
    }
    let wrong = server.wrong_columns();
    if wrong.is_empty() {
        findings.good("every column has its type, the geometries SRID 4326");
    }
    for (what, remedy) in wrong {
        findings.add(Severity::Error, what, remedy);
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
        if server.is_off(name) {
            findings.add(Severity::Error, format!("{name} is off: {loses}"), "set it to on, and restart");
        } else {
            findings.good(format!("{name} is on"));
        }
    }
    judge_autovacuum(server, findings);
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
    findings.clock("PostgreSQL", "this machine's", server.clock_ahead_us);
}

/// The table lives on updates, each of which leaves a dead row and dead index entries behind.
/// See <https://www.postgresql.org/docs/current/routine-vacuuming.html>.
fn judge_autovacuum(server: &Inspection, findings: &mut Findings) {
    const GROWS: &str = "dead rows stay, and tables and indexes grow and get slower, unless somebody else runs VACUUM";
    let off: Vec<&str> = ["autovacuum", "track_counts"].into_iter().filter(|name| server.is_off(name)).collect();
    for name in &off {
        findings.add(
            Severity::Warning,
            format!("{name} is off: {GROWS}"),
            "set it to on where it was set (pg_settings names its source), and reload",
        );
    }
    if !server.without_autovacuum.is_empty() {
        findings.add(
            Severity::Warning,
            format!("autovacuum leaves {} alone: {GROWS}", server.without_autovacuum.join(", ")),
            "ALTER TABLE … RESET (autovacuum_enabled, toast.autovacuum_enabled)",
        );
    }
    if off.is_empty() && server.without_autovacuum.is_empty() {
        findings.good("autovacuum looks after both tables");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::inspect::COLUMNS;

    fn of_postgres(change: impl FnOnce(&mut Inspection)) -> String {
        let mut server = Inspection {
            columns: COLUMNS.map(|(name, of_type)| (name.to_owned(), of_type.to_owned())).into(),
            synchronous_commit: "on".into(),
            ..Default::default()
        };
        change(&mut server);
        let mut findings = Findings::default();
        judge(&server, &mut findings);
        findings.as_text()
    }

    #[test]
    fn each_fault_of_a_postgres_is_found() {
        assert!(!of_postgres(|_| {}).lines().any(|line| !line.starts_with("good ")));
        let wrong = of_postgres(|server| server.in_recovery = true);
        assert!(wrong.contains("error    this PostgreSQL is a standby"), "{wrong}");
        let wrong = of_postgres(|server| drop(server.columns.insert("feature_state.cell".into(), "text".into())));
        assert!(wrong.contains("error    feature_state.cell is text, not bigint; give it back"), "{wrong}");
        let wrong = of_postgres(|server| drop(server.columns.remove("feature_state.geometry_z")));
        assert!(wrong.contains("error    feature_state.geometry_z is absent"), "{wrong}");
        let wrong = of_postgres(|server| server.missing_rights.push("processed_event DELETE".into()));
        assert!(wrong.contains("warning  this user lacks processed_event DELETE; grant it to whoever"), "{wrong}");
        let wrong = of_postgres(|server| server.missing_rights.push("feature_state UPDATE".into()));
        assert!(wrong.contains("error    this user lacks feature_state UPDATE"), "{wrong}");
        for name in ["fsync", "full_page_writes"] {
            let wrong = of_postgres(|server| drop(server.settings.insert(name.into(), "off".into())));
            assert!(wrong.contains(&format!("error    {name} is off")), "{wrong}");
        }
        for name in ["autovacuum", "track_counts"] {
            let wrong = of_postgres(|server| drop(server.settings.insert(name.into(), "off".into())));
            assert!(wrong.contains(&format!("warning  {name} is off: dead rows stay")), "{wrong}");
        }
        let wrong = of_postgres(|server| server.without_autovacuum.push("feature_state_0".into()));
        assert!(wrong.contains("warning  autovacuum leaves feature_state_0 alone"), "{wrong}");
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
}
