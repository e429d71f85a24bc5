//! Relay lag, as metrics and as an event.

use crate::database::{DatabaseSession, Statement, arguments};
use crate::error::RelayError;
use crate::read::{created, number};
use crate::schema::TableSchema;
use crate::table::{OutboxTable, quoted};
use sqlx::Row;
use std::time::Duration;

/// Result of a lag probe. Its cost does not depend on the table's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LagProbe {
    pub(crate) horizon: u64,
    /// Highest id above the cursor.
    highest: Option<i64>,
    /// Lowest unread id.
    lowest_unread: Option<i64>,
    /// Transaction of that row.
    transaction: Option<u64>,
    /// Creation time of that row, in microseconds since 1970.
    unread_us: Option<i64>,
    /// The database's time, in microseconds since 1970.
    now_us: i64,
}

/// Lag of a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RelayLag {
    /// Upper bound of the waiting rows: ids that were rolled back count too.
    pub(crate) rows: u64,
    /// Age of the oldest waiting row. Zero if none waits.
    pub(crate) age: Duration,
}

/// Returns the statement for a lag probe.
pub(crate) fn statement(table: &OutboxTable, shape: &TableSchema) -> String {
    let (sql, pending, id) = (table.sql(), table.pending_and(), quoted(&table.columns.id));
    let transaction = quoted(&table.columns.transaction_id);
    let created = created(table, shape);
    format!(
        "SELECT pg_snapshot_xmin(pg_current_snapshot())::text, \
           (SELECT max({id})::bigint FROM {sql} WHERE {pending}{id} > $1), first.id, \
           first.transaction, first.created, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint \
         FROM (VALUES (1)) one(row) LEFT JOIN (\
           SELECT {id}::bigint AS id, {transaction}::text AS transaction, {created} AS created \
           FROM {sql} t \
           WHERE {pending}{id} > $1 ORDER BY {id} LIMIT 1) first ON true"
    )
}

/// Probes the table.
pub(crate) async fn probe_lag(
    link: &mut DatabaseSession,
    sql: &str,
    cursor: i64,
) -> Result<LagProbe, RelayError> {
    let ask = Statement { sql, arguments: arguments![cursor], doing: "measure the lag" };
    let row = link.row(ask).await?;
    Ok(LagProbe {
        horizon: number(&row, 0).unwrap_or(u64::MAX),
        highest: row.get(1),
        lowest_unread: row.get(2),
        transaction: number(&row, 3),
        unread_us: row.get(4),
        now_us: row.get(5),
    })
}

impl LagProbe {
    /// Returns the first unread row and its transaction.
    pub(crate) fn unread(&self) -> Option<(i64, u64)> {
        self.lowest_unread.map(|row| (row, self.transaction.unwrap_or(0)))
    }

    /// Computes the lag, given the number of held rows and the creation time of the oldest.
    pub(crate) fn lag(&self, held: usize, held_us: Option<i64>) -> RelayLag {
        let unread = match (self.lowest_unread, self.highest) {
            (Some(low), Some(high)) => high.abs_diff(low).saturating_add(1),
            _ => 0,
        };
        let oldest = self.unread_us.into_iter().chain(held_us).min();
        let age_us = oldest.map_or(0, |oldest| self.now_us.saturating_sub(oldest));
        RelayLag {
            rows: unread.saturating_add(held as u64),
            age: Duration::from_micros(u64::try_from(age_us).unwrap_or(0)),
        }
    }
}

/// Sets the lag gauges.
#[expect(clippy::cast_precision_loss, reason = "gauges are floating-point numbers")]
pub(crate) fn report(table: &str, stream: &str, lag: RelayLag, blocked_keys: usize) {
    let labels = [("table", table.to_owned()), ("stream", stream.to_owned())];
    metrics::gauge!("anabranch_relay_lag_rows", &labels).set(lag.rows as f64);
    metrics::gauge!("anabranch_relay_lag_seconds", &labels).set(lag.age.as_secs_f64());
    metrics::gauge!("anabranch_relay_blocked_keys", &labels).set(blocked_keys as f64);
}

/// Counts rows that are in the stream and removed from the table.
pub(crate) fn count_sent(table: &str, stream: &str, rows: u64) {
    let labels = [("table", table.to_owned()), ("stream", stream.to_owned())];
    metrics::counter!("anabranch_relay_sent_rows_total", &labels).increment(rows);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_counts_what_is_held_and_what_was_not_read_and_takes_the_oldest_age() {
        let glance = |lowest_unread, highest, unread_us| LagProbe {
            horizon: 9,
            highest,
            lowest_unread,
            transaction: None,
            unread_us,
            now_us: 10_000_000,
        };
        for (glance, held, held_us, rows, ms) in [
            (glance(None, None, None), 0, None, 0, 0),
            (glance(None, None, None), 3, Some(4_000_000), 3, 6_000),
            (glance(Some(5), Some(9), Some(2_000_000)), 2, Some(4_000_000), 7, 8_000),
            (glance(Some(5), Some(5), None), 0, None, 1, 0),
            (glance(Some(5), Some(5), Some(11_000_000)), 0, None, 1, 0),
        ] {
            let age = Duration::from_millis(ms);
            assert_eq!(glance.lag(held, held_us), RelayLag { rows, age }, "{glance:?}");
        }
    }
}
