//! Another server takes over: workers follow it without a restart, and nothing is lost that was committed there.

mod postgres;
mod redis;

pub use redis::sentinel_with;
