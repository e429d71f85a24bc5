//! KCL 2.x's lease taker, decision by decision, for workers that join such a fleet.
//!
//! Like Java, it counts, takes and steals finished leases as any other. With a different target, a
//! worker would steal what Java steals back.
//!
//! One thing differs, and Java does not notice it: a lease of a worker that supports hand-over
//! ([`WorkerId::supports_hand_over`]) is not stolen but requested, up to the target. A requested
//! lease counts for the requester.

use super::fleet::ASK_AGAIN_LEASE_TIMES;
use super::{LeaseMove, PlanSettings, PlanningWorker};
use crate::lease::fleet_view::{FleetView, HolderStatus, WatchedLease};
use crate::lease::java_shuffle::JavaRandom;
use crate::lease::worker_row::WorkerId;
use std::collections::{BTreeMap, BTreeSet};

/// Findings and decisions of one round of the taker.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TakerRound {
    /// Leases that each worker should have, at most `max_leases`.
    pub target: usize,
    /// Amount by which the target exceeded `max_leases`: leases that this worker should have had.
    pub spillover: usize,
    /// Leases without an owner, or with one that did not renew for a lease time.
    pub available: usize,
    /// Leases that had not been renewed for several lease times.
    pub very_old: usize,
    /// Leases to take, to request or to steal.
    pub moves: Vec<LeaseMove>,
}

/// Plans the moves for this worker's own leases and requests, and one round of the taker.
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

/// Hands over the leases of `me` that others requested, and retakes those that `me` owns but does
/// not run. The latter were handed to `me`, or taken by a write whose reply was lost.
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

/// Withdraws the unanswered requests of `me`. If an owner does not renew, its lease is taken, which
/// ends the request.
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

/// Runs one round, after a scan. `now_ms` is used for very old leases. Expiry was decided when the
/// scan arrived.
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
    // Very old leases take precedence over the target. In such a round nothing else is taken, even
    // if `max_leases` allows none of them.
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

/// Returns the worker that has a lease, or will have it after a hand-over.
fn holder(lease: &WatchedLease) -> Option<&WorkerId> {
    lease.row.requested.as_ref().or(lease.row.owner.as_ref())
}

/// Returns the number of leases that each worker should have, and by how much it exceeded the
/// maximum.
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

/// Requests leases of the most loaded workers, as long as these support hand-over. Used if no lease
/// is available. Each lease is chosen by KCL's rule for stealing, and counts for `me` from then on.
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
    // Workers whose leases cannot be requested now. They still count.
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

/// Returns true if a lease can be requested. If its owner refused, or recently left a request
/// unanswered, the owner may be stuck.
fn can_be_asked(view: &FleetView, lease: &WatchedLease, now_ms: u64) -> bool {
    let in_vain = lease.unanswered_since_ms.is_some_and(|ms| {
        now_ms.saturating_sub(ms) < view.lease_time_ms().saturating_mul(ASK_AGAIN_LEASE_TIMES)
    });
    lease.row.requested.is_none() && !lease.row.refused && !in_vain
}

/// Steals leases of the single most loaded worker, if it is at the target or above. Used if no
/// lease is available. A worker exactly at the target gives one lease if `me` lacks more than one.
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
