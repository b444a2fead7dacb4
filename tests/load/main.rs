//! Measures hexlane against what PostgreSQL itself can do, in one run on one machine.
//!
//! `scripts/bench` starts private servers and calls this. Under `cargo test` a tiny load goes
//! through every measurement, so that none of them rots.

mod bare;
mod bench;
mod cli;
mod modes;
mod report;
mod server;
mod traffic;
mod worker;

use clap::Parser;

fn main() -> std::process::ExitCode {
    let cli = cli::Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => panic!("cannot start threads: {error}"),
    };
    runtime.block_on(modes::run(cli));
    std::process::ExitCode::SUCCESS
}
