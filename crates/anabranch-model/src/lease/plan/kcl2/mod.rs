//! KCL 2.x's lease taker, decision by decision, for workers that join such a fleet.
//!
//! It counts, takes and steals finished leases like any other, because Java does: a worker with
//! another idea of the target would steal what Java steals back.
//!
//! One thing differs, and Java sees nothing of it: from a worker that hands leases over
//! ([`WorkerId::supports_hand_over`]) none is stolen. It is asked, for as many as the target leaves, and a
//! lease that is on its way counts for the worker that asked.

use super::fleet::ASK_AGAIN_LEASE_TIMES;
use super::{LeaseMove, PlanSettings, PlanningWorker};
use crate::lease::fleet_view::{FleetView, HolderStatus, WatchedLease};
use crate::lease::java_shuffle::JavaRandom;
use crate::lease::worker_row::WorkerId;
use std::collections::{BTreeMap, BTreeSet};

/// What one round of the taker found and decided.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TakerRound {
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

/// What I owe for the leases that I own and the names that I left, and one round of the taker.
pub(super) fn plan(
    view: &FleetView,
    me: PlanningWorker<'_>,
    now_ms: u64,
    tie_break: u64,
    settings: &PlanSettings,
) -> Vec<LeaseMove> {
    let mut moves = own_moves(view, me);
    moves.extend(withdrawals(view, me.id, now_ms));
    moves.extend(round(view, me.id, now_ms, tie_break, settings).moves);
    moves
}

/// To pass the leases of mine that others asked for, and to run those that name me and that I don't
/// run: they were passed to me, or taken by a write whose reply was lost.
fn own_moves(view: &FleetView, me: PlanningWorker<'_>) -> Vec<LeaseMove> {
    let mine = view.leases().iter().filter(|lease| lease.row.owner.as_ref() == Some(me.id));
    mine.filter_map(|lease| {
        let (key, term) = (lease.row.key.clone(), lease.row.counter);
        match &lease.row.requested {
            Some(to) if to != me.id => {
                Some(LeaseMove::HandOver { lease: key, term, to: to.clone() })
            }
            _ if me.running.contains(&lease.row.key) => None,
            _ => Some(LeaseMove::Retake { lease: key, term }),
        }
    })
    .collect()
}

/// My names that nobody answers. From an owner that does not renew the lease is taken, and that ends
/// the name.
fn withdrawals(view: &FleetView, me: &WorkerId, now_ms: u64) -> Vec<LeaseMove> {
    let mine = view.leases().iter().filter(|lease| {
        lease.row.requested.as_ref() == Some(me) && lease.row.owner.as_ref() != Some(me)
    });
    let in_vain = mine.filter(|lease| {
        let waited_ms = lease.requested_since_ms.map_or(0, |since| now_ms.saturating_sub(since));
        view.holder(lease, now_ms) == HolderStatus::Alive
            && waited_ms >= view.hand_over_timeout_ms()
    });
    in_vain
        .map(|lease| {
            let (lease, term) = (lease.row.key.clone(), lease.row.counter);
            LeaseMove::WithdrawRequest { lease, term, taker: me.clone() }
        })
        .collect()
}

/// One round, after a scan. `now_ms` counts for very old leases; whether a lease is expired was
/// settled when the scan arrived.
pub fn round(
    view: &FleetView,
    me: &WorkerId,
    now_ms: u64,
    tie_break: u64,
    settings: &PlanSettings,
) -> TakerRound {
    let Some(scanned_ms) = view.polled_ms().filter(|_| !view.leases().is_empty()) else {
        return TakerRound::default();
    };
    let (held, mut available): (Vec<_>, Vec<_>) = view
        .leases()
        .iter()
        .partition(|lease| view.holder(lease, scanned_ms) == HolderStatus::Alive);
    let mut counts = BTreeMap::from([(me, 0)]);
    for holder in held.iter().filter_map(|lease| holder(lease)) {
        *counts.entry(holder).or_insert(0) += 1;
    }
    let mine = counts[me];
    let (target, spillover) = target(view.leases().len(), counts.len(), settings.max_leases);
    let mut very_old = very_old(view, now_ms, settings);
    let mut random = JavaRandom::new(tie_break);
    let mut round = TakerRound {
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
        let asked = ask(view, &mut counts, me, target, now_ms, &mut random, settings);
        if asked.is_empty() {
            steal(view, &counts, needed, target, &mut random, settings)
        } else {
            asked
        }
    } else {
        random.shuffle(&mut available);
        available.into_iter().take(needed).map(take).collect()
    };
    round
}

/// The worker that has a lease, or will have it once a hand-over is done.
fn holder(lease: &WatchedLease) -> Option<&WorkerId> {
    lease.row.requested.as_ref().or(lease.row.owner.as_ref())
}

/// The leases that each worker should have, and by how much that was above the maximum.
fn target(leases: usize, workers: usize, max: usize) -> (usize, usize) {
    if workers >= leases {
        return (1, 0);
    }
    let target = leases.div_ceil(workers);
    (target.min(max), target.saturating_sub(max))
}

fn very_old<'a>(
    view: &'a FleetView,
    now_ms: u64,
    settings: &PlanSettings,
) -> Vec<&'a WatchedLease> {
    if !settings.kcl2.very_old_first {
        return Vec::new();
    }
    let times = settings.kcl2.very_old_lease_times;
    let is_old = |lease: &&WatchedLease| {
        let limit = view.lease_time_of_owner(lease).saturating_mul(times);
        lease.heartbeat.moved.age_ms(now_ms).is_none_or(|age| age > limit)
    };
    view.leases().iter().filter(is_old).collect()
}

fn take(lease: &WatchedLease) -> LeaseMove {
    LeaseMove::Take { lease: lease.row.key.clone(), term: lease.row.counter }
}

/// Nothing is available: leases of the most loaded workers, as long as these hand over. Each is asked
/// by the rule by which KCL steals one, and counts for me from then on.
fn ask<'a>(
    view: &'a FleetView,
    counts: &mut BTreeMap<&'a WorkerId, usize>,
    me: &'a WorkerId,
    target: usize,
    now_ms: u64,
    random: &mut JavaRandom,
    settings: &PlanSettings,
) -> Vec<LeaseMove> {
    let asked =
        view.leases().iter().filter(|lease| lease.row.requested.as_ref() == Some(me)).count();
    let room = settings.hand_overs_at_once.saturating_sub(asked);
    let mut moves: Vec<LeaseMove> = Vec::new();
    // Workers whose leases can't be asked for now. They count all the same.
    let mut passed_over = BTreeSet::new();
    while moves.len() < room {
        let needed = target.saturating_sub(counts[me]);
        let others = counts.iter().rev().filter(|(owner, _)| !passed_over.contains(*owner));
        let Some((&owner, &has)) = others.max_by_key(|(_, count)| **count) else { break };
        let may_give = has > target || (has == target && needed > 1);
        if needed == 0 || !may_give || !owner.supports_hand_over() {
            break;
        }
        let is_asked =
            |lease: &WatchedLease| moves.iter().any(|step| step.lease() == Some(&lease.row.key));
        let mut candidates: Vec<_> = view
            .leases()
            .iter()
            .filter(|lease| lease.row.owner.as_ref() == Some(owner))
            .filter(|lease| can_be_asked(view, lease, now_ms) && !is_asked(lease))
            .collect();
        random.shuffle(&mut candidates);
        let Some(lease) = candidates.first() else {
            passed_over.insert(owner);
            continue;
        };
        let (lease, term) = (lease.row.key.clone(), lease.row.counter);
        moves.push(LeaseMove::RequestHandOver { lease, term });
        counts.entry(owner).and_modify(|count| *count -= 1);
        counts.entry(me).and_modify(|count| *count += 1);
    }
    moves
}

/// One whose owner has refused, or let a name wait too long not long ago, may be stuck.
fn can_be_asked(view: &FleetView, lease: &WatchedLease, now_ms: u64) -> bool {
    let in_vain = lease.unanswered_since_ms.is_some_and(|ms| {
        now_ms.saturating_sub(ms) < view.lease_time_ms().saturating_mul(ASK_AGAIN_LEASE_TIMES)
    });
    lease.row.requested.is_none() && !lease.row.refused && !in_vain
}

/// Nothing is available: some leases of the single most loaded worker, if it is at the target or
/// above. One that is exactly at the target gives one to a worker that lacks more than one.
fn steal(
    view: &FleetView,
    counts: &BTreeMap<&WorkerId, usize>,
    needed: usize,
    target: usize,
    random: &mut JavaRandom,
    settings: &PlanSettings,
) -> Vec<LeaseMove> {
    let victims = counts.iter().rev().filter(|(owner, _)| !owner.supports_hand_over());
    let Some((victim, has)) = victims.max_by_key(|(_, count)| **count) else {
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
