//! The producer against the local stream in process: order, outcomes, limits, ends.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[macro_use]
#[path = "../delegate/mod.rs"]
mod delegate;
#[path = "../network/mod.rs"]
mod network;
mod stage;
mod machine;
mod barrier;
mod moments;
mod pace;
mod replies;
mod pauses;
mod resumed;
mod order;
mod ends;
mod perils;
mod refusals;
mod denied;
mod policies;
mod awaited;
mod bulk;
mod over_http;
mod counted;
mod exchange;
