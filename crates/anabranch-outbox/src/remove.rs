//! Removal of rows that are in the stream: in batches, each row by id and transaction.
//!
//! Removing a row that is in the stream is safe for any process at any time, so it needs no lock.
//! It has its own session, so that rows are read meanwhile and a locked row delays nothing else.

use crate::database::{ChangeResult, Database, DatabaseSession, Statement, arguments};
use crate::error::RelayError;
use crate::read::RowId;
use crate::table::{AfterSend, OutboxTable, quoted};
use std::future::pending;
use std::panic::resume_unwind;
use std::sync::Arc;
use tokio::task::{JoinError, JoinSet};

/// Session settings that make the planner find each row by id. For a large batch it would otherwise
/// read the whole table once, however many rows wait in it.
pub(crate) const PLANS: &str = "SET enable_hashjoin = off; SET enable_mergejoin = off";

/// Returns the statement that deletes or marks rows. A different row with the same id stays.
pub(crate) fn statement(table: &OutboxTable) -> String {
    let (sql, columns) = (table.sql(), &table.columns);
    let (id, transaction) = (quoted(&columns.id), quoted(&columns.transaction_id));
    let these = format!(
        "unnest($1::bigint[], $2::text[]) AS gone(id, transaction) \
         WHERE t.{id} = gone.id AND t.{transaction} IS NOT DISTINCT FROM gone.transaction::xid8"
    );
    match table.after {
        AfterSend::Delete => format!("DELETE FROM {sql} t USING {these}"),
        AfterSend::Mark => {
            let sent = quoted(&columns.sent_at);
            format!("UPDATE {sql} t SET {sent} = clock_timestamp() FROM {these}")
        }
    }
}

/// Removes rows, one batch at a time.
#[derive(Debug)]
pub(crate) struct RowRemover {
    sql: Arc<str>,
    /// The session, while no batch is in progress.
    link: Option<DatabaseSession>,
    /// The batch in progress, aborted on drop.
    work: JoinSet<FinishedRemoval>,
}

/// Output of a batch task: session, rows and result.
type FinishedRemoval = (DatabaseSession, Vec<RowId>, Result<ChangeResult, RelayError>);

/// Result of a batch.
#[derive(Debug)]
pub(crate) enum RemovalResult {
    /// The rows no longer wait.
    Removed {
        /// The batch.
        rows: Vec<RowId>,
        /// Number of rows that existed.
        count: u64,
    },
    /// Another session holds a lock on one of the rows. All remain.
    Locked(Vec<RowId>),
    /// The database refused to remove one of the rows. All remain.
    Refused {
        /// The batch.
        rows: Vec<RowId>,
        /// Error reported by the database.
        why: RelayError,
    },
}

impl RowRemover {
    /// Opens the removal session.
    pub(crate) async fn open(database: &Database, table: &OutboxTable) -> Result<Self, RelayError> {
        let mut link = database.connect().await?;
        link.script(PLANS, "prepare to remove rows").await?;
        Ok(Self { sql: statement(table).into(), link: Some(link), work: JoinSet::new() })
    }

    /// Returns true if a batch is in progress.
    pub(crate) fn is_busy(&self) -> bool {
        !self.work.is_empty()
    }

    /// Starts a batch. Only one may be in progress.
    pub(crate) fn begin(&mut self, rows: Vec<RowId>) {
        let mut link = self.link.take().expect("the term begins one batch at a time");
        let sql = Arc::clone(&self.sql);
        self.work.spawn(async move {
            let removed = remove(&mut link, &sql, &rows).await;
            (link, rows, removed)
        });
    }

    /// Waits for the batch in progress.
    pub(crate) async fn done(&mut self) -> Result<RemovalResult, RelayError> {
        match self.work.join_next().await {
            Some(done) => self.pause_between(done),
            None => pending().await,
        }
    }

    /// Returns the result of the batch if it has finished.
    pub(crate) fn done_now(&mut self) -> Option<Result<RemovalResult, RelayError>> {
        let done = self.work.try_join_next()?;
        Some(self.pause_between(done))
    }

    fn pause_between(
        &mut self,
        done: Result<FinishedRemoval, JoinError>,
    ) -> Result<RemovalResult, RelayError> {
        let (link, rows, removed) = done.unwrap_or_else(|error| resume_unwind(error.into_panic()));
        self.link = Some(link);
        Ok(match removed {
            Ok(ChangeResult::Rows(count)) => RemovalResult::Removed { rows, count },
            Ok(ChangeResult::Locked) => RemovalResult::Locked(rows),
            Ok(ChangeResult::Refused(why)) => RemovalResult::Refused { rows, why },
            Err(error) => return Err(error),
        })
    }
}

async fn remove(
    link: &mut DatabaseSession,
    sql: &str,
    rows: &[RowId],
) -> Result<ChangeResult, RelayError> {
    let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
    let transactions: Vec<Option<String>> =
        rows.iter().map(|row| row.transaction.map(|number| number.to_string())).collect();
    let arguments = arguments![ids, transactions];
    link.change(Statement { sql, arguments, doing: "remove rows" }).await
}
