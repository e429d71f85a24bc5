//! The end of a shard: every record is done, or the service no longer has it.

use super::stopping::DRAINED;
use super::{AGAIN_MS, LOST, Reader, STOOD_STILL, Session, SessionEnd};
use crate::consumer::checkpoint::Tenancy;
use crate::consumer::handler::attempt;
use crate::consumer::processor::StartOver;
use crate::consumer::shape::{NotTaken, Shape, Work};
use crate::event::{ShardEvent, ShardStop};
use crate::lease::{DrainReason, ShardEndResult, MissingShardResult, FinishReason, LeaseStore, StopReason};
use crate::stream::api::{ChildShard, StreamApi};
use std::pin::pin;
use std::sync::Arc;

/// What comes before the end of a shard is written.
enum Cut {
    /// The reading is to stop, and nothing more can be done for the end.
    Stop(StopReason),
    /// A stop was asked for, and its grace is over.
    Late,
    /// The user's code takes no more of the shard, or the watcher wants it given back.
    GivenUp(ShardStop),
    /// The user's code can't go on.
    StartOver,
}

/// A stop that was asked for, while what was begun may still be done.
#[derive(Clone)]
struct Grace {
    /// Until when.
    deadline_ms: u64,
    /// What it was asked for.
    why: DrainReason,
}

impl From<Grace> for StopReason {
    fn from(Grace { deadline_ms, why }: Grace) -> Self {
        Self::Drain { deadline_ms, why }
    }
}

impl<A: StreamApi, S: LeaseStore, H: Shape<S>> Reader<A, S, H> {
    /// Every record is done: has the user's code know, and writes the shard's end. A stop leaves
    /// both its grace, as it does the calls of lanes.
    pub(super) async fn end(
        &mut self,
        session: &mut Session,
        children: &[ChildShard],
    ) -> SessionEnd {
        let mut grace = None;
        let ended = match self.tell_end(&mut grace).await {
            Ok(()) => self.write_end(&mut grace, children).await,
            Err(cut) => Err(cut),
        };
        let (cut, stop) = match ended {
            Ok(end) => return end,
            Err(Cut::Stop(stop)) => return self.stop(session, stop).await,
            Err(cut) => (cut, grace.map(StopReason::from)),
        };
        match (cut, stop) {
            (Cut::StartOver, None) => SessionEnd::StartOver,
            (Cut::StartOver, Some(stop)) => {
                session.start_over.cancel();
                self.stop(session, stop).await
            }
            (Cut::GivenUp(_), Some(stop)) => self.stop(session, stop).await,
            (Cut::GivenUp(why), None) => match self.note_last(session).await {
                Tenancy::Kept => SessionEnd::Over(FinishReason::Failed, why),
                Tenancy::Lost => LOST,
            },
            (Cut::Late | Cut::Stop(_), _) => match self.note_last(session).await {
                Tenancy::Kept => DRAINED,
                Tenancy::Lost => LOST,
            },
        }
    }

    /// Tells the user's code until it has done what it wants to do at the end.
    async fn tell_end(&self, grace: &mut Option<Grace>) -> Result<(), Cut> {
        loop {
            let calling = self.vitals.calling();
            let told = async {
                tokio::select! {
                    biased;
                    ended = attempt(async { self.work.ended().await }) => {
                        calling.returned();
                        Ok(ended)
                    }
                    () = self.work.gives_up() => Err(Cut::GivenUp(ShardStop::Failed)),
                    why = self.told_to_drop() => match why {
                        ShardStop::Stuck => Err(Cut::GivenUp(why)),
                        _ => Ok(Err(STOOD_STILL.into())),
                    },
                }
            };
            let ended = match self.within(grace, told).await {
                Ok(ended) => ended?,
                Err(cut) => {
                    if let Cut::Late = cut {
                        let late =
                            "it did not return within the grace of the stop, and was dropped";
                        self.call_failed("shard_ended", &late.into());
                    }
                    return Err(cut);
                }
            };
            let Err(error) = ended else { return Ok(()) };
            if !error.is::<NotTaken>() {
                self.call_failed("shard_ended", &error);
            }
            if error.is::<StartOver>() {
                return Err(Cut::StartOver);
            }
            self.pause_unless_stopped(grace.as_ref()).await?;
        }
    }

    /// Writes the end, and tries again where it can't be written yet.
    async fn write_end(
        &self,
        grace: &mut Option<Grace>,
        children: &[ChildShard],
    ) -> Result<SessionEnd, Cut> {
        loop {
            // These are not the children of the stream that there is now.
            if let Some(Grace { why: DrainReason::StreamRecreated, .. }) = grace {
                return Err(Cut::Late);
            }
            match self.within(grace, self.grip.end(children)).await? {
                ShardEndResult::Done => return Ok(SessionEnd::Over(FinishReason::Ended, ShardStop::Ended)),
                ShardEndResult::Lost => return Ok(LOST),
                ShardEndResult::NotYet { why } => self.not_ended(why.to_owned()),
                ShardEndResult::Failed(error) => self.not_ended(error.to_string()),
            }
            // Who has done all that it does at the end would have to do it again elsewhere. Nobody
            // else is worth the wait: the next owner finds the end as it is.
            if self.work.has_ended() {
                self.within(grace, self.worker.clock.sleep(AGAIN_MS)).await?;
            } else {
                self.pause_unless_stopped(grace.as_ref()).await?;
            }
        }
    }

    /// Goes on with some work when a stop is asked for, until its deadline. Another reason to stop may
    /// come meanwhile, and another deadline with it: the last word counts.
    async fn within<T>(
        &self,
        grace: &mut Option<Grace>,
        work: impl Future<Output = T>,
    ) -> Result<T, Cut> {
        let mut work = pin!(work);
        loop {
            let deadline_ms = grace.as_ref().map_or(u64::MAX, |grace| grace.deadline_ms);
            tokio::select! {
                biased;
                stop = self.grip.wait_for_stop() => {
                    let StopReason::Drain { deadline_ms, why } = stop else { return Err(Cut::Stop(stop)) };
                    self.work.stop_soon();
                    *grace = Some(Grace { deadline_ms, why });
                }
                done = &mut work => return Ok(done),
                () = self.worker.clock.sleep_until(deadline_ms), if grace.is_some() => {
                    return Err(Cut::Late);
                }
            }
        }
    }

    /// The pause before something is tried again, which a stop ends.
    async fn pause_unless_stopped(&self, grace: Option<&Grace>) -> Result<(), Cut> {
        if let Some(grace) = grace {
            return Err(Cut::Stop(grace.clone().into()));
        }
        tokio::select! {
            biased;
            stop = self.grip.wait_for_stop() => Err(Cut::Stop(stop)),
            () = self.worker.clock.sleep(AGAIN_MS) => Ok(()),
        }
    }

    fn not_ended(&self, error: String) {
        let shard = Arc::clone(&self.shard);
        self.worker.events.emit(ShardEvent::CheckpointFailed { shard, error });
    }

    /// The service says that it has no such shard.
    pub(super) async fn gone(&mut self, session: &mut Session) -> SessionEnd {
        match self.grip.resolve_missing().await {
            MissingShardResult::NotProven => SessionEnd::Again,
            MissingShardResult::Ended => SessionEnd::Over(FinishReason::Ended, ShardStop::Gone),
            MissingShardResult::Lost => LOST,
            // A service that errs for a moment costs no duplicates.
            MissingShardResult::StreamReplaced | MissingShardResult::Failed(_) => self.fail(session).await,
        }
    }
}
