//! Table's advisory lock, whose holding session relays.
//!
//! The lock ends with its session. A relay that crashes therefore releases it at once. For a relay
//! that is cut off or frozen, the server ends the session after the takeover timeout (see
//! `leadership.rs`).

use crate::database::{DatabaseSession, Statement, arguments};
use crate::error::RelayError;
use crate::table::OutboxTable;
use sqlx::Row;

/// Hash seed that separates these locks from those of other applications.
const SEED: i64 = 0x616e_6162;

/// Tries to take the lock. Returns false if another session holds it.
pub(crate) async fn try_take(
    link: &mut DatabaseSession,
    table: &OutboxTable,
) -> Result<bool, RelayError> {
    let sql = "SELECT pg_try_advisory_lock(hashtextextended($1, $2))";
    let arguments = arguments![table.label(), SEED];
    Ok(link.row(Statement { sql, arguments, doing: "take the relay's lock" }).await?.get(0))
}

/// Returns the server process that holds the lock, if any.
pub(crate) async fn holder(
    link: &mut DatabaseSession,
    table: &OutboxTable,
) -> Result<Option<i32>, RelayError> {
    let sql = "\
SELECT l.pid FROM pg_locks l, hashtextextended($1, $2) AS key
WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.classid::bigint = (key >> 32) & 4294967295 AND l.objid::bigint = key & 4294967295";
    let arguments = arguments![table.label(), SEED];
    let rows = link.rows(Statement { sql, arguments, doing: "find the leading relay" }).await?;
    Ok(rows.first().map(|row| row.get(0)))
}
