//! Lanes: each hands its records to the handler one after another, and tries again what failed.

use super::Worker;
use super::budget::Room;
use super::handler::{Handler, attempt};
use super::park::{OnError, ParkFile};
use super::progress::Progress;
use crate::event::ShardEvent;
use crate::lease::{Grip, LeaseStore};
use crate::stream::api::StreamApi;
use anabranch_model::lease::LeaseKey;
use anabranch_model::record::UserRecord;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// The pause before a record that could not be parked is parked again.
const PARK_PAUSE_MS: u64 = 1_000;

/// Records of one lane, in order.
#[derive(Debug)]
pub(super) struct Chunk {
    /// The records.
    pub(super) records: Vec<UserRecord>,
    /// The memory that they share with the rest of their reply.
    #[expect(dead_code, reason = "held until the records are done")]
    pub(super) room: Arc<Room>,
}

/// One lane of a shard.
pub(super) struct Lane<A: StreamApi, S: LeaseStore, H> {
    /// Which lane.
    pub(super) index: usize,
    /// What all shards of the worker share.
    pub(super) worker: Arc<Worker<A, H>>,
    /// The right to deliver.
    pub(super) grip: Arc<Grip<S, A>>,
    /// Which shard.
    pub(super) shard: Arc<LeaseKey>,
    /// Where the shard stands.
    pub(super) progress: Arc<Progress>,
    /// Ends the lane after the call that it is in.
    pub(super) stop: CancellationToken,
}

/// What became of records.
enum Delivered {
    /// The handler has done them, or they are parked.
    Done,
    /// The lane is to stop. They are not done.
    Stopped,
}

impl<A: StreamApi, S: LeaseStore, H: Handler> Lane<A, S, H> {
    /// Delivers until there are no more records, or until it is told to stop.
    pub(super) async fn run(self, mut chunks: mpsc::Receiver<Chunk>) {
        let most = self.worker.handler.most().max(1);
        loop {
            let chunk = tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                chunk = chunks.recv() => chunk,
            };
            let Some(chunk) = chunk else { return };
            for records in chunk.records.chunks(most) {
                match self.deliver(records).await {
                    Delivered::Stopped => return,
                    Delivered::Done => {
                        let last = records.last().expect("no chunk is empty");
                        self.progress.done(self.index, last.position(), records.len());
                    }
                }
            }
        }
    }

    /// Delivers records of one call until they are done.
    async fn deliver(&self, records: &[UserRecord]) -> Delivered {
        let mut failures = 0_u32;
        loop {
            if self.stop.is_cancelled() {
                return Delivered::Stopped;
            }
            if !self.grip.may_deliver() {
                let may = tokio::select! {
                    biased;
                    () = self.stop.cancelled() => false,
                    may = self.grip.until_may_deliver() => may,
                };
                if may {
                    continue;
                }
                return Delivered::Stopped;
            }
            // That check and the handler's call are one poll: no await comes between them.
            let error = match attempt(&self.worker.handler, &self.shard, records).await {
                Ok(()) => return Delivered::Done,
                Err(error) => error.to_string(),
            };
            failures = failures.saturating_add(1);
            if let OnError::Park { attempts, file } = &self.worker.settings.on_error
                && failures >= *attempts
            {
                return self.give_up(records, error, file).await;
            }
            let worker = &self.worker;
            let pause_ms = worker.settings.retry.wait_ms(failures, worker.chance.bits());
            let (shard, at) = (Arc::clone(&self.shard), records[0].position());
            worker.events.emit(ShardEvent::HandlerFailed { shard, at, error, failures, pause_ms });
            self.pause(pause_ms).await;
        }
    }

    /// The handler failed too often. Records of one call are tried one by one first, so that only
    /// those which fail by themselves are parked.
    async fn give_up(&self, records: &[UserRecord], error: String, file: &ParkFile) -> Delivered {
        let [record] = records else {
            for record in records {
                let one = std::slice::from_ref(record);
                if let Delivered::Stopped = Box::pin(self.deliver(one)).await {
                    return Delivered::Stopped;
                }
            }
            return Delivered::Done;
        };
        let (worker, at) = (&self.worker, record.position());
        loop {
            let shard = Arc::clone(&self.shard);
            match file.park(&shard, record, &error).await {
                Ok(()) => {
                    worker.events.emit(ShardEvent::Parked { shard, at, error });
                    return Delivered::Done;
                }
                Err(refused) => {
                    let error = refused.to_string();
                    worker.events.emit(ShardEvent::ParkFailed { shard, at, error });
                    self.pause(PARK_PAUSE_MS).await;
                }
            }
            if self.stop.is_cancelled() {
                return Delivered::Stopped;
            }
        }
    }

    async fn pause(&self, ms: u64) {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => {}
            () = self.worker.clock.sleep(ms) => {}
        }
    }
}
