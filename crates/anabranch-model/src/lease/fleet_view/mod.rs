//! One worker's view of the fleet, built from successive polls of the store.
//!
//! Timestamps of other machines are never compared. A *heartbeat* is a counter that its owner
//! increments. Its age is the time, by the watcher's own monotonic clock, for which no poll has
//! shown a change. In the native layout each worker row is a heartbeat; in KCL's each lease row is
//! one.
//!
//! Times are milliseconds of that clock. An age counts from the arrival of a poll's *reply*. The
//! row was read before that, so the watcher always waits a little longer than necessary.

use super::fleet_snapshot::{
    FleetSnapshot, LeasePhase, LeaseSnapshot, WorkerSnapshot, WorkerStatus,
};
use super::kcl_probe::ProbeBaseline;
use super::table::Layout;
use super::worker_row::WorkerId;
use std::collections::BTreeMap;

/// Time of the last observed change of a heartbeat.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LastBeat {
    /// No change was seen: the lease had no owner when it was first seen.
    Never,
    /// Arrival of the reply to the poll that saw the change.
    At(u64),
}

impl LastBeat {
    /// Returns the time since the last change, or `None` if there was none.
    pub fn age_ms(self, now_ms: u64) -> Option<u64> {
        match self {
            Self::Never => None,
            Self::At(ms) => Some(now_ms.saturating_sub(ms)),
        }
    }
}

/// Last observed state of a heartbeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeenHeartbeat {
    /// Counter of the heartbeat.
    pub counter: u64,
    /// Time of its last observed change.
    pub moved: LastBeat,
}

impl SeenHeartbeat {
    /// Returns the new state of a heartbeat. Any different counter is a heartbeat, not only a
    /// higher one, because a row that was deleted and recreated counts from the start. An owned
    /// heartbeat that is seen for the first time counts as just changed, unless a probe showed the
    /// same counter at `surveyed_ms`.
    fn seen(
        before: Option<SeenHeartbeat>,
        counter: u64,
        owned: bool,
        reply_ms: u64,
        surveyed_ms: Option<u64>,
    ) -> Self {
        let moved = match before {
            Some(heart) if heart.counter == counter => heart.moved,
            None if !owned => LastBeat::Never,
            None => LastBeat::At(surveyed_ms.unwrap_or(reply_ms)),
            Some(_) => LastBeat::At(reply_ms),
        };
        Self { counter, moved }
    }
}

/// A worker row and its heartbeat.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchedWorker {
    /// Row as last seen.
    pub row: WorkerSnapshot,
    /// Heartbeat of the worker.
    pub heart: SeenHeartbeat,
    /// Time at which it was first seen.
    pub since_ms: u64,
}

/// A lease row and its observed history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchedLease {
    /// Row as last seen.
    pub row: LeaseSnapshot,
    /// Heartbeat: in the native layout only the term, which no heartbeat changes.
    pub heartbeat: SeenHeartbeat,
    /// Time since which every poll has shown that the lease is ready and has no living owner.
    pub free_since_ms: Option<u64>,
    /// Time since which the same worker has requested a hand-over under the same term.
    pub requested_since_ms: Option<u64>,
    /// Time at which a request was seen withdrawn that its owner had left unanswered for the whole
    /// hand-over timeout.
    pub unanswered_since_ms: Option<u64>,
}

/// An owner without a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct OwnerWithoutRow {
    /// Time at which it was first seen without a row.
    since_ms: u64,
    /// Time for which it may still deliver: its lease time, or the longest of the fleet if unknown.
    lease_time_ms: u64,
}

/// Status of a lease's owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HolderStatus {
    /// The lease has no owner.
    Unowned,
    /// The worker was fenced, or its row has been missing for the longest lease time.
    Departed,
    /// The owner has had no row for less than that, so it may still deliver.
    WithoutRow,
    /// The heartbeat has not changed for the worker's lease time.
    Silent,
    /// The heartbeat changes, or it cannot be read and may be changing.
    Alive,
}

/// One worker's view of the fleet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FleetView {
    /// Layout of the store: decides which rows are heartbeats.
    layout: Layout,
    /// Lease time of this worker. It also applies to heartbeats whose rows have none.
    lease_time_ms: u64,
    /// Maximum time for which a hand-over request waits for the owner.
    patience_ms: u64,
    /// Arrival of the reply to the last poll.
    looked_ms: Option<u64>,
    /// Workers with a row, by id.
    workers: Vec<WatchedWorker>,
    /// Leases, by key.
    leases: Vec<WatchedLease>,
    /// Workers that a lease names and that have no row.
    rowless: BTreeMap<WorkerId, OwnerWithoutRow>,
    /// Counters that a probe showed before the first poll.
    surveyed: ProbeBaseline,
}

impl FleetView {
    /// Creates the view of a worker that has not polled yet. Hand-over requests that wait longer
    /// than `patience_ms` count as unanswered.
    pub fn new(layout: Layout, lease_time_ms: u64, patience_ms: u64) -> Self {
        Self {
            layout,
            lease_time_ms,
            patience_ms,
            looked_ms: None,
            workers: Vec::new(),
            leases: Vec::new(),
            rowless: BTreeMap::new(),
            surveyed: ProbeBaseline::default(),
        }
    }

    /// Counts times from a probe of the table: a lease whose first poll shows the probe's counter
    /// has not changed since the probe.
    #[must_use]
    pub fn after(self, surveyed: ProbeBaseline) -> Self {
        Self { surveyed, ..self }
    }

    /// Returns the layout of the store.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns this worker's lease time in milliseconds.
    pub fn lease_time_ms(&self) -> u64 {
        self.lease_time_ms
    }

    /// Returns the maximum time without a heartbeat of a worker. It is taken from the worker's row,
    /// because the worker delivers for that long.
    pub fn lease_time_of(&self, worker: &WorkerSnapshot) -> u64 {
        worker.lease_time_ms.unwrap_or(self.lease_time_ms)
    }

    /// Returns the time for which a lease may go without a renewal, in KCL's layout. The ids of
    /// Anabranch workers contain it. For other owners, and for leases without an owner, this
    /// worker's lease time applies.
    pub fn lease_time_of_owner(&self, lease: &WatchedLease) -> u64 {
        let owner = lease.row.owner.as_ref();
        owner.and_then(WorkerId::kcl_lease_time_ms).unwrap_or(self.lease_time_ms)
    }

    /// Returns the maximum time for which a hand-over request waits for the owner.
    pub fn hand_over_timeout_ms(&self) -> u64 {
        self.patience_ms
    }

    /// Returns when the reply to the last poll arrived.
    pub fn polled_ms(&self) -> Option<u64> {
        self.looked_ms
    }

    /// Returns the workers with a row, by id.
    pub fn workers(&self) -> &[WatchedWorker] {
        &self.workers
    }

    /// Returns the leases, by key.
    pub fn leases(&self) -> &[WatchedLease] {
        &self.leases
    }

    /// Returns the row of a worker.
    pub fn worker(&self, id: &WorkerId) -> Option<&WatchedWorker> {
        let at = self.workers.binary_search_by(|worker| worker.row.id.cmp(id)).ok()?;
        self.workers.get(at)
    }

    /// Adds a poll to the view. `reply_ms` is the arrival of its reply.
    pub fn observe(&mut self, snapshot: FleetSnapshot, reply_ms: u64) {
        self.looked_ms = Some(reply_ms);
        // Includes rows that have vanished since the last poll.
        let longest_ms = self.longest_lease_time_ms();
        self.observe_workers(snapshot.workers, reply_ms);
        let longest_ms = longest_ms.max(self.longest_lease_time_ms());
        self.observe_owners_without_row(&snapshot.leases, longest_ms, reply_ms);
        self.observe_leases(snapshot.leases, reply_ms);
        self.surveyed = ProbeBaseline::default();
    }

    fn observe_workers(&mut self, mut rows: Vec<WorkerSnapshot>, reply_ms: u64) {
        rows.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        let mut before = std::mem::take(&mut self.workers).into_iter().peekable();
        for row in rows {
            while before.next_if(|old| old.row.id < row.id).is_some() {}
            let old = before.next_if(|old| old.row.id == row.id);
            let since_ms = old.as_ref().map_or(reply_ms, |old| old.since_ms);
            let heart =
                SeenHeartbeat::seen(old.map(|old| old.heart), row.counter, true, reply_ms, None);
            self.workers.push(WatchedWorker { row, heart, since_ms });
        }
    }

    fn longest_lease_time_ms(&self) -> u64 {
        let of_rows = self.workers.iter().filter_map(|worker| worker.row.lease_time_ms);
        of_rows.fold(self.lease_time_ms, u64::max)
    }

    /// A list of workers may be older than the list of leases beside it, so a worker that is
    /// missing once is not dead. It gets the lease time that a living worker would have. Its own
    /// lease time was on its row, so the longest of the fleet is used.
    fn observe_owners_without_row(
        &mut self,
        leases: &[LeaseSnapshot],
        longest_ms: u64,
        reply_ms: u64,
    ) {
        if self.layout == Layout::Kcl {
            return;
        }
        let before = std::mem::take(&mut self.rowless);
        let on_rows = leases.iter().flat_map(|lease| [&lease.owner, &lease.requested]);
        for id in on_rows.flatten() {
            if self.worker(id).is_none() && !self.rowless.contains_key(id) {
                let new = OwnerWithoutRow { since_ms: reply_ms, lease_time_ms: longest_ms };
                let mut rowless = before.get(id).copied().unwrap_or(new);
                rowless.lease_time_ms = rowless.lease_time_ms.max(longest_ms);
                self.rowless.insert(id.clone(), rowless);
            }
        }
    }

    fn observe_leases(&mut self, mut rows: Vec<LeaseSnapshot>, reply_ms: u64) {
        rows.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        let mut before = std::mem::take(&mut self.leases).into_iter().peekable();
        let mut leases = Vec::with_capacity(rows.len());
        for row in rows {
            while before.next_if(|old| old.row.key < row.key).is_some() {}
            let old = before.next_if(|old| old.row.key == row.key);
            leases.push(self.observe_lease(old, row, reply_ms));
        }
        self.leases = leases;
    }

    fn observe_lease(
        &self,
        old: Option<WatchedLease>,
        row: LeaseSnapshot,
        reply_ms: u64,
    ) -> WatchedLease {
        let owned = row.owner.is_some();
        let (before, counter) = (old.as_ref().map(|old| old.heartbeat), row.counter);
        let surveyed_ms = self.surveyed.seen_at(&row.key, counter);
        let heart = SeenHeartbeat::seen(before, counter, owned, reply_ms, surveyed_ms);
        let mut lease = WatchedLease {
            requested_since_ms: row.requested.as_ref().map(|_| reply_ms),
            free_since_ms: None,
            unanswered_since_ms: None,
            row,
            heartbeat: heart,
        };
        // A shard that waits for its parents is not waiting for a worker.
        if lease.row.phase == LeasePhase::Ready
            && matches!(
                self.holder(&lease, reply_ms),
                HolderStatus::Unowned | HolderStatus::Departed
            )
        {
            let since = old.as_ref().and_then(|old| old.free_since_ms);
            lease.free_since_ms = Some(since.unwrap_or(reply_ms));
        }
        // A request belongs to an owner: once the lease has changed hands, its time starts again.
        // In KCL's layout renewals change the counter, so the owner is compared.
        let same = |old: &WatchedLease| match self.layout {
            Layout::Native => old.row.counter == lease.row.counter,
            Layout::Kcl => old.row.owner == lease.row.owner,
        };
        let Some(old) = old.filter(same) else { return lease };
        if old.row.requested == lease.row.requested {
            lease.requested_since_ms = old.requested_since_ms;
            lease.unanswered_since_ms = old.unanswered_since_ms;
        } else {
            let waited = old.requested_since_ms.map(|since| reply_ms.saturating_sub(since));
            let in_vain = waited.is_some_and(|waited| waited >= self.patience_ms);
            lease.unanswered_since_ms =
                if in_vain { Some(reply_ms) } else { old.unanswered_since_ms };
        }
        lease
    }

    /// Returns the status of a lease's owner at `now_ms`.
    pub fn holder(&self, lease: &WatchedLease, now_ms: u64) -> HolderStatus {
        let Some(owner) = &lease.row.owner else { return HolderStatus::Unowned };
        match self.layout {
            Layout::Native => self.status_of(owner, now_ms),
            // KCL waits for longer than the lease time, by one tick of its clock.
            Layout::Kcl => match lease.heartbeat.moved.age_ms(now_ms) {
                Some(age) if age <= self.lease_time_of_owner(lease) => HolderStatus::Alive,
                _ => HolderStatus::Silent,
            },
        }
    }

    /// Returns when the next lease of a worker other than `me` expires, in KCL's layout. Counts
    /// only leases that a poll has shown unchanged: one that changed at each poll does not expire
    /// sooner by polling.
    pub fn next_expiry_ms(&self, me: &WorkerId, now_ms: u64) -> Option<u64> {
        let owned = self.leases.iter().filter(|lease| {
            let owner = lease.row.owner.as_ref();
            self.layout == Layout::Kcl && owner.is_some_and(|owner| owner != me)
        });
        let expiries = owned.filter_map(|lease| match lease.heartbeat.moved {
            LastBeat::Never => None,
            LastBeat::At(ms) if self.looked_ms.is_none_or(|looked_ms| ms >= looked_ms) => None,
            LastBeat::At(ms) => {
                Some(ms.saturating_add(self.lease_time_of_owner(lease)).saturating_add(1))
            }
        });
        expiries.filter(|expiry_ms| *expiry_ms > now_ms).min()
    }

    /// Returns the status of a worker, by its row.
    pub fn status_of(&self, id: &WorkerId, now_ms: u64) -> HolderStatus {
        match self.worker(id) {
            Some(worker) if worker.row.status == WorkerStatus::Fenced => HolderStatus::Departed,
            Some(worker) if worker.row.status == WorkerStatus::Unreadable => HolderStatus::Alive,
            Some(worker) => match worker.heart.moved.age_ms(now_ms) {
                Some(age) if age < self.lease_time_of(&worker.row) => HolderStatus::Alive,
                _ => HolderStatus::Silent,
            },
            None => match self.rowless.get(id) {
                Some(it) if now_ms.saturating_sub(it.since_ms) >= it.lease_time_ms => {
                    HolderStatus::Departed
                }
                _ => HolderStatus::WithoutRow,
            },
        }
    }
}

#[cfg(test)]
mod tests;
