//! Rows of KCL's table, as Java writes and reads them.
//!
//! A row at LATEST also holds the moment that LATEST stands for, once a worker of this library has
//! determined it. Java ignores the attribute, and determines LATEST again at every start.
//!
//! Missing values are absent, never NULL and never an empty string or set. Attributes that this
//! version does not know stay unchanged, because a row is only ever updated.

use super::keys::StreamOfTable;
use crate::lease::stores::dynamodb::item::{
    AttributeMap, ItemFields, MalformedItem, binary, number, shard_set, text,
};
use anabranch_model::hash::{HashKey, HashRange};
use anabranch_model::lease::{HandOver, Lease, LeaseKey, Nonce, PendingCheckpoint, WorkerId};
use anabranch_model::position::{ParsePositionError, Position, StartPosition};
use aws_sdk_dynamodb::types::AttributeValue;

pub(crate) const LEASE_OWNER: &str = "leaseOwner";
pub(crate) const LEASE_COUNTER: &str = "leaseCounter";
pub(crate) const OWNER_SWITCHES: &str = "ownerSwitchesSinceCheckpoint";
pub(crate) const CHECKPOINT: &str = "checkpoint";
pub(crate) const CHECKPOINT_SUB: &str = "checkpointSubSequenceNumber";
pub(crate) const PENDING: &str = "pendingCheckpoint";
pub(crate) const PENDING_SUB: &str = "pendingCheckpointSubSequenceNumber";
pub(crate) const PENDING_STATE: &str = "pendingCheckpointState";
pub(crate) const PARENTS: &str = "parentShardId";
pub(crate) const CHILDREN: &str = "childShardIds";
pub(crate) const STARTING_HASH_KEY: &str = "startingHashKey";
pub(crate) const ENDING_HASH_KEY: &str = "endingHashKey";
/// KCL 3.x: the owner that has yet to hand the lease over.
pub(crate) const CHECKPOINT_OWNER: &str = "checkpointOwner";
/// KCL 3.5: the kind of row. Absent on a lease.
pub(crate) const ENTITY_TYPE: &str = "entityType";
/// Multi-stream tables: the stream's id.
pub(crate) const STREAM_NAME: &str = "streamName";
/// Multi-stream tables: the shard alone.
pub(crate) const SHARD_ID: &str = "shardId";

/// Anabranch: the moment that `LATEST` stands for, in milliseconds since 1970.
pub(crate) const LATEST_MS: &str = "anabranchLatestMillis";

/// Anabranch: the worker that asked the owner for the lease.
pub(crate) const TAKER: &str = "anabranchTaker";
/// Anabranch: 1 while the owner can't hand the lease over.
pub(crate) const REFUSED: &str = "anabranchRefused";

const LEASE: &str = "LEASE";

/// Message for a row whose key names a shard of the stream, and that is not a lease of it.
pub(crate) const NOT_OF_THIS_STREAM: &str =
    "the row has the key of a lease of this stream, but is not one";

/// Reason why a row is not a usable lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum LeaseRowError {
    /// The row is of another kind, and must be left alone.
    Other,
    /// The row should be a lease and can't be read.
    Malformed(MalformedItem),
    /// The position can only be read with another configuration of this worker.
    Position(String),
}

impl From<MalformedItem> for LeaseRowError {
    fn from(why: MalformedItem) -> Self {
        Self::Malformed(why)
    }
}

/// Returns true if the row is a lease, not one of the other kinds that KCL 3.5 keeps in the table.
pub(crate) fn is_lease(item: &AttributeMap) -> bool {
    match ItemFields(item).text(ENTITY_TYPE) {
        Ok(kind) => kind.is_none_or(|kind| kind == LEASE),
        Err(_) => false,
    }
}

/// Reads a lease from its row. `start` provides the time for `AT_TIMESTAMP`.
pub(crate) fn lease(
    key: &LeaseKey,
    item: &AttributeMap,
    start: StartPosition,
) -> Result<Lease, LeaseRowError> {
    if !is_lease(item) {
        return Err(LeaseRowError::Other);
    }
    let fields = ItemFields(item);
    let sub = fields.number(CHECKPOINT_SUB)?.unwrap_or(0);
    let pending = match fields.text(PENDING)? {
        None => None,
        Some(at) => Some(PendingCheckpoint {
            position: position(at, fields.number(PENDING_SUB)?.unwrap_or(0), start)?,
            state: fields.binary(PENDING_STATE)?,
        }),
    };
    let at = match position(fields.need_text(CHECKPOINT)?, sub, start)? {
        Position::Latest => {
            fields.number(LATEST_MS)?.map_or(Position::Latest, Position::AtTimestamp)
        }
        at => at,
    };
    let owner = fields.text(LEASE_OWNER)?.filter(|owner| !owner.is_empty()).map(WorkerId::from);
    Ok(Lease {
        key: key.clone(),
        hand_over: hand_over(fields, owner.as_ref())?,
        owner,
        term: fields.need_number(LEASE_COUNTER)?,
        checkpoint: at.into(),
        pending,
        parents: fields.shard_set(PARENTS)?,
        children: fields.shard_set(CHILDREN)?,
        range: range(fields)?,
        bytes_per_second: None,
        owner_switches: fields.number(OWNER_SWITCHES)?.unwrap_or(0),
        nonce: Nonce::default(),
    })
}

/// Reads the state of a hand-over. If the owner does not support hand-overs, an earlier owner left
/// these attributes: Java does not remove them, and workers of this library do with their take.
fn hand_over(fields: ItemFields<'_>, owner: Option<&WorkerId>) -> Result<HandOver, MalformedItem> {
    if !owner.is_some_and(WorkerId::supports_hand_over) {
        return Ok(HandOver::None);
    }
    if fields.has(REFUSED) {
        return Ok(HandOver::Refused);
    }
    let taker = fields.text(TAKER)?;
    Ok(taker.map_or(HandOver::None, |taker| HandOver::Requested { taker: taker.into() }))
}

fn position(text: &str, sub: u64, start: StartPosition) -> Result<Position, LeaseRowError> {
    Position::from_row(text, sub, start).map_err(|why| match why {
        ParsePositionError::Unreadable(_) => {
            LeaseRowError::Malformed(MalformedItem(why.to_string()))
        }
        ParsePositionError::NoTimestamp(_) => LeaseRowError::Position(format!(
            "{why}, or pass the time to `DynamoDbStore::with_start`"
        )),
    })
}

/// Reads the hash range. With only one end there is no range, as in KCL.
fn range(fields: ItemFields<'_>) -> Result<Option<HashRange>, MalformedItem> {
    let ends = (fields.text(STARTING_HASH_KEY)?, fields.text(ENDING_HASH_KEY)?);
    let (Some(start), Some(end)) = ends else { return Ok(None) };
    let key = |text: &str| text.parse::<HashKey>().map_err(|why| MalformedItem(why.to_string()));
    let range = HashRange::new(key(start)?, key(end)?);
    range.map(Some).ok_or_else(|| {
        MalformedItem(format!(
            "the hash range ends at {end}, before its start \
                                              {start}"
        ))
    })
}

/// Returns the row of a new lease, for an application that starts at `start`.
pub(crate) fn new_item(
    stream: &StreamOfTable,
    lease: &Lease,
    start: StartPosition,
) -> AttributeMap {
    let mut item = stream.key(&lease.key);
    let mut put = |name: &str, value| {
        item.insert(name.to_owned(), value);
    };
    put(LEASE_COUNTER, number(lease.term));
    put(OWNER_SWITCHES, number(lease.owner_switches));
    let at = lease.checkpoint.lowest();
    let (checkpoint, sub) = checkpoint(at, start);
    put(CHECKPOINT, checkpoint);
    put(CHECKPOINT_SUB, sub);
    if let Some(moment) = moment(at, start) {
        put(LATEST_MS, moment);
    }
    if let Some(parents) = shard_set(&lease.parents) {
        put(PARENTS, parents);
    }
    if let Some(range) = lease.range {
        put(STARTING_HASH_KEY, text(range.start().to_string()));
        put(ENDING_HASH_KEY, text(range.end().to_string()));
    }
    if let Some(id) = &stream.id {
        put(STREAM_NAME, text(id));
        put(SHARD_ID, text(lease.key.shard.as_str()));
    }
    item
}

/// Returns the two attributes of a checkpoint, for an application that starts at `start`.
pub(crate) fn checkpoint(at: Position, start: StartPosition) -> (AttributeValue, AttributeValue) {
    let at = if moment(at, start).is_some() { Position::Latest } else { at };
    let (checkpoint, sub) = at.to_row();
    (text(checkpoint), number(sub))
}

/// Returns the moment to store beside LATEST. The time of the start is not stored, because every
/// worker has it in its configuration.
pub(crate) fn moment(at: Position, start: StartPosition) -> Option<AttributeValue> {
    match at {
        Position::AtTimestamp(ms) if start != StartPosition::AtTimestamp(ms) => Some(number(ms)),
        _ => None,
    }
}

/// Returns the three attributes of a pending checkpoint.
pub(crate) fn pending(
    of: Option<&PendingCheckpoint>,
) -> [(&'static str, Option<AttributeValue>); 3] {
    let at = |pending: &PendingCheckpoint| {
        let (at, sub) = pending.position.to_row();
        (text(at), number(sub))
    };
    let (at, sub) = of.map(at).unzip();
    let state = of.and_then(|pending| pending.state.as_ref()).map(binary);
    [(PENDING, at), (PENDING_SUB, sub), (PENDING_STATE, state)]
}
