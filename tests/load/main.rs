//! Measures hexlane against what PostgreSQL itself can do, in one run on one machine.
//!
//! `scripts/bench` starts private servers and calls this. Under `cargo test` a tiny load goes
//! through every measurement, so that none of them rots.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

#[path = "../secure/authority.rs"]
#[allow(dead_code)] // certificates of clients, and expired ones, are for the tests
mod authority;
mod bare;
mod bench;
mod cli;
mod encrypted;
mod modes;
mod report;
mod scrape;
mod server;
mod traffic;
mod worker;

use clap::Parser;

fn main() -> std::process::ExitCode {
    let cli = cli::Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("threads can be started");
    runtime.block_on(modes::run(cli));
    std::process::ExitCode::SUCCESS
}
