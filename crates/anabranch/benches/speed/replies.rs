//! Canned replies, correct in form and in the values that a client checks.

use crate::sink::Request;
use anabranch_model::aggregate::encode::{AggregateBuilder, AggregateRecord};
use anabranch_model::cbor::{CborCursor, MalformedCbor, write};
use anabranch_model::hash::HashKey;
use anabranch_model::ids::ShardId;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Number of shards of every stream.
pub(crate) const SHARDS: u32 = 64;
/// Maximum number of user records in a `GetRecords` reply.
const READ_RECORDS: usize = 10_000;
/// Approximate size of a `GetRecords` reply in bytes.
const READ_BYTES: usize = 1 << 20;
/// Approximate size of the user data of an aggregate in bytes.
const AGGREGATE_BYTES: usize = 50_000;
/// Constant leading digits of each sequence number, and the number of counting digits after them.
const STAMP: &str = "4959033827149025660855969253";
const COUNT_DIGITS: usize = 28;

/// Number of the next record, shared by all connections.
static NEXT: AtomicU64 = AtomicU64::new(0);
/// Prepared `GetRecords` replies by case and format.
static READS: Mutex<BTreeMap<(String, bool), Arc<Read>>> = Mutex::new(BTreeMap::new());

/// A `GetRecords` reply, and the offsets of the counting digits in its sequence numbers.
struct Read {
    body: Vec<u8>,
    counts_at: Vec<usize>,
}

/// Writes the reply to a request. Returns true if the reply is CBOR.
pub(crate) fn write_reply(request: &Request, out: &mut Vec<u8>) -> bool {
    let in_json = match request.operation.as_str() {
        "PutRecords" => {
            put(request, out);
            return request.cbor;
        }
        "GetRecords" => {
            get(request, out);
            return request.cbor;
        }
        "DescribeStreamSummary" => describe(),
        "ListShards" => shards(),
        "GetShardIterator" => iterator(request),
        _ => "{}".to_owned(),
    };
    out.extend_from_slice(in_json.as_bytes());
    false
}

/// Places each entry in the shard of its hash.
fn put(request: &Request, out: &mut Vec<u8>) {
    let shards = if request.cbor { hashes_of_cbor(&request.body) } else { Ok(Vec::new()) };
    let shards = match shards {
        Ok(shards) if request.cbor => shards,
        _ => hashes_of_json(&request.body),
    };
    if request.cbor {
        write::map(out, 2);
        write::text(out, "FailedRecordCount");
        write::unsigned(out, 0);
        write::text(out, "Records");
        write::array(out, shards.len());
    } else {
        out.extend_from_slice(br#"{"FailedRecordCount":0,"Records":["#);
    }
    for (place, shard) in shards.into_iter().enumerate() {
        let number = format!("{STAMP}{:0COUNT_DIGITS$}", NEXT.fetch_add(1, Ordering::Relaxed));
        if request.cbor {
            write::map(out, 2);
            write::text(out, "SequenceNumber");
            write::text(out, &number);
            write::text(out, "ShardId");
            write::text(out, ShardId::from_index(shard).as_str());
        } else {
            let comma = if place == 0 { "" } else { "," };
            let shard = ShardId::from_index(shard);
            let entry = format!(r#"{comma}{{"SequenceNumber":"{number}","ShardId":"{shard}"}}"#);
            out.extend_from_slice(entry.as_bytes());
        }
    }
    if !request.cbor {
        out.extend_from_slice(b"]}");
    }
}

/// Returns the same records each time, with increasing sequence numbers.
fn get(request: &Request, out: &mut Vec<u8>) {
    let case = between(&request.body, b"case-", b"!").unwrap_or_default();
    let mut reads = READS.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (case, request.cbor);
    let made = || Arc::new(Read::new(&key.0, request.cbor));
    let read = Arc::clone(reads.entry(key.clone()).or_insert_with(made));
    drop(reads);
    let next = NEXT.fetch_add(read.counts_at.len() as u64, Ordering::Relaxed);
    out.extend_from_slice(&read.body);
    for (number, at) in (next..).zip(&read.counts_at) {
        let digits = format!("{number:0COUNT_DIGITS$}");
        out[*at..*at + COUNT_DIGITS].copy_from_slice(digits.as_bytes());
    }
}

impl Read {
    fn new(case: &str, cbor: bool) -> Self {
        let (stream, shard) = case.split_once('/').unwrap_or((case, "0"));
        let (aggregated, bytes) = parse(stream);
        let records = records(aggregated, bytes, shard.parse().unwrap_or(0));
        let mut read = Self { body: Vec::new(), counts_at: Vec::new() };
        if cbor {
            read.write_cbor(&records, case);
        } else {
            read.write_json(&records, case);
        }
        read
    }

    fn write_cbor(&mut self, records: &[(String, Vec<u8>)], case: &str) {
        let out = &mut self.body;
        write::map(out, 3);
        write::text(out, "Records");
        write::array(out, records.len());
        for (key, data) in records {
            write::map(out, 4);
            write::text(out, "SequenceNumber");
            write::text(out, &format!("{STAMP}{:0COUNT_DIGITS$}", 0));
            self.counts_at.push(out.len() - COUNT_DIGITS);
            write::text(out, "ApproximateArrivalTimestamp");
            write::time(out, 1_773_966_938_123);
            write::text(out, "Data");
            write::blob(out, data);
            write::text(out, "PartitionKey");
            write::text(out, key);
        }
        write::text(out, "NextShardIterator");
        write::text(out, &token(case));
        write::text(out, "MillisBehindLatest");
        write::unsigned(out, 1_000);
    }

    fn write_json(&mut self, records: &[(String, Vec<u8>)], case: &str) {
        let out = &mut self.body;
        out.extend_from_slice(br#"{"Records":["#);
        for (place, (key, data)) in records.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            let head = format!(r#"{comma}{{"SequenceNumber":"{STAMP}{:0COUNT_DIGITS$}"#, 0);
            out.extend_from_slice(head.as_bytes());
            self.counts_at.push(out.len() - COUNT_DIGITS);
            let data = aws_smithy_types::base64::encode(data);
            let tail = format!(
                r#"","ApproximateArrivalTimestamp":1773966938.123,"Data":"{data}","PartitionKey":"{key}"}}"#
            );
            out.extend_from_slice(tail.as_bytes());
        }
        let tail =
            format!(r#"],"NextShardIterator":"{}","MillisBehindLatest":1000}}"#, token(case));
        out.extend_from_slice(tail.as_bytes());
    }
}

/// Returns an iterator of realistic length that encodes the case.
fn token(case: &str) -> String {
    format!("case-{case}!{}", "A".repeat(200))
}

/// Parses a stream name such as `plain-100` or `aggregated-1024` into kind and record size.
pub(crate) fn parse(case: &str) -> (bool, usize) {
    let (kind, bytes) = case.split_once('-').unwrap_or((case, "100"));
    (kind == "aggregated", bytes.parse().unwrap_or(100))
}

/// Returns the number of user records in one reply with records of `bytes` bytes.
pub(crate) fn read_records(bytes: usize) -> usize {
    (READ_BYTES / bytes).min(READ_RECORDS)
}

/// Returns the keys and data of the records in one reply of a shard.
fn records(aggregated: bool, bytes: usize, shard: u32) -> Vec<(String, Vec<u8>)> {
    let keys: Vec<String> = (0..10_000)
        .map(|key| format!("key-{key:06}"))
        .filter(|key| shard_of(HashKey::of_partition_key(key).0) == shard)
        .collect();
    let users = read_records(bytes);
    let mut keys = keys.into_iter().cycle().take(users);
    let data = vec![b'x'; bytes];
    if !aggregated {
        return keys.map(|key| (key, data.clone())).collect();
    }
    let each = (AGGREGATE_BYTES / bytes).max(2);
    let mut all = Vec::new();
    for _ in 0..users.div_ceil(each) {
        let mut builder = AggregateBuilder::new();
        for key in keys.by_ref().take(each) {
            let entry =
                AggregateRecord { partition_key: &key, explicit_hash_key: None, data: &data };
            builder.add_within(&entry, 1 << 20);
        }
        let sealed = builder.close().expect("there are records in it").seal();
        all.push(("a".to_owned(), sealed.data.to_vec()));
    }
    all
}

fn shard_of(hash: u128) -> u32 {
    u32::try_from(hash >> 122).expect("six bits")
}

/// Returns the shard of each entry of a CBOR request.
fn hashes_of_cbor(body: &[u8]) -> Result<Vec<u32>, MalformedCbor> {
    let mut shards = Vec::new();
    let mut cursor = CborCursor::new(body);
    let mut members = cursor.map()?;
    while cursor.more(&mut members)? {
        if cursor.text()? != "Records" {
            cursor.skip()?;
            continue;
        }
        let mut entries = cursor.array()?;
        while cursor.more(&mut entries)? {
            let mut shard = 0;
            let mut members = cursor.map()?;
            while cursor.more(&mut members)? {
                if cursor.text()? == "ExplicitHashKey" {
                    shard = shard_of(cursor.text()?.parse().unwrap_or(0));
                } else {
                    cursor.skip()?;
                }
            }
            shards.push(shard);
        }
    }
    Ok(shards)
}

/// Returns the shard of each entry of a JSON request, in any member order. Keys and base64 contain
/// no escapes.
fn hashes_of_json(body: &[u8]) -> Vec<u32> {
    let mut shards = Vec::new();
    let (mut key, mut hash) = (None, None);
    let mut at = 0;
    while let Some(next) = body[at..].iter().position(|byte| matches!(byte, b'"' | b'}')) {
        at += next;
        if body[at] == b'}' {
            // End of an entry or of the request.
            let of_key = key.take().map(|key: &str| HashKey::of_partition_key(key).0);
            shards.extend(hash.take().or(of_key).map(shard_of));
            at += 1;
            continue;
        }
        let (name, behind) = text_at(body, at);
        at = behind + body[behind..].iter().take_while(|byte| b": ".contains(byte)).count();
        if at > behind && body.get(at) == Some(&b'"') {
            let value;
            (value, at) = text_at(body, at);
            match name {
                "PartitionKey" => key = Some(value),
                "ExplicitHashKey" => hash = value.parse().ok(),
                _ => {}
            }
        }
    }
    shards
}

/// Returns the string whose opening quote is at `quote`, and the offset behind it.
fn text_at(body: &[u8], quote: usize) -> (&str, usize) {
    let text = &body[quote + 1..];
    let end = text.iter().position(|byte| *byte == b'"').unwrap_or(text.len());
    (std::str::from_utf8(&text[..end]).unwrap_or_default(), (quote + end + 2).min(body.len()))
}

fn describe() -> String {
    let shards = SHARDS;
    format!(
        r#"{{"StreamDescriptionSummary":{{"StreamName":"s","StreamARN":"arn:aws:kinesis:eu-central-1:000000000000:stream/s","StreamStatus":"ACTIVE","RetentionPeriodHours":24,"StreamCreationTimestamp":1700000000.0,"EnhancedMonitoring":[],"OpenShardCount":{shards}}}}}"#
    )
}

fn shards() -> String {
    let shard = |at: u32| {
        let start = u128::from(at) << 122;
        let end = start + ((1 << 122) - 1);
        let id = ShardId::from_index(at);
        format!(
            r#"{{"ShardId":"{id}","HashKeyRange":{{"StartingHashKey":"{start}","EndingHashKey":"{end}"}},"SequenceNumberRange":{{"StartingSequenceNumber":"1"}}}}"#
        )
    };
    let all: Vec<String> = (0..SHARDS).map(shard).collect();
    format!(r#"{{"Shards":[{}]}}"#, all.join(","))
}

fn iterator(request: &Request) -> String {
    let stream = ["plain-100", "plain-1024", "aggregated-100", "aggregated-1024"]
        .into_iter()
        .find(|name| {
            // `plain-100` must not match `plain-1024`, so no digit may follow the name.
            find(&request.body, name.as_bytes()).is_some_and(|at| {
                !request.body.get(at + name.len()).is_some_and(u8::is_ascii_digit)
            })
        })
        .unwrap_or("plain-100");
    let shard = between(&request.body, b"shardId-", b"").unwrap_or_default();
    let shard: u32 = shard.parse().unwrap_or(0);
    format!(r#"{{"ShardIterator":"{}"}}"#, token(&format!("{stream}/{shard}")))
}

fn find(body: &[u8], text: &[u8]) -> Option<usize> {
    body.windows(text.len()).position(|window| window == text)
}

/// Returns the text between `before` and `behind`, or the digits after `before` if `behind` is
/// empty.
fn between(body: &[u8], before: &[u8], behind: &[u8]) -> Option<String> {
    let from = find(body, before)? + before.len();
    let rest = &body[from..];
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let length = if behind.is_empty() { digits } else { find(rest, behind)? };
    Some(String::from_utf8_lossy(&rest[..length]).into_owned())
}
