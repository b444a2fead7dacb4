//! `hexlane migrate`: waits for the database, then brings the schema up.

use std::io::Write;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::cli::MigrateArgs;
use crate::store::{Store, StoreSettings, migrate};
use crate::worker::until_up;

/// Runs the command.
///
/// # Errors
/// A sentence for the user.
pub async fn run(args: MigrateArgs) -> Result<(), String> {
    let mut out = std::io::stdout();
    if args.print {
        return out.write_all(migrate::script().as_bytes()).map_err(|error| error.to_string());
    }
    let settings = StoreSettings {
        url: args.address.url()?.to_owned(),
        password: args.address.password(),
        application_name: "hexlane migrate".into(),
        pool_size: 1,
        statement_timeout: Duration::from_secs(30),
        dedup_window: Duration::ZERO,
        // Whether a pooler stands between or not: nothing is asked of it that would last.
        transaction_pooling: true,
    };
    let store = Store::open(&settings).await?;
    let never = CancellationToken::new();
    let applied = until_up(args.retry.policy(), &never, |_| {}, async || store.migrate().await).await?;
    store.check_server().await?;
    let applied = applied.unwrap_or(0);
    writeln!(out, "schema version {}, {applied} migrations applied", migrate::SCHEMA_VERSION)
        .map_err(|error| error.to_string())
}
