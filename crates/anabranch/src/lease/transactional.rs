//! A checkpoint inside the user's own transaction: what a store has to offer for it.

use super::store::{LeaseStore, StoreError};
use anabranch_model::lease::{Checkpoint, Hold, Nonce, Refusal};
use std::future::Future;

/// What became of a checkpoint inside the user's transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum CheckpointInTransaction {
    /// It moves when the transaction is committed.
    Moved,
    /// It does not move, and nor may anything else in the transaction: roll it back, then read the
    /// lease again.
    Refused {
        /// Which part of the condition was false.
        why: Refusal,
    },
}

/// A store whose checkpoints can move in a transaction of the user's own: one in a SQL database.
pub trait Transactional: LeaseStore {}

/// Transactions in which a store can move a checkpoint: `sqlx`'s for PostgreSQL and SQLite.
pub trait CheckpointIn<T>: Transactional {
    /// Moves the checkpoint of a lease inside `transaction`, if the lease is still held and its
    /// checkpoint is the one to be replaced.
    fn checkpoint_in(
        &self,
        transaction: &mut T,
        hold: &Hold,
        replaces: &Checkpoint,
        to: &Checkpoint,
        nonce: Nonce,
    ) -> impl Future<Output = Result<CheckpointInTransaction, StoreError>> + Send;
}
