//! Who should have which lease, and what this worker does about it now.
//!
//! ```text
//! Snapshot ── observe ──► View ── plan ──► LeaseMove ── conditional writes ──► the store
//!                                   │
//!            native: fleet ─► share ─► deal ─► weight        kcl2: KCL 2.x's own taker
//! ```
//!
//! In the native protocol every worker works out the deal for the *whole* fleet from what the rows
//! say, and then carries out its own part only. Workers that see the same rows therefore never
//! want the same lease. Where their looks differ, the conditional writes decide, and the next look
//! makes them agree again.

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
    /// Its name.
    pub id: &'a WorkerId,
    /// The leases that it runs, is starting, or is draining.
    pub running: &'a BTreeSet<LeaseKey>,
}

/// What bounds a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlanSettings {
    /// Leases that one worker may have. At least 1.
    pub max_leases: usize,
    /// Hand-overs in progress at once, of one giver and of one taker. At least 1.
    pub hand_overs_at_once: usize,
    /// For how long free leases wait after a worker was first seen, in milliseconds. Workers seldom
    /// start alone, and who takes before all have joined takes what is the others'.
    pub join_settle_ms: u64,
    /// What is made level.
    pub balance: Balance,
    /// What only a fleet of KCL 2.x has.
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

/// What is made level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Balance {
    /// The number of leases.
    Count,
    /// The number of leases, then their bytes per second.
    Weight {
        /// How far a worker may be from the mean before anything moves for it, in percent.
        hysteresis_percent: u32,
    },
}

/// KCL 2.x's own settings, with its defaults.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kcl2Settings {
    /// `maxLeasesToStealAtOneTime`.
    pub max_steal: usize,
    /// `enablePriorityLeaseAssignment`.
    pub very_old_first: bool,
    /// After how many lease times without a renewal a lease is very old.
    pub very_old_lease_times: u64,
}

impl Default for Kcl2Settings {
    fn default() -> Self {
        Self { max_steal: 1, very_old_first: true, very_old_lease_times: 3 }
    }
}

/// One thing to do. Every write is conditional on what the move carries.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LeaseMove {
    /// Fence a silent worker, if its counter is still the one that was watched.
    Fence {
        /// The silent worker.
        worker: WorkerId,
        /// The counter that did not move for a full lease time.
        counter: u64,
    },
    /// Take a name off a lease: mine, if its owner won't or needn't hand it over, or one on a
    /// lease of mine, if that worker can't take it any more.
    WithdrawRequest {
        /// The lease.
        lease: LeaseKey,
        /// The term that must still stand.
        term: u64,
        /// The worker that is named.
        taker: WorkerId,
    },
    /// I own it and another asked for it: drain it and pass it on. It stays in the plan until
    /// the row has passed, so a worker that is draining it already has nothing new to do.
    HandOver {
        /// The lease.
        lease: LeaseKey,
        /// My term.
        term: u64,
        /// Who asked.
        to: WorkerId,
    },
    /// It names me and I don't run it, as after a take whose reply was lost: take it again, under
    /// a new term, and run it.
    Retake {
        /// The lease.
        lease: LeaseKey,
        /// The term to replace.
        term: u64,
    },
    /// It names me, I don't run it and have enough without it.
    Release {
        /// The lease.
        lease: LeaseKey,
        /// The term to end.
        term: u64,
    },
    /// Take a free lease.
    Take {
        /// The lease.
        lease: LeaseKey,
        /// The term, or KCL's counter, that must still stand.
        term: u64,
    },
    /// Name myself on a lease, so that its owner hands it over. In KCL's layout only an owner that
    /// does so is asked.
    RequestHandOver {
        /// The lease.
        lease: LeaseKey,
        /// The term that must still stand.
        term: u64,
    },
    /// Take a lease from an owner that renews it, as KCL 2.x does.
    Steal {
        /// The lease.
        lease: LeaseKey,
        /// KCL's counter. It is read again first if the scan was slow.
        counter: u64,
        /// The owner.
        from: WorkerId,
    },
}

impl LeaseMove {
    /// The lease that the move is about.
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

/// What `me` should do now. `tie_break` is any number that differs between workers and rounds.
///
/// A worker that is fenced, or has no row in the view, gets nothing to do.
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
