//! The operations of the API by name.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

macro_rules! operations {
    ($($name:ident),* $(,)?) => {
        /// An operation of the API.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[expect(missing_docs, reason = "each is the API's operation of that name")]
        pub enum Operation { $($name),* }

        impl Operation {
            /// Every operation that the engine knows.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Returns the operation's name in the API.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }
        }
    };
}

operations! {
    CreateStream, DeleteStream, DescribeStream, DescribeStreamSummary, DescribeLimits,
    DescribeAccountSettings, ListStreams, ListShards, PutRecord, PutRecords, GetShardIterator,
    GetRecords, SplitShard, MergeShards, UpdateShardCount, UpdateStreamMode,
    IncreaseStreamRetentionPeriod, DecreaseStreamRetentionPeriod, RegisterStreamConsumer,
    DeregisterStreamConsumer, DescribeStreamConsumer, ListStreamConsumers, SubscribeToShard,
    AddTagsToStream, RemoveTagsFromStream, ListTagsForStream, TagResource, UntagResource,
    ListTagsForResource, StartStreamEncryption, StopStreamEncryption, UpdateMaxRecordSize,
    EnableEnhancedMonitoring, DisableEnhancedMonitoring,
}

/// Error for a name that is no operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no such operation")]
pub struct UnknownOperation;

impl FromStr for Operation {
    type Err = UnknownOperation;

    fn from_str(name: &str) -> Result<Self, UnknownOperation> {
        Self::ALL.iter().copied().find(|operation| operation.name() == name).ok_or(UnknownOperation)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
