//! KCL 2.x's lease taker, decision by decision, for workers that join such a fleet.
//!
//! It counts, takes and steals finished leases like any other, because Java does: a worker with
//! another idea of the target would steal what Java steals back.

use super::{LeaseMove, Settings};
use crate::lease::shuffle::JavaRandom;
use crate::lease::view::{Holder, View, WatchedLease};
use crate::lease::worker::WorkerId;
use std::collections::BTreeMap;

/// What one round of the taker found and decided.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Round {
    /// The leases that each worker should have, after the maximum.
    pub target: usize,
    /// What the target was above the maximum: leases that this worker should have had.
    pub spillover: usize,
    /// Leases that had no owner, or one that did not renew for a lease time.
    pub available: usize,
    /// Leases that had not been renewed for several lease times.
    pub very_old: usize,
    /// What to take and to steal.
    pub moves: Vec<LeaseMove>,
}

/// One round, after a scan. `now_ms` counts for very old leases; whether a lease is expired was
/// settled when the scan arrived.
pub fn round(
    view: &View,
    me: &WorkerId,
    now_ms: u64,
    tie_break: u64,
    settings: &Settings,
) -> Round {
    let Some(scanned_ms) = view.looked_ms().filter(|_| !view.leases().is_empty()) else {
        return Round::default();
    };
    let (held, mut available): (Vec<_>, Vec<_>) =
        view.leases().iter().partition(|lease| view.holder(lease, scanned_ms) == Holder::Beating);
    let mut counts = BTreeMap::from([(me, 0)]);
    for owner in held.iter().filter_map(|lease| lease.row.owner.as_ref()) {
        *counts.entry(owner).or_insert(0) += 1;
    }
    let mine = counts[me];
    let (target, spillover) = target(view.leases().len(), counts.len(), settings.max_leases);
    let mut very_old = very_old(view, now_ms, settings);
    let mut random = JavaRandom::new(tie_break);
    let mut round = Round {
        target,
        spillover,
        available: available.len(),
        very_old: very_old.len(),
        moves: Vec::new(),
    };
    // These go before any target, and in such a round nothing else is taken, even if the maximum
    // leaves no room for them.
    if !very_old.is_empty() {
        random.shuffle(&mut very_old);
        let room = settings.max_leases.saturating_sub(mine);
        round.moves = very_old.into_iter().take(room).map(take).collect();
        return round;
    }
    let needed = target.saturating_sub(mine);
    if needed == 0 {
        return round;
    }
    round.moves = if available.is_empty() {
        steal(view, &counts, needed, target, &mut random, settings)
    } else {
        random.shuffle(&mut available);
        available.into_iter().take(needed).map(take).collect()
    };
    round
}

/// The leases that each worker should have, and by how much that was above the maximum.
fn target(leases: usize, workers: usize, max: usize) -> (usize, usize) {
    if workers >= leases {
        return (1, 0);
    }
    let target = leases.div_ceil(workers);
    (target.min(max), target.saturating_sub(max))
}

fn very_old<'a>(view: &'a View, now_ms: u64, settings: &Settings) -> Vec<&'a WatchedLease> {
    if !settings.kcl2.very_old_first {
        return Vec::new();
    }
    let limit = view.lease_time_ms().saturating_mul(settings.kcl2.very_old_lease_times);
    let is_old =
        |lease: &&WatchedLease| lease.heart.moved.age_ms(now_ms).is_none_or(|age| age > limit);
    view.leases().iter().filter(is_old).collect()
}

fn take(lease: &WatchedLease) -> LeaseMove {
    LeaseMove::Take { lease: lease.row.key.clone(), term: lease.row.counter }
}

/// Nothing is available: some leases of the single most loaded worker, if it is at the target or
/// above. One that is exactly at the target gives one to a worker that lacks more than one.
fn steal(
    view: &View,
    counts: &BTreeMap<&WorkerId, usize>,
    needed: usize,
    target: usize,
    random: &mut JavaRandom,
    settings: &Settings,
) -> Vec<LeaseMove> {
    let Some((victim, has)) = counts.iter().rev().max_by_key(|(_, count)| **count) else {
        return Vec::new();
    };
    let Some(over) = has.checked_sub(target) else { return Vec::new() };
    let wanted = match needed.min(over) {
        0 if needed > 1 => 1,
        wanted => wanted,
    };
    let mut candidates: Vec<_> =
        view.leases().iter().filter(|lease| lease.row.owner.as_ref() == Some(*victim)).collect();
    random.shuffle(&mut candidates);
    let stolen = candidates.into_iter().take(wanted.min(settings.kcl2.max_steal));
    stolen
        .map(|lease| LeaseMove::Steal {
            lease: lease.row.key.clone(),
            counter: lease.row.counter,
            from: (*victim).clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests;
