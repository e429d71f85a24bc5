//! Events of a producer.

use crate::producer::ProducerId;
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::produce::OrderingKey;
use anabranch_model::produce::outcome::RejectReason;
use anabranch_model::retry::Fault;
use std::sync::Arc;
use std::time::Duration;

/// An event of a producer. The KPL's metric for each is in parentheses.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum ProducerEvent {
    /// Records were taken in (`UserRecordsReceived`).
    Received {
        /// Name of the stream.
        stream: StreamName,
        /// Id of the producer.
        producer: ProducerId,
        /// Number of user records.
        records: usize,
        /// Records without an outcome, these included (`UserRecordsPending`).
        pending: u64,
    },
    /// A request was sent.
    RequestSent {
        /// Name of the stream.
        stream: StreamName,
        /// Id of the producer.
        producer: ProducerId,
        /// Kinesis records in the request (`KinesisRecordsPerPutRecordsRequest`).
        kinesis_records: usize,
        /// User records in the request (`UserRecordsPerPutRecordsRequest`).
        records: usize,
        /// Size of the request as the service counts it, in bytes.
        bytes: usize,
    },
    /// A reply arrived, or the call failed (`RequestTime`).
    RequestCompleted {
        /// Name of the stream.
        stream: StreamName,
        /// Id of the producer.
        producer: ProducerId,
        /// Duration of the call.
        took: Duration,
        /// Entries that failed; all of them if the call failed (`AllErrors`).
        failed: usize,
    },
    /// User records are in the stream (`UserRecordsPut`).
    Placed {
        /// Name of the stream.
        stream: StreamName,
        /// Id of the producer.
        producer: ProducerId,
        /// Id of the shard.
        shard: ShardId,
        /// Number of user records (`UserRecordsPerKinesisRecord`).
        records: usize,
        /// Size of their data in bytes (`UserRecordsDataPut`).
        bytes: usize,
        /// Failed attempts before the one that placed them (`RetriesPerRecord`).
        retries: usize,
        /// Time from the put of the oldest record to the first attempt (`BufferingTime`).
        buffered_for: Duration,
        /// Time from the put of the oldest record to now.
        waited_for: Duration,
        /// Records still without an outcome (`UserRecordsPending`).
        pending: u64,
    },
    /// User records were rejected.
    Rejected {
        /// Name of the stream.
        stream: StreamName,
        /// Id of the producer.
        producer: ProducerId,
        /// Number of user records.
        records: usize,
        /// Reason of the rejection (`UserRecordExpired` if the deadline passed).
        why: RejectReason,
        /// Records still without an outcome (`UserRecordsPending`).
        pending: u64,
    },
    /// It is unknown whether user records are in the stream.
    Unknown {
        /// Name of the stream.
        stream: StreamName,
        /// Id of the producer.
        producer: ProducerId,
        /// Number of user records.
        records: usize,
        /// Records still without an outcome (`UserRecordsPending`).
        pending: u64,
    },
    /// A Kinesis record failed and is sent again (`ErrorsByCode`).
    Retried {
        /// Name of the stream.
        stream: StreamName,
        /// Id of the producer.
        producer: ProducerId,
        /// The intended shard, if one was known.
        shard: Option<ShardId>,
        /// Classified error.
        fault: Fault,
        /// Error code and message of the service.
        detail: Arc<str>,
        /// User records in the Kinesis record.
        records: usize,
        /// Pause before the earliest next attempt. Zero if the records may be sent at once.
        retry_in: Duration,
    },
    /// An aggregate or record was placed in a shard that does not own all of its keys, so its
    /// records are sent again.
    Misrouted {
        /// Name of the stream.
        stream: StreamName,
        /// Id of the producer.
        producer: ProducerId,
        /// The shard in which it was placed.
        shard: ShardId,
        /// User records in the Kinesis record.
        records: usize,
    },
    /// A shard throttled the producer, so its write rate is reduced.
    RateReduced {
        /// Name of the stream.
        stream: StreamName,
        /// Id of the producer.
        producer: ProducerId,
        /// Id of the shard.
        shard: ShardId,
        /// Remaining share of the shard's rate, in thousandths.
        share: u64,
    },
    /// The service refuses the caller. A permission is missing, the credentials or the signature
    /// are not accepted, or the stream's encryption key cannot be used.
    ///
    /// The records are not at fault, so they wait, and the shards are probed with increasing
    /// pauses. Emitted when a pause begins, and at most once a minute while it lasts.
    Paused {
        /// Name of the stream.
        stream: StreamName,
        /// Id of the producer.
        producer: ProducerId,
        /// The paused shards. Empty if they are not known, which pauses all.
        shards: Vec<ShardId>,
        /// Reason of the refusal.
        fault: Fault,
        /// Error code and message of the service.
        detail: Arc<str>,
        /// Duration of the longest of these pauses so far.
        duration: Duration,
        /// Number of shards paused now, these included; 1 for all if they are not known.
        paused: usize,
    },
    /// The service accepts the caller's records again.
    Resumed {
        /// Name of the stream.
        stream: StreamName,
        /// Id of the producer.
        producer: ProducerId,
        /// The shards that were paused. Empty if they were not known.
        shards: Vec<ShardId>,
        /// Duration of the longest of these pauses.
        duration: Duration,
        /// Number of shards that are still paused.
        paused: usize,
    },
    /// The shard list was read.
    ShardMapRead {
        /// Name of the stream.
        stream: StreamName,
        /// Id of the producer.
        producer: ProducerId,
        /// Number of open shards.
        shards: usize,
    },
    /// Reading the shard list failed.
    ShardMapFailed {
        /// Name of the stream.
        stream: StreamName,
        /// Id of the producer.
        producer: ProducerId,
        /// Classified error.
        fault: Fault,
    },
    /// The shard map was dropped, because the stream may be another one of the same name.
    ShardMapDropped {
        /// Name of the stream.
        stream: StreamName,
        /// Id of the producer.
        producer: ProducerId,
    },
    /// A record of a key has no certain place in the stream, so the key is stopped.
    KeyStopped {
        /// Name of the stream.
        stream: StreamName,
        /// Id of the producer.
        producer: ProducerId,
        /// The stopped key.
        key: OrderingKey,
    },
    /// Too many keys are stopped, so the whole producer is stopped.
    ProducerStopped {
        /// Name of the stream.
        stream: StreamName,
        /// Id of the producer.
        producer: ProducerId,
    },
    /// The producer was dropped with outstanding records, which it gave up.
    Abandoned {
        /// Name of the stream.
        stream: StreamName,
        /// Id of the producer.
        producer: ProducerId,
        /// Number of outstanding records.
        records: u64,
    },
}
