//! Every change of metadata as a value.
//!
//! An operation plans a change, the journal keeps it, and one `apply` carries it out. Playing a
//! journal again runs the same `apply`, so a stream after a restart is the stream before it.

use anabranch_model::hash::{HashKey, HashRange};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A change of one stream's metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The stream's name.
    pub stream: String,
    /// When it happened, in milliseconds since 1970.
    pub at_ms: u64,
    /// What happened.
    pub what: ChangeKind,
}

/// What a change does. `until_ms` is when the passing state (CREATING, UPDATING, DELETING) ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeKind {
    /// The stream is created; one of the same name that is gone is forgotten.
    Create(Creation),
    /// The stream is deleted.
    Delete {
        /// When the stream is gone.
        until_ms: u64,
    },
    /// Shards are closed and others opened in their place.
    Reshard(Reshard),
    /// Records are kept for another time.
    Retain {
        /// The retention from now on.
        hours: u32,
    },
    /// The capacity mode changes.
    Mode {
        /// The mode from now on.
        mode: StreamMode,
        /// When the stream is ACTIVE again.
        until_ms: u64,
    },
    /// Tags are set.
    Tag {
        /// The tags to set, the others stay.
        tags: BTreeMap<String, String>,
    },
    /// Tags are removed.
    Untag {
        /// The keys to remove.
        keys: BTreeSet<String>,
    },
    /// Encryption is switched on with a key, or off.
    Encrypt {
        /// The key's id; none switches encryption off.
        key_id: Option<String>,
        /// When the stream is ACTIVE again.
        until_ms: u64,
    },
    /// The record maximum changes.
    RecordMax {
        /// The maximum from now on, in KiB.
        kib: u32,
        /// When the stream is ACTIVE again.
        until_ms: u64,
    },
    /// Shard-level metrics are switched on or off.
    Monitor {
        /// The metrics from now on.
        metrics: BTreeSet<String>,
    },
    /// A fan-out consumer is registered.
    Register {
        /// The consumer's name.
        name: String,
        /// Its ARN.
        arn: String,
        /// Its tags.
        tags: BTreeMap<String, String>,
        /// When it is ACTIVE.
        until_ms: u64,
    },
    /// A fan-out consumer is deregistered.
    Deregister {
        /// The consumer's name.
        name: String,
        /// When it is gone.
        until_ms: u64,
    },
    /// Tags of a consumer are set.
    TagConsumer {
        /// The consumer's name.
        name: String,
        /// The tags to set, the others stay.
        tags: BTreeMap<String, String>,
    },
    /// Tags of a consumer are removed.
    UntagConsumer {
        /// The consumer's name.
        name: String,
        /// The keys to remove.
        keys: BTreeSet<String>,
    },
}

/// A new stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Creation {
    /// The stream's number within the engine, never used twice.
    pub id: u64,
    /// The capacity mode.
    pub mode: StreamMode,
    /// The first shards.
    pub shards: Vec<NewShard>,
    /// The stream's tags.
    pub tags: BTreeMap<String, String>,
    /// The record maximum in KiB.
    pub record_max_kib: u32,
    /// When the stream is ACTIVE.
    pub until_ms: u64,
}

/// Shards that open and shards that close, at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reshard {
    /// The new shards, in the order of their indexes. One may be closed again by `closes`: going
    /// to another shard count takes several generations.
    pub opens: Vec<NewShard>,
    /// Indexes of the shards that close.
    pub closes: Vec<u32>,
    /// When the stream is ACTIVE again.
    pub until_ms: u64,
}

/// A shard that a change opens. Its index is its place in the stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewShard {
    /// The hash keys that it takes.
    #[serde(with = "range_as_text")]
    pub range: HashRange,
    /// Indexes of its parents: none, one (split) or two (merge).
    pub parents: Vec<u32>,
    /// The highest limb of its sequence numbers, above its parents'.
    pub high: u64,
}

/// How a stream's capacity is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StreamMode {
    /// The number of shards is set by calls.
    #[serde(rename = "PROVISIONED")]
    Provisioned,
    /// The service chooses the number of shards.
    #[serde(rename = "ON_DEMAND")]
    OnDemand,
}

/// Hash keys are 128 bits: JSON numbers can't hold them.
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
