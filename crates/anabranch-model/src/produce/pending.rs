//! A record that was accepted and has no outcome yet.

use super::outcome::Attempt;
use super::stopped_keys::OrderingKey;
use crate::aggregate::encode::RawAggregateRecord;
use crate::hash::HashKey;
use crate::record::PartitionKey;
use bytes::Bytes;
use std::sync::Arc;

/// Bytes that a record takes in an aggregate beside its key and data, at the most, without an
/// explicit hash key.
const FRAMING_BYTES: usize = 20;
/// What an explicit hash key adds, at the most.
const EXPLICIT_BYTES: usize = 50;

/// A record that is offered to the machine.
#[derive(Debug, Clone, Copy)]
pub struct OfferedRecord<'a> {
    /// The partition key and the data.
    pub content: RecordContent<'a>,
    /// Where the record lies: the explicit hash key, or the MD5 of the key.
    pub hash: HashKey,
    /// Whether that is the user's explicit hash key.
    pub is_explicit: bool,
}

/// The partition key and the data of a record that is offered.
#[derive(Debug, Clone, Copy)]
pub enum RecordContent<'a> {
    /// In memory that can be shared.
    Shared {
        /// The key.
        key: &'a PartitionKey,
        /// The data.
        data: &'a Bytes,
    },
    /// In memory that is lent: whoever keeps them copies them.
    Borrowed {
        /// The key, in UTF-8, and the data behind it.
        both: &'a [u8],
        /// Bytes of the key: not more than there are.
        key_len: usize,
    },
}

impl<'a> RecordContent<'a> {
    /// The bytes of the key and of the data.
    #[inline]
    pub(super) fn bytes(&self) -> (&'a [u8], &'a [u8]) {
        match *self {
            Self::Shared { key, data } => (key.as_bytes(), data),
            Self::Borrowed { both, key_len } => both.split_at(key_len),
        }
    }

    /// The key and the data, to keep.
    pub(super) fn keep(&self) -> (PartitionKey, Bytes) {
        if let Self::Shared { key, data } = *self {
            return (key.clone(), data.clone());
        }
        let (key, data) = self.bytes();
        (read_key(key), Bytes::copy_from_slice(data))
    }
}

impl OfferedRecord<'_> {
    /// The key that its order belongs to.
    pub(super) fn key_id(&self) -> OrderingKey {
        let key = match self.content {
            RecordContent::Shared { key, .. } => key.clone(),
            RecordContent::Borrowed { both, key_len } => read_key(&both[..key_len]),
        };
        OrderingKey { key, explicit: self.is_explicit.then_some(self.hash) }
    }

    /// What it takes in a container, at the most.
    #[inline]
    pub(super) fn framed_bytes(&self) -> usize {
        let (key, data) = self.content.bytes();
        framed_bytes(key.len() + data.len(), self.is_explicit)
    }

    /// The record as it waits, with its own hold on its key and data.
    pub(super) fn pending<T>(&self, number: u64, put_ms: u64, ticket: T) -> PendingRecord<T> {
        let Self { content, hash, is_explicit } = *self;
        let (key, data) = content.keep();
        let put = AcceptedRecord { key, hash, is_explicit, data, ticket };
        PendingRecord { number, put_ms, put, maybe_landed: false, alone: false, past: None }
    }
}

/// A key that was written down.
pub(super) fn read_key(bytes: &[u8]) -> PartitionKey {
    PartitionKey::from(std::str::from_utf8(bytes).expect("a key is written down whole"))
}

/// A record that was put.
#[derive(Debug, Clone)]
pub struct AcceptedRecord<T> {
    /// The partition key.
    pub key: PartitionKey,
    /// Where the record lies: the explicit hash key, or the MD5 of the key.
    pub hash: HashKey,
    /// Whether that is the user's explicit hash key.
    pub is_explicit: bool,
    /// The data.
    pub data: Bytes,
    /// Whom to tell the outcome.
    pub ticket: T,
}

impl<T> AcceptedRecord<T> {
    /// The user's explicit hash key.
    pub fn explicit(&self) -> Option<HashKey> {
        self.is_explicit.then_some(self.hash)
    }
}

/// A record that waits for its outcome.
#[derive(Debug, Clone)]
pub struct PendingRecord<T> {
    /// Its place among all puts of the producer. It decides every order.
    pub number: u64,
    /// When it was put.
    pub put_ms: u64,
    /// The record and its ticket.
    pub put: AcceptedRecord<T>,
    /// Whether it may be in the stream already, through a lost reply or a stray container.
    pub maybe_landed: bool,
    /// Whether it goes in a container of its own, because one with others was refused.
    pub alone: bool,
    /// The attempts of containers that held it and were taken apart.
    pub past: Option<Arc<Vec<Attempt>>>,
}

impl<T> PendingRecord<T> {
    /// The key that its order belongs to.
    pub(super) fn key_id(&self) -> OrderingKey {
        OrderingKey { key: self.put.key.clone(), explicit: self.put.explicit() }
    }

    /// What it takes in a container, at the most.
    pub(super) fn framed_bytes(&self) -> usize {
        framed_bytes(self.put.key.len() + self.put.data.len(), self.put.is_explicit)
    }

    /// As a part of an aggregate.
    pub(super) fn entry(&self) -> RawAggregateRecord<'_> {
        RawAggregateRecord {
            key: self.put.key.as_bytes(),
            explicit_hash_key: self.put.explicit(),
            data: &self.put.data,
        }
    }
}

/// What a record takes in a container, at the most, by the bytes of its key and data.
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
