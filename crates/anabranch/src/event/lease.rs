//! Events of leases, and of the worker that holds them.

use crate::stream::api::StreamStatus;
use anabranch_model::hash::HashRange;
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::{LeaseKey, WaitReason, WorkerId};
use std::time::{Duration, SystemTime};

/// An event of a worker or its leases.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum LeaseEvent {
    /// A KCL 3.x fleet used the lease table last. The worker does nothing until nothing in the
    /// table has changed for `wait`.
    WaitingForKcl3 {
        /// Required time without a change.
        wait: Duration,
        /// Owner of KCL's leader lock, if there is one.
        leader: Option<String>,
    },
    /// A KCL 3.x fleet has started to use the lease table. The worker takes no more leases,
    /// releases the ones it holds in an orderly way, and ends.
    YieldedToKcl3 {
        /// Description of that fleet's activity, and what to do.
        hindrance: String,
    },
    /// KCL workers consider this worker the leader of a table with several streams, and leave the
    /// rows of these streams to it. It does not read these streams, so their rows are neither
    /// created nor repaired.
    LeadsUnreadStreams {
        /// The streams, by KCL's stream ids.
        streams: Vec<String>,
    },
    /// The worker joined the fleet under a new id.
    Joined {
        /// Id of the worker for this membership.
        worker: WorkerId,
    },
    /// The worker was evicted: another one fenced it, or no heartbeat succeeded for a lease time.
    /// It has lost all its leases, and joins again under another id.
    Evicted {
        /// The evicted id, which is never used again.
        worker: WorkerId,
    },
    /// The worker announced that it is leaving.
    Leaving {
        /// Id of the worker.
        worker: WorkerId,
    },
    /// The worker left the fleet.
    Left {
        /// Id of the worker.
        worker: WorkerId,
    },
    /// The worker fenced another one that had stopped sending heartbeats.
    WorkerFenced {
        /// Id of the fenced worker.
        worker: WorkerId,
    },
    /// The row of a worker that left or was fenced was removed.
    WorkerRowRemoved {
        /// Id of the removed worker.
        worker: WorkerId,
    },
    /// The size of the fleet has changed since the last poll.
    FleetChanged {
        /// Number of active workers, this one included. In KCL's layout, the workers that own a
        /// lease.
        workers: usize,
        /// Number of leases of the streams that are read.
        leases: usize,
    },
    /// The worker took a lease.
    LeaseTaken {
        /// Key of the lease.
        lease: LeaseKey,
        /// Id of the new owner.
        worker: WorkerId,
        /// Term of the lease from now on.
        term: u64,
    },
    /// The worker asked the owner of a lease to hand it over.
    HandOverRequested {
        /// Key of the lease.
        lease: LeaseKey,
    },
    /// The worker withdrew its hand-over request.
    HandOverWithdrawn {
        /// Key of the lease.
        lease: LeaseKey,
    },
    /// The worker drains a shard, because another worker requested its lease.
    Draining {
        /// Key of the lease.
        lease: LeaseKey,
        /// Id of the requesting worker.
        to: WorkerId,
    },
    /// The worker handed a lease over to the worker that requested it.
    LeaseHandedOver {
        /// Key of the lease.
        lease: LeaseKey,
        /// Id of the new owner.
        to: WorkerId,
    },
    /// The worker released a lease.
    LeaseReleased {
        /// Key of the lease.
        lease: LeaseKey,
    },
    /// A lease was lost: another worker owns it, or it expired.
    LeaseLost {
        /// Key of the lease.
        lease: LeaseKey,
    },
    /// A shard waits for a parent.
    WaitingForParent {
        /// Key of the lease.
        lease: LeaseKey,
        /// Id of the parent.
        parent: ShardId,
        /// Reason for the wait.
        why: WaitReason,
    },
    /// All records of a shard are processed, and its row says so.
    ShardEnded {
        /// Key of the lease.
        lease: LeaseKey,
        /// Ids of the child shards.
        children: Vec<ShardId>,
    },
    /// The service no longer has a shard. Its records that were not read are lost.
    ShardMissing {
        /// Key of the lease.
        lease: LeaseKey,
        /// Ids of the shards that follow it.
        successors: Vec<ShardId>,
    },
    /// A stream without rows is being created or updated. Its first rows are created once that has
    /// finished.
    StreamNotActive {
        /// Name of the stream.
        stream: StreamName,
        /// Current status of the stream.
        status: StreamStatus,
    },
    /// Rows of a stream were created: the first ones, or missing ones.
    RowsCreated {
        /// Name of the stream.
        stream: StreamName,
        /// Number of rows that this worker created.
        rows: usize,
    },
    /// No row covers a part of the hash range.
    HashRangeHole {
        /// Name of the stream.
        stream: StreamName,
        /// The uncovered hash range.
        range: HashRange,
        /// Number of consecutive audits that have found it.
        audits: u32,
    },
    /// The row of a finished shard was removed.
    LeaseRowRemoved {
        /// Key of the lease.
        lease: LeaseKey,
    },
    /// The stream was deleted and created again, so it is no longer read.
    StreamRecreated {
        /// Name of the stream.
        stream: StreamName,
        /// Creation time that the application knows. KCL's table stores none; there it is `None`,
        /// and a row shows that it belongs to another stream.
        known: Option<SystemTime>,
        /// Creation time reported by the service.
        found: SystemTime,
    },
    /// The service reports that the stream was deleted, so it is no longer read. While the worker
    /// reads other streams, it keeps checking whether this one exists again.
    StreamDeleted {
        /// Name of the stream.
        stream: StreamName,
    },
    /// A stream that was reported as deleted exists again, and is read again.
    StreamRestored {
        /// Name of the stream.
        stream: StreamName,
    },
    /// A call to the lease store failed. It is retried.
    StoreCallFailed {
        /// Purpose of the call.
        what: &'static str,
        /// Error message.
        error: String,
    },
    /// A call to the service failed. It is retried.
    StreamCallFailed {
        /// Name of the stream.
        stream: StreamName,
        /// Error message.
        error: String,
    },
    /// A row of the store cannot be parsed, and was omitted from a list. Reported once, until it
    /// can be parsed again.
    RowUnreadable {
        /// Name of the row in the store.
        row: String,
        /// Description of the problem.
        why: String,
    },
}
