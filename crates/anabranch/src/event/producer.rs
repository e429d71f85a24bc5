//! What happens inside a producer.

use crate::producer::ProducerId;
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::produce::OrderingKey;
use anabranch_model::produce::outcome::RejectReason;
use anabranch_model::retry::Fault;
use std::sync::Arc;

/// What happened inside a producer. The KPL's metric for each is in parentheses.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum ProducerEvent {
    /// Records were taken in (`UserRecordsReceived`).
    Received {
        /// The stream.
        stream: StreamName,
        /// Which producer of it.
        producer: ProducerId,
        /// How many.
        records: usize,
        /// Records without an outcome, these included (`UserRecordsPending`).
        pending: u64,
    },
    /// A request left.
    RequestSent {
        /// The stream.
        stream: StreamName,
        /// Which producer of it.
        producer: ProducerId,
        /// Records of the stream in it (`KinesisRecordsPerPutRecordsRequest`).
        kinesis_records: usize,
        /// User records in it (`UserRecordsPerPutRecordsRequest`).
        records: usize,
        /// Bytes that the service counts.
        bytes: usize,
    },
    /// A reply came, or the call failed (`RequestTime`).
    RequestCompleted {
        /// The stream.
        stream: StreamName,
        /// Which producer of it.
        producer: ProducerId,
        /// How long it took.
        took: u64,
        /// Entries that failed; all of them if the call did (`AllErrors`).
        failed: usize,
    },
    /// User records are in the stream (`UserRecordsPut`).
    Placed {
        /// The stream.
        stream: StreamName,
        /// Which producer of it.
        producer: ProducerId,
        /// The shard.
        shard: ShardId,
        /// How many (`UserRecordsPerKinesisRecord`).
        records: usize,
        /// Their bytes (`UserRecordsDataPut`).
        bytes: usize,
        /// Attempts before the one that placed them (`RetriesPerRecord`).
        retries: usize,
        /// From the put of the oldest to the first attempt (`BufferingTime`).
        buffered_for: u64,
        /// From the put of the oldest to now.
        waited_for: u64,
        /// Records that are still without an outcome (`UserRecordsPending`).
        pending: u64,
    },
    /// User records were rejected.
    Rejected {
        /// The stream.
        stream: StreamName,
        /// Which producer of it.
        producer: ProducerId,
        /// How many.
        records: usize,
        /// Why (`UserRecordExpired` where the deadline passed).
        why: RejectReason,
        /// Records that are still without an outcome (`UserRecordsPending`).
        pending: u64,
    },
    /// Nobody knows whether user records are in the stream.
    Unknown {
        /// The stream.
        stream: StreamName,
        /// Which producer of it.
        producer: ProducerId,
        /// How many.
        records: usize,
        /// Records that are still without an outcome (`UserRecordsPending`).
        pending: u64,
    },
    /// A container failed and is sent again (`ErrorsByCode`).
    Retried {
        /// The stream.
        stream: StreamName,
        /// Which producer of it.
        producer: ProducerId,
        /// The shard that it was meant for, if one was known.
        shard: Option<ShardId>,
        /// What failed.
        fault: Fault,
        /// The service's code and words.
        detail: Arc<str>,
        /// User records in it.
        records: usize,
        /// When it is sent again, by the producer's clock.
        retry_in: u64,
    },
    /// A container was in a shard that does not take all of its records, so they are sent again.
    Misrouted {
        /// The stream.
        stream: StreamName,
        /// Which producer of it.
        producer: ProducerId,
        /// The shard that answered.
        shard: ShardId,
        /// User records in it.
        records: usize,
    },
    /// A shard refused, so it is written more slowly.
    RateReduced {
        /// The stream.
        stream: StreamName,
        /// Which producer of it.
        producer: ProducerId,
        /// The shard.
        shard: ShardId,
        /// The share of its rate that is left, in thousandths.
        share: u64,
    },
    /// The service refuses the caller: a permission is missing, the credentials or the signature are
    /// not accepted, or the stream's encryption key can't be used. Nothing is wrong with the
    /// records, so they wait, and the shards are probed with growing waits. Emitted when a pause
    /// begins, and once a minute at the most while it lasts.
    Paused {
        /// The stream.
        stream: StreamName,
        /// Which producer of it.
        producer: ProducerId,
        /// The shards; none where they are not known, which pauses all.
        shards: Vec<ShardId>,
        /// Why the caller is refused.
        fault: Fault,
        /// The service's code and words.
        detail: Arc<str>,
        /// How long the longest of these pauses has lasted, in milliseconds.
        duration: u64,
        /// Shards that are paused now, these included; 1 for all where they are not known.
        paused: usize,
    },
    /// The service takes records of the caller again.
    Resumed {
        /// The stream.
        stream: StreamName,
        /// Which producer of it.
        producer: ProducerId,
        /// The shards that were paused; none where they were not known.
        shards: Vec<ShardId>,
        /// How long the longest of these pauses lasted, in milliseconds.
        for_ms: u64,
        /// Shards that are still paused.
        paused: usize,
    },
    /// The list of shards was read.
    ShardMapRead {
        /// The stream.
        stream: StreamName,
        /// Which producer of it.
        producer: ProducerId,
        /// Open shards.
        shards: usize,
    },
    /// The list of shards could not be read.
    ShardMapFailed {
        /// The stream.
        stream: StreamName,
        /// Which producer of it.
        producer: ProducerId,
        /// What that means.
        fault: Fault,
    },
    /// The map was dropped: the stream may be another one of the same name.
    ShardMapDropped {
        /// The stream.
        stream: StreamName,
        /// Which producer of it.
        producer: ProducerId,
    },
    /// A record of a key has no certain place, so the key stands stopped.
    KeyStopped {
        /// The stream.
        stream: StreamName,
        /// Which producer of it.
        producer: ProducerId,
        /// The key.
        key: OrderingKey,
    },
    /// Too many keys stand stopped, so the whole producer does.
    ProducerStopped {
        /// The stream.
        stream: StreamName,
        /// Which producer of it.
        producer: ProducerId,
    },
    /// It was dropped with records whose fate nobody will learn.
    Abandoned {
        /// The stream.
        stream: StreamName,
        /// Which producer of it.
        producer: ProducerId,
        /// How many.
        records: u64,
    },
}
