//! Plain loop for comparison: puts the first row of each key in one request, waits, removes them
//! and repeats.

use super::{Bench, Result, STREAM, rate};
use anabranch::clock::Clock;
use anabranch::stream::api::{PutEntry, PutEntryResult, StreamApi};
use sqlx::Row;

/// Maximum records per request.
const REQUEST_ROWS: usize = 500;

const SELECT: &str = "\
SELECT id, partition_key, data FROM outbox
WHERE id IN (SELECT min(id) FROM outbox GROUP BY partition_key) ORDER BY id";

/// Returns rows per second until the table is empty or the time limit has passed.
pub(super) async fn run(bench: &Bench, limit_ms: u64) -> Result<f64> {
    let clock = Clock::machine();
    let mut session = bench.session().await?;
    let start_ms = clock.now_ms();
    let (mut sent, stream) = (0, STREAM.into());
    while clock.now_ms() - start_ms < limit_ms {
        let rows = sqlx::query(SELECT).fetch_all(&mut session).await?;
        if rows.is_empty() {
            break;
        }
        for rows in rows.chunks(REQUEST_ROWS) {
            let entry = |row: &sqlx::postgres::PgRow| PutEntry {
                key: row.get::<String, _>(1).into(),
                hash: None,
                data: row.get::<Vec<u8>, _>(2).into(),
            };
            let entries: Vec<PutEntry> = rows.iter().map(entry).collect();
            let replies = bench.kinesis.put_records(&stream, &entries).await?;
            let is_placed = |reply: &PutEntryResult| matches!(reply, PutEntryResult::Placed(_));
            let placed = rows.iter().zip(&replies).filter(|(_, reply)| is_placed(reply));
            let ids: Vec<i64> = placed.map(|(row, _)| row.get(0)).collect();
            sent += ids.len() as u64;
            let delete = sqlx::query("DELETE FROM outbox WHERE id = ANY($1)").bind(ids);
            delete.execute(&mut session).await?;
        }
    }
    Ok(rate(sent, clock.now_ms() - start_ms))
}
