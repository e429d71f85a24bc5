//! A group of tickets: their memory is got together, and their outcomes are told together as far as
//! they come together.

use super::outcome::{Outcome, outcome, placed_outcome};
use super::put::PutSummary;
use super::queue::{DriverWake, wake_caught};
use anabranch_model::produce::outcome::{Attempt, OutcomeKind, Receipt};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

/// How many tickets these are. Twice as many are told no faster, and one record that waits for long
/// keeps the memory of all.
pub(super) const GROUP: usize = 64;

/// What tickets and the driver share. One allocation, or one lock, for each record would cost more
/// than all else that a put does.
#[derive(Debug)]
pub(super) struct TicketGroup {
    /// All outcomes, once they are there. Read without a lock.
    complete: OnceLock<OutcomeSet>,
    /// Those that are there until then, and who waits for others.
    partial: Mutex<PartialOutcomes>,
    /// Is told when a ticket is awaited.
    wake: Arc<DriverWake>,
}

#[derive(Debug)]
struct PartialOutcomes {
    told: OutcomeSet,
    /// Who waits, by the places of their tickets, in order.
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
        // Each change is whole before anything can panic.
        self.partial.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The outcome at this place, if all are there.
    #[inline]
    fn complete_outcome(&self, at: usize) -> Option<Outcome> {
        let told = self.complete.get()?;
        // Where nothing was told, the producer was brought down.
        Some(told.get(at).unwrap_or_else(|| outcome(OutcomeKind::Unknown, 0, None)))
    }

    /// The outcome at this place, if it is there. All may have come since the lock was asked for.
    fn partial_outcome(&self, early: &PartialOutcomes, at: usize) -> Option<Outcome> {
        self.complete_outcome(at).or_else(|| early.told.get(at))
    }

    /// The outcome of the ticket at this place, if it is there already.
    pub(super) fn outcome(&self, at: usize) -> Option<Outcome> {
        self.complete_outcome(at).or_else(|| self.partial_outcome(&self.lock(), at))
    }

    /// The outcome of the ticket at this place. Wakes the task when it is there.
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
            // Wakers are cloned and dropped without the lock: what they do is their owner's.
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

    /// Tells outcomes: those that `tell` notes, which says whether these are the last ones.
    pub(super) fn publish(&self, tell: impl FnOnce(&mut OutcomeSet) -> bool) {
        let mut early = self.lock();
        let PartialOutcomes { told, waiting } = &mut *early;
        let awake: Vec<_> = if tell(told) {
            // There are no others to be told, so this is the first time.
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
    /// Whether this one waits already at this place.
    fn is_awaited_by(&self, at: usize, waker: &Waker) -> bool {
        let found = self.waiting.binary_search_by_key(&at, |(at, _)| *at);
        found.is_ok_and(|found| self.waiting[found].1.will_wake(waker))
    }

    /// Has someone wait. Gives back who waited before at this place.
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

// Outcomes that are kept together: those of a bulk, and those of a group of tickets.

/// Nothing is told of the record.
const NOTHING: u32 = u32::MAX;
/// The record has an outcome that is not the usual one.
const OTHER: u32 = NOTHING - 1;

/// What became of records, by their places.
#[derive(Default)]
pub(super) struct OutcomeSet {
    /// Of each record the place of its receipt here, and its own place in the container.
    places: Vec<(u32, u32)>,
    /// Of each container that was placed.
    receipts: Vec<Arc<Receipt>>,
    /// Of containers that were placed together with few others.
    sheets: Vec<SharedReceipts>,
    /// Outcomes that are not the usual one.
    others: Vec<CompletedOutcome>,
}

/// The few receipts that came together: to hold all of them costs less than to hold each one.
pub(super) type SharedReceipts = Arc<[Arc<Receipt>]>;

/// This many are few. One record that waits for long keeps all of a sheet.
const FEW: usize = 128;
/// The place of a receipt that is on a sheet has this bit, the sheet's place, and the line.
const ON_SHEET: u32 = 1 << 31;

/// A sheet of these receipts, if there are some and they are few.
pub(super) fn shared_receipts(receipts: &[Arc<Receipt>]) -> Option<SharedReceipts> {
    (1..=FEW).contains(&receipts.len()).then(|| receipts.into())
}

/// An outcome as the machine tells it.
#[derive(Debug)]
pub(super) struct CompletedOutcome {
    pub(super) fate: OutcomeKind,
    pub(super) sub: u64,
    pub(super) past: Option<Arc<Vec<Attempt>>>,
}

impl fmt::Debug for OutcomeSet {
    /// How many these are, and not all of them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Told").field("records", &self.len()).finish_non_exhaustive()
    }
}

impl OutcomeSet {
    /// Nothing yet of so many records.
    pub(super) fn empty(records: usize) -> Self {
        Self { places: vec![(NOTHING, 0); records], ..Self::default() }
    }

    /// How many records these are.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Notes that a record was placed, as usual.
    #[inline]
    pub(super) fn place(&mut self, at: u32, receipt: &Arc<Receipt>, sub: u32) {
        // The records of a container are noted one after the other.
        let receipts = &mut self.receipts;
        if !receipts.last().is_some_and(|last| Arc::ptr_eq(last, receipt)) {
            receipts.push(Arc::clone(receipt));
        }
        let receipt = u32::try_from(receipts.len() - 1).unwrap_or(NOTHING);
        self.places[at as usize] = (receipt, sub);
    }

    /// Notes that a record was placed, as usual. Its receipt is at this line of the sheet.
    #[inline]
    pub(super) fn place_shared(&mut self, at: u32, sheet: &SharedReceipts, line: u32, sub: u32) {
        // Those of a sheet are noted one after the other.
        if !self.sheets.last().is_some_and(|last| Arc::ptr_eq(last, sheet)) {
            self.sheets.push(Arc::clone(sheet));
        }
        let place = (self.sheets.len() - 1) * FEW + line as usize;
        let place = u32::try_from(place).expect("a group has few sheets");
        self.places[at as usize] = (ON_SHEET | place, sub);
    }

    /// The receipt at this place, if it is the place of one.
    #[inline]
    fn receipt(&self, place: u32) -> Option<&Arc<Receipt>> {
        if place < ON_SHEET {
            return self.receipts.get(place as usize);
        }
        let at = (place & !ON_SHEET) as usize;
        self.sheets.get(at / FEW)?.get(at % FEW)
    }

    /// Notes another outcome.
    #[cold]
    pub(super) fn note(&mut self, at: u32, settled: CompletedOutcome) {
        let other = u32::try_from(self.others.len()).unwrap_or(NOTHING);
        self.places[at as usize] = (OTHER, other);
        self.others.push(settled);
    }

    /// Whether something is told of the record at this place.
    pub(super) fn has_outcome(&self, at: usize) -> bool {
        self.places.get(at).is_some_and(|(receipt, _)| *receipt != NOTHING)
    }

    /// What is told of the record at this place.
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

    /// How many were placed, and how many were not. What nothing is told of is unknown.
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

    /// Counts how often it is woken.
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
            // The second one replaces the first, which is then dropped.
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
            // In parts of one to all.
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
