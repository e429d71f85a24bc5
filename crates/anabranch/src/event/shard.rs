//! What happens to a shard while it is read.

use anabranch_model::ids::{ShardId, StreamName};

/// What happened to a shard that this worker reads.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum ShardEvent {
    /// Reading began.
    Started {
        /// The stream.
        stream: StreamName,
        /// The shard.
        shard: ShardId,
    },
}
