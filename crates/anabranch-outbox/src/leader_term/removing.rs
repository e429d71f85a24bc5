//! Removal of rows that are in the stream, during a term and at its end.

use super::LeaderTerm;
use crate::error::RelayError;
use crate::lag;
use crate::removal_queue::FailedRemoval;
use crate::remove::RemovalResult;
use crate::row_verdict::{RowVerdict, judge};
use anabranch::event::RelayEvent;
use anabranch::producer::Outcome;

/// Retry delay for a row that the database refused to remove.
const REFUSED_MS: u64 = 15_000;
/// Retry delay for a row that another session has locked.
const LOCKED_MS: u64 = 3_000;
/// Time limit for starting removal batches after the stream has all rows.
const LAST_MS: u64 = 30_000;

impl LeaderTerm<'_> {
    /// Starts a removal batch if one is due.
    pub(crate) fn remove(&mut self, now_ms: u64) {
        if self.remover.is_busy() {
            return;
        }
        let full = self.leaving.fresh() >= self.relay.remove_rows || !self.flight.has_sent();
        if let Some(rows) = self.leaving.next(now_ms, full || now_ms >= self.remove_at_ms) {
            self.remover.begin(rows);
        }
    }

    /// Processes the result of a removal batch. Rows that remain are in the stream, so retrying
    /// loses nothing. Starting a new term would send them again and fail at the same place.
    pub(crate) fn removed(&mut self, removal: RemovalResult) {
        let now_ms = self.now_ms();
        let table = self.relay.table.label();
        match removal {
            RemovalResult::Removed { rows, count } => {
                self.leaving.removal_done();
                self.flight.release(rows);
                lag::count_sent(&table, &self.relay.stream, count);
                self.relay.tell(RelayEvent::Sent { table, rows: count });
            }
            RemovalResult::Locked(rows) => {
                let _: FailedRemoval = self.leaving.removal_failed(rows, now_ms, LOCKED_MS);
            }
            RemovalResult::Refused { rows, why } => {
                if let FailedRemoval::Alone(row) =
                    self.leaving.removal_failed(rows, now_ms, REFUSED_MS)
                {
                    let error = why.to_string();
                    self.relay.tell(RelayEvent::RemovalRefused { table, row: row.id, error });
                }
            }
        }
    }

    /// Stops taking rows, waits for those in flight, and removes those in the stream. Returns an
    /// error for rows that remain in the table, because the next relay sends them again.
    pub(crate) async fn drain(mut self) -> Result<(), RelayError> {
        let closed = self.link.while_alive(self.producer.close(self.relay.drain)).await;
        let mut unknown = 0;
        for (note, outcome) in self.flight.take_completed() {
            match outcome {
                Outcome::Unknown { .. } => unknown += 1,
                outcome if judge(&outcome) == RowVerdict::Sent => self.leaving.push(note.name),
                _ => {}
            }
        }
        // Removing rows that are in the stream is safe without the lock, even after it was lost.
        let removed = self.remove_the_rest().await;
        let rows = self.leaving.len() + unknown + self.flight.sent();
        let (table, first) = (self.relay.table.label(), self.leaving.first().map(|row| row.id));
        self.link.close().await;
        if rows == 0 {
            return Ok(());
        }
        let why = match closed.err().or(removed.err()) {
            Some(error) => error.to_string(),
            None if self.leaving.len() == 0 => "the stream did not answer in time".to_owned(),
            None => "other transactions have locked them, or the database refuses to remove them"
                .to_owned(),
        };
        Err(RelayError::Left { table, rows, first, why })
    }

    /// Removes rows that are in the stream, as far as the database permits.
    async fn remove_the_rest(&mut self) -> Result<(), RelayError> {
        if self.remover.is_busy() {
            let removal = self.last_removal().await?;
            self.removed(removal);
        }
        self.leaving.retry_all();
        let until_ms = self.now_ms() + LAST_MS;
        while self.now_ms() < until_ms
            && let Some(rows) = self.leaving.next(self.now_ms(), true)
        {
            self.remover.begin(rows);
            let removal = self.last_removal().await?;
            self.removed(removal);
        }
        Ok(())
    }

    /// Waits for a removal. It keeps the session with the lock alive meanwhile: without it another
    /// relay would send rows that are about to be removed.
    async fn last_removal(&mut self) -> Result<RemovalResult, RelayError> {
        match self.link.while_alive(self.remover.done()).await {
            Ok(removal) => removal,
            // The lock is lost, but the removal session is not.
            Err(_) => self.remover.done().await,
        }
    }
}
