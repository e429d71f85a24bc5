//! `PutRecords`: puts up to 500 records, each to the open shard that covers its hash key.
//!
//! Each shard stores its records in the order of the request, under one hold of its lock. A
//! sequence number is assigned and its record becomes visible in the same step, so a reader at the
//! tip cannot skip a record.
//!
//! Partition key and data together count towards the maximum record size. Differs from AWS: if only
//! their sum is too large, the message is our own, because the service's is not published.

use crate::constraint::Constraints;
use crate::encryption::Encryption;
use crate::engine::{Engine, StreamRef};
use crate::error::{ApiError, ErrorKind};
use crate::fault::{FaultSite, ReplyFate};
use crate::journal::JournalAppend;
use crate::lifecycle::Status;
use crate::op::Operation;
use crate::op::run::reply_lost;
use crate::shard::Shard;
use crate::shard_log::LogRecord;
use crate::stream::{Stream, Topology};
use anabranch_model::hash::HashKey;
use anabranch_model::limits;
use anabranch_model::sequence::SequenceNumber;
use std::borrow::Cow;
use std::ops::Range;

/// Request of `PutRecords`, borrowed from its body.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The stream to put to.
    pub stream: StreamRef<'a>,
    /// The records to put.
    pub records: Vec<PutRecordsEntry<'a>>,
}

/// One record to put.
#[derive(Debug, Clone)]
pub struct PutRecordsEntry<'a> {
    /// The partition key.
    pub partition_key: Cow<'a, str>,
    /// Hash key that routes the record, in place of the partition key's hash.
    pub explicit_hash_key: Option<Cow<'a, str>>,
    /// The data of the record.
    pub data: Payload<'a>,
}

/// Data in the encoding of the request.
#[derive(Debug, Clone)]
pub enum Payload<'a> {
    /// The bytes themselves.
    Raw(&'a [u8]),
    /// The bytes in base64.
    Base64(Cow<'a, str>),
}

/// Reply to `PutRecords`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The outcome of each record, in the order of the request.
    pub entries: Vec<EntryOutcome>,
    /// Number of records that failed.
    pub failed: usize,
    /// Type of encryption at rest.
    pub encryption: Encryption,
}

/// The outcome of one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryOutcome {
    /// The record is stored.
    Placed {
        /// The index of the shard that holds the record.
        shard: u32,
        /// The record's sequence number.
        sequence: SequenceNumber,
    },
    /// The record is not stored.
    Failed {
        /// The error's type.
        code: ErrorKind,
        /// The service's message.
        message: String,
    },
}

impl Engine {
    /// Puts up to 500 records. Each of them succeeds or fails by itself.
    pub fn put_records(&self, request: &Request<'_>) -> Result<Reply, ApiError> {
        let name = self.resolve(&request.stream)?;
        check_count(&request.records)?;
        self.put(Operation::PutRecords, &name, &request.records, |_| Ok(()))
    }

    /// Returns how long a put must be delayed according to the fault rules, in milliseconds. See
    /// [`Engine::delay_ms`].
    pub fn put_delay_ms(
        &self,
        operation: Operation,
        stream: &StreamRef<'_>,
        entries: &[PutRecordsEntry<'_>],
    ) -> u64 {
        let Ok(name) = self.resolve(stream) else { return 0 };
        let routed = self.find_by_name(&name).and_then(|s| route(&s.read(), entries));
        let mut shards: Vec<u32> =
            routed.unwrap_or_default().iter().map(|(shard, _)| *shard).collect();
        shards.dedup();
        self.faults().delay_ms(FaultSite { operation, stream: Some(&name), shards: &shards })
    }

    /// Puts records for either operation. `check` inspects the stream before anything happens.
    pub(crate) fn put(
        &self,
        operation: Operation,
        name: &str,
        entries: &[PutRecordsEntry<'_>],
        check: impl FnOnce(&Topology) -> Result<(), ApiError>,
    ) -> Result<Reply, ApiError> {
        check_entries(operation, entries)?;
        let decoded = Decoded::of(entries)?;
        if self.memory().is_full(entries.len(), || decoded.total_bytes(entries)) {
            self.free_memory();
        }
        self.reshard_on_request(operation, name);
        let stream = self.find_by_name(name)?;
        let now_ms = self.now_ms();
        let topology = stream.read();
        match topology.status(now_ms) {
            Some(Status::Active | Status::Updating) => {}
            _ => return Err(self.stream_not_found(name)),
        }
        check_sizes(operation, &topology, entries, &decoded)?;
        check(&topology)?;
        let routes = route(&topology, entries)?;
        let mut shards: Vec<u32> = routes.iter().map(|(shard, _)| *shard).collect();
        shards.dedup();
        let fate =
            self.faults().before(FaultSite { operation, stream: Some(name), shards: &shards })?;

        let mut outcomes: Vec<Option<EntryOutcome>> = vec![None; entries.len()];
        for group in routes.chunk_by(|a, b| a.0 == b.0) {
            let shard = &topology.shards[group[0].0 as usize].shard;
            let horizon_ms = topology.horizon_ms(now_ms);
            let batch = ShardEntries { operation, stream: &stream, shard, now_ms, horizon_ms };
            let records = group.iter().map(|(_, at)| {
                let key = entries[*at].partition_key.as_ref();
                (*at, LogRecord { partition_key: key, data: decoded.data(*at, &entries[*at]) })
            });
            self.store(&batch, records, &mut outcomes);
        }
        if fate == ReplyFate::Lost {
            return Err(reply_lost());
        }
        let entries: Vec<_> = outcomes.into_iter().flatten().collect();
        let failed = entries.iter().filter(|o| matches!(o, EntryOutcome::Failed { .. })).count();
        Ok(Reply { entries, failed, encryption: topology.encryption() })
    }

    /// Stores the records that faults and limits let through in one shard.
    fn store<'a>(
        &self,
        batch: &ShardEntries<'_>,
        records: impl ExactSizeIterator<Item = (usize, LogRecord<'a>)>,
        outcomes: &mut [Option<EntryOutcome>],
    ) {
        let mut admitted: Vec<LogRecord<'_>> = Vec::with_capacity(records.len());
        let mut places: Vec<usize> = Vec::with_capacity(records.len());
        let shard = batch.shard;
        let mut inside = shard.lock();
        for (at, record) in records {
            let size = record.partition_key.len() + record.data.len();
            let fault = self.entry_fault(batch);
            let limited = || {
                let limited = self.limits_enforced();
                (limited && !inside.rates.write(size, batch.now_ms))
                    .then_some(ErrorKind::ProvisionedThroughputExceeded)
            };
            if let Some(code) = fault.or_else(limited) {
                outcomes[at] = Some(self.entry_failed(batch, code));
            } else {
                admitted.push(record);
                places.push(at);
            }
        }
        // A shard without readers must not keep records past retention.
        inside.log.trim(batch.horizon_ms);
        let bytes = admitted.iter().map(|record| record.partition_key.len() + record.data.len());
        let Some(_room) = self.memory().try_reserve(admitted.len(), bytes.sum()) else {
            let (code, message) = (ErrorKind::ProvisionedThroughputExceeded, self.memory_full());
            for at in places {
                outcomes[at] = Some(EntryOutcome::Failed { code, message: message.clone() });
            }
            return;
        };
        let arrival_ms = inside.log.arrival_at(batch.now_ms);
        let append = JournalAppend {
            stream_id: batch.stream.id,
            shard: shard.index,
            first_counter: inside.log.next_counter(),
            arrival_ms,
            records: &admitted,
        };
        if !admitted.is_empty()
            && let Err(ApiError { kind: code, message }) = self.journal_append(&append)
        {
            for at in places {
                outcomes[at] = Some(EntryOutcome::Failed { code, message: message.clone() });
            }
            return;
        }
        for (record, at) in admitted.iter().zip(places) {
            let sequence = shard.stamp.number(inside.log.append(record, arrival_ms));
            outcomes[at] = Some(EntryOutcome::Placed { shard: shard.index, sequence });
        }
        drop(inside);
        shard.news.notify_waiters();
    }

    fn memory_full(&self) -> String {
        format!(
            "The local stream is full: its records use {} of the {} bytes that --max-memory \
             allows. Records are removed after their retention; start the server with a larger \
             --max-memory, or delete streams that are not needed.",
            self.memory().used(),
            self.memory().most().unwrap_or(usize::MAX),
        )
    }

    fn entry_fault(&self, batch: &ShardEntries<'_>) -> Option<ErrorKind> {
        if batch.operation != Operation::PutRecords {
            return None;
        }
        let shards = [batch.shard.index];
        let stream = Some(batch.stream.name.as_str());
        self.faults().entry(FaultSite { operation: batch.operation, stream, shards: &shards })
    }

    fn entry_failed(&self, batch: &ShardEntries<'_>, code: ErrorKind) -> EntryOutcome {
        let message = match code {
            ErrorKind::InternalFailure => "Internal service failure.".to_owned(),
            _ => self.rate_exceeded(batch.stream, &batch.shard.id),
        };
        EntryOutcome::Failed { code, message }
    }
}

/// The destination of the records of one shard.
struct ShardEntries<'a> {
    operation: Operation,
    stream: &'a Stream,
    shard: &'a Shard,
    now_ms: u64,
    /// Records that arrived before this time, in milliseconds since 1970, are past retention.
    horizon_ms: u64,
}

/// The payloads that arrived in base64, decoded into one buffer before anything is stored.
struct Decoded {
    bytes: Vec<u8>,
    ranges: Vec<Range<usize>>,
}

impl Decoded {
    fn of(entries: &[PutRecordsEntry<'_>]) -> Result<Self, ApiError> {
        let encoded = |entry: &PutRecordsEntry<'_>| match &entry.data {
            Payload::Raw(_) => 0,
            Payload::Base64(text) => text.len() / 4 * 3,
        };
        let mut bytes = Vec::with_capacity(entries.iter().map(encoded).sum());
        let mut ranges = Vec::with_capacity(entries.len());
        for entry in entries {
            let start = bytes.len();
            if let Payload::Base64(text) = &entry.data {
                base64_simd::STANDARD
                    .decode_append(text.as_bytes(), &mut bytes)
                    .map_err(|_| not_base64(text))?;
            }
            ranges.push(start..bytes.len());
        }
        Ok(Self { bytes, ranges })
    }

    /// Returns the bytes of all keys and data.
    fn total_bytes(&self, entries: &[PutRecordsEntry<'_>]) -> usize {
        let size = |(at, entry): (usize, &PutRecordsEntry<'_>)| {
            self.data(at, entry).len() + entry.partition_key.len()
        };
        entries.iter().enumerate().map(size).sum()
    }

    fn data<'a>(&'a self, at: usize, entry: &'a PutRecordsEntry<'_>) -> &'a [u8] {
        match &entry.data {
            Payload::Raw(bytes) => bytes,
            Payload::Base64(_) => &self.bytes[self.ranges[at].clone()],
        }
    }
}

fn not_base64(text: &str) -> ApiError {
    let shown: String = text.chars().take(64).collect();
    let why = if text.len().is_multiple_of(4) {
        "Invalid Base64 character".to_owned()
    } else {
        let length = text.len();
        format!("Base64 encoded length is expected a multiple of 4 bytes but found: {length}")
    };
    let text = format!("'{shown}' can not be converted to a Blob: {why}");
    ApiError::new(ErrorKind::Serialization, text)
}

fn check_count(entries: &[PutRecordsEntry<'_>]) -> Result<(), ApiError> {
    let must = match entries.len() {
        0 => "Member must have length greater than or equal to 1".to_owned(),
        count if count > limits::PUT_RECORDS_MAX_RECORDS => {
            let most = limits::PUT_RECORDS_MAX_RECORDS;
            format!("Member must have length less than or equal to {most}")
        }
        _ => return Ok(()),
    };
    let member = "com.amazonaws.kinesis.v20131202.PutRecordsRequestEntry@c965e310";
    let shown = vec![member; entries.len().min(3)].join(", ");
    Constraints::new().add(&format!("'[{shown}]'"), "records", &must).check()
}

/// Returns the path of an entry's field in messages.
fn path(operation: Operation, at: usize, field: &str) -> String {
    match operation {
        Operation::PutRecords => format!("records.{}.member.{field}", at + 1),
        _ => field.to_owned(),
    }
}

fn check_entries(operation: Operation, entries: &[PutRecordsEntry<'_>]) -> Result<(), ApiError> {
    let mut constraints = Constraints::new();
    for (at, entry) in entries.iter().enumerate() {
        let key = entry.partition_key.as_ref();
        // Formats a path only for entries that may be invalid.
        if key.is_empty() || key.len() > limits::PARTITION_KEY_MAX_CHARS {
            let path = path(operation, at, "partitionKey");
            constraints.length(Some(key), &path, 1, limits::PARTITION_KEY_MAX_CHARS);
        }
        if let Some(explicit) = entry.explicit_hash_key.as_deref() {
            constraints.hash_key(Some(explicit), &path(operation, at, "explicitHashKey"));
        }
    }
    constraints.check()
}

fn check_sizes(
    operation: Operation,
    topology: &Topology,
    entries: &[PutRecordsEntry<'_>],
    decoded: &Decoded,
) -> Result<(), ApiError> {
    let most = topology.record_max_bytes();
    let mut constraints = Constraints::new();
    let (mut total, mut over) = (0, None);
    for (at, entry) in entries.iter().enumerate() {
        let (size, key) = (decoded.data(at, entry).len(), entry.partition_key.len());
        total += size + key;
        if size > most {
            let value = format!("'java.nio.HeapByteBuffer[pos=0 lim={size} cap={size}]'");
            let words = format!("Member must have length less than or equal to {most}");
            constraints.add(&value, &path(operation, at, "data"), &words);
        } else if size + key > most {
            over.get_or_insert((at, size + key));
        }
    }
    constraints.check()?;
    if let Some((at, size)) = over {
        let which = match operation {
            Operation::PutRecords => format!("Record {} of the request", at + 1),
            _ => "The record".to_owned(),
        };
        let text = format!("{which} of {size} bytes, partition key included, exceeds");
        return Err(ApiError::invalid(format!("{text} the maximum of {most} bytes")));
    }
    let (request_max, shown) = if most > limits::RECORD_MAX_BYTES_DEFAULT {
        (limits::PUT_RECORDS_MAX_BYTES_LARGE, "10 MB")
    } else {
        (limits::PUT_RECORDS_MAX_BYTES, "5 MB")
    };
    if operation == Operation::PutRecords && total > request_max {
        return Err(ApiError::invalid(format!("Records size exceeds {shown} limit")));
    }
    Ok(())
}

/// Returns pairs of shard index and entry index, ordered by shard and then by position in the
/// request.
fn route(
    topology: &Topology,
    entries: &[PutRecordsEntry<'_>],
) -> Result<Vec<(u32, usize)>, ApiError> {
    let mut routes = Vec::with_capacity(entries.len());
    for (at, entry) in entries.iter().enumerate() {
        let explicit = match entry.explicit_hash_key.as_deref() {
            None => None,
            Some(text) => Some(text.parse::<HashKey>().map_err(|_| {
                ApiError::invalid(format!(
                    "Invalid ExplicitHashKey. ExplicitHashKey must be in the range: [0, 2^128-1]. \
                     Specified value was {text}"
                ))
            })?),
        };
        let key = HashKey::effective(&entry.partition_key, explicit);
        routes.push((topology.route(key).index, at));
    }
    routes.sort_unstable();
    Ok(routes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Clock, EngineOptions};

    #[test]
    fn a_shard_that_nobody_reads_keeps_nothing_past_retention() {
        let clock = Clock::manual(1_700_000_000_000);
        let engine = Engine::new(EngineOptions::instant(), clock.clone());
        let name = Some("s".to_owned());
        let create = crate::op::create_stream::Request {
            stream_name: name,
            shard_count: Some(1),
            ..Default::default()
        };
        engine.create_stream(&create).unwrap();
        let entry = PutRecordsEntry {
            partition_key: "k".into(),
            explicit_hash_key: None,
            data: Payload::Raw(b"data"),
        };
        for hours in [0, 23, 2, 100] {
            clock.advance(hours * 3_600_000);
            let records = vec![entry.clone()];
            engine.put_records(&Request { stream: StreamRef::named("s"), records }).unwrap();
        }
        let stream = engine.find_by_name("s").unwrap();
        assert_eq!(stream.read().shards[0].shard.lock().log.len(), 1);
    }
}
