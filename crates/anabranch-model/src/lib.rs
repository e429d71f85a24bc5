//! The pure model: every decision of Anabranch as a function of values.
//!
//! Nothing here reads a clock, draws a random number, opens a socket or spawns a task; `now` and
//! every tie-break are arguments. `cargo xtask tidy` proves it from the dependency tree.
//!
//! The modules are listed in reading order.

pub mod limits;
pub mod ids;
pub mod hash;
pub mod coverage;
pub mod sequence;
pub mod position;
pub mod record;
pub mod cbor;
pub mod lineage;
pub mod lease;
pub mod shard_map;
pub mod aggregate;
pub mod ack;
pub mod pack;
pub mod bucket;
pub mod retry;
pub mod stuck_detector;
pub mod group_by;
pub mod produce;
