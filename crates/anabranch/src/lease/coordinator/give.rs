//! What becomes of a lease when its grip comes back.
//!
//! | the grip | native | KCL's layout |
//! |---|---|---|
//! | drained for another worker | passed on; taken again if that worker no longer asks | the same |
//! | drained otherwise | released | released |
//! | ended | released, so that the row names nobody | kept until the row goes |
//! | failed | released after a pause | released after a pause |
//! | of a lost lease | nothing is written | nothing is written |

use super::act::hold;
use super::crew::Crew;
use crate::event::LeaseEvent;
use crate::lease::LeaseStore;
use crate::lease::grip::{Held, How, Stage};
use crate::lease::settle::Settled;
use crate::stream::api::StreamApi;
use anabranch_model::lease::{HandOver, Hold, Layout, Lease, Refusal, Stored, WorkerId, Write};
use std::sync::Arc;
use tokio::task::JoinSet;

/// Gives back what came back, and everything else that is to be given back. Returns whether a
/// shard has ended: then there may be rows of its children that no look has shown.
pub(super) fn take_back<S: LeaseStore, A: StreamApi>(
    crew: &Arc<Crew<S, A>>,
    gives: &mut JoinSet<()>,
) -> bool {
    let stopping = crew.is_stopping();
    let mut ended = false;
    for held in crew.holdings.all() {
        ended |= held.stage() == Stage::Finished(How::Ended);
        if held.is_lost(crew.now_ms()) {
            lose(crew, &held);
        } else if matches!(held.stage(), Stage::Finished(_))
            || ((stopping || held.is_drained()) && held.is_back())
        {
            give(crew, &held, gives);
        }
    }
    ended
}

/// Does the same for a task that has panicked, while the worker stops.
pub(super) async fn take_back_instead<S: LeaseStore, A: StreamApi>(crew: &Arc<Crew<S, A>>) {
    crew.parts.until_broken().await;
    let mut gives = JoinSet::new();
    loop {
        take_back(crew, &mut gives);
        crew.tools.clock.sleep(crew.settings().hurry_ms).await;
    }
}

/// Lets go of a lease that is lost.
pub(super) fn lose<S: LeaseStore, A: StreamApi>(crew: &Crew<S, A>, held: &Arc<Held>) {
    held.lose();
    crew.holdings.remove(held);
    crew.tools.tell(LeaseEvent::Lost { lease: held.taken().key.clone() });
}

/// Begins to give a lease back or to pass it on.
pub(super) fn give<S: LeaseStore, A: StreamApi>(
    crew: &Arc<Crew<S, A>>,
    held: &Arc<Held>,
    gives: &mut JoinSet<()>,
) {
    let how = match held.stage() {
        Stage::Finished(how) => how,
        Stage::Waiting | Stage::Kept => How::Drained,
        Stage::Running | Stage::Giving => return,
    };
    if how == How::Ended && crew.tools.store.layout() == Layout::Kcl {
        held.enter(Stage::Kept);
        return;
    }
    held.enter(Stage::Giving);
    let (parts, crew, held) = (crew.parts.clone(), crew.clone(), held.clone());
    gives.spawn(parts.run(async move {
        if how == How::Failed {
            pause(&crew).await;
        }
        held.silence();
        held.write_unwritten(&crew.tools).await;
        match held.is_drained_for().filter(|_| how == How::Drained && !crew.is_stopping()) {
            Some(to) => pass(&crew, &held, to).await,
            None => release(&crew, &held).await,
        }
        crew.holdings.remove(&held);
        crew.wake.notify_one();
    }));
}

/// Others may have a go at once when this worker is stopping.
async fn pause<S: LeaseStore, A: StreamApi>(crew: &Crew<S, A>) {
    let until_ms = crew.now_ms() + crew.settings().failure_pause_ms;
    while crew.now_ms() < until_ms && !crew.is_stopping() {
        crew.tools.clock.sleep(crew.settings().hurry_ms).await;
    }
}

async fn release<S: LeaseStore, A: StreamApi>(crew: &Crew<S, A>, held: &Arc<Held>) {
    let key = held.taken().key.clone();
    let own = held.row().await.hold.clone();
    let event = match settle(crew, held, &own.release(crew.tools.chance.nonce())).await {
        Settled::Applied(_) => LeaseEvent::Released { lease: key },
        _ => LeaseEvent::Lost { lease: key },
    };
    crew.tools.tell(event);
}

async fn pass<S: LeaseStore, A: StreamApi>(
    crew: &Arc<Crew<S, A>>,
    held: &Arc<Held>,
    mut to: WorkerId,
) {
    let mut own = held.row().await.hold.clone();
    loop {
        let write = own.pass(&to, crew.tools.chance.nonce());
        match settle(crew, held, &write).await {
            Settled::Applied(_) => {
                let lease = own.key.clone();
                crew.tools.tell(LeaseEvent::Passed { lease, to });
                return;
            }
            Settled::Refused { why, now: Stored::Lease(row) } if is_mine(crew, &own, &row) => {
                own.term = row.term;
                match row.hand_over {
                    // An older write of mine moved KCL's counter.
                    HandOver::Named { taker } if taker == to && why == Refusal::TermMoved => {}
                    // Another worker asks by now.
                    HandOver::Named { taker } if taker != to => to = taker,
                    _ => return take_again(crew, held, &own).await,
                }
            }
            _ => {
                crew.tools.tell(LeaseEvent::Lost { lease: own.key.clone() });
                return;
            }
        }
    }
}

/// Whether the row is still this worker's. Each write of an owner moves KCL's counter.
fn is_mine<S: LeaseStore, A: StreamApi>(crew: &Crew<S, A>, own: &Hold, row: &Lease) -> bool {
    match crew.tools.store.layout() {
        Layout::Native => own.is_of(row),
        Layout::Kcl => row.owner.as_ref() == Some(&own.owner),
    }
}

/// Nobody asks any more. The pass may still be on its way, so the reading goes on under a new term
/// only.
async fn take_again<S: LeaseStore, A: StreamApi>(
    crew: &Arc<Crew<S, A>>,
    held: &Arc<Held>,
    own: &Hold,
) {
    let sent_ms = crew.now_ms();
    let write = own.take_again(crew.tools.chance.nonce());
    let _taking = crew.holdings.taking();
    let settled = settle(crew, held, &write).await;
    crew.holdings.remove(held);
    if let Settled::Applied(Stored::Lease(lease)) = settled {
        hold(crew, &own.owner, *lease, sent_ms);
    }
}

/// Carries a write to its end while the heart beats.
async fn settle<S: LeaseStore, A: StreamApi>(
    crew: &Crew<S, A>,
    held: &Held,
    write: &Write,
) -> Settled {
    crew.tools.settle(write, || held.pulse().over_ms()).await
}
