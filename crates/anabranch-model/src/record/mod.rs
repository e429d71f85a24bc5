//! Records: as the service stores them, and as a handler sees them.

mod key;

pub use key::{InvalidPartitionKey, PartitionKey};

use crate::hash::HashKey;
use crate::position::Position;
use crate::sequence::SequenceNumber;
use bytes::Bytes;

/// A record as the service stores and returns it. It may be an aggregate of many user records.
///
/// The service uses an explicit hash key to choose the shard and forgets it, so there is none here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The record's place in its shard.
    pub sequence: SequenceNumber,
    /// The key that the producer gave to the service.
    pub partition_key: PartitionKey,
    /// The payload, shared with the reply that it came in.
    pub data: Bytes,
    /// When the service took the record, in milliseconds since 1970.
    pub arrival_ms: u64,
}

/// A record as a handler sees it: a plain record, or one part of an aggregate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserRecord {
    /// The sequence number of the record that carried this one.
    pub sequence: SequenceNumber,
    /// The place inside the aggregate, from 0; 0 for a plain record.
    pub sub: u64,
    /// Whether an aggregate carried this record.
    pub aggregated: bool,
    /// The user's own key, not that of the aggregate.
    pub partition_key: PartitionKey,
    /// The user's explicit hash key, which only an aggregate preserves.
    pub explicit_hash_key: Option<HashKey>,
    /// The payload, a slice of what carried it.
    pub data: Bytes,
    /// When the service took the carrying record, in milliseconds since 1970.
    pub arrival_ms: u64,
}

impl UserRecord {
    /// The checkpoint that says: everything up to and including this record is done.
    #[inline]
    pub fn position(&self) -> Position {
        Position::At { sequence: self.sequence, sub: self.sub }
    }

    /// Where the record lies in the hash key space.
    pub fn hash_key(&self) -> HashKey {
        HashKey::effective(self.partition_key.as_str(), self.explicit_hash_key)
    }
}

impl From<Record> for UserRecord {
    /// Takes the record as a plain one.
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
