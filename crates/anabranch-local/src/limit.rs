//! The rates of one shard: bytes, records and calls per second that it accepts and returns.

use anabranch_model::bucket::{Admission, Allowance, Bucket};
use anabranch_model::limits;

/// Returns an allowance of `units` per second, with a burst of one second's worth.
fn each_second(units: usize) -> Allowance {
    let units = units as u64;
    Allowance { capacity: units, per_second: units }
}

/// The unused part of a shard's rates.
#[derive(Debug, Clone)]
pub(crate) struct ShardRates {
    /// Records and bytes written.
    writes: Bucket<2>,
    /// Calls of `GetRecords`, and bytes returned by them.
    reads: Bucket<2>,
}

impl ShardRates {
    pub(crate) fn full(now_ms: u64) -> Self {
        let writes = [
            each_second(limits::SHARD_WRITE_RECORDS_PER_SECOND as usize),
            each_second(limits::SHARD_WRITE_BYTES_PER_SECOND),
        ];
        let reads = [
            each_second(limits::SHARD_READ_CALLS_PER_SECOND as usize),
            each_second(limits::SHARD_READ_BYTES_PER_SECOND),
        ];
        Self { writes: Bucket::new(writes, now_ms), reads: Bucket::new(reads, now_ms) }
    }

    /// Takes one record of `bytes`. Returns `false` and takes nothing if the shard's rate is used
    /// up.
    pub(crate) fn write(&mut self, bytes: usize, now_ms: u64) -> bool {
        self.writes.take(now_ms, [1, bytes as u64]) == Admission::Passed
    }

    /// Takes one call. Returns `false` after too many calls or too many bytes read.
    pub(crate) fn read_call(&mut self, now_ms: u64) -> bool {
        self.reads.take(now_ms, [1, 0]) == Admission::Passed
    }

    /// Accounts for a reply of `bytes`.
    pub(crate) fn read_reply(&mut self, bytes: usize, now_ms: u64) {
        self.reads.charge(now_ms, [0, bytes as u64]);
    }
}

/// The rate at which a shard pushes to one fan-out consumer.
#[derive(Debug, Clone)]
pub(crate) struct PushRate(Bucket<1>);

impl PushRate {
    pub(crate) fn full(now_ms: u64) -> Self {
        Self(Bucket::new([each_second(limits::FANOUT_BYTES_PER_SECOND)], now_ms))
    }

    /// Returns the milliseconds until the next push is allowed; 0 means now.
    pub(crate) fn wait_ms(&self, now_ms: u64) -> u64 {
        self.0.wait_ms(now_ms, [0]).unwrap_or(u64::MAX)
    }

    /// Accounts for an event of `bytes`.
    pub(crate) fn pushed(&mut self, bytes: usize, now_ms: u64) {
        self.0.charge(now_ms, [bytes as u64]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_takes_a_thousand_records_a_second() {
        let mut rates = ShardRates::full(0);
        let taken = (0..3_000).filter(|_| rates.write(1, 0)).count();
        assert_eq!(taken, 1_000);
        let later = (0..3_000).filter(|_| rates.write(1, 500)).count();
        assert_eq!(later, 500);
    }

    #[test]
    fn a_large_record_passes_and_others_wait_for_its_debt() {
        let mut rates = ShardRates::full(0);
        assert!(rates.write(3 * limits::SHARD_WRITE_BYTES_PER_SECOND, 0));
        assert!(!rates.write(1, 2_000));
        assert!(rates.write(1, 2_001));
    }

    #[test]
    fn a_large_reply_stops_reads_until_it_is_paid() {
        let mut rates = ShardRates::full(0);
        assert!(rates.read_call(0));
        rates.read_reply(10 * 1024 * 1024, 0);
        assert!(!rates.read_call(3_999));
        assert!(rates.read_call(4_000));
    }

    #[test]
    fn five_calls_a_second_pass() {
        let mut rates = ShardRates::full(0);
        assert_eq!((0..20).filter(|_| rates.read_call(0)).count(), 5);
        assert_eq!((0..20).filter(|_| rates.read_call(200)).count(), 1);
    }

    #[test]
    fn a_consumer_is_pushed_two_megabytes_a_second() {
        let mut pace = PushRate::full(0);
        pace.pushed(3 * limits::FANOUT_BYTES_PER_SECOND, 0);
        assert_eq!(pace.wait_ms(0), 2_000);
        assert_eq!(pace.wait_ms(2_000), 0);
    }
}
