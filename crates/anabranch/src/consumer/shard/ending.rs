//! The end of a shard: every record is done, or the service no longer has it.

use super::{AGAIN_MS, LOST, Reader, Session, SessionEnd};
use crate::consumer::checkpoint::Tenancy;
use crate::consumer::handler::attempt;
use crate::consumer::processor::StartOver;
use crate::consumer::shape::{Shape, Work};
use crate::event::{ShardEvent, ShardStop};
use crate::lease::{Ended, Gone, How, LeaseStore};
use crate::stream::api::{ChildShard, StreamApi};
use std::sync::Arc;

impl<A: StreamApi, S: LeaseStore, H: Shape<S>> Reader<A, S, H> {
    /// Every record is done: writes the shard's end.
    pub(super) async fn end(
        &mut self,
        session: &mut Session,
        children: &[ChildShard],
    ) -> SessionEnd {
        let work = Arc::clone(&self.work);
        loop {
            let ended = tokio::select! {
                biased;
                stop = self.grip.asked_to_stop() => return self.stop(session, stop).await,
                ended = attempt(async { work.ended().await }) => ended,
                () = work.gives_up() => return match self.note(session).await {
                    Tenancy::Kept => SessionEnd::Over(How::Failed, ShardStop::Failed),
                    Tenancy::Lost => LOST,
                },
            };
            let Err(error) = ended else { break };
            self.call_failed("shard_ended", &error);
            if error.is::<StartOver>() {
                return SessionEnd::StartOver;
            }
            tokio::select! {
                biased;
                stop = self.grip.asked_to_stop() => return self.stop(session, stop).await,
                () = self.worker.clock.sleep(AGAIN_MS) => {}
            }
        }
        loop {
            match self.grip.end(children).await {
                Ended::Done => return SessionEnd::Over(How::Ended, ShardStop::Ended),
                Ended::Lost => return LOST,
                Ended::NotYet { why } => self.not_ended(why.to_owned()),
                Ended::Failed(error) => self.not_ended(error.to_string()),
            }
            tokio::select! {
                biased;
                stop = self.grip.asked_to_stop() => return self.stop(session, stop).await,
                () = self.worker.clock.sleep(AGAIN_MS) => {}
            }
        }
    }

    fn not_ended(&self, error: String) {
        let shard = Arc::clone(&self.shard);
        self.worker.events.emit(ShardEvent::CheckpointFailed { shard, error });
    }

    /// The service says that it has no such shard.
    pub(super) async fn gone(&self) -> SessionEnd {
        match self.grip.gone().await {
            Gone::NotProven => SessionEnd::Again,
            Gone::Ended => SessionEnd::Over(How::Ended, ShardStop::Gone),
            Gone::Lost => LOST,
            Gone::OtherStream | Gone::Failed(_) => SessionEnd::Over(How::Failed, ShardStop::Failed),
        }
    }
}
