//! The fleet as the rows show it: the workers that may take leases, and the status of each ready
//! lease.

use super::PlanningWorker;
use crate::ids::StreamName;
use crate::lease::fleet_snapshot::{LeasePhase, WorkerSnapshot, WorkerStatus};
use crate::lease::fleet_view::{FleetView, HolderStatus, WatchedLease};
use crate::lease::row::LeaseKey;
use crate::lease::worker_row::WorkerId;
use std::collections::BTreeMap;

/// Lease times after which a lease whose request went unanswered may be requested again.
pub(super) const ASK_AGAIN_LEASE_TIMES: u64 = 10;

/// Status of a ready lease. Workers are indices into [`PlannerFleet::takers`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LeaseStatus {
    /// It may be taken at once.
    Free,
    /// Its owner is not alive or is leaving, and the lease cannot be taken or requested yet.
    Pending,
    /// Its owner is leaving, and the lease can be requested.
    Departing,
    /// A taker owns it, and it can be requested.
    Held(usize),
    /// A taker owns it, and it cannot be requested.
    Pinned(usize),
    /// A taker has requested it, and its owner is alive.
    Arriving(usize),
}

/// A ready lease: its shard may be read and has not ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedLease<'a> {
    pub(super) lease: &'a WatchedLease,
    pub(super) place: LeaseStatus,
}

impl PlannedLease<'_> {
    /// Returns the taker that has the lease, or will have it after a hand-over.
    pub(super) fn holder(&self) -> Option<usize> {
        match self.place {
            LeaseStatus::Held(at) | LeaseStatus::Pinned(at) | LeaseStatus::Arriving(at) => Some(at),
            LeaseStatus::Free | LeaseStatus::Pending | LeaseStatus::Departing => None,
        }
    }

    /// Returns the sort key for moving leases: those that moved least often come first.
    pub(super) fn turn(&self) -> (u64, &LeaseKey) {
        (self.lease.row.counter, &self.lease.row.key)
    }
}

/// The fleet as one worker sees it.
#[derive(Debug)]
pub(super) struct PlannerFleet<'a> {
    /// Living workers that may take leases, by id.
    pub(super) takers: Vec<&'a WorkerId>,
    /// The planner among the takers; `None` while it leaves.
    pub(super) me: Option<usize>,
    /// Ready leases, by key.
    pub(super) leases: Vec<PlannedLease<'a>>,
    /// Time since which no new taker has appeared.
    pub(super) complete_since_ms: u64,
}

/// Returns true if a worker takes part. A worker whose row cannot be read takes part while it owns
/// a lease, so that its share is not requested from it.
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
    /// Reads the workers without leases. Returns `None` if the planner itself is fenced or has no
    /// row.
    pub(super) fn read(view: &'a FleetView, me: PlanningWorker<'_>, now_ms: u64) -> Option<Self> {
        let my_row = view.worker(me.id).filter(|row| row.row.status != WorkerStatus::Fenced)?;
        // The planner's own liveness follows from its deadline, not from its polls.
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

    /// Splits the fleet and its leases into one part for each set of workers that read the same
    /// streams. In most applications all workers read all streams, so there is one part. Every
    /// worker of a part sees all of its leases, so all compute the same assignment.
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

    /// Returns the takers that read a stream.
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

    /// Returns the taker that requested a lease of another worker.
    fn taker_named_on(&self, lease: &WatchedLease) -> Option<usize> {
        let named =
            lease.row.requested.as_ref().filter(|named| Some(*named) != lease.row.owner.as_ref());
        named.and_then(|named| self.taker(named))
    }

    /// Returns the index of a worker that may take leases.
    pub(super) fn taker(&self, id: &WorkerId) -> Option<usize> {
        self.takers.binary_search(&id).ok()
    }

    /// Returns the number of leases that each taker has or will have.
    pub(super) fn holdings(&self) -> Vec<usize> {
        self.count(PlannedLease::holder)
    }

    /// Returns the number of leases of each taker that cannot be moved.
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

/// Returns true if the owner recently left a request unanswered. It may be stuck, so other owners
/// are asked first.
fn has_unanswered_request(view: &FleetView, lease: &WatchedLease, now_ms: u64) -> bool {
    let pause_ms = view.lease_time_ms().saturating_mul(ASK_AGAIN_LEASE_TIMES);
    lease.unanswered_since_ms.is_some_and(|ms| now_ms.saturating_sub(ms) < pause_ms)
}
