//! What the machine asks for, and what it is told.

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

/// What is to be done.
#[derive(Debug)]
pub enum Action<T> {
    /// Send a request, and bring its reply to [`super::Machine::reply`].
    Send(PutRequest),
    /// Read the list of shards, and bring it to [`super::Machine::shards`].
    ListShards(ShardListRead),
    /// Tell outcomes.
    Complete(CompletedRecords<T>),
    /// Tell whoever listens.
    Notice(MachineNotice),
}

/// A request to send, once.
#[derive(Debug)]
pub struct PutRequest {
    /// Its number, which its reply comes back with.
    pub id: u64,
    /// The entries, at most one of a lane in strict order.
    pub entries: Vec<RequestEntry>,
    /// Whether it goes by `PutRecord`; then it has one entry.
    pub single: bool,
    /// The number that the entry's own must be above, for `PutRecord`.
    pub after: Option<SequenceNumber>,
    /// User records in it.
    pub records: usize,
    /// Bytes that the service counts.
    pub bytes: usize,
}

/// One entry of a request.
#[derive(Debug, Clone)]
pub struct RequestEntry {
    /// The partition key.
    pub key: PartitionKey,
    /// The hash to route by.
    pub hash: Option<HashKey>,
    /// The data.
    pub data: Bytes,
}

/// What came of a request: the result of each entry, or a failure of the whole.
pub type PutReply = Result<Vec<EntryResult>, (Fault, Arc<str>)>;

/// What came of one entry.
#[derive(Debug, Clone)]
pub enum EntryResult {
    /// It was placed.
    Placed {
        /// In this shard.
        shard: ShardId,
        /// Under this number.
        sequence: SequenceNumber,
    },
    /// It failed.
    Failed {
        /// What that means.
        fault: Fault,
        /// The service's code and words.
        detail: Arc<str>,
    },
}

/// A read of the list of shards.
#[derive(Debug, PartialEq, Eq)]
pub struct ShardListRead {
    /// Which refresh of the map it is.
    pub(super) refresh: MapRead,
    /// Its number among all reads.
    pub(super) number: u64,
    /// When it began: the list may be as old as that.
    pub(super) began_ms: u64,
    /// Whether closed shards are wanted too.
    pub full: bool,
}

/// What came of a read: every page of the list, or a failure.
pub type ShardListResult = Result<Vec<Shard>, Fault>;

/// Something that happened, for whoever listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MachineNotice {
    /// A map was read.
    MapRead {
        /// Open shards.
        shards: usize,
    },
    /// Reading the list failed.
    MapFailed {
        /// What that means.
        fault: Fault,
    },
    /// The map was dropped.
    MapDropped,
    /// A container was in a shard that does not take all of its records, so it is sent again.
    Misrouted {
        /// The shard that answered.
        shard: ShardId,
        /// Its records.
        records: usize,
    },
    /// A container is sent again after a failure.
    Retry {
        /// The shard that it was meant for, if one was known.
        shard: Option<ShardId>,
        /// What failed.
        fault: Fault,
        /// The service's code and words.
        detail: Arc<str>,
        /// Its records.
        records: usize,
        /// When.
        at_ms: u64,
    },
    /// A shard refused, so it is written more slowly.
    RateReduced {
        /// The shard.
        shard: ShardId,
        /// The share of its rate that is left, in thousandths.
        share: u64,
    },
    /// The service refuses the caller, so nothing is sent to these shards for a while. Told when a
    /// pause begins, and seldom while it lasts.
    Paused {
        /// The shards; none where they are not known, which pauses all.
        shards: Vec<ShardId>,
        /// Why the caller is refused.
        fault: Fault,
        /// The service's code and words.
        detail: Arc<str>,
        /// How long the longest of these pauses has lasted.
        for_ms: u64,
        /// How many pauses there are.
        pauses: usize,
    },
    /// The service takes records of the caller again.
    Resumed {
        /// The shards that were paused; none where they were not known.
        shards: Vec<ShardId>,
        /// How long the longest of these pauses lasted.
        for_ms: u64,
        /// How many pauses are left.
        pauses: usize,
    },
    /// A key stands stopped.
    KeyStopped {
        /// The key.
        key: OrderingKey,
    },
    /// Too many keys stand stopped, so the producer does.
    ProducerStopped,
}

/// A request on its way.
#[derive(Debug)]
pub(super) struct InFlight {
    /// Its containers, in the order of its entries.
    pub(super) containers: Vec<u64>,
    /// When it was sent.
    pub(super) sent_ms: u64,
    /// Whether it carried the number of the container before.
    pub(super) numbered: bool,
}
