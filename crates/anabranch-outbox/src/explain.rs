//! Query plans of the relay's statements, with the rows of each step.

use crate::database::{Database, DatabaseSession, Statement, arguments};
use crate::error::RelayError;
use crate::lag;
use crate::read::{RowFilter, key_statement, statement};
use crate::remove;
use crate::schema;
use crate::schema::TableSchema;
use crate::sweep;
use crate::table::{OutboxTable, literal};
use sqlx::Row;

const DOING: &str = "explain a poll";

/// Returns the query plans of a read, a lag probe and a removal. The read is run as by a relay with
/// its cursor at this id and an unchanged horizon, or at the start, for up to `rows` rows. The
/// plans of read and lag probe include the rows of each step. The removal is planned for `rows`
/// rows. Sends and changes nothing.
pub async fn explain(
    database: &Database,
    table: &OutboxTable,
    cursor: Option<i64>,
    rows: u32,
) -> Result<Vec<String>, RelayError> {
    let (mut link, shape) = open(database, table).await?;
    // A relay's statement is prepared. After some executions its plan is generic, for any cursor.
    let mode = if cursor.is_some() { "force_generic_plan" } else { "auto" };
    let prepare = format!(
        "SET plan_cache_mode = {mode}; PREPARE look(bigint, text, bigint, bigint) AS {}; \
         PREPARE glance(bigint) AS {}",
        statement(table, &shape),
        lag::statement(table, &shape)
    );
    link.script(&prepare, DOING).await?;
    // One snapshot for everything that follows, so that the horizon does not move.
    link.script("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", DOING).await?;
    let horizon = if cursor.is_none() { u64::MAX.to_string() } else { horizon(&mut link).await? };
    let cursor = cursor.unwrap_or(i64::MIN);
    let mut plan =
        execute(&mut link, &format!("look({cursor}, '{horizon}', {rows}, {})", i64::MAX)).await?;
    plan.extend(execute(&mut link, &format!("glance({cursor})")).await?);
    link.script("ROLLBACK", DOING).await?;
    plan.extend(removal(&mut link, table, rows).await?);
    link.close().await;
    Ok(plan)
}

/// Plans the removal of rows.
async fn removal(
    link: &mut DatabaseSession,
    table: &OutboxTable,
    rows: u32,
) -> Result<Vec<String>, RelayError> {
    let prepare = format!(
        "{}; SET plan_cache_mode = auto; PREPARE removal(bigint[], text[]) AS {}",
        remove::PLANS,
        remove::statement(table)
    );
    link.script(&prepare, DOING).await?;
    let of = |number: &dyn Fn(u32) -> u32| {
        let all: Vec<String> = (1..=rows).map(|row| number(row).to_string()).collect();
        all.join(",")
    };
    let (ids, transactions) = (of(&|row| row), of(&|_| 1));
    let sql = format!("EXPLAIN (COSTS OFF) EXECUTE removal('{{{ids}}}', '{{{transactions}}}')");
    let plan = link.rows(Statement { sql: &sql, arguments: arguments![], doing: DOING }).await?;
    Ok(plan.iter().map(|line| line.get(0)).collect())
}

/// Returns the query plans of a read of one key's skipped rows and of one sweep step, with the rows
/// of each step. The read is run as by a relay that resumes a key whose rows up to `cursor` were
/// skipped, for up to `rows` rows. Sends and changes nothing.
pub async fn explain_key(
    database: &Database,
    table: &OutboxTable,
    (key, cursor): (&str, i64),
    rows: u32,
) -> Result<Vec<String>, RelayError> {
    let (mut link, shape) = open(database, table).await?;
    let of = if key.is_empty() { RowFilter::NoKey } else { RowFilter::Key };
    let prepare = format!(
        "SET plan_cache_mode = force_generic_plan; \
         PREPARE passed(bigint, bigint, bigint, bigint, text, text) AS {}; \
         PREPARE sweep(bigint, bigint, text, bigint) AS {}",
        key_statement(table, &shape, of),
        sweep::statement(table)
    );
    link.script(&prepare, DOING).await?;
    let (horizon, first, bytes) = (horizon(&mut link).await?, i64::MIN, i64::MAX);
    let key = literal(key);
    let passed = format!("passed({first}, {cursor}, {rows}, {bytes}, '{horizon}', {key})");
    let mut plan = execute(&mut link, &passed).await?;
    plan.extend(
        execute(&mut link, &format!("sweep({first}, {cursor}, '{horizon}', {rows})")).await?,
    );
    link.close().await;
    Ok(plan)
}

async fn open(
    database: &Database,
    table: &OutboxTable,
) -> Result<(DatabaseSession, TableSchema), RelayError> {
    let mut link = database.connect().await?;
    if let Some(shape) = schema::inspect(&mut link, table).await? {
        return Ok((link, shape));
    }
    Err(link.refused(DOING, format!("there is no table {}", table.label())))
}

async fn horizon(link: &mut DatabaseSession) -> Result<String, RelayError> {
    let sql = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text";
    Ok(link.row(Statement { sql, arguments: arguments![], doing: DOING }).await?.get(0))
}

async fn execute(link: &mut DatabaseSession, call: &str) -> Result<Vec<String>, RelayError> {
    let sql = format!("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) EXECUTE {call}");
    let plan = link.rows(Statement { sql: &sql, arguments: arguments![], doing: DOING }).await?;
    Ok(plan.iter().map(|line| line.get(0)).collect())
}
