//! Checkpoints made by a processor, with KCL's rules and KCL's names for errors.

use crate::consumer::checkpoint::in_lanes_of;
use crate::lease::{CheckpointResult, LeaseHandle, LeaseStore, StoreError};
use crate::stream::api::StreamApi;
use anabranch_model::lease::checkpoint_rules::{
    CheckpointOutOfRange, CheckpointRules, CheckpointStep,
};
use anabranch_model::lease::{LeaseKey, PendingCheckpoint};
use anabranch_model::position::Position;
use bytes::Bytes;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Checkpoints the progress of a processor. Clones belong to the same processor; they may be kept
/// and used outside the callbacks.
#[derive(Clone)]
pub struct Checkpointer {
    desk: Arc<CheckpointerState>,
}

struct CheckpointerState {
    shard: Arc<LeaseKey>,
    /// Lease row, while the shard is read. It is weak, so that a checkpointer that is kept does not
    /// keep the lease.
    row: Weak<dyn CheckpointRow>,
    /// Serializes writes, so that each is judged by the result of the one before.
    turn: tokio::sync::Mutex<()>,
    /// Rules that decide which positions may be checkpointed.
    marks: Mutex<CheckpointRules>,
    /// True once another processor has replaced this one. Changes only while `turn` is held.
    closed: AtomicBool,
}

/// The row of a held lease, independent of the lease store.
trait CheckpointRow: Send + Sync {
    /// Writes the position, in the row's own number of lanes.
    fn write(&self, to: Position, pending: Option<PendingCheckpoint>) -> CheckpointWrite<'_>;

    /// Returns the position up to which the row was last known to be done.
    fn known(&self) -> Position;
}

type CheckpointWrite<'a> = Pin<Box<dyn Future<Output = CheckpointResult> + Send + 'a>>;

impl<S: LeaseStore, A: StreamApi> CheckpointRow for LeaseHandle<S, A> {
    fn write(&self, to: Position, pending: Option<PendingCheckpoint>) -> CheckpointWrite<'_> {
        Box::pin(async move {
            let to = in_lanes_of(&self.lease().checkpoint, to);
            self.checkpoint(to, pending).await
        })
    }

    fn known(&self) -> Position {
        self.held_and_context().0.known_checkpoint().lowest()
    }
}

/// Result of a write that did not fail.
enum RowWriteResult {
    /// The row holds the checkpoint.
    Done,
    /// The row holds a later checkpoint: a write that was abandoned has landed. The rules take it
    /// into account.
    Behind,
}

/// Error of a checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The position may not be checkpointed now.
    #[error("{shard}: {source}")]
    Invalid {
        /// Shard of the processor.
        shard: Arc<LeaseKey>,
        /// The range that may be checkpointed.
        source: Box<CheckpointOutOfRange>,
    },
    /// The lease was lost or released, so another worker may process these records; or another
    /// processor has replaced this one, which could not continue.
    #[error("{shard}: this processor no longer holds the shard, so it cannot write checkpoints")]
    Shutdown {
        /// Shard of the processor.
        shard: Arc<LeaseKey>,
    },
    /// The lease table no longer exists, or cannot be written.
    #[error("{shard}: {source}")]
    InvalidState {
        /// Shard of the processor.
        shard: Arc<LeaseKey>,
        /// Error of the lease store.
        source: StoreError,
    },
    /// The lease store failed.
    #[error("{shard}: {source}")]
    Dependency {
        /// Shard of the processor.
        shard: Arc<LeaseKey>,
        /// Error of the lease store.
        source: StoreError,
    },
}

impl CheckpointError {
    /// Returns the name of the exception that KCL throws in this case. `ThrottlingException` never
    /// occurs, because a store that throttles is retried for as long as the lease is held.
    pub fn java_name(&self) -> &'static str {
        match self {
            Self::Invalid { .. } => "IllegalArgumentException",
            Self::Shutdown { .. } => "ShutdownException",
            Self::InvalidState { .. } => "InvalidStateException",
            Self::Dependency { .. } => "KinesisClientLibDependencyException",
        }
    }
}

/// A checkpoint that was announced: the first of two phases.
///
/// The next owner's `initialize` gets its position and state, unless another checkpoint was made
/// since.
#[derive(Clone, Debug)]
#[must_use = "a prepared checkpoint takes effect only once it is committed"]
pub struct PreparedCheckpoint {
    checkpointer: Checkpointer,
    position: Position,
}

impl Checkpointer {
    pub(in crate::consumer) fn new<S: LeaseStore, A: StreamApi>(
        shard: Arc<LeaseKey>,
        grip: &Arc<LeaseHandle<S, A>>,
    ) -> Self {
        let marks = Mutex::new(CheckpointRules::from(grip.lease().checkpoint.lowest()));
        let row: Arc<dyn CheckpointRow> = Arc::clone(grip) as _;
        let (row, turn) = (Arc::downgrade(&row), tokio::sync::Mutex::default());
        let closed = AtomicBool::new(false);
        Self { desk: Arc::new(CheckpointerState { shard, row, turn, marks, closed }) }
    }

    /// Checkpoints all records delivered so far.
    pub async fn checkpoint(&self) -> Result<(), CheckpointError> {
        let largest = self.write_ahead_state().largest();
        self.checkpoint_at(largest).await
    }

    /// Checkpoints all records up to and including the one at `position`. The position may not lie
    /// before the last checkpoint, nor after the last record delivered.
    ///
    /// If this future is dropped, the checkpoint may be written nevertheless. Later checkpoints are
    /// judged as if it had not been, and write nothing if the row already holds as much.
    pub async fn checkpoint_at(&self, position: Position) -> Result<(), CheckpointError> {
        let _turn = self.turn().await?;
        while let CheckpointStep::To(to) = self.judge(position)? {
            if let RowWriteResult::Done = self.write(to, None).await? {
                break;
            }
        }
        self.write_ahead_state().note_checkpoint(position);
        Ok(())
    }

    /// Announces a checkpoint at `position`, or at the last record delivered, and stores `state`
    /// with it. The next reader of the shard gets both if the checkpoint is never made.
    pub async fn prepare(
        &self,
        position: Option<Position>,
        state: Bytes,
    ) -> Result<PreparedCheckpoint, CheckpointError> {
        let _turn = self.turn().await?;
        let position = position.unwrap_or_else(|| self.write_ahead_state().largest());
        while let CheckpointStep::To(to) = self.judge(position)? {
            let pending = PendingCheckpoint { position: to, state: Some(state.clone()) };
            let held = self.write_ahead_state().stored();
            if let RowWriteResult::Done = self.write(held, Some(pending)).await? {
                break;
            }
        }
        Ok(PreparedCheckpoint { checkpointer: self.clone(), position })
    }

    /// Returns the last checkpoint that was made.
    pub fn last(&self) -> Position {
        self.write_ahead_state().last()
    }

    /// Waits for earlier writes. Fails if another processor has replaced this one.
    async fn turn(&self) -> Result<tokio::sync::MutexGuard<'_, ()>, CheckpointError> {
        let turn = self.desk.turn.lock().await;
        if self.desk.closed.load(Ordering::Relaxed) {
            return Err(CheckpointError::Shutdown { shard: Arc::clone(&self.desk.shard) });
        }
        Ok(turn)
    }

    fn judge(&self, position: Position) -> Result<CheckpointStep, CheckpointError> {
        let shard = || Arc::clone(&self.desk.shard);
        self.write_ahead_state()
            .check(position)
            .map_err(|wrong| CheckpointError::Invalid { shard: shard(), source: Box::new(wrong) })
    }

    async fn write(
        &self,
        to: Position,
        pending: Option<PendingCheckpoint>,
    ) -> Result<RowWriteResult, CheckpointError> {
        let shard = || Arc::clone(&self.desk.shard);
        let Some(row) = self.desk.row.upgrade() else {
            return Err(CheckpointError::Shutdown { shard: shard() });
        };
        match row.write(to, pending).await {
            CheckpointResult::Done => Ok(RowWriteResult::Done),
            CheckpointResult::Lost => Err(CheckpointError::Shutdown { shard: shard() }),
            CheckpointResult::BehindCurrent
                if self.write_ahead_state().note_stored(row.known()) =>
            {
                Ok(RowWriteResult::Behind)
            }
            CheckpointResult::BehindCurrent => {
                let source = Box::new(self.write_ahead_state().out_of_range(to));
                Err(CheckpointError::Invalid { shard: shard(), source })
            }
            CheckpointResult::Failed(
                source @ (StoreError::ForeignSchema { .. }
                | StoreError::Missing { .. }
                | StoreError::Unusable { .. }),
            ) => Err(CheckpointError::InvalidState { shard: shard(), source }),
            CheckpointResult::Failed(source) => {
                Err(CheckpointError::Dependency { shard: shard(), source })
            }
        }
    }

    /// Notes that everything up to `position` is delivered to the processor.
    pub(in crate::consumer) fn note_delivered(&self, position: Position) {
        self.write_ahead_state().note_delivered(position);
    }

    /// Notes that the shard has no more records.
    pub(in crate::consumer) fn at_end(&self) {
        self.write_ahead_state().at_end();
    }

    /// Returns true if everything delivered was checkpointed after the shard was known to have no
    /// more records.
    pub fn has_ended(&self) -> bool {
        self.write_ahead_state().has_ended()
    }

    /// Closes this checkpointer, and returns one for another processor. The new processor receives
    /// everything after the last checkpoint again, so checkpoints of the old one must not count for
    /// it. A write that was abandoned counts if the row is known to hold it.
    pub(in crate::consumer) async fn restart(&self) -> Self {
        // A write in flight still counts.
        let _turn = self.desk.turn.lock().await;
        self.desk.closed.store(true, Ordering::Relaxed);
        let from = {
            let mut marks = self.write_ahead_state();
            if let Some(row) = self.desk.row.upgrade() {
                marks.note_stored(row.known());
            }
            marks.stored()
        };
        let desk = CheckpointerState {
            shard: Arc::clone(&self.desk.shard),
            row: Weak::clone(&self.desk.row),
            turn: tokio::sync::Mutex::default(),
            marks: Mutex::new(CheckpointRules::from(from)),
            closed: AtomicBool::new(false),
        };
        Self { desk: Arc::new(desk) }
    }

    fn write_ahead_state(&self) -> MutexGuard<'_, CheckpointRules> {
        // Each change is a few plain assignments, so a panic leaves no inconsistent state.
        self.desk.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Checkpointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Checkpointer({}, {:?})", self.desk.shard, self.write_ahead_state())
    }
}

impl PreparedCheckpoint {
    /// Returns the prepared position.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Makes the prepared checkpoint.
    pub async fn checkpoint(&self) -> Result<(), CheckpointError> {
        self.checkpointer.checkpoint_at(self.position).await
    }
}
