//! Outcomes that are kept together: those of a bulk, and those of a group of tickets.

use super::outcome::{Outcome, outcome, placed_outcome};
use super::put::PutSummary;
use anabranch_model::produce::outcome::{Attempt, OutcomeKind, Receipt};
use std::fmt;
use std::sync::Arc;

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
