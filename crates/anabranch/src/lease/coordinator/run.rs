//! The coordinator's main loop: polls the store, plans and executes moves.

use super::CoordinatorStartError;
use super::gates::GateTracker;
use super::moves::{drop_lost, process_finished};
use super::moves::{execute_moves, request_drain, withdraw_requests};
use super::poll::FleetPoller;
use super::poll::{EarlyPoll, PollSchedule};
use super::shared::CoordinatorShared;
use crate::lease::handle::{FinishReason, HandleState, HeldLease};
use crate::lease::{LeaseHandle, LeaseStore, StoreError};
use crate::stream::api::StreamApi;
use anabranch_model::lease::fleet_view::FleetView;
use anabranch_model::lease::plan::{LeaseMove, PlanningWorker, plan};
use anabranch_model::lease::{HandOver, Layout, Lease, LeaseKey, ProbeBaseline, WorkerId};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Minimum pause between two polls, in milliseconds, whatever wakes the loop.
const BREATH_MS: u64 = 10;

/// Pause before requests that could not be withdrawn are tried again, in milliseconds.
const UNASK_AGAIN_MS: u64 = 500;

/// State of the loop.
struct CoordinatorLoop<S: LeaseStore, A: StreamApi> {
    crew: Arc<CoordinatorShared<S, A>>,
    /// The fleet as last polled.
    sight: FleetPoller,
    ready: GateTracker,
    /// Releases and hand-overs in progress.
    gives: JoinSet<()>,
    /// Schedule of the next poll.
    pace: PollSchedule,
    /// Time since which the store reports that it has no lease table.
    missing_since_ms: Option<u64>,
}

/// Runs the loop forever. `surveyed` is the probe of the table at the start.
pub(super) async fn run<S: LeaseStore, A: StreamApi>(
    crew: Arc<CoordinatorShared<S, A>>,
    surveyed: ProbeBaseline,
) {
    let settings = crew.settings();
    let view = FleetView::new(
        crew.context.store.layout(),
        settings.lease_time_ms,
        settings.hand_over_timeout_ms(),
    );
    let mut it = CoordinatorLoop {
        sight: FleetPoller::new(view.after(surveyed)),
        ready: GateTracker::default(),
        gives: JoinSet::new(),
        pace: PollSchedule::new(crew.now_ms()),
        missing_since_ms: None,
        crew,
    };
    loop {
        it.round().await;
        it.pause().await;
    }
}

impl<S: LeaseStore, A: StreamApi> CoordinatorLoop<S, A> {
    async fn round(&mut self) {
        self.handle_own_leases().await;
        let streams = self.crew.polled_streams();
        match self.sight.poll(&self.crew, &streams, &mut self.ready).await {
            Ok(false) => {}
            Ok(true) => self.note_activity(),
            Err(error) => {
                if matches!(error, StoreError::Throttled { .. }) {
                    self.pace.throttled();
                }
                self.crew.context.emit_store_failure("poll", &error);
                self.check_store_gone(error);
                return;
            }
        }
        self.pace.note_poll();
        self.missing_since_ms = None;
        self.drop_leases_of_others();
        let member = self.crew.held_leases.member();
        self.crew.forget_removed_streams(|stream| self.sight.is_named(stream, &member.id));
        self.forget_asked(&member.id);
        let running = self.crew.held_leases.running();
        let me = PlanningWorker { id: &member.id, running: &running };
        let now_ms = self.crew.now_ms();
        let tie_break = self.crew.context.rng.bits();
        let mut moves = plan(&self.sight.view, me, now_ms, tie_break, &self.crew.settings().plan);
        let over = self.layout() == Layout::Native && member.heartbeat.is_expired(now_ms);
        moves.retain_mut(|step| !over && self.may_make(step, &running));
        if moves.iter().any(|step| !self.is_being_drained(step)) {
            self.note_activity();
        }
        execute_moves(&self.crew, &member.id, moves, &mut self.gives).await;
        self.hand_out_handles();
    }

    /// Does the work that needs no poll. It releases returned leases, drains leases that another
    /// worker asked for, and withdraws obsolete requests. A stop waits for this work, and polls may
    /// be throttled.
    async fn handle_own_leases(&mut self) {
        while self.gives.try_join_next().is_some() {}
        let kcl = self.layout() == Layout::Kcl;
        for held in self.crew.held_leases.all().iter().filter(|_| kcl) {
            if let Some(to) = held.take_requester() {
                request_drain(&self.crew, held, &to, &mut self.gives);
            }
        }
        if process_finished(&self.crew, &mut self.gives) {
            self.pace.note_finished_shard(self.crew.now_ms());
        }
        withdraw_requests(&self.crew, &self.crew.held_leases.member().id).await;
    }

    /// Returns true if a move needs no action: the reader is already draining the shard, which may
    /// take long.
    fn is_being_drained(&self, step: &LeaseMove) -> bool {
        let LeaseMove::HandOver { lease, .. } = step else { return false };
        self.crew.held_leases.get(lease).is_some_and(|held| held.is_draining())
    }

    /// Forgets requests of this worker that a later write removed from the row. A request moves no
    /// counter, so a row with a higher counter was read after the request was written.
    fn forget_asked(&self, me: &WorkerId) {
        for (lease, term) in self.crew.held_leases.requests() {
            let Some(row) = self.sight.row(&lease).filter(|row| row.term > term) else { continue };
            let named = HandOver::Requested { taker: me.clone() };
            if row.owner.as_ref() != Some(me) && row.hand_over != named {
                self.crew.held_leases.forget_request(&lease);
            }
        }
    }

    /// Stands down once the lease table has been missing for a lease time. Recreating it would
    /// forget all checkpoints, so that is the operator's decision. No lease is held by then, since
    /// no beat was applied.
    fn check_store_gone(&mut self, error: StoreError) {
        if !matches!(error, StoreError::Missing { .. }) {
            self.missing_since_ms = None;
            return;
        }
        let now_ms = self.crew.now_ms();
        let since_ms = *self.missing_since_ms.get_or_insert(now_ms);
        if now_ms.saturating_sub(since_ms) >= self.crew.settings().lease_time_ms {
            self.crew.stand_down(CoordinatorStartError::Store(error));
        }
    }

    fn layout(&self) -> Layout {
        self.crew.context.store.layout()
    }

    /// Returns true if a move may be made. Turns a retake that is not wanted into a release. A
    /// worker begins nothing while it is stopping, or on a stream that it no longer reads. It does
    /// not take a lost lease again while its reading goes on.
    fn may_make(&self, step: &mut LeaseMove, running: &BTreeSet<LeaseKey>) -> bool {
        let begins = |lease: &LeaseKey| !self.crew.is_stopping() && self.crew.reads(&lease.stream);
        match step {
            LeaseMove::Retake { lease, term } if !begins(lease) => {
                *step = LeaseMove::Release { lease: lease.clone(), term: *term };
                true
            }
            LeaseMove::Take { lease, .. }
            | LeaseMove::Retake { lease, .. }
            | LeaseMove::Steal { lease, .. } => begins(lease) && !running.contains(lease),
            LeaseMove::RequestHandOver { lease, .. } => begins(lease),
            LeaseMove::Fence { .. }
            | LeaseMove::WithdrawRequest { .. }
            | LeaseMove::HandOver { .. }
            | LeaseMove::Release { .. } => true,
        }
    }

    fn note_activity(&mut self) {
        self.pace.note_hand_over(self.crew.now_ms());
    }

    /// Drops the leases that the list shows under another owner.
    fn drop_leases_of_others(&mut self) {
        for held in self.crew.held_leases.all() {
            let key = &held.taken_row().key;
            if self.sight.knows(&key.stream) && self.is_handed_over(&held, self.sight.row(key)) {
                drop_lost(&self.crew, &held);
            }
        }
    }

    /// Returns true if a listed row is newer than the take and belongs to another worker. A lease
    /// that is being released was changed by this worker's own write.
    fn is_handed_over(&self, held: &HeldLease, row: Option<&Lease>) -> bool {
        if matches!(held.state(), HandleState::Releasing) {
            return false;
        }
        let Some(row) = row else { return false };
        let mine = row.owner.as_ref() == Some(held.owner());
        let later = row.term > held.taken_row().term;
        later && (!mine || self.layout() == Layout::Native)
    }

    /// Hands out the handles of leases whose gate is open. A lease that is to be drained is
    /// returned unread.
    fn hand_out_handles(&self) {
        if self.crew.is_stopping() {
            return;
        }
        for held in self.crew.held_leases.all() {
            if held.state() != HandleState::Waiting || held.is_draining() || !self.may_begin(&held)
            {
                continue;
            }
            let Ok(room) = self.crew.handles.try_reserve() else {
                // Without a reader of the shards, this worker would only keep leases from the
                // others.
                if self.crew.handles.is_closed() {
                    self.crew.begin_stop();
                }
                return;
            };
            held.set_state(HandleState::Running);
            room.send(LeaseHandle::new(held, self.crew.context.clone()));
        }
    }

    fn may_begin(&self, held: &Arc<HeldLease>) -> bool {
        let taken = held.taken_row();
        if taken.is_ended() {
            held.set_state(HandleState::Finished(FinishReason::Ended));
            self.crew.wake.notify_one();
            return false;
        }
        self.ready.is_open(&taken.key)
    }

    async fn pause(&mut self) {
        self.crew.context.clock.sleep(BREATH_MS).await;
        match self.layout() {
            Layout::Native => self.pause_natively().await,
            Layout::Kcl => self.pause_kcl().await,
        }
    }

    async fn pause_natively(&self) {
        let (crew, clock) = (&self.crew, &self.crew.context.clock);
        let hurry = self.pace.is_busy(crew.now_ms()) || crew.is_stopping();
        let pause_ms =
            if hurry { crew.settings().busy_poll_interval } else { crew.poll_interval_ms() };
        tokio::select! {
            biased;
            () = crew.wake.notified() => {}
            () = crew.context.store.wait_for_change() => {}
            () = clock.sleep(pause_ms) => {}
        }
    }

    /// Waits until a poll is due. Wake-ups before that are handled without a poll.
    async fn pause_kcl(&mut self) {
        let crew = self.crew.clone();
        let (clock, looked_ms) = (&crew.context.clock, crew.now_ms());
        loop {
            let due_ms = self.kcl_due_ms(looked_ms);
            let now_ms = crew.now_ms();
            if now_ms >= due_ms {
                return;
            }
            let again_ms =
                if self.has_requests_to_withdraw() { now_ms + UNASK_AGAIN_MS } else { due_ms };
            tokio::select! {
                biased;
                () = crew.wake.notified() => clock.sleep(BREATH_MS).await,
                () = crew.context.store.wait_for_change() => return,
                () = clock.sleep_until(due_ms.min(again_ms)) => {}
            }
            if crew.now_ms() < due_ms {
                self.handle_own_leases().await;
                self.sight.update_gates(&crew, &mut self.ready);
                self.hand_out_handles();
            }
        }
    }

    fn kcl_due_ms(&self, looked_ms: u64) -> u64 {
        let (crew, now_ms) = (&self.crew, self.crew.now_ms());
        let me = &crew.held_leases.member().id;
        let sooner = EarlyPoll {
            expiry_ms: self.sight.view.next_expiry_ms(me, now_ms),
            unlisted: crew.stream_names().iter().any(|stream| !self.sight.knows(stream)),
        };
        self.pace.kcl_due_ms(crew.settings(), crew.poll_interval_ms(), looked_ms, now_ms, sooner)
    }

    /// Returns true if this worker has requests to withdraw.
    fn has_requests_to_withdraw(&self) -> bool {
        let crew = &self.crew;
        let asked = crew.held_leases.requests();
        asked.iter().any(|(lease, _)| crew.is_stopping() || !crew.reads(&lease.stream))
    }
}
