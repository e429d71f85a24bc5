//! `GetRecords`: returns the records at an iterator, and the iterator for the next call.
//!
//! The reply with the last records of a closed shard already has the child shards and no next
//! iterator.

use crate::constraint::Constraints;
use crate::engine::{Engine, StreamRef};
use crate::error::{ApiError, ErrorKind};
use crate::fault::FaultSite;
use crate::lifecycle::Status;
use crate::op::timestamp::utc_text;
use crate::op::{ChildShard, Operation};
use crate::record_batch::RecordBatch;
use crate::shard_log::ReadLimit;
use crate::stream::Topology;
use crate::token::ShardIterator;
use anabranch_model::limits;
use serde::Deserialize;
use std::borrow::Cow;

/// Request of `GetRecords`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Request<'a> {
    pub shard_iterator: Option<Cow<'a, str>>,
    pub limit: Option<i64>,
    #[serde(rename = "StreamARN")]
    pub stream_arn: Option<Cow<'a, str>>,
}

/// Reply to `GetRecords`.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The records, in order.
    pub records: RecordBatch,
    /// The iterator for the next call; `None` at the end of a closed shard.
    pub next_iterator: Option<String>,
    /// Distance of the reply from the newest record, in milliseconds; 0 if nothing is left to read.
    pub millis_behind_latest: u64,
    /// Children of the shard; empty before the end of a closed shard.
    pub child_shards: Vec<ChildShard>,
}

/// Result of a read from a position in a shard.
pub(crate) struct ShardRead {
    pub(crate) records: RecordBatch,
    pub(crate) behind_ms: u64,
    /// The shard's children, if the read reached the end of the closed shard.
    pub(crate) end: Option<Vec<ChildShard>>,
}

impl Topology {
    /// Reads a shard from `counter` on.
    pub(crate) fn read_shard(
        &self,
        index: u32,
        counter: u64,
        now_ms: u64,
        take: ReadLimit,
    ) -> ShardRead {
        let state = &self.shards[index as usize];
        let mut inside = state.shard.lock();
        let horizon_ms = self.horizon_ms(now_ms);
        inside.log.trim(horizon_ms);
        let mut records = inside.log.read(counter, horizon_ms, take);
        records.stamp = state.shard.stamp;
        let caught_up = records.next_counter >= inside.log.next_counter();
        drop(inside);
        let behind_ms = match records.last_arrival_ms() {
            // A reader that has everything gets 0, however recently the last record arrived.
            Some(last_ms) if !caught_up => now_ms.saturating_sub(last_ms).max(1),
            _ => 0,
        };
        let ended = caught_up && !state.is_open();
        let end = ended.then(|| self.child_shards(state));
        ShardRead { records, behind_ms, end }
    }
}

impl Engine {
    /// Returns records from an iterator on.
    pub fn get_records(&self, request: &Request<'_>) -> Result<Reply, ApiError> {
        let text = request.shard_iterator.as_deref();
        Constraints::new()
            .within(request.limit, "limit", 1, 10_000)
            .present(text.as_ref(), "shardIterator")
            .length(text, "shardIterator", 1, 512)
            .check()?;
        let invalid = || ApiError::invalid("Invalid ShardIterator.");
        let iterator = ShardIterator::from_text(text.unwrap_or_default()).ok_or_else(invalid)?;
        if let Some(arn) = &request.stream_arn {
            let target = StreamRef { name: None, arn: Some(Cow::Borrowed(arn)) };
            if self.resolve(&target)? != iterator.stream {
                return Err(invalid());
            }
        }
        let operation = Operation::GetRecords;
        self.reshard_on_request(operation, &iterator.stream);
        let site =
            FaultSite { operation, stream: Some(&iterator.stream), shards: &[iterator.shard] };
        self.run_at(site, || {
            if self.faults().expires_iterator(site) {
                return Err(self.expired(&iterator));
            }
            let mut reply = self.read_at(&iterator, request.limit)?;
            if self.faults().ends_falsely(site) {
                reply.next_iterator = None;
                reply.child_shards.clear();
            }
            Ok(reply)
        })
    }

    fn read_at(&self, iterator: &ShardIterator, limit: Option<i64>) -> Result<Reply, ApiError> {
        let now_ms = self.now_ms();
        let shard_name = || anabranch_model::ids::ShardId::from_index(iterator.shard);
        let gone = || self.shard_does_not_exist(&iterator.stream, shard_name().as_str());
        let stream = self.find_by_name(&iterator.stream)?;
        if iterator.run != self.run_id() {
            return Err(of_earlier_run());
        }
        let age = now_ms.saturating_sub(iterator.issued_ms);
        if age > self.options().iterator_ttl_ms || iterator.epoch < stream.iterator_epoch() {
            return Err(self.expired(iterator));
        }
        let topology = stream.read();
        if topology.status(now_ms).is_none_or(|status| status == Status::Deleting) {
            return Err(self.stream_not_found(&iterator.stream));
        }
        if stream.id != iterator.stream_id {
            return Err(gone());
        }
        let state = topology.listed(iterator.shard, now_ms).ok_or_else(gone)?;
        let limited = self.limits_enforced();
        if limited && !state.shard.lock().rates.read_call(now_ms) {
            let message = self.rate_exceeded(&stream, &state.shard.id);
            return Err(ApiError::new(ErrorKind::ProvisionedThroughputExceeded, message));
        }
        let records = limit.and_then(|limit| usize::try_from(limit).ok());
        let take = ReadLimit {
            records: records.unwrap_or(limits::GET_RECORDS_MAX_RECORDS),
            bytes: limits::GET_RECORDS_MAX_BYTES,
        };
        let reading = topology.read_shard(iterator.shard, iterator.counter, now_ms, take);
        if limited {
            state.shard.lock().rates.read_reply(reading.records.bytes(), now_ms);
        }
        let next = ShardIterator {
            counter: reading.records.next_counter,
            issued_ms: now_ms,
            epoch: stream.iterator_epoch(),
            ..iterator.clone()
        };
        Ok(Reply {
            next_iterator: reading.end.is_none().then(|| next.to_text()),
            records: reading.records,
            millis_behind_latest: reading.behind_ms,
            child_shards: reading.end.unwrap_or_default(),
        })
    }

    fn expired(&self, iterator: &ShardIterator) -> ApiError {
        let (made, now) = (utc_text(iterator.issued_ms), utc_text(self.now_ms()));
        let tolerated = self.options().iterator_ttl_ms;
        ApiError::new(
            ErrorKind::ExpiredIterator,
            format!(
                "Iterator expired. The iterator was created at time {made} while right now it is \
                 {now} which is further in the future than the tolerated delay of {tolerated} \
                 milliseconds."
            ),
        )
    }
}

/// Returns the error for an iterator of an earlier process. Clients request a fresh one, as for any
/// expired iterator.
fn of_earlier_run() -> ApiError {
    ApiError::new(
        ErrorKind::ExpiredIterator,
        "Iterator expired. The iterator was created before the local stream was started again.",
    )
}
