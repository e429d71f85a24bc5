//! The decoder against KCL's rules, and against malformed input.

use super::*;
use crate::aggregate::encode::{AggregateBuilder, AggregateRecord};
use crate::sequence::SequenceNumber;
use proptest::prelude::*;

/// A length-delimited field.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let len = u8::try_from(bytes.len()).unwrap();
    assert!(len < 0x80);
    [&[number << 3 | 2, len], bytes].concat()
}

/// The magic, `message` and its digest.
fn framed(message: &[u8]) -> Vec<u8> {
    [MAGIC.as_slice(), message, &digest(message)].concat()
}

fn carrier(data: &[u8]) -> Record {
    Record {
        sequence: SequenceNumber::ZERO,
        partition_key: "carrier".into(),
        data: Bytes::copy_from_slice(data),
        arrival_ms: 1,
    }
}

fn decoded(data: &[u8], range: HashRange) -> DecodedAggregate {
    decode(&carrier(data), range)
}

/// Formats a result as short text: kind, then each record as key=data.
fn told(decoded: DecodedAggregate) -> String {
    let list = |records: UserRecords| {
        let one = |r: UserRecord| {
            let hash = r.explicit_hash_key.map_or(String::new(), |h| format!("@{h}"));
            format!(" {}{hash}={}", r.partition_key, String::from_utf8_lossy(&r.data))
        };
        records.map(one).collect::<String>()
    };
    match decoded {
        DecodedAggregate::Plain(why) => format!("plain {why:?}"),
        DecodedAggregate::Records(records) => format!("records{}", list(records)),
        DecodedAggregate::Misrouted { dropped, misrouted: stray } => {
            format!("dropped {dropped} by {stray}")
        }
        DecodedAggregate::Partial { kept, lost, why } => {
            format!("lost {lost} {why:?} kept{}", list(kept))
        }
    }
}

/// Two partition keys and two hash keys.
fn tables() -> Vec<u8> {
    [field(1, b"a"), field(1, b"b"), field(2, b"5"), field(2, b"007")].concat()
}

/// A record with the given fields, then its data.
fn record(fields: &[u8], data: &[u8]) -> Vec<u8> {
    field(3, &[fields, &field(3, data)].concat())
}

#[test]
fn what_has_no_frame_or_no_message_is_plain() {
    let check = |name: &str, data: &[u8], want: &str| {
        assert_eq!(told(decoded(data, HashRange::ALL)), want, "{name}");
    };
    check("nothing", b"", "plain NotFramed");
    check("half a magic", &MAGIC[..3], "plain NotFramed");
    check("the magic", &MAGIC, "plain NotFramed");
    check("text", b"hello, this is no aggregate", "plain NotFramed");
    check("an empty message", &framed(b""), "plain NotFramed");
    check("magic and 16 bytes", &[&MAGIC[..], &[0; 16]].concat(), "plain NotFramed");
    check("magic and 17 bytes", &[&MAGIC[..], &[0; 17]].concat(), "plain DigestMismatch");
    let mut sound = framed(&[tables(), record(&[8, 0], b"x")].concat());
    check("a sound one", &sound, "records a=x");
    *sound.last_mut().unwrap() ^= 1;
    check("a flipped bit in the digest", &sound, "plain DigestMismatch");
    *sound.last_mut().unwrap() ^= 1;
    sound[10] ^= 1;
    check("a flipped bit in the message", &sound, "plain DigestMismatch");
}

#[test]
fn the_frames_of_many_are_those_of_each_alone() {
    let sound = |data: &[u8]| framed(&[tables(), record(&[8, 0], data)].concat());
    let mut broken = sound(b"broken");
    broken[10] ^= 1;
    let kinds = [b"plain".to_vec(), sound(b"x"), MAGIC.to_vec(), broken, sound(&[b'y'; 90])];
    // More than one SIMD group, with every kind at every index.
    let records: Vec<Record> = (0..50).map(|at| carrier(&kinds[at * 7 % 5])).collect();
    for count in 0..records.len() {
        let some = &records[..count];
        let frames = frames(some);
        assert_eq!(frames.len(), count);
        for (record, frame) in some.iter().zip(frames) {
            let at_once = decode_framed(record, frame, HashRange::ALL);
            assert_eq!(at_once, decode(record, HashRange::ALL), "{count} records");
        }
    }
}

/// Messages with a matching digest; the tables come first unless the case says so.
#[test]
fn messages_are_read_as_the_java_library_reads_them() {
    let check = |name: &str, records: &[u8], want: &str| {
        let data = framed(&[&tables(), records].concat());
        assert_eq!(told(decoded(&data, HashRange::ALL)), want, "{name}");
    };
    let x = record(&[8, 0], b"x");
    let with = |extra: &[u8]| [x.as_slice(), extra].concat();
    check("no records", b"", "records");
    check("keys and hash keys", &record(&[8, 1, 16, 1], b"x"), "records b@7=x");
    check("fields in another order", &field(3, &[26, 1, b'x', 16, 0, 8, 1]), "records b@5=x");
    check("a field twice", &field(3, &[8, 0, 26, 1, b'x', 8, 1, 26, 1, b'y']), "records b=y");
    check("no data", &record(&[8, 0], b""), "records a=");
    check("data field missing", &field(3, &[8, 0]), "plain Malformed");
    check("key index missing", &field(3, &[26, 1, b'x']), "plain Malformed");
    check("one bad among good", &with(&field(3, &[8, 0])), "plain Malformed");
    check("unknown varint", &with(&[0x78, 1]), "records a=x");
    check("unknown 64 bits", &with(&[0x79, 0, 0, 0, 0, 0, 0, 0, 0]), "records a=x");
    check("unknown bytes", &with(&field(15, b"zz")), "records a=x");
    check("unknown group", &with(&[0x7b, 0x08, 1, 0x7c]), "records a=x");
    check("unknown 32 bits", &with(&[0x7d, 0, 0, 0, 0]), "records a=x");
    check("unknown in a record", &record(&[8, 0, 0x7d, 0, 0, 0, 0, 0x78, 9], b"x"), "records a=x");
    check("known number, other type", &with(&[0x08, 1, 0x18, 1]), "records a=x");
    check("end of no group", &with(&[0x7c]), "plain Malformed");
    check("wire type 6", &with(&[0x7e, 0]), "plain Malformed");
    check("field number 0", &with(&[0, 0]), "plain Malformed");
    check("cut short", &x[..x.len() - 1], "plain Malformed");
    check("data past their record", &field(3, &[8, 0, 26, 9, b'x']), "plain Malformed");
    let wide = [&[8][..], &[0x80; 9], &[0]].concat();
    check("a varint of ten bytes", &record(&wide, b"x"), "records a=x");
    let wider = [&[8][..], &[0x80; 10], &[0]].concat();
    check("a varint of eleven bytes", &record(&wider, b"x"), "plain Malformed");
    let tag = [&[8, 0][..], &field(4, &[field(1, b"k"), field(2, b"v")].concat())].concat();
    check("a tag", &record(&tag, b"x"), "records a=x");
    let keyless = [&[8, 0][..], &field(4, &field(2, b"v"))].concat();
    check("a tag without a key", &record(&keyless, b"x"), "plain Malformed");
}

#[test]
fn tables_may_follow_repeat_and_go_unused() {
    let check = |message: &[Vec<u8>], want: &str| {
        assert_eq!(told(decoded(&framed(&message.concat()), HashRange::ALL)), want);
    };
    let x = record(&[8, 1], b"x");
    check(&[x.clone(), tables()], "records b=x");
    check(&[field(1, b"a"), x.clone(), field(1, b"b")], "records b=x");
    check(&[field(1, b"a"), field(1, b"a"), x.clone()], "records a=x");
    check(&[field(1, b"a"), field(1, b"\xffb"), x], "records \u{fffd}b=x");
}

#[test]
fn a_record_that_points_nowhere_ends_the_aggregate_before_it() {
    let check = |name: &str, bad: &[u8], want: &str| {
        let good = |text: &[u8]| record(&[8, 0], text);
        let message =
            [tables(), field(2, b"x1"), good(b"1"), record(bad, b"2"), good(b"3")].concat();
        assert_eq!(told(decoded(&framed(&message), HashRange::ALL)), want, "{name}");
    };
    check("key index", &[8, 2], "lost 2 NoSuchKey kept a=1");
    check("hash key index", &[8, 0, 16, 3], "lost 2 NoSuchHashKey kept a=1");
    check("hash key text", &[8, 0, 16, 2], "lost 2 NotANumber kept a=1");
    let high_half = [8, 0x81, 0x80, 0x80, 0x80, 0x10];
    check("2^32 + 1 is index 1, as in KCL", &high_half, "records a=1 b=2 a=3");
}

#[test]
fn one_stray_hides_the_whole_aggregate() {
    let range = HashRange::new(HashKey(100), HashKey(200)).unwrap();
    let check = |hashes: &[u8], want: &str| {
        let table: Vec<u8> = ["99", "100", "150", "200", "201"]
            .iter()
            .flat_map(|h| field(2, h.as_bytes()))
            .collect();
        let records: Vec<u8> = hashes.iter().flat_map(|i| record(&[8, 0, 16, *i], b"")).collect();
        let data = framed(&[field(1, b"a"), table, records].concat());
        assert_eq!(told(decoded(&data, range)), want, "{hashes:?}");
    };
    check(&[1, 2, 3], "records a@100= a@150= a@200=");
    check(&[0, 2, 3], "dropped 3 by 0");
    check(&[2, 4, 2], "dropped 3 by 1");
    check(&[2, 3, 0], "dropped 3 by 2");
    // The first problem decides: a bad index keeps the records before it, a misrouted record none.
    check(&[2, 9, 0], "lost 2 NoSuchHashKey kept a@150=");
    check(&[2, 0, 9], "dropped 3 by 1");
}

#[test]
fn a_record_lies_at_its_explicit_hash_key_or_at_the_md5_of_its_key() {
    let of_a = HashKey::of_partition_key("a");
    let check = |start: u128, end: u128, fields: &[u8], inside: bool| {
        let range = HashRange::new(HashKey(start), HashKey(end)).unwrap();
        let data = framed(&[tables(), record(fields, b"x")].concat());
        let got = matches!(decoded(&data, range), DecodedAggregate::Records(_));
        assert_eq!(got, inside, "{range:?} {fields:?}");
    };
    check(of_a.0, of_a.0, &[8, 0], true);
    check(of_a.0 + 1, u128::MAX, &[8, 0], false);
    check(0, of_a.0 - 1, &[8, 0], false);
    check(0, 5, &[8, 0, 16, 0], true);
    check(6, u128::MAX, &[8, 0, 16, 0], false);
}

#[test]
fn hash_key_texts_are_numbers_as_java_reads_them() {
    for (text, want) in [
        ("0", HashKeyText::HashKey(HashKey(0))),
        ("-0", HashKeyText::HashKey(HashKey(0))),
        ("+7", HashKeyText::HashKey(HashKey(7))),
        ("000000000000000000000000000000000000000000000000007", HashKeyText::HashKey(HashKey(7))),
        ("340282366920938463463374607431768211455", HashKeyText::HashKey(HashKey::MAX)),
        ("340282366920938463463374607431768211456", HashKeyText::OutsideTheSpace),
        ("999999999999999999999999999999999999999999999999999999", HashKeyText::OutsideTheSpace),
        ("-1", HashKeyText::OutsideTheSpace),
        ("", HashKeyText::NotANumber),
        ("-", HashKeyText::NotANumber),
        ("+-1", HashKeyText::NotANumber),
        (" 1", HashKeyText::NotANumber),
        ("1e3", HashKeyText::NotANumber),
    ] {
        assert_eq!(HashKeyText::read(text.as_bytes()), want, "{text:?}");
    }
}

#[test]
fn a_hash_key_beyond_the_space_is_a_stray_even_without_a_range() {
    let message = [field(1, b"a"), field(2, b"-1"), record(&[8, 0, 16, 0], b"x")].concat();
    assert_eq!(told(decoded(&framed(&message), HashRange::ALL)), "dropped 1 by 0");
}

#[test]
fn an_aggregate_in_an_aggregate_stays_packed() {
    let inner = framed(&[tables(), record(&[8, 0], b"x")].concat());
    let message = [field(1, b"k"), record(&[8, 0], &inner)].concat();
    let DecodedAggregate::Records(mut records) = decoded(&framed(&message), HashRange::ALL) else {
        panic!("not taken apart");
    };
    assert_eq!(records.next().unwrap().data, inner);
    assert_eq!(records.next(), None);
}

#[test]
fn sub_records_are_slices_and_count_from_zero() {
    let message = [tables(), record(&[8, 0], b"one"), record(&[8, 1], b"two")].concat();
    let carrier = Record {
        sequence: "42".parse().unwrap(),
        partition_key: "carrier".into(),
        data: framed(&message).into(),
        arrival_ms: 77,
    };
    let DecodedAggregate::Records(records) = decode(&carrier, HashRange::ALL) else {
        panic!("not taken apart");
    };
    assert_eq!(records.len(), 2);
    let inside = carrier.data.as_ptr_range();
    for (sub, record) in records.enumerate() {
        assert_eq!((record.sub, record.aggregated), (sub as u64, true));
        assert_eq!((record.sequence, record.arrival_ms), (carrier.sequence, 77));
        assert!(inside.contains(&record.data.as_ptr()), "the data were copied");
    }
}

#[test]
fn what_is_kept_for_a_record_or_a_string_is_small() {
    assert_eq!((size_of::<RawRecord>(), size_of::<Span32>()), (20, 8));
}

/// A change to the message of a valid aggregate.
#[derive(Debug, Clone)]
enum Damage {
    Set(usize, u8),
    Insert(usize, u8),
    Remove(usize),
    CutAt(usize),
    Repeat(usize, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        4 => any::<(usize, u8)>().prop_map(|(at, byte)| Damage::Set(at, byte)),
        1 => any::<(usize, u8)>().prop_map(|(at, byte)| Damage::Insert(at, byte)),
        1 => any::<usize>().prop_map(Damage::Remove),
        1 => any::<usize>().prop_map(Damage::CutAt),
        1 => any::<(usize, usize)>().prop_map(|(from, to)| Damage::Repeat(from, to)),
    ]
}

fn damaged(mut message: Vec<u8>, damages: &[Damage]) -> Vec<u8> {
    for damage in damages {
        let len = message.len().max(1);
        match *damage {
            _ if message.is_empty() => {}
            Damage::Set(at, byte) => message[at % len] = byte,
            Damage::Insert(at, byte) => message.insert(at % len, byte),
            Damage::Remove(at) => drop(message.remove(at % len)),
            Damage::CutAt(at) => message.truncate(at % len),
            Damage::Repeat(from, to) => {
                let piece = message[from % len..(from % len + to % 40).min(len)].to_vec();
                message.extend_from_slice(&piece);
            }
        }
    }
    message
}

/// Drains a result and checks the invariants that hold for any input.
fn drawn(data: &[u8], range: HashRange) -> Result<(), TestCaseError> {
    let (records, lost) = match decoded(data, range) {
        DecodedAggregate::Plain(_) => return Ok(()),
        DecodedAggregate::Misrouted { dropped, misrouted: stray } => {
            prop_assert!(stray < dropped && dropped <= data.len() / 6);
            return Ok(());
        }
        DecodedAggregate::Records(records) => (records, 0),
        DecodedAggregate::Partial { kept, lost, .. } => {
            prop_assert!(lost > 0);
            (kept, lost)
        }
    };
    prop_assert!(records.len() + lost <= data.len() / 6);
    for record in records {
        prop_assert!(record.data.len() <= data.len());
        prop_assert!(range.contains(record.hash_key()));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn any_message_under_a_right_digest_is_harmless(
        message in proptest::collection::vec(any::<u8>(), 0..80),
    ) {
        drawn(&framed(&message), HashRange::ALL)?;
    }

    #[test]
    fn any_bytes_after_the_magic_are_harmless(
        rest in proptest::collection::vec(any::<u8>(), 0..80),
    ) {
        drawn(&[&MAGIC[..], &rest].concat(), HashRange::ALL)?;
    }

    #[test]
    fn damaged_aggregates_under_a_right_digest_are_harmless(
        given in proptest::collection::vec(
            ("[ab]{1,3}", proptest::option::of(any::<u128>()), 0_usize..20), 2..6),
        damages in proptest::collection::vec(damage(), 0..4),
        upper_half: bool,
    ) {
        let mut builder = AggregateBuilder::new();
        for (key, hash, len) in &given {
            let explicit_hash_key = hash.map(HashKey);
            let data = &[b'd'; 20][..*len];
            let entry = AggregateRecord { partition_key: key, explicit_hash_key, data };
            builder.add_within(&entry, usize::MAX);
        }
        let data = builder.close().unwrap().seal().data;
        let message = damaged(data[4..data.len() - DIGEST_BYTES].to_vec(), &damages);
        let middle = HashKey(1 << 127);
        let range = if upper_half {
            HashRange::new(middle, HashKey::MAX).unwrap()
        } else {
            HashRange::ALL
        };
        drawn(&framed(&message), range)?;
    }
}
