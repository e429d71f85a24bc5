//! What happens to a shard while it is read.

use anabranch_model::lease::{Checkpoint, LeaseKey};
use anabranch_model::position::Position;
use anabranch_model::stuck_detector::{ReadPhase, WatchdogAction};
use std::sync::Arc;

/// What happened to a shard that this worker reads.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum ShardEvent {
    /// Reading began.
    Started {
        /// Which shard.
        shard: Arc<LeaseKey>,
        /// Up to where it was done before.
        from: Checkpoint,
    },
    /// Records came.
    Fetched {
        /// Which shard.
        shard: Arc<LeaseKey>,
        /// How many, aggregates counted as one.
        records: usize,
        /// How old the newest of them is against the shard's newest, in milliseconds.
        behind_latest: u64,
        /// How long the call took, in milliseconds; `None` for what was pushed.
        took: Option<u64>,
    },
    /// The service did not give records. They are asked for again after a pause.
    FetchFailed {
        /// Which shard.
        shard: Arc<LeaseKey>,
        /// What it said.
        error: String,
        /// How often in a row.
        failures: u32,
        /// The pause, in milliseconds.
        retry_in: u64,
    },
    /// An iterator was too old, and another one was asked for behind the last record that came.
    IteratorRenewed {
        /// Which shard.
        shard: Arc<LeaseKey>,
    },
    /// The shard was read too late: what came between these places and was not read is past the
    /// stream's retention, and lost. It may be nothing, if nothing came there.
    RetentionGap {
        /// Which shard.
        shard: Arc<LeaseKey>,
        /// Everything up to here was read.
        after: Position,
        /// The first record that is still there; `None` if none is.
        to: Option<Position>,
    },
    /// An aggregate holds a record of another shard, so nothing of it is delivered. Its producer
    /// sends all of it again.
    AggregateMisrouted {
        /// Which shard.
        shard: Arc<LeaseKey>,
        /// Where.
        at: Position,
        /// How many records.
        records: usize,
    },
    /// An aggregate came a second time, as its producer's mark says, so nothing of this copy is
    /// delivered.
    DuplicateDropped {
        /// Which shard.
        shard: Arc<LeaseKey>,
        /// Where the second copy is.
        at: Position,
        /// How many records.
        records: usize,
    },
    /// The rest of an aggregate can't be read.
    AggregateUnreadable {
        /// Which shard.
        shard: Arc<LeaseKey>,
        /// Where.
        at: Position,
        /// How many records are lost.
        records: usize,
    },
    /// The handler failed, or panicked. The same records come again after a pause.
    HandlerFailed {
        /// Which shard.
        shard: Arc<LeaseKey>,
        /// The first record of the call.
        at: Position,
        /// What it said.
        error: String,
        /// How often in a row.
        failures: u32,
        /// The pause, in milliseconds.
        pause_ms: u64,
    },
    /// Another call of the user's code failed or panicked: what is told a shard processor.
    CallbackFailed {
        /// Which shard.
        shard: Arc<LeaseKey>,
        /// Which call.
        call: &'static str,
        /// What it said.
        error: String,
    },
    /// The handler failed too often, and the record was put aside whole.
    DeadLettered {
        /// Which shard.
        shard: Arc<LeaseKey>,
        /// The record.
        at: Position,
        /// What the handler said last.
        error: String,
    },
    /// A record could not be put aside. It is tried again after a pause.
    DeadLetterFailed {
        /// Which shard.
        shard: Arc<LeaseKey>,
        /// The record.
        at: Position,
        /// What happened.
        error: String,
    },
    /// The row says up to where the shard is done.
    Checkpointed {
        /// Which shard.
        shard: Arc<LeaseKey>,
        /// Up to where.
        at: Checkpoint,
    },
    /// A checkpoint was not written.
    CheckpointFailed {
        /// Which shard.
        shard: Arc<LeaseKey>,
        /// Why.
        error: String,
    },
    /// It stands still for longer than it may, although there is something to do.
    Stuck {
        /// Which shard.
        shard: Arc<LeaseKey>,
        /// At what.
        phase: ReadPhase,
        /// For how long, in milliseconds.
        for_ms: u64,
        /// What is done about it.
        action: WatchdogAction,
    },
    /// What was handled since the last time, told every few seconds.
    Metrics {
        /// Which shard.
        shard: Arc<LeaseKey>,
        /// Records.
        records: u64,
        /// Their bytes, keys included.
        bytes: u64,
        /// Runs of records that were handed to the handler.
        calls: u64,
        /// Milliseconds that those took, retries included.
        busy_ms: u64,
        /// How far the last reply was from the newest record, in milliseconds.
        behind_ms: Option<u64>,
        /// How old the record is that the handler was given last, in milliseconds.
        age_ms: Option<u64>,
    },
    /// Reading ended.
    Stopped {
        /// Which shard.
        shard: Arc<LeaseKey>,
        /// Why.
        why: ShardStopReason,
    },
}

/// Why the reading of a shard ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShardStopReason {
    /// Every record of the closed shard is done.
    Ended,
    /// The shard is no longer there, with what was not read of it.
    Missing,
    /// It was asked to, for another worker or because this one stops.
    Drained,
    /// The lease was lost.
    Lost,
    /// It can't be read now.
    Failed,
    /// It stood still, and restarts did not help.
    Stuck,
}
