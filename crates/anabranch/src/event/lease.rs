//! What happens to leases, and to the worker that holds them.

use crate::stream::api::StreamStatus;
use anabranch_model::hash::HashRange;
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::{LeaseKey, WaitReason, WorkerId};

/// What happened to the leases of a worker, or to the worker itself.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum LeaseEvent {
    /// A fleet of KCL 3.x worked on the table last. Nothing is done until nothing on it has moved
    /// for this long.
    WaitingForKcl3 {
        /// How long, in milliseconds.
        wait: u64,
        /// Which worker holds the leader's lock.
        leader: Option<String>,
    },
    /// A fleet of KCL 3.x works on the table by now. The worker takes nothing any more, gives back
    /// in order what it has, and ends.
    YieldedToKcl3 {
        /// Who is at work, and what to do.
        hindrance: String,
    },
    /// Java's workers hold this one for the leader of a table for several streams, and leave the
    /// rows of these to it, which it does not read: nobody makes or repairs them.
    LeadsUnreadStreams {
        /// The streams, by KCL's ids.
        streams: Vec<String>,
    },
    /// It joined the fleet under this id.
    Joined {
        /// Its id for this join.
        worker: WorkerId,
    },
    /// Its heart stopped: it was fenced, or no beat succeeded for a lease time. All of its leases
    /// are lost, and it joins again under another id.
    Evicted {
        /// The id under which it never comes back.
        worker: WorkerId,
    },
    /// It said that it is stopping.
    Leaving {
        /// Its id.
        worker: WorkerId,
    },
    /// It left.
    Left {
        /// Its id.
        worker: WorkerId,
    },
    /// It fenced a silent worker.
    WorkerFenced {
        /// The silent worker.
        worker: WorkerId,
    },
    /// The row of a worker that left or was fenced was removed.
    WorkerRowRemoved {
        /// That worker.
        worker: WorkerId,
    },
    /// The fleet is of another size than at the last look.
    FleetChanged {
        /// Workers that take part, this one included. In KCL's layout, those that own a lease.
        workers: usize,
        /// Leases of the streams that are read.
        leases: usize,
    },
    /// It took a lease.
    LeaseTaken {
        /// The lease.
        lease: LeaseKey,
        /// Who owns it now.
        worker: WorkerId,
        /// The term from now on.
        term: u64,
    },
    /// It asked the owner of a lease to hand it over.
    HandOverRequested {
        /// The lease.
        lease: LeaseKey,
    },
    /// It took its request back.
    HandOverWithdrawn {
        /// The lease.
        lease: LeaseKey,
    },
    /// It drains a shard, because another worker asked for the lease.
    Draining {
        /// The lease.
        lease: LeaseKey,
        /// Who asked.
        to: WorkerId,
    },
    /// It passed a lease on to the worker that asked.
    LeaseHandedOver {
        /// The lease.
        lease: LeaseKey,
        /// Who owns it now.
        to: WorkerId,
    },
    /// It gave a lease back.
    LeaseReleased {
        /// The lease.
        lease: LeaseKey,
    },
    /// A lease was lost: others own it, or its time was over.
    LeaseLost {
        /// The lease.
        lease: LeaseKey,
    },
    /// A shard waits for a parent.
    WaitingForParent {
        /// The lease.
        lease: LeaseKey,
        /// The parent.
        parent: ShardId,
        /// What it waits for.
        why: WaitReason,
    },
    /// A shard is done, and its row says so.
    ShardEnded {
        /// The lease.
        lease: LeaseKey,
        /// Who follows.
        children: Vec<ShardId>,
    },
    /// The service no longer has a shard: whatever was not read of it is lost.
    ShardMissing {
        /// The lease.
        lease: LeaseKey,
        /// Who follows.
        successors: Vec<ShardId>,
    },
    /// A stream that was never read is being made or changed: its first rows are made when that is
    /// over.
    StreamNotActive {
        /// The stream.
        stream: StreamName,
        /// What is the matter with it.
        status: StreamStatus,
    },
    /// The rows of a stream were made, or those that were missing.
    RowsCreated {
        /// The stream.
        stream: StreamName,
        /// How many rows this worker made.
        rows: usize,
    },
    /// No row covers these keys.
    HashRangeHole {
        /// The stream.
        stream: StreamName,
        /// The keys.
        range: HashRange,
        /// How many audits in a row have seen it.
        audits: u32,
    },
    /// The row of a finished shard was removed.
    LeaseRowRemoved {
        /// The lease.
        lease: LeaseKey,
    },
    /// The stream was deleted and created again. It is read no longer.
    StreamRecreated {
        /// The stream.
        stream: StreamName,
        /// The creation time that the application knows. KCL's table keeps none, so `None` where a
        /// row shows that it is of another stream.
        known: Option<u64>,
        /// The creation time that the service tells.
        found: u64,
    },
    /// The service reports that the stream was deleted, and reading it ends. While the worker reads
    /// other streams, it asks for this one again.
    StreamDeleted {
        /// The stream.
        stream: StreamName,
    },
    /// A stream that the service reported as deleted exists, and is read again.
    StreamRestored {
        /// The stream.
        stream: StreamName,
    },
    /// The lease store did not do what it was asked. It is asked again.
    StoreCallFailed {
        /// What for.
        what: &'static str,
        /// What it said.
        error: String,
    },
    /// The service did not do what it was asked. It is asked again.
    StreamCallFailed {
        /// The stream.
        stream: StreamName,
        /// What it said.
        error: String,
    },
    /// A row of the store can't be read, and was left out of a list. Reported once, until it can be
    /// read again.
    RowUnreadable {
        /// Which row, as the store names it.
        row: String,
        /// What is wrong with it.
        why: String,
    },
}
