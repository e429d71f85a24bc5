//! Who relays: the one session that holds the table's advisory lock.
//!
//! The lock ends with its session, so a relay that dies makes way at once, and one that vanishes or
//! stands still when its takeover time is over (`lead.rs`).

use crate::database::{DatabaseSession, Statement, arguments};
use crate::error::RelayError;
use crate::table::OutboxTable;
use sqlx::Row;

/// Sets our locks apart from others'.
const SEED: i64 = 0x616e_6162;

/// Takes the lock if nobody has it.
pub(crate) async fn try_take(
    link: &mut DatabaseSession,
    table: &OutboxTable,
) -> Result<bool, RelayError> {
    let sql = "SELECT pg_try_advisory_lock(hashtextextended($1, $2))";
    let arguments = arguments![table.label(), SEED];
    Ok(link.row(Statement { sql, arguments, doing: "take the relay's lock" }).await?.get(0))
}

/// The process that has the lock, if one does.
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
    let rows = link.rows(Statement { sql, arguments, doing: "find the relay at work" }).await?;
    Ok(rows.first().map(|row| row.get(0)))
}
