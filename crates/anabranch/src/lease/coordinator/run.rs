//! The loop that looks, plans and acts.

use super::StartError;
use super::act::{act, unask};
use super::crew::Crew;
use super::give::{lose, take_back};
use super::look::Sight;
use super::ready::Ready;
use crate::lease::grip::{Held, How, Stage};
use crate::lease::{Grip, LeaseStore, StoreError};
use crate::stream::api::StreamApi;
use anabranch_model::lease::plan::{LeaseMove, Me, plan};
use anabranch_model::lease::view::View;
use anabranch_model::lease::{Layout, Lease, LeaseKey, Surveyed};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::task::JoinSet;

/// For how long looks come fast after something has changed, in milliseconds.
const HURRY_FOR_MS: u64 = 2_000;

/// The least pause between two looks, in milliseconds, whoever asks for one.
const BREATH_MS: u64 = 10;

/// The least pause between two looks in KCL's layout, in milliseconds: there every look is a scan.
const KCL_LOOK_MS: u64 = 1_000;

/// How many times sooner the next look comes in KCL's layout while leases change hands.
const KCL_HURRY: u64 = 3;

/// The longest pause between two looks in KCL's layout, in lease times: that of Java's taker.
const KCL_LONGEST_LEASE_TIMES: u64 = 2;

/// How often the pause is doubled at most while the store throttles looks.
const MOST_DOUBLED: u32 = 6;

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
    /// Until when looks come fast.
    hurry_until_ms: u64,
    /// Since when the store says that it has no table of leases.
    missing_since_ms: Option<u64>,
    /// How often the pause between two looks is doubled, because the store throttles them.
    doubled: u32,
}

/// Looks, plans and acts for ever. `surveyed` is what was seen of the table at the start.
pub(super) async fn run<S: LeaseStore, A: StreamApi>(crew: Arc<Crew<S, A>>, surveyed: Surveyed) {
    let settings = crew.settings();
    let view = View::new(crew.tools.store.layout(), settings.lease_time_ms, settings.patience_ms());
    let mut it = Loop {
        sight: Sight::new(view.after(surveyed)),
        ready: Ready::default(),
        gives: JoinSet::new(),
        hurry_until_ms: crew.now_ms() + HURRY_FOR_MS,
        missing_since_ms: None,
        doubled: 0,
        crew,
    };
    loop {
        it.round().await;
        it.pause().await;
    }
}

impl<S: LeaseStore, A: StreamApi> Loop<S, A> {
    async fn round(&mut self) {
        while self.gives.try_join_next().is_some() {}
        take_back(&self.crew, &mut self.gives);
        let streams = self.crew.looked_at();
        match self.sight.look(&self.crew, &streams, &mut self.ready).await {
            Ok(false) => {}
            Ok(true) => self.hurry(),
            Err(error) => {
                if matches!(error, StoreError::Throttled { .. }) {
                    self.doubled = (self.doubled + 1).min(MOST_DOUBLED);
                }
                self.crew.tools.trouble("look", &error);
                self.judge(error);
                return;
            }
        }
        self.doubled = self.doubled.saturating_sub(1);
        self.missing_since_ms = None;
        self.sweep();
        let member = self.crew.holdings.member();
        self.crew.forget_left(|stream| self.sight.is_named(stream, &member.id));
        let running = self.crew.holdings.running();
        let me = Me { id: &member.id, running: &running };
        let now_ms = self.crew.now_ms();
        let tie_break = self.crew.tools.chance.bits();
        let mut moves = plan(&self.sight.view, me, now_ms, tie_break, &self.crew.settings().plan);
        let over = self.layout() == Layout::Native && member.pulse.is_over(now_ms);
        moves.retain_mut(|step| !over && self.may_make(step, &running));
        if !moves.is_empty() {
            self.hurry();
        }
        act(&self.crew, &member.id, moves, &mut self.gives).await;
        unask(&self.crew, &member.id).await;
        self.hand_out();
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
        self.hurry_until_ms = self.crew.now_ms() + HURRY_FOR_MS;
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

    /// In KCL's layout a look is a scan of the whole table, whose units Java's workers need too. So
    /// what the store suggests for a table of its size holds, and a store that throttles is asked
    /// less often. A lease whose owner has not renewed it is looked at when its time is over.
    fn kcl_pause_ms(&self, look_ms: u64, hurry: bool) -> u64 {
        let longest_ms = self.crew.settings().lease_time_ms * KCL_LONGEST_LEASE_TIMES;
        let pause_ms = (look_ms.max(KCL_LOOK_MS) << self.doubled).min(longest_ms);
        if self.doubled > 0 {
            return pause_ms;
        }
        let pause_ms = if hurry { pause_ms / KCL_HURRY } else { pause_ms };
        let now_ms = self.crew.now_ms();
        match self.sight.view.next_expiry_ms(&self.crew.holdings.member().id, now_ms) {
            Some(expiry_ms) => pause_ms.min(expiry_ms - now_ms),
            None => pause_ms,
        }
    }

    async fn pause(&self) {
        let (crew, settings) = (&self.crew, self.crew.settings());
        let clock = &crew.tools.clock;
        clock.sleep(BREATH_MS).await;
        let hurry = crew.now_ms() < self.hurry_until_ms || crew.is_stopping();
        let look_ms = settings.look_ms.unwrap_or_else(|| crew.tools.store.look_ms());
        let pause_ms = match crew.tools.store.layout() {
            Layout::Native if hurry => settings.hurry_ms,
            Layout::Native => look_ms,
            Layout::Kcl => self.kcl_pause_ms(look_ms, hurry),
        };
        tokio::select! {
            biased;
            () = crew.wake.notified() => {}
            () = crew.tools.store.changed() => {}
            () = clock.sleep(pause_ms) => {}
        }
    }
}
