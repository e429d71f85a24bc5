//! Read rate of a lease in bytes per second, smoothed and rounded to coarse steps.
//!
//! It is written to the row with a checkpoint, so it costs no extra write. A shard without records
//! gets no checkpoint, and its row keeps the last reported rate.

/// Time constant of the smoothing, in milliseconds.
const SMOOTHED_OVER_MS: u64 = 60_000;

/// Time for which an owner measures before its first report, in milliseconds.
const SILENT_FOR_MS: u64 = 10_000;

/// Precision of a reported rate: steps of an eighth of the power of two below it. Owners with about
/// the same rate report the same value, and so do polls at different times.
const STEP_BITS: u32 = 3;

/// Read rate of a lease, as measured by its owner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadRate {
    /// Start of the measurement.
    began_ms: u64,
    /// End of the smoothed period.
    smoothed_ms: u64,
    /// Smoothed rate; `None` before the first report.
    smoothed: Option<u64>,
    /// Bytes read since `smoothed_ms`.
    bytes: u64,
}

impl ReadRate {
    /// Creates a rate that starts with the previous owner's report.
    pub fn new(now_ms: u64, before: Option<u64>) -> Self {
        Self { began_ms: now_ms, smoothed_ms: now_ms, smoothed: before, bytes: 0 }
    }

    /// Adds `bytes` that were read.
    pub fn read(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Returns the rate to report at `now_ms`, in bytes per second. Returns `None` until enough
    /// time has been measured.
    pub fn report(&mut self, now_ms: u64) -> Option<u64> {
        let elapsed_ms = now_ms.saturating_sub(self.smoothed_ms);
        if now_ms.saturating_sub(self.began_ms) < SILENT_FOR_MS || elapsed_ms == 0 {
            return None;
        }
        let latest = self.bytes.saturating_mul(1_000) / elapsed_ms;
        let smoothed = self.smoothed.map_or(latest, |before| {
            let change = i128::from(latest) - i128::from(before);
            let part = change * i128::from(elapsed_ms) / i128::from(elapsed_ms + SMOOTHED_OVER_MS);
            u64::try_from(i128::from(before) + part).unwrap_or(latest)
        });
        (self.smoothed, self.smoothed_ms, self.bytes) = (Some(smoothed), now_ms, 0);
        Some(in_steps(smoothed))
    }
}

/// Rounds a rate to the nearest step.
fn in_steps(rate: u64) -> u64 {
    let dropped = (u64::BITS - rate.leading_zeros()).saturating_sub(STEP_BITS + 1);
    let step = 1_u64 << dropped;
    rate.saturating_add(step / 2) / step * step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_rate_is_told_as_it_is_and_a_change_after_a_while() {
        let mut rate = ReadRate::new(0, None);
        let mut told = Vec::new();
        for second in 1..=400 {
            rate.read(if second <= 100 { 1_000 } else { 8_000 });
            told.push(rate.report(second * 1_000));
        }
        assert!(told[..9].iter().all(Option::is_none), "too early to tell: {:?}", &told[..9]);
        assert!(told[9..100].iter().all(|rate| *rate == Some(1_024)), "{told:?}");
        let moved = |at: usize| told[at].unwrap();
        assert!((1_024..3_000).contains(&moved(110)), "one burst changes little: {told:?}");
        assert!((7_000..=8_192).contains(&moved(399)), "a change that stays is told: {told:?}");
    }

    #[test]
    fn the_next_owner_goes_on_from_what_the_row_says() {
        let mut rate = ReadRate::new(5_000, Some(64_000));
        assert_eq!(rate.report(14_999), None);
        rate.read(64_000 * 15);
        assert_eq!(rate.report(20_000), Some(65_536));
        // Only one report for the same moment, and idle time counts.
        assert_eq!(rate.report(20_000), None);
        assert!(rate.report(80_000).unwrap() < 40_000);
    }

    #[test]
    fn steps_are_an_eighth_apart() {
        for (rate, told) in
            [(0, 0), (1, 1), (15, 15), (16, 16), (17, 18), (1_000, 1_024), (1_100, 1_152)]
        {
            assert_eq!(in_steps(rate), told, "{rate}");
        }
        assert!(in_steps(u64::MAX) > u64::MAX / 2);
    }
}
