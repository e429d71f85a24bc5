//! Implementation of `relay status`: waiting rows, the active relay, blocked keys and blocking
//! transactions.

use crate::blocked_keys;
use crate::database::{Database, DatabaseSession, Statement, arguments};
use crate::error::{RelayError, TableProblem};
use crate::lock;
use crate::schema;
use crate::table::{OutboxTable, quoted};
use sqlx::Row;

/// Status of an outbox.
#[derive(Debug, Clone, PartialEq)]
pub struct OutboxStatus {
    /// Number of waiting rows.
    pub waiting_rows: u64,
    /// Number of those that wait for older transactions to end.
    pub held_rows: u64,
    /// Age of the oldest in seconds, if the table has a creation time.
    pub oldest_seconds: Option<f64>,
    /// Server process of the active relay, if any.
    pub relay: Option<i32>,
    /// Blocked keys, in order of their rows. At most 1,000.
    pub parked: Vec<BlockedKey>,
    /// Transactions that block rows, oldest first, if rows are blocked. At most 20.
    pub holders: Vec<BlockingTransaction>,
    /// Problems that prevent relaying.
    pub problems: Vec<TableProblem>,
}

/// A key that waits for an operator.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockedKey {
    /// Id of the row that can't be sent.
    pub row: i64,
    /// Partition key.
    pub key: String,
    /// Reason that the row can't be sent.
    pub reason: String,
    /// Seconds since the key was blocked.
    pub seconds: f64,
    /// Number of waiting rows of this key, including the blocking one.
    pub waiting_rows: u64,
}

/// A transaction that is still running.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockingTransaction {
    /// Its server process. `None` for a prepared transaction.
    pub pid: Option<i32>,
    /// Transaction id.
    pub transaction: u64,
    /// Running time in seconds.
    pub seconds: f64,
    /// User, database, and application or the prepared transaction's name.
    pub who: String,
}

/// Selects the running transactions with an id, in the whole cluster. 32-bit ids are extended with
/// the snapshot's epoch: no running transaction is further away than half the id space.
const HOLDERS: &str = "\
SELECT pid, id::text, seconds::float8, who FROM (
  SELECT running.*, ((future >> 32) << 32) + xid
    - CASE WHEN xid > (future & 4294967295) THEN 4294967296 ELSE 0 END AS id
  FROM (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS future) now, (
    SELECT pid, backend_xid::text::bigint AS xid, extract(epoch FROM now() - xact_start) AS seconds,
      concat_ws(' ', usename, 'in', datname, nullif(application_name, '')) AS who
    FROM pg_stat_activity WHERE backend_xid IS NOT NULL
    UNION ALL
    SELECT NULL, transaction::text::bigint, extract(epoch FROM now() - prepared),
      concat_ws(' ', owner, 'in', database, 'prepared as', gid)
    FROM pg_prepared_xacts
  ) running
) old ORDER BY id LIMIT 20";

/// Reads the status of an outbox.
pub async fn status(database: &Database, table: &OutboxTable) -> Result<OutboxStatus, RelayError> {
    let mut link = database.connect().await?;
    let Some(shape) = schema::inspect(&mut link, table).await? else {
        let detail =
            format!("there is no table {}: create it with 'anabranch relay init'", table.label());
        return Err(link.refused("describe the outbox", detail));
    };
    let problems = shape.problems(table);
    if shape.column(&table.columns.transaction_id).is_none() || !shape.parked_by_transaction {
        return Err(RelayError::Table { table: table.label(), problems });
    }
    let created = match shape.column(&table.columns.created_at) {
        Some(column) => format!(
            "min({0}) FILTER (WHERE {0} BETWEEN '1970-01-01' AND '2200-01-01')",
            quoted(&column.name)
        ),
        None => "NULL::timestamptz".to_owned(),
    };
    let pending = format!("{}true", table.pending_and());
    let transaction = quoted(&table.columns.transaction_id);
    let sql = format!(
        "SELECT count(*), count(*) FILTER (WHERE {transaction} >= pg_snapshot_xmin(s) \
           AND {transaction} < pg_snapshot_xmax(s)), \
         extract(epoch FROM clock_timestamp() - {created})::float8 \
         FROM {} t, pg_current_snapshot() s WHERE {pending}",
        table.sql()
    );
    let ask = Statement { sql: &sql, arguments: arguments![], doing: "count rows" };
    let row = link.row(ask).await?;
    let held_rows = count(row.get(1));
    let holders = if held_rows > 0 { holders(&mut link).await? } else { Vec::new() };
    let status = OutboxStatus {
        waiting_rows: count(row.get(0)),
        held_rows,
        oldest_seconds: row.get(2),
        relay: lock::holder(&mut link, table).await?,
        parked: parked(&mut link, table).await?,
        holders,
        problems,
    };
    link.close().await;
    Ok(status)
}

async fn parked(
    link: &mut DatabaseSession,
    table: &OutboxTable,
) -> Result<Vec<BlockedKey>, RelayError> {
    // Keys may have no index, so the table is read once for all of them.
    let sql = format!(
        "WITH shown AS MATERIALIZED (SELECT p.* FROM {} p \
           WHERE EXISTS (SELECT FROM {} t WHERE {}) ORDER BY p.row_id LIMIT 1000), \
         waiting AS MATERIALIZED (\
           SELECT key, count(*) AS rows FROM (SELECT COALESCE({}::text, '') AS key FROM {} \
             WHERE {}true) t \
           WHERE key IN (SELECT partition_key FROM shown) GROUP BY key) \
         SELECT p.row_id, p.partition_key, p.reason, \
           extract(epoch FROM clock_timestamp() - p.parked_at)::float8, COALESCE(w.rows, 0) \
         FROM shown p LEFT JOIN waiting w ON w.key = p.partition_key ORDER BY p.row_id",
        table.parked_sql(),
        table.sql(),
        blocked_keys::matches_row_sql(table),
        quoted(&table.columns.partition_key),
        table.sql(),
        table.pending_and()
    );
    let ask = Statement { sql: &sql, arguments: arguments![], doing: "read the blocked keys" };
    let key = |row: &sqlx::postgres::PgRow| BlockedKey {
        row: row.get(0),
        key: row.get(1),
        reason: row.get(2),
        seconds: row.get(3),
        waiting_rows: count(row.get(4)),
    };
    Ok(link.rows(ask).await?.iter().map(key).collect())
}

async fn holders(link: &mut DatabaseSession) -> Result<Vec<BlockingTransaction>, RelayError> {
    let ask =
        Statement { sql: HOLDERS, arguments: arguments![], doing: "read the running transactions" };
    let holder = |row: &sqlx::postgres::PgRow| BlockingTransaction {
        pid: row.get(0),
        transaction: crate::read::number(row, 1).unwrap_or(0),
        seconds: row.get(2),
        who: row.get(3),
    };
    Ok(link.rows(ask).await?.iter().map(holder).collect())
}

fn count(rows: i64) -> u64 {
    rows.unsigned_abs()
}
