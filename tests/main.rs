//! Every promise against real servers, each test in a namespace and a database of its own.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod batches;
mod commands;
mod crash;
mod dead_letters;
mod edge_events;
mod encoding;
mod equivalence;
mod failover;
mod faults;
mod fleet;
mod group_commit;
mod guard;
mod ledger;
mod marks;
mod observability;
mod other_producers;
mod outage;
mod partitions;
mod poison;
mod real_streams;
mod recorded;
mod reorder;
mod retention;
mod secure;
mod servers_down;
mod shutdown;
mod smoke;
mod storm;
mod suites;
mod traces;
mod validity;
mod watched;
mod world;
