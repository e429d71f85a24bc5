//! Whether a connection keeps its session.
//!
//! Behind a pooler in transaction mode it does not: each transaction may run on another connection
//! to the server. A `LISTEN` there would stay with a connection that others use, and its
//! notifications would break in on their statements. So would a lock.

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};
use std::time::Duration;

/// How often it is tried. A pooler whose N connections are all in use lends the one from before by
/// chance, each time with 1/N.
const ROUNDS: u32 = 8;

/// Whether these two connections to one address keep their sessions. Each statement may take `step`.
///
/// A transaction on the other connection must neither get the server process of the first, nor push
/// the first to another.
pub async fn is_kept(
    mine: &mut PgConnection,
    other: &mut PgConnection,
    step: Duration,
) -> Result<bool, sqlx::Error> {
    let before = process(mine, "", step).await?;
    let mut kept = true;
    for _ in 0..ROUNDS {
        // The first question comes first: a pooler with one connection has none left to answer the
        // second.
        kept = process(other, "BEGIN;", step).await? != before
            && process(mine, "", step).await? == before;
        process(other, "ROLLBACK;", step).await?;
        if !kept {
            break;
        }
    }
    Ok(kept)
}

/// The server process that answers, after a statement in the same message.
async fn process(
    connection: &mut PgConnection,
    statement: &str,
    step: Duration,
) -> Result<i32, sqlx::Error> {
    // Without a prepared statement, which may not live until it is run.
    let sql = sqlx::raw_sql(AssertSqlSafe(format!("{statement} SELECT pg_backend_pid()")));
    in_time(step, Box::pin(sql.fetch_one(connection))).await?.try_get(0)
}

/// The answer, if it comes in time.
pub(super) async fn in_time<T>(
    patience: Duration,
    answer: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    let late = || sqlx::Error::Io(std::io::ErrorKind::TimedOut.into());
    tokio::time::timeout(patience, answer).await.unwrap_or_else(|_| Err(late()))
}
