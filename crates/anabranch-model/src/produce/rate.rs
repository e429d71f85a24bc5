//! Adaptive send rate of a shard: a token bucket that slows down when the shard throttles.
//!
//! Other producers write to the same shard, so its whole rate may not be available. A throttle
//! response cuts the share of this producer; time without one restores it.

use crate::bucket::{Admission, Allowance, Bucket};

/// The full rate. Shares are in thousandths of it.
const FULL: u64 = 1_000;
/// Share that is left after a throttle response, in thousandths of the previous share.
const KEPT_AFTER_REFUSAL: u64 = 700;
/// Lower bound of the share. Below it the producer could not detect that the shard has capacity
/// again.
const LOWEST: u64 = 50;
/// Share restored by each second without a throttle response.
const BACK_PER_SECOND: u64 = 50;
/// Throttle responses within this time count as one: the replies of a burst arrive together.
const ONE_REFUSAL_MS: u64 = 200;

/// Rate at which one shard is written.
#[derive(Debug, Clone)]
pub struct ShardRate {
    /// Tokens for records and for bytes.
    bucket: Bucket<2>,
    /// Full rate: records and bytes per second.
    full: [u64; 2],
    /// Share of this producer, in thousandths.
    share: u64,
    /// Time of the last cut.
    cut_ms: Option<u64>,
    /// Time up to which the share has been restored.
    raised_ms: u64,
}

impl ShardRate {
    /// Creates a limiter at the full rate.
    pub fn new(records_per_second: u64, bytes_per_second: u64, now_ms: u64) -> Self {
        let full = [records_per_second, bytes_per_second];
        let bucket = Bucket::new(allowances(full, FULL), now_ms);
        Self { bucket, full, share: FULL, cut_ms: None, raised_ms: now_ms }
    }

    /// Returns the current rate in bytes per second.
    pub fn bytes_per_second(&self) -> u64 {
        self.full[1] * self.share / FULL
    }

    /// Returns the share of this producer, in thousandths.
    pub fn share(&self) -> u64 {
        self.share
    }

    /// Returns the admission of a Kinesis record of `bytes` now: passed, or the time to wait.
    /// `ahead` is the number of records and of bytes that were admitted before it and are not sent
    /// yet.
    pub fn admission(&mut self, now_ms: u64, ahead: [u64; 2], bytes: u64) -> Admission {
        self.recover(now_ms);
        self.bucket.admission_behind(ahead, now_ms, [1, bytes])
    }

    /// Charges the bucket for a Kinesis record of `bytes` that is sent now.
    pub fn charge(&mut self, now_ms: u64, bytes: u64) {
        self.bucket.charge(now_ms, [1, bytes]);
    }

    /// Records a throttle response. Returns true if the share was cut.
    pub fn refused(&mut self, now_ms: u64) -> bool {
        self.recover(now_ms);
        if self.cut_ms.is_some_and(|cut| now_ms < cut.saturating_add(ONE_REFUSAL_MS)) {
            return false;
        }
        self.cut_ms = Some(now_ms);
        self.raised_ms = now_ms;
        self.set_share(now_ms, (self.share * KEPT_AFTER_REFUSAL / FULL).max(LOWEST));
        true
    }

    fn recover(&mut self, now_ms: u64) {
        if self.share >= FULL {
            self.raised_ms = now_ms.max(self.raised_ms);
            return;
        }
        let back = now_ms.saturating_sub(self.raised_ms).saturating_mul(BACK_PER_SECOND) / 1_000;
        if back > 0 {
            self.raised_ms = now_ms;
            self.set_share(now_ms, self.share.saturating_add(back).min(FULL));
        }
    }

    fn set_share(&mut self, now_ms: u64, share: u64) {
        self.share = share;
        self.bucket.set_allowances(now_ms, allowances(self.full, share));
    }
}

/// Returns the allowances for a share of a rate. An idle shard accumulates tokens for one second.
fn allowances(full: [u64; 2], share: u64) -> [Allowance; 2] {
    full.map(|units| {
        let units = (units.saturating_mul(share) / FULL).max(1);
        Allowance { capacity: units, per_second: units }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_cuts_the_share_and_quiet_time_gives_it_back() {
        let mut rate = ShardRate::new(1_000, 1 << 20, 0);
        assert!(rate.refused(0));
        assert_eq!(rate.share(), 700);
        assert!(!rate.refused(100), "one burst is one refusal");
        assert!(rate.refused(300));
        let low = rate.share();
        assert_eq!(low, (700 + 15) * 7 / 10, "after 300 ms that gave 15 back");
        rate.admission(2_300, [0; 2], 1);
        assert_eq!(rate.share(), low + 100);
        rate.admission(60_000, [0; 2], 1);
        assert_eq!(rate.share(), 1_000);
    }

    #[test]
    fn a_share_never_falls_to_nothing() {
        let mut rate = ShardRate::new(1_000, 1 << 20, 0);
        for refusal in 0..100 {
            rate.refused(refusal * ONE_REFUSAL_MS);
        }
        assert_eq!(rate.share(), LOWEST);
    }

    #[test]
    fn a_record_above_a_seconds_rate_waits_and_passes() {
        let mut rate = ShardRate::new(1_000, 1 << 20, 0);
        rate.charge(0, 1);
        assert!(matches!(rate.admission(0, [0; 2], 10 << 20), Admission::Wait { .. }));
        assert_eq!(rate.admission(1_000, [0; 2], 10 << 20), Admission::Passed);
    }

    #[test]
    fn what_was_admitted_and_has_not_left_counts_against_a_full_rate() {
        let mut rate = ShardRate::new(1_000, 1 << 20, 0);
        let mut check = |ahead, bytes, passes| {
            let admission = rate.admission(0, ahead, bytes);
            assert_eq!(admission == Admission::Passed, passes, "{bytes} behind {ahead:?}");
        };
        check([0, 0], 1 << 20, true);
        check([1, 1], 1 << 20, false);
        check([1, 1], (1 << 20) - 1, true);
        check([1, 1 << 20], 1, false);
        check([999, 0], 1, true);
        check([1_000, 0], 1, false);
        check([0, 0], 10 << 20, true);
        check([1, 1], 10 << 20, false);
    }
}
