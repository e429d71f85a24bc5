//! The native protocol: this worker's part of the assignment.
//!
//! A lease is never taken from an owner with a live heartbeat. A taker requests it and waits, and
//! the owner hands the lease over after draining it.

use super::affinity::{affinity, of_lease, of_worker};
use super::assignment::{Assignment, assign};
use super::fleet::{LeaseStatus, PlannerFleet};
use super::weight::exchanges;
use super::{Balance, LeaseMove, PlanSettings, PlanningWorker};
use crate::lease::fleet_snapshot::{LeasePhase, WorkerStatus};
use crate::lease::fleet_view::{FleetView, HolderStatus, WatchedLease};
use crate::lease::java_shuffle::JavaRandom;
use crate::lease::worker_row::WorkerId;
use std::cmp::Reverse;

/// Lease times after which any worker may take a free lease that its assignee has not taken. An
/// assignee that could take it would have done so at its next poll. No lease stays free for two
/// lease times.
const LEFT_LYING_LEASE_TIMES: u64 = 1;

/// Maximum time, in multiples of `join_settle_ms`, for which a free lease waits for new workers.
const LONGEST_SETTLING: u64 = 10;

/// Maximum number of delay steps for workers that fence a silent one after the first.
const FENCE_STEPS: u64 = 4;

pub(super) fn plan(
    view: &FleetView,
    me: PlanningWorker<'_>,
    now_ms: u64,
    tie_break: u64,
    settings: &PlanSettings,
) -> Vec<LeaseMove> {
    let Some(fleet) = PlannerFleet::read(view, me, now_ms) else { return Vec::new() };
    let mut moves = fences(view, &fleet, now_ms);
    let parts = fleet.parts(view, me, now_ms);
    let whole = parts.len() == 1;
    let holds = |part: &PlannerFleet<'_>| part.me.map_or(0, |at| part.holdings()[at]);
    let mut room = settings.max_leases.saturating_sub(parts.iter().map(holds).sum());
    for part in &parts {
        let planned = plan_part(view, part, me, now_ms, tie_break, settings);
        // The shares of a part do not include leases of other parts.
        moves.extend(planned.into_iter().filter(|step| {
            let more = matches!(step, LeaseMove::Take { .. } | LeaseMove::RequestHandOver { .. });
            let fits = whole || !more || room > 0;
            room -= usize::from(more && room > 0);
            fits
        }));
    }
    moves.extend(blocked(view, me));
    moves
}

/// Plans the moves for the leases of one part of the fleet.
fn plan_part(
    view: &FleetView,
    fleet: &PlannerFleet<'_>,
    me: PlanningWorker<'_>,
    now_ms: u64,
    tie_break: u64,
    settings: &PlanSettings,
) -> Vec<LeaseMove> {
    let mut deal = assign(fleet, settings);
    if let Balance::Weight { hysteresis_percent } = settings.balance
        && deal.is_level()
    {
        deal.names = exchanges(fleet, hysteresis_percent);
    }
    // A worker that leaves, or that no longer reads the stream, needs no lease.
    let mut too_many = fleet.me.map_or(usize::MAX, |at| deal.surplus(at));
    let mut moves = withdrawals(view, fleet, me, now_ms, &mut too_many);
    moves.extend(stale_requests(view, fleet, me, now_ms));
    moves.extend(own(fleet, me, &mut too_many));
    if let Some(at) = fleet.me {
        moves.extend(takes(view, fleet, &deal, at, now_ms, tie_break, settings));
        moves.extend(names(fleet, &deal, at));
    }
    moves
}

/// Fences silent workers. All workers notice the silence at about the same time. To keep them from
/// all writing to one row, each silent worker has its own order of fencers, and later ones wait a
/// little longer.
fn fences(view: &FleetView, fleet: &PlannerFleet<'_>, now_ms: u64) -> Vec<LeaseMove> {
    let Some(me) = fleet.me else { return Vec::new() };
    let silent = |worker: &WorkerId| view.status_of(worker, now_ms) == HolderStatus::Silent;
    let rows = view.workers().iter().filter(|worker| {
        let row = &worker.row;
        row.status != WorkerStatus::Fenced && row.id != *fleet.takers[me] && silent(&row.id)
    });
    rows.filter(|worker| {
        let order = |by: &WorkerId| mix(worker.row.id.as_str(), by.as_str());
        let my_order = order(fleet.takers[me]);
        let before_me = fleet.takers.iter().filter(|by| order(by) < my_order).count() as u64;
        let lease_time_ms = view.lease_time_of(&worker.row);
        let steps_ms = (lease_time_ms / 20).saturating_mul(before_me.min(FENCE_STEPS));
        let patience_ms = lease_time_ms.saturating_add(steps_ms);
        worker.heart.moved.age_ms(now_ms).is_none_or(|age| age >= patience_ms)
    })
    .map(|worker| LeaseMove::Fence { worker: worker.row.id.clone(), counter: worker.heart.counter })
    .collect()
}

/// Returns a hash of both names (FNV-1a).
fn mix(a: &str, b: &str) -> u64 {
    a.bytes().chain([0]).chain(b.bytes()).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Withdraws the requests of `me` that are unanswered, refused or no longer needed.
fn withdrawals(
    view: &FleetView,
    fleet: &PlannerFleet<'_>,
    me: PlanningWorker<'_>,
    now_ms: u64,
    too_many: &mut usize,
) -> Vec<LeaseMove> {
    let mine = fleet.leases.iter().map(|counted| counted.lease).filter(|lease| {
        let row = &lease.row;
        row.requested.as_ref() == Some(me.id) && row.owner.as_ref() != Some(me.id)
    });
    // Only a living owner can answer. The lease of a dead owner is taken, which ends the request.
    let asked = mine.filter(|lease| view.holder(lease, now_ms) == HolderStatus::Alive);
    let mut moves = Vec::new();
    for lease in asked {
        let waited_ms = lease.requested_since_ms.map_or(0, |since| now_ms.saturating_sub(since));
        let in_vain = lease.row.refused || waited_ms >= view.hand_over_timeout_ms();
        if in_vain || *too_many > 0 {
            moves.push(withdraw(lease, me.id));
            // A refused lease already counts for its owner.
            *too_many = too_many.saturating_sub(usize::from(!lease.row.refused));
        }
    }
    moves
}

fn withdraw(lease: &WatchedLease, taker: &WorkerId) -> LeaseMove {
    let (key, term) = (lease.row.key.clone(), lease.row.counter);
    LeaseMove::WithdrawRequest { lease: key, term, taker: taker.clone() }
}

/// Withdraws requests on own leases by workers that can no longer take them, because these keep
/// other workers from requesting. A requester without a row may have just joined, so its request
/// stays.
fn stale_requests(
    view: &FleetView,
    fleet: &PlannerFleet<'_>,
    me: PlanningWorker<'_>,
    now_ms: u64,
) -> Vec<LeaseMove> {
    let mine =
        fleet.leases.iter().filter(|counted| counted.lease.row.owner.as_ref() == Some(me.id));
    mine.filter_map(|counted| {
        let named = counted.lease.row.requested.as_ref().filter(|named| *named != me.id)?;
        let may_take = fleet.taker(named).is_some();
        let unlisted = view.status_of(named, now_ms) == HolderStatus::WithoutRow;
        (!may_take && !unlisted).then(|| withdraw(counted.lease, named))
    })
    .collect()
}

/// Plans the moves for own leases: hands over those that others requested, and retakes or releases
/// those that do not run.
fn own(fleet: &PlannerFleet<'_>, me: PlanningWorker<'_>, too_many: &mut usize) -> Vec<LeaseMove> {
    let mut moves = Vec::new();
    for counted in &fleet.leases {
        let row = &counted.lease.row;
        if row.owner.as_ref() != Some(me.id) {
            continue;
        }
        let (lease, term) = (row.key.clone(), row.counter);
        match counted.place {
            LeaseStatus::Arriving(taker) => {
                let to = fleet.takers[taker].clone();
                moves.push(LeaseMove::HandOver { lease, term, to });
            }
            _ if me.running.contains(&row.key) => {}
            _ if *too_many > 0 => {
                *too_many -= 1;
                moves.push(LeaseMove::Release { lease, term });
            }
            _ => moves.push(LeaseMove::Retake { lease, term }),
        }
    }
    moves
}

/// Releases own leases of blocked shards. A blocked shard has no owner until its parents have
/// ended.
fn blocked(view: &FleetView, me: PlanningWorker<'_>) -> Vec<LeaseMove> {
    let blocked = view.leases().iter().filter(|lease| lease.row.phase == LeasePhase::Blocked);
    let stray = blocked.filter(|lease| {
        lease.row.owner.as_ref() == Some(me.id) && !me.running.contains(&lease.row.key)
    });
    stray
        .map(|lease| LeaseMove::Release { lease: lease.row.key.clone(), term: lease.row.counter })
        .collect()
}

/// Returns this worker's part of the free leases. The longest free come first, then those with the
/// highest affinity, because these stay with this worker if others join.
fn takes(
    view: &FleetView,
    fleet: &PlannerFleet<'_>,
    deal: &Assignment,
    me: usize,
    now_ms: u64,
    tie_break: u64,
    settings: &PlanSettings,
) -> Vec<LeaseMove> {
    let dealt = deal.takes.iter().filter(|(_, taker)| *taker == me);
    let mut mine: Vec<_> = dealt.map(|(at, _)| fleet.leases[*at].lease).collect();
    let room = settings.max_leases.saturating_sub(deal.holdings[me] + mine.len());
    mine.retain(|lease| !is_settling(fleet, lease, now_ms, settings));
    let my_number = of_worker(fleet.takers[me]);
    let suits = |lease: &WatchedLease| affinity(of_lease(&lease.row.key), my_number);
    mine.sort_by_cached_key(|lease| (lease.free_since_ms, Reverse(suits(lease))));
    let mut left = untaken_by_assignee(view, fleet, deal, me, now_ms);
    JavaRandom::new(tie_break).shuffle(&mut left);
    // Each worker picks up a part of the remaining leases, so that few pick up the same.
    let part = left.len().div_ceil(fleet.takers.len().max(1));
    mine.extend(left.into_iter().take(part.min(room)));
    mine.into_iter()
        .map(|lease| LeaseMove::Take { lease: lease.row.key.clone(), term: lease.row.counter })
        .collect()
}

/// Returns true if a free lease waits for further workers, because a new one has just joined.
fn is_settling(
    fleet: &PlannerFleet<'_>,
    lease: &WatchedLease,
    now_ms: u64,
    settings: &PlanSettings,
) -> bool {
    let complete_for_ms = now_ms.saturating_sub(fleet.complete_since_ms);
    let free_for_ms = lease.free_since_ms.map_or(0, |since| now_ms.saturating_sub(since));
    complete_for_ms < settings.join_settle_ms
        && free_for_ms < settings.join_settle_ms.saturating_mul(LONGEST_SETTLING)
}

/// Returns the free leases that their assignee has not taken for a long time. It is alive, but it
/// is stuck, or full of leases that the others do not see. That happens if it reads other streams
/// too or has a lower maximum.
fn untaken_by_assignee<'a>(
    view: &FleetView,
    fleet: &PlannerFleet<'a>,
    deal: &Assignment,
    me: usize,
    now_ms: u64,
) -> Vec<&'a WatchedLease> {
    let limit_ms = view.lease_time_ms().saturating_mul(LEFT_LYING_LEASE_TIMES);
    let is_old = |lease: &WatchedLease| {
        lease.free_since_ms.is_some_and(|since| now_ms.saturating_sub(since) > limit_ms)
    };
    let free =
        fleet.leases.iter().enumerate().filter(|(_, counted)| counted.place == LeaseStatus::Free);
    free.filter(|(at, counted)| {
        is_old(counted.lease) && deal.takes.binary_search(&(*at, me)).is_err()
    })
    .map(|(_, counted)| counted.lease)
    .collect()
}

fn names(fleet: &PlannerFleet<'_>, deal: &Assignment, me: usize) -> Vec<LeaseMove> {
    let mine = deal.names.iter().filter(|(_, taker)| *taker == me);
    mine.map(|(at, _)| {
        let row = &fleet.leases[*at].lease.row;
        LeaseMove::RequestHandOver { lease: row.key.clone(), term: row.counter }
    })
    .collect()
}
