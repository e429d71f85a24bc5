//! `relay skip` and `relay retry`: what a person decides about a parked key.

use super::could_not_start;
use super::outbox::Outbox;
use crate::failure::Failure;
use crate::output::note;

/// Gives a parked row up.
pub(super) async fn skip(row: i64, outbox: &Outbox) -> Result<(), Failure> {
    let (database, table) = (outbox.database()?, outbox.table()?);
    let skipped = anabranch_outbox::skip(&database, &table, row).await.map_err(could_not_start)?;
    let Some(skipped) = skipped else {
        return Err(Failure::result(format!(
            "no key of {} is parked at row {row}, so nothing was changed: see 'anabranch relay \
             status'",
            table.label()
        )));
    };
    note!("row {row} was removed unsent ({}); key {:?} goes on", skipped.reason, skipped.key);
    Ok(())
}

/// Lets a parked key go on.
pub(super) async fn retry(key: &str, outbox: &Outbox) -> Result<(), Failure> {
    let (database, table) = (outbox.database()?, outbox.table()?);
    let retried = anabranch_outbox::retry(&database, &table, key).await.map_err(could_not_start)?;
    let Some(retried) = retried else {
        return Err(Failure::result(format!(
            "key {key:?} of {} is not parked: see 'anabranch relay status'",
            table.label()
        )));
    };
    let rows: Vec<String> = retried.rows.iter().map(ToString::to_string).collect();
    note!("key {key:?} goes on with row {}", rows.join(", "));
    Ok(())
}
