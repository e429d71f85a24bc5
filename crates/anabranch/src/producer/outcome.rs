//! Tickets: a future for each record, which resolves once.

use anabranch_model::ids::ShardId;
use anabranch_model::produce::outcome::{Attempt, Fate, Receipt, Why};
use anabranch_model::sequence::SequenceNumber;
use std::future::Future;
use std::ops::Deref;
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
pub struct Ticket(pub(super) Slot);

/// Tickets whose memory is got, and given back, together.
const GROUP: usize = 32;

/// What a ticket and the driver share.
#[derive(Debug)]
pub(super) struct Cell(Mutex<State>);

/// A cell of a group. One allocation for each record would cost more than all else that a put does.
#[derive(Debug)]
pub(super) struct Slot {
    group: Arc<[Cell; GROUP]>,
    at: u8,
    /// What the record holds of the room. It stands here because there is room for it.
    pub(super) cost: u32,
}

/// Where new cells come from.
#[derive(Debug)]
pub(super) struct Slots {
    /// The group that is being given out.
    group: Arc<[Cell; GROUP]>,
    /// How many of it are.
    given: u8,
}

#[derive(Debug)]
enum State {
    /// Nobody asked yet, or this one did.
    Waiting(Option<Waker>),
    /// The outcome is there.
    Settled { fate: Fate, sub: u64, past: Option<Arc<Vec<Attempt>>> },
}

impl Slots {
    pub(super) fn new() -> Self {
        Self { group: group(), given: 0 }
    }

    /// The next cell, for a ticket and for the driver, of a record that costs so much.
    pub(super) fn next(&mut self, cost: u32) -> (Slot, Slot) {
        if usize::from(self.given) == GROUP {
            *self = Self::new();
        }
        let at = self.given;
        self.given += 1;
        let slot = || Slot { group: Arc::clone(&self.group), at, cost };
        (slot(), slot())
    }
}

fn group() -> Arc<[Cell; GROUP]> {
    Arc::new(std::array::from_fn(|_| Cell(Mutex::new(State::Waiting(None)))))
}

impl Deref for Slot {
    type Target = Cell;

    fn deref(&self) -> &Cell {
        &self.group[usize::from(self.at)]
    }
}

impl Cell {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is replaced as a whole, so a panic can't leave it half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves the ticket. Only the first time counts.
    pub(super) fn settle(&self, fate: Fate, sub: u64, past: Option<Arc<Vec<Attempt>>>) {
        let mut state = self.lock();
        if let State::Waiting(waker) = &mut *state {
            let waker = waker.take();
            *state = State::Settled { fate, sub, past };
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl Ticket {
    /// The outcome, if it is there already.
    pub fn try_outcome(&self) -> Option<Outcome> {
        match &*self.0.lock() {
            State::Waiting(_) => None,
            State::Settled { fate, sub, past } => Some(outcome(fate, *sub, past.clone())),
        }
    }
}

impl Future for Ticket {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        match &mut *self.0.lock() {
            State::Settled { fate, sub, past } => Poll::Ready(outcome(fate, *sub, past.clone())),
            State::Waiting(waker) => {
                match waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
        }
    }
}

fn outcome(fate: &Fate, sub: u64, past: Option<Arc<Vec<Attempt>>>) -> Outcome {
    match fate {
        Fate::Placed(receipt) => Outcome::Placed {
            shard: receipt.shard.clone(),
            sequence: receipt.sequence,
            sub,
            attempts: Attempts { past, last: Some(Arc::clone(receipt)) },
        },
        Fate::Rejected(why) => {
            Outcome::Rejected { why: why.clone(), attempts: Attempts { past, last: None } }
        }
        Fate::Unknown => Outcome::Unknown { attempts: Attempts { past, last: None } },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_belongs_to_one_ticket_and_settles_once() {
        let mut slots = Slots::new();
        let pairs: Vec<(Slot, Slot)> = (0..100).map(|_| slots.next(1)).collect();
        let tickets: Vec<Ticket> = pairs
            .into_iter()
            .zip(0..)
            .map(|((ticket, driver), sub)| {
                driver.settle(Fate::Unknown, sub, None);
                driver.settle(Fate::Rejected(Why::Closed), 1_000, None);
                Ticket(ticket)
            })
            .collect();
        for (ticket, number) in tickets.iter().zip(0..) {
            let state = ticket.0.lock();
            let State::Settled { fate: Fate::Unknown, sub, .. } = &*state else {
                panic!("{state:?}")
            };
            assert_eq!(*sub, number);
        }
    }
}
