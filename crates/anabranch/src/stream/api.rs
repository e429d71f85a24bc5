//! The Kinesis calls that the library makes: one of its two seams.

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

/// The slowest uplink that time-outs allow for, in bytes a second.
const SLOWEST_UPLINK: u64 = 128 * 1024;

/// Returns how long `bytes` take over the slowest uplink that time-outs allow for, 128 KiB/s.
pub fn upload_time(bytes: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1000) / SLOWEST_UPLINK)
}

/// The calls. An implementation makes one attempt per call: retries, pauses and limits belong to
/// the callers, who know what a repeated call would mean.
pub trait StreamApi: Send + Sync + 'static {
    /// What kind of stream it is, and in which state.
    fn describe(
        &self,
        stream: &StreamName,
    ) -> impl Future<Output = Result<StreamSummary, StreamError>> + Send;

    /// All shards that pass the filter, every page of them.
    fn list_shards(
        &self,
        stream: &StreamName,
        filter: ShardFilter,
    ) -> impl Future<Output = Result<ShardList, StreamError>> + Send;

    /// An iterator at a place in a shard.
    fn iterator(
        &self,
        stream: &StreamName,
        shard: &ShardId,
        at: ReadFrom,
    ) -> impl Future<Output = Result<ShardIterator, StreamError>> + Send;

    /// The records behind an iterator, at most `limit`.
    fn records(
        &self,
        stream: &StreamName,
        iterator: &ShardIterator,
        limit: u32,
    ) -> impl Future<Output = Result<FetchedRecords, StreamError>> + Send;

    /// Registers a fan-out consumer. [`Fault::Busy`] says that there is one of that name.
    fn register_consumer(
        &self,
        stream: &StreamSummary,
        name: &str,
    ) -> impl Future<Output = Result<FanOutConsumer, StreamError>> + Send;

    /// The fan-out consumer of that name, or with that ARN.
    fn describe_consumer(
        &self,
        stream: &StreamSummary,
        name: &str,
    ) -> impl Future<Output = Result<FanOutConsumer, StreamError>> + Send;

    /// Removes the fan-out consumer.
    fn deregister_consumer(
        &self,
        consumer: &FanOutConsumer,
    ) -> impl Future<Output = Result<(), StreamError>> + Send;

    /// Subscribes to a shard. The subscription ends by itself after five minutes.
    fn subscribe(
        &self,
        consumer: &FanOutConsumer,
        shard: &ShardId,
        at: ReadFrom,
    ) -> impl Future<Output = Result<Subscription, StreamError>> + Send;

    /// Puts up to 500 entries. The reply has one result for each, in the order of the entries.
    ///
    /// How long a put may take depends on its size and on what else shares the line, so a caller
    /// drops it when its time is over: it may still take effect.
    fn put_records(
        &self,
        stream: &StreamName,
        entries: &[PutEntry],
    ) -> impl Future<Output = Result<Vec<PutEntryResult>, StreamError>> + Send;

    /// Puts one entry, with a sequence number above `after` where one is given.
    fn put_record(
        &self,
        stream: &StreamName,
        entry: &PutEntry,
        after: Option<SequenceNumber>,
    ) -> impl Future<Output = Result<Placement, StreamError>> + Send;
}

/// What kind of stream it is, and in which state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamSummary {
    /// Its address, which the fan-out calls want.
    pub arn: String,
    /// In which state it is.
    pub status: StreamStatus,
    /// When it was created, in milliseconds since 1970: a re-created stream is another one.
    pub created_ms: u64,
    /// For how long it keeps records, in milliseconds.
    pub retention_ms: u64,
    /// The largest record that it takes, in bytes of data and key.
    pub max_record_bytes: usize,
    /// Whether shards are added and removed by the service.
    pub on_demand: bool,
    /// Whether the service spreads records as it likes, whatever their keys.
    pub ignores_keys: bool,
    /// How many shards are open.
    pub open_shards: usize,
}

/// In which state a stream is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamStatus {
    /// Not there yet.
    Creating,
    /// In use.
    Active,
    /// In use, and being resharded or reconfigured.
    Updating,
    /// On its way out.
    Deleting,
}

/// As the service names it.
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

/// Which shards to list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShardFilter {
    /// Every shard within retention: the full list that proves an absence.
    All,
    /// Open ones.
    AtLatest,
    /// Those that were open at the trim horizon.
    AtTrimHorizon,
    /// Those that were open at this moment, in milliseconds since 1970.
    AtTimestamp(u64),
}

/// A list of shards, and when the service answered it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardList {
    /// The shards, in the service's order.
    pub shards: Vec<Shard>,
    /// The `Date` of the first page's reply, in milliseconds since 1970, where there was one.
    pub service_ms: Option<u64>,
}

/// Where to start reading a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadFrom {
    /// The oldest record that it holds.
    TrimHorizon,
    /// What arrives next.
    Latest,
    /// The first record that arrived at or after this time, in milliseconds since 1970.
    AtTimestamp(u64),
    /// This record.
    At(SequenceNumber),
    /// The record behind this one.
    After(SequenceNumber),
}

/// A place in a shard, as the service wrote it. Good for five minutes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardIterator(pub Arc<str>);

/// What one read gave.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FetchedRecords {
    /// The records in order. They may be aggregates.
    pub records: Vec<Record>,
    /// Where to go on. `None` at the end of a closed shard.
    pub next: Option<ShardIterator>,
    /// How old the newest record given is against the shard's newest, in milliseconds.
    pub behind_ms: u64,
    /// The shards that follow, at the end of a closed shard.
    pub children: Vec<ChildShard>,
}

/// A shard that follows a closed one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChildShard {
    /// Its name.
    pub id: ShardId,
    /// The shards that it came from.
    pub parents: Vec<ShardId>,
    /// The keys that it takes.
    pub range: HashRange,
}

/// A registered fan-out consumer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FanOutConsumer {
    /// Its address.
    pub arn: String,
    /// Its name.
    pub name: String,
    /// Whether it can be subscribed with.
    pub active: bool,
}

/// The events of a subscription. It ends after five minutes, at the end of a closed shard, or with
/// an error.
pub type Subscription = Pin<Box<dyn Stream<Item = Result<SubscriptionEvent, StreamError>> + Send>>;

/// One event of a subscription.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubscriptionEvent {
    /// The records in order. They may be aggregates.
    pub records: Vec<Record>,
    /// Where to subscribe again. `None` at the end of a closed shard.
    pub continuation: Option<SequenceNumber>,
    /// How old the newest record given is against the shard's newest, in milliseconds.
    pub behind_ms: u64,
    /// The shards that follow, at the end of a closed shard.
    pub children: Vec<ChildShard>,
}

/// One entry to put.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PutEntry {
    /// The partition key.
    pub key: PartitionKey,
    /// The hash to route by, instead of the key's.
    pub hash: Option<HashKey>,
    /// The data.
    pub data: Bytes,
}

/// Where a record was placed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    /// In which shard.
    pub shard: ShardId,
    /// Under which number.
    pub sequence: SequenceNumber,
}

/// What became of one entry of a bulk put.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PutEntryResult {
    /// It was placed.
    Placed(Placement),
    /// It was not.
    Failed {
        /// What it means.
        fault: Fault,
        /// The service's code, such as `ProvisionedThroughputExceededException`.
        code: String,
        /// The service's words.
        message: String,
    },
}

/// Why a call failed.
#[derive(Debug)]
pub struct StreamError {
    /// What it means to a caller.
    pub fault: Fault,
    /// Which call, in the service's words.
    pub operation: &'static str,
    /// To what.
    pub target: String,
    /// The service's code and words, or what happened below.
    pub detail: String,
    /// The error below, if there is one.
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

impl StreamError {
    /// Whether the same call may succeed later without anyone's help.
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
