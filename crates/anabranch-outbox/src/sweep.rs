//! The sweep: now and then, whether rows lie behind the cursor that the relay knows nothing of.
//!
//! Nobody's insert leaves such a row: a late one has a transaction that the next look asks for. But a
//! restore under a running relay does, because it brings rows with the transactions that they had.

use crate::database::{DatabaseSession, Statement, arguments};
use crate::error::RelayError;
use crate::read::{RowId, RowReader, number, was_read};
use crate::table::{OutboxTable, quoted};
use sqlx::Row;

/// How many rows one step compares. A step is taken with each report, so a long table costs no more
/// at a time than a short one.
const STEP_ROWS: i64 = 2_000;

/// Where the sweep stands.
#[derive(Debug)]
pub(crate) struct Sweep {
    /// The statement.
    sql: String,
    /// The rows up to this one were compared.
    after: i64,
    /// When the next step is due.
    at_ms: u64,
}

impl Sweep {
    pub(crate) fn new(table: &OutboxTable) -> Self {
        Self { sql: statement(table), after: i64::MIN, at_ms: 0 }
    }

    /// Compares some rows up to the cursor with those that are known, and gives the first that is
    /// not. Begins again `pause_ms` after it has seen all.
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

/// The statement for one step: behind which id, up to the cursor, the reader's horizon, how many.
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
