//! Subscriptions of one consumer that are in each other's way: a hand-over, or two applications
//! under one name.
//!
//! The service lets a new subscription take the place of one that is five seconds old, and refuses it
//! before. A hand-over costs a few refusals within that time. Two that share a consumer's name take
//! each shard from each other for ever: each is refused, or thrown out, every few seconds.

/// A hand-over is over by then. Whoever is in the way again after this pause is so for another reason.
const HAND_OVER_MS: u64 = 15_000;

/// The subscriptions of a shard that another one was in the way of.
#[derive(Debug, Default)]
pub(super) struct SubscriptionConflicts {
    /// When the first of them was refused or ended, and when the last.
    since_to_ms: Option<(u64, u64)>,
}

impl SubscriptionConflicts {
    /// Notes that another subscription was in the way. Returns whether a hand-over does not explain
    /// it any more.
    pub(super) fn note_lost(&mut self, now_ms: u64) -> bool {
        let goes_on = |(_, to_ms): &(u64, u64)| now_ms.saturating_sub(*to_ms) <= HAND_OVER_MS;
        let since_ms = self.since_to_ms.filter(goes_on).map_or(now_ms, |(since_ms, _)| since_ms);
        self.since_to_ms = Some((since_ms, now_ms));
        now_ms.saturating_sub(since_ms) >= HAND_OVER_MS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_longer_than_a_hand_over_is_told() {
        let check = |lost_s: &[u64], told_s: &[u64]| {
            let mut contest = SubscriptionConflicts::default();
            let told = |at_s: &u64| contest.note_lost(at_s * 1_000);
            let told: Vec<u64> = lost_s.iter().copied().filter(told).collect();
            assert_eq!(told, told_s, "{lost_s:?}");
        };
        check(&[100, 101, 103, 105], &[]);
        check(&[100, 105, 110, 114, 115, 121], &[115, 121]);
        // Hand-overs that have a pause between them.
        check(&[100, 104, 120, 124, 140], &[]);
        // Thrown out less often than every few seconds, by a slow rival.
        check(&[100, 112, 124, 136], &[124, 136]);
    }
}
