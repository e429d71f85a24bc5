//! Fault rates of the calls to one service while it is reachable.

use super::network::Service;
use super::refusal::RefusalKind;
use fastrand::Rng;

/// Rates of each fault in a thousand calls, and the latency of calls.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallFaultRates {
    /// Upper bound of the usual one-way latency, in milliseconds.
    pub latency_ms: u64,
    /// Calls whose one-way latency can reach the caller's timeout.
    pub slow: u32,
    /// Calls that fail at once.
    pub error: u32,
    /// Calls that are throttled.
    pub throttle: u32,
    /// Requests that never arrive.
    pub request_lost: u32,
    /// Replies that never arrive.
    pub reply_lost: u32,
    /// Requests that arrive after their caller gave up.
    pub late: u32,
    /// Lists whose two halves are read at different times.
    pub torn: u32,
    /// Shard lists that show an earlier state.
    pub stale: u32,
    /// Iterators that are refused as too old.
    pub expired: u32,
    /// Reads that report the end of their shard without children, true or not.
    pub false_end: u32,
    /// Writes that arrive a second time, later.
    pub twice: u32,
    /// Lists and store polls after which one row is unreadable for a while.
    pub spoiled: u32,
    /// Calls that are refused for one of the reasons in `refusals`.
    pub refused: u32,
    /// Reasons for refused calls.
    pub refusals: Vec<RefusalKind>,
    /// Store transactions that become visible row by row. This is not a fault: a DynamoDB table
    /// does so at any time, and [`Network::clear`](super::Network::clear) leaves it as it is.
    pub slow_commit: u32,
    /// Scans of KCL's table that show rows as they were up to a second ago. Not a fault either.
    pub old_scan: u32,
}

impl CallFaultRates {
    /// Returns rates without faults: every call is answered, after a moment.
    pub fn none() -> Self {
        Self {
            latency_ms: 10,
            slow: 0,
            error: 0,
            throttle: 0,
            request_lost: 0,
            reply_lost: 0,
            late: 0,
            torn: 0,
            stale: 0,
            expired: 0,
            false_end: 0,
            twice: 0,
            spoiled: 0,
            refused: 0,
            refusals: Vec::new(),
            slow_commit: 0,
            old_scan: 0,
        }
    }

    /// Draws random rates with some faults present and others absent, so that seeds differ in kind.
    /// With all faults at once, one would hide another.
    pub fn random(rng: &mut Rng) -> Self {
        let far = rng.u32(0..3) == 0;
        let mut often = |most: u32| if rng.bool() { rng.u32(1..=most) } else { 0 };
        Self {
            slow: often(60),
            error: often(60),
            throttle: often(60),
            request_lost: often(40),
            reply_lost: often(80),
            late: often(80),
            torn: often(300),
            latency_ms: if far { rng.u64(60..400) } else { rng.u64(2..60) },
            ..Self::none()
        }
    }

    /// Draws random rates for a stream that is read: lists can be stale and iterators can expire as
    /// well.
    pub fn random_stream(rng: &mut Rng) -> Self {
        let mut often = |most: u32| if rng.bool() { rng.u32(1..=most) } else { 0 };
        let (stale, expired) = (often(700), often(100));
        Self { stale, expired, ..Self::random(rng) }
    }

    /// Adds reads that report a false end of a shard. Uses its own RNG, so that the rest of the
    /// seed is unchanged.
    #[must_use]
    pub fn with_false_ends(self, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x6661_6c73_6565_6e64);
        let false_end = if rng.bool() { rng.u32(1..=30) } else { 0 };
        Self { false_end, ..self }
    }

    /// Adds writes that arrive twice. Uses its own RNG.
    #[must_use]
    pub fn with_repeats(self, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x7477_6963_6500_0000);
        let twice = if rng.bool() { rng.u32(1..=150) } else { 0 };
        Self { twice, ..self }
    }

    /// Adds store rows that turn unreadable for a while. Uses its own RNG.
    #[must_use]
    pub fn with_unreadable_rows(self, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x7370_6f69_6c65_6400);
        let spoiled = if rng.u32(0..3) == 0 { rng.u32(1..=20) } else { 0 };
        Self { spoiled, ..self }
    }

    /// Adds refused calls, for some of the service's reasons. Uses its own RNG.
    #[must_use]
    pub fn with_refusals(self, seed: u64, service: Service) -> Self {
        let salt = match service {
            Service::Store => 0x7265_6675_7365_7374,
            Service::Stream => 0x7265_6675_7365_7372,
        };
        let mut rng = Rng::with_seed(seed ^ salt);
        let all = RefusalKind::of(service).iter().copied();
        let refusals: Vec<RefusalKind> = all.filter(|_| rng.u32(0..3) == 0).collect();
        let refused = if refusals.is_empty() || rng.bool() { 0 } else { rng.u32(1..=30) };
        Self { refused, refusals, ..self }
    }

    /// Adds store transactions that become visible row by row. Uses its own RNG.
    #[must_use]
    pub fn with_slow_commits(self, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x636f_6d6d_6974_0000);
        let slow_commit = if rng.bool() { rng.u32(20..=300) } else { 0 };
        Self { slow_commit, ..self }
    }

    /// Adds store scans that show old rows. Uses its own RNG.
    #[must_use]
    pub fn with_old_scans(self, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x7363_616e_7300_0000);
        let old_scan = if rng.bool() { rng.u32(100..=1_000) } else { 0 };
        Self { old_scan, ..self }
    }
}
