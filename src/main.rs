//! The binary: arguments in, exit code out.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use hexlane::cli::{Cli, Command, LogFormat};
use hexlane::commands::check::Severity;
use hexlane::trace::Export;
use hexlane::{commands, worker};
use tracing::Level;
use tracing_subscriber::filter::{FilterExt, LevelFilter, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// A worker's memory is many small pieces that one thread makes and another gives back. With the
/// system's allocator a sixth of its time went there.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const DONE: u8 = 0;
const FAILED: u8 = 1;
const WARNED: u8 = 3;

fn main() -> ExitCode {
    // Exits with 2 by itself on wrong usage.
    let cli = Cli::parse();
    if let Err(sentence) = cli.check() {
        Cli::command().error(ErrorKind::ArgumentConflict, sentence).exit();
    }
    let export = match collector(&cli.command).map(Export::start).transpose() {
        Ok(export) => export,
        Err(sentence) => return failed(&sentence),
    };
    start_log(cli.log_format, export.as_ref());
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&format!("cannot start threads: {error}")),
    };
    let done = runtime.block_on(run(cli.command));
    // A blocking read of stdin cannot be cancelled: do not wait for it.
    runtime.shutdown_background();
    if let Some(Err(sentence)) = export.map(Export::end) {
        tracing::warn!(sentence);
    }
    match done {
        Ok(code) => ExitCode::from(code),
        Err(sentence) => failed(&sentence),
    }
}

async fn run(command: Command) -> Result<u8, String> {
    match command {
        Command::Worker(args) => {
            let once = args.once;
            let counts = worker::run(*args).await?;
            if once {
                writeln!(std::io::stdout(), "{counts}").map_err(|error| error.to_string())?;
            }
            Ok(DONE)
        }
        Command::Publish(args) => Ok(if commands::publish::run(args).await? { DONE } else { FAILED }),
        Command::Migrate(args) => commands::migrate::run(args).await.map(|()| DONE),
        Command::Prune(args) => commands::prune::run(args).await.map(|()| DONE),
        Command::Check(args) => Ok(match commands::check::run(args).await? {
            Severity::Good => DONE,
            Severity::Warning => WARNED,
            Severity::Error => FAILED,
        }),
        Command::Dead(command) => Ok(if commands::dead::run(command).await? { DONE } else { FAILED }),
        Command::Rewind(args) => commands::rewind::run(args).await.map(|()| DONE),
        Command::Status(args) => commands::status::run(args).await.map(|()| DONE),
        Command::Topology(args) => commands::topology::run(args).await.map(|()| DONE),
        Command::Shard(args) => commands::shard::run(args).await.map(|()| DONE),
    }
}

fn collector(command: &Command) -> Option<&str> {
    match command {
        Command::Worker(args) => args.otlp_endpoint.as_deref(),
        _ => None,
    }
}

/// `RUST_LOG` chooses what is shown; by default everything from `info`, without the
/// notices of a database that has what it is asked to have. Never what the driver tells of its statements,
/// whose parameters are what events hold.
fn start_log(format: LogFormat, export: Option<&Export>) {
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("info,tokio_postgres=warn,opentelemetry_sdk=warn,opentelemetry-otlp=warn"));
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let log = match format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).with_target(false).boxed(),
        LogFormat::Json => log.json().boxed(),
    };
    let shown = filter_fn(|told| !told.target().starts_with("tokio_postgres") || *told.level() <= Level::INFO)
        // Without a hint, every statement would ask again whether its log is wanted.
        .with_max_level_hint(LevelFilter::TRACE);
    tracing_subscriber::registry().with(log.with_filter(filter.and(shown))).with(export.map(Export::layer)).init();
}

#[expect(clippy::print_stderr, reason = "the last word to the user")]
fn failed(sentence: &str) -> ExitCode {
    eprintln!("hexlane: {sentence}");
    ExitCode::from(FAILED)
}
