//! The driver task: executes the actions that the producer's state machine decides on.

use super::completions::{Completions, TicketSlot};
use super::flush::FlushTracker;
use super::input_buffer::InputBuffer;
use super::put::PutSummary;
use super::queue::wake_caught;
use super::queue::{AcceptedBulk, Command, InputQueue, TakenInput, WAKE_BYTES};
use super::record::BulkRecord;
use super::report::Reporter;
use super::requests::Requester;
use crate::stream::api::StreamApi;
use anabranch_model::aggregate::digest::hash_keys;
use anabranch_model::hash::HashKey;
use anabranch_model::produce::outcome::{CompletedRecords, OutcomeKind, RejectReason};
use anabranch_model::produce::{
    Action, Machine, OfferedRecord, PutReply, RecordContent, ShardListRead, ShardListResult,
};
use anabranch_model::retry::Fault;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::task::{Id, JoinError, JoinSet};

/// Time that a small amount of input waits for more before the driver takes it, so that one wake-up
/// serves many puts.
const GATHER_MS: u64 = 1;

/// Awaited records are sent after `1 / QUIET` of the linger without a put.
const QUIET: u64 = 4;

/// The task of one producer.
pub(super) struct ProducerDriver<A> {
    /// The state machine that makes all decisions.
    machine: Machine<TicketSlot>,
    /// Makes the service calls.
    caller: Requester<A>,
    /// Queue on which puts hand over their records.
    intake: Arc<InputQueue>,
    /// Input taken from the queue. Kept to reuse its memory.
    taken: TakenInput,
    /// Pending flushes.
    batches: FlushTracker,
    /// Publishes outcomes to tickets.
    desk: Completions,
    /// Emits events and keeps the counts.
    report: Reporter,
    /// Calls in flight.
    calls: JoinSet<CallOutcome>,
    /// The purpose of each call in flight, by task.
    whose: HashMap<Id, PendingCall>,
    /// Milliseconds without a put after which awaited records are sent without further linger.
    quiet_ms: u64,
    /// Deadline of the close, and the callers waiting for it. `None` while the producer is open.
    closing: Option<(u64, Vec<oneshot::Sender<PutSummary>>)>,
}

/// A call in flight.
enum PendingCall {
    /// A put request.
    Request {
        /// Request id assigned by the machine.
        id: u64,
        /// Start of the call, by the producer's clock.
        sent_ms: u64,
        /// Number of Kinesis records in the request.
        containers: usize,
    },
    /// A read of the shard list.
    Read(ShardListRead),
}

/// Result of a call.
enum CallOutcome {
    Reply(PutReply),
    Shards(ShardListResult),
}

impl<A: StreamApi> ProducerDriver<A> {
    pub(super) fn new(
        machine: Machine<TicketSlot>,
        caller: Requester<A>,
        intake: Arc<InputQueue>,
        report: Reporter,
        linger_ms: u64,
    ) -> Self {
        Self {
            quiet_ms: linger_ms / QUIET,
            machine,
            caller,
            intake,
            taken: TakenInput::default(),
            batches: FlushTracker::new(),
            desk: Completions::default(),
            report,
            calls: JoinSet::new(),
            whose: HashMap::new(),
            closing: None,
        }
    }

    /// Runs until the producer is closed and every record has its outcome.
    pub(super) async fn run(mut self) {
        let clock = self.caller.clock.clone();
        let intake = Arc::clone(&self.intake);
        let mut gather_until_ms = None;
        let mut last_put_ms = 0;
        loop {
            let now_ms = clock.now_ms();
            let (bytes, urgent) = intake.waiting();
            let gathered = gather_until_ms.is_some_and(|until_ms| until_ms <= now_ms);
            if urgent || bytes >= WAKE_BYTES || gathered || self.closing.is_some() {
                gather_until_ms = None;
                self.take_in(now_ms);
            } else if bytes > 0 && gather_until_ms.is_none() {
                gather_until_ms = Some(now_ms + GATHER_MS);
            }
            if bytes > 0 {
                last_put_ms = now_ms;
            }
            let hurry_ms = self.skip_linger_if_awaited(last_put_ms, now_ms);
            self.step(now_ms);
            if self.close_if_over(now_ms) {
                return;
            }
            let closing = self.closing.as_ref().map(|(until_ms, _)| *until_ms);
            let wake = [self.machine.wake_at(), gather_until_ms, hurry_ms, closing];
            let wake_ms = wake.into_iter().flatten().min();
            tokio::select! {
                biased;
                Some(done) = self.calls.join_next_with_id() => self.done(done),
                () = intake.wake.wait() => {}
                () = clock.sleep_until(wake_ms.unwrap_or(u64::MAX)), if wake_ms.is_some() => {}
            }
            while let Some(done) = self.calls.try_join_next_with_id() {
                self.done(done);
            }
        }
    }

    /// Ends the linger if a caller awaits an outcome and puts have paused. Returns the time at
    /// which that may be the case.
    fn skip_linger_if_awaited(&mut self, last_put_ms: u64, now_ms: u64) -> Option<u64> {
        let bell = &self.intake.wake;
        if !bell.has_waiters() {
            return None;
        }
        let at_ms = last_put_ms.saturating_add(self.quiet_ms);
        if now_ms < at_ms {
            return Some(at_ms);
        }
        // Order matters. The flag is cleared first, so that a waiter that arrives from now on is
        // noticed. The input is then taken in, so that the awaited records are in the machine
        // before `skip_linger`.
        bell.clear_waiters();
        self.take_in(now_ms);
        self.machine.skip_linger(now_ms);
        None
    }

    /// Takes the queued records and commands and passes them to the machine, in order.
    fn take_in(&mut self, now_ms: u64) {
        let mut taken = std::mem::take(&mut self.taken);
        self.intake.take(&mut taken);
        // Comes first, so that each ticket gets an outcome whatever happens next.
        let count = self.open(&mut taken);
        self.report.received(count);
        let TakenInput { records, asks, .. } = &mut taken;
        let keys: Vec<&[u8]> = records.keys().collect();
        let hashes = hash_keys(&keys);
        let mut from = 0;
        for (at, ask) in asks.drain(..) {
            self.offer(records, &hashes, from..at, now_ms);
            self.execute_command(ask, now_ms);
            from = at;
        }
        self.offer(records, &hashes, from..records.len(), now_ms);
        records.clear();
        self.taken = taken;
    }

    /// Passes the records in `part` to the machine.
    fn offer(
        &mut self,
        records: &InputBuffer,
        hashes: &[HashKey],
        part: Range<usize>,
        now_ms: u64,
    ) {
        self.batches.add(part.len());
        let from = part.start;
        let hash = |at: usize| records.explicit(from + at).unwrap_or(hashes[from + at]);
        let offer = |at: usize| {
            let (content, explicit) = (records.content(from + at), records.explicit(from + at));
            OfferedRecord { content, hash: hash(at), is_explicit: explicit.is_some() }
        };
        let (desk, intake) = (&mut self.desk, &self.intake);
        let slots = part.map(|at| desk.slot(intake.limit.clamp(records.cost(at))));
        self.machine.put_all(slots, hash, offer, now_ms);
    }

    /// Passes the records of a bulk to the machine.
    fn offer_bulk(&mut self, put: &AcceptedBulk, now_ms: u64) {
        let Some(slots) = put.slots() else { return };
        let bulk = &put.bulk;
        let keys: Vec<&[u8]> = (0..bulk.len()).map(|at| bulk.part(at).key()).collect();
        let hashes = hash_keys(&keys);
        self.batches.add(bulk.len());
        let hash = |at: usize| bulk.explicit(at).unwrap_or(hashes[at]);
        let offer = |at: usize| {
            let BulkRecord { both, key_len } = bulk.part(at);
            let content = RecordContent::Borrowed { both, key_len };
            OfferedRecord { content, hash: hash(at), is_explicit: bulk.explicit(at).is_some() }
        };
        self.machine.put_all(slots, hash, offer, now_ms);
    }

    /// Executes one command. Errors of `send` are ignored: that caller no longer waits.
    fn execute_command(&mut self, ask: Command, now_ms: u64) {
        match ask {
            Command::Put(put) => self.offer_bulk(&put, now_ms),
            Command::Flush(done) => {
                self.batches.wait(done);
                self.machine.skip_linger(now_ms);
            }
            Command::Resume(key, done) => {
                let resumed = self.machine.resume(&key);
                wake_caught(|| {
                    let _ = done.send(resumed);
                });
            }
            Command::ResumeAll(done) => {
                let resumed = self.machine.resume_all();
                wake_caught(|| {
                    let _ = done.send(resumed);
                });
            }
            Command::StoppedKeys(done) => {
                let keys = self.machine.stopped_keys().cloned().collect();
                wake_caught(|| {
                    let _ = done.send(keys);
                });
            }
            Command::Close { until_ms, done } => {
                self.machine.skip_linger(now_ms);
                // The shortest deadline applies to all concurrent closes.
                let (until, waiters) = self.closing.get_or_insert((until_ms, Vec::new()));
                *until = until_ms.min(*until);
                waiters.push(done);
            }
        }
    }

    /// Executes all actions that the machine has at `now_ms`.
    fn step(&mut self, now_ms: u64) {
        let mut freed = 0;
        loop {
            while let Some(action) = self.machine.next_action() {
                freed += self.execute(action, now_ms);
            }
            // Published before `poll`, which takes time to build new aggregates.
            self.desk.publish();
            self.intake.limit.release(std::mem::take(&mut freed));
            let Some(action) = self.machine.poll(now_ms) else { break };
            freed += self.execute(action, now_ms);
        }
        self.batches.notify();
    }

    /// Executes one action. Returns the number of buffer bytes that it frees.
    fn execute(&mut self, action: Action<TicketSlot>, now_ms: u64) -> usize {
        match action {
            Action::Send(request) => {
                self.report.sent(&request);
                let (id, containers) = (request.id, request.entries.len());
                let call = PendingCall::Request { id, sent_ms: now_ms, containers };
                let put = self.caller.clone().put(request);
                let task = self.calls.spawn(async move { CallOutcome::Reply(put.await) });
                self.whose.insert(task.id(), call);
            }
            Action::ListShards(read) => {
                let list = self.caller.clone().shards(read.full);
                let task = self.calls.spawn(async move { CallOutcome::Shards(list.await) });
                self.whose.insert(task.id(), PendingCall::Read(read));
            }
            Action::Complete(settled) => return self.settle(settled, now_ms),
            Action::Notice(notice) => self.report.notice(notice, now_ms),
        }
        0
    }

    fn done(&mut self, done: Result<(Id, CallOutcome), JoinError>) {
        let now_ms = self.caller.clock.now_ms();
        let (id, done) = match done {
            Ok((id, done)) => (id, Some(done)),
            Err(error) => (error.id(), None),
        };
        match self.whose.remove(&id) {
            Some(PendingCall::Request { id, sent_ms, containers }) => {
                let reply = match done {
                    Some(CallOutcome::Reply(reply)) => reply,
                    // The call panicked, so its effect is unknown.
                    _ => Err((Fault::ReplyLost, "the call panicked".into())),
                };
                self.report.answered(&reply, containers, now_ms.saturating_sub(sent_ms));
                self.machine.reply(id, reply, now_ms);
            }
            Some(PendingCall::Read(read)) => {
                let list = match done {
                    Some(CallOutcome::Shards(list)) => list,
                    _ => Err(Fault::Unknown),
                };
                self.machine.shards(read, list, now_ms);
            }
            None => {}
        }
    }

    /// Finishes a close once every record has its outcome or the deadline has passed. Returns true
    /// if the driver is to end.
    fn close_if_over(&mut self, now_ms: u64) -> bool {
        let Some((until_ms, _)) = &self.closing else { return false };
        if self.machine.outstanding() > 0 && now_ms < *until_ms {
            return false;
        }
        self.machine.abandon();
        self.step(now_ms);
        for done in self.closing.take().into_iter().flat_map(|(_, waiters)| waiters) {
            wake_caught(|| {
                let _ = done.send(self.report.summary());
            });
        }
        true
    }
}

impl<A> ProducerDriver<A> {
    /// Opens a slot for every record in `taken`. Returns the number of records.
    fn open(&mut self, taken: &mut TakenInput) -> usize {
        self.desk.open(taken.groups.drain(..));
        let mut count = taken.records.len();
        for (_, ask) in &mut taken.asks {
            if let Command::Put(put) = ask {
                put.place = Some(self.desk.open_bulk(&put.cell, put.bulk.len()));
                count += put.bulk.len();
            }
        }
        count
    }

    /// Completes the tickets of `settled`. Returns the number of buffer bytes that this frees.
    fn settle(&mut self, settled: CompletedRecords<TicketSlot>, now_ms: u64) -> usize {
        self.report.completed(&settled, now_ms);
        let CompletedRecords { mut records, fate } = settled;
        self.batches.complete((0..records.len()).map(|at| records.number(at)));
        let mut freed = 0;
        let mut sub = 0;
        records.drain(|ticket, past| {
            freed += ticket.cost as usize;
            self.desk.complete(ticket, &fate, sub, past);
            sub += 1;
        });
        self.machine.reuse(records);
        freed
    }
}

impl<A> Drop for ProducerDriver<A> {
    /// Completes every remaining ticket and reports abandoned records, in case the driver ends
    /// before it was closed.
    fn drop(&mut self) {
        self.intake.close();
        let mut taken = std::mem::take(&mut self.taken);
        self.intake.take(&mut taken);
        let never_taken = self.open(&mut taken);
        let abandoned = self.machine.outstanding() + never_taken;
        if std::thread::panicking() {
            // The machine's state may be inconsistent, so it is not used any more.
            self.report.received(never_taken);
            self.report.given_up();
            self.report.abandoned(abandoned);
            // Dropped before the pending flushes, so that a flush returns only after all outcomes
            // are published.
            drop(std::mem::take(&mut self.desk));
            return;
        }
        self.report.never_taken(never_taken);
        self.machine.abandon();
        // After `abandon`, the machine only has outcomes left.
        let now_ms = self.caller.clock.now_ms();
        while let Some(Action::Complete(settled)) = self.machine.next_action() {
            self.settle(settled, now_ms);
        }
        let never = OutcomeKind::Rejected(RejectReason::Closed);
        for at in 0..taken.records.len() {
            let slot = self.desk.slot(self.intake.limit.clamp(taken.records.cost(at)));
            self.desk.complete(slot, &never, 0, None);
        }
        for (_, ask) in &taken.asks {
            if let Command::Put(put) = ask {
                let slots = put.slots().into_iter().flatten();
                slots.for_each(|slot| self.desk.complete(slot, &never, 0, None));
            }
        }
        drop(std::mem::take(&mut self.desk));
        self.report.abandoned(abandoned);
    }
}
