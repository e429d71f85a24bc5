//! Checkpoints inside the user's own transaction: the traits that a store implements for them.

use super::store::{LeaseStore, StoreError};
use anabranch_model::lease::{Checkpoint, LeaseToken, Nonce, WriteRefusal};
use std::future::Future;

/// The result of a checkpoint inside the user's transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum TransactionCheckpoint {
    /// The checkpoint moves when the transaction is committed.
    Written,
    /// The checkpoint does not move, and nothing else in the transaction may be committed: roll it
    /// back, then read the lease again.
    Refused {
        /// The part of the condition that was false.
        why: WriteRefusal,
    },
}

/// A store whose checkpoints can move in a transaction of the user's own: a SQL database.
pub trait TransactionalStore: LeaseStore {}

/// A transaction type in which a store can move a checkpoint: `sqlx`'s, for PostgreSQL and SQLite.
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
