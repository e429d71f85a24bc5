//! Parked keys: a row that the stream will never take stops its key until a person has decided.
//!
//! The row and those of its key behind it stay in the table. What is parked stands in a table of its
//! own, each line for one row by its id and transaction: a line whose row is gone stops nothing. A key
//! goes on when its line is gone: the relay then reads what it passed over of that key alone.

use crate::database::{Database, DatabaseSession, Statement, arguments};
use crate::error::RelayError;
use crate::listen::CHANNEL;
use crate::read::RowId;
use crate::table::{AfterSend, OutboxTable, quoted};
use sqlx::Row;
use std::collections::{HashMap, VecDeque};

/// The keys that are parked, and those that go on but are not yet where reading stands.
#[derive(Debug, Default)]
pub(crate) struct BlockedKeys {
    /// What stops each key.
    stops: HashMap<String, BlockReason>,
    /// The keys that go on.
    going: VecDeque<ResumedKey>,
}

/// What stops a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockReason {
    /// The first of its rows that can't be sent.
    At(i64),
    /// It goes on: [`ResumedKey`] takes its rows, and the reader none.
    Going,
}

/// A key that goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResumedKey {
    /// The key.
    pub(crate) key: String,
    /// Its rows up to this one were taken.
    pub(crate) after: i64,
    /// The next of its rows that stops it.
    pub(crate) next: Option<i64>,
    /// The row that stopped it. It may have another key by now.
    pub(crate) stopped_at: i64,
}

impl BlockedKeys {
    /// What stands in the table.
    pub(crate) fn of(lines: HashMap<String, i64>) -> Self {
        let stops = lines.into_iter().map(|(key, row)| (key, BlockReason::At(row))).collect();
        Self { stops, going: VecDeque::new() }
    }

    /// Whether a row of this key stops it.
    pub(crate) fn is_stopped(&self, key: &str) -> bool {
        matches!(self.stops.get(key), Some(BlockReason::At(_)))
    }

    /// Whether rows of this key may have been passed over.
    pub(crate) fn names(&self, key: &str) -> bool {
        self.stops.contains_key(key)
    }

    /// Whether the reader passes this row over. What lies before the row that stopped its key may go.
    pub(crate) fn stops(&self, key: &str, row: i64) -> bool {
        match self.stops.get(key) {
            None => false,
            Some(BlockReason::At(first)) => *first <= row,
            Some(BlockReason::Going) => true,
        }
    }

    /// How many keys wait for a person.
    pub(crate) fn len(&self) -> usize {
        self.stops.len().saturating_sub(self.going.len())
    }

    /// Whether keys go on that are not yet where reading stands.
    pub(crate) fn has_going(&self) -> bool {
        !self.going.is_empty()
    }

    /// Stops a key at a row. One that was going on goes no further.
    pub(crate) fn stop(&mut self, key: &str, row: i64) {
        self.going.retain(|going| going.key != key);
        let stop = self.stops.entry(key.to_owned()).or_insert(BlockReason::At(row));
        *stop = match *stop {
            BlockReason::At(first) => BlockReason::At(first.min(row)),
            BlockReason::Going => BlockReason::At(row),
        };
    }

    /// The keys that the row which stopped them stops no longer, by what stands in the table now, each
    /// with the next row that does.
    pub(crate) fn newly_freed(&self, lines: &HashMap<String, i64>) -> Vec<(String, Option<i64>)> {
        let next = |key: &str| lines.get(key).copied();
        let freed = self.stops.iter().filter(|(key, stop)| match stop {
            BlockReason::At(row) => next(key) != Some(*row),
            BlockReason::Going => false,
        });
        freed.map(|(key, _)| (key.clone(), next(key))).collect()
    }

    /// Lets a key go on, up to the next row that stops it.
    pub(crate) fn resume(&mut self, key: String, next: Option<i64>) {
        let Some(BlockReason::At(stopped_at)) = self.stops.insert(key.clone(), BlockReason::Going)
        else {
            return;
        };
        self.going.push_back(ResumedKey { key, after: i64::MIN, next, stopped_at });
    }

    /// The reader passed over a row of this key. If the key goes on, and is behind that row already,
    /// the row came late: it is taken before the rest.
    pub(crate) fn rewind(&mut self, key: &str, row: i64) {
        if let Some(going) = self.going.iter_mut().find(|going| going.key == key) {
            going.after = going.after.min(row.saturating_sub(1));
        }
    }

    /// The key whose rows are to be taken now.
    pub(crate) fn first_going(&self) -> Option<ResumedKey> {
        self.going.front().cloned()
    }

    /// Rows of a key that goes on were taken; with `done` all that were passed over. The next key
    /// has its turn.
    pub(crate) fn advance(&mut self, going: ResumedKey, done: bool) {
        if self.stops.get(&going.key) != Some(&BlockReason::Going) {
            // One of them stopped it again.
            return;
        }
        self.going.retain(|other| other.key != going.key);
        match (done, going.next) {
            (false, _) => self.going.push_back(going),
            (true, None) => drop(self.stops.remove(&going.key)),
            (true, Some(row)) => drop(self.stops.insert(going.key, BlockReason::At(row))),
        }
    }
}

/// Whether line `p` speaks of row `t`. A line without a transaction is older than that column.
pub(crate) fn matches_row_sql(table: &OutboxTable) -> String {
    let (id, transaction) = (quoted(&table.columns.id), quoted(&table.columns.transaction_id));
    format!(
        "{}t.{id} = p.row_id \
         AND (p.transaction_id IS NULL OR t.{transaction} IS NOT DISTINCT FROM p.transaction_id)",
        table.pending_and()
    )
}

/// Reads what is parked: each key with the first row that stops it. Lines go whose rows are gone.
pub(crate) async fn load(
    link: &mut DatabaseSession,
    table: &OutboxTable,
) -> Result<HashMap<String, i64>, RelayError> {
    let (parked, sql, speaks_of) = (table.parked_sql(), table.sql(), matches_row_sql(table));
    let sql = format!(
        "WITH gone AS (DELETE FROM {parked} p \
           WHERE NOT EXISTS (SELECT FROM {sql} t WHERE {speaks_of}) RETURNING row_id) \
         SELECT row_id, partition_key FROM {parked} WHERE row_id NOT IN (SELECT row_id FROM gone)"
    );
    let ask = Statement { sql: &sql, arguments: arguments![], doing: "read the parked keys" };
    let mut lines = HashMap::new();
    for line in link.rows(ask).await? {
        let row: i64 = line.get(0);
        let first = lines.entry(line.get(1)).or_insert(row);
        *first = row.min(*first);
    }
    Ok(lines)
}

/// Parks a key at a row that still waits to be sent. A line of another row that had its id makes way.
pub(crate) async fn block(
    link: &mut DatabaseSession,
    table: &OutboxTable,
    (row, key, reason): (RowId, &str, &str),
) -> Result<(), RelayError> {
    let transaction = quoted(&table.columns.transaction_id);
    let sql = format!(
        "INSERT INTO {} AS p (row_id, partition_key, reason, transaction_id) \
         SELECT $1, $2, $3, $4::text::xid8 WHERE EXISTS (SELECT FROM {} WHERE {}{} = $1 \
           AND {transaction} IS NOT DISTINCT FROM $4::text::xid8) \
         ON CONFLICT (row_id) DO UPDATE SET partition_key = EXCLUDED.partition_key, \
           reason = EXCLUDED.reason, transaction_id = EXCLUDED.transaction_id, \
           parked_at = EXCLUDED.parked_at \
         WHERE p.transaction_id IS DISTINCT FROM EXCLUDED.transaction_id",
        table.parked_sql(),
        table.sql(),
        table.pending_and(),
        quoted(&table.columns.id)
    );
    let transaction = row.transaction.map(|number| number.to_string());
    let arguments = arguments![row.id, key, reason, transaction];
    link.execute(Statement { sql: &sql, arguments, doing: "park a key" }).await.map(drop)
}

/// What `skip` did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// The key that goes on.
    pub key: String,
    /// Why it was parked.
    pub reason: String,
    /// Whether the row was there to be removed.
    pub removed: bool,
}

/// Gives a parked row up: it is removed without having been sent, and its key goes on behind it.
/// `None` if no key is parked at this row; nothing was changed then.
pub async fn skip(
    database: &Database,
    table: &OutboxTable,
    row: i64,
) -> Result<Option<Skipped>, RelayError> {
    let (sql, speaks_of) = (table.sql(), matches_row_sql(table));
    // Another row may have the id by now: it stays.
    let remove = match table.after {
        AfterSend::Delete => format!("DELETE FROM {sql} t USING freed p WHERE {speaks_of}"),
        AfterSend::Mark => format!(
            "UPDATE {sql} t SET {} = clock_timestamp() FROM freed p WHERE {speaks_of}",
            quoted(&table.columns.sent_at)
        ),
    };
    let sql = format!(
        "WITH freed AS (DELETE FROM {} WHERE row_id = $1 RETURNING *), \
         removed AS ({remove} RETURNING 1) \
         SELECT partition_key, reason, EXISTS (SELECT FROM removed), pg_notify($2, $3)::text \
         FROM freed",
        table.parked_sql()
    );
    let mut link = database.connect().await?;
    let arguments = arguments![row, CHANNEL, table.label()];
    let freed = link.rows(Statement { sql: &sql, arguments, doing: "skip a row" }).await?;
    link.close().await;
    Ok(freed.first().map(|row| Skipped {
        key: row.get(0),
        reason: row.get(1),
        removed: row.get(2),
    }))
}

/// What `retry` did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retried {
    /// The rows that the key was parked at, or all keys were.
    pub rows: Vec<i64>,
}

/// Lets a parked key go on with the row that stopped it. `None` if the key is not parked.
pub async fn retry(
    database: &Database,
    table: &OutboxTable,
    key: &str,
) -> Result<Option<Retried>, RelayError> {
    unblock(database, table, Some(key)).await
}

/// Lets every parked key go on with the row that stopped it. `None` if none is parked.
pub async fn retry_all(
    database: &Database,
    table: &OutboxTable,
) -> Result<Option<Retried>, RelayError> {
    unblock(database, table, None).await
}

/// Frees one key, or all of them.
async fn unblock(
    database: &Database,
    table: &OutboxTable,
    key: Option<&str>,
) -> Result<Option<Retried>, RelayError> {
    let sql = format!(
        "WITH freed AS (DELETE FROM {} WHERE $1::text IS NULL OR partition_key = $1 \
           RETURNING row_id) \
         SELECT row_id, pg_notify($2, $3)::text FROM freed ORDER BY row_id",
        table.parked_sql()
    );
    let mut link = database.connect().await?;
    let arguments = arguments![key, CHANNEL, table.label()];
    let freed = link.rows(Statement { sql: &sql, arguments, doing: "free parked keys" }).await?;
    link.close().await;
    let rows: Vec<i64> = freed.iter().map(|row| row.get(0)).collect();
    Ok((!rows.is_empty()).then_some(Retried { rows }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(all: &[(&str, i64)]) -> HashMap<String, i64> {
        all.iter().map(|(key, row)| ((*key).to_owned(), *row)).collect()
    }

    #[test]
    fn a_key_is_stopped_from_its_first_bad_row_on_and_wholly_while_it_goes_on() {
        let mut parked = BlockedKeys::of(lines(&[("a", 5)]));
        let stops = |parked: &BlockedKeys| [4, 5, 6].map(|row| parked.stops("a", row));
        assert_eq!(stops(&parked), [false, true, true]);
        parked.stop("a", 6);
        assert_eq!(stops(&parked), [false, true, true], "the first one stands");
        assert_eq!(parked.newly_freed(&lines(&[("a", 5)])), []);
        assert_eq!(parked.newly_freed(&lines(&[("a", 6)])), [("a".to_owned(), Some(6))]);
        parked.resume("a".to_owned(), Some(6));
        assert_eq!((stops(&parked), parked.len()), ([true; 3], 0));
        assert_eq!(parked.newly_freed(&lines(&[])), [], "it goes on already");
        let going = parked.first_going().unwrap();
        parked.advance(going, true);
        assert_eq!((stops(&parked), parked.len()), ([false, false, true], 1));
    }

    #[test]
    fn a_key_that_is_stopped_while_it_goes_on_stays_stopped() {
        let mut parked = BlockedKeys::of(lines(&[("a", 5), ("b", 7)]));
        parked.resume("a".to_owned(), None);
        parked.resume("b".to_owned(), None);
        let going = parked.first_going().unwrap();
        assert_eq!(going.key, "a");
        parked.stop("a", 5);
        parked.advance(going, true);
        assert!(parked.is_stopped("a"));
        let going = parked.first_going().unwrap();
        assert_eq!((going.key.as_str(), parked.is_stopped("b")), ("b", false));
        let going = ResumedKey { after: 50, ..going };
        parked.advance(going.clone(), false);
        assert!(parked.names("b") && parked.has_going());
        parked.rewind("b", 60);
        assert_eq!(parked.first_going().unwrap().after, 50);
        parked.rewind("b", 3);
        assert_eq!(parked.first_going().unwrap().after, 2, "a late row goes first");
        parked.advance(going, true);
        assert!(!parked.names("b") && !parked.has_going());
    }
}
