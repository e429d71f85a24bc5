//! The loop that looks, plans and acts.

use super::StartError;
use super::act::{act, drain, unask};
use super::crew::Crew;
use super::give::{lose, take_back};
use super::look::Sight;
use super::pace::{Pace, Sooner};
use super::ready::Ready;
use crate::lease::grip::{Held, How, Stage};
use crate::lease::{Grip, LeaseStore, StoreError};
use crate::stream::api::StreamApi;
use anabranch_model::lease::plan::{LeaseMove, Me, plan};
use anabranch_model::lease::view::View;
use anabranch_model::lease::{HandOver, Layout, Lease, LeaseKey, Surveyed, WorkerId};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::task::JoinSet;

/// The least pause between two looks, in milliseconds, whoever asks for one.
const BREATH_MS: u64 = 10;

/// The pause before names that could not be taken back are tried again, in milliseconds.
const UNASK_AGAIN_MS: u64 = 500;

/// The loop's own memory.
struct Loop<S: LeaseStore, A: StreamApi> {
    /// What the tasks share.
    crew: Arc<Crew<S, A>>,
    /// What was seen of the fleet.
    sight: Sight,
    /// What is known of the gates.
    ready: Ready,
    /// Leases on their way back.
    gives: JoinSet<()>,
    /// How soon the next look comes.
    pace: Pace,
    /// Since when the store says that it has no table of leases.
    missing_since_ms: Option<u64>,
}

/// Looks, plans and acts for ever. `surveyed` is what was seen of the table at the start.
pub(super) async fn run<S: LeaseStore, A: StreamApi>(crew: Arc<Crew<S, A>>, surveyed: Surveyed) {
    let settings = crew.settings();
    let view = View::new(crew.tools.store.layout(), settings.lease_time_ms, settings.patience_ms());
    let mut it = Loop {
        sight: Sight::new(view.after(surveyed)),
        ready: Ready::default(),
        gives: JoinSet::new(),
        pace: Pace::new(crew.now_ms()),
        missing_since_ms: None,
        crew,
    };
    loop {
        it.round().await;
        it.pause().await;
    }
}

impl<S: LeaseStore, A: StreamApi> Loop<S, A> {
    async fn round(&mut self) {
        self.settle_own().await;
        let streams = self.crew.looked_at();
        match self.sight.look(&self.crew, &streams, &mut self.ready).await {
            Ok(false) => {}
            Ok(true) => self.hurry(),
            Err(error) => {
                if matches!(error, StoreError::Throttled { .. }) {
                    self.pace.throttled();
                }
                self.crew.tools.trouble("look", &error);
                self.judge(error);
                return;
            }
        }
        self.pace.looked();
        self.missing_since_ms = None;
        self.sweep();
        let member = self.crew.holdings.member();
        self.crew.forget_left(|stream| self.sight.is_named(stream, &member.id));
        self.forget_asked(&member.id);
        let running = self.crew.holdings.running();
        let me = Me { id: &member.id, running: &running };
        let now_ms = self.crew.now_ms();
        let tie_break = self.crew.tools.chance.bits();
        let mut moves = plan(&self.sight.view, me, now_ms, tie_break, &self.crew.settings().plan);
        let over = self.layout() == Layout::Native && member.pulse.is_over(now_ms);
        moves.retain_mut(|step| !over && self.may_make(step, &running));
        if moves.iter().any(|step| !self.is_being_drained(step)) {
            self.hurry();
        }
        act(&self.crew, &member.id, moves, &mut self.gives).await;
        self.hand_out();
    }

    /// Does what needs no look: leases that came back are given back, those that another worker was
    /// seen to ask for are drained, and names that are to go are taken back. A stop waits for that,
    /// and looks may be throttled.
    async fn settle_own(&mut self) {
        while self.gives.try_join_next().is_some() {}
        let kcl = self.layout() == Layout::Kcl;
        for held in self.crew.holdings.all().iter().filter(|_| kcl) {
            if let Some(to) = held.take_named() {
                drain(&self.crew, held, &to, &mut self.gives);
            }
        }
        if take_back(&self.crew, &mut self.gives) {
            self.pace.hurry_once(self.crew.now_ms());
        }
        unask(&self.crew, &self.crew.holdings.member().id).await;
    }

    /// Whether a move goes on by itself: whoever reads the shard is draining it, for a long time
    /// perhaps.
    fn is_being_drained(&self, step: &LeaseMove) -> bool {
        let LeaseMove::Pass { lease, .. } = step else { return false };
        self.crew.holdings.get(lease).is_some_and(|held| held.is_drained())
    }

    /// Forgets the names of this worker that a later write took off the row. A name moves no
    /// counter, so a row with a higher one was read after the name was written.
    fn forget_asked(&self, me: &WorkerId) {
        for (lease, term) in self.crew.holdings.asked() {
            let Some(row) = self.sight.row(&lease).filter(|row| row.term > term) else { continue };
            let named = HandOver::Named { taker: me.clone() };
            if row.owner.as_ref() != Some(me) && row.hand_over != named {
                self.crew.holdings.ask_no_more(&lease);
            }
        }
    }

    /// A table that is gone for a lease time does not come back by itself, and to make it anew would
    /// forget what was done: that is for somebody to decide. Nothing is held by then, since no beat
    /// was taken.
    fn judge(&mut self, error: StoreError) {
        if !matches!(error, StoreError::Missing { .. }) {
            self.missing_since_ms = None;
            return;
        }
        let now_ms = self.crew.now_ms();
        let since_ms = *self.missing_since_ms.get_or_insert(now_ms);
        if now_ms.saturating_sub(since_ms) >= self.crew.settings().lease_time_ms {
            self.crew.stand_down(StartError::Store(error));
        }
    }

    fn layout(&self) -> Layout {
        self.crew.tools.store.layout()
    }

    /// Whether a move may be made, which may change it. A worker that is stopping begins nothing,
    /// nor does one that reads the stream no longer, and a lost lease whose reading has not stopped
    /// is not begun again.
    fn may_make(&self, step: &mut LeaseMove, running: &BTreeSet<LeaseKey>) -> bool {
        let begins = |lease: &LeaseKey| !self.crew.is_stopping() && self.crew.reads(&lease.stream);
        match step {
            LeaseMove::TakeAgain { lease, term } if !begins(lease) => {
                *step = LeaseMove::Release { lease: lease.clone(), term: *term };
                true
            }
            LeaseMove::Take { lease, .. }
            | LeaseMove::TakeAgain { lease, .. }
            | LeaseMove::Steal { lease, .. } => begins(lease) && !running.contains(lease),
            LeaseMove::Name { lease, .. } => begins(lease),
            LeaseMove::Fence { .. }
            | LeaseMove::Withdraw { .. }
            | LeaseMove::Pass { .. }
            | LeaseMove::Release { .. } => true,
        }
    }

    fn hurry(&mut self) {
        self.pace.hurry(self.crew.now_ms());
    }

    /// Leases that the list shows to be others'.
    fn sweep(&mut self) {
        for held in self.crew.holdings.all() {
            let key = &held.taken().key;
            if self.sight.knows(&key.stream) && self.has_passed_on(&held, self.sight.row(key)) {
                lose(&self.crew, &held);
            }
        }
    }

    /// Whether a listed row is later than the take and not of this worker. A lease on its way back
    /// has changed hands by its own write.
    fn has_passed_on(&self, held: &Held, row: Option<&Lease>) -> bool {
        if matches!(held.stage(), Stage::Giving) {
            return false;
        }
        let Some(row) = row else { return false };
        let mine = row.owner.as_ref() == Some(held.owner());
        let later = row.term > held.taken().term;
        later && (!mine || self.layout() == Layout::Native)
    }

    /// Hands out the grips of those leases whose gate is open. One that is to be drained goes back
    /// as it is.
    fn hand_out(&self) {
        if self.crew.is_stopping() {
            return;
        }
        for held in self.crew.holdings.all() {
            if held.stage() != Stage::Waiting || held.is_drained() || !self.may_begin(&held) {
                continue;
            }
            let Ok(room) = self.crew.grips.try_reserve() else {
                // Without anyone who reads, a worker would only keep leases from the others.
                if self.crew.grips.is_closed() {
                    self.crew.begin_to_stop();
                }
                return;
            };
            held.enter(Stage::Running);
            room.send(Grip::new(held, self.crew.tools.clone()));
        }
    }

    fn may_begin(&self, held: &Arc<Held>) -> bool {
        let taken = held.taken();
        if taken.is_ended() {
            held.enter(Stage::Finished(How::Ended));
            self.crew.wake.notify_one();
            return false;
        }
        self.ready.is_open(&taken.key)
    }

    async fn pause(&mut self) {
        self.crew.tools.clock.sleep(BREATH_MS).await;
        match self.layout() {
            Layout::Native => self.pause_natively().await,
            Layout::Kcl => self.pause_on_kcls_table().await,
        }
    }

    async fn pause_natively(&self) {
        let (crew, clock) = (&self.crew, &self.crew.tools.clock);
        let hurry = self.pace.hurries(crew.now_ms()) || crew.is_stopping();
        let pause_ms = if hurry { crew.settings().hurry_ms } else { crew.look_ms() };
        tokio::select! {
            biased;
            () = crew.wake.notified() => {}
            () = crew.tools.store.changed() => {}
            () = clock.sleep(pause_ms) => {}
        }
    }

    /// Waits until a look is due. What wakes the loop before is done without one.
    async fn pause_on_kcls_table(&mut self) {
        let crew = self.crew.clone();
        let (clock, looked_ms) = (&crew.tools.clock, crew.now_ms());
        loop {
            let due_ms = self.kcl_due_ms(looked_ms);
            let now_ms = crew.now_ms();
            if now_ms >= due_ms {
                return;
            }
            let again_ms = if self.owes_names() { now_ms + UNASK_AGAIN_MS } else { due_ms };
            tokio::select! {
                biased;
                () = crew.wake.notified() => clock.sleep(BREATH_MS).await,
                () = crew.tools.store.changed() => return,
                () = clock.sleep_until(due_ms.min(again_ms)) => {}
            }
            if crew.now_ms() < due_ms {
                self.settle_own().await;
                self.sight.judge(&crew, &mut self.ready);
                self.hand_out();
            }
        }
    }

    fn kcl_due_ms(&self, looked_ms: u64) -> u64 {
        let (crew, now_ms) = (&self.crew, self.crew.now_ms());
        let me = &crew.holdings.member().id;
        let sooner = Sooner {
            expiry_ms: self.sight.view.next_expiry_ms(me, now_ms),
            unlisted: crew.stream_names().iter().any(|stream| !self.sight.knows(stream)),
        };
        self.pace.kcl_due_ms(crew.settings(), crew.look_ms(), looked_ms, now_ms, sooner)
    }

    /// Whether names of this worker are to be taken back.
    fn owes_names(&self) -> bool {
        let crew = &self.crew;
        let asked = crew.holdings.asked();
        asked.iter().any(|(lease, _)| crew.is_stopping() || !crew.reads(&lease.stream))
    }
}
