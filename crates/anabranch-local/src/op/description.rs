//! Shards as replies describe them.

use crate::stream::{ShardState, Topology};
use anabranch_model::hash::HashRange;
use serde::Serialize;

/// The range of hash keys of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct HashKeyRange {
    pub starting_hash_key: String,
    pub ending_hash_key: String,
}

/// The range of sequence numbers of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct SequenceNumberRange {
    pub starting_sequence_number: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ending_sequence_number: Option<String>,
}

/// A shard in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct ShardDescription {
    pub shard_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_shard_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adjacent_parent_shard_id: Option<String>,
    pub hash_key_range: HashKeyRange,
    pub sequence_number_range: SequenceNumberRange,
}

/// A child of a closed shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct ChildShard {
    pub shard_id: String,
    pub parent_shards: Vec<String>,
    pub hash_key_range: HashKeyRange,
}

impl From<HashRange> for HashKeyRange {
    fn from(range: HashRange) -> Self {
        Self {
            starting_hash_key: range.start().to_string(),
            ending_hash_key: range.end().to_string(),
        }
    }
}

impl Topology {
    /// Returns the description of a shard for lists.
    pub(crate) fn describe(&self, state: &ShardState) -> ShardDescription {
        let shard = &state.shard;
        let mut parents = self.parent_names(state).into_iter();
        ShardDescription {
            shard_id: shard.id.to_string(),
            parent_shard_id: parents.next(),
            adjacent_parent_shard_id: parents.next(),
            hash_key_range: shard.range.into(),
            sequence_number_range: SequenceNumberRange {
                starting_sequence_number: shard.starting_number().to_string(),
                ending_sequence_number: state.closed_ms.map(|_| shard.ending_number().to_string()),
            },
        }
    }

    /// Returns the children of a closed shard, as a reader gets them at the end of the shard.
    pub(crate) fn child_shards(&self, state: &ShardState) -> Vec<ChildShard> {
        let children = state.children.iter().map(|index| {
            let child = &self.shards[*index as usize];
            ChildShard {
                shard_id: child.shard.id.to_string(),
                parent_shards: self.parent_names(child),
                hash_key_range: child.shard.range.into(),
            }
        });
        children.collect()
    }

    fn parent_names(&self, state: &ShardState) -> Vec<String> {
        let parents = state.shard.parents.iter();
        parents.map(|index| self.shards[*index as usize].shard.id.to_string()).collect()
    }
}
