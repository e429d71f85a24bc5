//! Lanes: each hands its records to the handler one after another, and tries again what failed.

use super::memory::{ChunkReservation, ReplyReservation};
use crate::consumer::WorkerContext;
use crate::consumer::dead_letter::{DeadLetterQueue, OnError};
use crate::consumer::health::telemetry::{CallCounter, HandledCount, ShardTelemetry};
use crate::consumer::modes::closure::{Interrupted, attempt_or_wait};
use crate::consumer::modes::processor::RestartProcessor;
use crate::consumer::modes::{HandlerCall, NotAccepted, ProcessingMode, Work};
use crate::consumer::progress::Progress;
use crate::consumer::shard::PreviousLane;
use crate::consumer::shard::interrupted::CallGuard;
use crate::consumer::stop_signal::StopSignal;
use crate::event::ShardEvent;
use crate::lease::{LeaseHandle, LeaseStore};
use crate::stream::api::StreamApi;
use anabranch_model::lease::LeaseKey;
use anabranch_model::position::Position;
use anabranch_model::record::UserRecord;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The pause before a record that could not be parked is parked again.
const PARK_PAUSE_MS: u64 = 1_000;

/// Records of one lane, in order. Empty only where somebody wants to know of reads without records.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// Which shard.
    pub(crate) shard: Arc<LeaseKey>,
    /// The records.
    pub(crate) records: Vec<UserRecord>,
    /// How far the last of them is behind the shard's newest, in milliseconds.
    pub(crate) behind_ms: u64,
    /// Whether the closed shard has no more.
    pub(crate) at_end: bool,
    /// Whether more of the shard is there, or may be: the rest of their reply, or what comes behind it.
    pub(crate) more: bool,
    /// The memory that they share with the rest of their reply.
    pub(in crate::consumer) room: Option<Arc<ReplyReservation>>,
    /// The memory that they take by themselves.
    #[expect(dead_code, reason = "held until the records are done")]
    pub(in crate::consumer) own: Option<ChunkReservation>,
    /// Its place in front of the lane, until the lane takes it.
    pub(in crate::consumer) place: Option<OwnedSemaphorePermit>,
}

/// The way to a lane. It holds as many records as may wait there, however few come at a time.
#[derive(Clone, Debug)]
pub(in crate::consumer) struct LaneSender {
    /// Where the records go.
    chunks: mpsc::Sender<Chunk>,
    /// A permit for each record that may wait, where records are counted.
    places: Option<Arc<Semaphore>>,
    /// How many there are.
    most: usize,
}

/// A way that is open only as long as somebody else keeps it so.
#[derive(Debug)]
pub(in crate::consumer) struct WeakLaneSender {
    chunks: mpsc::WeakSender<Chunk>,
    places: Option<Arc<Semaphore>>,
    most: usize,
}

impl LaneSender {
    /// A way on which so many records may wait, and its end.
    pub(in crate::consumer) fn bounded_by_records(most: usize) -> (Self, mpsc::Receiver<Chunk>) {
        let most = most.max(1);
        let (chunks, end) = mpsc::channel(most);
        (Self { chunks, places: Some(Arc::new(Semaphore::new(most))), most }, end)
    }

    /// A way that somebody else bounds.
    pub(in crate::consumer) fn bounded_by_chunks(chunks: mpsc::Sender<Chunk>) -> Self {
        Self { chunks, places: None, most: 0 }
    }

    /// Waits for places, and sends. `false` if nobody takes them.
    pub(in crate::consumer) async fn send(&self, mut chunk: Chunk) -> bool {
        if let Some(places) = &self.places {
            // A chunk larger than all places passes alone.
            let count = u32::try_from(chunk.records.len().min(self.most)).unwrap_or(u32::MAX);
            let place = Arc::clone(places).acquire_many_owned(count);
            let place = tokio::select! {
                biased;
                () = self.chunks.closed() => return false,
                place = place => place,
            };
            chunk.place = Some(place.expect("the places are never closed"));
        }
        self.chunks.send(chunk).await.is_ok()
    }

    pub(in crate::consumer) fn downgrade(&self) -> WeakLaneSender {
        let (chunks, places) = (self.chunks.downgrade(), self.places.clone());
        WeakLaneSender { chunks, places, most: self.most }
    }
}

impl WeakLaneSender {
    /// The way, if it is still open.
    pub(in crate::consumer) fn upgrade(&self) -> Option<LaneSender> {
        let (chunks, places) = (self.chunks.upgrade()?, self.places.clone());
        Some(LaneSender { chunks, places, most: self.most })
    }
}

/// One lane of a shard.
pub(in crate::consumer) struct Lane<A: StreamApi, S: LeaseStore, H: ProcessingMode<S>> {
    /// Which lane.
    pub(in crate::consumer) index: usize,
    /// What all shards of the worker share.
    pub(in crate::consumer) worker: Arc<WorkerContext<A, H>>,
    /// The user's code.
    pub(in crate::consumer) work: Arc<H::ShardWork>,
    /// The right to deliver.
    pub(in crate::consumer) grip: Arc<LeaseHandle<S, A>>,
    /// Which shard.
    pub(in crate::consumer) shard: Arc<LeaseKey>,
    /// Where the shard stands.
    pub(in crate::consumer) progress: Arc<Progress>,
    /// The signs of life of the shard.
    pub(in crate::consumer) vitals: Arc<ShardTelemetry>,
    /// That of this lane.
    pub(in crate::consumer) sign: CallCounter,
    /// Ends the lane after the call that it is in.
    pub(in crate::consumer) stop: StopSignal,
    /// Says that the user's code can't go on.
    pub(in crate::consumer) start_over: CancellationToken,
    /// The lane of an earlier session whose handler still runs. This one delivers after it.
    pub(in crate::consumer) before: Option<PreviousLane>,
    /// Tells, dropped with the lane, that it delivers no more.
    pub(in crate::consumer) _over: DropGuard,
}

/// What became of records.
enum DeliveryResult {
    /// The handler has done them, or they are parked.
    Done,
    /// The same, one by one, and each was noted as done then.
    DoneOneByOne,
    /// The lane is to stop. They are not done.
    Stopped,
}

impl<A: StreamApi, S: LeaseStore, H: ProcessingMode<S>> Lane<A, S, H> {
    /// Delivers until there are no more records, or until it is told to stop.
    pub(in crate::consumer) async fn run(self, mut chunks: mpsc::Receiver<Chunk>) {
        let most = self.worker.handler.max_records().max(1);
        let Some(done) = self.await_predecessor().await else { return };
        let mut handled = HandledCount::default();
        loop {
            let chunk = tokio::select! {
                biased;
                () = self.stop.wait() => return,
                chunk = chunks.recv() => chunk,
            };
            let Some(mut chunk) = chunk else { return };
            chunk.place = None;
            let begun_ms = self.worker.clock.now_ms();
            let delivered = if chunk.records.is_empty() {
                self.deliver(self.call(&chunk, &[]), &mut handled).await
            } else {
                self.skip(&mut chunk, done);
                self.deliver_chunk(&chunk, most, &mut handled).await
            };
            self.vitals.handled(&mut handled);
            let DeliveryResult::Done = delivered else { return };
            if !chunk.records.is_empty() {
                self.vitals.note_call_time(self.worker.clock.now_ms().saturating_sub(begun_ms));
            }
        }
    }

    /// Delivers the records of a chunk, call by call.
    async fn deliver_chunk(
        &self,
        chunk: &Chunk,
        most: usize,
        handled: &mut HandledCount,
    ) -> DeliveryResult {
        for records in chunk.records.chunks(most) {
            let call = self.call(chunk, records);
            match self.deliver(call, handled).await {
                DeliveryResult::Done => self.record_done(records, handled),
                DeliveryResult::DoneOneByOne => {}
                DeliveryResult::Stopped => return DeliveryResult::Stopped,
            }
        }
        DeliveryResult::Done
    }

    fn record_done(&self, records: &[UserRecord], handled: &mut HandledCount) {
        let last = records.last().expect("no part of a chunk is empty");
        handled.add(records);
        self.progress.done(self.index, (last.sequence, last.sub), records.len());
    }

    /// Waits for the lane that this one follows. Returns up to where that was done, or `None` if
    /// this one is to stop.
    async fn await_predecessor(&self) -> Option<Position> {
        let Some(before) = &self.before else { return Some(Position::AtTimestamp(0)) };
        let done = tokio::select! {
            biased;
            () = self.stop.wait() => return None,
            done = before.over() => done,
        };
        self.progress.catch_up(self.index, done);
        // Its last call may have been dropped when it let go of its thread.
        self.sign.idle();
        Some(done)
    }

    /// Leaves out what the lane before has done.
    fn skip(&self, chunk: &mut Chunk, done: Position) {
        let count = chunk.records.partition_point(|record| record.position() <= done);
        if let Some(last) = chunk.records[..count].last() {
            self.progress.done(self.index, (last.sequence, last.sub), count);
            chunk.records.drain(..count);
        }
    }

    /// The call for some records of a chunk.
    fn call<'a>(&'a self, chunk: &'a Chunk, records: &'a [UserRecord]) -> HandlerCall<'a> {
        let last = |records: &[UserRecord]| records.last().map(UserRecord::position);
        let at_end = chunk.at_end && last(records) == last(&chunk.records);
        let (lane, progress, room) = (self.index, &*self.progress, chunk.room.as_ref());
        HandlerCall {
            lane,
            progress,
            records,
            behind_ms: chunk.behind_ms,
            at_end,
            reservation: room,
        }
    }

    /// Delivers the records of one call until they are done.
    async fn deliver(&self, call: HandlerCall<'_>, handled: &mut HandledCount) -> DeliveryResult {
        let (mut failures, mut attempts_made) = (0_u32, 0_u32);
        loop {
            let now_ms = self.worker.clock.now_ms();
            self.vitals.handled_by(handled, now_ms);
            if !self.may_deliver_at(now_ms) && !self.may_deliver().await {
                return DeliveryResult::Stopped;
            }
            // The last look of that and the handler's call are one poll: nothing waits in between.
            self.sign.called();
            self.vitals.note_delivery(call.records);
            let in_hand = CallGuard::new(&self.worker.interrupted_calls, &self.shard, call.records);
            let waits = || self.vitals.handled(handled);
            let attempted = attempt_or_wait(async { self.work.handle(call).await }, waits).await;
            in_hand.returned();
            self.sign.returned();
            let error = match attempted {
                Ok(()) => return DeliveryResult::Done,
                Err(error) if error.is::<RestartProcessor>() => {
                    self.start_over.cancel();
                    return DeliveryResult::Stopped;
                }
                Err(error) if error.is::<NotAccepted>() => return DeliveryResult::Stopped,
                Err(error) => error,
            };
            failures = failures.saturating_add(1);
            // What keeps the handler from its work says nothing of the records.
            let counts = !error.is::<Interrupted>();
            attempts_made = attempts_made.saturating_add(u32::from(counts));
            let error = error.to_string();
            if let OnError::DeadLetter { attempts, to } = &self.worker.settings.on_error
                && counts
                && attempts_made >= *attempts
            {
                return self.give_up(call, error, to, handled).await;
            }
            let worker = &self.worker;
            let pause_ms = worker.settings.retry.wait_ms(failures, worker.chance.bits());
            let shard = Arc::clone(&self.shard);
            let at = call.records.first().map_or(Position::TrimHorizon, UserRecord::position);
            worker.events.emit(ShardEvent::HandlerFailed { shard, at, error, failures, pause_ms });
            self.pause(pause_ms).await;
        }
    }

    /// The handler failed too often. Records of one call are tried one by one first, so that only
    /// those which fail by themselves are parked. What is done by then stays done when the lane stops.
    async fn give_up(
        &self,
        call: HandlerCall<'_>,
        error: String,
        to: &DeadLetterQueue,
        handled: &mut HandledCount,
    ) -> DeliveryResult {
        let [record] = call.records else {
            for (at, record) in call.records.iter().enumerate() {
                let records = std::slice::from_ref(record);
                let at_end = call.at_end && at + 1 == call.records.len();
                let one = HandlerCall { records, at_end, ..call };
                if let DeliveryResult::Stopped = Box::pin(self.deliver(one, handled)).await {
                    return DeliveryResult::Stopped;
                }
                self.record_done(records, handled);
            }
            return DeliveryResult::DoneOneByOne;
        };
        let (worker, at) = (&self.worker, record.position());
        loop {
            // The handler's call may have outlived the lease. A record of another owner is not
            // ours to park, and one that failed because of the stop has no fault of its own.
            if !self.may_deliver().await {
                return DeliveryResult::Stopped;
            }
            let shard = Arc::clone(&self.shard);
            match to.store(&*worker.api, &shard, record, &error).await {
                Ok(()) => {
                    worker.events.emit(ShardEvent::DeadLettered { shard, at, error });
                    return DeliveryResult::Done;
                }
                Err(refused) => {
                    let error = refused.to_string();
                    worker.events.emit(ShardEvent::DeadLetterFailed { shard, at, error });
                    self.pause(PARK_PAUSE_MS).await;
                }
            }
        }
    }

    /// Whether records may be delivered in this very poll.
    #[inline]
    fn may_deliver_at(&self, now_ms: u64) -> bool {
        !self.stop.is_set() && self.grip.may_deliver_at(now_ms)
    }

    /// Waits while it is in doubt whether the shard is still this worker's. `false` if the lane is
    /// to stop.
    async fn may_deliver(&self) -> bool {
        loop {
            if self.stop.is_set() {
                return false;
            }
            if self.grip.may_deliver() {
                return true;
            }
            let may = tokio::select! {
                biased;
                () = self.stop.wait() => false,
                may = self.grip.wait_until_may_deliver() => may,
            };
            if !may {
                return false;
            }
        }
    }

    async fn pause(&self, ms: u64) {
        tokio::select! {
            biased;
            () = self.stop.wait() => {}
            () = self.worker.clock.sleep(ms) => {}
        }
    }
}
