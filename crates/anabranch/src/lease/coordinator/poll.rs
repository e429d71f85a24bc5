//! Polls of the store, which are cheap while nothing changes, and their schedule.

use super::gates::GateTracker;
use super::shared::CoordinatorShared;
use super::{CoordinatorSettings, LeaseContext};
use crate::event::LeaseEvent;
use crate::lease::{LeaseStore, StoreError, StorePoll};
use crate::stream::api::StreamApi;
use anabranch_model::ids::StreamName;
use anabranch_model::lease::fleet_snapshot::{
    FleetSnapshot, LeasePhase, LeaseSnapshot, WorkerSnapshot, WorkerStatus,
};
use anabranch_model::lease::fleet_view::FleetView;
use anabranch_model::lease::{HandOver, Layout, Lease, LeaseKey, WorkerId, WorkerRow, WorkerState};
use std::collections::{BTreeMap, BTreeSet};

/// Delay after the first sight of a version until the leases are listed once more, in milliseconds.
/// On DynamoDB a query is not isolated from a transaction on another partition. So a poll can show
/// the version of a change that the list after it lacks.
const SETTLED_MS: u64 = 1_000;

/// Shortest and longest pause after a throttled list, in milliseconds.
const THROTTLED_MS: [u64; 2] = [500, 16_000];

/// A pause after throttled lists.
#[derive(Clone, Copy, Debug)]
struct ListBackoff {
    pause_ms: u64,
    until_ms: u64,
}

impl ListBackoff {
    /// Returns the pause after one more throttled list, twice as long as the previous one.
    fn next(before: Option<Self>, now_ms: u64) -> Self {
        let [shortest_ms, longest_ms] = THROTTLED_MS;
        let pause_ms = before.map_or(shortest_ms, |it| (it.pause_ms * 2).min(longest_ms));
        Self { pause_ms, until_ms: now_ms + pause_ms }
    }
}

/// This worker's knowledge of the fleet.
#[derive(Debug)]
pub(super) struct FleetPoller {
    /// Input of the planner.
    pub(super) view: FleetView,
    /// The leases of each stream, as last listed.
    rows: BTreeMap<StreamName, Vec<Lease>>,
    /// The version that was read before that list.
    version: Option<u64>,
    /// Time from which a list is certain to show all of that version. `None` once there was such a
    /// list.
    settled_ms: Option<u64>,
    /// Time of the last list.
    listed_ms: Option<u64>,
    /// True if the last list left out an unreadable row. No version shows when such a row is
    /// readable again.
    left_out: bool,
    /// Pause after a throttled list, if there is one.
    throttled: Option<ListBackoff>,
    /// Numbers of workers and leases that were last reported.
    told: (usize, usize),
}

impl FleetPoller {
    pub(super) fn new(view: FleetView) -> Self {
        Self {
            view,
            rows: BTreeMap::new(),
            version: None,
            settled_ms: None,
            listed_ms: None,
            left_out: false,
            throttled: None,
            told: (0, 0),
        }
    }

    /// Polls once. Returns true if the leases were listed because the version or the set of streams
    /// had changed. Heartbeats don't move the version.
    pub(super) async fn poll<S: LeaseStore, A: StreamApi>(
        &mut self,
        crew: &CoordinatorShared<S, A>,
        streams: &[StreamName],
        ready: &mut GateTracker,
    ) -> Result<bool, StoreError> {
        let tools = &*crew.context;
        let look = tools.poll().await?;
        // A list that is only periodically due shows no change, so it does not speed up the polls.
        let same_streams = streams.iter().eq(self.rows.keys());
        let known = look.version.is_some() && look.version == self.version && same_streams;
        let now_ms = tools.clock.now_ms();
        let settles = self.settled_ms.is_some_and(|ms| now_ms >= ms);
        let wanted = !known || settles || self.is_list_due(tools);
        let lists = wanted && (!same_streams || self.may_list(now_ms));
        let listed = lists && self.list_if_possible(crew, streams, same_streams).await?;
        if listed {
            self.version = look.version;
            if !known {
                self.settled_ms = look.version.map(|_| now_ms + SETTLED_MS);
            } else if settles {
                self.settled_ms = None;
            }
        }
        self.learn(crew.learned.take());
        self.update_gates(crew, ready);
        let leases =
            self.rows.values().flatten().map(|lease| lease_snapshot(lease, ready.phase(lease)));
        let snapshot = FleetSnapshot { workers: worker_snapshots(&look), leases: leases.collect() };
        self.emit_fleet_size(crew, &snapshot);
        self.view.observe(snapshot, tools.clock.now_ms());
        Ok(listed && !known && look.version.is_some())
    }

    /// Lists the leases. Returns false if the store throttled the list and the last one can be
    /// used. That is possible in the native layout, where heartbeats are read separately: a write
    /// based on a stale row is refused.
    async fn list_if_possible<S: LeaseStore, A: StreamApi>(
        &mut self,
        crew: &CoordinatorShared<S, A>,
        streams: &[StreamName],
        has_rows: bool,
    ) -> Result<bool, StoreError> {
        let native = crew.context.store.layout() == Layout::Native;
        match self.list(crew, streams).await {
            Ok(()) => {
                self.throttled = None;
                Ok(true)
            }
            Err(error @ StoreError::Throttled { .. }) if native && has_rows => {
                crew.context.emit_store_failure("list", &error);
                let now_ms = crew.context.clock.now_ms();
                self.throttled = Some(ListBackoff::next(self.throttled, now_ms));
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Replaces listed rows by newer ones.
    fn learn(&mut self, rows: Vec<Lease>) {
        for row in rows {
            if let Some(known) = self.row_mut(&row.key)
                && known.term < row.term
            {
                *known = row;
            }
        }
    }

    fn may_list(&self, now_ms: u64) -> bool {
        self.throttled.is_none_or(|throttled| now_ms >= throttled.until_ms)
    }

    /// Evaluates the gates by the rows that were listed last.
    pub(super) fn update_gates<S: LeaseStore, A: StreamApi>(
        &self,
        crew: &CoordinatorShared<S, A>,
        ready: &mut GateTracker,
    ) {
        ready.evaluate(crew, &self.rows);
    }

    /// Emits the size of the fleet when it has changed.
    fn emit_fleet_size<S: LeaseStore, A: StreamApi>(
        &mut self,
        crew: &CoordinatorShared<S, A>,
        seen: &FleetSnapshot,
    ) {
        let me = crew.held_leases.member().id.clone();
        let active = seen.workers.iter().filter(|worker| worker.status == WorkerStatus::Active);
        let mut workers: BTreeSet<_> = active.map(|worker| &worker.id).collect();
        if crew.context.store.layout() == Layout::Kcl {
            workers = seen.leases.iter().filter_map(|lease| lease.owner.as_ref()).collect();
        }
        workers.insert(&me);
        let now = (workers.len(), seen.leases.len());
        if self.told != now {
            self.told = now;
            let (workers, leases) = now;
            crew.context.emit(LeaseEvent::FleetChanged { workers, leases });
        }
    }

    /// Lists the leases. The version is read before, so the list shows that version or a later one.
    async fn list<S: LeaseStore, A: StreamApi>(
        &mut self,
        crew: &CoordinatorShared<S, A>,
        streams: &[StreamName],
    ) -> Result<(), StoreError> {
        let tools = &*crew.context;
        let listed = tools.list_recent(streams).await?;
        self.left_out = listed.iter().any(|(_, listing)| !listing.unreadable.is_empty());
        self.rows = listed.into_iter().map(|(stream, listing)| (stream, listing.rows)).collect();
        // A listed row may be older than this worker's take of it. By the old row the planner would
        // take too many leases.
        let may_be_old = tools.store.layout() == Layout::Kcl;
        for held in crew.held_leases.all().iter().filter(|_| may_be_old) {
            let taken = held.taken_row();
            if let Some(row) = self.row_mut(&taken.key)
                && row.term < taken.term
            {
                *row = taken.clone();
            }
        }
        self.listed_ms = Some(tools.clock.now_ms());
        Ok(())
    }

    fn is_list_due<S, A>(&self, tools: &LeaseContext<S, A>) -> bool {
        let settings = &tools.settings;
        let most_ms = if self.left_out { settings.lease_time_ms } else { u64::MAX };
        let pause_ms = settings.full_list_interval.min(most_ms);
        self.listed_ms.is_none_or(|ms| tools.clock.now_ms() >= ms + pause_ms)
    }

    /// Returns a lease as last listed.
    pub(super) fn row(&self, key: &LeaseKey) -> Option<&Lease> {
        let rows = self.rows.get(&key.stream)?;
        let at = rows.binary_search_by(|row| row.key.cmp(key)).ok()?;
        rows.get(at)
    }

    fn row_mut(&mut self, key: &LeaseKey) -> Option<&mut Lease> {
        let rows = self.rows.get_mut(&key.stream)?;
        let at = rows.binary_search_by(|row| row.key.cmp(key)).ok()?;
        rows.get_mut(at)
    }

    /// Returns true if a listed lease of the stream is owned or requested by the worker.
    pub(super) fn is_named(&self, stream: &StreamName, worker: &WorkerId) -> bool {
        let names = |row: &Lease| {
            let asks = matches!(&row.hand_over, HandOver::Requested { taker } if taker == worker);
            asks || row.owner.as_ref() == Some(worker)
        };
        self.rows.get(stream).is_some_and(|rows| rows.iter().any(names))
    }

    /// Returns true if the leases of the stream were listed.
    pub(super) fn knows(&self, stream: &StreamName) -> bool {
        self.rows.contains_key(stream)
    }
}

fn worker_snapshots(look: &StorePoll) -> Vec<WorkerSnapshot> {
    let unreadable = look.unreadable.iter().map(|row| WorkerSnapshot {
        id: row.key.clone(),
        counter: 0,
        status: WorkerStatus::Unreadable,
        reads: None,
        lease_time_ms: None,
    });
    look.workers.iter().map(worker_snapshot).chain(unreadable).collect()
}

fn worker_snapshot(worker: &WorkerRow) -> WorkerSnapshot {
    let standing = match worker.state {
        WorkerState::Alive => WorkerStatus::Active,
        WorkerState::Leaving => WorkerStatus::Leaving,
        WorkerState::Fenced => WorkerStatus::Fenced,
    };
    WorkerSnapshot {
        id: worker.id.clone(),
        counter: worker.counter,
        status: standing,
        reads: worker.reads.clone(),
        lease_time_ms: worker.lease_time_ms,
    }
}

fn lease_snapshot(lease: &Lease, phase: LeasePhase) -> LeaseSnapshot {
    let named = match &lease.hand_over {
        HandOver::Requested { taker } => Some(taker.clone()),
        HandOver::None | HandOver::Refused => None,
    };
    LeaseSnapshot {
        key: lease.key.clone(),
        owner: lease.owner.clone(),
        counter: lease.term,
        phase,
        requested: named,
        refused: lease.hand_over == HandOver::Refused,
        bytes_per_second: lease.bytes_per_second,
    }
}

// The poll schedule: polls come sooner while leases change hands, later where a poll is expensive.

/// Time for which polls come fast after a change, in milliseconds.
const HURRY_FOR_MS: u64 = 2_000;

/// Time for which further finished shards don't speed up polls, in milliseconds.
const NO_RETURN_HURRIES_MS: u64 = 20_000;

/// Minimum pause between two polls in KCL's layout, in milliseconds: there every poll is a scan.
const KCL_LOOK_MS: u64 = 1_000;

/// Factor by which polls come sooner in KCL's layout while leases change hands.
const KCL_HURRY: u64 = 3;

/// Maximum pause between two polls in KCL's layout, in lease times: that of Java's taker.
const KCL_LONGEST_LEASE_TIMES: u64 = 2;

/// Maximum number of times that the pause is doubled while the store throttles polls.
const MOST_DOUBLED: u32 = 6;

/// Schedule of the next poll.
#[derive(Debug)]
pub(super) struct PollSchedule {
    /// End of the period in which polls come fast.
    hurry_until_ms: u64,
    /// Time at which a finished shard last sped up the polls.
    returned_ms: Option<u64>,
    /// Number of times that the pause is doubled because the store throttles polls.
    doubled: u32,
}

impl PollSchedule {
    /// Creates a schedule that polls fast at first.
    pub(super) fn new(now_ms: u64) -> Self {
        Self { hurry_until_ms: now_ms + HURRY_FOR_MS, returned_ms: None, doubled: 0 }
    }

    /// Notes that leases change hands.
    pub(super) fn note_hand_over(&mut self, now_ms: u64) {
        self.hurry_until_ms = now_ms + HURRY_FOR_MS;
    }

    /// Notes that a shard has finished, which created rows for its children. After a reshard shards
    /// finish one by one for a long time, so only the first one speeds up the polls.
    pub(super) fn note_finished_shard(&mut self, now_ms: u64) {
        if self.returned_ms.is_none_or(|ms| now_ms >= ms + NO_RETURN_HURRIES_MS) {
            self.returned_ms = Some(now_ms);
            self.note_hand_over(now_ms);
        }
    }

    pub(super) fn is_busy(&self, now_ms: u64) -> bool {
        now_ms < self.hurry_until_ms
    }

    /// Notes that the store has throttled a poll.
    pub(super) fn throttled(&mut self) {
        self.doubled = (self.doubled + 1).min(MOST_DOUBLED);
    }

    /// Notes that a poll succeeded.
    pub(super) fn note_poll(&mut self) {
        self.doubled = self.doubled.saturating_sub(1);
    }

    /// Returns the time of the next poll in KCL's layout, if the last one ended at `looked_ms`. A
    /// poll scans the whole table and uses read units that Java's workers need too. So the interval
    /// configured, or suggested by the store for a table of that size (`look_ms`), applies, and a
    /// store that throttles is polled less often.
    ///
    /// Unless the store throttles, a poll also comes at `expiry_ms`, when a lease that its owner
    /// has not renewed expires. A stream that was not listed yet is polled after the minimum pause.
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

/// Reasons to poll earlier in KCL's layout.
#[derive(Clone, Copy, Debug)]
pub(super) struct EarlyPoll {
    /// Earliest expiry of a lease that its owner does not seem to renew.
    pub(super) expiry_ms: Option<u64>,
    /// True if a stream is read that was not listed yet.
    pub(super) unlisted: bool,
}
