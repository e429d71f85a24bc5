//! Detects whether a connection keeps its server session.
//!
//! Behind a pooler in transaction mode it does not: each transaction may run on a different server
//! connection. A `LISTEN` would then stay with a connection that other clients use, and its
//! notifications would disturb their statements. The same holds for session locks.

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};
use std::time::Duration;

/// Number of rounds, because the connection that a pooler assigns depends on its other clients.
const ROUNDS: u32 = 5;

/// Returns true if these two connections to one address keep their sessions. `step` is the time-out
/// of each statement.
///
/// In each round, `other` asks in a transaction when the server process of `mine` began its last
/// statement. Behind a pooler with a free connection, both use the same process, or the transaction
/// moves `mine` to another one. If all connections are in use, the process has served another
/// client in the meantime.
pub async fn keeps_session(
    mine: &mut PgConnection,
    other: &mut PgConnection,
    step: Duration,
) -> Result<bool, sqlx::Error> {
    let mut before = None;
    for _ in 0..ROUNDS {
        let asked = ask(mine, MYSELF, step).await?;
        if before.is_some_and(|before| before != asked.process) {
            return Ok(false);
        }
        before = Some(asked.process);
        let seen = ask(other, &seen_by_other(asked.process), step).await?;
        // This query comes last, because a pooler with a single connection cannot answer it.
        let moves = seen.process == asked.process
            || seen.started.is_some() && seen.started != asked.started
            || ask(mine, MYSELF, step).await?.process != asked.process;
        ask(other, &format!("ROLLBACK; {MYSELF}"), step).await?;
        if moves {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Selects the server process that answers, and the start of this statement.
const MYSELF: &str = "SELECT pg_backend_pid(), statement_timestamp()::text";

/// Returns a query that begins a transaction and selects the server process that answers and the
/// start of the last statement of `process`. The start is null if the server does not record it.
fn seen_by_other(process: i32) -> String {
    format!(
        "BEGIN; SELECT pg_backend_pid(), \
         (SELECT query_start::text FROM pg_catalog.pg_stat_activity WHERE pid = {process})"
    )
}

/// State of a server process.
struct ServerProcess {
    process: i32,
    /// Start of a statement, as text.
    started: Option<String>,
}

async fn ask(
    connection: &mut PgConnection,
    sql: &str,
    step: Duration,
) -> Result<ServerProcess, sqlx::Error> {
    // Sent without preparing, because a prepared statement may not exist any more when it is run.
    let sql = sqlx::raw_sql(AssertSqlSafe(sql));
    let row = with_timeout(step, Box::pin(sql.fetch_one(connection))).await?;
    Ok(ServerProcess { process: row.try_get(0)?, started: row.try_get(1)? })
}

/// Waits for `answer` for at most `patience`. Returns a `TimedOut` error after that.
pub async fn with_timeout<T>(
    patience: Duration,
    answer: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    let late = || sqlx::Error::Io(std::io::ErrorKind::TimedOut.into());
    tokio::time::timeout(patience, answer).await.unwrap_or_else(|_| Err(late()))
}
