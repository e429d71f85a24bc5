//! A checkpoint inside the user's own transaction: what a store has to offer for it.

use super::store::{LeaseStore, StoreError};
use anabranch_model::lease::{Checkpoint, LeaseToken, Nonce, WriteRefusal};
use std::future::Future;

/// What became of a checkpoint inside the user's transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum TransactionCheckpoint {
    /// It moves when the transaction is committed.
    Written,
    /// It does not move, and nor may anything else in the transaction: roll it back, then read the
    /// lease again.
    Refused {
        /// Which part of the condition was false.
        why: WriteRefusal,
    },
}

/// A store whose checkpoints can move in a transaction of the user's own: one in a SQL database.
pub trait TransactionalStore: LeaseStore {}

/// Transactions in which a store can move a checkpoint: `sqlx`'s for PostgreSQL and SQLite.
pub trait StoreTransaction<T>: TransactionalStore {
    /// Moves the checkpoint of a lease inside `transaction`, if the lease is still held and its
    /// checkpoint is the one to be replaced.
    fn checkpoint_in(
        &self,
        transaction: &mut T,
        hold: &LeaseToken,
        replaces: &Checkpoint,
        to: &Checkpoint,
        nonce: Nonce,
    ) -> impl Future<Output = Result<TransactionCheckpoint, StoreError>> + Send;
}
