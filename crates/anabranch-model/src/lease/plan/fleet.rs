//! The fleet as the rows show it: who may take leases, and where each lease that counts stands.

use super::PlanningWorker;
use crate::ids::StreamName;
use crate::lease::fleet_snapshot::{LeasePhase, WorkerSnapshot, WorkerStatus};
use crate::lease::fleet_view::{FleetView, HolderStatus, WatchedLease};
use crate::lease::row::LeaseKey;
use crate::lease::worker_row::WorkerId;
use std::collections::BTreeMap;

/// After how many lease times a lease that nobody hands over may be asked for again.
pub(super) const ASK_AGAIN_LEASE_TIMES: u64 = 10;

/// Where a lease that counts stands. Workers are indices into [`PlannerFleet::takers`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LeaseStatus {
    /// It may be taken at once.
    Free,
    /// Its owner does not live, or leaves, and it can't be taken or asked for yet.
    Pending,
    /// Its owner leaves and can be asked for it.
    Departing,
    /// A worker has it and can be asked for it.
    Held(usize),
    /// A worker has it and can't be asked for it.
    Pinned(usize),
    /// A worker that may take leases asked for it, and its owner lives.
    Arriving(usize),
}

/// A lease that counts: its shard has begun and not ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedLease<'a> {
    /// The lease.
    pub(super) lease: &'a WatchedLease,
    /// Where it stands.
    pub(super) place: LeaseStatus,
}

impl PlannedLease<'_> {
    /// The worker that has the lease, or will have it once a hand-over is done.
    pub(super) fn holder(&self) -> Option<usize> {
        match self.place {
            LeaseStatus::Held(at) | LeaseStatus::Pinned(at) | LeaseStatus::Arriving(at) => Some(at),
            LeaseStatus::Free | LeaseStatus::Pending | LeaseStatus::Departing => None,
        }
    }

    /// The shared order in which leases are moved: those that moved least often first.
    pub(super) fn turn(&self) -> (u64, &LeaseKey) {
        (self.lease.row.counter, &self.lease.row.key)
    }
}

/// The fleet as one worker sees it.
#[derive(Debug)]
pub(super) struct PlannerFleet<'a> {
    /// The workers that live and may take leases, by id.
    pub(super) takers: Vec<&'a WorkerId>,
    /// The planner among the takers; `None` while it leaves.
    pub(super) me: Option<usize>,
    /// The leases that count, by key.
    pub(super) leases: Vec<PlannedLease<'a>>,
    /// Since when no taker has been new.
    pub(super) complete_since_ms: u64,
}

/// A worker whose row can't be read takes part as long as it owns a lease, so that nobody asks it
/// for its share.
fn takes_part(view: &FleetView, worker: &WorkerSnapshot) -> bool {
    match worker.status {
        WorkerStatus::Active => true,
        WorkerStatus::Leaving | WorkerStatus::Fenced => false,
        WorkerStatus::Unreadable => {
            view.leases().iter().any(|lease| lease.row.owner.as_ref() == Some(&worker.id))
        }
    }
}

impl<'a> PlannerFleet<'a> {
    /// The workers alone. `None` if the planner itself is fenced or has no row.
    pub(super) fn read(view: &'a FleetView, me: PlanningWorker<'_>, now_ms: u64) -> Option<Self> {
        let my_row = view.worker(me.id).filter(|row| row.row.status != WorkerStatus::Fenced)?;
        // Whether this worker lives is for its own deadline to say, not for its own looks.
        let lives =
            |id: &WorkerId| id == me.id || view.status_of(id, now_ms) == HolderStatus::Alive;
        let takers: Vec<_> = view
            .workers()
            .iter()
            .filter(|worker| takes_part(view, &worker.row) && lives(&worker.row.id))
            .map(|worker| &worker.row.id)
            .collect();
        let me_at = takers.binary_search(&&my_row.row.id).ok();
        let newest =
            takers.iter().filter_map(|id| view.worker(id)).map(|taker| taker.since_ms).max();
        let complete_since_ms = newest.unwrap_or(now_ms);
        Some(Self { takers, me: me_at, leases: Vec::new(), complete_since_ms })
    }

    /// The fleet and its leases, in one part for each set of workers that read the same streams. In
    /// most applications all read all, and there is one. Every worker of a part sees all of its
    /// leases, so all deal it alike.
    pub(super) fn parts(
        &self,
        view: &'a FleetView,
        me: PlanningWorker<'_>,
        now_ms: u64,
    ) -> Vec<Self> {
        let mut readers: BTreeMap<&StreamName, Vec<&'a WorkerId>> = BTreeMap::new();
        let mut parts: BTreeMap<Vec<&'a WorkerId>, Vec<&'a WatchedLease>> = BTreeMap::new();
        for lease in view.leases().iter().filter(|lease| lease.row.phase == LeasePhase::Ready) {
            let stream = &lease.row.key.stream;
            let of_stream = readers.entry(stream).or_insert_with(|| self.readers(view, stream));
            match parts.get_mut(of_stream) {
                Some(leases) => leases.push(lease),
                None => drop(parts.insert(of_stream.clone(), vec![lease])),
            }
        }
        parts
            .into_iter()
            .map(|(takers, leases)| self.part(takers, leases, view, me, now_ms))
            .collect()
    }

    /// The takers that read a stream.
    fn readers(&self, view: &FleetView, stream: &StreamName) -> Vec<&'a WorkerId> {
        let reads = |id: &WorkerId| view.worker(id).is_some_and(|it| it.row.reads(stream));
        self.takers.iter().copied().filter(|id| reads(id)).collect()
    }

    fn part(
        &self,
        takers: Vec<&'a WorkerId>,
        leases: Vec<&'a WatchedLease>,
        view: &FleetView,
        me: PlanningWorker<'_>,
        now_ms: u64,
    ) -> Self {
        let me_at = self.me.and_then(|_| takers.binary_search(&me.id).ok());
        let complete_since_ms = self.complete_since_ms;
        let mut part = Self { takers, me: me_at, leases: Vec::new(), complete_since_ms };
        part.leases = leases
            .into_iter()
            .map(|lease| PlannedLease { lease, place: part.place(view, lease, me.id, now_ms) })
            .collect();
        part
    }

    fn place(
        &self,
        view: &FleetView,
        lease: &WatchedLease,
        me: &WorkerId,
        now_ms: u64,
    ) -> LeaseStatus {
        let Some(owner) = &lease.row.owner else { return LeaseStatus::Free };
        match view.status_of(owner, now_ms) {
            HolderStatus::Unowned | HolderStatus::Departed => return LeaseStatus::Free,
            HolderStatus::WithoutRow => return LeaseStatus::Pending,
            HolderStatus::Silent if owner != me => return LeaseStatus::Pending,
            HolderStatus::Silent | HolderStatus::Alive => {}
        }
        let named = lease.row.requested.is_some();
        let can_be_asked =
            !named && !lease.row.refused && !has_unanswered_request(view, lease, now_ms);
        match (self.taker_named_on(lease), self.taker(owner)) {
            (Some(taker), _) if !lease.row.refused => LeaseStatus::Arriving(taker),
            (_, Some(holder)) if can_be_asked => LeaseStatus::Held(holder),
            (_, Some(holder)) => LeaseStatus::Pinned(holder),
            (_, None) if can_be_asked => LeaseStatus::Departing,
            (_, None) => LeaseStatus::Pending,
        }
    }

    /// The taker that is named on a lease of another.
    fn taker_named_on(&self, lease: &WatchedLease) -> Option<usize> {
        let named =
            lease.row.requested.as_ref().filter(|named| Some(*named) != lease.row.owner.as_ref());
        named.and_then(|named| self.taker(named))
    }

    /// The index of a worker that may take leases.
    pub(super) fn taker(&self, id: &WorkerId) -> Option<usize> {
        self.takers.binary_search(&id).ok()
    }

    /// How many leases each taker has or will have.
    pub(super) fn holdings(&self) -> Vec<usize> {
        self.count(PlannedLease::holder)
    }

    /// How many leases of each taker can't be moved.
    pub(super) fn pinned(&self) -> Vec<usize> {
        self.count(|counted| match counted.place {
            LeaseStatus::Pinned(at) => Some(at),
            _ => None,
        })
    }

    fn count(&self, by: impl Fn(&PlannedLease<'a>) -> Option<usize>) -> Vec<usize> {
        let mut counts = vec![0; self.takers.len()];
        for at in self.leases.iter().filter_map(by) {
            counts[at] += 1;
        }
        counts
    }
}

/// The owner let a name wait too long, not long ago. It may be stuck, so others are asked first.
fn has_unanswered_request(view: &FleetView, lease: &WatchedLease, now_ms: u64) -> bool {
    let pause_ms = view.lease_time_ms().saturating_mul(ASK_AGAIN_LEASE_TIMES);
    lease.unanswered_since_ms.is_some_and(|ms| now_ms.saturating_sub(ms) < pause_ms)
}
