//! Records: Kinesis records as the service stores them, and user records as a handler sees them.

mod key;

pub use key::{InvalidPartitionKey, PartitionKey};

use crate::hash::HashKey;
use crate::position::Position;
use crate::sequence::SequenceNumber;
use bytes::Bytes;

/// A record as the service stores and returns it. It may be an aggregate of many user records.
///
/// It has no explicit hash key, because the service uses that only to choose the shard and does not
/// store it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Sequence number in the shard.
    pub sequence: SequenceNumber,
    /// Partition key of the put request.
    pub partition_key: PartitionKey,
    /// Data, shared with the reply that contained it.
    pub data: Bytes,
    /// Arrival time at the service, in milliseconds since the Unix epoch.
    pub arrival_ms: u64,
}

/// A record as a handler sees it: a plain record, or one part of an aggregate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserRecord {
    /// Sequence number of the Kinesis record that carried this one.
    pub sequence: SequenceNumber,
    /// Index in the aggregate, from 0; 0 for a plain record.
    pub sub: u64,
    /// True if an aggregate carried this record.
    pub aggregated: bool,
    /// The user's own key, not that of the aggregate.
    pub partition_key: PartitionKey,
    /// The user's explicit hash key, which only an aggregate preserves.
    pub explicit_hash_key: Option<HashKey>,
    /// Data, a slice of the Kinesis record that carried it.
    pub data: Bytes,
    /// Arrival time of the carrying record at the service, in milliseconds since the Unix epoch.
    pub arrival_ms: u64,
}

impl UserRecord {
    /// Returns the checkpoint at this record: everything up to and including it is processed.
    #[inline]
    pub fn position(&self) -> Position {
        Position::At { sequence: self.sequence, sub: self.sub }
    }

    /// Returns the effective hash key of the record.
    pub fn hash_key(&self) -> HashKey {
        HashKey::effective(self.partition_key.as_str(), self.explicit_hash_key)
    }
}

impl From<Record> for UserRecord {
    /// Converts a plain record.
    #[inline]
    fn from(record: Record) -> Self {
        Self {
            sequence: record.sequence,
            sub: 0,
            aggregated: false,
            partition_key: record.partition_key,
            explicit_hash_key: None,
            data: record.data,
            arrival_ms: record.arrival_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_record_has_sub_zero_and_lies_at_its_keys_md5() {
        let record = Record {
            sequence: "7".parse().unwrap(),
            partition_key: "a".into(),
            data: Bytes::from_static(b"x"),
            arrival_ms: 5,
        };
        let user = UserRecord::from(record.clone());
        assert_eq!(user.position(), Position::At { sequence: record.sequence, sub: 0 });
        assert_eq!(user.hash_key(), HashKey::of_partition_key("a"));
        assert!(!user.aggregated);
        let elsewhere = UserRecord { explicit_hash_key: Some(HashKey(3)), ..user };
        assert_eq!(elsewhere.hash_key(), HashKey(3));
    }
}
