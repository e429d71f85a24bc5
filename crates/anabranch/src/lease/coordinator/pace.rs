//! How soon the next look comes: sooner while leases change hands, later where a look costs much.

use super::CoordinatorSettings;

/// For how long looks come fast after something has changed, in milliseconds.
const HURRY_FOR_MS: u64 = 2_000;

/// For how long the return of further leases brings no look forward, in milliseconds.
const NO_RETURN_HURRIES_MS: u64 = 20_000;

/// The least pause between two looks in KCL's layout, in milliseconds: there every look is a scan.
const KCL_LOOK_MS: u64 = 1_000;

/// How many times sooner the next look comes in KCL's layout while leases change hands.
const KCL_HURRY: u64 = 3;

/// The longest pause between two looks in KCL's layout, in lease times: that of Java's taker.
const KCL_LONGEST_LEASE_TIMES: u64 = 2;

/// How often the pause is doubled at most while the store throttles looks.
const MOST_DOUBLED: u32 = 6;

/// How soon the next look comes.
#[derive(Debug)]
pub(super) struct PollSchedule {
    /// Until when looks come fast.
    hurry_until_ms: u64,
    /// When a lease that came back last brought looks forward.
    returned_ms: Option<u64>,
    /// How often the pause between two looks is doubled, because the store throttles them.
    doubled: u32,
}

impl PollSchedule {
    /// A worker that starts looks fast.
    pub(super) fn new(now_ms: u64) -> Self {
        Self { hurry_until_ms: now_ms + HURRY_FOR_MS, returned_ms: None, doubled: 0 }
    }

    /// Notes that leases change hands.
    pub(super) fn note_hand_over(&mut self, now_ms: u64) {
        self.hurry_until_ms = now_ms + HURRY_FOR_MS;
    }

    /// Notes that leases came back whose end made rows. After a reshard they come one by one for a
    /// long time, so only the first brings looks forward.
    pub(super) fn note_finished_shard(&mut self, now_ms: u64) {
        if self.returned_ms.is_none_or(|ms| now_ms >= ms + NO_RETURN_HURRIES_MS) {
            self.returned_ms = Some(now_ms);
            self.note_hand_over(now_ms);
        }
    }

    pub(super) fn is_busy(&self, now_ms: u64) -> bool {
        now_ms < self.hurry_until_ms
    }

    /// Notes that the store has throttled a look.
    pub(super) fn throttled(&mut self) {
        self.doubled = (self.doubled + 1).min(MOST_DOUBLED);
    }

    /// Notes that a look succeeded.
    pub(super) fn note_poll(&mut self) {
        self.doubled = self.doubled.saturating_sub(1);
    }

    /// When the next look is due in KCL's layout, if the last one ended at `looked_ms`. A look is a
    /// scan of the whole table, whose units Java's workers need too. So what the store suggests for a
    /// table of its size holds (`look_ms`), and a store that throttles is asked less often.
    ///
    /// Where that leaves room, a look comes at `expiry_ms`, when a lease that its owner has not
    /// renewed expires. A stream that has not been listed yet waits for no pace.
    pub(super) fn kcl_due_ms(
        &self,
        settings: &CoordinatorSettings,
        look_ms: u64,
        looked_ms: u64,
        now_ms: u64,
        sooner: EarlyPoll,
    ) -> u64 {
        let longest_ms = settings.lease_time_ms.saturating_mul(KCL_LONGEST_LEASE_TIMES);
        let pause_ms = (look_ms.max(KCL_LOOK_MS) << self.doubled).min(longest_ms);
        if self.doubled > 0 {
            return looked_ms + pause_ms;
        }
        let pause_ms = if self.is_busy(now_ms) { pause_ms / KCL_HURRY } else { pause_ms };
        let pause_ms = if sooner.unlisted { pause_ms.min(KCL_LOOK_MS) } else { pause_ms };
        let due_ms = looked_ms + pause_ms;
        sooner.expiry_ms.map_or(due_ms, |expiry_ms| due_ms.min(expiry_ms))
    }
}

/// What may bring a look in KCL's layout forward.
#[derive(Clone, Copy, Debug)]
pub(super) struct EarlyPoll {
    /// When the next lease expires whose owner does not seem to renew it.
    pub(super) expiry_ms: Option<u64>,
    /// Whether a stream is read that was not listed yet.
    pub(super) unlisted: bool,
}
