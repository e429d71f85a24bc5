//! Actions that the machine emits, and the requests, replies and notices they carry.

use crate::hash::HashKey;
use crate::ids::ShardId;
use crate::lineage::Shard;
use crate::produce::outcome::CompletedRecords;
use crate::produce::stopped_keys::OrderingKey;
use crate::record::PartitionKey;
use crate::retry::Fault;
use crate::sequence::SequenceNumber;
use crate::shard_map::MapRead;
use bytes::Bytes;
use std::sync::Arc;

/// An action for the driver of the machine.
#[derive(Debug)]
pub enum Action<T> {
    /// Send a request and pass its reply to [`super::Machine::reply`].
    Send(PutRequest),
    /// Read the list of shards and pass it to [`super::Machine::shards`].
    ListShards(ShardListRead),
    /// Deliver outcomes to the records' tickets.
    Complete(CompletedRecords<T>),
    /// Publish an event to listeners.
    Notice(MachineNotice),
}

/// A request to send exactly once.
#[derive(Debug)]
pub struct PutRequest {
    /// Request number; its reply is matched by it.
    pub id: u64,
    /// Entries; in strict order at most one of each queue.
    pub entries: Vec<RequestEntry>,
    /// True if the request is a `PutRecord` with one entry, false if it is a `PutRecords`.
    pub single: bool,
    /// For `PutRecord`: the entry's sequence number must be greater than this
    /// (`SequenceNumberForOrdering`).
    pub after: Option<SequenceNumber>,
    /// User records in the request.
    pub records: usize,
    /// Bytes that the service counts against its limits.
    pub bytes: usize,
}

/// One entry of a request.
#[derive(Debug, Clone)]
pub struct RequestEntry {
    /// Partition key.
    pub key: PartitionKey,
    /// Explicit hash key, if the entry has one.
    pub hash: Option<HashKey>,
    /// Data of the Kinesis record.
    pub data: Bytes,
}

/// Reply to a request: the result of each entry, or a failure of the whole request.
pub type PutReply = Result<Vec<EntryResult>, (Fault, Arc<str>)>;

/// Result of one entry.
#[derive(Debug, Clone)]
pub enum EntryResult {
    /// The entry is in the stream.
    Placed {
        /// Shard that holds it.
        shard: ShardId,
        /// Sequence number of the Kinesis record.
        sequence: SequenceNumber,
    },
    /// The entry was not placed, or its result is unknown.
    Failed {
        /// Classified failure.
        fault: Fault,
        /// Error code and message of the service.
        detail: Arc<str>,
    },
}

/// A read of the list of shards.
#[derive(Debug, PartialEq, Eq)]
pub struct ShardListRead {
    /// Refresh of the shard map that this read belongs to.
    pub(super) refresh: MapRead,
    /// Sequential number among all reads.
    pub(super) number: u64,
    /// Start of the read: the list may be as old as this.
    pub(super) began_ms: u64,
    /// True if closed shards must be listed too.
    pub full: bool,
}

/// Result of a list read: all pages, or a failure.
pub type ShardListResult = Result<Vec<Shard>, Fault>;

/// An event of the machine, published to listeners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MachineNotice {
    /// A shard map was read.
    MapRead {
        /// Number of open shards.
        shards: usize,
    },
    /// Reading the list of shards failed.
    MapFailed {
        /// Classified failure.
        fault: Fault,
    },
    /// The shard map was dropped.
    MapDropped,
    /// A Kinesis record went to a shard whose range does not hold all of its user records. It is
    /// sent again.
    Misrouted {
        /// Shard that answered.
        shard: ShardId,
        /// User records in it.
        records: usize,
    },
    /// A Kinesis record is sent again after a failure.
    Retry {
        /// Predicted shard, if one was known.
        shard: Option<ShardId>,
        /// Classified failure.
        fault: Fault,
        /// Error code and message of the service.
        detail: Arc<str>,
        /// User records in it.
        records: usize,
        /// Earliest time of the next attempt.
        at_ms: u64,
    },
    /// A shard throttled the producer, so the send rate to it was reduced.
    RateReduced {
        /// Throttled shard.
        shard: ShardId,
        /// Remaining share of the full rate, in thousandths.
        share: u64,
    },
    /// The service refuses the caller, so nothing is sent to these shards for a while. Emitted when
    /// a pause begins, and at most once a minute while it lasts.
    Paused {
        /// Paused shards. Empty if they are not known, which pauses all shards.
        shards: Vec<ShardId>,
        /// Failure that refuses the caller.
        fault: Fault,
        /// Error code and message of the service.
        detail: Arc<str>,
        /// Duration of the longest of these pauses so far.
        for_ms: u64,
        /// Number of active pauses.
        pauses: usize,
    },
    /// The service accepts records of the caller again.
    Resumed {
        /// Shards that were paused. Empty if they were not known.
        shards: Vec<ShardId>,
        /// Duration of the longest of these pauses.
        for_ms: u64,
        /// Number of pauses still active.
        pauses: usize,
    },
    /// A key was stopped.
    KeyStopped {
        /// Stopped key.
        key: OrderingKey,
    },
    /// Too many keys are stopped, so the whole producer stopped.
    ProducerStopped,
}

/// A request in flight.
#[derive(Debug)]
pub(super) struct InFlight {
    /// Numbers of its Kinesis records, in the order of its entries.
    pub(super) containers: Vec<u64>,
    pub(super) sent_ms: u64,
    /// True if it carried the sequence number of the previous Kinesis record.
    pub(super) numbered: bool,
}
