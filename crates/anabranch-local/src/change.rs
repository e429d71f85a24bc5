//! Changes of metadata as values.
//!
//! An operation plans a change, the journal keeps it, and one `apply` carries it out. Replaying a
//! journal runs the same `apply`, so a stream is the same after a restart as before it.

use anabranch_model::hash::{HashKey, HashRange};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A change of one stream's metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The stream's name.
    pub stream: String,
    /// Time of the change, in milliseconds since 1970.
    pub at_ms: u64,
    /// The kind of change, with its parameters.
    pub what: ChangeKind,
}

/// The kind of a change. `until_ms` is the time at which the transitional state (CREATING,
/// UPDATING, DELETING) ends, in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeKind {
    /// The stream is created. It replaces a deleted stream of the same name.
    Create(Creation),
    /// The stream is deleted.
    Delete {
        /// Time at which the stream no longer exists, in milliseconds since 1970.
        until_ms: u64,
    },
    /// Shards are closed and others are opened in their place.
    Reshard(Reshard),
    /// The retention period changes.
    Retain {
        /// The new retention period, in hours.
        hours: u32,
    },
    /// The capacity mode changes.
    Mode {
        /// The new mode.
        mode: StreamMode,
        /// Time at which the stream is ACTIVE again, in milliseconds since 1970.
        until_ms: u64,
    },
    /// Tags of the stream are set.
    Tag {
        /// Tags to set. All other tags are kept.
        tags: BTreeMap<String, String>,
    },
    /// Tags of the stream are removed.
    Untag {
        /// Keys of the tags to remove.
        keys: BTreeSet<String>,
    },
    /// Encryption is switched on with a key, or off.
    Encrypt {
        /// The id of the key; `None` switches encryption off.
        key_id: Option<String>,
        /// Time at which the stream is ACTIVE again, in milliseconds since 1970.
        until_ms: u64,
    },
    /// The maximum record size changes.
    RecordMax {
        /// The new maximum, in KiB.
        kib: u32,
        /// Time at which the stream is ACTIVE again, in milliseconds since 1970.
        until_ms: u64,
    },
    /// Shard-level metrics are switched on or off.
    Monitor {
        /// All metrics that are on after the change.
        metrics: BTreeSet<String>,
    },
    /// A fan-out consumer is registered.
    Register {
        /// The consumer's name.
        name: String,
        /// The consumer's ARN.
        arn: String,
        /// The consumer's tags.
        tags: BTreeMap<String, String>,
        /// Time at which the consumer is ACTIVE, in milliseconds since 1970.
        until_ms: u64,
    },
    /// A fan-out consumer is deregistered.
    Deregister {
        /// The consumer's name.
        name: String,
        /// Time at which the consumer no longer exists, in milliseconds since 1970.
        until_ms: u64,
    },
    /// Tags of a consumer are set.
    TagConsumer {
        /// The consumer's name.
        name: String,
        /// Tags to set. All other tags are kept.
        tags: BTreeMap<String, String>,
    },
    /// Tags of a consumer are removed.
    UntagConsumer {
        /// The consumer's name.
        name: String,
        /// Keys of the tags to remove.
        keys: BTreeSet<String>,
    },
}

/// A new stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Creation {
    /// The stream's number within the engine, never reused.
    pub id: u64,
    /// The capacity mode.
    pub mode: StreamMode,
    /// The initial shards.
    pub shards: Vec<NewShard>,
    /// The stream's tags.
    pub tags: BTreeMap<String, String>,
    /// The maximum record size in KiB.
    pub record_max_kib: u32,
    /// Time at which the stream is ACTIVE, in milliseconds since 1970.
    pub until_ms: u64,
}

/// Shards that open and close at the same time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reshard {
    /// The new shards, in the order of their indexes. `closes` may name one of them again: changing
    /// the shard count takes several generations.
    pub opens: Vec<NewShard>,
    /// Indexes of the shards that close.
    pub closes: Vec<u32>,
    /// Time at which the stream is ACTIVE again, in milliseconds since 1970.
    pub until_ms: u64,
}

/// A shard that a change opens. Its index is its position in the stream's list of shards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewShard {
    /// The range of hash keys that the shard covers.
    #[serde(with = "range_as_text")]
    pub range: HashRange,
    /// Indexes of its parents: none, one (split) or two (merge).
    pub parents: Vec<u32>,
    /// The high limb of its sequence numbers, above those of its parents.
    pub high: u64,
}

/// A stream's capacity mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StreamMode {
    /// The number of shards is set by calls.
    #[serde(rename = "PROVISIONED")]
    Provisioned,
    /// The service chooses the number of shards.
    #[serde(rename = "ON_DEMAND")]
    OnDemand,
}

/// Serialization of a hash range as decimal text. Hash keys have 128 bits, which JSON numbers
/// cannot hold.
mod range_as_text {
    use super::{HashKey, HashRange};
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(range: &HashRange, out: S) -> Result<S::Ok, S::Error> {
        (range.start().to_string(), range.end().to_string()).serialize(out)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<HashRange, D::Error> {
        let (start, end) = <(String, String)>::deserialize(from)?;
        let start: HashKey = start.parse().map_err(D::Error::custom)?;
        let end: HashKey = end.parse().map_err(D::Error::custom)?;
        HashRange::new(start, end).ok_or_else(|| D::Error::custom("a range that ends early"))
    }
}
