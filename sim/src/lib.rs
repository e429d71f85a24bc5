//! Whole fleets in virtual time, with faults, and the checkers that judge them.
//!
//! ```text
//! seed ─► world ─► hosts ── network (faults) ──► lease store, stream
//!                    └──────► history ──► checkers ──► report
//! ```
//!
//! One seed determines everything, so a history can be reproduced byte for byte.

pub mod clock;
pub mod history;
pub mod faults;
pub mod host_thread;
pub mod host;
pub mod world;
pub mod workload;
pub mod record_source;
pub mod latest_tracker;
pub mod rows;
pub mod ledger;
pub mod flaw;
pub mod reader;
pub mod fleet;
pub mod modes;
pub mod effects;
pub mod checkers;
pub mod scenarios;
pub mod seeds;
