//! The driver: one task that carries out what the machine decides.

use super::batches::Batches;
use super::bell::waking;
use super::bulk::Part;
use super::call::Caller;
use super::desk::{Desk, Slot};
use super::handed::Handed;
use super::intake::{AcceptedBulk, Ask, Intake, Taken, WAKE_BYTES};
use super::put::Account;
use super::report::Report;
use crate::stream::api::StreamApi;
use anabranch_model::aggregate::digest::hash_keys;
use anabranch_model::hash::HashKey;
use anabranch_model::produce::outcome::{Fate, Settled, Why};
use anabranch_model::produce::{Action, Content, Machine, Offer, Read, Reply, ShardsRead};
use anabranch_model::retry::Fault;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::task::{Id, JoinError, JoinSet};

/// How long a few records wait for more before the driver takes them in: one wake-up then serves
/// many puts.
const GATHER_MS: u64 = 1;

/// This part of the linger without a put is enough if someone waits.
const QUIET: u64 = 4;

/// One producer's task.
pub(super) struct Driver<A> {
    /// Decides everything.
    machine: Machine<Slot>,
    /// Makes the calls.
    caller: Caller<A>,
    /// Where puts hand over their records.
    intake: Arc<Intake>,
    /// What was taken from the intake; its memory is used again.
    taken: Taken,
    /// Who waits for which records.
    batches: Batches,
    /// Where outcomes are told.
    desk: Desk,
    /// Tells events and counts.
    report: Report,
    /// Calls on their way.
    calls: JoinSet<Done>,
    /// Which call is which.
    whose: HashMap<Id, Call>,
    /// After how long without a put the records that someone waits for wait for no others.
    quiet_ms: u64,
    /// Until when it has to end, and whom to tell.
    closing: Option<(u64, Vec<oneshot::Sender<Account>>)>,
}

/// A call on its way.
enum Call {
    /// A request.
    Request {
        /// Its number.
        id: u64,
        /// When it was sent.
        sent_ms: u64,
        /// Containers in it.
        containers: usize,
    },
    /// A list of shards.
    Read(Read),
}

/// What a call brought.
enum Done {
    Reply(Reply),
    Shards(ShardsRead),
}

impl<A: StreamApi> Driver<A> {
    pub(super) fn new(
        machine: Machine<Slot>,
        caller: Caller<A>,
        intake: Arc<Intake>,
        report: Report,
        linger_ms: u64,
    ) -> Self {
        Self {
            quiet_ms: linger_ms / QUIET,
            machine,
            caller,
            intake,
            taken: Taken::default(),
            batches: Batches::new(),
            desk: Desk::default(),
            report,
            calls: JoinSet::new(),
            whose: HashMap::new(),
            closing: None,
        }
    }

    /// Runs until the producer is closed and everything has its outcome.
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
            let hurry_ms = self.hurry_if_awaited(last_put_ms, now_ms);
            self.turn(now_ms);
            if self.close_if_over(now_ms) {
                return;
            }
            let closing = self.closing.as_ref().map(|(until_ms, _)| *until_ms);
            let wake = [self.machine.wake_at(), gather_until_ms, hurry_ms, closing];
            let wake_ms = wake.into_iter().flatten().min();
            tokio::select! {
                biased;
                Some(done) = self.calls.join_next_with_id() => self.done(done),
                () = intake.bell.rung() => {}
                () = clock.sleep_until(wake_ms.unwrap_or(u64::MAX)), if wake_ms.is_some() => {}
            }
            while let Some(done) = self.calls.try_join_next_with_id() {
                self.done(done);
            }
        }
    }

    /// Sends what is there when someone waits for it and nobody puts more. Says when that may be.
    fn hurry_if_awaited(&mut self, last_put_ms: u64, now_ms: u64) -> Option<u64> {
        let bell = &self.intake.bell;
        if !bell.is_awaited() {
            return None;
        }
        let at_ms = last_put_ms.saturating_add(self.quiet_ms);
        if now_ms < at_ms {
            return Some(at_ms);
        }
        // In this order: whoever waits from now on is remembered, and what the others wait for is in
        // the machine before it hurries.
        bell.forget();
        self.take_in(now_ms);
        self.machine.hurry(now_ms);
        None
    }

    /// Hands what was put and asked to the machine, in its order.
    fn take_in(&mut self, now_ms: u64) {
        let mut taken = std::mem::take(&mut self.taken);
        self.intake.take(&mut taken);
        // First of all, so that each ticket has an outcome whatever happens.
        let count = self.open(&mut taken);
        self.report.received(count);
        let Taken { records, asks, .. } = &mut taken;
        let keys: Vec<&[u8]> = records.keys().collect();
        let hashes = hash_keys(&keys);
        let mut from = 0;
        for (at, ask) in asks.drain(..) {
            self.enter(records, &hashes, from..at, now_ms);
            self.asked(ask, now_ms);
            from = at;
        }
        self.enter(records, &hashes, from..records.len(), now_ms);
        records.clear();
        self.taken = taken;
    }

    /// Hands records to the machine.
    fn enter(&mut self, records: &Handed, hashes: &[HashKey], part: Range<usize>, now_ms: u64) {
        self.batches.enter(part.len());
        let from = part.start;
        let hash = |at: usize| records.explicit(from + at).unwrap_or(hashes[from + at]);
        let offer = |at: usize| {
            let (content, explicit) = (records.content(from + at), records.explicit(from + at));
            Offer { content, hash: hash(at), is_explicit: explicit.is_some() }
        };
        let (desk, intake) = (&mut self.desk, &self.intake);
        let slots = part.map(|at| desk.slot(intake.room.of(records.cost(at))));
        self.machine.put_all(slots, hash, offer, now_ms);
    }

    /// Hands the records of a bulk to the machine.
    fn enter_bulk(&mut self, put: &AcceptedBulk, now_ms: u64) {
        let Some(slots) = put.slots() else { return };
        let bulk = &put.bulk;
        let keys: Vec<&[u8]> = (0..bulk.len()).map(|at| bulk.part(at).key()).collect();
        let hashes = hash_keys(&keys);
        self.batches.enter(bulk.len());
        let hash = |at: usize| bulk.explicit(at).unwrap_or(hashes[at]);
        let offer = |at: usize| {
            let Part { both, key_len } = bulk.part(at);
            let content = Content::Lent { both, key_len };
            Offer { content, hash: hash(at), is_explicit: bulk.explicit(at).is_some() }
        };
        self.machine.put_all(slots, hash, offer, now_ms);
    }

    /// Whoever no longer waits for an answer need not be told.
    fn asked(&mut self, ask: Ask, now_ms: u64) {
        match ask {
            Ask::Put(put) => self.enter_bulk(&put, now_ms),
            Ask::Flush(done) => {
                self.batches.wait(done);
                self.machine.hurry(now_ms);
            }
            Ask::Resume(key, done) => {
                let resumed = self.machine.resume(&key);
                waking(|| {
                    let _ = done.send(resumed);
                });
            }
            Ask::ResumeAll(done) => {
                let resumed = self.machine.resume_all();
                waking(|| {
                    let _ = done.send(resumed);
                });
            }
            Ask::StoppedKeys(done) => {
                let keys = self.machine.stopped_keys().cloned().collect();
                waking(|| {
                    let _ = done.send(keys);
                });
            }
            Ask::Close { until_ms, done } => {
                self.machine.hurry(now_ms);
                // Whoever has less time decides for all that close it.
                let (until, waiters) = self.closing.get_or_insert((until_ms, Vec::new()));
                *until = until_ms.min(*until);
                waiters.push(done);
            }
        }
    }

    /// Carries out what the machine wants done now.
    fn turn(&mut self, now_ms: u64) {
        let mut freed = 0;
        loop {
            while let Some(action) = self.machine.next_action() {
                freed += self.carry_out(action, now_ms);
            }
            // Before the machine builds new containers, which takes its time.
            self.desk.tell();
            self.intake.room.free(std::mem::take(&mut freed));
            let Some(action) = self.machine.poll(now_ms) else { break };
            freed += self.carry_out(action, now_ms);
        }
        self.batches.tell();
    }

    /// Carries out one thing, and says how much room that frees.
    fn carry_out(&mut self, action: Action<Slot>, now_ms: u64) -> usize {
        match action {
            Action::Send(request) => {
                self.report.sent(&request);
                let (id, containers) = (request.id, request.entries.len());
                let call = Call::Request { id, sent_ms: now_ms, containers };
                let put = self.caller.clone().put(request);
                let task = self.calls.spawn(async move { Done::Reply(put.await) });
                self.whose.insert(task.id(), call);
            }
            Action::Read(read) => {
                let list = self.caller.clone().shards(read.full);
                let task = self.calls.spawn(async move { Done::Shards(list.await) });
                self.whose.insert(task.id(), Call::Read(read));
            }
            Action::Settle(settled) => return self.settle(settled, now_ms),
            Action::Notice(notice) => self.report.notice(notice),
        }
        0
    }

    fn done(&mut self, done: Result<(Id, Done), JoinError>) {
        let now_ms = self.caller.clock.now_ms();
        let (id, done) = match done {
            Ok((id, done)) => (id, Some(done)),
            Err(error) => (error.id(), None),
        };
        match self.whose.remove(&id) {
            Some(Call::Request { id, sent_ms, containers }) => {
                let reply = match done {
                    Some(Done::Reply(reply)) => reply,
                    // The call panicked: nobody knows how far it came.
                    _ => Err((Fault::ReplyLost, "the call panicked".into())),
                };
                self.report.answered(&reply, containers, now_ms.saturating_sub(sent_ms));
                self.machine.reply(id, reply, now_ms);
            }
            Some(Call::Read(read)) => {
                let list = match done {
                    Some(Done::Shards(list)) => list,
                    _ => Err(Fault::Unknown),
                };
                self.machine.shards(read, list, now_ms);
            }
            None => {}
        }
    }

    /// Ends a producer that was closed, once everything has its outcome or its time is over.
    fn close_if_over(&mut self, now_ms: u64) -> bool {
        let Some((until_ms, _)) = &self.closing else { return false };
        if self.machine.outstanding() > 0 && now_ms < *until_ms {
            return false;
        }
        self.machine.abandon();
        self.turn(now_ms);
        for done in self.closing.take().into_iter().flat_map(|(_, waiters)| waiters) {
            waking(|| {
                let _ = done.send(self.report.account());
            });
        }
        true
    }
}

impl<A> Driver<A> {
    /// Makes place for the outcomes of all records that were taken, and counts these.
    fn open(&mut self, taken: &mut Taken) -> usize {
        self.desk.open(taken.groups.drain(..));
        let mut count = taken.records.len();
        for (_, ask) in &mut taken.asks {
            if let Ask::Put(put) = ask {
                put.place = Some(self.desk.open_bulk(&put.cell, put.bulk.len()));
                count += put.bulk.len();
            }
        }
        count
    }

    /// Tells outcomes, and says how much room they free.
    fn settle(&mut self, settled: Settled<Slot>, now_ms: u64) -> usize {
        self.report.settled(&settled, now_ms);
        let Settled { mut records, fate } = settled;
        self.batches.leave((0..records.len()).map(|at| records.number(at)));
        let mut freed = 0;
        let mut sub = 0;
        records.drain(|ticket, past| {
            freed += ticket.cost as usize;
            self.desk.settle(ticket, &fate, sub, past);
            sub += 1;
        });
        self.machine.reuse(records);
        freed
    }
}

impl<A> Drop for Driver<A> {
    /// A driver that ends before it was closed still tells every ticket, and says so.
    fn drop(&mut self) {
        self.intake.shut();
        let mut taken = std::mem::take(&mut self.taken);
        self.intake.take(&mut taken);
        let never_taken = self.open(&mut taken);
        let abandoned = self.machine.outstanding() + never_taken;
        if std::thread::panicking() {
            // Something is half done, so nothing is asked of it any more.
            self.report.received(never_taken);
            self.report.given_up();
            self.report.abandoned(abandoned);
            // Before those are let go who wait for a flush: it ends with all outcomes told.
            drop(std::mem::take(&mut self.desk));
            return;
        }
        self.report.never_taken(never_taken);
        self.machine.abandon();
        // After this the machine only has outcomes to give.
        let now_ms = self.caller.clock.now_ms();
        while let Some(Action::Settle(settled)) = self.machine.next_action() {
            self.settle(settled, now_ms);
        }
        let never = Fate::Rejected(Why::Closed);
        for at in 0..taken.records.len() {
            let slot = self.desk.slot(self.intake.room.of(taken.records.cost(at)));
            self.desk.settle(slot, &never, 0, None);
        }
        for (_, ask) in &taken.asks {
            if let Ask::Put(put) = ask {
                let slots = put.slots().into_iter().flatten();
                slots.for_each(|slot| self.desk.settle(slot, &never, 0, None));
            }
        }
        drop(std::mem::take(&mut self.desk));
        self.report.abandoned(abandoned);
    }
}
