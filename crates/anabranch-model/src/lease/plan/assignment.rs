//! Assignment for the whole fleet: takers for the free leases, and the held leases to move.

use super::PlanSettings;
use super::affinity::{affinity, of_lease, of_worker};
use super::fleet::{LeaseStatus, PlannerFleet};
use super::share::shares;
use crate::lease::worker_row::WorkerId;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// A lease and the worker that should get it, as indices into the fleet.
pub(super) type LeaseAssignment = (usize, usize);

/// Assignment of leases to each worker of the fleet.
#[derive(Debug)]
pub(super) struct Assignment {
    /// Share of each taker.
    pub(super) shares: Vec<usize>,
    /// Leases that each taker has or will have, without exchanges.
    pub(super) holdings: Vec<usize>,
    /// Free leases and their takers.
    pub(super) takes: Vec<LeaseAssignment>,
    /// Leases to request and their takers.
    pub(super) names: Vec<LeaseAssignment>,
}

impl Assignment {
    /// Returns by how much a taker is above its share.
    pub(super) fn surplus(&self, at: usize) -> usize {
        self.holdings[at].saturating_sub(self.shares[at])
    }

    /// Returns true if the lease counts need no further moves.
    pub(super) fn is_level(&self) -> bool {
        let nobody_above = (0..self.shares.len()).all(|at| self.surplus(at) == 0);
        nobody_above && self.takes.is_empty() && self.names.is_empty()
    }
}

/// Assigns the leases. Every worker that sees the same rows computes the same assignment. So it
/// must not depend on anything that only one worker has seen, such as the age of a free lease.
pub(super) fn assign(fleet: &PlannerFleet<'_>, settings: &PlanSettings) -> Assignment {
    let holdings = fleet.holdings();
    let shares = shares(fleet.leases.len(), &holdings, &fleet.pinned(), settings.max_leases);
    let takes = takes(fleet, &shares, &holdings);
    let mut deal = Assignment { shares, holdings, takes, names: Vec::new() };
    deal.names = hand_overs_to_request(fleet, &deal, settings.hand_overs_at_once);
    deal
}

/// Assigns each free lease to the worker with the highest affinity among those below their share.
///
/// After some workers have taken a part of their leases, the rest is assigned as before. A worker
/// that has taken a lease lacks one fewer, and a worker that was full for a lease is full for it
/// again. Workers that poll at different times therefore conflict only if they see different
/// workers.
fn takes(fleet: &PlannerFleet<'_>, shares: &[usize], holdings: &[usize]) -> Vec<LeaseAssignment> {
    let lack = |at: usize| shares[at].saturating_sub(holdings[at]);
    let mut lacking: Vec<UnderloadedWorker> = (0..shares.len())
        .filter(|&at| lack(at) > 0)
        .map(|at| UnderloadedWorker {
            taker: at,
            number: of_worker(fleet.takers[at]),
            lacks: lack(at),
        })
        .collect();
    let mut takes = Vec::new();
    let free =
        fleet.leases.iter().enumerate().filter(|(_, counted)| counted.place == LeaseStatus::Free);
    for (at, counted) in free {
        let lease = of_lease(&counted.lease.row.key);
        let best = lacking.iter_mut().max_by_key(|it| (affinity(lease, it.number), it.taker));
        let Some(best) = best else { break };
        takes.push((at, best.taker));
        best.lacks -= 1;
        if best.lacks == 0 {
            lacking.retain(|it| it.lacks > 0);
        }
    }
    takes
}

/// A worker that is below its share.
struct UnderloadedWorker {
    taker: usize,
    /// Its part of the affinity.
    number: u64,
    /// Number of leases that it lacks.
    lacks: usize,
}

/// Workers still below their share after the free leases are assigned, the one with the fewest
/// leases first.
struct UnderloadedQueue {
    /// Share of each taker.
    shares: Vec<usize>,
    /// Current count of each taker below its share, with the taker.
    lacking: BinaryHeap<Reverse<(usize, usize)>>,
}

impl UnderloadedQueue {
    fn new(deal: &Assignment) -> Self {
        let mut has = deal.holdings.clone();
        for (_, taker) in &deal.takes {
            has[*taker] += 1;
        }
        let lacking = (0..deal.shares.len()).filter(|&at| has[at] < deal.shares[at]);
        Self {
            lacking: lacking.map(|at| Reverse((has[at], at))).collect(),
            shares: deal.shares.clone(),
        }
    }

    /// Returns the next taker that satisfies `may`. Takers that do not are dropped for good.
    fn next(&mut self, may: impl Fn(usize) -> bool) -> Option<usize> {
        let Reverse((has, taker)) =
            std::iter::from_fn(|| self.lacking.pop()).find(|Reverse((_, taker))| may(*taker))?;
        if has + 1 < self.shares[taker] {
            self.lacking.push(Reverse((has + 1, taker)));
        }
        Some(taker)
    }
}

/// Returns the leases to request, within the limits of each giver and each taker.
fn hand_overs_to_request(
    fleet: &PlannerFleet<'_>,
    deal: &Assignment,
    at_once: usize,
) -> Vec<LeaseAssignment> {
    let mut takers = UnderloadedQueue::new(deal);
    let mut in_progress = HandOverCaps::read(fleet);
    let mut names = Vec::new();
    for at in to_be_moved(fleet, deal) {
        let Some(giver) = fleet.leases[at].lease.row.owner.as_ref() else { continue };
        if in_progress.of_giver(giver) >= at_once {
            continue;
        }
        let Some(taker) = takers.next(|taker| in_progress.to_taker[taker] < at_once) else { break };
        in_progress.begin(giver, taker);
        names.push((at, taker));
    }
    names
}

/// Returns the leases that have to move: first all leases of leaving workers, then each worker's
/// surplus, the workers in turns.
fn to_be_moved(fleet: &PlannerFleet<'_>, deal: &Assignment) -> Vec<usize> {
    let mut departing = Vec::new();
    let mut held: Vec<Vec<usize>> = vec![Vec::new(); fleet.takers.len()];
    let mut arriving = vec![0; fleet.takers.len()];
    for (at, counted) in fleet.leases.iter().enumerate() {
        match counted.place {
            LeaseStatus::Departing => departing.push(at),
            LeaseStatus::Held(holder) => held[holder].push(at),
            LeaseStatus::Arriving(taker) => arriving[taker] += 1,
            LeaseStatus::Free | LeaseStatus::Pending | LeaseStatus::Pinned(_) => {}
        }
    }
    let mut above = Vec::new();
    for (holder, mut leases) in held.into_iter().enumerate() {
        // Such a worker withdraws its own requests first.
        let surplus = deal.surplus(holder).saturating_sub(arriving[holder]);
        if surplus > 0 {
            leases.sort_unstable_by_key(|&at| fleet.leases[at].turn());
            above.extend(leases.into_iter().take(surplus).enumerate());
        }
    }
    above.sort_by_key(|(turn, _)| *turn);
    departing.extend(above.into_iter().map(|(_, at)| at));
    departing
}

/// Hand-overs in progress.
#[derive(Debug)]
pub(super) struct HandOverCaps<'a> {
    /// Number of leases that each owner is giving.
    of_giver: BTreeMap<&'a WorkerId, usize>,
    /// Number of leases that each taker waits for.
    to_taker: Vec<usize>,
}

impl<'a> HandOverCaps<'a> {
    pub(super) fn read(fleet: &PlannerFleet<'a>) -> Self {
        let mut read = Self { of_giver: BTreeMap::new(), to_taker: vec![0; fleet.takers.len()] };
        for counted in &fleet.leases {
            if let (LeaseStatus::Arriving(taker), Some(giver)) =
                (counted.place, &counted.lease.row.owner)
            {
                read.begin(giver, taker);
            }
        }
        read
    }

    fn begin(&mut self, giver: &'a WorkerId, taker: usize) {
        *self.of_giver.entry(giver).or_insert(0) += 1;
        self.to_taker[taker] += 1;
    }

    fn of_giver(&self, giver: &WorkerId) -> usize {
        self.of_giver.get(giver).copied().unwrap_or(0)
    }

    /// Returns true if a taker gives or waits for a lease.
    pub(super) fn involve(&self, fleet: &PlannerFleet<'_>, taker: usize) -> bool {
        self.to_taker[taker] > 0 || self.of_giver(fleet.takers[taker]) > 0
    }
}
