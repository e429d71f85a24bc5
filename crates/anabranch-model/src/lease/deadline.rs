//! Lease validity by the owner's own clock.
//!
//! The time counts from the moment at which the last successful heartbeat was *sent*. A watcher
//! cannot have seen it earlier, so a watcher that waits for a full lease time waits longer than the
//! owner delivers.
//!
//! | time since sending | owner |
//! |---|---|
//! | below 80 % of the lease time | delivers |
//! | below the lease time | pauses: keeps its leases, and resumes after a successful heartbeat |
//! | above | has lost its leases for good; later heartbeats do not help |

/// Percentage of the lease time during which an owner delivers. The rest is the margin for clocks
/// that run at different speeds.
const DELIVERS_PERCENT: u64 = 80;

/// Validity of an owner's leases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseValidity {
    /// The owner may deliver.
    Valid,
    /// The owner must not deliver until a heartbeat succeeds.
    Paused,
    /// The leases are lost.
    Expired,
}

/// Lease deadline of an owner, counted from its last successful heartbeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deadline {
    /// Maximum time without a heartbeat.
    lease_time_ms: u64,
    /// Time at which the last successful heartbeat was first sent.
    sent_ms: u64,
}

impl Deadline {
    /// Creates the deadline after a heartbeat that was first sent at `sent_ms`.
    pub fn new(lease_time_ms: u64, sent_ms: u64) -> Self {
        Self { lease_time_ms, sent_ms }
    }

    /// Returns when delivery pauses.
    pub fn pauses_at_ms(self) -> u64 {
        // Divided first, so that no lease time overflows.
        self.sent_ms.saturating_add(self.lease_time_ms / 100 * DELIVERS_PERCENT)
    }

    /// Returns when the leases are lost.
    pub fn expires_at_ms(self) -> u64 {
        self.sent_ms.saturating_add(self.lease_time_ms)
    }

    /// Returns the validity at `now_ms`.
    pub fn validity_at(self, now_ms: u64) -> LeaseValidity {
        if now_ms < self.pauses_at_ms() {
            LeaseValidity::Valid
        } else if now_ms < self.expires_at_ms() {
            LeaseValidity::Paused
        } else {
            LeaseValidity::Expired
        }
    }

    /// Returns the new deadline once it is known at `now_ms` that the heartbeat sent at `sent_ms`
    /// succeeded, or `None` if that is too late. A heartbeat older than the last one changes
    /// nothing.
    pub fn after_beat(self, sent_ms: u64, now_ms: u64) -> Option<Self> {
        let in_time = self.validity_at(now_ms) != LeaseValidity::Expired;
        in_time.then(|| Self { sent_ms: sent_ms.max(self.sent_ms), ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LeaseValidity::{Expired, Paused, Valid};

    #[test]
    fn an_owner_pauses_at_four_fifths_and_stops_at_the_whole_lease_time() {
        let deadline = Deadline::new(10_000, 500);
        for (now, expected) in [
            (500, Valid),
            (8_499, Valid),
            (8_500, Paused),
            (10_499, Paused),
            (10_500, Expired),
            (u64::MAX, Expired),
        ] {
            assert_eq!(deadline.validity_at(now), expected, "at {now}");
        }
    }

    #[test]
    fn a_beat_counts_from_its_sending_and_never_after_the_end() {
        let deadline = Deadline::new(10_000, 0);
        // Time of sending, time of the reply, and the resulting start of the pause.
        for (sent, now, pauses) in [
            (3_000, 3_050, Some(11_000)),
            (3_000, 9_900, Some(11_000)),
            (3_000, 10_000, None),
            (9_999, 10_001, None),
        ] {
            let after = deadline.after_beat(sent, now);
            assert_eq!(after.map(Deadline::pauses_at_ms), pauses, "sent {sent}, heard {now}");
        }
        let later = Deadline::new(10_000, 4_000);
        assert_eq!(later.after_beat(3_000, 4_100), Some(later), "an older beat changes nothing");
    }
}
