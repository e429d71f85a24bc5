//! A stream behind the network: calls fail, are lost, or are carried out late.

use super::kind::FaultKind as Kind;
use super::network::{CallResult, HostLink};
use super::push::FaultySubscription;
use super::store::at_once;
use anabranch::stream::api::{
    FanOutConsumer, FetchedRecords, Placement, PutEntry, PutEntryResult, ReadFrom, ShardFilter,
    ShardIterator, ShardList, StreamApi, StreamError, StreamSummary, Subscription,
};
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::record::Record;
use anabranch_model::retry::Fault;
use anabranch_model::sequence::SequenceNumber;
use std::sync::Arc;

/// A stream as one host reaches it.
pub struct FaultyStream<A> {
    /// The stream itself. It answers at once; the network adds all latency.
    inner: Arc<A>,
    link: HostLink,
    /// Receives all records that arrive.
    heard: ArrivalObserver,
}

/// Callback for all records that arrive at a host.
pub type ArrivalObserver = Arc<dyn Fn(&StreamName, &[Record]) + Send + Sync>;

impl<A> Clone for FaultyStream<A> {
    fn clone(&self) -> Self {
        let (inner, heard) = (Arc::clone(&self.inner), Arc::clone(&self.heard));
        Self { inner, link: self.link.clone(), heard }
    }
}

impl<A: StreamApi> FaultyStream<A> {
    /// Wraps `inner` so that it is reached over `link`.
    pub fn new(inner: Arc<A>, link: HostLink) -> Self {
        Self { inner, link, heard: Arc::new(|_, _| ()) }
    }

    /// Reports all records that arrive to `heard`.
    #[must_use]
    pub fn observed_by(mut self, heard: ArrivalObserver) -> Self {
        self.heard = heard;
        self
    }

    async fn call<T: Send + 'static>(
        &self,
        operation: &'static str,
        target: &str,
        ask: impl FnOnce(&A) -> Result<T, StreamError> + Send + 'static,
    ) -> Result<T, StreamError> {
        let (inner, link) = (Arc::clone(&self.inner), self.link.clone());
        let name = target.to_owned();
        let answer = move || {
            let is_hidden = link.hides(&name);
            if is_hidden { Err(weather(Fault::Missing, operation, &name)) } else { ask(&inner) }
        };
        let fault = match self.link.carry(answer).await {
            CallResult::Answered(reply) => return reply,
            CallResult::Failed => Fault::NotSent,
            CallResult::Throttled => Fault::Throttled,
            CallResult::Refused(why) => why.of_stream(),
            CallResult::Silent => Fault::ReplyLost,
        };
        Err(weather(fault, operation, target))
    }
}

/// Returns the stream that a fan-out consumer is registered with, from its ARN.
fn stream_of(consumer: &FanOutConsumer) -> StreamName {
    consumer.arn.split('/').nth(1).unwrap_or_default().into()
}

/// Returns the error of an injected fault.
pub(super) fn weather(fault: Fault, operation: &'static str, target: &str) -> StreamError {
    let detail = "the simulator's weather".to_owned();
    StreamError { fault, operation, target: target.to_owned(), detail, source: None }
}

impl<A: StreamApi> StreamApi for FaultyStream<A> {
    async fn describe(&self, stream: &StreamName) -> Result<StreamSummary, StreamError> {
        let name = stream.clone();
        let ask = move |api: &A| at_once(api.describe(&name));
        self.call("DescribeStreamSummary", stream.as_str(), ask).await
    }

    async fn list_shards(
        &self,
        stream: &StreamName,
        filter: ShardFilter,
    ) -> Result<ShardList, StreamError> {
        let (name, link) = (stream.clone(), self.link.clone());
        let stale = self.link.is_stale();
        let ask = move |api: &A| {
            let list = at_once(api.list_shards(&name, filter))?;
            let older = link.older_list(&name, filter, list.clone());
            if stale && older.shards != list.shards {
                link.count(Kind::StaleList);
            }
            Ok(if stale { older } else { list })
        };
        self.call("ListShards", stream.as_str(), ask).await
    }

    async fn iterator(
        &self,
        stream: &StreamName,
        shard: &ShardId,
        at: ReadFrom,
    ) -> Result<ShardIterator, StreamError> {
        let (name, shard) = (stream.clone(), shard.clone());
        let ask = move |api: &A| at_once(api.iterator(&name, &shard, at));
        self.call("GetShardIterator", stream.as_str(), ask).await
    }

    async fn records(
        &self,
        stream: &StreamName,
        iterator: &ShardIterator,
        limit: u32,
    ) -> Result<FetchedRecords, StreamError> {
        let (name, iterator) = (stream.clone(), iterator.clone());
        let expires = self.link.expires();
        let ask = move |api: &A| {
            if expires {
                return Err(weather(Fault::IteratorExpired, "GetRecords", name.as_str()));
            }
            at_once(api.records(&name, &iterator, limit))
        };
        let mut fetched = self.call("GetRecords", stream.as_str(), ask).await?;
        if self.link.ends_falsely() {
            fetched.next = None;
            fetched.children.clear();
        }
        (self.heard)(stream, &fetched.records);
        Ok(fetched)
    }

    async fn register_consumer(
        &self,
        stream: &StreamSummary,
        name: &str,
    ) -> Result<FanOutConsumer, StreamError> {
        let (stream, name) = (stream.clone(), name.to_owned());
        let target = name.clone();
        let ask = move |api: &A| at_once(api.register_consumer(&stream, &name));
        self.call("RegisterStreamConsumer", &target, ask).await
    }

    async fn describe_consumer(
        &self,
        stream: &StreamSummary,
        name: &str,
    ) -> Result<FanOutConsumer, StreamError> {
        let (stream, name) = (stream.clone(), name.to_owned());
        let target = name.clone();
        let ask = move |api: &A| at_once(api.describe_consumer(&stream, &name));
        self.call("DescribeStreamConsumer", &target, ask).await
    }

    async fn deregister_consumer(&self, consumer: &FanOutConsumer) -> Result<(), StreamError> {
        let gone = consumer.clone();
        let ask = move |api: &A| at_once(api.deregister_consumer(&gone));
        self.call("DeregisterStreamConsumer", &consumer.name, ask).await
    }

    async fn subscribe(
        &self,
        consumer: &FanOutConsumer,
        shard: &ShardId,
        at: ReadFrom,
    ) -> Result<Subscription, StreamError> {
        let (asked, shard) = (consumer.clone(), shard.clone());
        let ask = move |api: &A| at_once(api.subscribe(&asked, &shard, at));
        let events = self.call("SubscribeToShard", &consumer.name, ask).await?;
        let (stream, heard) = (stream_of(consumer), Arc::clone(&self.heard));
        let heard = move |records: &[Record]| heard(&stream, records);
        Ok(Box::pin(FaultySubscription::new(events, self.link.clone(), Box::new(heard))))
    }

    async fn put_records(
        &self,
        stream: &StreamName,
        entries: &[PutEntry],
    ) -> Result<Vec<PutEntryResult>, StreamError> {
        let (name, entries) = (stream.clone(), entries.to_vec());
        let ask = move |api: &A| at_once(api.put_records(&name, &entries));
        self.call("PutRecords", stream.as_str(), ask).await
    }

    async fn put_record(
        &self,
        stream: &StreamName,
        entry: &PutEntry,
        after: Option<SequenceNumber>,
    ) -> Result<Placement, StreamError> {
        let (name, entry) = (stream.clone(), entry.clone());
        let ask = move |api: &A| at_once(api.put_record(&name, &entry, after));
        self.call("PutRecord", stream.as_str(), ask).await
    }
}
