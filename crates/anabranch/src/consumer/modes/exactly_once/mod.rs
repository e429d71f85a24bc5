//! Effects exactly once: the checkpoint moves in the user's own transaction.
//!
//! ```text
//! batch ─► the user's transaction: effects, batch.commit(&mut tx), COMMIT ─► returns Ok or an error
//!                                       │ refused: roll back                        │
//!                                       └─ WHERE owner, term and checkpoint         ▼
//!                                          are as before this batch       read the row back:
//!                                              at the batch's end ─► done, whatever was returned
//!                                              before it ──────────► the rest of it comes again
//! ```

use super::closure::{HandlerError, attempt};
use super::{HandlerCall, ProcessingMode, Work};
use crate::clock::{Clock, Rng};
use crate::consumer::progress::Progress;
use crate::lease::handle::HeldLease;
use crate::lease::{
    LeaseHandle, LeaseStore, StoreError, StoreTransaction, TransactionCheckpoint,
    TransactionalStore,
};
use crate::stream::api::StreamApi;
use anabranch_model::lease::{Checkpoint, Layout, LeaseKey, WriteRefusal};
use anabranch_model::position::Position;
use anabranch_model::record::UserRecord;
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::CancellationToken;

/// How long a commit waits for that of another lane.
const TURN_MS: u64 = 2_000;
/// The pause before the row is read again, after it could not be.
const AGAIN_MS: u64 = 100;

/// A closure per batch, whose effects are stored with the batch's checkpoint or not at all.
#[derive(Clone, Copy, Debug)]
pub struct ExactlyOnce<F> {
    /// The closure.
    pub(in crate::consumer) handle: F,
    /// How many records one call takes at most.
    pub(in crate::consumer) most: usize,
}

/// Records of one lane of one shard, in order, which are done when [`TransactionBatch::commit`] is
/// part of a transaction that was committed.
pub struct TransactionBatch<S> {
    /// The stream and shard.
    pub shard: Arc<LeaseKey>,
    /// The term of the lease under which they are delivered
    /// ([`Delivery::lease_term`](crate::consumer::Delivery::lease_term)).
    pub lease_term: u64,
    /// The records; never empty.
    pub records: Vec<UserRecord>,
    /// What the commit needs.
    ticket: Arc<CommitPermit<S>>,
}

impl<S> Deref for TransactionBatch<S> {
    type Target = [UserRecord];

    fn deref(&self) -> &[UserRecord] {
        &self.records
    }
}

impl<S> fmt::Debug for TransactionBatch<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TransactionBatch({}, {} records)", self.shard, self.records.len())
    }
}

/// Why a batch can't be committed. Roll the transaction back: the batch comes again, here or
/// elsewhere, unless it is done already.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The lease has changed hands, or the batch was committed before.
    #[error("{shard}: the batch can't be committed ({why}): roll the transaction back")]
    Refused {
        /// Which shard.
        shard: Arc<LeaseKey>,
        /// Which part of the condition was false.
        why: WriteRefusal,
    },
    /// The handler's call is over.
    #[error("{shard}: the handler has returned, so this batch can't be committed any more")]
    CallReturned {
        /// Which shard.
        shard: Arc<LeaseKey>,
    },
    /// Another lane of the shard is between its commit and its return.
    #[error(
        "{shard}: another lane has not ended its transaction within {TURN_MS} ms: make \
         batch.commit the last statement before COMMIT"
    )]
    Busy {
        /// Which shard.
        shard: Arc<LeaseKey>,
    },
    /// The database did not do it.
    #[error("{shard}: {source}")]
    Store {
        /// Which shard.
        shard: Arc<LeaseKey>,
        /// What it said.
        source: StoreError,
    },
}

/// The right to commit one batch, while the handler's call lasts.
struct CommitPermit<S> {
    /// What all lanes of the shard share.
    desk: Arc<CommitState<S>>,
    /// Which lane the records are of, and of how many.
    lane: usize,
    lanes: usize,
    /// The first record.
    first: Position,
    /// Up to where the lanes are done when the batch is; the row may be further in other lanes.
    to: Checkpoint,
    /// The turn, from the commit until the call ends.
    turn: Mutex<CommitTurn>,
}

enum CommitTurn {
    /// Nothing was committed.
    Open,
    /// No other lane may move the row.
    Mine { _guard: OwnedMutexGuard<()> },
    /// The call is over.
    Over,
}

/// What all lanes of a shard share.
struct CommitState<S> {
    /// Which shard.
    shard: Arc<LeaseKey>,
    /// The lease.
    held: Arc<HeldLease>,
    /// Where it is kept.
    store: Arc<S>,
    /// One lane at a time between its commit and the end of its call: all move one row.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Cancelled when the row stands where these lanes can't go on: a transaction of a call that was
    /// dropped, in another number of lanes, was stored after the reading had begun anew.
    overtaken: CancellationToken,
    /// The worker's clock.
    clock: Clock,
    /// The worker's chance.
    chance: Rng,
}

impl<S: TransactionalStore> TransactionBatch<S> {
    /// Notes in the user's transaction that the batch is done. Make it the last statement before
    /// `COMMIT`. After an error roll back, and return an error.
    ///
    /// The batch is done once the transaction is stored, whatever the handler returns, and it
    /// comes again if it is not.
    pub async fn commit<T: Send>(&self, transaction: &mut T) -> Result<(), CommitError>
    where
        S: StoreTransaction<T>,
    {
        let (ticket, shard) = (&self.ticket, || Arc::clone(&self.shard));
        let desk = &ticket.desk;
        ticket.take_turn().await?;
        let (hold, replaces) = {
            let row = desk.held.row().await;
            (row.hold.clone(), row.checkpoint.clone())
        };
        // A transaction of a call before, of which nothing was known, may have been stored meanwhile,
        // and another lane may have read that. To replace that row would repeat its effects.
        if position_of(ticket.lane, ticket.lanes, &replaces) >= ticket.first {
            return Err(CommitError::Refused {
                shard: shard(),
                why: WriteRefusal::CheckpointMoved,
            });
        }
        // One of other lanes may have done some of these records, and nobody can tell which.
        let ahead = |lane: &Position| *lane >= ticket.first;
        if replaces.lanes().len() != ticket.lanes && replaces.lanes().iter().any(ahead) {
            desk.overtaken.cancel();
            return Err(CommitError::Refused {
                shard: shard(),
                why: WriteRefusal::CheckpointBehind,
            });
        }
        let to = raised(&replaces, &ticket.to);
        let nonce = desk.chance.nonce();
        let moved = desk.store.checkpoint_in(transaction, &hold, &replaces, &to, nonce).await;
        match moved {
            Ok(TransactionCheckpoint::Written) => Ok(()),
            Ok(TransactionCheckpoint::Refused { why }) => {
                Err(CommitError::Refused { shard: shard(), why })
            }
            Err(source) => Err(CommitError::Store { shard: shard(), source }),
        }
    }
}

/// `to`, but no lane behind where the row has it.
fn raised(row: &Checkpoint, to: &Checkpoint) -> Checkpoint {
    let same = row.lanes().len() == to.lanes().len();
    let at = |lane: usize| if same { row.lanes()[lane] } else { row.lowest() };
    let lanes = to.lanes().iter().enumerate().map(|(lane, to)| (*to).max(at(lane)));
    Checkpoint::of_lanes(lanes.collect()).unwrap_or_else(|| to.clone())
}

/// Up to where a row has one lane of so many. One with another number of lanes is level, or says of
/// all no more than its lowest.
fn position_of(lane: usize, lanes: usize, row: &Checkpoint) -> Position {
    let of_lane = row.lanes().get(lane).copied();
    of_lane.filter(|_| row.lanes().len() == lanes).unwrap_or(row.lowest())
}

impl<S> CommitPermit<S> {
    async fn take_turn(&self) -> Result<(), CommitError> {
        let shard = || Arc::clone(&self.desk.shard);
        if let CommitTurn::Mine { .. } = *self.turn() {
            return Ok(());
        }
        let guard = tokio::select! {
            biased;
            guard = Arc::clone(&self.desk.turn).lock_owned() => guard,
            () = self.desk.clock.sleep(TURN_MS) => {
                return Err(CommitError::Busy { shard: shard() });
            }
        };
        let mut turn = self.turn();
        if let CommitTurn::Over = *turn {
            return Err(CommitError::CallReturned { shard: shard() });
        }
        *turn = CommitTurn::Mine { _guard: guard };
        Ok(())
    }

    fn turn(&self) -> MutexGuard<'_, CommitTurn> {
        // One word, so a panic leaves no half of one.
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the right to commit when the call ends, however that happens.
struct CommitGuard<'a, S>(&'a CommitPermit<S>);

impl<S> Drop for CommitGuard<'_, S> {
    fn drop(&mut self) {
        *self.0.turn() = CommitTurn::Over;
    }
}

/// The closure at work on one shard.
pub struct ExactlyOnceWork<S, F> {
    /// The closure of all shards.
    shape: Arc<ExactlyOnce<F>>,
    /// What its lanes share.
    desk: Arc<CommitState<S>>,
}

impl<S, F> fmt::Debug for ExactlyOnceWork<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Committing({})", self.desk.shard)
    }
}

impl<S, F, T, E> ProcessingMode<S> for ExactlyOnce<F>
where
    S: TransactionalStore,
    F: Fn(TransactionBatch<S>) -> T + Send + Sync + 'static,
    T: Future<Output = Result<(), E>> + Send,
    E: Into<HandlerError>,
{
    type ShardWork = ExactlyOnceWork<S, F>;

    fn max_records(&self) -> usize {
        self.most
    }

    fn work<A: StreamApi>(
        self: &Arc<Self>,
        grip: &Arc<LeaseHandle<S, A>>,
    ) -> ExactlyOnceWork<S, F> {
        let (held, tools) = grip.held_and_context();
        let desk = CommitState {
            shard: Arc::new(grip.key().clone()),
            held: Arc::clone(held),
            store: Arc::clone(&tools.store),
            turn: Arc::default(),
            overtaken: CancellationToken::new(),
            clock: tools.clock.clone(),
            chance: tools.rng.clone(),
        };
        ExactlyOnceWork { shape: Arc::clone(self), desk: Arc::new(desk) }
    }
}

impl<S, F, T, E> Work for ExactlyOnceWork<S, F>
where
    S: TransactionalStore,
    F: Fn(TransactionBatch<S>) -> T + Send + Sync + 'static,
    T: Future<Output = Result<(), E>> + Send,
    E: Into<HandlerError>,
{
    async fn handle(&self, call: HandlerCall<'_>) -> Result<(), HandlerError> {
        let lanes = call.progress.lanes();
        // A call that was dropped may have been committed all the same. The row says so, once a
        // refused commit has had it read. Nothing may wait here: the lane's look at the lease's
        // deadline and the closure's call are one poll, and a write to the row can take all the
        // time that is left of the lease.
        let stored = position_of(call.lane, lanes, &self.desk.held.known_checkpoint());
        let undone = call.records.partition_point(|record| record.position() <= stored);
        let records = &call.records[undone..];
        let Some((first, last)) = records.first().zip(records.last()) else { return Ok(()) };
        let (first, last) = (first.position(), last.position());
        let ticket = Arc::new(CommitPermit {
            desk: Arc::clone(&self.desk),
            lane: call.lane,
            lanes,
            first,
            to: call.progress.checkpoint_after(call.lane, last),
            turn: Mutex::new(CommitTurn::Open),
        });
        let over = CommitGuard(&ticket);
        let batch = TransactionBatch {
            shard: Arc::clone(&self.desk.shard),
            lease_term: self.desk.held.taken_row().term,
            records: records.to_vec(),
            ticket: Arc::clone(&ticket),
        };
        let said = attempt(async { (self.shape.handle)(batch).await.map_err(Into::into) }).await;
        let done = self.desk.is_done(call.lane, lanes, last).await?;
        drop(over);
        match said {
            _ if done => Ok(()),
            Err(error) => Err(error),
            Ok(()) => Err("the handler returned, but no transaction with batch.commit(..) in it \
                           was committed"
                .into()),
        }
    }

    /// A row that lanes move in transactions is written by the library only while none does.
    fn checkpoint_for(&self, progress: &Progress, layout: Layout) -> Option<Checkpoint> {
        (progress.open() == 0).then(|| progress.checkpoint(layout))
    }

    /// Whoever takes the shard again reads on from the row.
    async fn wait_gave_up(&self) {
        self.desk.overtaken.cancelled().await;
    }
}

impl<S: LeaseStore> CommitState<S> {
    /// Whether the row says that the lane is done up to `last`. Asked until the store answers: a
    /// transaction of which nothing is known must not be repeated.
    async fn is_done(
        &self,
        lane: usize,
        lanes: usize,
        last: Position,
    ) -> Result<bool, HandlerError> {
        loop {
            match self.store.get(&self.shard).await {
                Ok(row) => {
                    let row = row.ok_or("the lease row is gone")?;
                    if !self.held.update_from_row(&row).await {
                        return Err("the lease is lost".into());
                    }
                    return Ok(position_of(lane, lanes, &row.checkpoint) >= last);
                }
                Err(error) if self.held.is_lost(self.clock.now_ms()) => return Err(error.into()),
                Err(_) => self.clock.sleep(AGAIN_MS).await,
            }
        }
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests;
