//! State of a held lease, shared by the coordinator and the lease's handle.

use super::{DrainReason, FinishReason, StopReason};
use crate::clock::Clock;
use crate::lease::heartbeat::Heartbeat;
use anabranch_model::lease::{Checkpoint, Lease, LeaseToken, LeaseValidity, ReadRate, WorkerId};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};

/// A lease that this worker holds.
#[derive(Debug)]
pub(crate) struct HeldLease {
    /// The row as the take returned it.
    taken: Lease,
    /// The worker id under which it is held.
    owner: WorkerId,
    /// Creation time of its stream, as this worker found it at its start, in milliseconds since
    /// 1970.
    created_ms: Option<u64>,
    /// The heartbeat that keeps the lease valid.
    heartbeat: Arc<Heartbeat>,
    /// The row as this worker's own writes left it. The lock allows one write at a time.
    row: tokio::sync::Mutex<HeldRow>,
    /// The last known checkpoint of the row, for readers that can't wait for a write.
    known_checkpoint: Mutex<Checkpoint>,
    /// Position up to which the shard is done, while the row may not hold it.
    unsaved: Mutex<Option<Checkpoint>>,
    /// The pending stop request to the reader of the shard.
    stop: watch::Sender<PendingStop>,
    /// True once nothing may be delivered although the heartbeat is valid. Read before each call of
    /// a handler, so it is readable without a lock. Waiters are woken by `stop`.
    delivery_stopped: AtomicBool,
    /// Number of the last request that `wait_for_stop` returned.
    delivered_stop: AtomicU64,
    /// The worker that the row showed as asking for the lease, until the coordinator takes it.
    requester: Mutex<Option<WorkerId>>,
    state: Mutex<HandleState>,
    /// Measures the bytes read from the shard.
    rate: Mutex<ReadRate>,
    /// Wakes the coordinator when the reading ends.
    wake: Arc<Notify>,
}

/// The row as this worker's own writes left it.
#[derive(Debug)]
pub(crate) struct HeldRow {
    /// The fencing token that the owner presents with each write.
    pub(crate) hold: LeaseToken,
    /// Position up to which the shard is done.
    pub(crate) checkpoint: Checkpoint,
    /// Time at which the oldest write without a known result was sent.
    pub(crate) unresolved_ms: Option<u64>,
}

/// A stop request to the reader of the shard.
#[derive(Clone, Debug)]
struct PendingStop {
    /// Number of the request, counting up.
    number: u64,
    /// Reason to stop; `None` while the shard may run.
    stop: Option<StopReason>,
}

/// State of the reading of a held lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HandleState {
    /// Not read yet: the gate is closed, or the handle was not handed out.
    Waiting,
    /// The handle is out, and the shard is being read.
    Running,
    /// The handle came back.
    Finished(FinishReason),
    /// The coordinator is releasing the lease or handing it over.
    Releasing,
    /// KCL's layout: the shard is done, and the lease is kept until its row is removed.
    Retained,
}

impl HeldLease {
    pub(crate) fn new(
        taken: Lease,
        hold: LeaseToken,
        created_ms: Option<u64>,
        pulse: Arc<Heartbeat>,
        wake: Arc<Notify>,
        now_ms: u64,
    ) -> Self {
        let checkpoint = taken.checkpoint.clone();
        let rate = Mutex::new(ReadRate::new(now_ms, taken.bytes_per_second));
        Self {
            owner: hold.owner.clone(),
            known_checkpoint: Mutex::new(checkpoint.clone()),
            row: tokio::sync::Mutex::new(HeldRow { hold, checkpoint, unresolved_ms: None }),
            unsaved: Mutex::default(),
            taken,
            created_ms,
            heartbeat: pulse,
            stop: watch::Sender::new(PendingStop { number: 0, stop: None }),
            delivery_stopped: AtomicBool::new(false),
            delivered_stop: AtomicU64::new(0),
            requester: Mutex::new(None),
            state: Mutex::new(HandleState::Waiting),
            rate,
            wake,
        }
    }

    pub(crate) fn taken_row(&self) -> &Lease {
        &self.taken
    }

    pub(crate) fn owner(&self) -> &WorkerId {
        &self.owner
    }

    pub(in crate::lease) fn created_ms(&self) -> Option<u64> {
        self.created_ms
    }

    pub(crate) fn heartbeat(&self) -> &Arc<Heartbeat> {
        &self.heartbeat
    }

    /// Locks the row for one write.
    pub(crate) async fn row(&self) -> tokio::sync::MutexGuard<'_, HeldRow> {
        self.row.lock().await
    }

    /// Locks the row, unless a write is in progress.
    pub(in crate::lease) fn row_if_idle(&self) -> Option<tokio::sync::MutexGuard<'_, HeldRow>> {
        self.row.try_lock().ok()
    }

    /// Takes in the row after a write that bypassed this handle. Returns true if the lease is still
    /// held.
    pub(crate) async fn update_from_row(&self, lease: &Lease) -> bool {
        let mut row = self.row.lock().await;
        let mine = row.hold.is_of(lease);
        if mine {
            self.set_known_checkpoint(&mut row, &lease.checkpoint);
        } else {
            self.mark_lost();
        }
        mine
    }

    /// Records the checkpoint that the row holds.
    pub(in crate::lease) fn set_known_checkpoint(
        &self,
        row: &mut HeldRow,
        checkpoint: &Checkpoint,
    ) {
        row.checkpoint = checkpoint.clone();
        *self.lock_heard() = checkpoint.clone();
    }

    /// Returns the last known checkpoint of the row. A write in progress may have moved it.
    pub(crate) fn known_checkpoint(&self) -> Checkpoint {
        self.lock_heard().clone()
    }

    /// Records the position up to which the shard is done before it is written, and `None` once it
    /// is.
    pub(in crate::lease) fn set_unsaved(&self, at: Option<Checkpoint>) {
        *self.lock_unwritten() = at;
    }

    /// Returns the position up to which the shard is done, if the row may not hold it.
    pub(in crate::lease) fn unsaved(&self) -> Option<Checkpoint> {
        self.lock_unwritten().clone()
    }

    /// Returns true if no handle is out.
    pub(crate) fn is_idle(&self) -> bool {
        self.state() != HandleState::Running
    }

    /// Returns true if the lease is lost.
    pub(crate) fn is_lost(&self, now_ms: u64) -> bool {
        self.stop.borrow().stop == Some(StopReason::Lost) || self.heartbeat.is_expired(now_ms)
    }

    #[inline]
    pub(in crate::lease) fn may_deliver(&self, now_ms: u64) -> bool {
        self.heartbeat.may_deliver(now_ms) && !self.is_delivery_stopped()
    }

    #[inline]
    pub(crate) fn is_delivery_stopped(&self) -> bool {
        self.delivery_stopped.load(Ordering::Acquire)
    }

    pub(in crate::lease) async fn wait_until_may_deliver(&self, clock: &Clock) -> bool {
        loop {
            // Subscribes before the check, so that no change is missed in between.
            let mut asked = self.stop.subscribe();
            if self.is_delivery_stopped() {
                return false;
            }
            match self.heartbeat.validity(clock.now_ms()) {
                LeaseValidity::Valid => return true,
                LeaseValidity::Expired => return false,
                LeaseValidity::Paused => {}
            }
            tokio::select! {
                biased;
                _ = asked.changed() => {}
                _ = self.heartbeat.wait_for_change(LeaseValidity::Paused, clock) => {}
            }
        }
    }

    pub(in crate::lease) async fn wait_for_stop(&self, clock: &Clock) -> StopReason {
        let mut asked = self.stop.subscribe();
        loop {
            if self.is_lost(clock.now_ms()) {
                return StopReason::Lost;
            }
            let now = asked.borrow_and_update().clone();
            if let Some(stop) = now.stop
                && self.delivered_stop.swap(now.number, Ordering::Relaxed) != now.number
            {
                return stop;
            }
            tokio::select! {
                biased;
                () = self.wait_expired(clock) => {}
                _ = asked.changed() => {}
            }
        }
    }

    async fn wait_expired(&self, clock: &Clock) {
        let mut tenure = self.heartbeat.validity(clock.now_ms());
        while tenure != LeaseValidity::Expired {
            tenure = self.heartbeat.wait_for_change(tenure, clock).await;
        }
    }

    /// Asks the reader of the shard to drain it. Returns true if that changes anything.
    pub(crate) fn request_drain(&self, deadline_ms: u64, why: DrainReason) -> bool {
        self.stop.send_if_modified(|asked| {
            let silent = why == DrainReason::StreamRecreated
                && !self.delivery_stopped.swap(true, Ordering::AcqRel);
            let stop = merge_stop(asked.stop.as_ref(), deadline_ms, why);
            let new = stop.is_some();
            if new {
                asked.number += 1;
                asked.stop = stop;
            }
            new || silent
        })
    }

    /// Returns true while a drain is requested.
    pub(crate) fn is_draining(&self) -> bool {
        matches!(self.stop.borrow().stop, Some(StopReason::Drain { .. }))
    }

    /// Returns the worker that asked for the lease, if it is being drained for one.
    pub(crate) fn draining_for(&self) -> Option<WorkerId> {
        match &self.stop.borrow().stop {
            Some(StopReason::Drain { why: DrainReason::HandOver { to }, .. }) => Some(to.clone()),
            _ => None,
        }
    }

    /// Withdraws the request of another worker. Any other reason to drain remains.
    pub(in crate::lease) fn cancel_hand_over(&self) {
        self.stop.send_if_modified(|asked| {
            let for_another = matches!(
                asked.stop,
                Some(StopReason::Drain { why: DrainReason::HandOver { .. }, .. })
            );
            if for_another {
                asked.stop = None;
            }
            for_another
        });
    }

    /// Marks the lease as lost. Nothing is delivered from this moment on.
    pub(crate) fn mark_lost(&self) {
        self.delivery_stopped.store(true, Ordering::Release);
        self.stop.send_modify(|asked| {
            asked.number += 1;
            asked.stop = Some(StopReason::Lost);
        });
    }

    /// Stops delivery under this term, because a hand-over or a release is about to be sent.
    pub(crate) fn stop_delivery(&self) {
        self.delivery_stopped.store(true, Ordering::Release);
        self.stop.send_modify(|_| {});
    }

    pub(crate) fn state(&self) -> HandleState {
        *self.lock_stage()
    }

    pub(crate) fn set_state(&self, stage: HandleState) {
        *self.lock_stage() = stage;
    }

    /// Records that the handle came back. Only the first call counts.
    pub(in crate::lease) fn finish(&self, how: FinishReason) {
        let mut stage = self.lock_stage();
        if matches!(*stage, HandleState::Waiting | HandleState::Running) {
            *stage = HandleState::Finished(how);
            self.wake.notify_one();
        }
    }

    /// Records that another worker asks for the lease, and wakes the coordinator.
    pub(in crate::lease) fn note_requester(&self, taker: &WorkerId) {
        *self.lock_named() = Some(taker.clone());
        self.wake.notify_one();
    }

    /// Takes out the worker that was seen to ask for the lease.
    pub(crate) fn take_requester(&self) -> Option<WorkerId> {
        self.lock_named().take()
    }

    /// Locks the read rate of the shard.
    pub(in crate::lease) fn rate(&self) -> MutexGuard<'_, ReadRate> {
        // A panic can only lose the bytes that were being added.
        self.rate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_heard(&self) -> MutexGuard<'_, Checkpoint> {
        // Replaced as a whole, so a panic leaves a consistent value.
        self.known_checkpoint.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_unwritten(&self) -> MutexGuard<'_, Option<Checkpoint>> {
        // Replaced as a whole, so a panic leaves a consistent value.
        self.unsaved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_named(&self) -> MutexGuard<'_, Option<WorkerId>> {
        // Replaced as a whole, so a panic leaves a consistent value.
        self.requester.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_stage(&self) -> MutexGuard<'_, HandleState> {
        // Replaced as a whole, so a panic leaves a consistent value.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Merges a further drain request into the pending stop. Returns `None` if that stays as it is.
///
/// A drain for another worker can be withdrawn; any other reason can't, and replaces it. The
/// earlier deadline applies.
fn merge_stop(
    standing: Option<&StopReason>,
    deadline_ms: u64,
    why: DrainReason,
) -> Option<StopReason> {
    let Some(StopReason::Drain { deadline_ms: before_ms, why: before }) = standing else {
        return standing.is_none().then_some(StopReason::Drain { deadline_ms, why });
    };
    let for_another = |why: &DrainReason| matches!(why, DrainReason::HandOver { .. });
    let replaces = for_another(before) && !for_another(&why);
    (replaces || deadline_ms < *before_ms).then(|| StopReason::Drain {
        deadline_ms: deadline_ms.min(*before_ms),
        why: if replaces { why } else { before.clone() },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_model::hash::HashRange;
    use anabranch_model::lease::NewLease;
    use anabranch_model::position::Position;

    #[tokio::test(start_paused = true)]
    async fn nothing_is_delivered_from_the_moment_on_that_a_lease_is_lost_or_given_away() {
        let new = NewLease {
            shard: "shardId-000000000000".into(),
            parents: vec![],
            range: HashRange::ALL,
            checkpoint: Position::TrimHorizon,
        };
        let lease = Lease { owner: Some("me".into()), ..new.into_lease(&"s".into()) };
        let clock = Clock::of_runtime();
        let now_ms = clock.now_ms();
        let other = |held: &HeldLease| assert!(held.request_drain(9, DrainReason::StreamRecreated));
        for end in [HeldLease::mark_lost, HeldLease::stop_delivery, other] {
            let pulse = Arc::new(Heartbeat::new(10_000, now_ms));
            let own = lease.token().unwrap();
            let held = HeldLease::new(lease.clone(), own, None, pulse, Arc::default(), now_ms);
            assert!(held.may_deliver(now_ms) && held.wait_until_may_deliver(&clock).await);
            end(&held);
            assert!(!held.may_deliver(now_ms) && !held.wait_until_may_deliver(&clock).await);
        }
    }

    #[test]
    fn a_stop_is_not_taken_back_with_the_hand_over_that_it_met() {
        let hand_over = || DrainReason::HandOver { to: "other".into() };
        let stopping = || DrainReason::Stopping;
        let drain = |deadline_ms, why| StopReason::Drain { deadline_ms, why };
        let check = |standing: Option<StopReason>, (ms, why), expected: Option<StopReason>| {
            assert_eq!(merge_stop(standing.as_ref(), ms, why), expected, "{standing:?} {ms}");
        };
        check(None, (9, hand_over()), Some(drain(9, hand_over())));
        check(Some(drain(9, hand_over())), (20, stopping()), Some(drain(9, stopping())));
        check(Some(drain(9, hand_over())), (5, stopping()), Some(drain(5, stopping())));
        check(Some(drain(9, hand_over())), (20, hand_over()), None);
        check(Some(drain(9, hand_over())), (5, hand_over()), Some(drain(5, hand_over())));
        check(Some(drain(9, stopping())), (5, hand_over()), Some(drain(5, stopping())));
        check(Some(drain(9, stopping())), (20, DrainReason::StreamRemoved), None);
        check(Some(StopReason::Lost), (5, stopping()), None);
    }
}
