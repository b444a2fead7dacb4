//! Everything that `hexlane check` found, and how it is said.

use std::time::Duration;

use serde_json::json;

use crate::failure::Failure;

/// Clocks that differ by more make latencies and ages wrong, and observations seem to be in the future.
const CLOCKS_MAY_DIFFER: Duration = Duration::from_secs(1);

/// How bad it is; in the order of the exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// As it should be.
    Good,
    /// Something can be lost, is misleading, or gets slower for ever.
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
pub(super) struct Findings(Vec<Finding>);

impl Findings {
    pub(super) fn good(&mut self, what: impl Into<String>) {
        self.add(Severity::Good, what, "");
    }

    pub(super) fn add(&mut self, severity: Severity, what: impl Into<String>, remedy: &'static str) {
        self.0.push(Finding { severity, what: what.into(), remedy });
    }

    /// True if it is well.
    pub(super) fn result(&mut self, what: &str, result: Result<(), Failure>) -> bool {
        let is_well = result.is_ok();
        match result {
            Ok(()) => self.good(what),
            Err(failure) => self.failed(failure),
        }
        is_well
    }

    /// What could not be asked.
    pub(super) fn failed(&mut self, failure: Failure) {
        let otherwise = if failure.is_silence() {
            "see whether it runs, whether the address is right, and whether a firewall stands between"
        } else {
            "look into the server's log"
        };
        let Failure { target, text, code, remedy, .. } = failure;
        self.add(Severity::Error, format!("{}: {text} [{code}]", target.as_str()), remedy.unwrap_or(otherwise));
    }

    pub(super) fn worst(&self) -> Severity {
        self.0.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Good)
    }

    /// How far one server's clock is ahead of another.
    pub(super) fn clock(&mut self, server: &str, other: &str, ahead_us: i64) {
        let seconds = ahead_us as f64 / 1e6;
        if seconds.abs() > CLOCKS_MAY_DIFFER.as_secs_f64() {
            self.add(
                Severity::Warning,
                format!("the clock of {server} is {seconds:+.1} s from {other}"),
                "let both keep time by NTP",
            );
        } else {
            self.good(format!("the clock of {server} agrees with {other}"));
        }
    }

    /// Tells what is not as it should be.
    pub(super) fn log(&self) {
        for Finding { severity, what, remedy } in &self.0 {
            match severity {
                Severity::Good => {}
                Severity::Warning => tracing::warn!(remedy, "{what}"),
                Severity::Error => tracing::error!(remedy, "{what}"),
            }
        }
    }

    pub(super) fn as_text(&self) -> String {
        let line = |finding: &Finding| {
            let remedy = if finding.remedy.is_empty() { String::new() } else { format!("; {}", finding.remedy) };
            format!("{:<8} {}{remedy}\n", finding.severity.as_str(), finding.what.replace('\n', " "))
        };
        self.0.iter().map(line).collect()
    }

    pub(super) fn as_json(&self) -> String {
        let object = |finding: &Finding| json!({ "severity": finding.severity.as_str(), "what": finding.what, "remedy": finding.remedy });
        let all: Vec<_> = self.0.iter().map(object).collect();
        format!("{}\n", json!({ "worst": self.worst().as_str(), "findings": all }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_may_differ_by_a_second() {
        let judge = |ahead_us| {
            let mut findings = Findings::default();
            findings.clock("Redis", "PostgreSQL's", ahead_us);
            findings.as_text()
        };
        assert!(judge(900_000).starts_with("good     the clock of Redis agrees with PostgreSQL's"));
        assert!(judge(-2_000_000).starts_with("warning  the clock of Redis is -2.0 s from PostgreSQL's"));
    }
}
