//! What a processor says what is done with: KCL's rules, KCL's names for what goes wrong.

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

/// Says up to where a shard is done. Clones are of one processor; they may be kept, and used
/// outside of the callbacks.
#[derive(Clone)]
pub struct Checkpointer {
    desk: Arc<CheckpointerState>,
}

struct CheckpointerState {
    /// Which shard.
    shard: Arc<LeaseKey>,
    /// The lease, for as long as the shard is read. A checkpointer that somebody keeps must not
    /// keep the lease.
    row: Weak<dyn CheckpointRow>,
    /// One write at a time, each judged by what the one before has left.
    turn: tokio::sync::Mutex<()>,
    /// What may be checkpointed.
    marks: Mutex<CheckpointRules>,
    /// Whether another processor has taken the place of this one. Changes in `turn` only.
    closed: AtomicBool,
}

/// The row of a lease that is held, whatever store it is in.
trait CheckpointRow: Send + Sync {
    /// Writes the position, in the row's own number of lanes.
    fn write(&self, to: Position, pending: Option<PendingCheckpoint>) -> CheckpointWrite<'_>;

    /// Up to where the row was last heard to be done.
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

/// What became of a write that the row did not take amiss.
enum RowWriteResult {
    /// The row holds it.
    Done,
    /// The row holds more: one that was given up has landed. The marks know.
    Behind,
}

/// Why nothing was checkpointed.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The position is not one that may be checkpointed now.
    #[error("{shard}: {source}")]
    Invalid {
        /// Which shard.
        shard: Arc<LeaseKey>,
        /// What may be.
        source: Box<CheckpointOutOfRange>,
    },
    /// The lease is lost, or was given back: another worker may process these records. Or another
    /// processor has taken the place of this one, which could not go on.
    #[error("{shard}: the shard is no longer this processor's, so nothing can be checkpointed")]
    Shutdown {
        /// Which shard.
        shard: Arc<LeaseKey>,
    },
    /// The lease table is not there any more, or is not one that can be written.
    #[error("{shard}: {source}")]
    InvalidState {
        /// Which shard.
        shard: Arc<LeaseKey>,
        /// What the store said.
        source: StoreError,
    },
    /// The lease store will not do it.
    #[error("{shard}: {source}")]
    Dependency {
        /// Which shard.
        shard: Arc<LeaseKey>,
        /// What the store said.
        source: StoreError,
    },
}

impl CheckpointError {
    /// What KCL throws in this case. A store that throttles is asked again for as long as the
    /// lease is held, so `ThrottlingException` is never seen.
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
/// The next owner's `initialize` is shown its position and state, unless another checkpoint was
/// made since.
#[derive(Clone, Debug)]
#[must_use = "what is prepared is not checkpointed"]
pub struct PreparedCheckpoint {
    checkpointer: Checkpointer,
    /// Up to where.
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

    /// Everything that was given so far is done.
    pub async fn checkpoint(&self) -> Result<(), CheckpointError> {
        let largest = self.write_ahead_state().largest();
        self.checkpoint_at(largest).await
    }

    /// Everything up to and including the record at `position` is done. It may not lie before the
    /// last checkpoint, nor behind the last record that was given.
    ///
    /// Dropped on the way, it may be made all the same. The ones after it are judged as if it had not
    /// been, and take nothing where the row holds as much already.
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

    /// Announces a checkpoint at `position`, or at everything given so far, and keeps `state`
    /// beside it, for whoever reads the shard next if the checkpoint is never made.
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

    /// The last checkpoint that was made.
    pub fn last(&self) -> Position {
        self.write_ahead_state().last()
    }

    /// Waits for the writes that were asked for before.
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

    /// Everything up to `position` goes to the processor.
    pub(in crate::consumer) fn note_delivered(&self, position: Position) {
        self.write_ahead_state().note_delivered(position);
    }

    /// The shard has no more records.
    pub(in crate::consumer) fn at_end(&self) {
        self.write_ahead_state().at_end();
    }

    /// Whether all that was given is checkpointed, since the shard is known to have no more.
    pub fn has_ended(&self) -> bool {
        self.write_ahead_state().has_ended()
    }

    /// Takes no more checkpoints. Returns one for another processor, which is given everything
    /// again from the last checkpoint on: what the first one did must not count as done by it. One
    /// that was given up counts if the row is known to hold it.
    pub(in crate::consumer) async fn restart(&self) -> Self {
        // A write that is under way still counts.
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
        // Each change is a few plain assignments, so a panic leaves no half of one.
        self.desk.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Checkpointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Checkpointer({}, {:?})", self.desk.shard, self.write_ahead_state())
    }
}

impl PreparedCheckpoint {
    /// Up to where.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Makes the checkpoint that was prepared.
    pub async fn checkpoint(&self) -> Result<(), CheckpointError> {
        self.checkpointer.checkpoint_at(self.position).await
    }
}
