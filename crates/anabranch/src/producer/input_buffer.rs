//! Buffer of records accepted by puts and not yet taken by the driver, in order of acceptance.

use super::record::{NewRecord, PutError, check, cost};
use anabranch_model::hash::HashKey;
use anabranch_model::produce::RecordContent;

/// Records with at most this many bytes of key and data are copied into one contiguous buffer. The
/// putting thread then frees the original memory at once.
const COPIED_BYTES: usize = 512;
/// Maximum capacity in bytes that [`InputBuffer::clear`] keeps.
const KEPT_BYTES: usize = 1 << 20;
/// Maximum capacity in records that [`InputBuffer::clear`] keeps.
const KEPT_RECORDS: usize = 1 << 14;

/// Records that were put individually, as opposed to in a [`Bulk`](super::Bulk).
#[derive(Debug, Default)]
pub(super) struct InputBuffer {
    /// Location of each record, in order of acceptance.
    places: Vec<RecordLocation>,
    /// Keys and data of the copied records, each key before its data.
    bytes: Vec<u8>,
    /// Records that are not copied.
    large: Vec<NewRecord>,
}

/// Location of a record in an [`InputBuffer`].
#[derive(Debug, Clone, Copy)]
enum RecordLocation {
    /// Copied; starts at byte `from`.
    Copied { from: usize, key_len: u16, data_len: u16 },
    /// Not copied; the index in `large`.
    Large(usize),
}

/// A record small enough to be copied.
#[derive(Debug, Clone, Copy)]
pub(super) struct SmallRecord<'a> {
    key: &'a [u8],
    data: &'a [u8],
}

impl<'a> SmallRecord<'a> {
    /// Returns a record without an explicit hash key, or `None` if it is too large to be copied.
    #[inline]
    pub(super) fn of(key: &'a [u8], data: &'a [u8]) -> Option<Self> {
        (key.len() + data.len() <= COPIED_BYTES).then_some(Self { key, data })
    }

    /// Checks that the stream accepts the record. `max_bytes` is the stream's record maximum.
    #[inline]
    pub(super) fn check(&self, max_bytes: usize) -> Result<(), PutError> {
        check(self.key, self.data.len(), max_bytes)
    }

    /// Returns the bytes that the record occupies in the buffer.
    #[inline]
    pub(super) fn cost(&self) -> usize {
        cost(self.key.len(), self.data.len())
    }
}

impl InputBuffer {
    /// Returns the number of records.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Appends a record. Returns it if it was copied, so that the caller can drop it.
    #[inline]
    pub(super) fn push(&mut self, record: NewRecord) -> Option<NewRecord> {
        if record.explicit.is_none()
            && let Some(small) = SmallRecord::of(record.key.as_bytes(), &record.data)
        {
            self.copy(small);
            return Some(record);
        }
        self.places.push(RecordLocation::Large(self.large.len()));
        self.large.push(record);
        None
    }

    /// Appends a copy of a record.
    #[inline]
    pub(super) fn copy(&mut self, SmallRecord { key, data }: SmallRecord<'_>) {
        let len = |part: &[u8]| u16::try_from(part.len()).expect("small ones are shorter");
        let (key_len, data_len) = (len(key), len(data));
        self.places.push(RecordLocation::Copied { from: self.bytes.len(), key_len, data_len });
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(data);
    }

    /// Returns the key and data of record `at`.
    #[inline]
    pub(super) fn content(&self, at: usize) -> RecordContent<'_> {
        match self.places[at] {
            RecordLocation::Copied { from, key_len, data_len } => {
                let (key_len, data_len) = (usize::from(key_len), usize::from(data_len));
                RecordContent::Borrowed {
                    both: &self.bytes[from..from + key_len + data_len],
                    key_len,
                }
            }
            RecordLocation::Large(at) => {
                let NewRecord { key, data, .. } = &self.large[at];
                RecordContent::Shared { key, data }
            }
        }
    }

    /// Returns the explicit hash key of record `at`.
    #[inline]
    pub(super) fn explicit(&self, at: usize) -> Option<HashKey> {
        match self.places[at] {
            RecordLocation::Copied { .. } => None,
            RecordLocation::Large(at) => self.large[at].explicit,
        }
    }

    /// Returns the partition keys, in record order.
    pub(super) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.places.iter().map(|place| match *place {
            RecordLocation::Copied { from, key_len, .. } => {
                &self.bytes[from..from + usize::from(key_len)]
            }
            RecordLocation::Large(at) => self.large[at].key.as_bytes(),
        })
    }

    /// Returns the bytes that record `at` occupies in the buffer.
    #[inline]
    pub(super) fn cost(&self, at: usize) -> usize {
        match self.places[at] {
            RecordLocation::Copied { key_len, data_len, .. } => {
                cost(key_len.into(), data_len.into())
            }
            RecordLocation::Large(at) => self.large[at].cost(),
        }
    }

    /// Removes all records. Keeps the memory up to [`KEPT_BYTES`] and [`KEPT_RECORDS`].
    pub(super) fn clear(&mut self) {
        self.places.clear();
        self.bytes.clear();
        self.large.clear();
        self.places.shrink_to(KEPT_RECORDS);
        self.bytes.shrink_to(KEPT_BYTES);
        self.large.shrink_to(KEPT_RECORDS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn records() -> impl Strategy<Value = Vec<NewRecord>> {
        let key = prop_oneof!["[a-zé]{1,8}", "k{400,600}"];
        let data = prop_oneof![0_usize..200, 400_usize..700, Just(70_000)];
        let record = (key, data, proptest::option::weighted(0.2, any::<u128>()), any::<u8>());
        let record = record.prop_map(|(key, len, explicit, byte)| {
            let record = NewRecord::new(key, vec![byte; len]);
            explicit.into_iter().fold(record, |one, hash| one.with_explicit_hash_key(HashKey(hash)))
        });
        proptest::collection::vec(record, 0..30)
    }

    proptest! {
        #[test]
        fn each_record_comes_out_as_it_was_put(rounds in proptest::collection::vec(records(), 1..4)) {
            let mut handed = InputBuffer::default();
            for records in rounds {
                for record in records.clone() {
                    let small = record.key.len() + record.data.len() <= COPIED_BYTES;
                    let is_copied = small && record.explicit.is_none();
                    prop_assert_eq!(handed.push(record).is_some(), is_copied);
                }
                prop_assert_eq!(handed.len(), records.len());
                let keys: Vec<&[u8]> = handed.keys().collect();
                for (at, record) in records.iter().enumerate() {
                    let (key, data): (&[u8], &[u8]) = match handed.content(at) {
                        RecordContent::Shared { key, data } => (key.as_bytes(), data),
                        RecordContent::Borrowed { both, key_len } => both.split_at(key_len),
                    };
                    prop_assert_eq!(key, record.key.as_bytes());
                    prop_assert_eq!(keys[at], key);
                    prop_assert_eq!(data, &record.data[..]);
                    prop_assert_eq!(handed.explicit(at), record.explicit);
                    prop_assert_eq!(handed.cost(at), record.cost());
                }
                handed.clear();
                prop_assert!(handed.len() == 0 && handed.large.is_empty() && handed.bytes.is_empty());
            }
        }
    }

    #[test]
    fn a_moment_of_very_much_leaves_no_memory_behind() {
        let mut handed = InputBuffer::default();
        let (small, large) =
            (NewRecord::new("key", vec![1; 100]), NewRecord::new("key", vec![1; 600]));
        for _ in 0..2 * KEPT_RECORDS {
            assert!(handed.push(small.clone()).is_some() && handed.push(large.clone()).is_none());
        }
        handed.clear();
        let kept = (handed.places.capacity(), handed.bytes.capacity(), handed.large.capacity());
        assert_eq!(kept, (KEPT_RECORDS, KEPT_BYTES, KEPT_RECORDS), "what is usual is used again");
    }
}
