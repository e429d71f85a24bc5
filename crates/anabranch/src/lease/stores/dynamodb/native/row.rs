//! Conversion of rows of the native layout to items and back.

use super::keys::{self, SORT};
use crate::lease::stores::dynamodb::item::{
    AttributeMap, ItemFields, MalformedItem, binary, number, shard_list, text,
};
use anabranch_model::hash::{HashKey, HashRange};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{
    Checkpoint, HandOver, Lease, LeaseKey, Nonce, PendingCheckpoint, StreamFacts, WorkerRow,
    WorkerState,
};
use anabranch_model::position::{ParsePositionError, Position};
use aws_sdk_dynamodb::types::AttributeValue;

pub(crate) const OWNER: &str = "owner";
pub(crate) const TERM: &str = "term";
pub(crate) const ASKED_BY: &str = "asked_by";
pub(crate) const REFUSED: &str = "refused";
/// The lowest lane, where reading resumes.
pub(crate) const CHECKPOINT: &str = "checkpoint";
/// All lanes, if there is more than one.
pub(crate) const LANES: &str = "lanes";
pub(crate) const PENDING: &str = "pending";
pub(crate) const PENDING_STATE: &str = "pending_state";
pub(crate) const PARENTS: &str = "parents";
pub(crate) const CHILDREN: &str = "children";
/// A string, because a hash key has 39 digits and a DynamoDB number only 38.
pub(crate) const RANGE_START: &str = "range_start";
pub(crate) const RANGE_END: &str = "range_end";
/// Read rate of the owner.
pub(crate) const BYTES_PER_SECOND: &str = "bytes_per_second";
pub(crate) const NONCE: &str = "nonce";

pub(crate) const COUNTER: &str = "counter";
pub(crate) const STATE: &str = "state";
pub(crate) const HOST: &str = "host";
pub(crate) const STARTED_MS: &str = "started_ms";
/// The streams that the worker reads.
pub(crate) const READS: &str = "reads";
/// Time for which the worker may be silent. Rows of older versions lack it.
pub(crate) const LEASE_TIME_MS: &str = "lease_time_ms";

pub(crate) const T0_MS: &str = "t0_ms";
pub(crate) const CREATED_MS: &str = "created_ms";
pub(crate) const SYNCED: &str = "first_sync_done";

/// Returns the item of a new lease.
pub(crate) fn new_lease_item(lease: &Lease) -> AttributeMap {
    let mut item = keys::lease(&lease.key);
    item.insert(TERM.into(), number(lease.term));
    item.insert(NONCE.into(), number(lease.nonce.0));
    let (lowest, lanes) = checkpoint(&lease.checkpoint);
    item.insert(CHECKPOINT.into(), lowest);
    item.extend(lanes.map(|lanes| (LANES.into(), lanes)));
    if !lease.parents.is_empty() {
        item.insert(PARENTS.into(), shard_list(&lease.parents));
    }
    if let Some(range) = lease.range {
        item.insert(RANGE_START.into(), text(range.start().to_string()));
        item.insert(RANGE_END.into(), text(range.end().to_string()));
    }
    item
}

/// Reads a lease from its item.
pub(crate) fn lease(key: &LeaseKey, item: &AttributeMap) -> Result<Lease, MalformedItem> {
    let fields = ItemFields(item);
    let shards = |name| {
        let names = fields.list(name)?;
        Ok::<_, MalformedItem>(names.into_iter().map(Into::into).collect())
    };
    Ok(Lease {
        key: key.clone(),
        owner: fields.text(OWNER)?.map(Into::into),
        term: fields.need_number(TERM)?,
        hand_over: if let Some(taker) = fields.text(ASKED_BY)? {
            HandOver::Requested { taker: taker.into() }
        } else if fields.has(REFUSED) {
            HandOver::Refused
        } else {
            HandOver::None
        },
        checkpoint: read_checkpoint(fields)?,
        pending: match fields.text(PENDING)? {
            None => None,
            Some(at) => Some(PendingCheckpoint {
                position: position(at)?,
                state: fields.binary(PENDING_STATE)?,
            }),
        },
        parents: shards(PARENTS)?,
        children: shards(CHILDREN)?,
        range: range(fields)?,
        bytes_per_second: fields.number(BYTES_PER_SECOND)?,
        owner_switches: 0,
        nonce: Nonce(fields.need_number(NONCE)?),
    })
}

fn range(fields: ItemFields<'_>) -> Result<Option<HashRange>, MalformedItem> {
    let (Some(start), Some(end)) = (fields.text(RANGE_START)?, fields.text(RANGE_END)?) else {
        return Ok(None);
    };
    let key = |text: &str| text.parse::<HashKey>().map_err(|why| MalformedItem(why.to_string()));
    let range = HashRange::new(key(start)?, key(end)?);
    range.map(Some).ok_or_else(|| {
        MalformedItem(format!(
            "the hash range ends at {end}, before its start \
                                              {start}"
        ))
    })
}

/// Returns the attributes of a checkpoint: the lowest lane, and all lanes if there are several.
pub(crate) fn checkpoint(of: &Checkpoint) -> (AttributeValue, Option<AttributeValue>) {
    let lane = |position: Position| text(position.to_string());
    let several = of.lanes().len() > 1;
    let lanes = several.then(|| AttributeValue::L(of.lanes().iter().copied().map(lane).collect()));
    (lane(of.lowest()), lanes)
}

fn read_checkpoint(fields: ItemFields<'_>) -> Result<Checkpoint, MalformedItem> {
    let lanes = fields.list(LANES)?.into_iter().map(position).collect::<Result<_, _>>()?;
    match Checkpoint::of_lanes(lanes) {
        Some(checkpoint) => Ok(checkpoint),
        None => Ok(position(fields.need_text(CHECKPOINT)?)?.into()),
    }
}

fn position(text: &str) -> Result<Position, MalformedItem> {
    text.parse().map_err(|why: ParsePositionError| MalformedItem(why.to_string()))
}

/// Returns the two attributes of a pending checkpoint.
pub(crate) fn pending(
    of: Option<&PendingCheckpoint>,
) -> (Option<AttributeValue>, Option<AttributeValue>) {
    let at = of.map(|pending| text(pending.position.to_string()));
    (at, of.and_then(|pending| pending.state.as_ref()).map(binary))
}

/// Returns the item of a worker that has just joined.
pub(crate) fn new_worker_item(worker: &WorkerRow) -> AttributeMap {
    let mut item = keys::worker(&worker.id);
    item.insert(COUNTER.into(), number(worker.counter));
    item.insert(STATE.into(), state(worker.state));
    item.insert(HOST.into(), text(&worker.host));
    item.insert(STARTED_MS.into(), number(worker.started_ms));
    item.extend(worker.reads.as_ref().map(|streams| (READS.into(), reads(streams))));
    item.extend(worker.lease_time_ms.map(|ms| (LEASE_TIME_MS.into(), number(ms))));
    item.insert(NONCE.into(), number(worker.nonce.0));
    item
}

/// Reads a worker from its item.
pub(crate) fn worker(id: &str, item: &AttributeMap) -> Result<WorkerRow, MalformedItem> {
    let fields = ItemFields(item);
    Ok(WorkerRow {
        id: id.into(),
        counter: fields.need_number(COUNTER)?,
        state: read_state(fields.need_text(STATE)?)?,
        host: fields.text(HOST)?.unwrap_or_default().to_owned(),
        started_ms: fields.number(STARTED_MS)?.unwrap_or(0),
        reads: if fields.has(READS) {
            Some(fields.list(READS)?.into_iter().map(Into::into).collect())
        } else {
            None
        },
        lease_time_ms: fields.number(LEASE_TIME_MS)?,
        nonce: Nonce(fields.need_number(NONCE)?),
    })
}

/// Returns the attribute of the streams that a worker reads.
pub(crate) fn reads(streams: &[StreamName]) -> AttributeValue {
    AttributeValue::L(streams.iter().map(|stream| text(stream.as_str())).collect())
}

/// Returns the attribute of a worker's state.
pub(crate) fn state(state: WorkerState) -> AttributeValue {
    text(match state {
        WorkerState::Alive => "alive",
        WorkerState::Leaving => "leaving",
        WorkerState::Fenced => "fenced",
    })
}

fn read_state(text: &str) -> Result<WorkerState, MalformedItem> {
    match text {
        "alive" => Ok(WorkerState::Alive),
        "leaving" => Ok(WorkerState::Leaving),
        "fenced" => Ok(WorkerState::Fenced),
        other => Err(MalformedItem(format!(
            "`{STATE}` is {other:?}, which this version does not \
                                       support"
        ))),
    }
}

/// Returns the item of a stream's facts.
pub(crate) fn new_stream_item(key: AttributeMap, facts: StreamFacts) -> AttributeMap {
    let mut item = key;
    item.insert(T0_MS.into(), number(facts.t0_ms));
    item.insert(CREATED_MS.into(), number(facts.created_ms));
    if facts.first_sync_done {
        item.insert(SYNCED.into(), AttributeValue::Bool(true));
    }
    item
}

/// Reads a stream's facts from their item.
pub(crate) fn stream(item: &AttributeMap) -> Result<StreamFacts, MalformedItem> {
    let fields = ItemFields(item);
    Ok(StreamFacts {
        t0_ms: fields.need_number(T0_MS)?,
        created_ms: fields.need_number(CREATED_MS)?,
        first_sync_done: fields.has(SYNCED),
    })
}

/// Returns the sort key of a row.
pub(crate) fn sort(item: &AttributeMap) -> Result<&str, MalformedItem> {
    ItemFields(item).need_text(SORT)
}
