//! Outcomes of puts, and the tickets that resolve to them.

use super::outcome_set::{CompletedOutcome, OutcomeSet, TicketGroup};
use super::put::PutSummary;
use super::queue::{DriverWake, wake_caught};
use anabranch_model::ids::ShardId;
use anabranch_model::produce::outcome::{Attempt, OutcomeKind, Receipt, RejectReason};
use anabranch_model::sequence::SequenceNumber;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Outcome of a put.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a rejected record is not in the stream: check the outcome, or call `into_result`"]
pub enum Outcome {
    /// The record is in the stream, and readers will get it.
    Placed {
        /// Shard that stored the record.
        shard: ShardId,
        /// Sequence number. Records of one aggregate share it.
        sequence: SequenceNumber,
        /// Position inside the aggregate; 0 for a record that is not aggregated.
        sub: u64,
        /// Attempts to place the record, oldest first.
        attempts: Attempts,
    },
    /// The record is not in the stream.
    Rejected {
        /// Reason of the rejection.
        why: RejectReason,
        /// Attempts to place the record, oldest first.
        attempts: Attempts,
    },
    /// The record may or may not be in the stream: a reply was lost, and its result was not found
    /// out in time.
    Unknown {
        /// Attempts to place the record, oldest first.
        attempts: Attempts,
    },
}

/// A record that is in the stream, see [`Outcome::into_result`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlacedRecord {
    /// Shard that stored the record.
    pub shard: ShardId,
    /// Sequence number. Records of one aggregate share it.
    pub sequence: SequenceNumber,
    /// Position inside the aggregate; 0 for a record that is not aggregated.
    pub sub: u64,
    /// Attempts to place the record, oldest first.
    pub attempts: Attempts,
}

/// A record that is not, or perhaps not, in the stream. See [`Outcome::into_result`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeliveryError {
    /// The record is not in the stream.
    #[error("the record was rejected after {} attempts: {why}", attempts.count())]
    Rejected {
        /// Reason of the rejection.
        why: RejectReason,
        /// Attempts to place the record, oldest first.
        attempts: Attempts,
    },
    /// The record may or may not be in the stream.
    #[error(
        "the outcome of the record is unknown after {} attempts, because a reply was lost: it may \
         or may not be in the stream",
        attempts.count()
    )]
    Unknown {
        /// Attempts to place the record, oldest first.
        attempts: Attempts,
    },
}

impl Outcome {
    /// Returns true if the record is certainly in the stream.
    pub fn is_placed(&self) -> bool {
        matches!(self, Self::Placed { .. })
    }

    /// Returns the record's position, or an error if it is not certainly in the stream.
    pub fn into_result(self) -> Result<PlacedRecord, DeliveryError> {
        match self {
            Self::Placed { shard, sequence, sub, attempts } => {
                Ok(PlacedRecord { shard, sequence, sub, attempts })
            }
            Self::Rejected { why, attempts } => Err(DeliveryError::Rejected { why, attempts }),
            Self::Unknown { attempts } => Err(DeliveryError::Unknown { attempts }),
        }
    }

    /// Returns the attempts to place the record, oldest first.
    pub fn attempts(&self) -> &Attempts {
        match self {
            Self::Placed { attempts, .. }
            | Self::Rejected { attempts, .. }
            | Self::Unknown { attempts } => attempts,
        }
    }
}

/// Attempts to place a record, oldest first. If one Kinesis record took more than 16, only the
/// first 8 and the last 8 are kept. Shared by the records that were sent together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attempts {
    /// Attempts with Kinesis records other than that of `last`.
    past: Option<Arc<Vec<Attempt>>>,
    /// Receipt of the Kinesis record that was placed, with its attempts.
    last: Option<Arc<Receipt>>,
}

impl Attempts {
    /// Returns the attempts, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Attempt> {
        let past = self.past.iter().flat_map(|past| past.iter());
        past.chain(self.last.iter().flat_map(|last| &last.attempts))
    }

    /// Returns the number of attempts that are kept.
    pub fn count(&self) -> usize {
        self.iter().count()
    }
}

/// Future of the outcome of a put. Dropping it only discards the outcome.
#[derive(Debug)]
#[must_use = "await the ticket for the outcome of the put"]
pub struct Ticket {
    group: Arc<TicketGroup>,
    /// Index within the group. A full word, because reading a word of which only a part was just
    /// written is slow.
    at: usize,
}

impl Ticket {
    #[inline]
    pub(super) fn of(group: Arc<TicketGroup>, at: usize) -> Self {
        Self { group, at }
    }

    /// Returns the outcome if it is available, without waiting.
    pub fn try_outcome(&self) -> Option<Outcome> {
        self.group.outcome(self.at)
    }
}

impl Future for Ticket {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        self.group.poll(self.at, context)
    }
}

pub(super) fn placed_outcome(
    receipt: Arc<Receipt>,
    sub: impl Into<u64>,
    past: Option<Arc<Vec<Attempt>>>,
) -> Outcome {
    Outcome::Placed {
        shard: receipt.shard.clone(),
        sequence: receipt.sequence,
        sub: sub.into(),
        attempts: Attempts { past, last: Some(receipt) },
    }
}

pub(super) fn outcome(fate: OutcomeKind, sub: u64, past: Option<Arc<Vec<Attempt>>>) -> Outcome {
    match fate {
        OutcomeKind::Placed(receipt) => placed_outcome(receipt, sub, past),
        OutcomeKind::Rejected(why) => {
            Outcome::Rejected { why, attempts: Attempts { past, last: None } }
        }
        OutcomeKind::Unknown => Outcome::Unknown { attempts: Attempts { past, last: None } },
    }
}

// The outcomes of a bulk are published together, and share one allocation.

/// Outcomes of the records of a bulk, in the order of the bulk. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Outcomes(Arc<OutcomeSet>);

impl Outcomes {
    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if the bulk was empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the outcome of the record at index `at` of the bulk; `None` if there is no such
    /// record.
    pub fn get(&self, at: usize) -> Option<Outcome> {
        // A record has no outcome only if the producer was dropped.
        let unknown = || outcome(OutcomeKind::Unknown, 0, None);
        (at < self.len()).then(|| self.0.get(at).unwrap_or_else(unknown))
    }

    /// Returns the outcome of each record, in the order of the bulk.
    pub fn iter(&self) -> impl Iterator<Item = Outcome> {
        (0..self.len()).filter_map(|at| self.get(at))
    }

    /// Returns the number of records by outcome.
    pub fn account(&self) -> PutSummary {
        self.0.summary()
    }

    /// Returns true if every record was placed.
    pub fn all_placed(&self) -> bool {
        self.account().is_complete()
    }
}

/// Future of the outcomes of a bulk. It resolves once all records have an outcome. Dropping it only
/// discards the outcomes.
#[derive(Debug)]
#[must_use = "await the ticket for the outcomes of the records"]
pub struct BulkTicket(Arc<BulkCompletion>);

/// State that a bulk's ticket shares with the driver.
#[derive(Debug)]
pub(super) struct BulkCompletion {
    state: Mutex<BulkState>,
    /// Notified when the ticket is awaited.
    bell: Arc<DriverWake>,
}

#[derive(Debug)]
enum BulkState {
    /// Outcomes are missing. Holds the waker of the task that awaits the ticket, if any.
    Waiting(Option<Waker>),
    /// All outcomes are available.
    Ready(Outcomes),
}

impl BulkCompletion {
    pub(super) fn new(bell: &Arc<DriverWake>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(BulkState::Waiting(None)), bell: Arc::clone(bell) })
    }

    fn lock(&self) -> MutexGuard<'_, BulkState> {
        // The state is replaced as a whole, so a panic can't leave it inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, told: OutcomeSet) {
        let told = BulkState::Ready(Outcomes(Arc::new(told)));
        let before = std::mem::replace(&mut *self.lock(), told);
        if let BulkState::Waiting(Some(waker)) = before {
            wake_caught(|| waker.wake());
        }
    }
}

impl BulkTicket {
    pub(super) fn of(cell: Arc<BulkCompletion>) -> Self {
        Self(cell)
    }

    /// Returns the ticket of an empty bulk, which is complete.
    pub(super) fn of_nothing(bell: &Arc<DriverWake>) -> Self {
        let cell = BulkCompletion::new(bell);
        cell.publish(OutcomeSet::default());
        Self(cell)
    }

    /// Returns the outcomes if all of them are available, without waiting.
    pub fn try_outcomes(&self) -> Option<Outcomes> {
        match &*self.0.lock() {
            BulkState::Waiting(_) => None,
            BulkState::Ready(outcomes) => Some(outcomes.clone()),
        }
    }
}

impl Future for BulkTicket {
    type Output = Outcomes;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcomes> {
        if let Some(outcomes) = self.try_outcomes() {
            return Poll::Ready(outcomes);
        }
        // Wakers are cloned and dropped without the lock, because they run code of their owner.
        let mut waker = Some(context.waker().clone());
        match &mut *self.0.lock() {
            BulkState::Ready(outcomes) => return Poll::Ready(outcomes.clone()),
            BulkState::Waiting(before) => std::mem::swap(before, &mut waker),
        }
        drop(waker);
        self.0.bell.note_waiter();
        Poll::Pending
    }
}

/// The driver's side of a bulk: collects outcomes until all are available.
#[derive(Debug)]
pub(super) struct OpenBulk {
    cell: Arc<BulkCompletion>,
    told: OutcomeSet,
    /// Number of records without an outcome.
    left: usize,
}

impl OpenBulk {
    pub(super) fn new(cell: Arc<BulkCompletion>, records: usize) -> Self {
        Self { cell, told: OutcomeSet::empty(records), left: records }
    }

    /// Records an outcome. Returns true if it was the last one.
    #[inline]
    pub(super) fn settle(
        &mut self,
        at: u32,
        fate: &OutcomeKind,
        sub: u64,
        past: Option<Arc<Vec<Attempt>>>,
    ) -> bool {
        self.left -= 1;
        if let (OutcomeKind::Placed(receipt), Ok(sub), None) = (fate, u32::try_from(sub), &past) {
            self.told.place(at, receipt, sub);
        } else {
            self.told.note(at, CompletedOutcome { fate: fate.clone(), sub, past });
        }
        self.left == 0
    }

    /// Publishes the outcomes. Records without one count as unknown.
    pub(super) fn tell(self) {
        self.cell.publish(self.told);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::producer::queue::tests::meddler;
    use std::pin::pin;

    #[test]
    fn a_waker_may_look_at_its_own_bulk() {
        let cell = BulkCompletion::new(&Arc::new(DriverWake::default()));
        let mut ticket = pin!(BulkTicket::of(Arc::clone(&cell)));
        let mut poll = || {
            // Each waker except the first replaces the previous one, which is then dropped.
            let own = BulkTicket::of(Arc::clone(&cell));
            let waker = meddler(move || {
                assert!(own.try_outcomes().is_none_or(|outcomes| outcomes.is_empty()));
            });
            ticket.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
        };
        assert!(!poll() && !poll());
        cell.publish(OutcomeSet::default());
        assert!(poll());
    }
}
