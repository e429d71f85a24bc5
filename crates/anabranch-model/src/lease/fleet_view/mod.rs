//! What one worker knows about the fleet by looking at the store again and again.
//!
//! No timestamp of another machine is ever compared. A *heart* is a counter that its owner moves,
//! and what counts is for how long, by the watcher's own monotonic clock, no look has shown it
//! moving. In the native layout each worker row is a heart; in KCL's each lease row is one.
//!
//! Times are milliseconds of that clock. A time starts when the *reply* to a look arrived: the row
//! was read before that, so the watcher always waits a little longer than it had to.

use super::fleet_snapshot::{
    FleetSnapshot, LeasePhase, LeaseSnapshot, WorkerSnapshot, WorkerStatus,
};
use super::kcl_probe::ProbeBaseline;
use super::table::Layout;
use super::worker_row::WorkerId;
use std::collections::BTreeMap;

/// When a heart was last seen to move.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LastBeat {
    /// It never was: the lease had no owner when it was first seen.
    Never,
    /// When the reply to the look that saw the change arrived.
    At(u64),
}

impl LastBeat {
    /// For how long it has not moved; `None` stands for ever.
    pub fn age_ms(self, now_ms: u64) -> Option<u64> {
        match self {
            Self::Never => None,
            Self::At(ms) => Some(now_ms.saturating_sub(ms)),
        }
    }
}

/// What a heart was when it was last seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeenHeartbeat {
    /// The counter.
    pub counter: u64,
    /// When it was seen to change.
    pub moved: LastBeat,
}

impl SeenHeartbeat {
    /// Any other counter than before is a beat, not only a higher one: a row that was deleted and
    /// made again counts from the start. An owned heart that is seen for the first time may have
    /// beaten just now, unless a survey showed the same counter at `surveyed_ms`.
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

/// A worker row and its heart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchedWorker {
    /// The row as last seen.
    pub row: WorkerSnapshot,
    /// Its heart.
    pub heart: SeenHeartbeat,
    /// Since when it has been seen.
    pub since_ms: u64,
}

/// A lease row and what was seen of it over time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchedLease {
    /// The row as last seen.
    pub row: LeaseSnapshot,
    /// Its heart: in the native layout only its term, which no beat moves.
    pub heartbeat: SeenHeartbeat,
    /// Since when every look has shown that it may be read and has no living owner.
    pub free_since_ms: Option<u64>,
    /// Since when the same worker has been named on it under the same term.
    pub requested_since_ms: Option<u64>,
    /// When a name went away after its owner had not answered it for as long as a name may wait.
    pub unanswered_since_ms: Option<u64>,
}

/// An owner without a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct OwnerWithoutRow {
    /// Since when it has been seen so.
    since_ms: u64,
    /// For how long it may still deliver: its row said so, or may have.
    lease_time_ms: u64,
}

/// Who stands behind a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HolderStatus {
    /// Nobody: it has no owner.
    Unowned,
    /// A worker that was fenced, or one whose row has been missing for the longest lease time.
    Departed,
    /// An owner without a row, seen so for less than that: it may still be delivering.
    WithoutRow,
    /// A heart that has not moved for its worker's lease time.
    Silent,
    /// A heart that beats, or one that can't be read and may beat.
    Alive,
}

/// What one worker knows about the fleet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FleetView {
    /// Which rows beat.
    layout: Layout,
    /// The watcher's own lease time. It goes for hearts whose rows name none.
    lease_time_ms: u64,
    /// For how long a name may wait for the owner.
    patience_ms: u64,
    /// When the reply to the last look arrived.
    looked_ms: Option<u64>,
    /// The workers with a row, by id.
    workers: Vec<WatchedWorker>,
    /// The leases, by key.
    leases: Vec<WatchedLease>,
    /// Workers that a lease names and that have no row.
    rowless: BTreeMap<WorkerId, OwnerWithoutRow>,
    /// The counters that a survey showed before the first look.
    surveyed: ProbeBaseline,
}

impl FleetView {
    /// The view of a worker that has not looked yet. Names that wait for longer than `patience_ms`
    /// were in vain.
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

    /// Counts the time since a survey of the table: a lease that the first look shows with the
    /// survey's counter has not moved since then.
    #[must_use]
    pub fn after(self, surveyed: ProbeBaseline) -> Self {
        Self { surveyed, ..self }
    }

    /// Which rows beat.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The watcher's own lease time.
    pub fn lease_time_ms(&self) -> u64 {
        self.lease_time_ms
    }

    /// For how long the heart of a worker may stand still: for as long as its row says, since that
    /// is for how long the worker delivers.
    pub fn lease_time_of(&self, worker: &WorkerSnapshot) -> u64 {
        worker.lease_time_ms.unwrap_or(self.lease_time_ms)
    }

    /// In KCL's layout: for how long a lease may go without a renewal. The ids of our own workers say
    /// so; for any other owner, and for a lease without one, the watcher's own lease time goes.
    pub fn lease_time_of_owner(&self, lease: &WatchedLease) -> u64 {
        let owner = lease.row.owner.as_ref();
        owner.and_then(WorkerId::kcl_lease_time_ms).unwrap_or(self.lease_time_ms)
    }

    /// For how long a name may wait for the owner.
    pub fn hand_over_timeout_ms(&self) -> u64 {
        self.patience_ms
    }

    /// When the reply to the last look arrived.
    pub fn polled_ms(&self) -> Option<u64> {
        self.looked_ms
    }

    /// The workers with a row, by id.
    pub fn workers(&self) -> &[WatchedWorker] {
        &self.workers
    }

    /// The leases, by key.
    pub fn leases(&self) -> &[WatchedLease] {
        &self.leases
    }

    /// The row of a worker.
    pub fn worker(&self, id: &WorkerId) -> Option<&WatchedWorker> {
        let at = self.workers.binary_search_by(|worker| worker.row.id.cmp(id)).ok()?;
        self.workers.get(at)
    }

    /// Takes in what a look showed. `reply_ms` is when its reply arrived.
    pub fn observe(&mut self, snapshot: FleetSnapshot, reply_ms: u64) {
        self.looked_ms = Some(reply_ms);
        // A row that is gone was on the list before, if this watcher ever saw it.
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
    /// missing once is not dead: it gets the time that a living one would have. Its own lease time
    /// stood on its row, so the longest of the fleet goes for it.
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
        // A shard that waits for its parents waits for nobody to take it.
        if lease.row.phase == LeasePhase::Ready
            && matches!(
                self.holder(&lease, reply_ms),
                HolderStatus::Unowned | HolderStatus::Departed
            )
        {
            let since = old.as_ref().and_then(|old| old.free_since_ms);
            lease.free_since_ms = Some(since.unwrap_or(reply_ms));
        }
        // Names belong to an owner: once the lease has changed hands, a new question begins. In KCL's
        // layout its renewals move the counter.
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

    /// Who stands behind a lease at `now_ms`.
    pub fn holder(&self, lease: &WatchedLease, now_ms: u64) -> HolderStatus {
        let Some(owner) = &lease.row.owner else { return HolderStatus::Unowned };
        match self.layout {
            Layout::Native => self.status_of(owner, now_ms),
            // KCL waits for more than the lease time, by one tick of its clock.
            Layout::Kcl => match lease.heartbeat.moved.age_ms(now_ms) {
                Some(age) if age <= self.lease_time_of_owner(lease) => HolderStatus::Alive,
                _ => HolderStatus::Silent,
            },
        }
    }

    /// In KCL's layout: when the next lease of another than `me` counts as expired. Only leases count
    /// that a look has shown unmoved: of one that moved at each look, no look brings news sooner.
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

    /// What stands behind the name of a worker, by its row.
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
