//! Telemetry of one shard: written by its tasks, read by the watchdog, health checks and metrics.
//!
//! Most updates are plain atomic stores that read no clock, so they are cheap enough for the path
//! of every record. The watchdog finds out how long a shard has been stuck by checking repeatedly.

use crate::event::ShardEvent;
use anabranch_model::lease::{Checkpoint, LeaseKey};
use anabranch_model::record::UserRecord;
use anabranch_model::stuck_detector::{ReadPhase, ShardActivity, WatchdogAction};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Sentinel for a value that is not known yet.
const UNKNOWN: u64 = u64::MAX;

/// Current step of the fetch task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::consumer) enum FetchStep {
    /// Waits for the next poll.
    Idle = 0,
    /// Waits for memory.
    Memory = 1,
    /// Requests an iterator, or a subscription.
    Iterator = 2,
    /// Requests records.
    Fetch = 3,
    /// Deaggregates records.
    Decode = 4,
    /// Waits for the lanes.
    Lanes = 5,
}

impl FetchStep {
    fn of(number: u64) -> Self {
        match number {
            1 => Self::Memory,
            2 => Self::Iterator,
            3 => Self::Fetch,
            4 => Self::Decode,
            5 => Self::Lanes,
            _ => Self::Idle,
        }
    }

    /// Returns the phase, unless the step waits for something else.
    pub(in crate::consumer) fn phase(self) -> Option<ReadPhase> {
        match self {
            Self::Idle | Self::Memory | Self::Lanes => None,
            Self::Iterator => Some(ReadPhase::Iterator),
            Self::Fetch => Some(ReadPhase::Fetch),
            Self::Decode => Some(ReadPhase::Decode),
        }
    }
}

/// Telemetry of one shard.
#[derive(Debug)]
pub(in crate::consumer) struct ShardTelemetry {
    pub(in crate::consumer) shard: Arc<LeaseKey>,
    /// Number of replies received, shifted by eight bits, and the [`FetchStep`] in the low bits.
    fetching: AtomicU64,
    /// Call counter of each lane.
    lanes: Mutex<Vec<CallCounter>>,
    /// Call counter of the callbacks at the beginning and the end of the shard.
    callbacks: CallCounter,
    /// Number of checkpoints written.
    checkpoints: AtomicU64,
    /// True from the start of a checkpoint write until a write succeeds.
    unsaved: AtomicBool,
    /// Checkpoint that the lease row holds.
    checkpoint: Mutex<Checkpoint>,
    /// Distance of the last reply from the newest record in milliseconds, or [`UNKNOWN`].
    behind_ms: AtomicU64,
    /// Arrival time of the record last passed to the handler, or [`UNKNOWN`].
    arrival_ms: AtomicU64,
    /// Number of records handled.
    records: AtomicU64,
    /// Bytes of those records, keys included.
    bytes: AtomicU64,
    /// Number of chunks handled.
    runs: AtomicU64,
    /// Time spent on those chunks in milliseconds, retries included.
    busy_ms: AtomicU64,
    /// Totals at the last metrics event.
    reported: Mutex<ShardTotals>,
    /// Phase in which the shard is stuck, and since when by the watchdog's clock.
    stuck: Mutex<Option<(ReadPhase, u64)>>,
    /// True while a handler runs that cannot be stopped.
    unstoppable: AtomicBool,
    /// Pending [`WatchdogOrder`] as a number; 0 if there is none.
    ordered: AtomicU8,
    /// Wakes the task that carries out orders.
    wake: Notify,
}

/// Counter of the calls of one lane: twice the number of calls that returned, plus one while a call
/// runs. Clones share it; one task at a time updates it.
#[derive(Clone, Debug, Default)]
pub(in crate::consumer) struct CallCounter(Arc<AtomicU64>);

impl CallCounter {
    /// Marks a call as running.
    #[inline]
    pub(in crate::consumer) fn called(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) | 1, Ordering::Relaxed);
    }

    /// Marks the running call as returned.
    #[inline]
    pub(in crate::consumer) fn returned(&self) {
        // From odd to even, and so to the next number.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Marks that no call runs, after a call that may have been dropped.
    pub(in crate::consumer) fn idle(&self) {
        self.0.fetch_and(!1, Ordering::Relaxed);
    }

    fn current_call(&self) -> Option<u64> {
        let word = self.0.load(Ordering::Relaxed);
        (word & 1 == 1).then_some(word >> 1)
    }
}

/// Guard of a callback outside the lanes. If it is dropped before the call returns, the counter
/// keeps its number, so that the watchdog recognizes a repeated call.
pub(in crate::consumer) struct CallbackGuard<'a>(&'a CallCounter);

impl CallbackGuard<'_> {
    /// Marks the call as returned.
    pub(in crate::consumer) fn returned(self) {
        self.0.returned();
    }
}

impl Drop for CallbackGuard<'_> {
    fn drop(&mut self) {
        self.0.idle();
    }
}

/// Records that a lane has handled and not yet added to the shard's totals. The totals are shared,
/// so a lane adds to them when the clock has advanced or when it waits, and not for each record.
#[derive(Debug, Default)]
pub(in crate::consumer) struct HandledCount {
    records: u64,
    /// Bytes of the records, keys included.
    bytes: u64,
    /// Time of the last addition, in milliseconds.
    taken_ms: u64,
}

impl HandledCount {
    /// Counts more handled records.
    #[inline]
    pub(in crate::consumer) fn add(&mut self, records: &[UserRecord]) {
        let size = |record: &UserRecord| record.data.len() + record.partition_key.len();
        self.records += records.len() as u64;
        self.bytes += records.iter().map(size).sum::<usize>() as u64;
    }
}

/// Counters that only grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::consumer) struct ShardTotals {
    pub(in crate::consumer) records: u64,
    pub(in crate::consumer) bytes: u64,
    pub(in crate::consumer) runs: u64,
    pub(in crate::consumer) busy_ms: u64,
}

/// Order of the watchdog to a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::consumer) enum WatchdogOrder {
    /// Restart the fetch task; the lanes continue with the records they have.
    Refetch,
    /// Drop the handlers and restart the reading.
    DropHandlers,
    /// Release the lease once no handler runs.
    Release,
}

impl WatchdogOrder {
    /// Returns the order that carries out an action for a phase; `None` for a mere report.
    pub(in crate::consumer) fn of(phase: ReadPhase, remedy: WatchdogAction) -> Option<Self> {
        match (remedy, phase) {
            (WatchdogAction::Report, _) => None,
            (WatchdogAction::Restart, ReadPhase::Handler) => Some(Self::DropHandlers),
            (WatchdogAction::Restart, _) => Some(Self::Refetch),
            (WatchdogAction::Release, _) => Some(Self::Release),
        }
    }
}

impl ShardTelemetry {
    /// Creates the telemetry of a shard whose row holds `checkpoint`.
    pub(in crate::consumer) fn new(shard: Arc<LeaseKey>, checkpoint: Checkpoint) -> Self {
        Self {
            shard,
            fetching: AtomicU64::new(0),
            lanes: Mutex::default(),
            callbacks: CallCounter::default(),
            checkpoints: AtomicU64::new(0),
            unsaved: AtomicBool::new(false),
            checkpoint: Mutex::new(checkpoint),
            behind_ms: AtomicU64::new(UNKNOWN),
            arrival_ms: AtomicU64::new(UNKNOWN),
            records: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            runs: AtomicU64::new(0),
            busy_ms: AtomicU64::new(0),
            reported: Mutex::default(),
            stuck: Mutex::default(),
            unstoppable: AtomicBool::new(false),
            ordered: AtomicU8::new(0),
            wake: Notify::new(),
        }
    }

    /// Sets the current fetch step. Only one task at a time calls this.
    pub(in crate::consumer) fn enter(&self, step: FetchStep) {
        let word = self.fetching.load(Ordering::Relaxed);
        self.fetching.store(word & !0xff | step as u64, Ordering::Relaxed);
    }

    /// Notes a reply, empty or not, as progress of fetching.
    pub(in crate::consumer) fn replied(&self, behind_ms: u64) {
        self.fetching.fetch_add(1 << 8, Ordering::Relaxed);
        self.behind_ms.store(behind_ms, Ordering::Relaxed);
    }

    /// Returns the current fetch step.
    pub(in crate::consumer) fn step(&self) -> FetchStep {
        FetchStep::of(self.fetching.load(Ordering::Relaxed) & 0xff)
    }

    /// Returns the call counters of `count` lanes, and discards a pending order.
    ///
    /// The counters continue from the last session, so that the watchdog recognizes a handler that
    /// hangs at the same record again. Each is replaced by an idle one, except in lanes whose last
    /// handler still runs according to `runs`.
    pub(in crate::consumer) fn lanes(
        &self,
        count: usize,
        runs: impl Fn(usize) -> bool,
    ) -> Vec<CallCounter> {
        self.ordered.store(0, Ordering::Relaxed);
        let mut lanes = lock(&self.lanes);
        lanes.resize_with(count, CallCounter::default);
        for (_, lane) in lanes.iter_mut().enumerate().filter(|(index, _)| !runs(*index)) {
            // A task that was dropped may still hold the old counter.
            let word = lane.0.load(Ordering::Relaxed) & !1;
            *lane = CallCounter(Arc::new(AtomicU64::new(word)));
        }
        lanes.clone()
    }

    /// Marks a callback at the beginning or the end of the shard as running, and discards a pending
    /// order.
    pub(in crate::consumer) fn calling(&self) -> CallbackGuard<'_> {
        self.ordered.store(0, Ordering::Relaxed);
        self.callbacks.called();
        CallbackGuard(&self.callbacks)
    }

    /// Adds the records that a lane has handled, unless it did so at this `now_ms` already.
    #[inline]
    pub(in crate::consumer) fn handled_by(&self, handled: &mut HandledCount, now_ms: u64) {
        if handled.taken_ms != now_ms {
            handled.taken_ms = now_ms;
            self.handled(handled);
        }
    }

    /// Adds the records that a lane has handled.
    pub(in crate::consumer) fn handled(&self, handled: &mut HandledCount) {
        if handled.records > 0 {
            self.records.fetch_add(std::mem::take(&mut handled.records), Ordering::Relaxed);
            self.bytes.fetch_add(std::mem::take(&mut handled.bytes), Ordering::Relaxed);
        }
    }

    /// Notes that records are passed to the handler.
    #[inline]
    pub(in crate::consumer) fn note_delivery(&self, records: &[UserRecord]) {
        if let Some(first) = records.first() {
            self.arrival_ms.store(first.arrival_ms, Ordering::Relaxed);
        }
    }

    /// Adds a handled chunk and its duration in milliseconds.
    pub(in crate::consumer) fn note_call_time(&self, ms: u64) {
        self.runs.fetch_add(1, Ordering::Relaxed);
        self.busy_ms.fetch_add(ms, Ordering::Relaxed);
    }

    /// Notes that a checkpoint is about to be written.
    pub(in crate::consumer) fn note_unsaved(&self) {
        self.unsaved.store(true, Ordering::Relaxed);
    }

    /// Notes that the checkpoint was written.
    pub(in crate::consumer) fn note_saved(&self, at: &Checkpoint) {
        lock(&self.checkpoint).clone_from(at);
        self.checkpoints.fetch_add(1, Ordering::Relaxed);
        self.unsaved.store(false, Ordering::Relaxed);
    }

    /// Sets whether a handler runs that cannot be stopped.
    pub(in crate::consumer) fn set_unstoppable(&self, unstoppable: bool) {
        self.unstoppable.store(unstoppable, Ordering::Relaxed);
    }

    /// Returns true while a handler runs that cannot be stopped.
    pub(in crate::consumer) fn is_unstoppable(&self) -> bool {
        self.unstoppable.load(Ordering::Relaxed)
    }

    /// Passes a snapshot of the shard's activity to `watch`.
    pub(in crate::consumer) fn observe<T>(&self, watch: impl FnOnce(ShardActivity<'_>) -> T) -> T {
        // The number of lanes changes, so they come last: each counter keeps its index.
        let callbacks = std::iter::once(self.callbacks.current_call());
        let marks: Vec<_> =
            callbacks.chain(lock(&self.lanes).iter().map(CallCounter::current_call)).collect();
        let word = self.fetching.load(Ordering::Relaxed);
        let written = self.checkpoints.load(Ordering::Relaxed);
        watch(ShardActivity {
            fetching: FetchStep::of(word & 0xff).phase().map(|phase| (phase, word >> 8)),
            handlers: &marks,
            checkpoint: self.unsaved.load(Ordering::Relaxed).then_some(written),
        })
    }

    /// Sets the phase in which the shard is stuck and since when, or that it is not stuck.
    pub(in crate::consumer) fn set_stuck(&self, stuck: Option<(ReadPhase, u64)>) {
        *lock(&self.stuck) = stuck;
    }

    /// Returns the phase in which the shard is stuck, and since when.
    pub(in crate::consumer) fn stuck(&self) -> Option<(ReadPhase, u64)> {
        *lock(&self.stuck)
    }

    /// Issues an order, which replaces a pending one.
    pub(in crate::consumer) fn set_order(&self, order: WatchdogOrder) {
        let number = match order {
            WatchdogOrder::Refetch => 1,
            WatchdogOrder::DropHandlers => 2,
            WatchdogOrder::Release => 3,
        };
        self.ordered.store(number, Ordering::Relaxed);
        self.wake.notify_one();
    }

    /// Waits for an order.
    pub(in crate::consumer) async fn wait_for_order(&self) -> WatchdogOrder {
        loop {
            match self.ordered.swap(0, Ordering::Relaxed) {
                1 => return WatchdogOrder::Refetch,
                2 => return WatchdogOrder::DropHandlers,
                3 => return WatchdogOrder::Release,
                _ => self.wake.notified().await,
            }
        }
    }

    /// Returns the checkpoint that the lease row holds.
    pub(in crate::consumer) fn checkpoint(&self) -> Checkpoint {
        lock(&self.checkpoint).clone()
    }

    /// Returns the distance of the last reply from the newest record, in milliseconds.
    pub(in crate::consumer) fn behind_ms(&self) -> Option<u64> {
        known(&self.behind_ms)
    }

    /// Returns the arrival time of the record last passed to the handler.
    pub(in crate::consumer) fn arrival_ms(&self) -> Option<u64> {
        known(&self.arrival_ms)
    }

    /// Returns true while the user's code runs.
    pub(in crate::consumer) fn is_handling(&self) -> bool {
        self.callbacks.current_call().is_some()
            || lock(&self.lanes).iter().any(|lane| lane.current_call().is_some())
    }

    /// Returns the totals.
    pub(in crate::consumer) fn totals(&self) -> ShardTotals {
        ShardTotals {
            records: self.records.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            runs: self.runs.load(Ordering::Relaxed),
            busy_ms: self.busy_ms.load(Ordering::Relaxed),
        }
    }

    /// Returns a metrics event with the totals since the last one.
    pub(in crate::consumer) fn interval_totals(&self, wall_ms: u64) -> ShardEvent {
        let now = self.totals();
        let before = std::mem::replace(&mut *lock(&self.reported), now);
        ShardEvent::Metrics {
            shard: Arc::clone(&self.shard),
            records: now.records.saturating_sub(before.records),
            bytes: now.bytes.saturating_sub(before.bytes),
            calls: now.runs.saturating_sub(before.runs),
            busy: Duration::from_millis(now.busy_ms.saturating_sub(before.busy_ms)),
            behind_latest: self.behind_ms().map(Duration::from_millis),
            age: self.arrival_ms().map(|ms| Duration::from_millis(wall_ms.saturating_sub(ms))),
        }
    }
}

fn known(figure: &AtomicU64) -> Option<u64> {
    Some(figure.load(Ordering::Relaxed)).filter(|figure| *figure != UNKNOWN)
}

fn lock<T>(inside: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is one assignment, so a panic leaves no inconsistent state.
    inside.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_model::position::Position;

    #[test]
    fn signs_show_what_is_under_way_and_move_when_it_gets_on() {
        let shard = Arc::new(LeaseKey::new("s", "shardId-000000000000"));
        let vitals = ShardTelemetry::new(shard, Checkpoint::at(Position::TrimHorizon));
        let sight = || vitals.observe(|s| (s.fetching, s.handlers.to_vec(), s.checkpoint));
        assert_eq!(sight(), (None, vec![None], None));
        vitals.enter(FetchStep::Iterator);
        assert_eq!(sight().0, Some((ReadPhase::Iterator, 0)));
        vitals.enter(FetchStep::Fetch);
        vitals.replied(5);
        vitals.enter(FetchStep::Fetch);
        assert_eq!((sight().0, vitals.behind_ms()), (Some((ReadPhase::Fetch, 1)), Some(5)));
        vitals.enter(FetchStep::Lanes);
        assert_eq!(sight().0, None, "it waits for others");
        let lanes = vitals.lanes(2, |_| false);
        lanes[1].called();
        assert_eq!(sight().1, vec![None, None, Some(0)]);
        lanes[1].returned();
        lanes[1].called();
        assert_eq!(sight().1, vec![None, None, Some(1)]);
        // A new session at the same position has the same number once the handler runs again.
        let kept = vitals.lanes(2, |lane| lane == 1);
        assert_eq!(sight().1, vec![None, None, Some(1)], "it still runs");
        kept[1].idle();
        lanes[1].called();
        let again = vitals.lanes(2, |_| false);
        assert_eq!(sight().1, vec![None, None, None]);
        lanes[1].returned();
        again[1].called();
        assert_eq!(sight().1, vec![None, None, Some(1)], "a task that was dropped moves nothing");
        vitals.note_unsaved();
        assert_eq!(sight().2, Some(0));
        vitals.note_saved(&Checkpoint::at(Position::ShardEnd));
        assert_eq!((sight().2, vitals.checkpoint()), (None, Checkpoint::at(Position::ShardEnd)));
    }
}
