//! Stopping: the lanes end their calls, or are dropped at the deadline, and the lease can go.
//!
//! | at the deadline              | asked for by another worker       | any other reason             |
//! |------------------------------|-----------------------------------|------------------------------|
//! | every handler was dropped    | drained                           | drained                      |
//! | one blocks its thread        | refused: the other lanes go on    | kept until it returns        |

use super::{ABORT_MS, LOST, Session, SessionEnd, ShardReader};
use crate::consumer::checkpoint::LeaseStatus;
use crate::consumer::modes::closure::attempt;
use crate::consumer::modes::{ProcessingMode, Work};
use crate::event::ShardStopReason;
use crate::lease::{DrainReason, FinishReason, LeaseStore, StopReason};
use crate::stream::api::StreamApi;
use std::pin::pin;

pub(super) const DRAINED: SessionEnd =
    SessionEnd::Finished(FinishReason::Drained, ShardStopReason::Drained);

/// What a drain came to.
enum DrainResult {
    /// Every lane has ended its call, and the user's code knows.
    Done,
    /// The deadline has come.
    Late,
    /// The lease is lost.
    Lost,
}

impl<A: StreamApi, S: LeaseStore, H: ProcessingMode<S>> ShardReader<A, S, H> {
    /// Stops the reading of a shard.
    pub(super) async fn stop(&mut self, session: &mut Session, stop: StopReason) -> SessionEnd {
        let StopReason::Drain { deadline_ms, why } = stop else {
            session.drop_all().await;
            return LOST;
        };
        session.stop();
        self.work.begin_stop();
        let (drain, why) = self.drain(session, deadline_ms, why).await;
        match drain {
            DrainResult::Done => {}
            DrainResult::Late => session.drop_tasks(),
            DrainResult::Lost => {
                session.drop_all().await;
                return LOST;
            }
        }
        tokio::select! {
            biased;
            () = session.ended() => {}
            () = self.worker.clock.sleep(ABORT_MS) => return self.refuse_hand_over(session, &why).await,
        }
        if self.vitals.is_unstoppable() {
            self.has_returned().await;
        }
        match self.save_final_checkpoint(session).await {
            LeaseStatus::Kept => DRAINED,
            LeaseStatus::Lost => LOST,
        }
    }

    /// Waits until every lane has ended its call. Another reason to stop may come meanwhile, and
    /// another deadline with it: the last word counts.
    async fn drain(
        &self,
        session: &mut Session,
        mut deadline_ms: u64,
        mut why: DrainReason,
    ) -> (DrainResult, DrainReason) {
        let drained = async {
            session.ended().await;
            // Who can't go on has nothing to say of what it was given.
            if !session.start_over.is_cancelled() {
                self.notify_stopping().await;
            }
        };
        let mut drained = pin!(drained);
        loop {
            tokio::select! {
                biased;
                stop = self.grip.wait_for_stop() => match stop {
                    StopReason::Lost => return (DrainResult::Lost, why),
                    StopReason::Drain { deadline_ms: by_ms, why: now } => {
                        (deadline_ms, why) = (by_ms, now);
                    }
                },
                () = &mut drained => return (DrainResult::Done, why),
                () = self.worker.clock.sleep_until(deadline_ms) => return (DrainResult::Late, why),
            }
        }
    }

    /// Tells the user's code that the shard is to be given back.
    async fn notify_stopping(&self) {
        if let Err(error) = attempt(async { self.work.stopping().await }).await {
            self.call_failed("shutdown_requested", &error);
        }
    }

    /// A handler that blocks its thread can't be dropped. The lease is kept until it returns, and
    /// nobody may ask for it meanwhile. Whoever asked before has been told no, so the reading goes
    /// on in the other lanes; any other reason to stop still holds.
    async fn refuse_hand_over(&mut self, session: &mut Session, why: &DrainReason) -> SessionEnd {
        self.vitals.set_unstoppable(true);
        self.grip.refuse_hand_over().await;
        self.refused = true;
        if matches!(why, DrainReason::HandOver { .. }) {
            return match self.save_checkpoint(session).await {
                LeaseStatus::Kept => SessionEnd::Restart,
                LeaseStatus::Lost => {
                    session.drop_all().await;
                    LOST
                }
            };
        }
        session.ended().await;
        let noted = self.save_final_checkpoint(session).await;
        self.has_returned().await;
        match noted {
            LeaseStatus::Kept => DRAINED,
            LeaseStatus::Lost => LOST,
        }
    }

    /// No handler runs any more that could not be stopped.
    pub(super) async fn has_returned(&mut self) {
        self.vitals.set_unstoppable(false);
        if std::mem::take(&mut self.refused) {
            self.grip.allow_hand_over().await;
        }
    }
}
