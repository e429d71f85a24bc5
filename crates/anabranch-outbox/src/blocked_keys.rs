//! Blocked keys: a row that the stream will never accept blocks its key until an operator decides.
//!
//! The row and later rows of its key stay in the table. A separate table lists the blocking rows by
//! id and transaction. An entry whose row is gone blocks nothing. A key resumes when its entry is
//! deleted: the relay then reads the rows of that key that it skipped.

use crate::database::{Database, DatabaseSession, Statement, arguments};
use crate::error::RelayError;
use crate::listen::CHANNEL;
use crate::read::RowId;
use crate::table::{AfterSend, OutboxTable, quoted};
use sqlx::Row;
use std::collections::{HashMap, VecDeque};

/// Blocked keys, and resumed keys that have not caught up with the reader.
#[derive(Debug, Default)]
pub(crate) struct BlockedKeys {
    /// State of each blocked or resumed key.
    stops: HashMap<String, BlockReason>,
    /// Resumed keys, in turn.
    going: VecDeque<ResumedKey>,
}

/// State of a key that the reader skips.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockReason {
    /// Blocked at this row, the first of its rows that can't be sent.
    At(i64),
    /// Resumed: [`ResumedKey`] reads its rows and the reader skips them.
    Going,
}

/// A resumed key that has not caught up with the reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResumedKey {
    pub(crate) key: String,
    /// Its rows up to this id were taken.
    pub(crate) after: i64,
    /// The next row that blocks it.
    pub(crate) next: Option<i64>,
    /// The row that blocked it, which may have another key by now.
    pub(crate) stopped_at: i64,
}

impl BlockedKeys {
    /// Creates the set from the entries of the table.
    pub(crate) fn of(lines: HashMap<String, i64>) -> Self {
        let stops = lines.into_iter().map(|(key, row)| (key, BlockReason::At(row))).collect();
        Self { stops, going: VecDeque::new() }
    }

    /// Returns true if the key is blocked.
    pub(crate) fn is_stopped(&self, key: &str) -> bool {
        matches!(self.stops.get(key), Some(BlockReason::At(_)))
    }

    /// Returns true if rows of this key may have been skipped.
    pub(crate) fn names(&self, key: &str) -> bool {
        self.stops.contains_key(key)
    }

    /// Returns true if the reader skips this row. Rows before the blocking row may be sent.
    pub(crate) fn stops(&self, key: &str, row: i64) -> bool {
        match self.stops.get(key) {
            None => false,
            Some(BlockReason::At(first)) => *first <= row,
            Some(BlockReason::Going) => true,
        }
    }

    /// Returns the number of blocked keys, which wait for an operator.
    pub(crate) fn len(&self) -> usize {
        self.stops.len().saturating_sub(self.going.len())
    }

    /// Returns true if resumed keys have not caught up with the reader.
    pub(crate) fn has_going(&self) -> bool {
        !self.going.is_empty()
    }

    /// Blocks a key at a row, and cancels its resumption.
    pub(crate) fn stop(&mut self, key: &str, row: i64) {
        self.going.retain(|going| going.key != key);
        let stop = self.stops.entry(key.to_owned()).or_insert(BlockReason::At(row));
        *stop = match *stop {
            BlockReason::At(first) => BlockReason::At(first.min(row)),
            BlockReason::Going => BlockReason::At(row),
        };
    }

    /// Returns the keys that are no longer blocked by the same row, according to the entries in the
    /// table now. Each comes with the next row that blocks it.
    pub(crate) fn newly_freed(&self, lines: &HashMap<String, i64>) -> Vec<(String, Option<i64>)> {
        let next = |key: &str| lines.get(key).copied();
        let freed = self.stops.iter().filter(|(key, stop)| match stop {
            BlockReason::At(row) => next(key) != Some(*row),
            BlockReason::Going => false,
        });
        freed.map(|(key, _)| (key.clone(), next(key))).collect()
    }

    /// Resumes a key, up to the next row that blocks it.
    pub(crate) fn resume(&mut self, key: String, next: Option<i64>) {
        let Some(BlockReason::At(stopped_at)) = self.stops.insert(key.clone(), BlockReason::Going)
        else {
            return;
        };
        self.going.push_back(ResumedKey { key, after: i64::MIN, next, stopped_at });
    }

    /// Records that the reader skipped a row of this key. If the key is resumed and already past
    /// that row, the row came late: it is read before the rest.
    pub(crate) fn rewind(&mut self, key: &str, row: i64) {
        if let Some(going) = self.going.iter_mut().find(|going| going.key == key) {
            going.after = going.after.min(row.saturating_sub(1));
        }
    }

    /// Returns the resumed key whose turn it is.
    pub(crate) fn first_going(&self) -> Option<ResumedKey> {
        self.going.front().cloned()
    }

    /// Records progress of a resumed key, and gives the next key its turn. `done` is true when all
    /// skipped rows were taken.
    pub(crate) fn advance(&mut self, going: ResumedKey, done: bool) {
        if self.stops.get(&going.key) != Some(&BlockReason::Going) {
            // One of its rows blocked it again.
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

/// Returns the condition that entry `p` refers to row `t`. An entry without a transaction is older
/// than that column.
pub(crate) fn matches_row_sql(table: &OutboxTable) -> String {
    let (id, transaction) = (quoted(&table.columns.id), quoted(&table.columns.transaction_id));
    format!(
        "{}t.{id} = p.row_id \
         AND (p.transaction_id IS NULL OR t.{transaction} IS NOT DISTINCT FROM p.transaction_id)",
        table.pending_and()
    )
}

/// Reads each blocked key with its first blocking row. Deletes entries whose rows are gone.
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
    let ask = Statement { sql: &sql, arguments: arguments![], doing: "read the blocked keys" };
    let mut lines = HashMap::new();
    for line in link.rows(ask).await? {
        let row: i64 = line.get(0);
        let first = lines.entry(line.get(1)).or_insert(row);
        *first = row.min(*first);
    }
    Ok(lines)
}

/// Blocks a key at a row that still waits to be sent. Replaces an entry of another row with the
/// same id.
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
    link.execute(Statement { sql: &sql, arguments, doing: "block a key" }).await.map(drop)
}

/// Result of [`skip`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// The key that resumes.
    pub key: String,
    /// Reason for which the key was blocked.
    pub reason: String,
    /// True if the row existed and was removed.
    pub removed: bool,
}

/// Discards a blocking row: removes it unsent, and its key resumes behind it. Returns `None` and
/// changes nothing if no key is blocked at this row.
pub async fn skip(
    database: &Database,
    table: &OutboxTable,
    row: i64,
) -> Result<Option<Skipped>, RelayError> {
    let (sql, speaks_of) = (table.sql(), matches_row_sql(table));
    // Another row may have the id by now; it stays.
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

/// Result of [`retry`] or [`retry_all`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retried {
    /// Ids of the rows at which the key, or all keys, were blocked.
    pub rows: Vec<i64>,
}

/// Resumes a blocked key with the row that blocked it. Returns `None` if the key is not blocked.
pub async fn retry(
    database: &Database,
    table: &OutboxTable,
    key: &str,
) -> Result<Option<Retried>, RelayError> {
    unblock(database, table, Some(key)).await
}

/// Resumes every blocked key with the row that blocked it. Returns `None` if none is blocked.
pub async fn retry_all(
    database: &Database,
    table: &OutboxTable,
) -> Result<Option<Retried>, RelayError> {
    unblock(database, table, None).await
}

/// Unblocks one key, or all.
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
    let freed = link.rows(Statement { sql: &sql, arguments, doing: "resume blocked keys" }).await?;
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
