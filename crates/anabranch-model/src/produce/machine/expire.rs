//! Deadlines: expiry of records that could not be placed in time.

use super::Machine;
use super::judge::unpack;
use crate::produce::outcome::RejectReason;

impl<T> Machine<T> {
    /// Returns when deadlines are checked next, or `None` if there is nothing to expire.
    pub(super) fn next_expiry_ms(&self) -> Option<u64> {
        (self.settings.deadline_ms.is_some() && self.outstanding > 0).then_some(self.expiry_ms)
    }

    /// Rejects the records whose deadline has passed and that are not in flight. Records in flight
    /// wait for their reply.
    pub(super) fn expire(&mut self, now_ms: u64) {
        let Some(deadline_ms) = self.settings.deadline_ms else { return };
        if now_ms < self.expiry_ms || self.outstanding == 0 {
            return;
        }
        self.expiry_ms = now_ms.saturating_add((deadline_ms / 16).clamp(1, 1_000));
        let expired = |put_ms: u64| put_ms.saturating_add(deadline_ms) <= now_ms;
        let (mut over, mut stay) = (Vec::new(), Vec::new());
        for lane in self.lanes.iter_mut().flatten() {
            while lane.first().is_some_and(|(_, put_ms)| expired(put_ms)) {
                over.extend(lane.pop(&mut self.pages));
            }
            // Unpack a Kinesis record with an expired user record; the others are requeued.
            for at in (0..lane.sealed.len()).rev() {
                if lane.sealed[at].records.first_put_ms().is_some_and(expired)
                    && let Some(frozen) = lane.sealed.remove(at)
                {
                    let (out, rest): (Vec<_>, Vec<_>) =
                        unpack(frozen).into_iter().partition(|record| expired(record.put_ms));
                    over.extend(out);
                    stay.extend(rest);
                }
            }
        }
        // Fail the expired records first, so that later records of their keys are rejected, not
        // requeued.
        for (why, over) in self.by_cause(over, &RejectReason::Expired) {
            self.fail(over, &why);
        }
        self.requeue(stay, now_ms);
        for at in 0..self.lanes.len() {
            self.remove_if_idle(at);
        }
    }
}
