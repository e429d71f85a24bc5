//! Removing rows that are in the stream: many at a time, each by id and transaction.

use crate::database::{Ask, Link, arguments};
use crate::error::RelayError;
use crate::read::RowName;
use crate::table::{AfterSend, Table, quoted};

/// The statement that deletes or marks rows. A row that is not the one that was read stays.
pub(crate) fn statement(table: &Table) -> String {
    let (sql, columns) = (table.sql(), &table.columns);
    let (id, transaction) = (quoted(&columns.id), quoted(&columns.transaction_id));
    let these = format!(
        "unnest($1::bigint[], $2::text[]) AS gone(id, transaction) \
         WHERE t.{id} = gone.id AND t.{transaction} IS NOT DISTINCT FROM gone.transaction::xid8"
    );
    match table.after {
        AfterSend::Delete => format!("DELETE FROM {sql} t USING {these}"),
        AfterSend::Mark => {
            let sent = quoted(&columns.sent_at);
            format!("UPDATE {sql} t SET {sent} = clock_timestamp() FROM {these}")
        }
    }
}

/// Removes rows, and says how many were there; `None` if somebody else holds one of them.
pub(crate) async fn remove(
    link: &mut Link,
    sql: &str,
    rows: &[RowName],
) -> Result<Option<u64>, RelayError> {
    let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
    let transactions: Vec<Option<String>> =
        rows.iter().map(|row| row.transaction.map(|number| number.to_string())).collect();
    let arguments = arguments![ids, transactions];
    link.execute_unless_locked(Ask { sql, arguments, doing: "remove rows" }).await
}
