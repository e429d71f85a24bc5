//! The task that keeps the worker's heart, or in KCL's layout its leases' hearts, beating.
//!
//! It shares nothing with user code, so that a handler that blocks can't cost a lease.

use super::crew::Crew;
use super::member::{Beat, Member, bury};
use crate::event::LeaseEvent;
use crate::lease::LeaseStore;
use crate::lease::grip::{Held, Stage};
use crate::stream::api::StreamApi;
use anabranch_model::lease::{Layout, WorkerId};
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// An id that this worker gave up, and the leases whose grips may still be out.
type Ghost = (WorkerId, Vec<Arc<Held>>);

/// Beats for ever.
pub(super) async fn run<S: LeaseStore, A: StreamApi>(crew: Arc<Crew<S, A>>) {
    let beat_ms = crew.settings().beat_ms();
    let mut ghosts: Vec<Ghost> = Vec::new();
    let mut missed = false;
    let native = crew.tools.store.layout() == Layout::Native;
    let room = Arc::new(Semaphore::new(crew.settings().writes_at_once));
    let mut renewals = JoinSet::new();
    loop {
        // A worker whose beat the store would not take has no time to lose.
        let pause_ms = if missed { beat_ms / 4 } else { beat_ms };
        let pause_ms = pause_ms - crew.tools.chance.below(pause_ms / 8);
        tokio::select! {
            biased;
            () = crew.reads_changed.notified(), if native => {}
            () = crew.tools.clock.sleep(pause_ms) => {}
        }
        if !native {
            renew_all(&crew, &room, &mut renewals);
            continue;
        }
        let member = crew.holdings.member();
        match member.beat(&crew.tools, crew.stream_names()).await {
            Beat::Counts => missed = false,
            Beat::Missed => missed = true,
            Beat::Dead => {
                missed = false;
                ghosts.push(expel(&crew, &member).await);
            }
        }
        bury_all(&crew, &mut ghosts).await;
    }
}

/// Stops all deliveries at once, forgets the leases, and joins again under another id.
async fn expel<S: LeaseStore, A: StreamApi>(crew: &Crew<S, A>, member: &Member) -> Ghost {
    member.pulse.stop();
    let mut lost = crew.holdings.expel(&member.id);
    lose_all(crew, &lost);
    crew.tools.tell(LeaseEvent::Expelled { worker: member.id.clone() });
    let joined = loop {
        match Member::join(&crew.tools, crew.stream_names()).await {
            Ok(joined) => break joined,
            // What needs somebody's help may get it while this worker waits.
            Err(error) => {
                crew.tools.trouble("join", &error);
                crew.tools.clock.sleep(crew.settings().beat_ms()).await;
            }
        }
    };
    crew.tools.tell(LeaseEvent::Joined { worker: joined.id.clone() });
    let late = crew.holdings.rejoin(Arc::new(joined));
    lose_all(crew, &late);
    lost.extend(late);
    crew.wake.notify_one();
    (member.id.clone(), lost)
}

fn lose_all<S: LeaseStore, A: StreamApi>(crew: &Crew<S, A>, lost: &[Arc<Held>]) {
    for held in lost {
        held.lose();
        crew.tools.tell(LeaseEvent::Lost { lease: held.taken().key.clone() });
    }
}

/// Nobody has to wait for an id of this worker under which nothing runs any more.
async fn bury_all<S: LeaseStore, A: StreamApi>(crew: &Crew<S, A>, ghosts: &mut Vec<Ghost>) {
    let mut left = Vec::new();
    for (id, lost) in ghosts.drain(..) {
        let quiet = lost.iter().all(|held| held.is_back());
        if !quiet || !bury(&crew.tools, &id).await {
            left.push((id, lost));
        }
    }
    *ghosts = left;
}

/// KCL's layout: moves the heart of every lease, finished ones too. A row that is slow doesn't keep
/// the others waiting, now or at the next turn.
fn renew_all<S: LeaseStore, A: StreamApi>(
    crew: &Arc<Crew<S, A>>,
    room: &Arc<Semaphore>,
    renewals: &mut JoinSet<()>,
) {
    while renewals.try_join_next().is_some() {}
    for held in crew.holdings.all() {
        let (crew, room) = (crew.clone(), room.clone());
        renewals.spawn(async move {
            let _room = room.acquire().await;
            // A lease that waits before it is released is held all the same.
            if held.stage() != Stage::Giving || !held.is_silent() {
                held.renew(&crew.tools).await;
            }
        });
    }
}
