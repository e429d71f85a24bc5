//! The signs of life of one shard: what its tasks note as they go, and everybody else reads.
//!
//! Noting costs a plain store and reads no clock, so that it may stand on the path of every record. How long something stands still, the watcher finds out by looking again.

use crate::event::ShardEvent;
use anabranch_model::lease::{Checkpoint, LeaseKey};
use anabranch_model::record::UserRecord;
use anabranch_model::stuck_detector::{ReadPhase, ShardActivity, WatchdogAction};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// What no figure ever is.
const UNKNOWN: u64 = u64::MAX;

/// What the task that fetches is at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::consumer) enum FetchStep {
    /// It waits for the next poll.
    Idle = 0,
    /// It waits for memory.
    Memory = 1,
    /// It asks for a place to read from.
    Iterator = 2,
    /// It asks for records.
    Fetch = 3,
    /// It takes records apart.
    Decode = 4,
    /// It waits for the lanes.
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

    /// The phase, if it is one that has to get on by itself.
    pub(in crate::consumer) fn phase(self) -> Option<ReadPhase> {
        match self {
            Self::Idle | Self::Memory | Self::Lanes => None,
            Self::Iterator => Some(ReadPhase::Iterator),
            Self::Fetch => Some(ReadPhase::Fetch),
            Self::Decode => Some(ReadPhase::Decode),
        }
    }
}

/// The signs of life of one shard.
#[derive(Debug)]
pub(in crate::consumer) struct ShardTelemetry {
    /// Which shard.
    pub(in crate::consumer) shard: Arc<LeaseKey>,
    /// Replies that came, shifted by eight bits, and the step of fetching below them.
    fetching: AtomicU64,
    /// Each lane: calls of the handler that returned, shifted by one, and whether one runs.
    lanes: Mutex<Vec<CallCounter>>,
    /// The same for the calls that tell the user's code that the shard begins, or has ended.
    callbacks: CallCounter,
    /// Checkpoints that were written.
    checkpoints: AtomicU64,
    /// Whether something done is not written down.
    unsaved: AtomicBool,
    /// Up to where the row says that the shard is done.
    checkpoint: Mutex<Checkpoint>,
    /// How far the last reply was from the newest record, or [`UNKNOWN`].
    behind_ms: AtomicU64,
    /// When the record that the handler was given last had arrived, or [`UNKNOWN`].
    arrival_ms: AtomicU64,
    /// Records that were handled.
    records: AtomicU64,
    /// Their bytes, keys included.
    bytes: AtomicU64,
    /// Runs of records that were handed to the handler.
    runs: AtomicU64,
    /// Milliseconds that those took, retries included.
    busy_ms: AtomicU64,
    /// What of these was told as an event.
    reported: Mutex<ShardTotals>,
    /// In which phase it stands still, and since when by the watcher's clock.
    stuck: Mutex<Option<(ReadPhase, u64)>>,
    /// Whether a handler runs that can't be stopped.
    unstoppable: AtomicBool,
    /// What the watcher wants done.
    ordered: AtomicU8,
    /// Wakes whoever carries that out.
    wake: Notify,
}

/// The sign of one lane. Clones share it, and one task at a time moves it.
#[derive(Clone, Debug, Default)]
pub(in crate::consumer) struct CallCounter(Arc<AtomicU64>);

impl CallCounter {
    /// The handler is called.
    #[inline]
    pub(in crate::consumer) fn called(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) | 1, Ordering::Relaxed);
    }

    /// The call has returned.
    #[inline]
    pub(in crate::consumer) fn returned(&self) {
        // From odd to even, and so to the next number.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// No call runs. One may have been dropped.
    pub(in crate::consumer) fn idle(&self) {
        self.0.fetch_and(!1, Ordering::Relaxed);
    }

    fn current_call(&self) -> Option<u64> {
        let word = self.0.load(Ordering::Relaxed);
        (word & 1 == 1).then_some(word >> 1)
    }
}

/// A call of the user's code beside the lanes. Dropped before it has returned, its mark stays: made
/// again, it is known again.
pub(in crate::consumer) struct CallbackGuard<'a>(&'a CallCounter);

impl CallbackGuard<'_> {
    /// The call has returned.
    pub(in crate::consumer) fn returned(self) {
        self.0.returned();
    }
}

impl Drop for CallbackGuard<'_> {
    fn drop(&mut self) {
        self.0.idle();
    }
}

/// What a lane has handled and the shard's figures don't have yet: those are shared, so a lane adds
/// to them when a moment has passed or it waits, and not for each record.
#[derive(Debug, Default)]
pub(in crate::consumer) struct HandledCount {
    /// The records.
    records: u64,
    /// Their bytes, keys included.
    bytes: u64,
    /// When they were last added.
    taken_ms: u64,
}

impl HandledCount {
    /// More records were handled.
    #[inline]
    pub(in crate::consumer) fn add(&mut self, records: &[UserRecord]) {
        let size = |record: &UserRecord| record.data.len() + record.partition_key.len();
        self.records += records.len() as u64;
        self.bytes += records.iter().map(size).sum::<usize>() as u64;
    }
}

/// Figures that only grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::consumer) struct ShardTotals {
    pub(in crate::consumer) records: u64,
    pub(in crate::consumer) bytes: u64,
    pub(in crate::consumer) runs: u64,
    pub(in crate::consumer) busy_ms: u64,
}

/// What the watcher wants done with a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::consumer) enum WatchdogOrder {
    /// The fetching begins anew; the lanes go on with what they have.
    Refetch,
    /// The reading begins anew, and the handlers are dropped.
    DropHandlers,
    /// The lease is given back, once no handler runs.
    Release,
}

impl WatchdogOrder {
    /// What a remedy for a phase means to the shard; nothing for a mere report.
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
    /// A shard that is done up to `checkpoint`.
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

    /// Fetching enters a step. One task at a time calls this.
    pub(in crate::consumer) fn enter(&self, step: FetchStep) {
        let word = self.fetching.load(Ordering::Relaxed);
        self.fetching.store(word & !0xff | step as u64, Ordering::Relaxed);
    }

    /// A reply came, be it empty: fetching gets on.
    pub(in crate::consumer) fn replied(&self, behind_ms: u64) {
        self.fetching.fetch_add(1 << 8, Ordering::Relaxed);
        self.behind_ms.store(behind_ms, Ordering::Relaxed);
    }

    /// The step of fetching.
    pub(in crate::consumer) fn step(&self) -> FetchStep {
        FetchStep::of(self.fetching.load(Ordering::Relaxed) & 0xff)
    }

    /// The signs of so many lanes. Their counts go on from the last session, so that a handler that
    /// hangs at the same record again is known again. None of them runs, but for those of which
    /// `runs` says so: these keep their signs. What was ordered for the last session is forgotten.
    pub(in crate::consumer) fn lanes(
        &self,
        count: usize,
        runs: impl Fn(usize) -> bool,
    ) -> Vec<CallCounter> {
        self.ordered.store(0, Ordering::Relaxed);
        let mut lanes = lock(&self.lanes);
        lanes.resize_with(count, CallCounter::default);
        for (_, lane) in lanes.iter_mut().enumerate().filter(|(index, _)| !runs(*index)) {
            // A task that was dropped may still hold the old sign.
            let word = lane.0.load(Ordering::Relaxed) & !1;
            *lane = CallCounter(Arc::new(AtomicU64::new(word)));
        }
        lanes.clone()
    }

    /// The user's code is told that the shard begins, or has ended. What was ordered before is
    /// forgotten.
    pub(in crate::consumer) fn calling(&self) -> CallbackGuard<'_> {
        self.ordered.store(0, Ordering::Relaxed);
        self.callbacks.called();
        CallbackGuard(&self.callbacks)
    }

    /// Takes in what a lane has handled by `now_ms`, if a moment has passed since the last time.
    #[inline]
    pub(in crate::consumer) fn handled_by(&self, handled: &mut HandledCount, now_ms: u64) {
        if handled.taken_ms != now_ms {
            handled.taken_ms = now_ms;
            self.handled(handled);
        }
    }

    /// Takes in what a lane has handled.
    pub(in crate::consumer) fn handled(&self, handled: &mut HandledCount) {
        if handled.records > 0 {
            self.records.fetch_add(std::mem::take(&mut handled.records), Ordering::Relaxed);
            self.bytes.fetch_add(std::mem::take(&mut handled.bytes), Ordering::Relaxed);
        }
    }

    /// Records are handed to the handler.
    #[inline]
    pub(in crate::consumer) fn note_delivery(&self, records: &[UserRecord]) {
        if let Some(first) = records.first() {
            self.arrival_ms.store(first.arrival_ms, Ordering::Relaxed);
        }
    }

    /// A run of records took so long.
    pub(in crate::consumer) fn note_call_time(&self, ms: u64) {
        self.runs.fetch_add(1, Ordering::Relaxed);
        self.busy_ms.fetch_add(ms, Ordering::Relaxed);
    }

    /// Something done is about to be written down.
    pub(in crate::consumer) fn note_unsaved(&self) {
        self.unsaved.store(true, Ordering::Relaxed);
    }

    /// It was.
    pub(in crate::consumer) fn note_saved(&self, at: &Checkpoint) {
        lock(&self.checkpoint).clone_from(at);
        self.checkpoints.fetch_add(1, Ordering::Relaxed);
        self.unsaved.store(false, Ordering::Relaxed);
    }

    /// A handler runs that can't be stopped, or no longer.
    pub(in crate::consumer) fn set_unstoppable(&self, unstoppable: bool) {
        self.unstoppable.store(unstoppable, Ordering::Relaxed);
    }

    /// Whether a handler runs that can't be stopped.
    pub(in crate::consumer) fn is_unstoppable(&self) -> bool {
        self.unstoppable.load(Ordering::Relaxed)
    }

    /// What a watcher sees.
    pub(in crate::consumer) fn observe<T>(&self, watch: impl FnOnce(ShardActivity<'_>) -> T) -> T {
        // The number of lanes changes, so they come last: each keeps its place among the marks.
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

    /// Notes in which phase it stands still and since when, or that it does not.
    pub(in crate::consumer) fn set_stuck(&self, stuck: Option<(ReadPhase, u64)>) {
        *lock(&self.stuck) = stuck;
    }

    /// In which phase it stands still, and since when.
    pub(in crate::consumer) fn stuck(&self) -> Option<(ReadPhase, u64)> {
        *lock(&self.stuck)
    }

    /// Wants something done. The last word counts.
    pub(in crate::consumer) fn set_order(&self, order: WatchdogOrder) {
        let number = match order {
            WatchdogOrder::Refetch => 1,
            WatchdogOrder::DropHandlers => 2,
            WatchdogOrder::Release => 3,
        };
        self.ordered.store(number, Ordering::Relaxed);
        self.wake.notify_one();
    }

    /// Waits until something has to be done.
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

    /// Up to where the row says that the shard is done.
    pub(in crate::consumer) fn checkpoint(&self) -> Checkpoint {
        lock(&self.checkpoint).clone()
    }

    /// How far the last reply was from the newest record.
    pub(in crate::consumer) fn behind_ms(&self) -> Option<u64> {
        known(&self.behind_ms)
    }

    /// When the record that the handler was given last had arrived.
    pub(in crate::consumer) fn arrival_ms(&self) -> Option<u64> {
        known(&self.arrival_ms)
    }

    /// Whether the user's code runs.
    pub(in crate::consumer) fn is_handling(&self) -> bool {
        self.callbacks.current_call().is_some()
            || lock(&self.lanes).iter().any(|lane| lane.current_call().is_some())
    }

    /// The figures that only grow.
    pub(in crate::consumer) fn totals(&self) -> ShardTotals {
        ShardTotals {
            records: self.records.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            runs: self.runs.load(Ordering::Relaxed),
            busy_ms: self.busy_ms.load(Ordering::Relaxed),
        }
    }

    /// The figures since they were last asked for, to be told.
    pub(in crate::consumer) fn interval_totals(&self, wall_ms: u64) -> ShardEvent {
        let now = self.totals();
        let before = std::mem::replace(&mut *lock(&self.reported), now);
        ShardEvent::Metrics {
            shard: Arc::clone(&self.shard),
            records: now.records.saturating_sub(before.records),
            bytes: now.bytes.saturating_sub(before.bytes),
            calls: now.runs.saturating_sub(before.runs),
            busy_ms: now.busy_ms.saturating_sub(before.busy_ms),
            behind_ms: self.behind_ms(),
            age_ms: self.arrival_ms().map(|arrival_ms| wall_ms.saturating_sub(arrival_ms)),
        }
    }
}

fn known(figure: &AtomicU64) -> Option<u64> {
    Some(figure.load(Ordering::Relaxed)).filter(|figure| *figure != UNKNOWN)
}

fn lock<T>(inside: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is one assignment, so a panic leaves no half of one.
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
        // A new session at the same place: the same mark, once the handler runs again.
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
