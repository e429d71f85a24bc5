//! What a fleet of coordinators promises, on paused time, the memory store and the local stream.

#![allow(dead_code, reason = "the next tests use the rest")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod troubled;
mod fleet;
mod reader;
mod sharing;
mod stopping;
