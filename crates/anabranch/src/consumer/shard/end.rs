//! The end of a shard: every record is done, or the service no longer has the shard.

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

/// Reason why the end of a shard was not written.
enum EndInterruption {
    /// The reading must stop, and nothing more can be done for the end.
    Stop(StopReason),
    /// The grace period of a requested stop is over.
    Late,
    /// The user's code accepts no more of the shard, or the watchdog wants it released.
    GivenUp(ShardStopReason),
    /// The user's code cannot continue.
    StartOver,
}

/// A requested stop, during which work in progress may still finish.
#[derive(Clone)]
struct DrainDeadline {
    /// Deadline by the worker's clock, in milliseconds.
    deadline_ms: u64,
    /// Reason of the stop.
    why: DrainReason,
}

impl From<DrainDeadline> for StopReason {
    fn from(DrainDeadline { deadline_ms, why }: DrainDeadline) -> Self {
        Self::Drain { deadline_ms, why }
    }
}

impl<A: StreamApi, S: LeaseStore, H: ProcessingMode<S>> ShardReader<A, S, H> {
    /// Runs the user's callback after the last record, and writes the end of the shard. Both may
    /// continue during the grace period of a stop, like the calls of lanes.
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

    /// Calls the user's code until it has completed the end of the shard.
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
                        let late = "it did not return within the grace period, and was interrupted";
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

    /// Writes the end of the shard, and retries while it cannot be written yet.
    async fn write_end(
        &self,
        grace: &mut Option<DrainDeadline>,
        children: &[ChildShard],
    ) -> Result<SessionEnd, EndInterruption> {
        loop {
            // The children belong to a stream that no longer exists.
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
            // If the user's code has completed the end, another owner would have to repeat that, so
            // this continues until the deadline. Otherwise a pending stop takes effect at once: the
            // next owner finds the end unchanged.
            if self.work.has_ended() {
                self.run_until_deadline(grace, self.worker.clock.sleep(AGAIN_MS)).await?;
            } else {
                self.pause_unless_stopped(grace.as_ref()).await?;
            }
        }
    }

    /// Continues `work` after a stop is requested, until its deadline. Another stop reason may come
    /// meanwhile, with another deadline; the last one counts.
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

    /// Pauses before a retry. A stop interrupts the pause.
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

    /// Handles a shard that does not exist according to the service.
    pub(super) async fn resolve_missing(&mut self, session: &mut Session) -> SessionEnd {
        match self.grip.resolve_missing().await {
            MissingShardResult::NotProven => SessionEnd::Restart,
            MissingShardResult::Ended => {
                SessionEnd::Finished(FinishReason::Ended, ShardStopReason::Missing)
            }
            MissingShardResult::Lost => LOST,
            // Checkpointing first avoids duplicates if the service was wrong only for a moment.
            MissingShardResult::StreamReplaced | MissingShardResult::Failed(_) => {
                self.fail(session).await
            }
        }
    }
}
