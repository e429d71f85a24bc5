//! A checkpoint inside the user's own transaction, so that it and the effects of the records are
//! stored together or not at all.

use super::cell::Cell;
use super::failure::Failure;
use super::link::Wire;
use super::row;
use super::store::SqlStore;
use crate::lease::{LeaseStore, StoreError};
use anabranch_model::lease::{Checkpoint, Hold, Layout, LeaseChange, Nonce, Refusal};

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
pub trait Transactional: LeaseStore {
    /// The database.
    type Database: sqlx::Database;

    /// Moves the checkpoint of a lease inside `transaction`, if the lease is still held and its
    /// checkpoint is the one to be replaced.
    fn checkpoint_in(
        &self,
        transaction: &mut sqlx::Transaction<'_, Self::Database>,
        hold: &Hold,
        replaces: &Checkpoint,
        to: &Checkpoint,
        nonce: Nonce,
    ) -> impl Future<Output = Result<CheckpointInTransaction, StoreError>> + Send;
}

impl SqlStore {
    pub(crate) async fn checkpoint_in(
        &self,
        wire: &mut Wire<'_>,
        hold: &Hold,
        replaces: &Checkpoint,
        to: &Checkpoint,
        nonce: Nonce,
    ) -> Result<CheckpointInTransaction, StoreError> {
        if !replaces.may_become(to) {
            return Ok(CheckpointInTransaction::Refused { why: Refusal::GoesBack });
        }
        let moved = self.move_checkpoint(wire, hold, replaces, to, nonce);
        self.within(self.patience.call, moved)
            .await
            .map_err(|failure| failure.of_store(&self.label))
    }

    async fn move_checkpoint(
        &self,
        wire: &mut Wire<'_>,
        hold: &Hold,
        replaces: &Checkpoint,
        to: &Checkpoint,
        nonce: Nonce,
    ) -> Result<CheckpointInTransaction, Failure> {
        let mut cells = self.with_application(row::lease_key(&hold.key));
        cells.extend([
            Cell::text(hold.owner.as_str()),
            Cell::number(hold.term),
            Cell::text(&replaces.to_string()),
            Cell::text(&to.to_string()),
            Cell::Flag(to.is_shard_end()),
            Cell::number(nonce.0),
        ]);
        if !self.statements.dialect.bound_transaction.is_empty() {
            cells.push(Cell::text(&format!("{}ms", self.patience.call.as_millis())));
        }
        if !wire.rows(&self.statements.checkpoint, cells).await?.is_empty() {
            return Ok(CheckpointInTransaction::Moved);
        }
        let key = self.with_application(row::lease_key(&hold.key));
        let now = wire.rows(&self.statements.lease.get, key).await?.into_iter().next();
        let now = now.map(row::lease).transpose()?;
        let change = LeaseChange::Checkpoint {
            owner: hold.owner.clone(),
            term: hold.term,
            replaces: replaces.clone(),
            to: to.clone(),
            pending: None,
            bytes_per_second: None,
        };
        // A row that fits by now did not fit when it counted.
        let why = Layout::Native.lease_after(&hold.key, &change, nonce, now.as_ref()).err();
        Ok(CheckpointInTransaction::Refused { why: why.unwrap_or(Refusal::CheckpointMoved) })
    }
}
