//! What one look at the table costs, as the database plans it.

use crate::database::{Ask, Database, arguments};
use crate::error::RelayError;
use crate::read::statement;
use crate::shape;
use crate::table::Table;
use sqlx::Row;

/// Reads as a relay would whose cursor stands at this id, with the horizon where it was, or at the
/// start, up to `rows` rows, and gives the plan with the rows of each step. Nothing is sent and
/// nothing is changed.
pub async fn explain(
    database: &Database,
    table: &Table,
    cursor: Option<i64>,
    rows: u32,
) -> Result<Vec<String>, RelayError> {
    let mut link = database.connect().await?;
    let Some(shape) = shape::look(&mut link, table).await? else {
        let detail = format!("there is no table {}", table.label());
        return Err(link.refused("explain a look", detail));
    };
    let doing = "explain a look";
    // A relay's statement is prepared, so after some looks its plan is one for any cursor.
    let mode = if cursor.is_some() { "force_generic_plan" } else { "auto" };
    let prepare = format!(
        "SET plan_cache_mode = {mode}; PREPARE look(bigint, text, bigint, bigint) AS {}",
        statement(table, &shape)
    );
    link.script(&prepare, doing).await?;
    // One snapshot for all that follows, so that the horizon stands.
    link.script("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", doing).await?;
    let horizon: String = if cursor.is_none() {
        u64::MAX.to_string()
    } else {
        let sql = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text";
        link.row(Ask { sql, arguments: arguments![], doing }).await?.get(0)
    };
    let explain = format!(
        "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) \
         EXECUTE look({}, '{horizon}', {rows}, {})",
        cursor.unwrap_or(i64::MIN),
        i64::MAX
    );
    let plan = link.rows(Ask { sql: &explain, arguments: arguments![], doing }).await?;
    link.close().await;
    Ok(plan.iter().map(|line| line.get(0)).collect())
}
