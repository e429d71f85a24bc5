//! Carries out the planner's moves by conditional writes.
//!
//! Each move is one attempt. A move that fails, or whose reply is lost, is left to the next look:
//! the rows say what became of it, and the planner what is to be done then.

use super::crew::Crew;
use super::give::give;
use crate::event::LeaseEvent;
use crate::lease::LeaseStore;
use crate::lease::grip::{DrainReason, Held, Stage};
use crate::lease::pulse::Pulse;
use crate::lease::settle::Settled;
use crate::stream::api::StreamApi;
use anabranch_model::lease::plan::LeaseMove;
use anabranch_model::lease::{
    HandOver, Layout, Lease, LeaseChange, LeaseKey, Refusal, Stored, WorkerChange, WorkerId, Write,
};
use std::sync::Arc;
use tokio::task::JoinSet;

/// For how many pauses between hurried looks a plan is carried out. What is left is planned anew:
/// on a slow store the others have moved meanwhile, and old moves would only be refused.
const FRESH_PAUSES: u64 = 2;

/// How often a name is sent to a row of KCL's whose owner keeps writing to it.
const ASKS: u32 = 4;

/// Carries out the moves, some at a time, while the look that they rest on is fresh.
pub(super) async fn act<S: LeaseStore, A: StreamApi>(
    crew: &Arc<Crew<S, A>>,
    me: &WorkerId,
    moves: Vec<LeaseMove>,
    gives: &mut JoinSet<()>,
) {
    let mut attempts = JoinSet::new();
    let stale_ms = crew.now_ms() + crew.settings().hurry_ms * FRESH_PAUSES;
    for step in moves {
        if let LeaseMove::Pass { lease, to, .. } = &step
            && let Some(held) = crew.holdings.get(lease)
        {
            drain(crew, &held, to, gives);
            continue;
        }
        while attempts.len() >= crew.settings().writes_at_once {
            attempts.join_next().await;
        }
        if crew.now_ms() >= stale_ms {
            continue;
        }
        let (crew, me) = (crew.clone(), me.clone());
        attempts.spawn(async move { carry_out(&crew, &me, step).await });
    }
    while attempts.join_next().await.is_some() {}
}

/// Another worker asked for a lease: whoever reads it is to drain it.
pub(super) fn drain<S: LeaseStore, A: StreamApi>(
    crew: &Arc<Crew<S, A>>,
    held: &Arc<Held>,
    to: &WorkerId,
    gives: &mut JoinSet<()>,
) {
    let why = DrainReason::HandOver { to: to.clone() };
    if held.drain(crew.now_ms() + crew.settings().drain_ms, why) {
        let lease = held.taken().key.clone();
        crew.tools.tell(LeaseEvent::Draining { lease, to: to.clone() });
    }
    if matches!(held.stage(), Stage::Waiting | Stage::Kept) {
        give(crew, held, gives);
    }
}

async fn carry_out<S: LeaseStore, A: StreamApi>(
    crew: &Arc<Crew<S, A>>,
    me: &WorkerId,
    step: LeaseMove,
) {
    match step {
        LeaseMove::Take { lease, term }
        | LeaseMove::TakeAgain { lease, term }
        | LeaseMove::Steal { lease, counter: term, .. } => take(crew, me, &lease, term).await,
        LeaseMove::Fence { worker, counter } => {
            let fence = WorkerChange::Fence { counter };
            let write = Write::worker(&worker, fence, crew.tools.chance.nonce());
            if attempt(crew, "fence", &write).await.is_some() {
                crew.tools.tell(LeaseEvent::Fenced { worker });
            }
        }
        LeaseMove::Withdraw { lease, term, taker } => {
            let mine = taker == *me;
            if change(crew, &lease, LeaseChange::Withdraw { taker, term }).await {
                if mine {
                    crew.holdings.ask_no_more(&lease);
                }
                crew.tools.tell(LeaseEvent::Withdrawn { lease });
            }
        }
        LeaseMove::Name { lease, term } => ask(crew, me, lease, term).await,
        // Nothing runs under these: they were passed or taken late.
        LeaseMove::Pass { lease, term, to } => {
            let pass = LeaseChange::Pass { owner: me.clone(), term, to: to.clone() };
            if change(crew, &lease, pass).await {
                crew.tools.tell(LeaseEvent::Passed { lease, to });
            }
        }
        LeaseMove::Release { lease, term } => {
            if change(crew, &lease, LeaseChange::Release { owner: me.clone(), term }).await {
                crew.tools.tell(LeaseEvent::Released { lease });
            }
        }
    }
}

/// Asks for a lease. KCL's counter moves with every checkpoint of its owner, so there a name that
/// came behind one is sent again.
async fn ask<S: LeaseStore, A: StreamApi>(
    crew: &Crew<S, A>,
    me: &WorkerId,
    lease: LeaseKey,
    mut term: u64,
) {
    let kcl = crew.tools.store.layout() == Layout::Kcl;
    for _ in 0..ASKS {
        if kcl {
            crew.holdings.ask(&lease, term);
        }
        let name = LeaseChange::Name { taker: me.clone(), term };
        let write = Write::lease(&lease, name, crew.tools.chance.nonce());
        match crew.tools.attempt(&write).await {
            Settled::Applied(_) => return crew.tools.tell(LeaseEvent::Asked { lease }),
            Settled::Refused { why: Refusal::TermMoved, now: Stored::Lease(row) } if kcl => {
                term = row.term;
            }
            Settled::Failed(error) => {
                crew.tools.trouble("ask for a lease", &error);
                break;
            }
            Settled::Refused { now, .. } => {
                learn(crew, now);
                break;
            }
            // The name may be on the row.
            Settled::Unknown => return,
        }
    }
    crew.holdings.ask_no_more(&lease);
}

/// KCL's layout: takes back the names of a worker that no longer wants the leases, and gives back
/// those that were passed to it meanwhile. There nobody else could tell that it has left.
pub(super) async fn unask<S: LeaseStore, A: StreamApi>(crew: &Crew<S, A>, me: &WorkerId) {
    for (lease, _) in crew.holdings.asked() {
        if !crew.is_stopping() && crew.reads(&lease.stream) {
            continue;
        }
        let row = match crew.tools.read(crew.tools.store.get(&lease)).await {
            Ok(row) => row,
            Err(error) => {
                crew.tools.trouble("read a lease", &error);
                if error.is_retryable() {
                    return;
                }
                continue;
            }
        };
        let term = row.as_ref().map_or(0, |row| row.term);
        let (undo, event) = match row {
            Some(row) if row.owner.as_ref() == Some(me) => {
                let owner = me.clone();
                (
                    LeaseChange::Release { owner, term },
                    LeaseEvent::Released { lease: lease.clone() },
                )
            }
            Some(row) if row.hand_over == (HandOver::Named { taker: me.clone() }) => {
                let taker = me.clone();
                (
                    LeaseChange::Withdraw { taker, term },
                    LeaseEvent::Withdrawn { lease: lease.clone() },
                )
            }
            _ => {
                crew.holdings.ask_no_more(&lease);
                continue;
            }
        };
        if change(crew, &lease, undo).await {
            crew.holdings.ask_no_more(&lease);
            crew.tools.tell(event);
        }
    }
}

async fn change<S: LeaseStore, A: StreamApi>(
    crew: &Crew<S, A>,
    lease: &LeaseKey,
    change: LeaseChange,
) -> bool {
    let write = Write::lease(lease, change, crew.tools.chance.nonce());
    attempt(crew, "move a lease", &write).await.is_some()
}

/// Makes one attempt. Returns the row, if the write was applied.
async fn attempt<S: LeaseStore, A: StreamApi>(
    crew: &Crew<S, A>,
    what: &'static str,
    write: &Write,
) -> Option<Stored> {
    match crew.tools.attempt(write).await {
        Settled::Applied(row) => Some(row),
        Settled::Failed(error) => {
            crew.tools.trouble(what, &error);
            None
        }
        Settled::Refused { now, .. } => {
            learn(crew, now);
            None
        }
        Settled::Unknown => None,
    }
}

/// Notes what a refused write has shown.
fn learn<S: LeaseStore, A: StreamApi>(crew: &Crew<S, A>, now: Stored) {
    if let Stored::Lease(row) = now {
        crew.learned.add(*row);
    }
}

async fn take<S: LeaseStore, A: StreamApi>(
    crew: &Arc<Crew<S, A>>,
    me: &WorkerId,
    key: &LeaseKey,
    term: u64,
) {
    let sent_ms = crew.now_ms();
    let take = LeaseChange::Take { taker: me.clone(), term };
    let write = Write::lease(key, take, crew.tools.chance.nonce());
    // A stop waits for the answer: a lease that it left behind would be nobody's for a lease time.
    let _taking = crew.holdings.taking();
    if let Some(Stored::Lease(lease)) = attempt(crew, "take", &write).await {
        hold(crew, me, *lease, sent_ms);
    }
}

/// Holds a lease that was taken. The row is the one that the take returned.
pub(super) fn hold<S: LeaseStore, A: StreamApi>(
    crew: &Arc<Crew<S, A>>,
    me: &WorkerId,
    lease: Lease,
    sent_ms: u64,
) {
    let member = crew.holdings.member();
    let Some(own) = lease.hold().filter(|own| own.owner == *me) else { return };
    let pulse = match crew.tools.store.layout() {
        Layout::Native => member.pulse.clone(),
        Layout::Kcl => Arc::new(Pulse::new(crew.settings().lease_time_ms, sent_ms)),
    };
    let (key, term) = (lease.key.clone(), lease.term);
    let created_ms = crew.created_ms(&key.stream);
    let held = Arc::new(Held::new(lease, own, created_ms, pulse, crew.wake.clone(), sent_ms));
    if *me == member.id && crew.holdings.insert(&member, held.clone()) {
        crew.tools.tell(LeaseEvent::Taken { lease: key.clone(), worker: me.clone(), term });
    }
    // The stream may have been removed while the take was on its way: the lease goes back unread.
    // Asked once it is among the holdings, so that a removal from now on finds it there.
    if !crew.reads(&key.stream) {
        held.silence();
        held.drain(crew.now_ms(), DrainReason::StreamRemoved);
        crew.wake.notify_one();
    }
}
