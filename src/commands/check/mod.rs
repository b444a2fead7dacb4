//! `hexlane check`: whether both servers are set up as the guarantee and the speed need them, and what to change.

mod findings;
mod postgres;
mod redis;

use std::io::{self, Write};
use std::time::Duration;

use crate::cli::CheckArgs;
use crate::{store, stream};
use findings::Findings;
pub use findings::Severity;

/// Runs the command; answers the worst that was found.
///
/// # Errors
/// A sentence for the user, if nothing could be asked.
pub async fn run(args: CheckArgs) -> Result<Severity, String> {
    let stream = args.redis.stream().await?;
    let store = args.database.store("hexlane check", Duration::ZERO).await?;
    let mut findings = Findings::default();
    judge_settings(&args, &mut findings);
    let redis = redis::check(&stream, &args, &mut findings).await;
    let postgres = postgres::check(&store, args.database.transaction_pooling, &mut findings).await;
    if let (Some(redis), Some(postgres)) = (redis, postgres) {
        findings.clock("Redis", "PostgreSQL's", redis - postgres);
    }
    let text = if args.json { findings.as_json() } else { findings.as_text() };
    io::stdout().write_all(text.as_bytes()).map_err(|error| error.to_string())?;
    Ok(findings.worst())
}

/// What a worker can begin with all the same, and whoever keeps the servers should know: into its log.
pub fn log_at_start(redis: &stream::inspect::Inspection, mut postgres: store::inspect::Inspection) {
    let mut findings = Findings::default();
    // For `hexlane prune`, which another user may run.
    postgres.missing_rights.retain(|right| !right.ends_with(" DELETE"));
    redis::judge(redis, &mut findings);
    postgres::judge(&postgres, &mut findings);
    findings.clock("Redis", "PostgreSQL's", redis.clock_ahead_us - postgres.clock_ahead_us);
    findings.log();
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
