//! The `StreamApi` trait: the Kinesis calls that the library makes, and their types. One of the
//! library's two extension points.

use anabranch_model::hash::{HashKey, HashRange};
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lineage::Shard;
use anabranch_model::record::{PartitionKey, Record};
use anabranch_model::retry::Fault;
use anabranch_model::sequence::SequenceNumber;
use bytes::Bytes;
use futures_core::Stream;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// Slowest uplink that time-outs allow for, in bytes per second.
const SLOWEST_UPLINK: u64 = 128 * 1024;

/// Returns the time to upload `bytes` at 128 KiB/s, the slowest uplink that time-outs allow for.
pub fn upload_time(bytes: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1000) / SLOWEST_UPLINK)
}

/// The Kinesis calls. An implementation makes one attempt per call. Retries, backoff and rate
/// limits belong to the callers, because they know the effect of a repeated call.
pub trait StreamApi: Send + Sync + 'static {
    /// Returns the state and the properties of a stream.
    fn describe(
        &self,
        stream: &StreamName,
    ) -> impl Future<Output = Result<StreamSummary, StreamError>> + Send;

    /// Returns all shards that match the filter, from all pages.
    fn list_shards(
        &self,
        stream: &StreamName,
        filter: ShardFilter,
    ) -> impl Future<Output = Result<ShardList, StreamError>> + Send;

    /// Returns an iterator at a position in a shard.
    fn iterator(
        &self,
        stream: &StreamName,
        shard: &ShardId,
        at: ReadFrom,
    ) -> impl Future<Output = Result<ShardIterator, StreamError>> + Send;

    /// Returns at most `limit` records from an iterator on.
    fn records(
        &self,
        stream: &StreamName,
        iterator: &ShardIterator,
        limit: u32,
    ) -> impl Future<Output = Result<FetchedRecords, StreamError>> + Send;

    /// Registers a fan-out consumer. Fails with [`Fault::Busy`] if one of this name exists.
    fn register_consumer(
        &self,
        stream: &StreamSummary,
        name: &str,
    ) -> impl Future<Output = Result<FanOutConsumer, StreamError>> + Send;

    /// Returns the fan-out consumer with this name or ARN.
    fn describe_consumer(
        &self,
        stream: &StreamSummary,
        name: &str,
    ) -> impl Future<Output = Result<FanOutConsumer, StreamError>> + Send;

    /// Deregisters a fan-out consumer.
    fn deregister_consumer(
        &self,
        consumer: &FanOutConsumer,
    ) -> impl Future<Output = Result<(), StreamError>> + Send;

    /// Subscribes to a shard. The subscription ends by itself after 5 min.
    fn subscribe(
        &self,
        consumer: &FanOutConsumer,
        shard: &ShardId,
        at: ReadFrom,
    ) -> impl Future<Output = Result<Subscription, StreamError>> + Send;

    /// Puts up to 500 entries. Returns one result per entry, in the order of the entries.
    ///
    /// The time that a put may take depends on its size and on other uploads. The caller therefore
    /// enforces its own time-out by dropping the future. A dropped put may still take effect.
    fn put_records(
        &self,
        stream: &StreamName,
        entries: &[PutEntry],
    ) -> impl Future<Output = Result<Vec<PutEntryResult>, StreamError>> + Send;

    /// Puts one entry. Its sequence number is above `after`, if given.
    fn put_record(
        &self,
        stream: &StreamName,
        entry: &PutEntry,
        after: Option<SequenceNumber>,
    ) -> impl Future<Output = Result<Placement, StreamError>> + Send;
}

/// State and properties of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamSummary {
    /// ARN of the stream, which the fan-out calls need.
    pub arn: String,
    /// State of the stream.
    pub status: StreamStatus,
    /// Creation time, in milliseconds since 1970. It distinguishes a recreated stream.
    pub created_ms: u64,
    /// Retention of records, in milliseconds.
    pub retention_ms: u64,
    /// Maximum size of a record, in bytes of data and key.
    pub max_record_bytes: usize,
    /// True in on-demand mode, where the service adds and removes shards.
    pub on_demand: bool,
    /// True if the service distributes records independently of their keys.
    pub ignores_keys: bool,
    /// Number of open shards.
    pub open_shards: usize,
}

/// State of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamStatus {
    /// Being created, and not usable yet.
    Creating,
    /// Usable.
    Active,
    /// Usable, and being resharded or reconfigured.
    Updating,
    /// Being deleted.
    Deleting,
}

/// Writes the service's name of the state.
impl fmt::Display for StreamStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Creating => "CREATING",
            Self::Active => "ACTIVE",
            Self::Updating => "UPDATING",
            Self::Deleting => "DELETING",
        })
    }
}

/// Selection of shards to list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShardFilter {
    /// All shards within retention. Only this list proves that a shard does not exist.
    All,
    /// The open shards.
    AtLatest,
    /// The shards that were open at the trim horizon.
    AtTrimHorizon,
    /// The shards that were open at this time, in milliseconds since 1970.
    AtTimestamp(u64),
}

/// A shard list, with the time of the service's reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardList {
    /// Shards in the order of the reply.
    pub shards: Vec<Shard>,
    /// `Date` header of the first page's reply, in milliseconds since 1970, if present.
    pub service_ms: Option<u64>,
}

/// Start position of a read of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadFrom {
    /// The oldest record that the shard still holds.
    TrimHorizon,
    /// The next record to arrive.
    Latest,
    /// The first record that arrived at or after this time, in milliseconds since 1970.
    AtTimestamp(u64),
    /// The record with this sequence number.
    At(SequenceNumber),
    /// The first record after this sequence number.
    After(SequenceNumber),
}

/// Opaque position in a shard, issued by the service. Valid for 5 min.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardIterator(pub Arc<str>);

/// Reply to [`StreamApi::records`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FetchedRecords {
    /// Kinesis records in order. They may be aggregates.
    pub records: Vec<Record>,
    /// Iterator for the next read. `None` at the end of a closed shard.
    pub next: Option<ShardIterator>,
    /// Distance of the reply from the shard's newest record, in milliseconds
    /// (`MillisBehindLatest`).
    pub behind_ms: u64,
    /// Children of the shard, at the end of a closed shard.
    pub children: Vec<ChildShard>,
}

/// A child of a closed shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChildShard {
    /// Shard id.
    pub id: ShardId,
    /// Parents of the shard: one after a split, two after a merge.
    pub parents: Vec<ShardId>,
    /// Hash range of the shard.
    pub range: HashRange,
}

/// A registered fan-out consumer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FanOutConsumer {
    /// ARN of the consumer.
    pub arn: String,
    /// Name of the consumer.
    pub name: String,
    /// True once the consumer accepts subscriptions.
    pub active: bool,
}

/// Stream of the events of a subscription. It ends after 5 min, at the end of a closed shard, or
/// with an error.
pub type Subscription = Pin<Box<dyn Stream<Item = Result<SubscriptionEvent, StreamError>> + Send>>;

/// One event of a subscription.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubscriptionEvent {
    /// Kinesis records in order. They may be aggregates.
    pub records: Vec<Record>,
    /// Sequence number from which to subscribe again. `None` at the end of a closed shard.
    pub continuation: Option<SequenceNumber>,
    /// Distance of the event from the shard's newest record, in milliseconds
    /// (`MillisBehindLatest`).
    pub behind_ms: u64,
    /// Children of the shard, at the end of a closed shard.
    pub children: Vec<ChildShard>,
}

/// One entry of a put: a Kinesis record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PutEntry {
    /// Partition key.
    pub key: PartitionKey,
    /// Explicit hash key, which replaces the hash of the partition key.
    pub hash: Option<HashKey>,
    /// Data of the record, encoded if it is an aggregate.
    pub data: Bytes,
}

/// Shard and sequence number of a record that was put.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    /// Shard that stored the record.
    pub shard: ShardId,
    /// Sequence number of the record.
    pub sequence: SequenceNumber,
}

/// Result of one entry of [`StreamApi::put_records`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PutEntryResult {
    /// The record is in the stream.
    Placed(Placement),
    /// The service did not accept the entry.
    Failed {
        /// Classified failure.
        fault: Fault,
        /// Error code of the service, such as `ProvisionedThroughputExceededException`.
        code: String,
        /// Error message of the service.
        message: String,
    },
}

/// Error of a call.
#[derive(Debug)]
pub struct StreamError {
    /// Classified failure.
    pub fault: Fault,
    /// Operation, as named by the service.
    pub operation: &'static str,
    /// Target of the call, such as a stream or a shard.
    pub target: String,
    /// Error code and message of the service, or a description of the underlying failure.
    pub detail: String,
    /// Underlying error, if there is one.
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

impl StreamError {
    /// Returns true if the same call may succeed later without intervention.
    pub fn is_retryable(&self) -> bool {
        self.fault.class().retryable
    }
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {} failed: {}", self.operation, self.target, self.detail)
    }
}

impl Error for StreamError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|below| below as &(dyn Error + 'static))
    }
}
