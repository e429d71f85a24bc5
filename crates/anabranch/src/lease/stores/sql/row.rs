//! Conversion of leases, workers and stream facts to rows and back.

use super::cell::{Cell, RowReader};
use super::failure::SqlFailure;
use super::statement::{LEASE, STREAM, WORKER};
use anabranch_model::hash::{HashKey, HashRange};
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::{
    HandOver, Lease, LeaseKey, Nonce, PendingCheckpoint, StreamFacts, WorkerId, WorkerRow,
    WorkerState,
};

const ALIVE: &str = "alive";
const LEAVING: &str = "leaving";
const FENCED: &str = "fenced";

/// Returns the key columns of a lease's row, then its other columns.
pub(in crate::lease) fn lease_cells(lease: &Lease) -> Vec<Cell> {
    let taker = match &lease.hand_over {
        HandOver::Requested { taker } => Some(taker.as_str().to_owned()),
        HandOver::None | HandOver::Refused => None,
    };
    let pending = lease.pending.as_ref();
    let state = pending.and_then(|pending| pending.state.as_ref());
    let mut cells = lease_key(&lease.key);
    cells.extend([
        Cell::Text(lease.owner.as_ref().map(|owner| owner.as_str().to_owned())),
        Cell::number(lease.term),
        Cell::Text(taker),
        Cell::Flag(lease.hand_over == HandOver::Refused),
        Cell::Text(Some(lease.checkpoint.to_string())),
        Cell::Flag(lease.is_ended()),
        Cell::Text(pending.map(|pending| pending.position.to_string())),
        Cell::Bytes(state.map(|state| state.to_vec())),
        Cell::Text(Some(names(&lease.parents))),
        Cell::Text(Some(names(&lease.children))),
        Cell::Text(lease.range.map(|range| range.start().to_string())),
        Cell::Text(lease.range.map(|range| range.end().to_string())),
        Cell::number(lease.nonce.0),
        Cell::optional_number(lease.bytes_per_second),
    ]);
    cells
}

/// Returns the key columns of a lease's row, without the application.
pub(in crate::lease) fn lease_key(key: &LeaseKey) -> Vec<Cell> {
    vec![Cell::text(key.stream.as_str()), Cell::text(key.shard.as_str())]
}

/// Reads the columns written by [`lease_cells`].
pub(in crate::lease) fn lease(cells: Vec<Cell>) -> Result<Lease, SqlFailure> {
    let mut row = RowReader::new(&LEASE, cells);
    let key = LeaseKey::new(row.key()?, row.key()?);
    let owner = row.optional_text()?.map(WorkerId::from);
    let term = row.number()?;
    let taker = row.optional_text()?.map(WorkerId::from);
    let hand_over = match (row.flag()?, taker) {
        (true, _) => HandOver::Refused,
        (false, Some(taker)) => HandOver::Requested { taker },
        (false, None) => HandOver::None,
    };
    let checkpoint = row.parsed(str::parse)?;
    // Stored for operators: the checkpoint implies it.
    let _completed = row.flag()?;
    let position = row.optional_parsed(str::parse)?;
    let state = row.optional_bytes()?.map(bytes::Bytes::from);
    let parents = shards(&row.text()?);
    let children = shards(&row.text()?);
    let start: Option<HashKey> = row.optional_parsed(str::parse)?;
    let end = row.optional_parsed(|end| match (start, end.parse::<HashKey>()) {
        (_, Err(why)) => Err(why.to_string()),
        (None, Ok(_)) => Err("the hash range has no start".to_owned()),
        (Some(start), Ok(end)) => HashRange::new(start, end)
            .ok_or_else(|| format!("the hash range ends at {end}, before its start {start}")),
    })?;
    let nonce = Nonce(row.number()?);
    Ok(Lease {
        key,
        owner,
        term,
        hand_over,
        checkpoint,
        pending: position.map(|position| PendingCheckpoint { position, state }),
        parents,
        children,
        range: end,
        bytes_per_second: row.optional_number()?,
        owner_switches: 0,
        nonce,
    })
}

/// Returns the key column of a worker's row, then its other columns.
pub(in crate::lease) fn worker_cells(worker: &WorkerRow) -> Vec<Cell> {
    let state = match worker.state {
        WorkerState::Alive => ALIVE,
        WorkerState::Leaving => LEAVING,
        WorkerState::Fenced => FENCED,
    };
    vec![
        Cell::text(worker.id.as_str()),
        Cell::number(worker.counter),
        Cell::text(state),
        Cell::text(&worker.host),
        Cell::number(worker.started_ms),
        Cell::number(worker.nonce.0),
        Cell::Text(
            worker.reads.as_ref().map(|streams| {
                streams.iter().map(StreamName::as_str).collect::<Vec<_>>().join(" ")
            }),
        ),
        Cell::optional_number(worker.lease_time_ms),
    ]
}

/// Reads the columns written by [`worker_cells`].
pub(in crate::lease) fn worker(cells: Vec<Cell>) -> Result<WorkerRow, SqlFailure> {
    let mut row = RowReader::new(&WORKER, cells);
    Ok(WorkerRow {
        id: row.key()?.into(),
        counter: row.number()?,
        state: row.parsed(|state| match state {
            ALIVE => Ok(WorkerState::Alive),
            LEAVING => Ok(WorkerState::Leaving),
            FENCED => Ok(WorkerState::Fenced),
            other => Err(format!("{other:?} is not one of {ALIVE}, {LEAVING}, {FENCED}")),
        })?,
        host: row.text()?,
        started_ms: row.number()?,
        nonce: Nonce(row.number()?),
        reads: row
            .optional_text()?
            .map(|streams| streams.split_ascii_whitespace().map(StreamName::from).collect()),
        lease_time_ms: row.optional_number()?,
    })
}

/// Returns the key column of a stream's row, then its other columns.
pub(in crate::lease) fn stream_cells(stream: &StreamName, facts: StreamFacts) -> Vec<Cell> {
    vec![
        Cell::text(stream.as_str()),
        Cell::number(facts.t0_ms),
        Cell::number(facts.created_ms),
        Cell::Flag(facts.first_sync_done),
    ]
}

/// Reads the columns written by [`stream_cells`].
pub(in crate::lease) fn stream(cells: Vec<Cell>) -> Result<(StreamName, StreamFacts), SqlFailure> {
    let mut row = RowReader::new(&STREAM, cells);
    let name = row.key()?.into();
    let (t0_ms, created_ms) = (row.number()?, row.number()?);
    Ok((name, StreamFacts { t0_ms, created_ms, first_sync_done: row.flag()? }))
}

/// Joins shard ids by spaces. The ids contain none: Kinesis allows letters, digits, `_`, `.` and
/// `-`.
fn names(shards: &[ShardId]) -> String {
    shards.iter().map(ShardId::as_str).collect::<Vec<_>>().join(" ")
}

fn shards(names: &str) -> Vec<ShardId> {
    names.split_ascii_whitespace().map(ShardId::from).collect()
}
