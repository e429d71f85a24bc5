//! How often a worker scans KCL's table: seldom enough to leave room on a table of few read units.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the looks of one worker may take, in thousandths of a read unit per second. A table that
/// Java's KCL 1.x has made has 10 units for the whole fleet. Audits take a tenth on top.
const MILLIUNITS_PER_SECOND: f64 = 2_650.0;

/// What a row takes in a scan that may be a moment old, in thousandths of a read unit, where the
/// service does not count: half of 400 bytes in 4 KiB.
const MILLIUNITS_PER_ROW: f64 = 50.0;

/// The longest pause that is suggested, in milliseconds.
const LONGEST_MS: f64 = 3_600_000.0;

/// What the last scan took. Clones share it.
#[derive(Clone, Debug, Default)]
pub(in crate::lease) struct ScanSchedule(Arc<AtomicU64>);

impl ScanSchedule {
    /// Notes what a scan took.
    pub(in crate::lease) fn scanned(&self, rows: usize, units: f64) {
        self.0.store(pause_ms(rows, units), Ordering::Relaxed);
    }

    /// The pause between two scans, in milliseconds.
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
