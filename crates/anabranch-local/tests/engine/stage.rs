//! A fixture with an engine on a clock that the test moves.

use anabranch_local::op::put_records::{Payload, PutRecordsEntry};
use anabranch_local::op::{
    ShardDescription, StreamTarget, create_stream, get_records, get_shard_iterator, list_shards,
    merge_shards, put_record, register_stream_consumer, split_shard, subscribe_to_shard,
};
use anabranch_local::subscription::Subscription;
use anabranch_local::{ApiError, Clock, Engine, EngineOptions, ErrorKind, StreamRef};
use anabranch_model::sequence::SequenceNumber;
use std::borrow::Cow;

pub(crate) const NOW: u64 = 1_700_000_000_000;
pub(crate) const HOUR: u64 = 3_600_000;

pub(crate) struct EngineFixture {
    pub(crate) engine: Engine,
}

/// A record in the form that tests compare.
pub(crate) type ComparedRecord = (SequenceNumber, String, Vec<u8>);

impl EngineFixture {
    /// Creates an engine without transitional states, with one stream `s`.
    pub(crate) fn with_stream(shards: i64) -> Self {
        let stage = Self::new(EngineOptions::instant());
        stage.create("s", shards);
        stage
    }

    pub(crate) fn new(options: EngineOptions) -> Self {
        Self { engine: Engine::new(options, Clock::manual(NOW)) }
    }

    pub(crate) fn advance(&self, ms: u64) {
        assert!(self.engine.clock().advance(ms));
    }

    pub(crate) fn create(&self, name: &str, shards: i64) {
        let request = create_stream::Request {
            stream_name: Some(name.to_owned()),
            shard_count: Some(shards),
            ..Default::default()
        };
        self.engine.create_stream(&request).unwrap();
    }

    pub(crate) fn try_put(&self, key: &str, hash: Option<u128>) -> Result<u32, ApiError> {
        let hash = hash.map(|hash| hash.to_string());
        self.try_put_entry(entry(key, hash.as_deref(), key.as_bytes())).map(|reply| reply.shard)
    }

    pub(crate) fn try_put_entry(
        &self,
        entry: PutRecordsEntry<'_>,
    ) -> Result<put_record::Reply, ApiError> {
        self.engine.put_record(&put_record::Request {
            stream: StreamRef::named("s"),
            entry,
            sequence_number_for_ordering: None,
        })
    }

    pub(crate) fn put(&self, key: &str) -> SequenceNumber {
        self.try_put_entry(entry(key, None, key.as_bytes())).unwrap().sequence
    }

    pub(crate) fn shards(&self) -> Vec<ShardDescription> {
        self.list(None, None).unwrap()
    }

    pub(crate) fn list(
        &self,
        filter_type: Option<&str>,
        at: Option<u64>,
    ) -> Result<Vec<ShardDescription>, ApiError> {
        let request = list_shards::Request {
            stream: StreamTarget::named("s"),
            shard_filter: filter_type.map(|kind| list_shards::ShardFilter {
                filter_type: Some(kind.to_owned()),
                shard_id: (kind == "AFTER_SHARD_ID").then(|| id(0)),
                timestamp: at.map(anabranch_local::op::Timestamp),
            }),
            ..Default::default()
        };
        self.engine.list_shards(&request).map(|reply| reply.shards)
    }

    pub(crate) fn iterator(&self, shard: u32, kind: &str) -> Result<String, ApiError> {
        self.iterator_of(shard, kind, |_| {})
    }

    pub(crate) fn iterator_of(
        &self,
        shard: u32,
        kind: &str,
        change: impl FnOnce(&mut get_shard_iterator::Request),
    ) -> Result<String, ApiError> {
        let mut request = get_shard_iterator::Request {
            stream: StreamTarget::named("s"),
            shard_id: Some(id(shard)),
            shard_iterator_type: Some(kind.to_owned()),
            ..Default::default()
        };
        change(&mut request);
        self.engine.get_shard_iterator(&request).map(|reply| reply.shard_iterator)
    }

    pub(crate) fn get(&self, iterator: &str) -> Result<get_records::Reply, ApiError> {
        self.get_some(iterator, None)
    }

    pub(crate) fn get_some(
        &self,
        iterator: &str,
        limit: Option<i64>,
    ) -> Result<get_records::Reply, ApiError> {
        self.engine.get_records(&get_records::Request {
            shard_iterator: Some(Cow::Borrowed(iterator)),
            limit,
            stream_arn: None,
        })
    }

    /// Reads every record of a shard from the trim horizon.
    pub(crate) fn read_all(&self, shard: u32) -> Vec<ComparedRecord> {
        let mut iterator = self.iterator(shard, "TRIM_HORIZON").unwrap();
        let mut all = Vec::new();
        loop {
            let reply = self.get(&iterator).unwrap();
            all.extend(reads(&reply.records));
            match reply.next_iterator {
                Some(next) if !reply.records.is_empty() => iterator = next,
                _ => return all,
            }
        }
    }

    pub(crate) fn split(&self, shard: u32, at: u128) -> Result<(), ApiError> {
        self.engine.split_shard(&split_shard::Request {
            stream: StreamTarget::named("s"),
            shard_to_split: Some(id(shard)),
            new_starting_hash_key: Some(at.to_string()),
        })
    }

    pub(crate) fn merge(&self, low: u32, high: u32) -> Result<(), ApiError> {
        self.engine.merge_shards(&merge_shards::Request {
            stream: StreamTarget::named("s"),
            shard_to_merge: Some(id(low)),
            adjacent_shard_to_merge: Some(id(high)),
        })
    }

    pub(crate) fn arn(&self) -> String {
        let options = self.engine.options();
        format!("arn:aws:kinesis:{}:{}:stream/s", options.region, options.account_id)
    }

    pub(crate) fn register(&self, name: &str) -> Result<String, ApiError> {
        let request = register_stream_consumer::Request {
            stream: StreamTarget::by_arn(&self.arn()),
            consumer_name: Some(name.to_owned()),
            tags: None,
        };
        self.engine.register_stream_consumer(&request).map(|reply| reply.consumer.consumer_arn)
    }

    pub(crate) fn subscribe(
        &self,
        consumer_arn: &str,
        shard: u32,
        kind: &str,
        number: Option<SequenceNumber>,
    ) -> Result<Subscription, ApiError> {
        self.engine.subscribe_to_shard(&subscribe_to_shard::Request {
            consumer_arn: Some(consumer_arn.to_owned()),
            shard_id: Some(id(shard)),
            starting_position: Some(subscribe_to_shard::StartingPosition {
                position_type: Some(kind.to_owned()),
                sequence_number: number.map(|number| number.to_string()),
                timestamp: None,
            }),
        })
    }
}

pub(crate) fn reads(batch: &anabranch_local::RecordBatch) -> Vec<ComparedRecord> {
    let records = batch.iter();
    records.map(|r| (r.sequence, r.partition_key.to_owned(), r.data.to_vec())).collect()
}

pub(crate) fn id(shard: u32) -> String {
    format!("shardId-{shard:012}")
}

pub(crate) fn entry<'a>(
    key: &'a str,
    hash: Option<&'a str>,
    data: &'a [u8],
) -> PutRecordsEntry<'a> {
    PutRecordsEntry {
        partition_key: Cow::Borrowed(key),
        explicit_hash_key: hash.map(Cow::Borrowed),
        data: Payload::Raw(data),
    }
}

/// Asserts that an operation fails with the given type, and with `words` in its message.
#[track_caller]
pub(crate) fn refused<T>(result: Result<T, ApiError>, kind: ErrorKind, words: &str) {
    let error = result.err().unwrap_or_else(|| panic!("expected {kind:?}: {words}"));
    assert_eq!(error.kind, kind, "{}", error.message);
    assert!(error.message.contains(words), "expected {words:?} in {:?}", error.message);
}
