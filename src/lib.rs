//! Lands spatial feature events from Redis Streams in PostGIS, effectively once.
//!
//! # The flow
//! ```text
//! XREADGROUP → decode → reorder → write (ledger, coalesce, guard: one statement) → settle (XACK | dead letter) → trim
//! ```
//! An event meets the modules in this order: [`stream`] reads it, [`judge`] decodes and validates
//! it, [`lane`] holds, coalesces, writes and settles it through [`store`] and [`stream`].
//! [`fleet`] gives each shard to one worker at a time,
//! and [`worker`] runs one lane for each shard that is its own.
//!
//! # The guarantee
//! Delivery is at least once; the guard in [`store`]'s statement makes an event that comes twice,
//! or late, change nothing. An entry is acknowledged only after the database has answered.
//!
//! # Glossary
//! | here | Redis | PostGIS |
//! | --- | --- | --- |
//! | shard | one stream, `hexlane:{007}:events` | – |
//! | lane | the consumer of one stream | the writes of one stream, one statement of a feature at a time |
//! | entry | stream entry | – |
//! | event | field `event` of an entry | one candidate row of `feature_state` |
//! | settle | `XACK`, or dead letter and `XACK` in one script | – |
//! | tombstone | – | a row whose `op` is `delete` |

pub mod admin;
mod authorities;
pub mod cli;
pub mod commands;
pub mod event;
pub mod failure;
pub mod fleet;
pub mod judge;
pub mod lane;
pub mod metrics;
pub mod shard;
mod shown;
pub mod store;
pub mod stream;
pub mod trace;
pub mod worker;
