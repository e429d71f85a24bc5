//! Tickets: a future for each record, which resolves once.

use super::group::TicketGroup;
use anabranch_model::ids::ShardId;
use anabranch_model::produce::outcome::{Attempt, OutcomeKind, Receipt, RejectReason};
use anabranch_model::sequence::SequenceNumber;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// What became of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is in the stream, and readers will get it.
    Placed {
        /// The shard.
        shard: ShardId,
        /// The sequence number. Records of one aggregate share it.
        sequence: SequenceNumber,
        /// The place inside the aggregate; 0 for a record alone.
        sub: u64,
        /// What was tried.
        attempts: Attempts,
    },
    /// It is not in the stream.
    Rejected {
        /// Why.
        why: RejectReason,
        /// What was tried.
        attempts: Attempts,
    },
    /// It may be in the stream or not: a reply was lost, and there was no more time to learn it.
    Unknown {
        /// What was tried.
        attempts: Attempts,
    },
}

impl Outcome {
    /// Whether it is in the stream for certain.
    pub fn is_placed(&self) -> bool {
        matches!(self, Self::Placed { .. })
    }

    /// What was tried, oldest first.
    pub fn attempts(&self) -> &Attempts {
        match self {
            Self::Placed { attempts, .. }
            | Self::Rejected { attempts, .. }
            | Self::Unknown { attempts } => attempts,
        }
    }
}

/// The attempts to place a record, oldest first: the first and the last ones if there were very
/// many. Shared by the records that travelled together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attempts {
    /// Those of containers that were taken apart.
    past: Option<Arc<Vec<Attempt>>>,
    /// Those of the container that was placed.
    last: Option<Arc<Receipt>>,
}

impl Attempts {
    /// The attempts, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Attempt> {
        let past = self.past.iter().flat_map(|past| past.iter());
        past.chain(self.last.iter().flat_map(|last| &last.attempts))
    }

    /// How many are known.
    pub fn count(&self) -> usize {
        self.iter().count()
    }
}

/// A put that was accepted. Await it to learn what became of the record; dropping it changes
/// nothing but that nobody learns it.
#[derive(Debug)]
#[must_use = "the outcome of the record is learnt by awaiting its ticket"]
pub struct Ticket {
    group: Arc<TicketGroup>,
    /// Its place there. A whole word: a part of one, just written, is slow to read as one.
    at: usize,
}

impl Ticket {
    #[inline]
    pub(super) fn of(group: Arc<TicketGroup>, at: usize) -> Self {
        Self { group, at }
    }

    /// The outcome, if it is there already.
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
