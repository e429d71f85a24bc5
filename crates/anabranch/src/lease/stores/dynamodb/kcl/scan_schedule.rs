//! The scan rate of KCL's table, low enough to leave capacity on a table with few read units.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Read capacity for the polls of one worker, in thousandths of a unit per second. A table created
/// by Java's KCL 1.x has 10 units for the whole fleet. Audits use a tenth on top.
const MILLIUNITS_PER_SECOND: f64 = 2_650.0;

/// Cost of a row in an eventually consistent scan, in thousandths of a read unit, if the service
/// does not count: half of 400 bytes in 4 KiB.
const MILLIUNITS_PER_ROW: f64 = 50.0;

/// Maximum suggested pause, in milliseconds.
const LONGEST_MS: f64 = 3_600_000.0;

/// The pause between two scans, derived from the cost of the last one. Clones share it.
#[derive(Clone, Debug, Default)]
pub(in crate::lease) struct ScanSchedule(Arc<AtomicU64>);

impl ScanSchedule {
    /// Derives the pause from the cost of a scan.
    pub(in crate::lease) fn scanned(&self, rows: usize, units: f64) {
        self.0.store(pause_ms(rows, units), Ordering::Relaxed);
    }

    /// Returns the pause between two scans, in milliseconds.
    pub(in crate::lease::stores::dynamodb) fn look_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "the pause is bounded, and a table has far fewer than 2^52 rows"
)]
fn pause_ms(rows: usize, units: f64) -> u64 {
    let counted = if units > 0.0 { units * 1_000.0 } else { rows as f64 * MILLIUNITS_PER_ROW };
    (counted / MILLIUNITS_PER_SECOND * 1_000.0).min(LONGEST_MS) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_grows_with_the_table() {
        let check = |rows: usize, units: f64, expected: u64| {
            assert_eq!(pause_ms(rows, units), expected, "{rows} rows, {units} units");
        };
        check(4, 0.5, 188);
        check(100, 4.5, 1_698);
        check(100, 5.0, 1_886);
        check(100, 0.0, 1_886);
        check(1_000, 50.0, 18_867);
        check(usize::MAX, f64::MAX, 3_600_000);
    }
}
