//! Who runs a shard in the lease scenarios: counts pretend records off under its grip.

use crate::flaw::Habits;
use crate::history::{History, HostId, What};
use crate::workload::{Workload, number, position};
use anabranch::clock::{Rng, Clock};
use anabranch::lease::{CheckpointResult, ShardEndResult, LeaseHandle, FinishReason, LeaseStore, StopReason};
use anabranch::stream::api::StreamApi;
use anabranch_model::lease::{Checkpoint, LeaseToken};
use std::sync::Arc;

/// The longest pause between two records.
const PAUSE_MAX_MS: u64 = 120;

/// Every so many records a checkpoint is made.
const CHECKPOINT_EVERY: u64 = 6;

/// One drain in so many can't stop its handler at first.
const STUCK_ONE_IN: u64 = 12;

/// What every reader of one life works with.
pub struct Desk<S> {
    /// On which host.
    pub host: HostId,
    /// Where deliveries are noted.
    pub history: History,
    /// The records.
    pub workload: Workload,
    /// The host's clock.
    pub clock: Clock,
    /// The host's chance.
    pub chance: Rng,
    /// The store, for a reader that beats on by itself.
    pub store: Arc<S>,
    /// Whether readers go on where they should stop.
    pub habits: Arc<Habits>,
}

/// One reader of one shard.
struct Reader<S: LeaseStore, A: StreamApi> {
    desk: Arc<Desk<S>>,
    grip: LeaseHandle<S, A>,
    hold: LeaseToken,
    /// The next record.
    next: u64,
    /// The last record of which the library said that it is stored.
    stored: u64,
}

/// Whether a reader goes on.
enum Then {
    GoOn,
    LetGo(FinishReason, &'static str),
}

/// Reads a shard until it ends or has to be given up.
pub async fn read<S: LeaseStore, A: StreamApi>(desk: Arc<Desk<S>>, grip: LeaseHandle<S, A>) {
    let lease = grip.lease();
    let from = lease.checkpoint.lowest();
    let hold = LeaseToken { key: lease.key.clone(), owner: grip.worker().clone(), term: lease.term };
    desk.history.note(desk.host, What::Began { hold: hold.clone(), from });
    let done = number(from);
    Reader { desk, grip, hold, next: done + 1, stored: done }.run().await;
}

impl<S: LeaseStore, A: StreamApi> Reader<S, A> {
    async fn run(mut self) {
        let (how, words) = loop {
            let then = tokio::select! {
                biased;
                stop = self.grip.wait_for_stop() => self.stop(stop).await,
                () = pause(&self.desk) => self.step().await,
            };
            match then {
                Then::GoOn => {}
                Then::LetGo(how, words) => break (how, words),
            }
        };
        let Self { desk, grip, hold, next, .. } = self;
        let let_go = What::LetGo { hold: hold.clone(), how: words.to_owned() };
        desk.history.note(desk.host, let_go);
        grip.finish(how);
        go_on_all_the_same(&desk, &hold, next).await;
    }

    /// One record, or the end of the shard.
    async fn step(&mut self) -> Then {
        let last = self.desk.workload.last_record(&self.hold.key.shard);
        if last.is_some_and(|last| self.next > last) {
            return self.end().await;
        }
        // The check and the call of the handler are one poll.
        let now_ms = self.desk.clock.now_ms();
        let grip_says = self.grip.may_deliver();
        if !self.desk.habits.may_deliver(&self.hold, grip_says, now_ms) {
            return Then::GoOn;
        }
        deliver(&self.desk, &self.hold, self.next);
        self.next += 1;
        if self.next.is_multiple_of(CHECKPOINT_EVERY) {
            self.checkpoint().await
        } else {
            Then::GoOn
        }
    }

    async fn checkpoint(&mut self) -> Then {
        let done = self.next - 1;
        if done == self.stored {
            return Then::GoOn;
        }
        let at = position(done);
        match self.grip.checkpoint(Checkpoint::at(at), None).await {
            CheckpointResult::Done => {
                self.stored = done;
                let what = What::Checkpointed { hold: self.hold.clone(), at };
                self.desk.history.note(self.desk.host, what);
                Then::GoOn
            }
            CheckpointResult::Lost => self.lost().await,
            CheckpointResult::BehindCurrent => Then::LetGo(FinishReason::Failed, "its checkpoint would go back"),
            CheckpointResult::Failed(_) => Then::LetGo(FinishReason::Failed, "the store will not"),
        }
    }

    async fn end(&mut self) -> Then {
        if let Then::LetGo(how, words) = self.checkpoint().await {
            return Then::LetGo(how, words);
        }
        match self.grip.end(&[]).await {
            ShardEndResult::Done => Then::LetGo(FinishReason::Ended, "the shard has ended"),
            ShardEndResult::NotYet { .. } => Then::GoOn,
            ShardEndResult::Lost => self.lost().await,
            ShardEndResult::Failed(_) => Then::LetGo(FinishReason::Failed, "the store will not"),
        }
    }

    async fn stop(&mut self, stop: StopReason) -> Then {
        let StopReason::Drain { .. } = stop else { return self.lost().await };
        if self.desk.chance.below(STUCK_ONE_IN) == 0 {
            self.grip.refuse_hand_over().await;
            for _ in 0..self.desk.chance.below(20) {
                pause(&self.desk).await;
                if let Then::LetGo(how, words) = self.step().await {
                    return Then::LetGo(how, words);
                }
            }
            self.grip.allow_hand_over().await;
            return Then::GoOn;
        }
        // The owner until it has finished: a few records more are its own to deliver.
        for _ in 0..self.desk.chance.below(4) {
            pause(&self.desk).await;
            if let Then::LetGo(how, words) = self.step().await {
                return Then::LetGo(how, words);
            }
        }
        match self.checkpoint().await {
            Then::GoOn => Then::LetGo(FinishReason::Drained, "drained"),
            let_go @ Then::LetGo(..) => let_go,
        }
    }

    /// The lease is lost. A reader with a bad habit delivers on.
    async fn lost(&mut self) -> Then {
        while self.desk.habits.ignores_a_loss() {
            pause(&self.desk).await;
            let now_ms = self.desk.clock.now_ms();
            let renewed = self.desk.habits.renew(&*self.desk.store, &self.hold.owner, now_ms).await;
            if !renewed || !self.desk.habits.may_deliver(&self.hold, false, now_ms) {
                break;
            }
            deliver(&self.desk, &self.hold, self.next);
            self.next += 1;
        }
        Then::LetGo(FinishReason::Failed, "lost")
    }
}

fn deliver<S>(desk: &Desk<S>, hold: &LeaseToken, number: u64) {
    desk.workload.delivered(&hold.key.shard, number);
    desk.history.note(desk.host, What::Delivered { hold: hold.clone(), number });
}

async fn pause<S>(desk: &Desk<S>) {
    desk.clock.sleep(1 + desk.chance.below(PAUSE_MAX_MS)).await;
}

/// A reader with a bad habit delivers on under a hold that it has let go of.
async fn go_on_all_the_same<S>(desk: &Desk<S>, hold: &LeaseToken, mut next: u64) {
    let let_go_ms = desk.clock.now_ms();
    while desk.habits.ignores_a_pass() {
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
