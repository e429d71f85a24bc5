//! Exactly-once effects: the checkpoint moves in the user's own transaction.
//!
//! ```text
//! batch ─► user's transaction: effects, batch.commit(&mut tx), COMMIT ─► returns Ok or an error
//!                                       │ refused: roll back                   │
//!                                       └─ WHERE owner, term and checkpoint    ▼
//!                                          are as before this batch       read the row back:
//!                                     at the end of the batch ─► done, whatever was returned
//!                                     before it ───────────────► the rest is delivered again
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

/// Time that a commit waits for the commit of another lane, in milliseconds.
const TURN_MS: u64 = 2_000;
/// Pause before the row is read again after a failed read, in milliseconds.
const AGAIN_MS: u64 = 100;

/// Handler that calls a closure for each batch. The effects of the batch are stored together with
/// its checkpoint, or not at all.
#[derive(Clone, Copy, Debug)]
pub struct ExactlyOnce<F> {
    pub(in crate::consumer) handle: F,
    /// Maximum number of records per call.
    pub(in crate::consumer) most: usize,
}

/// Records of one lane of one shard, in order. They are done once a transaction that includes
/// [`TransactionBatch::commit`] is committed.
pub struct TransactionBatch<S> {
    /// Stream and shard of the records.
    pub shard: Arc<LeaseKey>,
    /// Term of the lease under which the records are delivered
    /// ([`Delivery::lease_term`](crate::consumer::Delivery::lease_term)).
    pub lease_term: u64,
    /// Records in order; at least one.
    pub records: Vec<UserRecord>,
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

/// Reason why a batch cannot be committed. Roll the transaction back: the batch is delivered again,
/// here or by another worker, unless it is already done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// The lease has changed hands, or the batch was committed before.
    #[error("{shard}: the batch cannot be committed ({why}): roll the transaction back")]
    Refused {
        /// Shard of the batch.
        shard: Arc<LeaseKey>,
        /// Part of the write's condition that was false.
        why: WriteRefusal,
    },
    /// The handler's call has ended.
    #[error(
        "{shard}: the handler has returned, so its batch can no longer be committed: roll the \
         transaction back"
    )]
    CallReturned {
        /// Shard of the batch.
        shard: Arc<LeaseKey>,
    },
    /// Another lane of the shard is between its commit and the end of its call.
    #[error(
        "{shard}: the transaction of another lane did not end within {TURN_MS} ms: make \
         batch.commit the last statement before COMMIT"
    )]
    Busy {
        /// Shard of the batch.
        shard: Arc<LeaseKey>,
    },
    /// The database failed or rejected the write.
    #[error("{shard}: {source}")]
    Store {
        /// Shard of the batch.
        shard: Arc<LeaseKey>,
        /// Error of the lease store.
        source: StoreError,
    },
}

/// Right to commit one batch, valid while the handler's call lasts.
struct CommitPermit<S> {
    desk: Arc<CommitState<S>>,
    /// Lane of the records, and the number of lanes.
    lane: usize,
    lanes: usize,
    /// Position of the first record.
    first: Position,
    /// Checkpoint of the lanes once the batch is done. Other lanes of the row may be further.
    to: Checkpoint,
    /// This lane's turn to move the row, from the commit until the call ends.
    turn: Mutex<CommitTurn>,
}

enum CommitTurn {
    /// No commit was attempted.
    Open,
    /// This lane has the turn; no other lane may move the row.
    Mine { _guard: OwnedMutexGuard<()> },
    /// The call has ended.
    Over,
}

/// State shared by all lanes of a shard.
struct CommitState<S> {
    shard: Arc<LeaseKey>,
    held: Arc<HeldLease>,
    store: Arc<S>,
    /// Held by one lane at a time from its commit to the end of its call, because all lanes move
    /// the same row.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Cancelled when the row is at a checkpoint from which these lanes cannot continue: the
    /// transaction of a dropped call, with another number of lanes, was stored after the reading
    /// had restarted.
    overtaken: CancellationToken,
    clock: Clock,
    chance: Rng,
}

impl<S: TransactionalStore> TransactionBatch<S> {
    /// Marks the batch as done within the user's transaction. Make it the last statement before
    /// `COMMIT`. After an error, roll back and return an error.
    ///
    /// The batch is done once the transaction is stored, whatever the handler returns. Otherwise it
    /// is delivered again.
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
        // A transaction of an earlier call, whose outcome was unknown, may have been stored
        // meanwhile, and another lane may have read the row since. Replacing that row would repeat
        // its effects.
        if position_of(ticket.lane, ticket.lanes, &replaces) >= ticket.first {
            return Err(CommitError::Refused {
                shard: shard(),
                why: WriteRefusal::CheckpointMoved,
            });
        }
        // A transaction of a session with another number of lanes may have done some of these
        // records, and it is impossible to tell which.
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

/// Returns `to` with no lane behind its position in `row`.
fn raised(row: &Checkpoint, to: &Checkpoint) -> Checkpoint {
    let same = row.lanes().len() == to.lanes().len();
    let at = |lane: usize| if same { row.lanes()[lane] } else { row.lowest() };
    let lanes = to.lanes().iter().enumerate().map(|(lane, to)| (*to).max(at(lane)));
    Checkpoint::of_lanes(lanes.collect()).unwrap_or_else(|| to.clone())
}

/// Returns the position of one lane of `lanes` in a row. A row with another number of lanes is
/// level, or vouches only for its lowest position.
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
        // Each change is one assignment, so a panic leaves no inconsistent state.
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the right to commit when the call ends, in whatever manner.
struct CommitGuard<'a, S>(&'a CommitPermit<S>);

impl<S> Drop for CommitGuard<'_, S> {
    fn drop(&mut self) {
        *self.0.turn() = CommitTurn::Over;
    }
}

/// The closure at work on one shard.
pub struct ExactlyOnceWork<S, F> {
    /// The closure, shared by all shards.
    shape: Arc<ExactlyOnce<F>>,
    /// State shared by the lanes.
    desk: Arc<CommitState<S>>,
}

impl<S, F> fmt::Debug for ExactlyOnceWork<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExactlyOnceWork({})", self.desk.shard)
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
        // The transaction of a dropped call may have been committed nevertheless. The row shows
        // that once a refused commit has caused it to be read. There must be no await here: the
        // lane's check of the lease deadline and the call of the closure happen in one poll, and
        // waiting for a write to the row can take all the time left of the lease.
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
            Ok(()) => Err("the handler returned without a committed transaction that contains \
                           batch.commit(..)"
                .into()),
        }
    }

    /// Returns a checkpoint only while no record is open: otherwise the lanes move the row in their
    /// own transactions.
    fn checkpoint_for(&self, progress: &Progress, layout: Layout) -> Option<Checkpoint> {
        (progress.open() == 0).then(|| progress.checkpoint(layout))
    }

    /// Resolves when the lanes are overtaken. After the shard is taken again, reading continues
    /// from the row.
    async fn wait_gave_up(&self) {
        self.desk.overtaken.cancelled().await;
    }
}

impl<S: LeaseStore> CommitState<S> {
    /// Returns true if the row says that the lane is done up to `last`. Retries until the store
    /// answers or the lease is lost, because a transaction with an unknown outcome must not be
    /// repeated.
    async fn is_done(
        &self,
        lane: usize,
        lanes: usize,
        last: Position,
    ) -> Result<bool, HandlerError> {
        loop {
            match self.store.get(&self.shard).await {
                Ok(row) => {
                    let row = row.ok_or("the lease row was deleted")?;
                    if !self.held.update_from_row(&row).await {
                        return Err("the lease was lost".into());
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
