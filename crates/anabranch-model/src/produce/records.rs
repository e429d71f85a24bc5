//! The records of a container.

use super::outcome::Attempt;
use super::pending::Pending;
use super::written::Noted;
use crate::aggregate::decode::{Decoded, Frame, decode_framed};
use crate::aggregate::encode::Container;
use crate::hash::{HashKey, HashRange};
use crate::record::{Key, Record};
use crate::sequence::SequenceNumber;
use bytes::Bytes;
use std::sync::Arc;

/// The records of a container, or others that have one fate, in put order.
#[derive(Debug)]
pub enum Records<T> {
    /// Each has its own key and data.
    Loose(Vec<Pending<T>>),
    /// Their keys and data are in the container only. They were in no other container.
    Noted(Vec<Noted<T>>),
}

impl<T> Records<T> {
    /// How many these are.
    pub fn len(&self) -> usize {
        match self {
            Self::Loose(records) => records.len(),
            Self::Noted(records) => records.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of their data.
    pub fn data_bytes(&self) -> usize {
        match self {
            Self::Loose(records) => records.iter().map(|record| record.put.data.len()).sum(),
            Self::Noted(records) => records.iter().map(|record| record.data_len as usize).sum(),
        }
    }

    /// When the oldest one was put.
    pub fn first_put_ms(&self) -> Option<u64> {
        match self {
            Self::Loose(records) => records.first().map(|record| record.put_ms),
            Self::Noted(records) => records.first().map(|record| record.put_ms),
        }
    }

    /// The number of the record at this place.
    pub fn number(&self, at: usize) -> u64 {
        match self {
            Self::Loose(records) => records[at].number,
            Self::Noted(records) => records[at].number,
        }
    }

    /// Gives each ticket to `tell`, in their order, with the attempts of containers that held the
    /// record before. The memory is kept.
    #[inline]
    pub fn drain(&mut self, mut tell: impl FnMut(T, Option<Arc<Vec<Attempt>>>)) {
        match self {
            Self::Loose(records) => {
                for record in records.drain(..) {
                    tell(record.put.ticket, record.past);
                }
            }
            Self::Noted(records) => {
                for record in records.drain(..) {
                    tell(record.ticket, None);
                }
            }
        }
    }

    /// Whether the container was made for one record that was refused with others.
    pub(super) fn is_alone(&self) -> bool {
        matches!(self, Self::Loose(records) if records.first().is_some_and(|first| first.alone))
    }

    /// From the lowest to the highest hash.
    pub(super) fn hull(&self) -> HashRange {
        match self {
            Self::Loose(records) => hull(records.iter().map(|record| record.put.hash)),
            Self::Noted(records) => hull(records.iter().map(Noted::hash)),
        }
    }

    /// The records, each with its own key and data. What is in the container only is read back.
    pub(super) fn loosen(self, container: &Container) -> Vec<Pending<T>> {
        let noted = match self {
            Self::Loose(records) => return records,
            Self::Noted(noted) => noted,
        };
        let carrier = Record {
            sequence: SequenceNumber::default(),
            partition_key: container.partition_key.clone(),
            data: container.data.clone(),
            arrival_ms: 0,
        };
        let Decoded::Records(parts) = decode_framed(&carrier, Frame::Sound, HashRange::ALL) else {
            unreachable!("a container that was built here can be read here")
        };
        // Copies: a record that waits for long must not keep a whole container alive.
        let own = |data: &Bytes| Bytes::copy_from_slice(data);
        let records: Vec<_> = noted
            .into_iter()
            .zip(parts)
            .map(|(noted, part)| {
                noted.with(Key::from(part.partition_key.as_str()), own(&part.data))
            })
            .collect();
        assert_eq!(records.len(), container.records, "a container holds what was put into it");
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
