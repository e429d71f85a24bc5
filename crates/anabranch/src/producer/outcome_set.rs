//! Groups of tickets that share one allocation and one lock, and compact sets of outcomes.

use super::outcome::{Outcome, outcome, placed_outcome};
use super::put::PutSummary;
use super::queue::{DriverWake, wake_caught};
use anabranch_model::produce::outcome::{Attempt, OutcomeKind, Receipt};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

/// Tickets per group. Twice as many are published no faster, and one record without an outcome
/// keeps the memory of the whole group.
pub(super) const GROUP: usize = 64;

/// State that a group of tickets shares with the driver. One allocation or one lock per record
/// would cost more than the rest of a put.
#[derive(Debug)]
pub(super) struct TicketGroup {
    /// All outcomes, once the group is complete. Read without a lock.
    complete: OnceLock<OutcomeSet>,
    /// Until then, the outcomes available so far, and the wakers of waiting tickets.
    partial: Mutex<PartialOutcomes>,
    /// Notified when a ticket is awaited.
    wake: Arc<DriverWake>,
}

#[derive(Debug)]
struct PartialOutcomes {
    told: OutcomeSet,
    /// Wakers of the waiting tickets, ordered by the index of the ticket.
    waiting: Vec<(usize, Waker)>,
}

impl TicketGroup {
    pub(super) fn new(bell: &Arc<DriverWake>) -> Arc<Self> {
        let early = PartialOutcomes { told: OutcomeSet::empty(GROUP), waiting: Vec::new() };
        Arc::new(Self {
            complete: OnceLock::new(),
            partial: Mutex::new(early),
            wake: Arc::clone(bell),
        })
    }

    fn lock(&self) -> MutexGuard<'_, PartialOutcomes> {
        // Each change is complete before anything can panic.
        self.partial.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the outcome at index `at` if the group is complete.
    #[inline]
    fn complete_outcome(&self, at: usize) -> Option<Outcome> {
        let told = self.complete.get()?;
        // A record has no outcome only if the producer was dropped.
        Some(told.get(at).unwrap_or_else(|| outcome(OutcomeKind::Unknown, 0, None)))
    }

    /// Returns the outcome at index `at`, if available. The group may have become complete while
    /// the caller waited for the lock.
    fn partial_outcome(&self, early: &PartialOutcomes, at: usize) -> Option<Outcome> {
        self.complete_outcome(at).or_else(|| early.told.get(at))
    }

    /// Returns the outcome of the ticket at index `at`, if available.
    pub(super) fn outcome(&self, at: usize) -> Option<Outcome> {
        self.complete_outcome(at).or_else(|| self.partial_outcome(&self.lock(), at))
    }

    /// Polls for the outcome of the ticket at index `at`. Wakes the task when it is available.
    #[inline]
    pub(super) fn poll(&self, at: usize, context: &Context<'_>) -> Poll<Outcome> {
        match self.complete_outcome(at) {
            Some(outcome) => Poll::Ready(outcome),
            None => self.wait(at, context),
        }
    }

    #[inline(never)]
    fn wait(&self, at: usize, context: &Context<'_>) -> Poll<Outcome> {
        let early = self.lock();
        if let Some(outcome) = self.partial_outcome(&early, at) {
            return Poll::Ready(outcome);
        }
        let waits_already = early.is_awaited_by(at, context.waker());
        drop(early);
        if !waits_already {
            // Wakers are cloned and dropped without the lock, because they run code of their owner.
            let waker = context.waker().clone();
            let mut early = self.lock();
            if let Some(outcome) = self.partial_outcome(&early, at) {
                return Poll::Ready(outcome);
            }
            let before = early.wait(at, waker);
            drop(early);
            drop(before);
        }
        self.wake.note_waiter();
        Poll::Pending
    }

    /// Publishes the outcomes that `tell` adds to the set. `tell` returns true if the group is
    /// complete with them.
    pub(super) fn publish(&self, tell: impl FnOnce(&mut OutcomeSet) -> bool) {
        let mut early = self.lock();
        let PartialOutcomes { told, waiting } = &mut *early;
        let awake: Vec<_> = if tell(told) {
            // A group completes only once, so the cell is empty.
            let _ = self.complete.set(std::mem::take(told));
            std::mem::take(waiting)
        } else {
            waiting.extract_if(.., |(at, _)| told.has_outcome(*at)).collect()
        };
        drop(early);
        for (_, waker) in awake {
            wake_caught(|| waker.wake());
        }
    }
}

impl PartialOutcomes {
    /// Returns true if a waker of the same task is registered at index `at`.
    fn is_awaited_by(&self, at: usize, waker: &Waker) -> bool {
        let found = self.waiting.binary_search_by_key(&at, |(at, _)| *at);
        found.is_ok_and(|found| self.waiting[found].1.will_wake(waker))
    }

    /// Registers a waker at index `at`. Returns the one that it replaces.
    fn wait(&mut self, at: usize, waker: Waker) -> Option<Waker> {
        match self.waiting.binary_search_by_key(&at, |(at, _)| *at) {
            Ok(found) => Some(std::mem::replace(&mut self.waiting[found].1, waker)),
            Err(free) => {
                self.waiting.insert(free, (at, waker));
                None
            }
        }
    }
}

// The set of outcomes of a bulk or of a group of tickets.

/// In place of a receipt's index: the record has no outcome.
const NOTHING: u32 = u32::MAX;
/// In place of a receipt's index: the record's outcome is in `others`.
const OTHER: u32 = NOTHING - 1;

/// Outcomes of records, by index. The usual outcome, a placement without earlier Kinesis records,
/// takes 8 bytes.
#[derive(Default)]
pub(super) struct OutcomeSet {
    /// For each record, the index of its receipt, and its index in the Kinesis record. For
    /// [`OTHER`], the second number is the index in `others`.
    places: Vec<(u32, u32)>,
    /// Receipts of placed Kinesis records.
    receipts: Vec<Arc<Receipt>>,
    /// Shared lists of receipts of Kinesis records that were placed together.
    sheets: Vec<SharedReceipts>,
    /// All other outcomes.
    others: Vec<CompletedOutcome>,
}

/// A list of receipts that arrived together. Holding the list costs less than holding each receipt.
pub(super) type SharedReceipts = Arc<[Arc<Receipt>]>;

/// Maximum length of a shared list. One record that keeps its outcome keeps the whole list.
const FEW: usize = 128;
/// Bit in the index of a receipt in a shared list. The other bits are the index of the list times
/// [`FEW`], plus the index in the list.
const ON_SHEET: u32 = 1 << 31;

/// Returns a shared list of the receipts, unless there are none or more than [`FEW`].
pub(super) fn shared_receipts(receipts: &[Arc<Receipt>]) -> Option<SharedReceipts> {
    (1..=FEW).contains(&receipts.len()).then(|| receipts.into())
}

/// An outcome as the state machine reports it.
#[derive(Debug)]
pub(super) struct CompletedOutcome {
    pub(super) fate: OutcomeKind,
    pub(super) sub: u64,
    pub(super) past: Option<Arc<Vec<Attempt>>>,
}

impl fmt::Debug for OutcomeSet {
    /// Shows the number of records only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutcomeSet").field("records", &self.len()).finish_non_exhaustive()
    }
}

impl OutcomeSet {
    /// Creates a set of `records` records without outcomes.
    pub(super) fn empty(records: usize) -> Self {
        Self { places: vec![(NOTHING, 0); records], ..Self::default() }
    }

    /// Returns the number of records.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Records the usual outcome: the record was placed.
    #[inline]
    pub(super) fn place(&mut self, at: u32, receipt: &Arc<Receipt>, sub: u32) {
        // The user records of a Kinesis record arrive one after the other.
        let receipts = &mut self.receipts;
        if !receipts.last().is_some_and(|last| Arc::ptr_eq(last, receipt)) {
            receipts.push(Arc::clone(receipt));
        }
        let receipt = u32::try_from(receipts.len() - 1).unwrap_or(NOTHING);
        self.places[at as usize] = (receipt, sub);
    }

    /// Records the usual outcome, with the receipt at index `line` of a shared list.
    #[inline]
    pub(super) fn place_shared(&mut self, at: u32, sheet: &SharedReceipts, line: u32, sub: u32) {
        // The records of a shared list arrive one after the other.
        if !self.sheets.last().is_some_and(|last| Arc::ptr_eq(last, sheet)) {
            self.sheets.push(Arc::clone(sheet));
        }
        let place = (self.sheets.len() - 1) * FEW + line as usize;
        let place = u32::try_from(place).expect("a bulk has few outcome sets");
        self.places[at as usize] = (ON_SHEET | place, sub);
    }

    /// Returns the receipt with this index; `None` for [`NOTHING`] and [`OTHER`].
    #[inline]
    fn receipt(&self, place: u32) -> Option<&Arc<Receipt>> {
        if place < ON_SHEET {
            return self.receipts.get(place as usize);
        }
        let at = (place & !ON_SHEET) as usize;
        self.sheets.get(at / FEW)?.get(at % FEW)
    }

    /// Records an outcome other than the usual one.
    #[cold]
    pub(super) fn note(&mut self, at: u32, settled: CompletedOutcome) {
        let other = u32::try_from(self.others.len()).unwrap_or(NOTHING);
        self.places[at as usize] = (OTHER, other);
        self.others.push(settled);
    }

    /// Returns true if the record at index `at` has an outcome.
    pub(super) fn has_outcome(&self, at: usize) -> bool {
        self.places.get(at).is_some_and(|(receipt, _)| *receipt != NOTHING)
    }

    /// Returns the outcome of the record at index `at`, if it has one.
    #[inline]
    pub(super) fn get(&self, at: usize) -> Option<Outcome> {
        let (receipt, sub) = *self.places.get(at)?;
        if let Some(receipt) = self.receipt(receipt) {
            return Some(placed_outcome(Arc::clone(receipt), sub, None));
        }
        if receipt != OTHER {
            return None;
        }
        let CompletedOutcome { fate, sub, past } = self.others.get(sub as usize)?;
        Some(outcome(fate.clone(), *sub, past.clone()))
    }

    /// Counts the records by outcome. Records without one count as unknown.
    pub(super) fn summary(&self) -> PutSummary {
        let others = self.places.iter().filter(|(receipt, _)| *receipt >= OTHER).count();
        let is_placed = |other: &&CompletedOutcome| matches!(other.fate, OutcomeKind::Placed(_));
        let is_rejected =
            |other: &&CompletedOutcome| matches!(other.fate, OutcomeKind::Rejected(_));
        let placed = self.others.iter().filter(is_placed).count();
        let rejected = self.others.iter().filter(is_rejected).count();
        PutSummary {
            placed: (self.len() - others + placed) as u64,
            rejected: rejected as u64,
            unknown: (others - rejected - placed) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::CompletedOutcome;
    use super::*;
    use crate::producer::outcome::Ticket;
    use crate::producer::queue::tests::meddler;
    use std::future::Future;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    fn settle(told: &mut OutcomeSet, at: usize) {
        let fate = OutcomeKind::Unknown;
        told.note(u32::try_from(at).unwrap(), CompletedOutcome { fate, sub: 0, past: None });
    }

    /// Counts its wake-ups.
    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn poll(ticket: &mut Ticket, waker: &Arc<Count>) -> bool {
        let waker = Waker::from(Arc::clone(waker));
        pin!(ticket).poll(&mut Context::from_waker(&waker)).is_ready()
    }

    #[test]
    fn who_waits_is_woken_with_its_own_outcome_and_not_with_those_of_others() {
        let group = TicketGroup::new(&Arc::new(DriverWake::default()));
        let mut tickets: Vec<Ticket> =
            [7, 3, GROUP - 1].map(|at| Ticket::of(Arc::clone(&group), at)).into();
        let wakers: Vec<Arc<Count>> = tickets.iter().map(|_| Arc::default()).collect();
        let woken = || wakers.iter().map(|one| one.0.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let earlier = Arc::default();
        assert!(!poll(&mut tickets[0], &earlier));
        for (ticket, waker) in tickets.iter_mut().zip(&wakers) {
            assert!(!poll(ticket, waker));
        }
        group.publish(|told| {
            settle(told, 2);
            settle(told, 7);
            false
        });
        assert_eq!(woken(), [1, 0, 0]);
        assert_eq!(earlier.0.load(Ordering::Relaxed), 0, "only who asked last is woken");
        assert!(poll(&mut tickets[0], &wakers[0]), "although the others have none");
        assert!(!poll(&mut tickets[1], &wakers[1]));
        group.publish(|told| {
            settle(told, 3);
            true
        });
        assert_eq!(woken(), [1, 1, 1]);
        assert!(tickets.iter_mut().all(|ticket| poll(ticket, &earlier)), "none is left");
        assert_eq!(woken(), [1, 1, 1]);
    }

    #[test]
    fn a_waker_may_look_at_tickets_of_the_same_group() {
        let group = TicketGroup::new(&Arc::new(DriverWake::default()));
        let mut ticket = pin!(Ticket::of(Arc::clone(&group), 0));
        let waker = || {
            let group = Arc::clone(&group);
            meddler(move || assert!(group.outcome(1).is_none_or(|one| !one.is_placed())))
        };
        for _ in 0..2 {
            // The second waker replaces the first, which is then dropped.
            let waker = waker();
            assert!(ticket.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        group.publish(|told| {
            settle(told, 0);
            false
        });
        assert!(ticket.as_mut().poll(&mut Context::from_waker(&waker())).is_ready());
    }

    #[test]
    fn no_outcome_is_missed_by_those_who_begin_to_wait_while_it_is_told() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
        let runtime = runtime.unwrap();
        for round in 0..200 {
            let group = TicketGroup::new(&Arc::new(DriverWake::default()));
            let ticket = |at| Ticket::of(Arc::clone(&group), at);
            let waiting: Vec<_> = (0..GROUP).map(|at| runtime.spawn(ticket(at))).collect();
            // Publishes in parts of 1 to all tickets.
            let part = 1 + (round * 7) % GROUP;
            for from in (0..GROUP).step_by(part) {
                let until = (from + part).min(GROUP);
                group.publish(|told| {
                    (from..until).for_each(|at| settle(told, at));
                    until == GROUP
                });
            }
            let all = async {
                for one in waiting {
                    assert!(matches!(one.await.unwrap(), Outcome::Unknown { .. }));
                }
            };
            let limit = std::time::Duration::from_secs(30);
            runtime.block_on(async { tokio::time::timeout(limit, all).await }).expect("all end");
        }
    }
}
