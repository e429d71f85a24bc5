//! `relay skip` and `relay retry`: decisions of an operator about a blocked key.

use super::outbox::OutboxOptions;
use super::{could_not_start, counted};
use crate::failure::CommandFailure;
use crate::output::print_note;

/// Discards a blocking row.
pub(super) async fn skip(row: i64, outbox: &OutboxOptions) -> Result<(), CommandFailure> {
    let (database, table) = (outbox.database()?, outbox.table()?);
    let skipped = anabranch_outbox::skip(&database, &table, row).await.map_err(could_not_start)?;
    let Some(skipped) = skipped else {
        return Err(CommandFailure::result(format!(
            "no key of {} is blocked at row {row}, so nothing was changed: see 'anabranch relay \
             status'",
            table.label()
        )));
    };
    let (key, reason) = (skipped.key, skipped.reason);
    if skipped.removed {
        print_note!("row {row} was removed unsent ({reason}); key {key:?} resumes");
    } else {
        print_note!("row {row} was already gone ({reason}); key {key:?} resumes");
    }
    Ok(())
}

/// Resumes a blocked key.
pub(super) async fn retry(key: &str, outbox: &OutboxOptions) -> Result<(), CommandFailure> {
    let (database, table) = (outbox.database()?, outbox.table()?);
    let retried = anabranch_outbox::retry(&database, &table, key).await.map_err(could_not_start)?;
    let Some(retried) = retried else {
        return Err(CommandFailure::result(format!(
            "key {key:?} of {} is not blocked: see 'anabranch relay status'",
            table.label()
        )));
    };
    let rows: Vec<String> = retried.rows.iter().map(ToString::to_string).collect();
    print_note!("key {key:?} resumes with row {}", rows.join(", "));
    Ok(())
}

/// Resumes all blocked keys.
pub(super) async fn retry_all(outbox: &OutboxOptions) -> Result<(), CommandFailure> {
    let (database, table) = (outbox.database()?, outbox.table()?);
    let retried = anabranch_outbox::retry_all(&database, &table).await.map_err(could_not_start)?;
    let rows = retried.map_or(0, |retried| retried.rows.len() as u64);
    print_note!(
        "{} of {}",
        counted(rows, "blocked row is retried", "blocked rows are retried"),
        table.label()
    );
    Ok(())
}
