//! The fleet as the rows show it: who may take leases, and where each lease that counts stands.

use super::Me;
use crate::ids::StreamName;
use crate::lease::row::LeaseKey;
use crate::lease::snapshot::{Phase, Standing, WorkerSeen};
use crate::lease::view::{Holder, View, WatchedLease};
use crate::lease::worker::WorkerId;
use std::collections::BTreeMap;

/// After how many lease times a lease that nobody hands over may be asked for again.
pub(super) const ASK_AGAIN_LEASE_TIMES: u64 = 10;

/// Where a lease that counts stands. Workers are indices into [`Fleet::takers`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
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
pub(super) struct Counted<'a> {
    /// The lease.
    pub(super) lease: &'a WatchedLease,
    /// Where it stands.
    pub(super) place: Place,
}

impl Counted<'_> {
    /// The worker that has the lease, or will have it once a hand-over is done.
    pub(super) fn holder(&self) -> Option<usize> {
        match self.place {
            Place::Held(at) | Place::Pinned(at) | Place::Arriving(at) => Some(at),
            Place::Free | Place::Pending | Place::Departing => None,
        }
    }

    /// The shared order in which leases are moved: those that moved least often first.
    pub(super) fn turn(&self) -> (u64, &LeaseKey) {
        (self.lease.row.counter, &self.lease.row.key)
    }
}

/// The fleet as one worker sees it.
#[derive(Debug)]
pub(super) struct Fleet<'a> {
    /// The workers that live and may take leases, by id.
    pub(super) takers: Vec<&'a WorkerId>,
    /// The planner among the takers; `None` while it leaves.
    pub(super) me: Option<usize>,
    /// The leases that count, by key.
    pub(super) leases: Vec<Counted<'a>>,
    /// Since when no taker has been new.
    pub(super) complete_since_ms: u64,
}

/// A worker whose row can't be read takes part as long as it owns a lease, so that nobody asks it
/// for its share.
fn takes_part(view: &View, worker: &WorkerSeen) -> bool {
    match worker.standing {
        Standing::Active => true,
        Standing::Leaving | Standing::Fenced => false,
        Standing::Unreadable => {
            view.leases().iter().any(|lease| lease.row.owner.as_ref() == Some(&worker.id))
        }
    }
}

impl<'a> Fleet<'a> {
    /// The workers alone. `None` if the planner itself is fenced or has no row.
    pub(super) fn read(view: &'a View, me: Me<'_>, now_ms: u64) -> Option<Self> {
        let my_row = view.worker(me.id).filter(|row| row.row.standing != Standing::Fenced)?;
        // Whether this worker lives is for its own deadline to say, not for its own looks.
        let lives = |id: &WorkerId| id == me.id || view.standing_of(id, now_ms) == Holder::Beating;
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
    pub(super) fn parts(&self, view: &'a View, me: Me<'_>, now_ms: u64) -> Vec<Self> {
        let mut readers: BTreeMap<&StreamName, Vec<&'a WorkerId>> = BTreeMap::new();
        let mut parts: BTreeMap<Vec<&'a WorkerId>, Vec<&'a WatchedLease>> = BTreeMap::new();
        for lease in view.leases().iter().filter(|lease| lease.row.phase == Phase::Ready) {
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
    fn readers(&self, view: &View, stream: &StreamName) -> Vec<&'a WorkerId> {
        let reads = |id: &WorkerId| view.worker(id).is_some_and(|it| it.row.reads(stream));
        self.takers.iter().copied().filter(|id| reads(id)).collect()
    }

    fn part(
        &self,
        takers: Vec<&'a WorkerId>,
        leases: Vec<&'a WatchedLease>,
        view: &View,
        me: Me<'_>,
        now_ms: u64,
    ) -> Self {
        let me_at = self.me.and_then(|_| takers.binary_search(&me.id).ok());
        let complete_since_ms = self.complete_since_ms;
        let mut part = Self { takers, me: me_at, leases: Vec::new(), complete_since_ms };
        part.leases = leases
            .into_iter()
            .map(|lease| Counted { lease, place: part.place(view, lease, me.id, now_ms) })
            .collect();
        part
    }

    fn place(&self, view: &View, lease: &WatchedLease, me: &WorkerId, now_ms: u64) -> Place {
        let Some(owner) = &lease.row.owner else { return Place::Free };
        match view.standing_of(owner, now_ms) {
            Holder::Nobody | Holder::Gone => return Place::Free,
            Holder::Rowless => return Place::Pending,
            Holder::Silent if owner != me => return Place::Pending,
            Holder::Silent | Holder::Beating => {}
        }
        let named = lease.row.named.is_some();
        let can_be_asked = !named && !lease.row.refused && !asked_in_vain(view, lease, now_ms);
        match (self.taker_named_on(lease), self.taker(owner)) {
            (Some(taker), _) if !lease.row.refused => Place::Arriving(taker),
            (_, Some(holder)) if can_be_asked => Place::Held(holder),
            (_, Some(holder)) => Place::Pinned(holder),
            (_, None) if can_be_asked => Place::Departing,
            (_, None) => Place::Pending,
        }
    }

    /// The taker that is named on a lease of another.
    fn taker_named_on(&self, lease: &WatchedLease) -> Option<usize> {
        let named =
            lease.row.named.as_ref().filter(|named| Some(*named) != lease.row.owner.as_ref());
        named.and_then(|named| self.taker(named))
    }

    /// The index of a worker that may take leases.
    pub(super) fn taker(&self, id: &WorkerId) -> Option<usize> {
        self.takers.binary_search(&id).ok()
    }

    /// How many leases each taker has or will have.
    pub(super) fn holdings(&self) -> Vec<usize> {
        self.count(Counted::holder)
    }

    /// How many leases of each taker can't be moved.
    pub(super) fn pinned(&self) -> Vec<usize> {
        self.count(|counted| match counted.place {
            Place::Pinned(at) => Some(at),
            _ => None,
        })
    }

    fn count(&self, by: impl Fn(&Counted<'a>) -> Option<usize>) -> Vec<usize> {
        let mut counts = vec![0; self.takers.len()];
        for at in self.leases.iter().filter_map(by) {
            counts[at] += 1;
        }
        counts
    }
}

/// The owner let a name wait too long, not long ago. It may be stuck, so others are asked first.
fn asked_in_vain(view: &View, lease: &WatchedLease, now_ms: u64) -> bool {
    let pause_ms = view.lease_time_ms().saturating_mul(ASK_AGAIN_LEASE_TIMES);
    lease.asked_in_vain_ms.is_some_and(|ms| now_ms.saturating_sub(ms) < pause_ms)
}
