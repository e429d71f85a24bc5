//! The outcomes of a bulk: they are told together, and the memory for them is got together.

use super::bell::{Bell, waking};
use super::outcome::{self, Outcome};
use super::put::Account;
use anabranch_model::produce::outcome::{Attempt, Fate, Receipt};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// No receipt: the record has another outcome.
const NONE: u32 = u32::MAX;

/// What became of the records of a bulk, in their order.
#[derive(Debug, Clone)]
pub struct Outcomes(Arc<Told>);

#[derive(Debug, Default)]
struct Told {
    /// Of each record its receipt and its place in the container.
    places: Vec<(u32, u32)>,
    /// Of each container that was placed.
    receipts: Vec<Arc<Receipt>>,
    /// Outcomes that are not the usual one, by the places of their records.
    others: Vec<(u32, outcome::Settled)>,
}

impl Outcomes {
    /// How many records these are.
    pub fn len(&self) -> usize {
        self.0.places.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.places.is_empty()
    }

    /// What became of the record at this place of the bulk.
    pub fn get(&self, at: usize) -> Option<Outcome> {
        let told = &*self.0;
        let (receipt, sub) = *told.places.get(at)?;
        if let Some(receipt) = told.receipts.get(receipt as usize) {
            return Some(outcome::placed(Arc::clone(receipt), sub, None));
        }
        let other = told.others.binary_search_by_key(&at, |(at, _)| *at as usize);
        // Where nothing was told, the producer was brought down.
        Some(other.map_or_else(
            |_| outcome::outcome(Fate::Unknown, 0, None),
            |found| told.others[found].1.outcome(),
        ))
    }

    /// What became of each record, in the order of the bulk.
    pub fn iter(&self) -> impl Iterator<Item = Outcome> {
        (0..self.len()).filter_map(|at| self.get(at))
    }

    /// How many were placed, and how many were not.
    pub fn account(&self) -> Account {
        let others = self.0.places.iter().filter(|(receipt, _)| *receipt == NONE).count();
        let is_rejected =
            |told: &&(u32, outcome::Settled)| matches!(told.1.fate, Fate::Rejected(_));
        let is_placed = |told: &&(u32, outcome::Settled)| matches!(told.1.fate, Fate::Placed(_));
        let rejected = self.0.others.iter().filter(is_rejected).count();
        let placed = self.0.others.iter().filter(is_placed).count();
        Account {
            placed: (self.len() - others + placed) as u64,
            rejected: rejected as u64,
            unknown: (others - rejected - placed) as u64,
        }
    }

    /// Whether every record was placed.
    pub fn all_placed(&self) -> bool {
        self.account().is_complete()
    }
}

/// A bulk that was accepted. Await it to learn what became of its records, once all of them have
/// their outcomes; dropping it changes nothing but that nobody learns them.
#[derive(Debug)]
#[must_use = "the outcomes of the records are learnt by awaiting their ticket"]
pub struct BulkTicket(Arc<BulkCell>);

/// What a bulk's ticket and the driver share.
#[derive(Debug)]
pub(super) struct BulkCell {
    state: Mutex<State>,
    /// Is told when the ticket is awaited.
    bell: Arc<Bell>,
}

#[derive(Debug)]
enum State {
    /// Nobody asked yet, or this one did.
    Waiting(Option<Waker>),
    /// All outcomes are there.
    Told(Outcomes),
}

impl BulkCell {
    pub(super) fn new(bell: &Arc<Bell>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State::Waiting(None)), bell: Arc::clone(bell) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is replaced as a whole, so a panic can't leave it half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, told: Told) {
        let told = State::Told(Outcomes(Arc::new(told)));
        let before = std::mem::replace(&mut *self.lock(), told);
        if let State::Waiting(Some(waker)) = before {
            waking(|| waker.wake());
        }
    }
}

impl BulkTicket {
    pub(super) fn of(cell: Arc<BulkCell>) -> Self {
        Self(cell)
    }

    /// The ticket of a bulk without records.
    pub(super) fn of_nothing(bell: &Arc<Bell>) -> Self {
        let cell = BulkCell::new(bell);
        cell.tell(Told::default());
        Self(cell)
    }

    /// The outcomes, if all of them are there already.
    pub fn try_outcomes(&self) -> Option<Outcomes> {
        match &*self.0.lock() {
            State::Waiting(_) => None,
            State::Told(outcomes) => Some(outcomes.clone()),
        }
    }
}

impl Future for BulkTicket {
    type Output = Outcomes;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcomes> {
        let mut state = self.0.lock();
        match &mut *state {
            State::Told(outcomes) => Poll::Ready(outcomes.clone()),
            State::Waiting(waker) => {
                outcome::remember(waker, context);
                drop(state);
                self.0.bell.someone_waits();
                Poll::Pending
            }
        }
    }
}

/// The driver's side of a bulk: outcomes are gathered until all are there.
#[derive(Debug)]
pub(super) struct OpenBulk {
    cell: Arc<BulkCell>,
    told: Told,
    /// Records without an outcome.
    left: usize,
}

impl OpenBulk {
    pub(super) fn new(cell: Arc<BulkCell>, records: usize) -> Self {
        let told = Told { places: vec![(NONE, 0); records], ..Told::default() };
        Self { cell, told, left: records }
    }

    /// Notes an outcome. Says whether it was the last one.
    #[inline]
    pub(super) fn settle(
        &mut self,
        at: u32,
        fate: &Fate,
        sub: u64,
        past: Option<Arc<Vec<Attempt>>>,
    ) -> bool {
        self.left -= 1;
        if let (Fate::Placed(receipt), Ok(sub), None) = (fate, u32::try_from(sub), &past) {
            // The records of a container are settled one after the other.
            let receipts = &mut self.told.receipts;
            if !receipts.last().is_some_and(|last| Arc::ptr_eq(last, receipt)) {
                receipts.push(Arc::clone(receipt));
            }
            let receipt = u32::try_from(receipts.len() - 1).unwrap_or(NONE);
            self.told.places[at as usize] = (receipt, sub);
        } else {
            self.settle_other(at, outcome::Settled { fate: fate.clone(), sub, past });
        }
        self.left == 0
    }

    /// Notes an outcome that is not the usual one.
    #[cold]
    fn settle_other(&mut self, at: u32, settled: outcome::Settled) {
        self.told.others.push((at, settled));
    }

    /// Tells the outcomes. What has none is unknown.
    pub(super) fn tell(mut self) {
        self.told.others.sort_unstable_by_key(|(at, _)| *at);
        self.cell.tell(self.told);
    }
}
