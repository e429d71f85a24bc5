//! Transactions of handlers: the effects of records, and their checkpoint, in memory.
//!
//! A transaction is checked twice, as with optimistic locking: when the checkpoint is added to it,
//! and when it arrives at the rows. It is applied there at once or not at all.

use crate::faults::FaultyStore;
use crate::flaw::FlawedStore;
use crate::flaw::consumer::ConsumerFlaw;
use crate::modes::FleetStore;
use crate::rows::{LeaseRows, WriteEffect};
use anabranch::consumer::HandlerError;
use anabranch::lease::{
    LeaseStore, StoreError, StoreTransaction, TransactionCheckpoint, TransactionalStore,
};
use anabranch_model::lease::{
    Checkpoint, Layout, LeaseChange, LeaseToken, Nonce, Write, WriteOutcome,
};

/// A transaction until it is committed. Dropping it rolls it back.
#[derive(Debug, Default)]
pub struct Transaction {
    /// Checkpoint that the transaction writes.
    write: Option<Write>,
}

impl Transaction {
    /// Stores the checkpoint and applies the effects if the lease is still held unchanged. After an
    /// error the transaction may already have been applied, or may be applied later.
    pub(crate) async fn commit(
        self,
        store: &FleetStore,
        rows: &LeaseRows,
        effect: impl Fn() + Send + Sync + 'static,
    ) -> Result<(), HandlerError> {
        let write = self.write.ok_or("a transaction without a checkpoint")?;
        let effect = WriteEffect::new(effect);
        rows.attach(&write, effect.clone());
        match store.write(&write).await? {
            WriteOutcome::Done(_) => Ok(()),
            WriteOutcome::Refused { why, .. } => {
                if store.flaw() == ConsumerFlaw::KeepsRefusedEffects {
                    effect.apply();
                }
                Err(format!("rolled back: {why}").into())
            }
            WriteOutcome::Unknown => Err("nobody knows whether it was committed".into()),
        }
    }
}

impl TransactionalStore for FlawedStore<FaultyStore<LeaseRows>> {}

impl StoreTransaction<Transaction> for FlawedStore<FaultyStore<LeaseRows>> {
    async fn checkpoint_in(
        &self,
        transaction: &mut Transaction,
        hold: &LeaseToken,
        replaces: &Checkpoint,
        to: &Checkpoint,
        nonce: Nonce,
    ) -> Result<TransactionCheckpoint, StoreError> {
        let row = self.get(&hold.key).await?;
        let mut hold = hold.clone();
        let mut replaces = replaces.clone();
        if let (ConsumerFlaw::CommitsOverAnyRow, Some(row)) = (self.flaw(), &row) {
            replaces.clone_from(&row.checkpoint);
            hold.term = row.term;
            hold.owner = row.owner.clone().unwrap_or(hold.owner);
        }
        let change = LeaseChange::Checkpoint {
            owner: hold.owner,
            term: hold.term,
            replaces,
            to: to.clone(),
            pending: None,
            bytes_per_second: None,
        };
        let why = Layout::Native.lease_after(&hold.key, &change, nonce, row.as_ref()).err();
        transaction.write = Some(Write::lease(&hold.key, change, nonce));
        Ok(match why {
            None => TransactionCheckpoint::Written,
            Some(why) => TransactionCheckpoint::Refused { why },
        })
    }
}
