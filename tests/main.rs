//! Every promise against real servers, each test in a namespace and a database of its own.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod commands;
mod crash;
mod edge_events;
mod guard;
mod other_producers;
mod real_streams;
mod recorded;
mod servers_down;
mod smoke;
mod suites;
mod world;
