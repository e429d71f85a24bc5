//! The promises, each judged from the history alone.

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

/// The first promise that the history breaks, of those that hold at every moment in this layout.
pub fn always(lines: &[HistoryLine], layout: Layout, lease_time_ms: u64) -> Option<Violation> {
    let [owned, tenure] = owned(lines, layout, lease_time_ms);
    let checks = [owned, tenure, fencing::check(lines), resumption::check(lines)];
    checks.into_iter().flatten().min_by_key(|violation| violation.line)
}

/// One worker at a time delivers a shard, in KCL's layout too: all workers of a fleet hand over.
/// There each row is renewed by itself.
fn owned(lines: &[HistoryLine], layout: Layout, lease_time_ms: u64) -> [Option<Violation>; 2] {
    let tenure = match layout {
        Layout::Native => None,
        Layout::Kcl => lease_validity::check(lines, lease_time_ms),
    };
    [ownership::check(lines, lease_time_ms), tenure]
}

/// What is promised depends on how a fleet of consumers works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FleetPromises {
    /// How its rows are laid out.
    pub layout: Layout,
    /// Its lease time.
    pub lease_time_ms: u64,
    /// How records come to its handlers.
    pub mode: SimMode,
    /// Whether those of one shard may go to several lanes.
    pub lanes: bool,
}

/// The first promise of a consumer that the history breaks, of those that hold at every moment in
/// such a fleet.
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
