//! Reader of a shard in the lease scenarios: delivers simulated records under its lease.

use crate::flaw::WorkerFlaws;
use crate::history::{History, HistoryEvent, HostId};
use crate::workload::{Workload, number, position};
use anabranch::clock::{Clock, Rng};
use anabranch::lease::{
    CheckpointResult, FinishReason, LeaseHandle, LeaseStore, ShardEndResult, StopReason,
};
use anabranch::stream::api::StreamApi;
use anabranch_model::lease::{Checkpoint, LeaseToken};
use std::sync::Arc;

/// Maximum pause between two records, in milliseconds.
const PAUSE_MAX_MS: u64 = 120;

/// Number of records between two checkpoints.
const CHECKPOINT_EVERY: u64 = 6;

/// One in this many drains cannot stop its handler at first.
const STUCK_ONE_IN: u64 = 12;

/// Shared context of all readers of one worker run.
pub struct ReaderContext<S> {
    /// Host of the run.
    pub host: HostId,
    /// Receives the deliveries.
    pub history: History,
    /// Stream and records.
    pub workload: Workload,
    /// The host's clock.
    pub clock: Clock,
    /// The host's RNG.
    pub chance: Rng,
    /// The store, for a reader that sends heartbeats by itself.
    pub store: Arc<S>,
    /// Decides whether readers continue where they should stop.
    pub habits: Arc<WorkerFlaws>,
}

/// One reader of one shard.
struct PretendReader<S: LeaseStore, A: StreamApi> {
    desk: Arc<ReaderContext<S>>,
    grip: LeaseHandle<S, A>,
    hold: LeaseToken,
    /// Number of the next record.
    next: u64,
    /// Number of the last record that the library acknowledged as stored.
    stored: u64,
}

/// Decision of a reader after a step.
enum NextStep {
    GoOn,
    LetGo(FinishReason, &'static str),
}

/// Reads a shard until it ends or its lease must be given up.
pub async fn read<S: LeaseStore, A: StreamApi>(
    desk: Arc<ReaderContext<S>>,
    grip: LeaseHandle<S, A>,
) {
    let lease = grip.lease();
    let from = lease.checkpoint.lowest();
    let hold =
        LeaseToken { key: lease.key.clone(), owner: grip.worker().clone(), term: lease.term };
    desk.history.note(desk.host, HistoryEvent::Began { hold: hold.clone(), from });
    let done = number(from);
    PretendReader { desk, grip, hold, next: done + 1, stored: done }.run().await;
}

impl<S: LeaseStore, A: StreamApi> PretendReader<S, A> {
    async fn run(mut self) {
        let (how, words) = loop {
            let then = tokio::select! {
                biased;
                stop = self.grip.wait_for_stop() => self.stop(stop).await,
                () = pause(&self.desk) => self.step().await,
            };
            match then {
                NextStep::GoOn => {}
                NextStep::LetGo(how, words) => break (how, words),
            }
        };
        let Self { desk, grip, hold, next, .. } = self;
        let let_go = HistoryEvent::StoppedReading { hold: hold.clone(), how: words.to_owned() };
        desk.history.note(desk.host, let_go);
        grip.finish(how);
        continue_despite_stop(&desk, &hold, next).await;
    }

    /// Delivers one record, or processes the end of the shard.
    async fn step(&mut self) -> NextStep {
        let last = self.desk.workload.last_record(&self.hold.key.shard);
        if last.is_some_and(|last| self.next > last) {
            return self.end().await;
        }
        // The check and the call of the handler happen in one poll.
        let now_ms = self.desk.clock.now_ms();
        let grip_says = self.grip.may_deliver();
        if !self.desk.habits.may_deliver(&self.hold, grip_says, now_ms) {
            return NextStep::GoOn;
        }
        deliver(&self.desk, &self.hold, self.next);
        self.next += 1;
        if self.next.is_multiple_of(CHECKPOINT_EVERY) {
            self.checkpoint().await
        } else {
            NextStep::GoOn
        }
    }

    async fn checkpoint(&mut self) -> NextStep {
        let done = self.next - 1;
        if done == self.stored {
            return NextStep::GoOn;
        }
        let at = position(done);
        match self.grip.checkpoint(Checkpoint::at(at), None).await {
            CheckpointResult::Done => {
                self.stored = done;
                let what = HistoryEvent::Checkpointed { hold: self.hold.clone(), at };
                self.desk.history.note(self.desk.host, what);
                NextStep::GoOn
            }
            CheckpointResult::Lost => self.lost().await,
            CheckpointResult::BehindCurrent => {
                NextStep::LetGo(FinishReason::Failed, "its checkpoint would go back")
            }
            CheckpointResult::Failed(_) => {
                NextStep::LetGo(FinishReason::Failed, "the store will not")
            }
        }
    }

    async fn end(&mut self) -> NextStep {
        if let NextStep::LetGo(how, words) = self.checkpoint().await {
            return NextStep::LetGo(how, words);
        }
        match self.grip.end(&[]).await {
            ShardEndResult::Done => NextStep::LetGo(FinishReason::Ended, "the shard has ended"),
            ShardEndResult::NotYet { .. } => NextStep::GoOn,
            ShardEndResult::Lost => self.lost().await,
            ShardEndResult::Failed(_) => {
                NextStep::LetGo(FinishReason::Failed, "the store will not")
            }
        }
    }

    async fn stop(&mut self, stop: StopReason) -> NextStep {
        let StopReason::Drain { .. } = stop else { return self.lost().await };
        if self.desk.chance.below(STUCK_ONE_IN) == 0 {
            self.grip.refuse_hand_over().await;
            for _ in 0..self.desk.chance.below(20) {
                pause(&self.desk).await;
                if let NextStep::LetGo(how, words) = self.step().await {
                    return NextStep::LetGo(how, words);
                }
            }
            self.grip.allow_hand_over().await;
            return NextStep::GoOn;
        }
        // It remains the owner until it has finished, so it may deliver a few more records.
        for _ in 0..self.desk.chance.below(4) {
            pause(&self.desk).await;
            if let NextStep::LetGo(how, words) = self.step().await {
                return NextStep::LetGo(how, words);
            }
        }
        match self.checkpoint().await {
            NextStep::GoOn => NextStep::LetGo(FinishReason::Drained, "drained"),
            let_go @ NextStep::LetGo(..) => let_go,
        }
    }

    /// Handles the loss of the lease. A flawed reader keeps delivering.
    async fn lost(&mut self) -> NextStep {
        while self.desk.habits.ignores_lost_lease() {
            pause(&self.desk).await;
            let now_ms = self.desk.clock.now_ms();
            let renewed = self.desk.habits.renew(&*self.desk.store, &self.hold.owner, now_ms).await;
            if !renewed || !self.desk.habits.may_deliver(&self.hold, false, now_ms) {
                break;
            }
            deliver(&self.desk, &self.hold, self.next);
            self.next += 1;
        }
        NextStep::LetGo(FinishReason::Failed, "lost")
    }
}

fn deliver<S>(desk: &ReaderContext<S>, hold: &LeaseToken, number: u64) {
    desk.workload.delivered(&hold.key.shard, number);
    desk.history.note(desk.host, HistoryEvent::Delivered { hold: hold.clone(), number });
}

async fn pause<S>(desk: &ReaderContext<S>) {
    desk.clock.sleep(1 + desk.chance.below(PAUSE_MAX_MS)).await;
}

/// Keeps delivering under a released lease token, if the reader is flawed.
async fn continue_despite_stop<S>(desk: &ReaderContext<S>, hold: &LeaseToken, mut next: u64) {
    let let_go_ms = desk.clock.now_ms();
    while desk.habits.ignores_hand_over() {
        pause(desk).await;
        let last = desk.workload.last_record(&hold.key.shard);
        let over = last.is_some_and(|last| next > last);
        if over || !desk.habits.goes_on(hold, let_go_ms, desk.clock.now_ms()) {
            return;
        }
        deliver(desk, hold, next);
        next += 1;
    }
}
