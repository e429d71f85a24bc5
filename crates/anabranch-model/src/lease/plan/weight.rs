//! Exchanges that balance the bytes per second, once the counts are level.
//!
//! A heavily loaded worker gives a lease to a lightly loaded one and gets a lighter one back, so
//! the counts stay as they are. Both see the same rows, so both find the same exchange, and each
//! requests the lease that it gets. If only one of them does, the count is corrected like any
//! other.

use super::assignment::{HandOverCaps, LeaseAssignment};
use super::fleet::{LeaseStatus, PlannerFleet};
use std::cmp::Reverse;

/// Load of a worker.
#[derive(Debug)]
struct WorkerLoad {
    taker: usize,
    /// Number of leases that it has or will have.
    count: usize,
    /// Bytes per second of these leases.
    bytes: u64,
    /// Movable leases: bytes per second and lease index, lightest first.
    movable: Vec<(u64, usize)>,
}

/// Returns the leases to request and their takers, in pairs of workers.
///
/// Nothing moves while every worker is within `hysteresis_percent` of the mean. An exchange must
/// lower the heavier load by a minimum amount, derived from the average weight of a lease. Each
/// exchange therefore brings the fleet closer to level by at least this amount, so with steady
/// weights the exchanges end.
pub(super) fn exchanges(fleet: &PlannerFleet<'_>, hysteresis_percent: u32) -> Vec<LeaseAssignment> {
    let mut loads = loads(fleet);
    let Some(mean) =
        loads.iter().map(|load| load.bytes).sum::<u64>().checked_div(loads.len() as u64)
    else {
        return Vec::new();
    };
    let slack = mean.saturating_mul(hysteresis_percent.into()) / 100;
    let leases: usize = loads.iter().map(|load| load.count).sum();
    let usual = mean * loads.len() as u64 / leases.max(1) as u64;
    let least_gain = (usual / 4).min(slack / 2).max(1);
    let off = |load: &WorkerLoad| load.bytes.abs_diff(mean) > slack;
    if !loads.iter().any(off) {
        return Vec::new();
    }
    // Workers with hand-overs in progress have to finish these first.
    let in_progress = HandOverCaps::read(fleet);
    loads.retain(|load| !in_progress.involve(fleet, load.taker));
    loads.sort_by_key(|load| Reverse((load.bytes, load.taker)));
    let mut gifts = Vec::new();
    while !loads.is_empty() {
        let heavy = loads.remove(0);
        let partner = loads.iter().enumerate().rev().find_map(|(i, light)| {
            let matters = off(&heavy) || off(light);
            let exchange = matters.then(|| exchange(&heavy, light))?;
            exchange.filter(|exchange| exchange.gain >= least_gain).map(|found| (i, found))
        });
        if let Some((i, found)) = partner {
            gifts.push((found.given, loads.remove(i).taker));
            gifts.extend(found.back.map(|lease| (lease, heavy.taker)));
        }
    }
    gifts
}

fn loads(fleet: &PlannerFleet<'_>) -> Vec<WorkerLoad> {
    let known = fleet.leases.iter().filter_map(|counted| counted.lease.row.bytes_per_second);
    let (sum, measured) =
        known.fold((0_u64, 0), |(sum, n), bytes| (sum.saturating_add(bytes), n + 1));
    // A lease without a measured rate counts as the average of the others.
    let usual = sum.checked_div(measured).unwrap_or(0);
    let empty = |taker| WorkerLoad { taker, count: 0, bytes: 0, movable: Vec::new() };
    let mut loads: Vec<WorkerLoad> = (0..fleet.takers.len()).map(empty).collect();
    for (at, counted) in fleet.leases.iter().enumerate() {
        let Some(holder) = counted.holder() else { continue };
        let bytes = counted.lease.row.bytes_per_second.unwrap_or(usual);
        let load = &mut loads[holder];
        load.count += 1;
        load.bytes = load.bytes.saturating_add(bytes);
        if matches!(counted.place, LeaseStatus::Held(_)) {
            load.movable.push((bytes, at));
        }
    }
    for load in &mut loads {
        load.movable.sort_unstable();
    }
    loads
}

/// A possible exchange between two workers.
#[derive(Clone, Copy, Debug)]
struct LeaseExchange {
    /// Lease that the heavier worker gives.
    given: usize,
    /// Lease that it gets back, if any.
    back: Option<usize>,
    /// Decrease of the larger of the two loads.
    gain: u64,
}

/// Returns the best exchange between two workers: the one with the smallest difference afterwards.
fn exchange(heavy: &WorkerLoad, light: &WorkerLoad) -> Option<LeaseExchange> {
    let apart = heavy.bytes.checked_sub(light.bytes)?;
    let mut best: Option<LeaseExchange> = None;
    let mut consider = |given: (u64, usize), back: Option<(u64, usize)>| {
        let moved = given.0.saturating_sub(back.map_or(0, |back| back.0));
        let gain = moved.min(apart.saturating_sub(moved));
        if gain > best.map_or(0, |best| best.gain) {
            best = Some(LeaseExchange { given: given.1, back: back.map(|back| back.1), gain });
        }
    };
    for &given in &heavy.movable {
        // A move without return keeps the counts level only from the larger share to the smaller.
        if heavy.count > light.count {
            consider(given, None);
        }
        // The ideal return makes both equal; the best one is next to it in sort order.
        let ideal = given.0.saturating_sub(apart / 2);
        let next = light.movable.partition_point(|back| back.0 < ideal);
        for back in light.movable[next.saturating_sub(1)..].iter().take(2) {
            consider(given, Some(*back));
        }
    }
    best
}
