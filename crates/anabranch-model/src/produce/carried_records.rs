//! User records that share one Kinesis record.

use super::outcome::Attempt;
use super::paged_queue::QueuedRecord;
use super::pending::PendingRecord;
use crate::aggregate::decode::{AggregateFrame, DecodedAggregate, decode_framed};
use crate::aggregate::encode::KinesisRecord;
use crate::hash::{HashKey, HashRange};
use crate::record::{PartitionKey, Record};
use crate::sequence::SequenceNumber;
use bytes::Bytes;
use std::sync::Arc;

/// User records of one Kinesis record, or others with the same outcome, in put order.
#[derive(Debug)]
pub enum CarriedRecords<T> {
    /// Each record has its own key and data.
    Unpacked(Vec<PendingRecord<T>>),
    /// Keys and data are only in the Kinesis record. None of these records was in an earlier one.
    Queued(Vec<QueuedRecord<T>>),
}

impl<T> CarriedRecords<T> {
    /// Returns the number of user records.
    pub fn len(&self) -> usize {
        match self {
            Self::Unpacked(records) => records.len(),
            Self::Queued(records) => records.len(),
        }
    }

    /// Returns true if there are no records.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the total size of the data, in bytes, without keys.
    pub fn data_bytes(&self) -> usize {
        match self {
            Self::Unpacked(records) => records.iter().map(|record| record.put.data.len()).sum(),
            Self::Queued(records) => records.iter().map(|record| record.data_len as usize).sum(),
        }
    }

    /// Returns when the oldest record was put.
    pub fn first_put_ms(&self) -> Option<u64> {
        match self {
            Self::Unpacked(records) => records.first().map(|record| record.put_ms),
            Self::Queued(records) => records.first().map(|record| record.put_ms),
        }
    }

    /// Returns the put number of the record at index `at`.
    ///
    /// # Panics
    ///
    /// If `at` is out of bounds.
    pub fn number(&self, at: usize) -> u64 {
        match self {
            Self::Unpacked(records) => records[at].number,
            Self::Queued(records) => records[at].number,
        }
    }

    /// Passes each ticket to `tell`, in put order, with the record's attempts in earlier Kinesis
    /// records. Keeps the allocated memory.
    #[inline]
    pub fn drain(&mut self, mut tell: impl FnMut(T, Option<Arc<Vec<Attempt>>>)) {
        match self {
            Self::Unpacked(records) => {
                for record in records.drain(..) {
                    tell(record.put.ticket, record.past);
                }
            }
            Self::Queued(records) => {
                for record in records.drain(..) {
                    tell(record.ticket, None);
                }
            }
        }
    }

    /// Returns true if the Kinesis record holds a single user record that must be sent alone,
    /// because one with others was refused.
    pub(super) fn is_alone(&self) -> bool {
        matches!(self, Self::Unpacked(records) if records.first().is_some_and(|first| first.alone))
    }

    /// Returns the range from the lowest to the highest hash.
    pub(super) fn hash_span(&self) -> HashRange {
        match self {
            Self::Unpacked(records) => hull(records.iter().map(|record| record.put.hash)),
            Self::Queued(records) => hull(records.iter().map(QueuedRecord::hash)),
        }
    }

    /// Returns the records, each with its own key and data. Decodes `container` where these are
    /// stored only there.
    pub(super) fn unpack(self, container: &KinesisRecord) -> Vec<PendingRecord<T>> {
        let noted = match self {
            Self::Unpacked(records) => return records,
            Self::Queued(noted) => noted,
        };
        let carrier = Record {
            sequence: SequenceNumber::default(),
            partition_key: container.partition_key.clone(),
            data: container.data.clone(),
            arrival_ms: 0,
        };
        let DecodedAggregate::Records(parts) =
            decode_framed(&carrier, AggregateFrame::Sound, HashRange::ALL)
        else {
            unreachable!("an aggregate that was encoded here can be decoded here")
        };
        // Copied: a record that waits for a long time must not keep a whole Kinesis record alive.
        let own = |data: &Bytes| Bytes::copy_from_slice(data);
        let records: Vec<_> = noted
            .into_iter()
            .zip(parts)
            .map(|(noted, part)| {
                noted.with(PartitionKey::from(part.partition_key.as_str()), own(&part.data))
            })
            .collect();
        assert_eq!(
            records.len(),
            container.records,
            "an aggregate contains the records that were \
                                                      put into it"
        );
        records
    }
}

fn hull(hashes: impl Iterator<Item = HashKey>) -> HashRange {
    let mut low = HashKey::MAX;
    let mut high = HashKey::MIN;
    for hash in hashes {
        low = low.min(hash);
        high = high.max(hash);
    }
    HashRange::new(low, high).unwrap_or(HashRange::ALL)
}
