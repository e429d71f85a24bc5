//! The rates of one shard: what it takes in and gives out each second.

use anabranch_model::limits;

/// A bucket that refills with time and may be overdrawn once.
///
/// A cost passes while the bucket holds it, or is full: a record or reply larger than one second's
/// worth passes too, and then others wait until the debt is paid.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bucket {
    /// Units a second, and units that it holds at most.
    per_second: i64,
    /// Thousandths of units that are left; below zero it is a debt.
    level: i64,
    /// When the level was last brought up to date.
    at_ms: u64,
}

impl Bucket {
    pub(crate) fn full(per_second: usize, now_ms: u64) -> Self {
        let per_second = i64::try_from(per_second).expect("quotas are far below 2^63");
        Self { per_second, level: per_second * 1000, at_ms: now_ms }
    }

    fn refill(&mut self, now_ms: u64) {
        let elapsed = i64::try_from(now_ms.saturating_sub(self.at_ms)).unwrap_or(i64::MAX);
        let gained = elapsed.saturating_mul(self.per_second);
        self.level = self.level.saturating_add(gained).min(self.per_second * 1000);
        self.at_ms = self.at_ms.max(now_ms);
    }

    /// Whether `units` may pass now.
    pub(crate) fn admits(&mut self, units: usize, now_ms: u64) -> bool {
        self.refill(now_ms);
        let units = i64::try_from(units).unwrap_or(i64::MAX).min(self.per_second);
        self.level >= units * 1000
    }

    /// Takes `units`, into debt if need be.
    pub(crate) fn spend(&mut self, units: usize) {
        let units = i64::try_from(units).unwrap_or(i64::MAX);
        self.level = self.level.saturating_sub(units.saturating_mul(1000));
    }

    /// When the bucket is out of debt.
    pub(crate) fn paid_at_ms(&self) -> u64 {
        let debt = self.level.min(0).unsigned_abs();
        self.at_ms + debt.div_ceil(self.per_second.unsigned_abs().max(1))
    }
}

/// What is left of a shard's rates.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rates {
    /// Bytes written.
    write_bytes: Bucket,
    /// Records written.
    write_records: Bucket,
    /// Calls of `GetRecords`.
    read_calls: Bucket,
    /// Bytes that `GetRecords` gave out.
    read_bytes: Bucket,
}

impl Rates {
    pub(crate) fn full(now_ms: u64) -> Self {
        let full = |per_second| Bucket::full(per_second, now_ms);
        Self {
            write_bytes: full(limits::SHARD_WRITE_BYTES_PER_SECOND),
            write_records: full(limits::SHARD_WRITE_RECORDS_PER_SECOND as usize),
            read_calls: full(limits::SHARD_READ_CALLS_PER_SECOND as usize),
            read_bytes: full(limits::SHARD_READ_BYTES_PER_SECOND),
        }
    }

    /// Takes one record of `bytes`; `false`, and takes nothing, if the shard's rate is used up.
    pub(crate) fn write(&mut self, bytes: usize, now_ms: u64) -> bool {
        let passes = self.write_records.admits(1, now_ms) && self.write_bytes.admits(bytes, now_ms);
        if passes {
            self.write_records.spend(1);
            self.write_bytes.spend(bytes);
        }
        passes
    }

    /// Takes one call; `false` if there were too many calls, or too many bytes were read.
    pub(crate) fn read_call(&mut self, now_ms: u64) -> bool {
        let passes = self.read_calls.admits(1, now_ms) && self.read_bytes.admits(0, now_ms);
        if passes {
            self.read_calls.spend(1);
        }
        passes
    }

    /// Accounts for a reply of `bytes`.
    pub(crate) fn read_reply(&mut self, bytes: usize) {
        self.read_bytes.spend(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_takes_a_thousand_records_a_second() {
        let mut rates = Rates::full(0);
        let taken = (0..3_000).filter(|_| rates.write(1, 0)).count();
        assert_eq!(taken, 1_000);
        let later = (0..3_000).filter(|_| rates.write(1, 500)).count();
        assert_eq!(later, 500);
    }

    #[test]
    fn a_large_record_passes_a_full_bucket_and_leaves_a_debt() {
        let mut bucket = Bucket::full(100, 0);
        assert!(bucket.admits(1_000, 0));
        bucket.spend(1_000);
        assert_eq!(bucket.paid_at_ms(), 9_000);
        assert!(!bucket.admits(1, 9_000));
        assert!(bucket.admits(1, 9_010));
    }

    #[test]
    fn a_large_reply_stops_reads_until_it_is_paid() {
        let mut rates = Rates::full(0);
        assert!(rates.read_call(0));
        rates.read_reply(10 * 1024 * 1024);
        assert!(!rates.read_call(3_999));
        assert!(rates.read_call(4_000));
    }

    #[test]
    fn five_calls_a_second_pass() {
        let mut rates = Rates::full(0);
        assert_eq!((0..20).filter(|_| rates.read_call(0)).count(), 5);
        assert_eq!((0..20).filter(|_| rates.read_call(200)).count(), 1);
    }
}
