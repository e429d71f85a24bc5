//! The end of a shard: every record is done, or the service no longer has it.

use super::stop::DRAINED;
use super::{AGAIN_MS, LOST, STOOD_STILL, Session, SessionEnd, ShardReader};
use crate::consumer::checkpoint::LeaseStatus;
use crate::consumer::modes::closure::attempt;
use crate::consumer::modes::processor::RestartProcessor;
use crate::consumer::modes::{NotAccepted, ProcessingMode, Work};
use crate::event::{ShardEvent, ShardStopReason};
use crate::lease::{
    DrainReason, FinishReason, LeaseStore, MissingShardResult, ShardEndResult, StopReason,
};
use crate::stream::api::{ChildShard, StreamApi};
use std::pin::pin;
use std::sync::Arc;

/// What comes before the end of a shard is written.
enum EndInterruption {
    /// The reading is to stop, and nothing more can be done for the end.
    Stop(StopReason),
    /// A stop was asked for, and its grace is over.
    Late,
    /// The user's code takes no more of the shard, or the watcher wants it given back.
    GivenUp(ShardStopReason),
    /// The user's code can't go on.
    StartOver,
}

/// A stop that was asked for, while what was begun may still be done.
#[derive(Clone)]
struct DrainDeadline {
    /// Until when.
    deadline_ms: u64,
    /// What it was asked for.
    why: DrainReason,
}

impl From<DrainDeadline> for StopReason {
    fn from(DrainDeadline { deadline_ms, why }: DrainDeadline) -> Self {
        Self::Drain { deadline_ms, why }
    }
}

impl<A: StreamApi, S: LeaseStore, H: ProcessingMode<S>> ShardReader<A, S, H> {
    /// Every record is done: has the user's code know, and writes the shard's end. A stop leaves
    /// both its grace, as it does the calls of lanes.
    pub(super) async fn end(
        &mut self,
        session: &mut Session,
        children: &[ChildShard],
    ) -> SessionEnd {
        let mut grace = None;
        let ended = match self.notify_end(&mut grace).await {
            Ok(()) => self.write_end(&mut grace, children).await,
            Err(cut) => Err(cut),
        };
        let (cut, stop) = match ended {
            Ok(end) => return end,
            Err(EndInterruption::Stop(stop)) => return self.stop(session, stop).await,
            Err(cut) => (cut, grace.map(StopReason::from)),
        };
        match (cut, stop) {
            (EndInterruption::StartOver, None) => SessionEnd::RestartProcessor,
            (EndInterruption::StartOver, Some(stop)) => {
                session.start_over.cancel();
                self.stop(session, stop).await
            }
            (EndInterruption::GivenUp(_), Some(stop)) => self.stop(session, stop).await,
            (EndInterruption::GivenUp(why), None) => {
                match self.save_final_checkpoint(session).await {
                    LeaseStatus::Kept => SessionEnd::Finished(FinishReason::Failed, why),
                    LeaseStatus::Lost => LOST,
                }
            }
            (EndInterruption::Late | EndInterruption::Stop(_), _) => {
                match self.save_final_checkpoint(session).await {
                    LeaseStatus::Kept => DRAINED,
                    LeaseStatus::Lost => LOST,
                }
            }
        }
    }

    /// Tells the user's code until it has done what it wants to do at the end.
    async fn notify_end(&self, grace: &mut Option<DrainDeadline>) -> Result<(), EndInterruption> {
        loop {
            let calling = self.vitals.calling();
            let told = async {
                tokio::select! {
                    biased;
                    ended = attempt(async { self.work.ended().await }) => {
                        calling.returned();
                        Ok(ended)
                    }
                    () = self.work.wait_gave_up() => Err(EndInterruption::GivenUp(ShardStopReason::Failed)),
                    why = self.wait_for_drop_order() => match why {
                        ShardStopReason::Stuck => Err(EndInterruption::GivenUp(why)),
                        _ => Ok(Err(STOOD_STILL.into())),
                    },
                }
            };
            let ended = match self.run_until_deadline(grace, told).await {
                Ok(ended) => ended?,
                Err(cut) => {
                    if let EndInterruption::Late = cut {
                        let late =
                            "it did not return within the grace of the stop, and was dropped";
                        self.call_failed("shard_ended", &late.into());
                    }
                    return Err(cut);
                }
            };
            let Err(error) = ended else { return Ok(()) };
            if !error.is::<NotAccepted>() {
                self.call_failed("shard_ended", &error);
            }
            if error.is::<RestartProcessor>() {
                return Err(EndInterruption::StartOver);
            }
            self.pause_unless_stopped(grace.as_ref()).await?;
        }
    }

    /// Writes the end, and tries again where it can't be written yet.
    async fn write_end(
        &self,
        grace: &mut Option<DrainDeadline>,
        children: &[ChildShard],
    ) -> Result<SessionEnd, EndInterruption> {
        loop {
            // These are not the children of the stream that there is now.
            if let Some(DrainDeadline { why: DrainReason::StreamRecreated, .. }) = grace {
                return Err(EndInterruption::Late);
            }
            match self.run_until_deadline(grace, self.grip.end(children)).await? {
                ShardEndResult::Done => {
                    return Ok(SessionEnd::Finished(FinishReason::Ended, ShardStopReason::Ended));
                }
                ShardEndResult::Lost => return Ok(LOST),
                ShardEndResult::NotYet { why } => self.not_ended(why.to_owned()),
                ShardEndResult::Failed(error) => self.not_ended(error.to_string()),
            }
            // Who has done all that it does at the end would have to do it again elsewhere. Nobody
            // else is worth the wait: the next owner finds the end as it is.
            if self.work.has_ended() {
                self.run_until_deadline(grace, self.worker.clock.sleep(AGAIN_MS)).await?;
            } else {
                self.pause_unless_stopped(grace.as_ref()).await?;
            }
        }
    }

    /// Goes on with some work when a stop is asked for, until its deadline. Another reason to stop may
    /// come meanwhile, and another deadline with it: the last word counts.
    async fn run_until_deadline<T>(
        &self,
        grace: &mut Option<DrainDeadline>,
        work: impl Future<Output = T>,
    ) -> Result<T, EndInterruption> {
        let mut work = pin!(work);
        loop {
            let deadline_ms = grace.as_ref().map_or(u64::MAX, |grace| grace.deadline_ms);
            tokio::select! {
                biased;
                stop = self.grip.wait_for_stop() => {
                    let StopReason::Drain { deadline_ms, why } = stop else { return Err(EndInterruption::Stop(stop)) };
                    self.work.begin_stop();
                    *grace = Some(DrainDeadline { deadline_ms, why });
                }
                done = &mut work => return Ok(done),
                () = self.worker.clock.sleep_until(deadline_ms), if grace.is_some() => {
                    return Err(EndInterruption::Late);
                }
            }
        }
    }

    /// The pause before something is tried again, which a stop ends.
    async fn pause_unless_stopped(
        &self,
        grace: Option<&DrainDeadline>,
    ) -> Result<(), EndInterruption> {
        if let Some(grace) = grace {
            return Err(EndInterruption::Stop(grace.clone().into()));
        }
        tokio::select! {
            biased;
            stop = self.grip.wait_for_stop() => Err(EndInterruption::Stop(stop)),
            () = self.worker.clock.sleep(AGAIN_MS) => Ok(()),
        }
    }

    fn not_ended(&self, error: String) {
        let shard = Arc::clone(&self.shard);
        self.worker.events.emit(ShardEvent::CheckpointFailed { shard, error });
    }

    /// The service says that it has no such shard.
    pub(super) async fn resolve_missing(&mut self, session: &mut Session) -> SessionEnd {
        match self.grip.resolve_missing().await {
            MissingShardResult::NotProven => SessionEnd::Restart,
            MissingShardResult::Ended => {
                SessionEnd::Finished(FinishReason::Ended, ShardStopReason::Missing)
            }
            MissingShardResult::Lost => LOST,
            // A service that errs for a moment costs no duplicates.
            MissingShardResult::StreamReplaced | MissingShardResult::Failed(_) => {
                self.fail(session).await
            }
        }
    }
}
