//! The promises, each judged from the history alone.

pub mod violation;
pub mod ownership;
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

/// The first promise that the history breaks, of those that hold at every moment.
pub fn always(lines: &[Line]) -> Option<Violation> {
    let checks = [ownership::check(lines), fencing::check(lines), resumption::check(lines)];
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
