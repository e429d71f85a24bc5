//! Lanes: each passes its records to the handler one call after another, and retries failed calls.

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
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Pause before another attempt to store a dead letter.
const PARK_PAUSE_MS: u64 = 1_000;

/// Records of one lane, in order. Empty only for a read without records, if the processing mode
/// wants to see those.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) shard: Arc<LeaseKey>,
    pub(crate) records: Vec<UserRecord>,
    /// Distance of the last record from the tip of the shard, in milliseconds.
    pub(crate) behind_ms: u64,
    /// True if the read says that the shard is closed and has no more records.
    pub(crate) at_end: bool,
    /// True if more records of the shard are available, or may be: the rest of the reply, or
    /// records after it.
    pub(crate) more: bool,
    /// Memory reservation of the whole reply.
    pub(in crate::consumer) room: Option<Arc<ReplyReservation>>,
    /// Memory reservation of this chunk.
    #[expect(dead_code, reason = "held until the records are done")]
    pub(in crate::consumer) own: Option<ChunkReservation>,
    /// Permits of the lane's queue, until the lane receives the chunk.
    pub(in crate::consumer) place: Option<OwnedSemaphorePermit>,
}

/// Bounded sender to a lane. The bound counts records, however few each chunk has.
#[derive(Clone, Debug)]
pub(in crate::consumer) struct LaneSender {
    chunks: mpsc::Sender<Chunk>,
    /// One permit per queued record, if the queue is bounded by records.
    places: Option<Arc<Semaphore>>,
    /// Total number of permits.
    most: usize,
}

/// A sender that does not keep the lane's channel open.
#[derive(Debug)]
pub(in crate::consumer) struct WeakLaneSender {
    chunks: mpsc::WeakSender<Chunk>,
    places: Option<Arc<Semaphore>>,
    most: usize,
}

impl LaneSender {
    /// Creates a queue of at most `most` records (0 counts as 1), and returns both ends.
    pub(in crate::consumer) fn bounded_by_records(most: usize) -> (Self, mpsc::Receiver<Chunk>) {
        let most = most.max(1);
        let (chunks, end) = mpsc::channel(most);
        (Self { chunks, places: Some(Arc::new(Semaphore::new(most))), most }, end)
    }

    /// Wraps a channel that is bounded by chunks and not by records.
    pub(in crate::consumer) fn bounded_by_chunks(chunks: mpsc::Sender<Chunk>) -> Self {
        Self { chunks, places: None, most: 0 }
    }

    /// Waits for permits and sends the chunk. Returns false if the receiver is gone.
    pub(in crate::consumer) async fn send(&self, mut chunk: Chunk) -> bool {
        if let Some(places) = &self.places {
            // A chunk larger than the queue takes all permits.
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
    /// Returns a sender if the channel is still open.
    pub(in crate::consumer) fn upgrade(&self) -> Option<LaneSender> {
        let (chunks, places) = (self.chunks.upgrade()?, self.places.clone());
        Some(LaneSender { chunks, places, most: self.most })
    }
}

/// One lane of a shard: the task that delivers its records.
pub(in crate::consumer) struct Lane<A: StreamApi, S: LeaseStore, H: ProcessingMode<S>> {
    pub(in crate::consumer) index: usize,
    pub(in crate::consumer) worker: Arc<WorkerContext<A, H>>,
    /// The user's code for this shard.
    pub(in crate::consumer) work: Arc<H::ShardWork>,
    pub(in crate::consumer) grip: Arc<LeaseHandle<S, A>>,
    pub(in crate::consumer) shard: Arc<LeaseKey>,
    pub(in crate::consumer) progress: Arc<Progress>,
    pub(in crate::consumer) vitals: Arc<ShardTelemetry>,
    /// Call counter of this lane, read by the watchdog.
    pub(in crate::consumer) sign: CallCounter,
    /// Ends the lane after its current call.
    pub(in crate::consumer) stop: StopSignal,
    /// Cancelled when the user's code cannot continue and must be restarted.
    pub(in crate::consumer) start_over: CancellationToken,
    /// A lane of an earlier session whose handler still runs. This lane delivers after it.
    pub(in crate::consumer) before: Option<PreviousLane>,
    /// Signals, when dropped with the lane, that the lane delivers no more.
    pub(in crate::consumer) _over: DropGuard,
}

/// Result of delivering records.
enum DeliveryResult {
    /// The handler has done the records, or they were stored as dead letters.
    Done,
    /// As `Done`, but delivered one by one, and each record is already marked as done.
    DoneOneByOne,
    /// The lane must stop. The records are not done.
    Stopped,
}

impl<A: StreamApi, S: LeaseStore, H: ProcessingMode<S>> Lane<A, S, H> {
    /// Delivers records until the channel closes or the lane is stopped.
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

    /// Delivers the records of a chunk in calls of at most `most` records.
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

    /// Waits for the lane that this one follows. Returns the position up to which that lane was
    /// done, or `None` if this lane is to stop.
    async fn await_predecessor(&self) -> Option<Position> {
        let Some(before) = &self.before else { return Some(Position::AtTimestamp(0)) };
        let done = tokio::select! {
            biased;
            () = self.stop.wait() => return None,
            done = before.over() => done,
        };
        self.progress.catch_up(self.index, done);
        // The predecessor's last call may have been dropped as soon as it yielded its thread, so
        // its counter may still show a running call.
        self.sign.idle();
        Some(done)
    }

    /// Removes the records that the predecessor has done.
    fn skip(&self, chunk: &mut Chunk, done: Position) {
        let count = chunk.records.partition_point(|record| record.position() <= done);
        if let Some(last) = chunk.records[..count].last() {
            self.progress.done(self.index, (last.sequence, last.sub), count);
            chunk.records.drain(..count);
        }
    }

    /// Builds the call for some records of a chunk.
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

    /// Calls the handler until the records are done, with pauses between failed attempts.
    async fn deliver(&self, call: HandlerCall<'_>, handled: &mut HandledCount) -> DeliveryResult {
        let (mut failures, mut attempts_made) = (0_u32, 0_u32);
        loop {
            let now_ms = self.worker.clock.now_ms();
            self.vitals.handled_by(handled, now_ms);
            if !self.may_deliver_at(now_ms) && !self.may_deliver().await {
                return DeliveryResult::Stopped;
            }
            // The check above and the first poll of the handler happen in the same poll: there is
            // no await in between.
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
            // An interruption says nothing about the records, so it does not count as an attempt.
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
            let retry_in = Duration::from_millis(pause_ms);
            worker.events.emit(ShardEvent::HandlerFailed { shard, at, error, failures, retry_in });
            self.pause(pause_ms).await;
        }
    }

    /// Handles records whose attempts are used up. The records of one call are first delivered one
    /// by one, so that only those that fail on their own become dead letters. Records done by then
    /// stay done if the lane stops.
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
            // The handler's call may have outlived the lease. This worker must not set aside a
            // record of another owner, and a record that failed because of the stop is not at
            // fault.
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

    /// Returns true if records may be delivered in this very poll.
    #[inline]
    fn may_deliver_at(&self, now_ms: u64) -> bool {
        !self.stop.is_set() && self.grip.may_deliver_at(now_ms)
    }

    /// Waits while the validity of the lease is in doubt. Returns false if the lane is to stop.
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
