//! Any message under a right digest: reading it must not panic, and what was read must come back
//! when it is written and read again.

#![no_main]

use anabranch_model::aggregate::MAGIC;
use anabranch_model::aggregate::decode::{Decoded, decode};
use anabranch_model::aggregate::digest::digest;
use anabranch_model::aggregate::encode::{Builder, Entry, Room};
use anabranch_model::hash::{HashKey, HashRange};
use anabranch_model::record::{Record, UserRecord};
use anabranch_model::sequence::SequenceNumber;
use libfuzzer_sys::fuzz_target;

fn carrier(data: Vec<u8>) -> Record {
    Record {
        sequence: SequenceNumber::ZERO,
        partition_key: "a".into(),
        data: data.into(),
        arrival_ms: 0,
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((choice, message)) = input.split_first() else { return };
    let range = if choice % 2 == 0 {
        HashRange::ALL
    } else {
        HashRange::new(HashKey(0), HashKey(u128::MAX / 2)).expect("0 is below the middle")
    };
    // The digest is made right, or nothing would ever get past it.
    let framed = carrier([MAGIC.as_slice(), message, &digest(message)].concat());
    let records = match decode(&framed, range) {
        Decoded::Records(records) | Decoded::Partial { kept: records, .. } => records,
        Decoded::Plain(_) | Decoded::OutOfRange { .. } => return,
    };
    let records: Vec<UserRecord> = records.collect();
    let mut builder = Builder::new();
    for record in &records {
        assert!(range.contains(record.hash_key()));
        let entry = Entry {
            partition_key: record.partition_key.as_str(),
            explicit_hash_key: record.explicit_hash_key,
            data: &record.data,
        };
        assert_eq!(builder.add_within(&entry, usize::MAX), Room::Taken);
    }
    if records.len() > 1 {
        let size = builder.size();
        let again = builder.close().expect("records are in").seal();
        assert_eq!(again.data.len(), size);
        let Decoded::Records(out) = decode(&carrier(again.data.to_vec()), range) else {
            panic!("a written aggregate was not taken apart");
        };
        assert!(out.eq(records), "other records came back");
    }
});
