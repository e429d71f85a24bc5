//! Encoding of journal entries: changes of metadata as JSON, puts in a compact form.
//!
//! ```text
//! change  0x01 | JSON
//! put     0x02 | stream | shard | first counter | arrival | records
//!              | (key len | data len | key | data)…
//! ```
//!
//! Numbers of a put have variable length: seven bits per byte, low bits first.

use crate::change::Change;
use crate::journal::JournalAppend;
use crate::shard_log::LogRecord;

const CHANGE: u8 = 1;
const PUT: u8 = 2;

/// A decoded entry.
pub(super) enum JournalEntry<'a> {
    /// A change of metadata.
    Change(Box<Change>),
    /// Records that a shard accepted.
    Put(PutEntry<'a>),
}

/// Records that one shard accepted at the same time.
#[derive(Debug, Clone, Copy)]
pub(super) struct PutEntry<'a> {
    pub(super) stream_id: u64,
    pub(super) shard: u32,
    pub(super) first_counter: u64,
    pub(super) arrival_ms: u64,
    records: u64,
    rest: &'a [u8],
}

pub(super) fn write_change(out: &mut Vec<u8>, change: &Change) {
    out.push(CHANGE);
    serde_json::to_writer(out, change).expect("texts and numbers are always JSON");
}

pub(super) fn write_put(out: &mut Vec<u8>, append: &JournalAppend<'_>) {
    out.push(PUT);
    let head = [
        append.stream_id,
        u64::from(append.shard),
        append.first_counter,
        append.arrival_ms,
        append.records.len() as u64,
    ];
    for number in head {
        write_number(out, number);
    }
    for record in append.records {
        write_number(out, record.partition_key.len() as u64);
        write_number(out, record.data.len() as u64);
        out.extend_from_slice(record.partition_key.as_bytes());
        out.extend_from_slice(record.data);
    }
}

pub(super) fn read(bytes: &[u8]) -> Result<JournalEntry<'_>, String> {
    match bytes.split_first() {
        Some((&CHANGE, json)) => serde_json::from_slice(json)
            .map(|change| JournalEntry::Change(Box::new(change)))
            .map_err(|problem| format!("cannot parse a change: {problem}")),
        Some((&PUT, put)) => {
            read_put(put).map(JournalEntry::Put).ok_or_else(|| "cannot parse a put".to_owned())
        }
        _ => Err("its kind is unknown".to_owned()),
    }
}

fn read_put(mut rest: &[u8]) -> Option<PutEntry<'_>> {
    let [stream_id, shard, first_counter, arrival_ms, records] = read_numbers(&mut rest)?;
    let shard = u32::try_from(shard).ok()?;
    Some(PutEntry { stream_id, shard, first_counter, arrival_ms, records, rest })
}

impl PutEntry<'_> {
    /// Returns the counter after the last record's, or `None` if it overflows.
    pub(super) fn end_counter(&self) -> Option<u64> {
        self.first_counter.checked_add(self.records)
    }

    /// Calls `take` with each record in order. Returns an error text if the records do not match
    /// the head.
    pub(super) fn for_each(self, mut take: impl FnMut(&LogRecord<'_>)) -> Result<(), String> {
        let mut rest = self.rest;
        for _ in 0..self.records {
            let record = read_record(&mut rest).ok_or("cannot parse a record of a put")?;
            take(&record);
        }
        if rest.is_empty() { Ok(()) } else { Err("a put is longer than its records".to_owned()) }
    }
}

fn read_record<'a>(rest: &mut &'a [u8]) -> Option<LogRecord<'a>> {
    let [key_len, data_len] = read_numbers(rest)?;
    let (key, behind) = rest.split_at_checked(usize::try_from(key_len).ok()?)?;
    let (data, behind) = behind.split_at_checked(usize::try_from(data_len).ok()?)?;
    *rest = behind;
    Some(LogRecord { partition_key: std::str::from_utf8(key).ok()?, data })
}

fn write_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

fn read_numbers<const N: usize>(rest: &mut &[u8]) -> Option<[u64; N]> {
    let mut numbers = [0; N];
    for number in &mut numbers {
        *number = read_number(rest)?;
    }
    Some(numbers)
}

fn read_number(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, behind) = rest.split_first()?;
        *rest = behind;
        let bits = u64::from(byte & 0x7f);
        // The tenth byte holds only one more bit.
        if shift == 63 && bits > 1 {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn puts_come_back_as_they_were(
            stream_id: u64,
            shard: u32,
            first_counter: u64,
            arrival_ms: u64,
            records in prop::collection::vec((".{0,20}", prop::collection::vec(any::<u8>(), 0..300)), 0..5),
        ) {
            let borrowed: Vec<_> = records
                .iter()
                .map(|(key, data)| LogRecord { partition_key: key, data })
                .collect();
            let append =
                JournalAppend { stream_id, shard, first_counter, arrival_ms, records: &borrowed };
            let mut bytes = Vec::new();
            write_put(&mut bytes, &append);
            let Ok(JournalEntry::Put(put)) = read(&bytes) else { panic!("not a put") };
            prop_assert_eq!((put.stream_id, put.shard), (stream_id, shard));
            prop_assert_eq!((put.first_counter, put.arrival_ms), (first_counter, arrival_ms));
            let mut back = Vec::new();
            put.for_each(|r| back.push((r.partition_key.to_owned(), r.data.to_vec()))).unwrap();
            prop_assert_eq!(back, records);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0u8..4) {
            let bytes = [&[kind], &bytes[..]].concat();
            if let Ok(JournalEntry::Put(put)) = read(&bytes) {
                let _ = put.for_each(|_| ());
            }
        }
    }
}
