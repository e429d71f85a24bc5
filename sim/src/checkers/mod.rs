//! Checkers for the library's guarantees, each judging from the history alone.

pub mod violation;
mod pauses;
pub mod ownership;
pub mod lease_validity;
pub mod fencing;
pub mod resumption;
pub mod liveness;
mod retention;
pub mod order;
pub mod lineage;
pub mod checkpoint;
pub mod duplicates;
pub mod delivery;
pub mod trimming;
pub mod content;
pub mod memory;
pub mod effects;
pub mod producer;

pub use liveness::QuietPhase;
pub use violation::Violation;

use crate::history::HistoryLine;
use crate::modes::SimMode;
use anabranch_model::lease::Layout;

/// Returns the first violation of the guarantees that hold at every moment in this layout.
pub fn always(lines: &[HistoryLine], layout: Layout, lease_time_ms: u64) -> Option<Violation> {
    let [owned, tenure] = owned(lines, layout, lease_time_ms);
    let checks = [owned, tenure, fencing::check(lines), resumption::check(lines)];
    checks.into_iter().flatten().min_by_key(|violation| violation.line)
}

/// Checks that one worker at a time delivers a shard, and in KCL's layout that each row is renewed
/// by its own writes. This holds in KCL's layout too, because all workers of the fleet hand over.
fn owned(lines: &[HistoryLine], layout: Layout, lease_time_ms: u64) -> [Option<Violation>; 2] {
    let tenure = match layout {
        Layout::Native => None,
        Layout::Kcl => lease_validity::check(lines, lease_time_ms),
    };
    [ownership::check(lines, lease_time_ms), tenure]
}

/// Settings of a consumer fleet that determine its guarantees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FleetPromises {
    /// Layout of its rows.
    pub layout: Layout,
    /// Lease time, in milliseconds.
    pub lease_time_ms: u64,
    /// Processing mode of its handlers.
    pub mode: SimMode,
    /// True if records of one shard may go to several lanes.
    pub lanes: bool,
}

/// Returns the first violation of the consumer guarantees that hold at every moment in such a
/// fleet.
pub fn of_consumer(lines: &[HistoryLine], fleet: FleetPromises) -> Option<Violation> {
    let FleetPromises { layout, lease_time_ms, mode, lanes } = fleet;
    let [owned, tenure] = owned(lines, layout, lease_time_ms);
    let checks = [
        order::check(lines, lease_time_ms),
        lineage::check(lines),
        checkpoint::check(lines),
        duplicates::check_in(lines, layout, lanes, mode.checkpoints_by_itself()),
        owned,
        tenure,
        fencing::check(lines),
        content::check(lines),
        memory::check(lines),
        delivery::dead_letters(lines),
        trimming::check(lines),
        effects::check(lines).filter(|_| matches!(mode, SimMode::ExactlyOnce(_))),
    ];
    checks.into_iter().flatten().min_by_key(|violation| violation.line)
}
