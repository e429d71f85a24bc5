//! The input queue: passes records and commands from puts to the driver, in order of acceptance.

use super::buffer_limit::{BufferLimit, PrepaidBytes};
use super::completions::{BulkSlots, TicketSlot};
use super::input_buffer::{InputBuffer, SmallRecord};
use super::outcome::{BulkCompletion, BulkTicket, Ticket};
use super::outcome_set::{GROUP, TicketGroup};
use super::put::PutSummary;
use super::record::{Bulk, NewRecord, PutError};
use anabranch_model::produce::OrderingKey;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, oneshot};

/// Queued bytes at which the driver is woken at once. Less may wait briefly for more.
pub(super) const WAKE_BYTES: usize = 128 * 1024;

/// Queue shared by puts and the driver.
#[derive(Debug)]
pub(super) struct InputQueue {
    /// Input waiting for the driver.
    inside: Mutex<QueueState>,
    pub(super) wake: Arc<DriverWake>,
    /// Free buffer space.
    pub(super) limit: BufferLimit,
    /// Set when the next put has to yield to other tasks first.
    crowded: AtomicBool,
}

#[derive(Debug)]
struct QueueState {
    /// Records in order of acceptance.
    records: InputBuffer,
    /// Commands and bulks, each with the number of records queued before it.
    asks: Vec<(usize, Command)>,
    /// Total cost of the queued records and bulks.
    bytes: usize,
    /// Cost of all input since a put was last asked to yield.
    since_pause: usize,
    /// Buffer space reserved in advance for small records.
    aside: PrepaidBytes,
    /// True while a command waits for an answer.
    urgent: bool,
    /// The group that hands out the current tickets.
    group: Arc<TicketGroup>,
    /// Tickets handed out from `group`.
    given: usize,
    /// Groups whose first ticket belongs to a queued record, in order.
    groups: Vec<Arc<TicketGroup>>,
    /// True while records are accepted.
    open: bool,
    /// True once the driver has ended and no command is answered any more.
    ended: bool,
}

/// A bulk that was accepted.
#[derive(Debug)]
pub(super) struct AcceptedBulk {
    pub(super) bulk: Bulk,
    pub(super) cell: Arc<BulkCompletion>,
    /// Buffer bytes reserved for the bulk.
    pub(super) cost: u32,
    /// Location of its slots, once the driver has taken it.
    pub(super) place: Option<BulkSlots>,
}

impl AcceptedBulk {
    /// Returns the slots of its records, or `None` before the driver has taken the bulk.
    pub(super) fn slots(&self) -> Option<impl Iterator<Item = TicketSlot>> {
        Some(self.place?.slots(self.bulk.costs(), self.cost))
    }
}

/// A command to the driver.
#[derive(Debug)]
pub(super) enum Command {
    /// Puts the records of a bulk.
    Put(AcceptedBulk),
    /// Replies once everything accepted so far has its outcome.
    Flush(oneshot::Sender<()>),
    /// Resumes a key. Replies true if it was stopped.
    Resume(OrderingKey, oneshot::Sender<bool>),
    /// Resumes all keys. Replies with the number of keys that were known to be stopped.
    ResumeAll(oneshot::Sender<usize>),
    /// Replies with the stopped keys.
    StoppedKeys(oneshot::Sender<Vec<OrderingKey>>),
    /// Closes the producer by `until_ms` at the latest, and replies with the final counts.
    Close { until_ms: u64, done: oneshot::Sender<PutSummary> },
}

/// Input that the driver takes in one step.
#[derive(Debug, Default)]
pub(super) struct TakenInput {
    pub(super) records: InputBuffer,
    pub(super) groups: Vec<Arc<TicketGroup>>,
    pub(super) asks: Vec<(usize, Command)>,
}

impl InputQueue {
    pub(super) fn new(room_bytes: usize) -> Self {
        let bell = Arc::new(DriverWake::default());
        Self {
            inside: Mutex::new(QueueState {
                records: InputBuffer::default(),
                bytes: 0,
                since_pause: 0,
                aside: PrepaidBytes::default(),
                asks: Vec::new(),
                urgent: false,
                group: TicketGroup::new(&bell),
                given: 0,
                groups: Vec::new(),
                open: true,
                ended: false,
            }),
            wake: bell,
            limit: BufferLimit::new(room_bytes),
            crowded: AtomicBool::new(false),
        }
    }

    /// Yields to other tasks if much was put since the last yield. Without this, a task that puts
    /// in a loop starves the driver.
    #[inline]
    pub(super) async fn pause_if_crowded(&self) {
        if self.crowded.load(Ordering::Relaxed) {
            tokio::task::yield_now().await;
            // Cleared only after the yield. Otherwise another put of the same task would overtake
            // this one without yielding.
            self.crowded.store(false, Ordering::Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // No code panics while it holds the lock with a change half done.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds `cost` to the queue, and requests a yield after every [`WAKE_BYTES`]. Returns true if
    /// the driver must be woken: for the first input, and when the queue reaches [`WAKE_BYTES`].
    #[inline]
    fn enter(&self, inside: &mut QueueState, cost: u32) -> bool {
        let before = inside.bytes;
        inside.bytes += cost as usize;
        inside.since_pause += cost as usize;
        if inside.since_pause >= WAKE_BYTES {
            inside.since_pause = 0;
            self.crowded.store(true, Ordering::Relaxed);
        }
        before == 0 || (before < WAKE_BYTES && inside.bytes >= WAKE_BYTES)
    }

    /// Tries to reserve `cost` bytes without waiting. Returns false if there is not enough free
    /// space.
    pub(super) fn try_reserve(&self, cost: u32) -> Result<bool, PutError> {
        Ok(self.limit.take(cost)? || (self.release_prepaid() && self.limit.take(cost)?))
    }

    /// Releases the space reserved for small records. Returns true if there was any.
    fn release_prepaid(&self) -> bool {
        let aside = self.lock().aside.try_reserve();
        self.limit.release(aside);
        aside > 0
    }

    /// Copies a small record into the queue. Returns `None` if there is no free space.
    #[inline]
    pub(super) fn push_small(&self, record: SmallRecord<'_>) -> Result<Option<Ticket>, PutError> {
        let cost = self.limit.clamp(record.cost());
        let mut inside = self.lock();
        if !inside.open {
            return Err(PutError::Closed);
        }
        if !self.limit.try_reserve_prepaid(&mut inside.aside, cost) {
            return Ok(None);
        }
        let (ticket, ()) = self.add(inside, cost, |records| records.copy(record));
        Ok(Some(ticket))
    }

    /// Enqueues a record whose space is reserved. Returns `None` if the producer is closed.
    #[inline]
    pub(super) fn push(&self, record: NewRecord, cost: u32) -> Option<Ticket> {
        let inside = self.lock();
        if !inside.open {
            return None;
        }
        let (ticket, copied) = self.add(inside, cost, |records| records.push(record));
        // Dropped after everything else, because dropping the caller's memory may run the caller's
        // code.
        drop(copied);
        Some(ticket)
    }

    /// Enqueues a record whose space is reserved. Returns its ticket.
    #[inline]
    fn add<R>(
        &self,
        mut inside: MutexGuard<'_, QueueState>,
        cost: u32,
        add: impl FnOnce(&mut InputBuffer) -> R,
    ) -> (Ticket, R) {
        let (group, at) = inside.next(&self.wake);
        let rings = self.enter(&mut inside, cost);
        let added = add(&mut inside.records);
        drop(inside);
        if rings {
            self.wake.wake();
        }
        (Ticket::of(group, at), added)
    }

    /// Enqueues a bulk whose space is reserved. Returns the bulk if the producer is closed.
    pub(super) fn push_bulk(&self, bulk: Bulk, cost: u32) -> Result<BulkTicket, Bulk> {
        let cell = BulkCompletion::new(&self.wake);
        let mut inside = self.lock();
        if !inside.open {
            return Err(bulk);
        }
        let rings = self.enter(&mut inside, cost);
        let at = inside.records.len();
        let put = AcceptedBulk { bulk, cell: Arc::clone(&cell), cost, place: None };
        inside.asks.push((at, Command::Put(put)));
        drop(inside);
        if rings {
            self.wake.wake();
        }
        Ok(BulkTicket::of(cell))
    }

    /// Sends a command to the driver, behind everything queued so far. Returns the command if the
    /// driver has ended; a driver that is closing still answers.
    pub(super) fn send_command(&self, ask: Command) -> Result<(), Command> {
        let mut inside = self.lock();
        if inside.ended {
            return Err(ask);
        }
        let closes = matches!(ask, Command::Close { .. });
        inside.open &= !closes;
        let at = inside.records.len();
        inside.asks.push((at, ask));
        inside.urgent = true;
        drop(inside);
        if closes {
            self.limit.close();
        }
        self.wake.wake();
        Ok(())
    }

    /// Returns the queued bytes, and true if a command waits for an answer.
    pub(super) fn waiting(&self) -> (usize, bool) {
        let inside = self.lock();
        (inside.bytes, inside.urgent)
    }

    /// Moves all input to `into`, whose empty buffers replace it.
    pub(super) fn take(&self, into: &mut TakenInput) {
        let mut inside = self.lock();
        std::mem::swap(&mut inside.records, &mut into.records);
        std::mem::swap(&mut inside.groups, &mut into.groups);
        std::mem::swap(&mut inside.asks, &mut into.asks);
        inside.bytes = 0;
        inside.urgent = false;
        let aside = inside.aside.try_reserve();
        drop(inside);
        self.limit.release(aside);
    }

    /// Rejects further records and commands.
    pub(super) fn close(&self) {
        let mut inside = self.lock();
        inside.open = false;
        inside.ended = true;
        drop(inside);
        self.limit.close();
    }
}

impl QueueState {
    /// Returns the group and index of the next ticket.
    fn next(&mut self, bell: &Arc<DriverWake>) -> (Arc<TicketGroup>, usize) {
        if self.given == GROUP {
            self.group = TicketGroup::new(bell);
            self.given = 0;
        }
        let at = self.given;
        self.given += 1;
        if at == 0 {
            self.groups.push(Arc::clone(&self.group));
        }
        (Arc::clone(&self.group), at)
    }
}

// Waking the driver, and whether a caller awaits it so that lingering for more records is useless.

/// Runs `wake`, which runs wakers of the caller. A waker that panics must not affect the producer.
pub(super) fn wake_caught(wake: impl FnOnce()) {
    // The waker may leave its own state half changed, but nothing here reads that state.
    let _ = catch_unwind(AssertUnwindSafe(wake));
}

/// Wakes the driver. Shared by puts, tickets and the driver.
#[derive(Debug, Default)]
pub(super) struct DriverWake {
    wake: Notify,
    /// True while a caller waits for an outcome or for buffer space.
    awaited: AtomicBool,
}

impl DriverWake {
    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Waits until [`DriverWake::wake`] is called.
    pub(super) async fn wait(&self) {
        self.wake.notified().await;
    }

    /// Notes that a caller waits. The first one wakes the driver.
    pub(super) fn note_waiter(&self) {
        if !self.awaited.load(Ordering::Relaxed) && !self.awaited.swap(true, Ordering::AcqRel) {
            self.wake();
        }
    }

    /// Returns true if a caller began to wait since [`DriverWake::clear_waiters`].
    pub(super) fn has_waiters(&self) -> bool {
        self.awaited.load(Ordering::Acquire)
    }

    /// Clears the flag. The records that the waiters await were queued before.
    pub(super) fn clear_waiters(&self) {
        self.awaited.swap(false, Ordering::AcqRel);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;
    use std::task::{Wake, Waker};

    /// Runs a closure when it is woken and when it is dropped.
    struct Meddler<F: Fn()>(F);

    impl<F: Fn()> Wake for Meddler<F> {
        fn wake(self: Arc<Self>) {
            (self.0)();
        }
    }

    impl<F: Fn()> Drop for Meddler<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }

    /// Returns a waker that runs `meddle` when it is woken and when its last clone is dropped.
    pub(in crate::producer) fn meddler(meddle: impl Fn() + Send + Sync + 'static) -> Waker {
        Waker::from(Arc::new(Meddler(meddle)))
    }
}

#[cfg(test)]
mod wake_tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    #[test]
    fn room_that_is_set_aside_is_freed_for_those_who_wait_when_the_driver_takes_records() {
        let intake = InputQueue::new(100_000);
        let small = SmallRecord::of(b"key", b"data").unwrap();
        let cost = u32::try_from(small.cost()).unwrap();
        assert!(intake.push_small(small).unwrap().is_some());
        // As if another thread had reserved it just before this one queued for the rest.
        let mut rest = pin!(intake.limit.reserve(100_000 - cost));
        let mut context = Context::from_waker(Waker::noop());
        assert!(rest.as_mut().poll(&mut context).is_pending());
        intake.take(&mut TakenInput::default());
        assert!(rest.poll(&mut context).is_ready());
    }
}
