//! Records that were accepted and have no outcome yet.

use super::outcome::Attempt;
use super::stopped_keys::OrderingKey;
use crate::aggregate::encode::RawAggregateRecord;
use crate::hash::HashKey;
use crate::record::PartitionKey;
use bytes::Bytes;
use std::sync::Arc;

/// Maximum overhead of a record in an aggregate, in bytes, without an explicit hash key.
const FRAMING_BYTES: usize = 20;
/// Maximum overhead of an explicit hash key, in bytes.
const EXPLICIT_BYTES: usize = 50;

/// A record that is offered to the machine.
#[derive(Debug, Clone, Copy)]
pub struct OfferedRecord<'a> {
    /// Partition key and data.
    pub content: RecordContent<'a>,
    /// The explicit hash key, or the MD5 hash of the partition key.
    pub hash: HashKey,
    /// True if `hash` is the user's explicit hash key.
    pub is_explicit: bool,
}

/// Partition key and data of an offered record.
#[derive(Debug, Clone, Copy)]
pub enum RecordContent<'a> {
    /// Shared memory: keeping the record only clones handles.
    Shared {
        /// Partition key.
        key: &'a PartitionKey,
        /// Data of the record.
        data: &'a Bytes,
    },
    /// Borrowed memory: keeping the record copies it.
    Borrowed {
        /// The key in UTF-8, followed by the data.
        both: &'a [u8],
        /// Length of the key in bytes, at most `both.len()`.
        key_len: usize,
    },
}

impl<'a> RecordContent<'a> {
    /// Returns the bytes of the key and of the data.
    #[inline]
    pub(super) fn bytes(&self) -> (&'a [u8], &'a [u8]) {
        match *self {
            Self::Shared { key, data } => (key.as_bytes(), data),
            Self::Borrowed { both, key_len } => both.split_at(key_len),
        }
    }

    /// Returns an owned key and data.
    pub(super) fn keep(&self) -> (PartitionKey, Bytes) {
        if let Self::Shared { key, data } = *self {
            return (key.clone(), data.clone());
        }
        let (key, data) = self.bytes();
        (read_key(key), Bytes::copy_from_slice(data))
    }
}

impl OfferedRecord<'_> {
    /// Returns the key whose order the record belongs to.
    pub(super) fn key_id(&self) -> OrderingKey {
        let key = match self.content {
            RecordContent::Shared { key, .. } => key.clone(),
            RecordContent::Borrowed { both, key_len } => read_key(&both[..key_len]),
        };
        OrderingKey { key, explicit: self.is_explicit.then_some(self.hash) }
    }

    /// Returns the maximum size of the record in an aggregate, in bytes.
    #[inline]
    pub(super) fn framed_bytes(&self) -> usize {
        let (key, data) = self.content.bytes();
        framed_bytes(key.len() + data.len(), self.is_explicit)
    }

    /// Returns the record as a pending one, with an owned key and data.
    pub(super) fn pending<T>(&self, number: u64, put_ms: u64, ticket: T) -> PendingRecord<T> {
        let Self { content, hash, is_explicit } = *self;
        let (key, data) = content.keep();
        let put = AcceptedRecord { key, hash, is_explicit, data, ticket };
        PendingRecord { number, put_ms, put, maybe_landed: false, alone: false, past: None }
    }
}

/// Reads a key back from a page.
pub(super) fn read_key(bytes: &[u8]) -> PartitionKey {
    PartitionKey::from(std::str::from_utf8(bytes).expect("a key is written down whole"))
}

/// A record that was put.
#[derive(Debug, Clone)]
pub struct AcceptedRecord<T> {
    /// Partition key.
    pub key: PartitionKey,
    /// The explicit hash key, or the MD5 hash of the partition key.
    pub hash: HashKey,
    /// True if `hash` is the user's explicit hash key.
    pub is_explicit: bool,
    /// Data of the record.
    pub data: Bytes,
    /// Ticket that receives the outcome.
    pub ticket: T,
}

impl<T> AcceptedRecord<T> {
    /// Returns the user's explicit hash key.
    pub fn explicit(&self) -> Option<HashKey> {
        self.is_explicit.then_some(self.hash)
    }
}

/// A record that waits for its outcome.
#[derive(Debug, Clone)]
pub struct PendingRecord<T> {
    /// Put number: the position among all puts of the producer. It decides the order everywhere.
    pub number: u64,
    /// Time of the put, by the producer's clock.
    pub put_ms: u64,
    /// The record and its ticket.
    pub put: AcceptedRecord<T>,
    /// True if the record may be in the stream already, through a lost reply or a misrouted Kinesis
    /// record.
    pub maybe_landed: bool,
    /// True if the record is sent in a Kinesis record of its own, because one with others was
    /// refused.
    pub alone: bool,
    /// Attempts of the Kinesis records that held it and were unpacked.
    pub past: Option<Arc<Vec<Attempt>>>,
}

impl<T> PendingRecord<T> {
    /// Returns the key whose order the record belongs to.
    pub(super) fn key_id(&self) -> OrderingKey {
        OrderingKey { key: self.put.key.clone(), explicit: self.put.explicit() }
    }

    /// Returns the maximum size of the record in an aggregate, in bytes.
    pub(super) fn framed_bytes(&self) -> usize {
        framed_bytes(self.put.key.len() + self.put.data.len(), self.put.is_explicit)
    }

    /// Returns the record as an aggregate entry.
    pub(super) fn entry(&self) -> RawAggregateRecord<'_> {
        RawAggregateRecord {
            key: self.put.key.as_bytes(),
            explicit_hash_key: self.put.explicit(),
            data: &self.put.data,
        }
    }
}

/// Returns the maximum size of a record in an aggregate, in bytes. `bytes` is the size of its key
/// and data.
#[inline]
pub(super) fn framed_bytes(bytes: usize, is_explicit: bool) -> usize {
    let explicit = if is_explicit { EXPLICIT_BYTES } else { 0 };
    bytes + FRAMING_BYTES + explicit
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::encode::AggregateBuilder;

    #[test]
    fn records_take_no_more_in_a_container_than_is_set_aside_for_them() {
        let check = |keys: usize, key_len: usize, data_len: usize, explicit: Option<HashKey>| {
            let mut builder = AggregateBuilder::new();
            let mut set_aside = 0;
            for number in 0..300 {
                let key = format!("{:0key_len$}", number % keys);
                let put = AcceptedRecord {
                    key: key.into(),
                    hash: explicit.unwrap_or(HashKey(0)),
                    is_explicit: explicit.is_some(),
                    data: vec![7; data_len].into(),
                    ticket: (),
                };
                let (number, put_ms, past) = (number as u64, 0, None);
                let record =
                    PendingRecord { number, put_ms, put, maybe_landed: false, alone: false, past };
                set_aside += record.framed_bytes();
                builder.add_raw_within(&record.entry(), usize::MAX);
                assert!(builder.size() <= set_aside + 20, "{keys} {key_len} {data_len}");
            }
        };
        for explicit in [None, Some(HashKey::MAX)] {
            for data_len in [0, 1, 100, 127, 128, 20_000] {
                check(1, 3, data_len, explicit);
                check(300, 3, data_len, explicit);
                check(300, 256, data_len, explicit);
            }
        }
    }
}
