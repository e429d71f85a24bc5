//! A local stream in process, and a reader of everything in it by KCL's rules.

use anabranch::producer::{Producer, ProducerBuilder};
use anabranch::stream::LocalKinesis;
use anabranch::stream::api::{ReadFrom, ShardFilter, StreamApi};
use anabranch_local::fault::{FaultEffect, FaultRule};
use anabranch_local::op::{
    Operation, StreamTarget, create_stream, delete_stream, merge_shards, split_shard,
};
use anabranch_local::{Clock, Engine, EngineOptions};
use anabranch_model::aggregate::decode::{DecodedAggregate, decode};
use anabranch_model::hash::HashKey;
use anabranch_model::record::UserRecord;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const STREAM: &str = "orders";

/// Awaits a future that must complete within 30 seconds.
pub(crate) async fn with_timeout<F: Future>(what: F) -> F::Output {
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, what).await.expect("it ends before long")
}

/// Returns a producer that retries at once.
pub(crate) fn quick() -> ProducerBuilder {
    Producer::new(STREAM).with_backoff(Duration::from_millis(1)..=Duration::from_millis(5))
}

pub(crate) struct ProducerFixture {
    pub(crate) engine: Arc<Engine>,
}

impl ProducerFixture {
    pub(crate) fn new(shards: i64) -> Self {
        Self::with(shards, EngineOptions::instant())
    }

    pub(crate) fn with(shards: i64, options: EngineOptions) -> Self {
        let stage = Self { engine: Arc::new(Engine::new(options, Clock::system())) };
        stage.create(shards, None);
        stage
    }

    pub(crate) fn create(&self, shards: i64, max_record_kib: Option<i64>) {
        let request = create_stream::Request {
            stream_name: Some(STREAM.to_owned()),
            shard_count: Some(shards),
            max_record_size_in_kib: max_record_kib,
            ..create_stream::Request::default()
        };
        self.engine.create_stream(&request).unwrap();
    }

    pub(crate) fn delete(&self) {
        let request = delete_stream::Request { stream: target(), ..Default::default() };
        self.engine.delete_stream(&request).unwrap();
    }

    pub(crate) fn api(&self) -> LocalKinesis {
        LocalKinesis::new(Arc::clone(&self.engine))
    }

    pub(crate) async fn open_shards(&self) -> Vec<anabranch_model::lineage::Shard> {
        // The list may be made to fail on purpose.
        let mut shards = loop {
            let list = self.api().list_shards(&STREAM.into(), ShardFilter::AtLatest).await;
            if let Ok(list) = list {
                break list.shards;
            }
        };
        shards.sort_by_key(|shard| shard.range);
        shards
    }

    /// Splits the open shard with the widest hash range in its middle.
    pub(crate) async fn split(&self) {
        let shards = self.open_shards().await;
        let width = |range: anabranch_model::hash::HashRange| range.end().0 - range.start().0;
        let shard = shards.iter().max_by_key(|shard| width(shard.range)).unwrap();
        let middle = HashKey(shard.range.start().0 + width(shard.range) / 2);
        let request = split_shard::Request {
            stream: target(),
            shard_to_split: Some(shard.id.to_string()),
            new_starting_hash_key: Some(middle.to_string()),
        };
        self.engine.split_shard(&request).unwrap();
    }

    /// Merges the two lowest open shards.
    pub(crate) async fn merge(&self) {
        let shards = self.open_shards().await;
        let request = merge_shards::Request {
            stream: target(),
            shard_to_merge: Some(shards[0].id.to_string()),
            adjacent_shard_to_merge: Some(shards[1].id.to_string()),
        };
        self.engine.merge_shards(&request).unwrap();
    }

    /// Makes calls of an operation fail with this probability.
    pub(crate) fn fault(&self, operation: Operation, effect: FaultEffect, probability: f64) -> u64 {
        self.engine.faults().add(FaultRule {
            operation: Some(operation),
            stream: None,
            shard: None,
            probability,
            skip: 0,
            count: None,
            effect,
        })
    }

    /// Returns every user record, shard by shard in the order of their creation, as KCL delivers
    /// it.
    pub(crate) async fn read_all(&self) -> Vec<UserRecord> {
        self.engine.faults().clear();
        self.engine.enforce_limits(false);
        let (api, stream) = (self.api(), STREAM.into());
        let mut shards = api.list_shards(&stream, ShardFilter::All).await.unwrap().shards;
        shards.sort_by(|a, b| a.id.cmp(&b.id));
        let mut all = Vec::new();
        for shard in shards {
            let from = api.iterator(&stream, &shard.id, ReadFrom::TrimHorizon).await.unwrap();
            let mut next = Some(from);
            while let Some(iterator) = next {
                let fetched = api.records(&stream, &iterator, 10_000).await.unwrap();
                let empty = fetched.records.is_empty();
                for record in fetched.records {
                    match decode(&record, shard.range) {
                        DecodedAggregate::Plain(_) => all.push(record.into()),
                        DecodedAggregate::Records(records) => all.extend(records),
                        DecodedAggregate::Misrouted { .. } => {}
                        other @ DecodedAggregate::Partial { .. } => panic!("unreadable: {other:?}"),
                    }
                }
                next = fetched.next.filter(|_| !empty);
            }
        }
        all
    }

    /// Returns for each key the numbers in its data, in the order of their first delivery.
    pub(crate) async fn first_deliveries(&self) -> BTreeMap<String, Vec<u64>> {
        let mut seen = BTreeSet::new();
        let mut keys: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for record in self.read_all().await {
            let key = record.partition_key.to_string();
            let number = number(&record.data);
            if seen.insert((key.clone(), number)) {
                keys.entry(key).or_default().push(number);
            }
        }
        keys
    }
}

/// Returns the number at the start of a record's data.
pub(crate) fn number(data: &[u8]) -> u64 {
    let digits: String = data
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .map(|byte| char::from(*byte))
        .collect();
    digits.parse().unwrap()
}

fn target() -> StreamTarget {
    StreamTarget::named(STREAM)
}
