//! The promises, each judged from the history alone.

pub mod violation;
pub mod ownership;
pub mod tenure;
pub mod fencing;
pub mod resumption;
pub mod liveness;
pub mod order;
pub mod lineage;
pub mod checkpoint;
pub mod duplicates;
pub mod delivery;
pub mod memory;
pub mod producing;

pub use liveness::Quiet;
pub use violation::Violation;

use crate::history::Line;
use anabranch_model::lease::Layout;

/// The first promise that the history breaks, of those that hold at every moment in this layout.
pub fn always(lines: &[Line], layout: Layout, lease_time_ms: u64) -> Option<Violation> {
    let owned = match layout {
        Layout::Native => ownership::check(lines),
        Layout::Kcl => tenure::check(lines, lease_time_ms),
    };
    let checks = [owned, fencing::check(lines), resumption::check(lines)];
    checks.into_iter().flatten().min_by_key(|violation| violation.line)
}

/// The first promise of a consumer that the history breaks, of those that hold at every moment.
pub fn of_consumer(lines: &[Line]) -> Option<Violation> {
    let checks = [
        order::check(lines),
        lineage::check(lines),
        checkpoint::check(lines),
        duplicates::check(lines),
        ownership::check(lines),
        fencing::check(lines),
        memory::check(lines),
    ];
    checks.into_iter().flatten().min_by_key(|violation| violation.line)
}
