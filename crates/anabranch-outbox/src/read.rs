//! Reader of the outbox table: selects the rows that may be sent now, by id, each once.
//!
//! Ids are assigned in the order of writing, but rows become visible in the order of committing. A
//! cursor that only advances would therefore skip rows. Ordering by transaction id does not
//! preserve causality: a transaction can take its id early, wait for a lock and write late. The
//! reader relies on these properties:
//!
//! - The *horizon* of a snapshot is the lowest transaction that was still running. A row is
//!   *settled* when its transaction lies below the horizon: every row that could precede it is
//!   visible.
//! - Rows are read by id up to the first that is not settled. If a transaction saw another's row
//!   before it wrote its own, every snapshot that shows its row also shows the other, with a lower
//!   id. The other row is therefore read first, or blocks it.
//! - A row that was absent when the cursor passed its id was not visible in that snapshot. Its
//!   transaction therefore lies at or above that snapshot's horizon. The next read selects exactly
//!   those rows, by the index of transactions, and moves the cursor back before the first of them.
//!   While the horizon is unchanged there are none to select. Rows that appeared since are not
//!   settled. Settled rows were visible before, so none of them can have seen the rows that
//!   appeared.
//!
//! One statement does all of this in one snapshot. It reads the rows that it returns and those that
//! settled since the last read. Rows waiting behind them cost nothing.

use crate::database::{DatabaseSession, Statement, arguments};
use crate::error::RelayError;
use crate::schema::TableSchema;
use crate::table::{OutboxTable, quoted};
use anabranch_model::limits::RECORD_MAX_KIB_HIGHEST;
use bytes::Bytes;
use sqlx::Row as _;
use sqlx::postgres::{PgArguments, PgRow};

/// Row limit of the first read. Each read that is not full doubles the limit.
const FIRST_ROWS: i64 = 128;
/// Above every transaction id: no row is late for a cursor that has not moved.
const NO_HORIZON: u64 = u64::MAX;
/// Largest record that any stream accepts. Larger rows are not fetched in full.
#[expect(clippy::cast_possible_wrap, reason = "a quota of five digits")]
pub(crate) const FETCH_MAX_BYTES: i64 = RECORD_MAX_KIB_HIGHEST as i64 * 1024;

/// Identity of a row: its id and the transaction that wrote it. An id alone can be assigned again,
/// after a table is truncated or a server is restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RowId {
    pub(crate) id: i64,
    /// `None` for a row that is older than the column.
    pub(crate) transaction: Option<u64>,
}

/// A row to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OutboxRow {
    pub(crate) name: RowId,
    pub(crate) key: String,
    /// Explicit hash key, exactly as stored in the table.
    pub(crate) hash: Option<String>,
    /// Event data. Empty if longer than [`FETCH_MAX_BYTES`].
    pub(crate) data: Bytes,
    /// Length of the data in the table.
    pub(crate) data_bytes: i64,
    /// Headers as JSON. `None` if longer than [`FETCH_MAX_BYTES`].
    pub(crate) headers: Option<String>,
    /// Length of the headers in the table.
    pub(crate) headers_bytes: i64,
    /// Creation time in microseconds since 1970, by the database's clock.
    pub(crate) created_us: Option<i64>,
    /// Event id from the table, if it has that column.
    pub(crate) event_id: Option<String>,
}

/// Result of one read.
#[derive(Debug)]
pub(crate) struct ReadRows {
    /// Rows in order of id.
    pub(crate) rows: Vec<OutboxRow>,
    /// First row that is not settled, if one blocks the rest.
    pub(crate) held: Option<RowId>,
    /// True if nothing more can be read before the horizon moves.
    pub(crate) dry: bool,
}

/// Size limit of one read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadLimit {
    pub(crate) rows: i64,
    /// Data and headers in bytes. The row that exceeds the limit is still included.
    pub(crate) bytes: i64,
}

/// Read position. Lives for one leader term.
#[derive(Debug)]
pub(crate) struct RowReader {
    /// Statement for the next rows.
    sql: String,
    /// Statement for the rows of one key.
    key_sql: String,
    /// Statement for the rows without a key.
    keyless_sql: String,
    /// Statement for one row.
    row_sql: String,
    /// Every settled row up to this id has been read.
    cursor: i64,
    /// Horizon of the last read. Late rows have transactions at or above it.
    horizon: u64,
    /// Row limit of the next read.
    rows: i64,
}

impl RowReader {
    pub(crate) fn new(table: &OutboxTable, shape: &TableSchema) -> Self {
        Self {
            sql: statement(table, shape),
            key_sql: key_statement(table, shape, RowFilter::Key),
            keyless_sql: key_statement(table, shape, RowFilter::NoKey),
            row_sql: key_statement(table, shape, RowFilter::Id),
            cursor: i64::MIN,
            horizon: NO_HORIZON,
            rows: FIRST_ROWS,
        }
    }

    /// Returns the last id that was read.
    pub(crate) fn cursor(&self) -> i64 {
        self.cursor
    }

    /// Returns true if rows can have settled since the last read, given the current horizon.
    pub(crate) fn has_news(&self, horizon: u64) -> bool {
        horizon != self.horizon
    }

    /// Moves the cursor back, so that the next read starts at this row.
    pub(crate) fn begin_before(&mut self, row: i64) {
        self.cursor = self.cursor.min(row.saturating_sub(1));
    }

    /// Returns the horizon of the last read as SQL text. Every row below it, up to the cursor, was
    /// read.
    pub(crate) fn horizon(&self) -> String {
        self.horizon.to_string()
    }

    /// Reads the next rows.
    pub(crate) async fn next(
        &mut self,
        link: &mut DatabaseSession,
        portion: ReadLimit,
    ) -> Result<ReadRows, RelayError> {
        let rows = self.rows.min(portion.rows);
        let arguments = arguments![self.cursor, self.horizon.to_string(), rows, portion.bytes];
        let answer = link.rows(Statement { sql: &self.sql, arguments, doing: "read rows" }).await?;
        let mut found = ReadRows { rows: Vec::new(), held: None, dry: true };
        let mut bytes = 0_i64;
        for row in &answer {
            self.horizon = number(row, 0).unwrap_or(NO_HORIZON);
            self.cursor = self.cursor.min(row.get(1));
            let Some(id) = row.get::<Option<i64>, _>(2) else { continue };
            let name = RowId { id, transaction: number(row, 3) };
            if row.get(4) {
                let row = read(row, name);
                bytes += row.data_bytes + row.headers_bytes;
                found.rows.push(row);
            } else {
                found.held = Some(name);
            }
        }
        if let Some(last) = found.rows.last() {
            self.cursor = last.name.id;
        }
        let taken = i64::try_from(found.rows.len()).unwrap_or(i64::MAX);
        found.dry = found.held.is_some() || (taken < rows && bytes < portion.bytes);
        self.rows = next_rows(rows, taken, bytes >= portion.bytes).min(portion.rows);
        Ok(found)
    }

    /// Reads the next skipped rows of one key, with ids above `after` and up to `through`.
    pub(crate) async fn read_passed_over(
        &self,
        link: &mut DatabaseSession,
        portion: ReadLimit,
        (key, after, through): (&str, i64, i64),
    ) -> Result<ReadRows, RelayError> {
        let through = through.min(self.cursor);
        let (rows, bytes) = (self.rows.min(portion.rows), portion.bytes);
        let arguments = arguments![after, through, rows, bytes, self.horizon(), key];
        let sql = if key.is_empty() { &self.keyless_sql } else { &self.key_sql };
        let found = rows_of(link, sql, arguments).await?;
        let bytes: i64 = found.iter().map(|row| row.data_bytes + row.headers_bytes).sum();
        let taken = i64::try_from(found.len()).unwrap_or(i64::MAX);
        let dry = taken < rows && bytes < portion.bytes;
        Ok(ReadRows { rows: found, held: None, dry })
    }

    /// Reads one skipped row, whatever its current key.
    pub(crate) async fn passed_row(
        &self,
        link: &mut DatabaseSession,
        row: i64,
    ) -> Result<Option<OutboxRow>, RelayError> {
        let (after, all) = (row.saturating_sub(1), i64::MAX);
        let arguments = arguments![after, self.cursor, 1_i64, all, self.horizon(), row.to_string()];
        Ok(rows_of(link, &self.row_sql, arguments).await?.pop())
    }
}

/// Returns the row limit of the next read after one that returned `taken` rows. `full` is true if
/// that read reached its byte limit. The size of text and JSON is known only after conversion, so a
/// read must not scan many more rows than it returns.
fn next_rows(rows: i64, taken: i64, full: bool) -> i64 {
    if full { (taken * 2).max(1) } else { rows.max(taken * 2) }
}

async fn rows_of(
    link: &mut DatabaseSession,
    sql: &str,
    arguments: PgArguments,
) -> Result<Vec<OutboxRow>, RelayError> {
    let answer = link.rows(Statement { sql, arguments, doing: "read rows that wait" }).await?;
    let name = |row: &PgRow| RowId { id: row.get(2), transaction: number(row, 3) };
    Ok(answer.iter().map(|row| read(row, name(row))).collect())
}

fn read(row: &PgRow, name: RowId) -> OutboxRow {
    OutboxRow {
        name,
        key: row.get(6),
        hash: row.get(7),
        data: row.get::<Option<Vec<u8>>, _>(8).unwrap_or_default().into(),
        data_bytes: row.get(5),
        headers: row.get(9),
        headers_bytes: row.get(12),
        created_us: row.get(10),
        event_id: row.get(11),
    }
}

/// Parses an unsigned 64-bit number, which the driver can only return as text.
pub(crate) fn number(row: &PgRow, at: usize) -> Option<u64> {
    row.get::<Option<String>, _>(at).and_then(|text| text.parse().ok())
}

/// Returns the SQL expression for the creation time of row `t`, in microseconds since 1970. It
/// yields NULL for times outside 1970 to 2200.
pub(crate) fn created(table: &OutboxTable, shape: &TableSchema) -> String {
    let Some(column) = shape.column(&table.columns.created_at) else {
        return "NULL::bigint".to_owned();
    };
    // Faster than `extract`, and exact to the microsecond in this range.
    format!(
        "CASE WHEN t.{0} BETWEEN '1970-01-01' AND '2200-01-01' \
           THEN (date_part('epoch', t.{0}) * 1000000)::bigint END",
        quoted(&column.name)
    )
}

/// Returns the columns of a row under the names that the statements use.
fn columns(table: &OutboxTable, shape: &TableSchema) -> String {
    let columns = &table.columns;
    let (id, transaction) = (quoted(&columns.id), quoted(&columns.transaction_id));
    let optional = |name: &str, cast: &str, none: &str| {
        let of = |_| format!("t.{}{cast}", quoted(name));
        shape.column(name).map_or(none.to_owned(), of)
    };
    let is_bytes = shape.column(&columns.data).is_some_and(|column| column.kind == "bytea");
    let data = quoted(&columns.data);
    let (data, length) = if is_bytes {
        (format!("COALESCE(t.{data}, '')"), format!("octet_length(t.{data})"))
    } else {
        (
            format!("COALESCE(convert_to(t.{data}::text, 'UTF8'), '')"),
            format!("octet_length(t.{data}::text)"),
        )
    };
    let key = format!("COALESCE(t.{}::text, '')", quoted(&columns.partition_key));
    let hash = optional(&columns.explicit_hash_key, "::text", "NULL::text");
    let headers = optional(&columns.headers, "::text", "NULL::text");
    let headers_length = match shape.column(&columns.headers) {
        Some(column) => format!("octet_length(t.{}::text)", quoted(&column.name)),
        None => "0".to_owned(),
    };
    let event = optional(&columns.event_id, "::text", "NULL::text");
    let created = created(table, shape);
    format!(
        "t.{id}::bigint AS id, t.{transaction}::text AS transaction, {key} AS key,
        {hash} AS hash, {data} AS data, {headers} AS headers, {created} AS created,
        {event} AS event, COALESCE({length}, 0) AS data_bytes,
        COALESCE({headers_length}, 0) AS headers_bytes"
    )
}

/// Returns the statement for one read. Parameters: cursor, horizon, row limit and byte limit.
pub(crate) fn statement(table: &OutboxTable, shape: &TableSchema) -> String {
    let (sql, pending, columns) = (table.sql(), table.pending_and(), columns(table, shape));
    let [id, transaction] =
        [&table.columns.id, &table.columns.transaction_id].map(|name| quoted(name));
    // `{id} + 0` keeps the planner from searching late rows by id, among all rows ever read. A row
    // above every transaction id was restored from another server, whose ids mean nothing here. It
    // is never late; otherwise each read would return to it.
    format!(
        "\
WITH moment AS MATERIALIZED (
  SELECT pg_snapshot_xmin(s) AS horizon, pg_snapshot_xmax(s) AS future FROM pg_current_snapshot() s
), late AS MATERIALIZED (
  SELECT min(l.id) AS id FROM (
    SELECT {id} AS id FROM {sql} WHERE {pending}{transaction} >= $2::xid8
      AND {transaction} < (SELECT future FROM moment)
      AND (SELECT horizon FROM moment) <> $2::xid8 AND {id} + 0 <= $1 OFFSET 0
  ) l
), start AS MATERIALIZED (
  SELECT COALESCE((SELECT id - 1 FROM late), $1) AS after
)
SELECT (SELECT horizon::text FROM moment), (SELECT after FROM start), w.*
FROM (VALUES (1)) one(row) LEFT JOIN (
  SELECT id, transaction, unsettled = 0, data_bytes::bigint, key, hash,
    CASE WHEN unsettled = 0 AND data_bytes <= {FETCH_MAX_BYTES} THEN data END,
    CASE WHEN unsettled = 0 AND headers_bytes <= {FETCH_MAX_BYTES} THEN headers END,
    created, event, headers_bytes::bigint
  FROM (
    SELECT c.*, count(*) FILTER (WHERE NOT settled) OVER seq AS unsettled,
      sum(data_bytes + headers_bytes) OVER seq - data_bytes - headers_bytes AS before
    FROM (
      SELECT {columns},
        COALESCE(t.{transaction} < (SELECT horizon FROM moment)
          OR t.{transaction} >= (SELECT future FROM moment), true) AS settled
      FROM {sql} t WHERE {pending}t.{id} > (SELECT after FROM start) ORDER BY t.{id} LIMIT $3
    ) c WINDOW seq AS (ORDER BY id ROWS UNBOUNDED PRECEDING)
  ) v WHERE before < $4 AND (unsettled = 0 OR (unsettled = 1 AND NOT settled))
) w ON true ORDER BY w.id"
    )
}

/// Returns the condition for rows up to the cursor that were already read, where `horizon` is the
/// reader's horizon as an SQL expression.
pub(crate) fn was_read(table: &OutboxTable, horizon: &str) -> String {
    let transaction = quoted(&table.columns.transaction_id);
    format!(
        "COALESCE(t.{transaction} < {horizon}::xid8 \
           OR t.{transaction} >= (SELECT pg_snapshot_xmax(pg_current_snapshot())), true)"
    )
}

/// Selection among the skipped rows.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RowFilter {
    /// Rows of one key.
    Key,
    /// Rows without a key.
    NoKey,
    /// The row with one id.
    Id,
}

/// Returns the statement for skipped rows. Parameters: first id (exclusive), last id (inclusive),
/// row limit, byte limit, the reader's horizon, and the key or id as text. With an index on the
/// keys, the cost is proportional to the rows returned.
pub(crate) fn key_statement(table: &OutboxTable, shape: &TableSchema, of: RowFilter) -> String {
    let (sql, pending, columns) = (table.sql(), table.pending_and(), columns(table, shape));
    let (id, name) = (quoted(&table.columns.id), quoted(&table.columns.partition_key));
    let these = match of {
        RowFilter::Key => {
            let column = shape.column(&table.columns.partition_key);
            // A bare `character` is a single character.
            let kind = column.map(|column| column.kind.as_str()).filter(|it| *it != "character");
            format!("t.{name} = $6::text::{}", kind.unwrap_or("bpchar"))
        }
        RowFilter::NoKey => format!("COALESCE(t.{name}::text, '') = $6::text"),
        RowFilter::Id => format!("t.{id} = $6::text::bigint"),
    };
    let read = was_read(table, "$5::text");
    format!(
        "\
SELECT NULL::text, NULL::bigint, id, transaction, true, data_bytes::bigint, key, hash,
  CASE WHEN data_bytes <= {FETCH_MAX_BYTES} THEN data END,
  CASE WHEN headers_bytes <= {FETCH_MAX_BYTES} THEN headers END, created, event,
  headers_bytes::bigint
FROM (
  SELECT c.*, sum(data_bytes + headers_bytes) OVER seq - data_bytes - headers_bytes AS before
  FROM (
    SELECT {columns} FROM {sql} t
    WHERE {pending}{these} AND t.{id} > $1 AND t.{id} <= $2 AND {read} ORDER BY t.{id} LIMIT $3
  ) c WINDOW seq AS (ORDER BY id ROWS UNBOUNDED PRECEDING)
) v WHERE before < $4 ORDER BY id"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_goes_through_about_as_many_rows_as_it_brings() {
        assert_eq!(next_rows(128, 128, false), 256);
        assert_eq!(next_rows(2_000, 3, false), 2_000, "few rows wait");
        assert_eq!(next_rows(2_000, 20, true), 40, "rows are long");
        assert_eq!(next_rows(40, 40, false), 80);
        assert_eq!(next_rows(128, 1, true), 2);
    }
}
