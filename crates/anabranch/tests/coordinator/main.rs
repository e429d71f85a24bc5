//! Guarantees of a fleet of coordinators, on paused time, the memory store and the local stream.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod troubled;
mod fleet;
mod reader;
mod sharing;
mod lease_times;
mod stopping;
mod starting;
mod names;
mod gates;
mod unreadable;
mod scale;
mod throttled;
mod checkpoints;
mod auditing;
mod kcl;
mod kcl_pace;
mod kcl_rows;
