//! Stopping: the lanes end their calls, or are dropped at the deadline, and the lease can be
//! released.
//!
//! | at the deadline               | requested by another worker       | any other reason      |
//! |-------------------------------|-----------------------------------|-----------------------|
//! | every handler was dropped     | drained                           | drained               |
//! | one handler blocks its thread | refused: the other lanes continue | kept until it returns |

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

/// Result of a drain.
enum DrainResult {
    /// Every lane has ended its call, and the user's code was notified.
    Done,
    /// The deadline has passed.
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

    /// Waits until every lane has ended its call. Another stop reason may come meanwhile, with
    /// another deadline; the last one counts.
    async fn drain(
        &self,
        session: &mut Session,
        mut deadline_ms: u64,
        mut why: DrainReason,
    ) -> (DrainResult, DrainReason) {
        let drained = async {
            session.ended().await;
            // User code that cannot continue must not checkpoint what it received.
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

    /// Notifies the user's code that the shard will be released.
    async fn notify_stopping(&self) {
        if let Err(error) = attempt(async { self.work.stopping().await }).await {
            self.call_failed("shutdown_requested", &error);
        }
    }

    /// Keeps the lease while a handler blocks its thread and cannot be dropped.
    ///
    /// Other workers may not request the lease until the handler returns. If one has requested it,
    /// the request is refused and the reading continues in the other lanes. Any other reason to
    /// stop still holds.
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

    /// Notes that the handlers that could not be stopped have returned.
    pub(super) async fn has_returned(&mut self) {
        self.vitals.set_unstoppable(false);
        if std::mem::take(&mut self.refused) {
            self.grip.allow_hand_over().await;
        }
    }
}
