//! The consumer against the local stream in process: order, delivery, duplicates, in virtual time.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[macro_use]
#[path = "../delegate/mod.rs"]
mod delegate;
mod world;
mod oracle;
mod gate;
mod delivery;
mod reshards;
mod ends;
mod failures;
mod lanes;
mod aggregates;
mod stops;
mod outage;
mod fanout;
mod summaries;
mod names;
mod latest;
mod watchdog;
mod retention;
mod parking;
mod memory;
mod processors;
mod streams;
mod doubt;
mod control;
mod tail;
