//! Checkpoints inside the user's own transaction, so that a checkpoint and the effects of the
//! records are stored together or not at all.

use super::cell::Cell;
use super::failure::SqlFailure;
use super::link::SqlExecutor;
use super::row;
use super::store::SqlStore;
use crate::lease::{StoreError, TransactionCheckpoint};
use anabranch_model::lease::{Checkpoint, Layout, LeaseChange, LeaseToken, Nonce, WriteRefusal};

impl SqlStore {
    pub(crate) async fn checkpoint_in(
        &self,
        wire: &mut SqlExecutor<'_>,
        hold: &LeaseToken,
        replaces: &Checkpoint,
        to: &Checkpoint,
        nonce: Nonce,
    ) -> Result<TransactionCheckpoint, StoreError> {
        if !replaces.may_become(to) {
            return Ok(TransactionCheckpoint::Refused { why: WriteRefusal::CheckpointBehind });
        }
        let moved = self.write_checkpoint(wire, hold, replaces, to, nonce);
        self.with_timeout(self.patience.call, moved)
            .await
            .map_err(|failure| failure.of_store(&self.label))
    }

    async fn write_checkpoint(
        &self,
        wire: &mut SqlExecutor<'_>,
        hold: &LeaseToken,
        replaces: &Checkpoint,
        to: &Checkpoint,
        nonce: Nonce,
    ) -> Result<TransactionCheckpoint, SqlFailure> {
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
            return Ok(TransactionCheckpoint::Written);
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
        // The row may satisfy the condition by now, but it did not when the update ran.
        let why = Layout::Native.lease_after(&hold.key, &change, nonce, now.as_ref()).err();
        Ok(TransactionCheckpoint::Refused { why: why.unwrap_or(WriteRefusal::CheckpointMoved) })
    }
}
