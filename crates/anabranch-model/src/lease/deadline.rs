//! Until when an owner may deliver, by its own clock.
//!
//! Everything counts from the moment at which the last successful beat was *sent*: a watcher can
//! have seen it no earlier, so whoever waits a full lease time waits longer than this owner does.
//!
//! | since the sending | the owner |
//! |---|---|
//! | below 0.8 of the lease time | delivers |
//! | below the lease time | pauses: its leases are still its own, and a beat that succeeds lets it go on |
//! | above | has lost its leases for good, whatever a later beat says |

/// How much of the lease time an owner delivers for, in percent. The rest is the margin for clocks
/// that run at different speeds.
const DELIVERS_PERCENT: u64 = 80;

/// Where an owner stands in its lease time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseValidity {
    /// It may deliver.
    Valid,
    /// It may not deliver until a beat succeeds.
    Paused,
    /// Its leases are lost.
    Expired,
}

/// The lease time of an owner, counted from its last successful beat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deadline {
    /// For how long a heart may stand still.
    lease_time_ms: u64,
    /// When the last successful beat was first sent.
    sent_ms: u64,
}

impl Deadline {
    /// The lease time after a beat that was first sent at `sent_ms`.
    pub fn new(lease_time_ms: u64, sent_ms: u64) -> Self {
        Self { lease_time_ms, sent_ms }
    }

    /// When delivery pauses.
    pub fn pauses_at_ms(self) -> u64 {
        // Divided first, so that no lease time overflows.
        self.sent_ms.saturating_add(self.lease_time_ms / 100 * DELIVERS_PERCENT)
    }

    /// When the leases are lost.
    pub fn expires_at_ms(self) -> u64 {
        self.sent_ms.saturating_add(self.lease_time_ms)
    }

    /// Where the owner stands.
    pub fn validity_at(self, now_ms: u64) -> LeaseValidity {
        if now_ms < self.pauses_at_ms() {
            LeaseValidity::Valid
        } else if now_ms < self.expires_at_ms() {
            LeaseValidity::Paused
        } else {
            LeaseValidity::Expired
        }
    }

    /// The deadline once it is known at `now_ms` that the beat sent at `sent_ms` succeeded. `None`
    /// if that came too late. An older beat than the last one changes nothing.
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
        // When the beat was sent, when its reply came, and when delivery pauses from then on.
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
