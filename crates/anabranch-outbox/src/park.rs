//! Parked keys: a row that the stream will never take stops its key until a person has decided.
//!
//! The row and those of its key behind it stay in the table. What is parked stands in a table of its
//! own, and a key goes on when its line there is gone: the relay then reads the table again from its
//! first row, because rows of the key may have been passed over on both sides of the one that stopped
//! it.

use crate::database::{Ask, Database, Link, arguments};
use crate::error::RelayError;
use crate::listen::CHANNEL;
use crate::table::{AfterSend, Table, quoted};
use sqlx::Row;
use std::collections::HashMap;

/// The keys that are parked, each with the first row that stopped it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Parked(pub(crate) HashMap<String, i64>);

impl Parked {
    pub(crate) fn holds(&self, key: &str) -> bool {
        !self.0.is_empty() && self.0.contains_key(key)
    }

    /// Whether this row waits. What lies before the row that stopped its key may go.
    pub(crate) fn stops(&self, key: &str, row: i64) -> bool {
        !self.0.is_empty() && self.0.get(key).is_some_and(|first| *first <= row)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The keys that the row which stopped them here stops no longer `there`, each with the next row
    /// that does.
    pub(crate) fn freed(&self, there: &Self) -> Vec<(String, Option<i64>)> {
        let next = |key: &str| there.0.get(key).copied();
        let freed = self.0.iter().filter(|(key, row)| next(key) != Some(**row));
        freed.map(|(key, _)| (key.clone(), next(key))).collect()
    }
}

/// Reads what is parked.
pub(crate) async fn load(link: &mut Link, table: &Table) -> Result<Parked, RelayError> {
    let sql = format!("SELECT row_id, partition_key FROM {}", table.parked_sql());
    let ask = Ask { sql: &sql, arguments: arguments![], doing: "read the parked keys" };
    let mut parked = Parked::default();
    for line in link.rows(ask).await? {
        let row: i64 = line.get(0);
        let first = parked.0.entry(line.get(1)).or_insert(row);
        *first = row.min(*first);
    }
    Ok(parked)
}

/// Parks a key at a row that still waits to be sent.
pub(crate) async fn park(
    link: &mut Link,
    table: &Table,
    (row, key, reason): (i64, &str, &str),
) -> Result<(), RelayError> {
    let sql = format!(
        "INSERT INTO {} (row_id, partition_key, reason) SELECT $1, $2, $3 \
         WHERE EXISTS (SELECT FROM {} WHERE {}{} = $1) ON CONFLICT DO NOTHING",
        table.parked_sql(),
        table.sql(),
        table.pending_and(),
        quoted(&table.columns.id)
    );
    let arguments = arguments![row, key, reason];
    link.execute(Ask { sql: &sql, arguments, doing: "park a key" }).await.map(drop)
}

/// What `skip` did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// The key that goes on.
    pub key: String,
    /// Why it was parked.
    pub reason: String,
}

/// Gives a parked row up: it is removed without having been sent, and its key goes on behind it.
/// `None` if no key is parked at this row; nothing was changed then.
pub async fn skip(
    database: &Database,
    table: &Table,
    row: i64,
) -> Result<Option<Skipped>, RelayError> {
    let id = quoted(&table.columns.id);
    let parked = "EXISTS (SELECT FROM freed)";
    let remove = match table.after {
        AfterSend::Delete => format!("DELETE FROM {} WHERE {id} = $1 AND {parked}", table.sql()),
        AfterSend::Mark => format!(
            "UPDATE {} SET {} = clock_timestamp() WHERE {id} = $1 AND {parked}",
            table.sql(),
            quoted(&table.columns.sent_at)
        ),
    };
    let sql = format!(
        "WITH freed AS (DELETE FROM {} WHERE row_id = $1 RETURNING partition_key, reason), \
         removed AS ({remove}) SELECT partition_key, reason, pg_notify($2, $3)::text FROM freed",
        table.parked_sql()
    );
    let mut link = database.connect().await?;
    let arguments = arguments![row, CHANNEL, table.label()];
    let freed = link.rows(Ask { sql: &sql, arguments, doing: "skip a row" }).await?;
    link.close().await;
    Ok(freed.first().map(|row| Skipped { key: row.get(0), reason: row.get(1) }))
}

/// What `retry` did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retried {
    /// The rows that the key was parked at.
    pub rows: Vec<i64>,
}

/// Lets a parked key go on with the row that stopped it. `None` if the key is not parked.
pub async fn retry(
    database: &Database,
    table: &Table,
    key: &str,
) -> Result<Option<Retried>, RelayError> {
    let sql = format!(
        "WITH freed AS (DELETE FROM {} WHERE partition_key = $1 RETURNING row_id) \
         SELECT row_id, pg_notify($2, $3)::text FROM freed ORDER BY row_id",
        table.parked_sql()
    );
    let mut link = database.connect().await?;
    let arguments = arguments![key, CHANNEL, table.label()];
    let freed = link.rows(Ask { sql: &sql, arguments, doing: "retry a key" }).await?;
    link.close().await;
    let rows: Vec<i64> = freed.iter().map(|row| row.get(0)).collect();
    Ok((!rows.is_empty()).then_some(Retried { rows }))
}
