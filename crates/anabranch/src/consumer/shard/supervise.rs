//! Supervision of a session: writes its checkpoints and carries out the orders of the watchdog.

use super::session::TaskEnd;
use super::{ABORT_MS, LOST, Session, SessionEnd, ShardReader};
use crate::consumer::checkpoint::LeaseStatus;
use crate::consumer::fetch::FetchEnd;
use crate::consumer::health::telemetry::WatchdogOrder;
use crate::consumer::modes::{ProcessingMode, Work};
use crate::event::ShardStopReason;
use crate::lease::{FinishReason, LeaseStore};
use crate::stream::api::StreamApi;
use crate::time::millis;
use std::sync::Arc;

/// Time that records taken from a shard that was given up have to become done, in milliseconds.
const SETTLE_MS: u64 = 5_000;

impl<A: StreamApi, S: LeaseStore, H: ProcessingMode<S>> ShardReader<A, S, H> {
    /// Supervises the tasks of a session, and checkpoints their progress.
    pub(super) async fn supervise(&mut self, session: &mut Session) -> SessionEnd {
        let (worker, grip) = (Arc::clone(&self.worker), Arc::clone(&self.grip));
        let vitals = Arc::clone(&self.vitals);
        let work = Arc::clone(&self.work);
        let every_ms = millis(worker.settings.checkpoint_interval);
        let mut due_ms = worker.clock.now_ms().saturating_add(every_ms);
        let mut released = false;
        loop {
            let mut ordered = None;
            tokio::select! {
                biased;
                stop = grip.wait_for_stop() => return self.stop(session, stop).await,
                () = work.wait_gave_up() => return self.fail(session).await,
                Some(ended) = session.next_end() => match ended {
                    TaskEnd::Over => {}
                    TaskEnd::FetchDropped(lanes) => self.fetch_on(session, lanes),
                    // A panic of a task is a fault of this library, not of the handler.
                    TaskEnd::Panicked => return self.fail(session).await,
                },
                order = vitals.wait_for_order() => ordered = Some(order),
                () = worker.clock.sleep_until(due_ms) => {
                    // A store that never answers must not delay a stop or an order of the watchdog.
                    // A write that is abandoned may still land; the next one finds it in the row.
                    let mut asked = None;
                    let noted = tokio::select! {
                        biased;
                        stop = grip.wait_for_stop() => {
                            asked = Some(stop);
                            LeaseStatus::Kept
                        }
                        order = vitals.wait_for_order() => {
                            ordered = Some(order);
                            LeaseStatus::Kept
                        }
                        noted = self.save_checkpoint(session) => noted,
                    };
                    if let Some(stop) = asked {
                        return self.stop(session, stop).await;
                    }
                    if noted == LeaseStatus::Lost {
                        session.drop_all().await;
                        return LOST;
                    }
                    due_ms = worker.clock.now_ms().saturating_add(every_ms);
                }
            }
            if vitals.is_unstoppable() && !session.has_left() {
                self.has_returned().await;
            }
            if session.start_over.is_cancelled() {
                session.drop_all().await;
                return SessionEnd::RestartProcessor;
            }
            match ordered {
                None => {}
                Some(WatchdogOrder::Refetch) => session.drop_fetching(),
                // A handler that cannot be stopped keeps the lease, and was dropped before. If the
                // shard is still stuck after it has returned, the order is issued again.
                Some(_) if session.has_left() => {}
                Some(WatchdogOrder::DropHandlers) => return self.drop_handlers(session).await,
                Some(WatchdogOrder::Release) => {
                    session.stop();
                    released = true;
                }
            }
            if released && session.is_over() {
                return match self.save_checkpoint_in_time(session).await {
                    LeaseStatus::Kept => {
                        SessionEnd::Finished(FinishReason::Failed, ShardStopReason::Stuck)
                    }
                    LeaseStatus::Lost => LOST,
                };
            }
            match session.outcome() {
                None => {}
                Some(FetchEnd::ShardEnd(children)) => return self.end(session, &children).await,
                Some(FetchEnd::Missing) => return self.resolve_missing(session).await,
                Some(FetchEnd::Stopped | FetchEnd::Refused(_)) => return SessionEnd::Restart,
            }
        }
    }

    /// Ends a reading that cannot continue now. Progress is checkpointed at once, and again when
    /// the records that the user's code took are settled: the lease waits before it is released
    /// anyway, and a stop that comes meanwhile has nothing else to write.
    pub(super) async fn fail(&mut self, session: &mut Session) -> SessionEnd {
        session.drop_all().await;
        self.work.begin_stop();
        let noted = self.save_checkpoint_in_time(session).await;
        let settled = tokio::select! {
            biased;
            stop = self.grip.wait_for_stop() => Err(stop),
            () = self.work.wait_settled() => Ok(()),
            () = self.worker.clock.sleep(SETTLE_MS) => Ok(()),
        };
        match (noted, settled) {
            (LeaseStatus::Lost, _) => LOST,
            (LeaseStatus::Kept, Err(stop)) => self.stop(session, stop).await,
            (LeaseStatus::Kept, Ok(())) => match self.save_checkpoint_in_time(session).await {
                LeaseStatus::Kept => {
                    SessionEnd::Finished(FinishReason::Failed, ShardStopReason::Failed)
                }
                LeaseStatus::Lost => LOST,
            },
        }
    }

    /// Drops the handlers of a stuck shard. Reading restarts in all lanes except those whose
    /// handlers cannot be stopped.
    async fn drop_handlers(&mut self, session: &mut Session) -> SessionEnd {
        session.stop();
        session.drop_tasks();
        tokio::select! {
            biased;
            () = session.ended() => {}
            () = self.worker.clock.sleep(ABORT_MS) => self.vitals.set_unstoppable(true),
        }
        match self.save_checkpoint_in_time(session).await {
            LeaseStatus::Kept => SessionEnd::Restart,
            LeaseStatus::Lost => {
                session.drop_all().await;
                LOST
            }
        }
    }

    /// Writes the final checkpoint, unless the store takes longer than half the lease time.
    async fn save_checkpoint_in_time(&mut self, session: &Session) -> LeaseStatus {
        let clock = self.worker.clock.clone();
        let patience_ms = millis(self.worker.settings.lease_time) / 2;
        tokio::select! {
            biased;
            noted = self.save_final_checkpoint(session) => noted,
            () = clock.sleep(patience_ms) => LeaseStatus::Kept,
        }
    }
}
