//! Writes: one transaction around a pure decision.
//!
//! Locks are taken in a fixed order, the row first and the application's version last. So no two
//! writes deadlock, and a write that waits for a row blocks no others.

use super::cell::Cell;
use super::failure::{LostConnection, SqlFailure};
use super::link::SqlExecutor;
use super::pool::Urgency;
use super::row;
use super::statement::RowStatements;
use super::store::{CHANNEL, SqlStore};
use crate::lease::StoreError;
use anabranch_model::ids::StreamName;
use anabranch_model::lease::table::native;
use anabranch_model::lease::{
    Layout, LeaseChange, LeaseKey, Nonce, StoredRow, StreamChange, WorkerChange, WorkerId, Write,
    WriteOutcome, WriteRefusal,
};

/// Maximum number of attempts when other writes create or remove the row in between.
const RACES: u32 = 5;

/// State of a write before its `COMMIT`.
enum WriteStep {
    /// The condition was false.
    Refused(WriteOutcome),
    /// Another write created or removed the row after it was read: the decision is void.
    Raced,
    /// The row is written. The outcome holds once it is committed.
    Written(WriteOutcome),
}

impl SqlStore {
    /// Applies one write if its condition holds.
    pub(crate) async fn write(&self, write: &Write) -> Result<WriteOutcome, StoreError> {
        for _ in 0..RACES {
            match self.attempt(write).await {
                Ok(Some(outcome)) => return Ok(outcome),
                Ok(None) => {}
                Err(failure) => return Err(failure.of_store(&self.label)),
            }
        }
        Err(StoreError::Busy {
            store: self.label.clone(),
            detail: "other workers repeatedly create and delete the row during this write"
                .to_owned(),
        })
    }

    /// Runs one transaction. Returns `None` if the decision was void.
    async fn attempt(&self, write: &Write) -> Result<Option<WriteOutcome>, SqlFailure> {
        let is_heart = matches!(write, Write::Worker { .. });
        let _turn = self.turn(if is_heart { Urgency::Heartbeat } else { Urgency::Normal }).await?;
        let up_to_commit = async {
            let mut lent = self.begin(&self.begin).await?;
            match self.step(&mut lent.wire(), write).await {
                Ok(step) => Ok((lent, step)),
                Err(failure) => {
                    if failure.lost_connection() == LostConnection::No {
                        self.roll_back(lent).await;
                    }
                    Err(failure)
                }
            }
        };
        // A failure up to here means that nothing was applied, since `COMMIT` was not sent.
        let (mut lent, step) = self.with_timeout(self.patience.call, up_to_commit).await?;
        let outcome = match step {
            WriteStep::Written(outcome) => outcome,
            WriteStep::Refused(outcome) => {
                self.roll_back(lent).await;
                return Ok(Some(outcome));
            }
            WriteStep::Raced => {
                self.roll_back(lent).await;
                return Ok(None);
            }
        };
        match self.with_timeout(self.patience.call, lent.wire().run("COMMIT")).await {
            Ok(()) => {
                lent.give_back();
                Ok(Some(outcome))
            }
            Err(failure) if failure.rolled_back() => Err(failure),
            Err(_) => Ok(Some(WriteOutcome::Unknown)),
        }
    }

    async fn step(
        &self,
        wire: &mut SqlExecutor<'_>,
        write: &Write,
    ) -> Result<WriteStep, SqlFailure> {
        let step = match write {
            Write::Lease { key, change, nonce } => {
                self.change_lease(wire, key, change, *nonce).await?
            }
            Write::Worker { id, change, nonce } => {
                self.change_worker(wire, id, change, *nonce).await?
            }
            Write::Stream { stream, change } => self.change_stream(wire, stream, *change).await?,
        };
        // The removal of a worker has already moved the version.
        let removal = matches!(write, Write::Worker { change: WorkerChange::Delete, .. });
        if matches!(step, WriteStep::Written(_)) && write.changes_plan() && !removal {
            self.bump(wire).await?;
        }
        Ok(step)
    }

    async fn change_lease(
        &self,
        wire: &mut SqlExecutor<'_>,
        key: &LeaseKey,
        change: &LeaseChange,
        nonce: Nonce,
    ) -> Result<WriteStep, SqlFailure> {
        let of = &self.statements.lease;
        let now = self.locked(wire, of, row::lease_key(key)).await?;
        let now = now.map(row::lease).transpose()?;
        match Layout::Native.lease_after(key, change, nonce, now.as_ref()) {
            Err(why) => Ok(refused(why, StoredRow::of_lease(now.as_ref()))),
            Ok(after) => {
                let cells = after.as_ref().map(row::lease_cells);
                let done = WriteOutcome::Done(StoredRow::of_lease(after.as_ref()));
                self.replace(wire, of, row::lease_key(key), now.is_some(), cells, done).await
            }
        }
    }

    async fn change_worker(
        &self,
        wire: &mut SqlExecutor<'_>,
        id: &WorkerId,
        change: &WorkerChange,
        nonce: Nonce,
    ) -> Result<WriteStep, SqlFailure> {
        let of = &self.statements.worker;
        let key = vec![Cell::text(id.as_str())];
        let now = self.locked(wire, of, key.clone()).await?.map(row::worker).transpose()?;
        match native::worker_after(id, change, nonce, now.as_ref()) {
            Err(why) => Ok(refused(why, StoredRow::of_worker(now.as_ref()))),
            Ok(after) => {
                if after.is_none() {
                    // A take holds the version's lock when it commits. Once this transaction has
                    // that lock, every earlier take is visible.
                    self.bump(wire).await?;
                    let named = self.with_application(key.clone());
                    if !wire.rows(&self.statements.names_worker, named).await?.is_empty() {
                        return Ok(refused(
                            WriteRefusal::StillReferenced,
                            StoredRow::of_worker(now.as_ref()),
                        ));
                    }
                }
                let cells = after.as_ref().map(row::worker_cells);
                let done = WriteOutcome::Done(StoredRow::of_worker(after.as_ref()));
                self.replace(wire, of, key, now.is_some(), cells, done).await
            }
        }
    }

    async fn change_stream(
        &self,
        wire: &mut SqlExecutor<'_>,
        stream: &StreamName,
        change: StreamChange,
    ) -> Result<WriteStep, SqlFailure> {
        let of = &self.statements.stream;
        let key = vec![Cell::text(stream.as_str())];
        let now = self.locked(wire, of, key.clone()).await?.map(row::stream).transpose()?;
        let now = now.map(|(_, facts)| facts);
        match native::stream_after(change, now.as_ref()) {
            Err(why) => Ok(refused(why, StoredRow::of_stream(now.as_ref()))),
            Ok(after) => {
                let cells = Some(row::stream_cells(stream, after));
                let done = WriteOutcome::Done(StoredRow::Stream(after));
                self.replace(wire, of, key, now.is_some(), cells, done).await
            }
        }
    }

    /// Reads a row and locks it until the transaction ends.
    async fn locked(
        &self,
        wire: &mut SqlExecutor<'_>,
        of: &RowStatements,
        key: Vec<Cell>,
    ) -> Result<Option<Vec<Cell>>, SqlFailure> {
        Ok(wire.rows(&of.lock, self.with_application(key)).await?.into_iter().next())
    }

    /// Inserts, updates or deletes the row as decided.
    async fn replace(
        &self,
        wire: &mut SqlExecutor<'_>,
        of: &RowStatements,
        key: Vec<Cell>,
        is_there: bool,
        after: Option<Vec<Cell>>,
        done: WriteOutcome,
    ) -> Result<WriteStep, SqlFailure> {
        let changed = match (is_there, after) {
            (false, Some(cells)) => wire.change(&of.insert, self.with_application(cells)).await?,
            (true, Some(cells)) => wire.change(&of.update, self.with_application(cells)).await?,
            (true, None) => wire.change(&of.delete, self.with_application(key)).await?,
            (false, None) => 1,
        };
        Ok(if changed == 1 { WriteStep::Written(done) } else { WriteStep::Raced })
    }

    async fn bump(&self, wire: &mut SqlExecutor<'_>) -> Result<(), SqlFailure> {
        let mut cells = self.with_application(vec![]);
        if self.statements.dialect.notifies {
            cells.extend([Cell::text(CHANNEL), Cell::text(&self.payload())]);
        }
        wire.change(&self.statements.bump, cells).await.map(drop)
    }
}

fn refused(why: WriteRefusal, now: StoredRow) -> WriteStep {
    WriteStep::Refused(WriteOutcome::Refused { why, now: Some(now) })
}
