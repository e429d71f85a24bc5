//! Sweep: a periodic search for unknown rows behind the cursor.
//!
//! Inserts never create such rows: a late one has a transaction that the next read selects. A
//! restore under a running relay does, because it brings rows with their original transactions.

use crate::database::{DatabaseSession, Statement, arguments};
use crate::error::RelayError;
use crate::read::{RowId, RowReader, number, was_read};
use crate::table::{OutboxTable, quoted};
use sqlx::Row;

/// Rows compared per step. A step runs with each lag report, so its cost does not depend on the
/// table's size.
const STEP_ROWS: i64 = 2_000;

/// State of the sweep.
#[derive(Debug)]
pub(crate) struct Sweep {
    sql: String,
    /// Rows up to this id were compared.
    after: i64,
    /// Time of the next step.
    at_ms: u64,
}

impl Sweep {
    pub(crate) fn new(table: &OutboxTable) -> Self {
        Self { sql: statement(table), after: i64::MIN, at_ms: 0 }
    }

    /// Compares some rows up to the cursor with the known ones, and returns the first unknown one.
    /// Starts over `pause_ms` after the last row.
    pub(crate) async fn step(
        &mut self,
        (link, reader): (&mut DatabaseSession, &RowReader),
        (now_ms, pause_ms): (u64, u64),
        is_known: impl Fn(RowId, &str) -> bool,
    ) -> Result<Option<i64>, RelayError> {
        if now_ms < self.at_ms {
            return Ok(None);
        }
        let arguments = arguments![self.after, reader.cursor(), reader.horizon(), STEP_ROWS];
        let rows =
            link.rows(Statement { sql: &self.sql, arguments, doing: "sweep the outbox" }).await?;
        let unknown = rows.iter().find_map(|row| {
            let name = RowId { id: row.get(0), transaction: number(row, 1) };
            (!is_known(name, row.get(2))).then_some(name.id)
        });
        let is_full = i64::try_from(rows.len()).unwrap_or(i64::MAX) >= STEP_ROWS;
        if let Some(last) = rows.last().filter(|_| is_full && unknown.is_none()) {
            self.after = last.get(0);
        } else {
            (self.after, self.at_ms) = (i64::MIN, now_ms.saturating_add(pause_ms));
        }
        Ok(unknown)
    }
}

/// Returns the statement for one step. Parameters: first id (exclusive), cursor, the reader's
/// horizon, row limit.
pub(crate) fn statement(table: &OutboxTable) -> String {
    let columns = &table.columns;
    let (id, transaction) = (quoted(&columns.id), quoted(&columns.transaction_id));
    format!(
        "SELECT t.{id}::bigint, t.{transaction}::text, COALESCE(t.{}::text, '') FROM {} t \
         WHERE {}t.{id} > $1 AND t.{id} <= $2 AND {} ORDER BY t.{id} LIMIT $4",
        quoted(&columns.partition_key),
        table.sql(),
        table.pending_and(),
        was_read(table, "$3::text")
    )
}
