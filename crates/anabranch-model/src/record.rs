//! Records: as the service stores them, and as a handler sees them.

use crate::hash::HashKey;
use crate::position::Position;
use crate::sequence::SequenceNumber;
use bytes::Bytes;
use std::fmt;

/// A partition key: shared bytes that are known to be UTF-8. Cheap to clone.
///
/// A key taken from an aggregate is a slice of the aggregate, so it costs no copy; it keeps the
/// aggregate's buffer alive, as the record's data does anyway.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Bytes);

/// Why bytes are not a partition key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a partition key must be UTF-8, this one is not after byte {valid_up_to}")]
pub struct NotAKey {
    /// How many bytes from the start are valid UTF-8.
    pub valid_up_to: usize,
}

impl Key {
    /// Takes shared bytes as a key without a copy.
    pub fn from_utf8(bytes: Bytes) -> Result<Self, NotAKey> {
        match std::str::from_utf8(&bytes) {
            Ok(_) => Ok(Self(bytes)),
            Err(error) => Err(NotAKey { valid_up_to: error.valid_up_to() }),
        }
    }

    /// The key as text. It checks the bytes again, which is cheaper than it is worth `unsafe` to
    /// avoid; where bytes do, use [`Key::as_bytes`].
    #[expect(clippy::missing_panics_doc, reason = "the bytes were checked when the key was made")]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("a key is made of checked UTF-8 only")
    }

    /// The key's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The key's length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the key is the empty string. The service refuses it; an aggregate can hold it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&str> for Key {
    fn from(key: &str) -> Self {
        Self(Bytes::copy_from_slice(key.as_bytes()))
    }
}

impl From<String> for Key {
    fn from(key: String) -> Self {
        Self(Bytes::from(key))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// A record as the service stores and returns it. It may be an aggregate of many user records.
///
/// The service uses an explicit hash key to choose the shard and forgets it, so there is none here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The record's place in its shard.
    pub sequence: SequenceNumber,
    /// The key that the producer gave to the service.
    pub partition_key: Key,
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
    pub partition_key: Key,
    /// The user's explicit hash key, which only an aggregate preserves.
    pub explicit_hash_key: Option<HashKey>,
    /// The payload, a slice of what carried it.
    pub data: Bytes,
    /// When the service took the carrying record, in milliseconds since 1970.
    pub arrival_ms: u64,
}

impl UserRecord {
    /// The checkpoint that says: everything up to and including this record is done.
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
    fn a_key_is_a_slice_of_its_carrier_and_always_utf8() {
        let carrier = Bytes::from_static("..ключ..".as_bytes());
        let key = Key::from_utf8(carrier.slice(2..10)).unwrap();
        assert_eq!((key.as_str(), key.len()), ("ключ", 8));
        assert_eq!(key.as_bytes().as_ptr(), carrier[2..].as_ptr());
        assert_eq!(Key::from_utf8(carrier.slice(2..9)), Err(NotAKey { valid_up_to: 6 }));
        assert!(Key::from_utf8(Bytes::new()).unwrap().is_empty());
    }

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
