//! `GetShardIterator`: returns an iterator at a sequence number, at a time, or at either end of a
//! shard.

use crate::constraint::Constraints;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::fault::FaultSite;
use crate::lifecycle::Status;
use crate::op::{Operation, StreamTarget, Timestamp};
use crate::shard::Shard;
use crate::shard_log::STARTING_COUNTER;
use crate::token::ShardIterator;
use anabranch_model::ids::ShardId;
use anabranch_model::sequence::SequenceNumber;
use serde::{Deserialize, Serialize};

/// Request of `GetShardIterator`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Request {
    #[serde(flatten)]
    pub stream: StreamTarget,
    pub shard_id: Option<String>,
    pub shard_iterator_type: Option<String>,
    pub starting_sequence_number: Option<String>,
    pub timestamp: Option<Timestamp>,
}

/// Reply to `GetShardIterator`.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Reply {
    pub shard_iterator: String,
}

/// The iterator types.
pub(crate) const TYPES: &[&str] =
    &["AFTER_SEQUENCE_NUMBER", "LATEST", "AT_TIMESTAMP", "AT_SEQUENCE_NUMBER", "TRIM_HORIZON"];

/// A position in a shard as a request names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IteratorPosition<'a> {
    /// The iterator type, one of [`TYPES`].
    pub(crate) kind: &'a str,
    /// The sequence number, if given.
    pub(crate) number: Option<&'a str>,
    /// The time, if given.
    pub(crate) at: Option<Timestamp>,
    /// The operation to name in messages.
    pub(crate) operation: Operation,
}

impl Engine {
    /// Returns an iterator.
    pub fn get_shard_iterator(&self, request: &Request) -> Result<Reply, ApiError> {
        let kind = request.shard_iterator_type.as_deref();
        let number = request.starting_sequence_number.as_deref();
        Constraints::new()
            .name(request.shard_id.as_deref(), "shardId")
            .present(kind.as_ref(), "shardIteratorType")
            .one_of(kind, "shardIteratorType", TYPES)
            .sequence_number(number, "startingSequenceNumber")
            .check()?;
        let target = request.stream.as_ref();
        let name = self.resolve(&target)?;
        let shard_id = request.shard_id.as_deref().unwrap_or_default();
        let operation = Operation::GetShardIterator;
        let Some(index) = ShardId::from(shard_id).index() else {
            return Err(self.shard_not_found(&name, shard_id));
        };
        self.run_at(FaultSite { operation, stream: Some(&name), shards: &[index] }, || {
            let stream = self.find_by_name(&name)?;
            let now_ms = self.now_ms();
            let topology = stream.read();
            let ready = topology.status(now_ms).is_some_and(|status| status != Status::Creating);
            let state = topology
                .listed(index, now_ms)
                .filter(|_| ready)
                .ok_or_else(|| self.shard_does_not_exist(&name, shard_id))?;
            let place = IteratorPosition {
                kind: kind.unwrap_or_default(),
                number,
                at: request.timestamp,
                operation,
            };
            let counter = self.place(&name, &state.shard, place, now_ms)?;
            let iterator = ShardIterator {
                stream_id: stream.id,
                stream: stream.name.clone(),
                shard: index,
                counter,
                issued_ms: now_ms,
                epoch: stream.iterator_epoch(),
                run: self.run_id(),
            };
            Ok(Reply { shard_iterator: iterator.to_text() })
        })
    }

    /// Returns the counter of the first record at or after a position.
    pub(crate) fn place(
        &self,
        stream: &str,
        shard: &Shard,
        place: IteratorPosition<'_>,
        now_ms: u64,
    ) -> Result<u64, ApiError> {
        let mismatch = |and: &str| {
            ApiError::invalid(format!(
                "Must either specify (1) AT_SEQUENCE_NUMBER or AFTER_SEQUENCE_NUMBER and \
                 StartingSequenceNumber or (2) TRIM_HORIZON or LATEST and no \
                 StartingSequenceNumber. Request specified {} and {and}",
                place.kind
            ))
        };
        match (place.kind, place.number) {
            ("TRIM_HORIZON", None) => Ok(STARTING_COUNTER),
            ("LATEST", None) => Ok(shard.lock().log.next_counter()),
            ("AT_TIMESTAMP", None) => {
                let at = place.at.ok_or_else(|| {
                    ApiError::invalid(
                        "Must specify timestampInMillis parameter for iterator of type \
                         AT_TIMESTAMP. Current request has no timestamp parameter.",
                    )
                })?;
                if at.0 > now_ms {
                    return Err(ApiError::invalid(format!(
                        "The timestampInMillis parameter cannot be greater than the \
                         currentTimestampInMillis. timestampInMillis: {}, \
                         currentTimestampInMillis: {now_ms}",
                        at.0
                    )));
                }
                Ok(shard.lock().log.counter_at_time(at.0))
            }
            ("AT_SEQUENCE_NUMBER", Some(number)) => self.counter_of(stream, shard, number, place),
            ("AFTER_SEQUENCE_NUMBER", Some(number)) => {
                Ok(self.counter_of(stream, shard, number, place)? + 1)
            }
            (_, Some(_)) => Err(mismatch("also a StartingSequenceNumber.")),
            (_, None) => Err(mismatch("no StartingSequenceNumber.")),
        }
    }

    /// Returns the counter of a sequence number. Returns an error if the number is not of this
    /// shard.
    fn counter_of(
        &self,
        stream: &str,
        shard: &Shard,
        number: &str,
        place: IteratorPosition<'_>,
    ) -> Result<u64, ApiError> {
        let invalid = |why: &str| {
            let (id, account, operation) = (&shard.id, &self.home.account, place.operation);
            ApiError::invalid(format!(
                "StartingSequenceNumber {number} used in {operation} on shard {id} in stream \
                 {stream} under account {account} is invalid{why}."
            ))
        };
        let parsed: SequenceNumber = number.parse().map_err(|_| invalid(""))?;
        let [high, counter, low] = parsed.limbs();
        let index = u32::try_from(low).map_err(|_| invalid(""))?;
        if index != shard.index {
            let (other, id) = (ShardId::from_index(index), &shard.id);
            return Err(ApiError::invalid(format!(
                "Invalid StartingSequenceNumber. It encodes {other}, while it was used in a call \
                 to a shard with {id}"
            )));
        }
        if high != shard.stamp.high {
            return Err(invalid(" because it did not come from this stream"));
        }
        Ok(counter)
    }
}
