//! Where records come from: polled, or pushed by enhanced fan-out.

pub(super) mod poll;

use crate::stream::api::ChildShard;

/// Why fetching ended.
#[derive(Debug)]
pub(super) enum FetchEnd {
    /// The closed shard has no more records.
    ShardEnd(Vec<ChildShard>),
    /// The service says that it has no such shard.
    Missing,
    /// It was told to stop.
    Stopped,
}
