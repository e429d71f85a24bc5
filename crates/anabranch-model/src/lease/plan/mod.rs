//! The planner: the target owner of each lease, and the next moves of this worker.
//!
//! ```text
//! FleetSnapshot ── observe ──► FleetView ── plan ──► LeaseMove ── conditional writes ──► the store
//!                                             │
//!           native: fleet ─► share ─► assignment ─► weight      kcl2: KCL 2.x's own taker
//! ```
//!
//! In the native protocol every worker computes the assignment of the *whole* fleet from the rows,
//! and carries out its own part only. Workers that see the same rows therefore never want the same
//! lease. If their polls differ, the conditional writes decide, and the next poll makes them agree
//! again.

mod fleet;
mod share;
mod affinity;
mod assignment;
mod weight;
mod native;
mod kcl2;

pub use kcl2::{TakerRound, round};

use super::fleet_view::FleetView;
use super::row::LeaseKey;
use super::table::Layout;
use super::worker_row::WorkerId;
use std::collections::BTreeSet;

/// The worker that plans.
#[derive(Clone, Copy, Debug)]
pub struct PlanningWorker<'a> {
    /// Worker id.
    pub id: &'a WorkerId,
    /// Leases that it runs, starts or drains.
    pub running: &'a BTreeSet<LeaseKey>,
}

/// Limits and settings of a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlanSettings {
    /// Maximum number of leases of one worker. At least 1.
    pub max_leases: usize,
    /// Maximum number of concurrent hand-overs of one giver and of one taker. At least 1.
    pub hand_overs_at_once: usize,
    /// Time in milliseconds for which free leases wait after a new worker was first seen. Workers
    /// often start together, and the first one would otherwise take leases that belong to the
    /// others.
    pub join_settle_ms: u64,
    /// Balancing criterion.
    pub balance: Balance,
    /// Settings for a KCL 2.x fleet.
    pub kcl2: Kcl2Settings,
}

impl Default for PlanSettings {
    fn default() -> Self {
        Self {
            max_leases: usize::MAX,
            hand_overs_at_once: 16,
            join_settle_ms: 200,
            balance: Balance::Count,
            kcl2: Kcl2Settings::default(),
        }
    }
}

/// Balancing criterion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Balance {
    /// The number of leases.
    Count,
    /// The number of leases, then their bytes per second.
    Weight {
        /// Deviation from the mean, in percent, up to which no lease moves for a worker.
        hysteresis_percent: u32,
    },
}

/// KCL 2.x's own settings, with its defaults.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kcl2Settings {
    /// `maxLeasesToStealAtOneTime`: leases stolen in one round.
    pub max_steal: usize,
    /// `enablePriorityLeaseAssignment`: take very old leases before all others.
    pub very_old_first: bool,
    /// Lease times without a renewal after which a lease is very old.
    pub very_old_lease_times: u64,
}

impl Default for Kcl2Settings {
    fn default() -> Self {
        Self { max_steal: 1, very_old_first: true, very_old_lease_times: 3 }
    }
}

/// One planned move. Its write is conditional on the values that the move carries.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LeaseMove {
    /// Fence a silent worker, if its counter has not changed.
    Fence {
        /// Silent worker.
        worker: WorkerId,
        /// Counter that did not change for a full lease time.
        counter: u64,
    },
    /// Remove a hand-over request from a lease: this worker's own, if the owner will not or need
    /// not hand it over, or one on its own lease by a worker that can no longer take it.
    WithdrawRequest {
        /// Lease with the request.
        lease: LeaseKey,
        /// Expected term.
        term: u64,
        /// Worker that made the request.
        taker: WorkerId,
    },
    /// Drain an own lease that another worker requested, and hand it over. The move stays in the
    /// plan until the row has changed hands, so it is idempotent for a worker that is draining
    /// already.
    HandOver {
        /// Lease to hand over.
        lease: LeaseKey,
        /// Current term of this worker.
        term: u64,
        /// Worker that requested it.
        to: WorkerId,
    },
    /// Take an owned lease again, under a new term, and run it. This worker owns it but does not
    /// run it, as after a take whose reply was lost.
    Retake {
        /// Lease to take again.
        lease: LeaseKey,
        /// Term to replace.
        term: u64,
    },
    /// Release an owned lease that this worker does not run and does not need.
    Release {
        /// Lease to release.
        lease: LeaseKey,
        /// Term to end.
        term: u64,
    },
    /// Take a free lease.
    Take {
        /// Lease to take.
        lease: LeaseKey,
        /// Expected term, or KCL's expected counter.
        term: u64,
    },
    /// Request a lease, so that its owner hands it over. In KCL's layout only owners that support
    /// hand-over are asked.
    RequestHandOver {
        /// Lease to request.
        lease: LeaseKey,
        /// Expected term.
        term: u64,
    },
    /// Take a lease from an owner that renews it, as KCL 2.x does.
    Steal {
        /// Lease to steal.
        lease: LeaseKey,
        /// KCL's counter. It is read again first if the scan was slow.
        counter: u64,
        /// Current owner.
        from: WorkerId,
    },
}

impl LeaseMove {
    /// Returns the lease of the move, if it concerns one.
    pub fn lease(&self) -> Option<&LeaseKey> {
        match self {
            Self::Fence { .. } => None,
            Self::WithdrawRequest { lease, .. }
            | Self::HandOver { lease, .. }
            | Self::Retake { lease, .. }
            | Self::Release { lease, .. }
            | Self::Take { lease, .. }
            | Self::RequestHandOver { lease, .. }
            | Self::Steal { lease, .. } => Some(lease),
        }
    }
}

/// Returns the moves that `me` should make now. `tie_break` is any number that differs between
/// workers and rounds.
///
/// Returns no moves for a worker that is fenced or has no row in the view.
pub fn plan(
    view: &FleetView,
    me: PlanningWorker<'_>,
    now_ms: u64,
    tie_break: u64,
    settings: &PlanSettings,
) -> Vec<LeaseMove> {
    match view.layout() {
        Layout::Native => native::plan(view, me, now_ms, tie_break, settings),
        Layout::Kcl => kcl2::plan(view, me, now_ms, tie_break, settings),
    }
}

#[cfg(test)]
mod tests;
