//! Keys and data of waiting records, written to pages. Reading many small records is faster if they
//! are contiguous, and they need no allocation of their own.

use super::pending::{
    AcceptedRecord, OfferedRecord, PendingRecord, RecordContent, framed_bytes, read_key,
};
use crate::aggregate::encode::RawAggregateRecord;
use crate::hash::HashKey;
use crate::record::PartitionKey;
use bytes::Bytes;
use std::collections::VecDeque;

/// Size of a page in bytes. A record never spans pages.
const PAGE_BYTES: usize = 16 * 1024;
/// Records with more bytes of key and data than this are kept apart and not written to a page.
const LARGE_BYTES: usize = 4 * 1024;
/// Maximum number of spare pages.
const SPARE_PAGES: usize = 256;

/// A record whose key and data are stored elsewhere: on a page, or in a Kinesis record.
#[derive(Debug, Clone)]
pub struct QueuedRecord<T> {
    /// Put number: the position among all puts of the producer.
    pub(super) number: u64,
    pub(super) put_ms: u64,
    /// Hash key in two halves, which avoids 16-byte alignment.
    hash: [u64; 2],
    /// Ticket that receives the outcome.
    pub(super) ticket: T,
    pub(super) data_len: u32,
    key_len: u16,
    /// True if `hash` is the user's explicit hash key.
    is_explicit: bool,
    /// True if key and data are kept in `PagedQueue::large`.
    is_apart: bool,
}

impl<T> QueuedRecord<T> {
    #[inline]
    pub(super) fn hash(&self) -> HashKey {
        let [high, low] = self.hash;
        HashKey(u128::from(high) << 64 | u128::from(low))
    }

    fn explicit(&self) -> Option<HashKey> {
        self.is_explicit.then(|| self.hash())
    }

    /// Returns the maximum size of the record in an aggregate, in bytes.
    #[inline]
    pub(super) fn framed_bytes(&self) -> usize {
        framed_bytes(usize::from(self.key_len) + self.data_len as usize, self.is_explicit)
    }

    /// Returns the record with its key and data, which were read back.
    pub(super) fn with(self, key: PartitionKey, data: Bytes) -> PendingRecord<T> {
        let (hash, is_explicit) = (self.hash(), self.is_explicit);
        let put = AcceptedRecord { key, hash, is_explicit, data, ticket: self.ticket };
        let Self { number, put_ms, .. } = self;
        PendingRecord { number, put_ms, put, maybe_landed: false, alone: false, past: None }
    }
}

/// Unused pages, shared by all queues.
pub(super) type SparePages = Vec<Vec<u8>>;

/// Records of a queue that are written to pages, in put order.
#[derive(Debug)]
pub(super) struct PagedQueue<T> {
    noted: VecDeque<QueuedRecord<T>>,
    /// Keys and data, each key before its data.
    pages: VecDeque<Vec<u8>>,
    /// Offset of the first record on the first page.
    start: usize,
    /// Keys and data of large and of empty records, in put order.
    large: VecDeque<(PartitionKey, Bytes)>,
}

/// Read position in the pages.
#[derive(Debug, Clone, Copy)]
struct PageCursor {
    page: usize,
    at: usize,
    apart: usize,
}

impl<T> Default for PagedQueue<T> {
    fn default() -> Self {
        let (noted, pages, apart) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        Self { noted, pages, start: 0, large: apart }
    }
}

impl<T> PagedQueue<T> {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.noted.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.noted.len()
    }

    /// Returns the oldest record.
    #[inline]
    pub(super) fn first(&self) -> Option<&QueuedRecord<T>> {
        self.noted.front()
    }

    /// Returns the put numbers of the records.
    #[cfg(test)]
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.noted.iter().map(|noted| noted.number)
    }

    /// Appends a record.
    #[inline]
    pub(super) fn push(
        &mut self,
        offer: &OfferedRecord<'_>,
        number: u64,
        put_ms: u64,
        ticket: T,
        spare: &mut SparePages,
    ) {
        let (key, data) = offer.content.bytes();
        let bytes = key.len() + data.len();
        let is_apart = bytes > LARGE_BYTES || bytes == 0;
        if is_apart {
            self.large.push_back(offer.content.keep());
        } else {
            let page = match self.pages.back_mut() {
                Some(page) if page.len() + bytes <= PAGE_BYTES => page,
                _ => {
                    // The first page grows with the queue; later pages have full capacity from the
                    // start.
                    let bytes = if self.pages.is_empty() { 0 } else { PAGE_BYTES };
                    let page = spare.pop().unwrap_or_else(|| Vec::with_capacity(bytes));
                    self.pages.push_back(page);
                    self.pages.back_mut().expect("a page was just added")
                }
            };
            match offer.content {
                RecordContent::Borrowed { both, .. } => page.extend_from_slice(both),
                RecordContent::Shared { .. } => {
                    page.extend_from_slice(key);
                    page.extend_from_slice(data);
                }
            }
        }
        #[expect(clippy::cast_possible_truncation, reason = "both halves are taken")]
        let hash = [(offer.hash.0 >> 64) as u64, offer.hash.0 as u64];
        self.noted.push_back(QueuedRecord {
            number,
            put_ms,
            hash,
            ticket,
            data_len: u32::try_from(data.len()).expect("no stream takes a record of 4 GiB"),
            key_len: u16::try_from(key.len()).expect("no stream takes a key of 64 KiB"),
            is_explicit: offer.is_explicit,
            is_apart,
        });
    }

    /// Returns the records as aggregate entries, oldest first.
    pub(super) fn entries(&self) -> impl Iterator<Item = RawAggregateRecord<'_>> {
        let mut place = PageCursor { page: 0, at: self.start, apart: 0 };
        self.noted.iter().map(move |noted| {
            let (key, data) = self.read(noted, &mut place);
            RawAggregateRecord { key, explicit_hash_key: noted.explicit(), data }
        })
    }

    /// Reads the key and data of a record, and advances to the next one.
    #[inline]
    fn read(&self, noted: &QueuedRecord<T>, place: &mut PageCursor) -> (&[u8], &[u8]) {
        if noted.is_apart {
            let (key, data) = &self.large[place.apart];
            place.apart += 1;
            return (key.as_bytes(), data);
        }
        if place.at == self.pages[place.page].len() {
            place.page += 1;
            place.at = 0;
        }
        let bytes = &self.pages[place.page][place.at..];
        let (key, rest) = bytes.split_at(usize::from(noted.key_len));
        let data = &rest[..noted.data_len as usize];
        place.at += key.len() + data.len();
        (key, data)
    }

    /// Takes the `count` oldest records, whose keys and data have already been copied elsewhere.
    /// `into` is an empty vector, used for the result or for later records.
    pub(super) fn take_first(
        &mut self,
        count: usize,
        mut into: Vec<QueuedRecord<T>>,
        spare: &mut SparePages,
    ) -> Vec<QueuedRecord<T>> {
        if count == self.noted.len() {
            // The vectors are swapped, and no record is moved.
            self.large.clear();
            self.start = 0;
            for page in self.pages.drain(..) {
                give_back(page, spare);
            }
            return std::mem::replace(&mut self.noted, into.into()).into();
        }
        for _ in 0..count {
            let Some(noted) = self.noted.pop_front() else { break };
            self.forget(&noted, spare);
            into.push(noted);
        }
        into
    }

    /// Takes the oldest record, with a copy of its key and data.
    pub(super) fn pop(&mut self, spare: &mut SparePages) -> Option<PendingRecord<T>> {
        let noted = self.noted.pop_front()?;
        let mut place = PageCursor { page: 0, at: self.start, apart: 0 };
        let (key, data) = if noted.is_apart {
            self.large[0].clone()
        } else {
            let (key, data) = self.read(&noted, &mut place);
            (read_key(key), Bytes::copy_from_slice(data))
        };
        self.forget(&noted, spare);
        Some(noted.with(key, data))
    }

    /// Drops the key and data of the record that was just taken from the front.
    fn forget(&mut self, noted: &QueuedRecord<T>, spare: &mut SparePages) {
        if noted.is_apart {
            self.large.pop_front();
            return;
        }
        if self.start == self.pages[0].len() {
            self.next_page(spare);
        }
        self.start += usize::from(noted.key_len) + noted.data_len as usize;
        if self.start == self.pages[0].len() {
            self.next_page(spare);
        }
    }

    /// Returns the first page to the spare pages.
    fn next_page(&mut self, spare: &mut SparePages) {
        self.start = 0;
        if let Some(page) = self.pages.pop_front() {
            give_back(page, spare);
        }
    }
}

fn give_back(mut page: Vec<u8>, spare: &mut SparePages) {
    if spare.len() < SPARE_PAGES {
        page.clear();
        spare.push(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Push { key: usize, data: usize, is_explicit: bool },
        Pop,
        Take(usize),
    }

    proptest! {
        // Empty, small, page-filling and large records.
        #[test]
        fn what_is_written_is_read_back_in_its_order(
            steps in proptest::collection::vec(
                prop_oneof![
                    6 => (
                        1_usize..30,
                        prop_oneof![
                            0_usize..3, 90_usize..110, 4_000_usize..4_200, 9_000_usize..9_100
                        ],
                        any::<bool>(),
                    ).prop_map(|(key, data, is_explicit)| Step::Push { key, data, is_explicit }),
                    2 => Just(Step::Pop),
                    1 => (0_usize..40).prop_map(Step::Take),
                ], 0..200),
        ) {
            let mut spare = SparePages::new();
            let mut written: PagedQueue<u64> = PagedQueue::default();
            let mut model: VecDeque<(PartitionKey, Bytes, HashKey, bool, u64)> = VecDeque::new();
            for (number, step) in (0..).zip(steps) {
                match step {
                    Step::Push { key, data, is_explicit } => {
                        let key = PartitionKey::from("k".repeat(key));
                        let data = Bytes::from(vec![u8::try_from(number % 251).unwrap(); data]);
                        let hash = HashKey(u128::MAX / 7 * u128::from(number % 7));
                        let both = [key.as_bytes(), &data].concat();
                        let content = if number % 2 == 0 {
                            RecordContent::Shared { key: &key, data: &data }
                        } else {
                            RecordContent::Borrowed { both: &both, key_len: key.len() }
                        };
                        let offer = OfferedRecord { content, hash, is_explicit };
                        written.push(&offer, number, number + 5, number, &mut spare);
                        model.push_back((key, data, hash, is_explicit, number));
                    }
                    Step::Pop => {
                        let popped = written.pop(&mut spare);
                        prop_assert_eq!(popped.is_some(), !model.is_empty());
                        if let (Some(record), Some(want)) = (popped, model.pop_front()) {
                            let PendingRecord { number, put_ms, put, .. } = record;
                            prop_assert_eq!(put_ms, number + 5);
                            prop_assert_eq!(put.ticket, number);
                            let got = (put.key, put.data, put.hash, put.is_explicit, number);
                            prop_assert_eq!(got, want);
                        }
                    }
                    Step::Take(count) => {
                        let count = count.min(written.len());
                        let taken = written.take_first(count, Vec::new(), &mut spare);
                        let numbers: Vec<u64> = taken.iter().map(|noted| noted.number).collect();
                        let want: Vec<u64> = model.drain(..count).map(|record| record.4).collect();
                        prop_assert_eq!(numbers, want);
                    }
                }
                prop_assert_eq!(written.len(), model.len());
                prop_assert!(written.pages.len() <= model.len().max(1), "pages are given back");
                for (entry, (key, data, hash, is_explicit, _)) in written.entries().zip(&model) {
                    prop_assert_eq!(entry.key, key.as_bytes());
                    prop_assert_eq!(entry.data, &data[..]);
                    prop_assert_eq!(entry.explicit_hash_key, is_explicit.then_some(*hash));
                }
            }
        }
    }
}
