//! Events of shards that are being read.

use anabranch_model::lease::{Checkpoint, LeaseKey};
use anabranch_model::position::Position;
use anabranch_model::stuck_detector::{ReadPhase, WatchdogAction};
use std::sync::Arc;
use std::time::Duration;

/// An event of a shard that this worker reads.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum ShardEvent {
    /// Reading began.
    Started {
        /// Stream and id of the shard.
        shard: Arc<LeaseKey>,
        /// Checkpoint from which reading continues.
        from: Checkpoint,
    },
    /// Records arrived.
    Fetched {
        /// Stream and id of the shard.
        shard: Arc<LeaseKey>,
        /// Number of Kinesis records; an aggregate counts as one.
        records: usize,
        /// Age of the newest of them relative to the shard's newest record.
        behind_latest: Duration,
        /// Duration of the call; `None` for a subscription event.
        took: Option<Duration>,
    },
    /// The service returned no records because of an error. The call is retried after a pause.
    FetchFailed {
        /// Stream and id of the shard.
        shard: Arc<LeaseKey>,
        /// Error message.
        error: String,
        /// Consecutive failures.
        failures: u32,
        /// Pause before the next attempt.
        retry_in: Duration,
    },
    /// An iterator had expired. A new one was requested behind the last record received.
    IteratorRenewed {
        /// Stream and id of the shard.
        shard: Arc<LeaseKey>,
    },
    /// The shard was read too late. Records between these positions are past the stream's
    /// retention, and those that were not read are lost. No record is lost if none was written
    /// there.
    RetentionGap {
        /// Stream and id of the shard.
        shard: Arc<LeaseKey>,
        /// Position up to which everything was read.
        after: Position,
        /// Position of the first record that still exists; `None` if none does.
        to: Option<Position>,
    },
    /// An aggregate contains a record of another shard, so none of its records is delivered. Its
    /// producer sends all of them again.
    AggregateMisrouted {
        /// Stream and id of the shard.
        shard: Arc<LeaseKey>,
        /// Position of the aggregate.
        at: Position,
        /// Number of user records in it.
        records: usize,
    },
    /// An aggregate is a duplicate according to its deduplication tag, so none of its records is
    /// delivered.
    DuplicateDropped {
        /// Stream and id of the shard.
        shard: Arc<LeaseKey>,
        /// Position of the duplicate.
        at: Position,
        /// Number of user records in it.
        records: usize,
    },
    /// The rest of an aggregate is unreadable.
    AggregateUnreadable {
        /// Stream and id of the shard.
        shard: Arc<LeaseKey>,
        /// Position of the aggregate.
        at: Position,
        /// Number of user records lost.
        records: usize,
    },
    /// The handler failed or panicked. The same records are delivered again after a pause.
    HandlerFailed {
        /// Stream and id of the shard.
        shard: Arc<LeaseKey>,
        /// Position of the first record of the call.
        at: Position,
        /// Error message.
        error: String,
        /// Consecutive failures.
        failures: u32,
        /// Pause before the next attempt.
        retry_in: Duration,
    },
    /// Another callback of the user's code, such as one of a shard processor, failed or panicked.
    CallbackFailed {
        /// Stream and id of the shard.
        shard: Arc<LeaseKey>,
        /// Name of the callback.
        call: &'static str,
        /// Error message.
        error: String,
    },
    /// The handler failed too often, and the whole record was stored as a dead letter.
    DeadLettered {
        /// Stream and id of the shard.
        shard: Arc<LeaseKey>,
        /// Position of the record.
        at: Position,
        /// Last error of the handler.
        error: String,
    },
    /// A dead letter could not be stored. Storing it is retried after a pause.
    DeadLetterFailed {
        /// Stream and id of the shard.
        shard: Arc<LeaseKey>,
        /// Position of the record.
        at: Position,
        /// Error message.
        error: String,
    },
    /// A checkpoint was written.
    Checkpointed {
        /// Stream and id of the shard.
        shard: Arc<LeaseKey>,
        /// The checkpoint.
        at: Checkpoint,
    },
    /// A checkpoint could not be written.
    CheckpointFailed {
        /// Stream and id of the shard.
        shard: Arc<LeaseKey>,
        /// Error message.
        error: String,
    },
    /// The shard has made no progress for longer than allowed, although there is work to do.
    Stuck {
        /// Stream and id of the shard.
        shard: Arc<LeaseKey>,
        /// Phase in which it is stuck.
        phase: ReadPhase,
        /// Time without progress.
        stuck_for: Duration,
        /// Action of the watchdog.
        action: WatchdogAction,
    },
    /// Metrics since the last such event, reported every few seconds.
    Metrics {
        /// Stream and id of the shard.
        shard: Arc<LeaseKey>,
        /// User records processed.
        records: u64,
        /// Size of those records in bytes, keys included.
        bytes: u64,
        /// Handler calls.
        calls: u64,
        /// Total duration of those calls, retries included.
        busy: Duration,
        /// Lag of the last reply behind the shard's newest record. `None` if unknown.
        behind_latest: Option<Duration>,
        /// Age of the last record passed to the handler. `None` if unknown.
        age: Option<Duration>,
    },
    /// Reading ended.
    Stopped {
        /// Stream and id of the shard.
        shard: Arc<LeaseKey>,
        /// Reason.
        why: ShardStopReason,
    },
}

/// Reason why the reading of a shard ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShardStopReason {
    /// The shard is closed, and all its records are processed.
    Ended,
    /// The shard no longer exists. Its records that were not read are lost.
    Missing,
    /// The worker released the shard, for another worker or because it is stopping.
    Drained,
    /// The lease was lost.
    Lost,
    /// The shard cannot be read now.
    Failed,
    /// The shard was stuck, and restarts did not help.
    Stuck,
}
