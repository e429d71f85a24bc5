//! Tickets: a future for each record, which resolves once.

use super::bell::{Bell, waking};
use anabranch_model::ids::ShardId;
use anabranch_model::produce::outcome::{Attempt, Fate, Receipt, Why};
use anabranch_model::sequence::SequenceNumber;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

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
        why: Why,
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
    group: Arc<Group>,
    at: u8,
}

/// Tickets whose memory is got, and given back, together. One allocation for each record would cost
/// more than all else that a put does.
#[derive(Debug)]
pub(super) struct Group {
    cells: [Cell; GROUP],
    /// Is told when a ticket is awaited.
    bell: Arc<Bell>,
}

/// How many these are.
pub(super) const GROUP: usize = 32;

/// What a ticket and the driver share.
#[derive(Debug)]
pub(super) struct Cell(Mutex<State>);

/// Where a ticket stands. Small, because there is one for each record that is outstanding.
#[derive(Debug)]
enum State {
    /// Nobody asked yet, or this one did.
    Waiting(Option<Waker>),
    /// The usual outcome is there.
    Placed { receipt: Arc<Receipt>, sub: u32 },
    /// Another outcome is there.
    Other(Box<Settled>),
}

/// An outcome as the machine tells it.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) fate: Fate,
    pub(super) sub: u64,
    pub(super) past: Option<Arc<Vec<Attempt>>>,
}

impl Settled {
    pub(super) fn outcome(&self) -> Outcome {
        outcome(self.fate.clone(), self.sub, self.past.clone())
    }
}

impl Group {
    pub(super) fn new(bell: &Arc<Bell>) -> Arc<Self> {
        let cells = std::array::from_fn(|_| Cell(Mutex::new(State::Waiting(None))));
        Arc::new(Self { cells, bell: Arc::clone(bell) })
    }

    /// All of its cells.
    pub(super) fn cells(&self) -> impl Iterator<Item = &Cell> {
        self.cells.iter()
    }

    /// The cell at this place.
    #[inline]
    pub(super) fn cell(&self, at: u32) -> &Cell {
        &self.cells[at as usize]
    }
}

impl Cell {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is replaced as a whole, so a panic can't leave it half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves the ticket. Only the first time counts.
    #[inline]
    pub(super) fn settle(&self, fate: &Fate, sub: u64, past: Option<Arc<Vec<Attempt>>>) {
        let settled = match (fate, u32::try_from(sub), past) {
            (Fate::Placed(receipt), Ok(sub), None) => {
                State::Placed { receipt: Arc::clone(receipt), sub }
            }
            (fate, _, past) => State::Other(Box::new(Settled { fate: fate.clone(), sub, past })),
        };
        let mut state = self.lock();
        if let State::Waiting(waker) = &mut *state {
            let waker = waker.take();
            *state = settled;
            drop(state);
            if let Some(waker) = waker {
                waking(|| waker.wake());
            }
        }
    }
}

impl Ticket {
    #[inline]
    pub(super) fn of(group: Arc<Group>, at: u8) -> Self {
        Self { group, at }
    }

    fn cell(&self) -> &Cell {
        self.group.cell(self.at.into())
    }

    /// The outcome, if it is there already.
    pub fn try_outcome(&self) -> Option<Outcome> {
        self.cell().lock().outcome()
    }
}

/// Remembers whom to wake.
pub(super) fn remember(waker: &mut Option<Waker>, context: &Context<'_>) {
    match waker {
        Some(waker) => waker.clone_from(context.waker()),
        None => *waker = Some(context.waker().clone()),
    }
}

impl State {
    #[inline]
    fn outcome(&self) -> Option<Outcome> {
        match self {
            Self::Waiting(_) => None,
            Self::Placed { receipt, sub } => Some(placed(Arc::clone(receipt), *sub, None)),
            Self::Other(settled) => Some(settled.outcome()),
        }
    }
}

impl Future for Ticket {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = self.cell().lock();
        if let State::Waiting(waker) = &mut *state {
            remember(waker, context);
            drop(state);
            self.group.bell.someone_waits();
            return Poll::Pending;
        }
        state.outcome().map_or(Poll::Pending, Poll::Ready)
    }
}

pub(super) fn placed(
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

pub(super) fn outcome(fate: Fate, sub: u64, past: Option<Arc<Vec<Attempt>>>) -> Outcome {
    match fate {
        Fate::Placed(receipt) => placed(receipt, sub, past),
        Fate::Rejected(why) => Outcome::Rejected { why, attempts: Attempts { past, last: None } },
        Fate::Unknown => Outcome::Unknown { attempts: Attempts { past, last: None } },
    }
}
