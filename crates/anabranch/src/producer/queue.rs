//! The intake: where puts hand their records to the driver, in the order of acceptance.

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

/// The driver is woken at once when this much waits; less may wait a moment for more.
pub(super) const WAKE_BYTES: usize = 128 * 1024;

/// What puts and the driver share.
#[derive(Debug)]
pub(super) struct InputQueue {
    /// What waits for the driver.
    inside: Mutex<QueueState>,
    /// Wakes the driver.
    pub(super) wake: Arc<DriverWake>,
    /// Room for records.
    pub(super) limit: BufferLimit,
    /// Whether whoever puts next is to let others run first.
    crowded: AtomicBool,
}

#[derive(Debug)]
struct QueueState {
    /// Records in the order of acceptance.
    records: InputBuffer,
    /// What is asked of the driver, and bulks, each at its place among the records.
    asks: Vec<(usize, Command)>,
    /// What records and bulks cost together.
    bytes: usize,
    /// What was put since someone was last asked to let others run.
    since_pause: usize,
    /// Room that is set aside for small records.
    aside: PrepaidBytes,
    /// Whether someone waits for an answer to what is asked.
    urgent: bool,
    /// The group that tickets come from now.
    group: Arc<TicketGroup>,
    /// How many of it are given out.
    given: usize,
    /// The groups whose first ticket is one of these records, in their order.
    groups: Vec<Arc<TicketGroup>>,
    /// Whether records are still taken.
    open: bool,
    /// Whether the driver is gone, so that nobody answers what is asked.
    ended: bool,
}

/// A bulk that was accepted.
#[derive(Debug)]
pub(super) struct AcceptedBulk {
    pub(super) bulk: Bulk,
    pub(super) cell: Arc<BulkCompletion>,
    /// What it holds of the room.
    pub(super) cost: u32,
    /// Where the driver has its slots, once it has taken it.
    pub(super) place: Option<BulkSlots>,
}

impl AcceptedBulk {
    /// The slots of its records, once it has a place.
    pub(super) fn slots(&self) -> Option<impl Iterator<Item = TicketSlot>> {
        Some(self.place?.slots(self.bulk.costs(), self.cost))
    }
}

/// What is asked of the driver.
#[derive(Debug)]
pub(super) enum Command {
    /// Take these records.
    Put(AcceptedBulk),
    /// Tell when everything accepted so far has its outcome.
    Flush(oneshot::Sender<()>),
    /// Let a key go on, and tell whether it stood stopped.
    Resume(OrderingKey, oneshot::Sender<bool>),
    /// Let all keys go on, and tell how many were known to stand stopped.
    ResumeAll(oneshot::Sender<usize>),
    /// Which keys stand stopped.
    StoppedKeys(oneshot::Sender<Vec<OrderingKey>>),
    /// End: at the latest at this time.
    Close { until_ms: u64, done: oneshot::Sender<PutSummary> },
}

/// What the driver takes in.
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

    /// Who puts without a pause still lets others run now and then, the driver among them.
    #[inline]
    pub(super) async fn pause_if_crowded(&self) {
        if self.crowded.load(Ordering::Relaxed) {
            tokio::task::yield_now().await;
            // Not before: all that the task puts meanwhile has to pause too, or it overtakes this
            // one, and the task goes on without a pause.
            self.crowded.store(false, Ordering::Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // Nothing here panics half-way through a change.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts what waits, and has whoever puts after much of it pause. Says whether the driver is to
    /// be woken: by the first, and by much.
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

    /// Takes so much room, if it is there now.
    pub(super) fn try_reserve(&self, cost: u32) -> Result<bool, PutError> {
        Ok(self.limit.take(cost)? || (self.release_prepaid() && self.limit.take(cost)?))
    }

    /// Frees the room that is set aside for small records. Says whether that was anything.
    fn release_prepaid(&self) -> bool {
        let aside = self.lock().aside.try_reserve();
        self.limit.release(aside);
        aside > 0
    }

    /// Hands a small record over, if there is room for it now. It is copied.
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

    /// Hands a record over. `None` if the producer is closed.
    #[inline]
    pub(super) fn push(&self, record: NewRecord, cost: u32) -> Option<Ticket> {
        let inside = self.lock();
        if !inside.open {
            return None;
        }
        let (ticket, copied) = self.add(inside, cost, |records| records.push(record));
        // Last of all: the memory is its owner's, and so is what is done to give it back.
        drop(copied);
        Some(ticket)
    }

    /// Adds a record whose room is taken, and gives its ticket.
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

    /// Hands a bulk over. Gives it back if the producer is closed.
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

    /// Asks the driver, after what was handed over so far. Gives the ask back if the driver is
    /// gone; one that is being closed still answers.
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

    /// What waits: bytes of records, and whether someone waits for an answer.
    pub(super) fn waiting(&self) -> (usize, bool) {
        let inside = self.lock();
        (inside.bytes, inside.urgent)
    }

    /// Takes everything that waits, in exchange for empty memory.
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

    /// Takes no more records, and answers nothing more.
    pub(super) fn close(&self) {
        let mut inside = self.lock();
        inside.open = false;
        inside.ended = true;
        drop(inside);
        self.limit.close();
    }
}

impl QueueState {
    /// The group and place of the next ticket.
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

// The bell: what wakes the driver, and who waits so that waiting for more records is of no use.

/// Does what wakes others. A waker that panics is its owner's trouble, and nobody else's.
pub(super) fn wake_caught(wake: impl FnOnce()) {
    // What it left half done is its own, and nothing here looks at it.
    let _ = catch_unwind(AssertUnwindSafe(wake));
}

/// What puts, tickets and the driver share.
#[derive(Debug, Default)]
pub(super) struct DriverWake {
    /// Wakes the driver.
    wake: Notify,
    /// Whether someone waits: for an outcome that is not there, or for room.
    awaited: AtomicBool,
}

impl DriverWake {
    /// Wakes the driver.
    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Until it rings.
    pub(super) async fn wait(&self) {
        self.wake.notified().await;
    }

    /// Someone begins to wait. The first one wakes the driver.
    pub(super) fn note_waiter(&self) {
        if !self.awaited.load(Ordering::Relaxed) && !self.awaited.swap(true, Ordering::AcqRel) {
            self.wake();
        }
    }

    /// Whether someone began to wait since this was last forgotten.
    pub(super) fn has_waiters(&self) -> bool {
        self.awaited.load(Ordering::Acquire)
    }

    /// Forgets who waits. Whatever they wait for was put before.
    pub(super) fn clear_waiters(&self) {
        self.awaited.swap(false, Ordering::AcqRel);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;
    use std::task::{Wake, Waker};

    /// Does something of its own when it is woken, and when it is dropped.
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

    /// A waker that does this when it is woken, and when its last clone is dropped.
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
        // As if it had been set aside by another thread, just before this one stood in the queue.
        let mut rest = pin!(intake.limit.reserve(100_000 - cost));
        let mut context = Context::from_waker(Waker::noop());
        assert!(rest.as_mut().poll(&mut context).is_pending());
        intake.take(&mut TakenInput::default());
        assert!(rest.poll(&mut context).is_ready());
    }
}
