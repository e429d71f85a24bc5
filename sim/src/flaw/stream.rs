//! A stream as a flawed consumer sees it: replies are altered.

use super::consumer::ConsumerFlaw;
use anabranch::stream::api::{
    FanOutConsumer, FetchedRecords, Placement, PutEntry, PutEntryResult, ReadFrom, ShardFilter,
    ShardIterator, ShardList, StreamApi, StreamError, StreamSummary, Subscription,
    SubscriptionEvent,
};
use anabranch_model::aggregate::decode::{DecodedAggregate, decode};
use anabranch_model::aggregate::encode::{self, AggregateBuilder};
use anabranch_model::hash::HashRange;
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::record::{Record, UserRecord};
use anabranch_model::retry::Fault;
use anabranch_model::sequence::SequenceNumber;
use futures_core::Stream;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

/// An intermittent flaw affects one in this many dead letters.
const NOW_AND_THEN: u64 = 3;

/// A stream whose replies may be false.
#[derive(Debug)]
pub struct FlawedStream<A> {
    inner: A,
    /// The broken rule.
    flaw: ConsumerFlaw,
    /// True if an iterator was refused as too old, and none was requested since.
    expired: AtomicBool,
    /// Records with which the next reply of each iterator begins.
    again: Mutex<BTreeMap<Arc<str>, Vec<Record>>>,
    /// Number of dead letters.
    letters: AtomicU64,
}

impl<A: StreamApi> FlawedStream<A> {
    /// Wraps a stream with one flaw or none.
    pub fn new(inner: A, flaw: ConsumerFlaw) -> Self {
        let (expired, letters) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { inner, flaw, expired, again: Mutex::default(), letters }
    }

    /// Returns true if the flaw affects this dead letter.
    fn now_and_then(&self) -> bool {
        self.letters.fetch_add(1, Ordering::Relaxed) % NOW_AND_THEN == NOW_AND_THEN - 1
    }

    async fn apply_flaw(
        &self,
        stream: &StreamName,
        (iterator, limit): (&ShardIterator, u32),
        mut fetched: FetchedRecords,
    ) -> Result<FetchedRecords, StreamError> {
        match self.flaw {
            ConsumerFlaw::DropsTheLast if fetched.records.len() > 1 => {
                fetched.records.pop();
            }
            ConsumerFlaw::ReversesAReply => fetched.records.reverse(),
            ConsumerFlaw::RepeatsAReply => {
                let came = fetched.records.clone();
                if let Some(before) = self.again().remove(&iterator.0) {
                    fetched.records.splice(0..0, before);
                }
                if let Some(next) = fetched.next.as_ref().filter(|_| !came.is_empty()) {
                    self.again().insert(Arc::clone(&next.0), came);
                }
            }
            ConsumerFlaw::EndsOneReplyEarly if !fetched.records.is_empty() => {
                if let Some(next) = &fetched.next
                    && let Ok(last) = self.inner.records(stream, next, limit).await
                    && last.next.is_none()
                {
                    (fetched.next, fetched.children) = (None, last.children);
                }
            }
            ConsumerFlaw::DropsTheLastPart => {
                fetched.records = fetched.records.into_iter().map(without_the_last).collect();
            }
            ConsumerFlaw::CutsData => fetched.records.iter_mut().for_each(cut),
            _ => {}
        }
        Ok(fetched)
    }

    fn again(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Vec<Record>>> {
        self.again.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Truncates a plain record. An aggregate is left alone: truncated, it would no longer be one.
fn cut(record: &mut Record) {
    if let DecodedAggregate::Plain(_) = decode(record, HashRange::ALL) {
        record.data.truncate(record.data.len().saturating_sub(3));
    }
}

/// Returns an aggregate without its last record.
fn without_the_last(record: Record) -> Record {
    let DecodedAggregate::Records(parts) = decode(&record, HashRange::ALL) else { return record };
    let parts: Vec<UserRecord> = parts.collect();
    let Some((_, kept)) = parts.split_last().filter(|(_, kept)| !kept.is_empty()) else {
        return record;
    };
    let mut builder = AggregateBuilder::new();
    for part in kept {
        let entry = encode::AggregateRecord {
            partition_key: part.partition_key.as_str(),
            explicit_hash_key: part.explicit_hash_key,
            data: &part.data,
        };
        builder.add_within(&entry, usize::MAX);
    }
    // A single record is sent without an aggregate, and has no index inside one.
    match builder.close().filter(|_| kept.len() > 1) {
        Some(container) => Record { data: container.seal().data, ..record },
        None => record,
    }
}

/// A subscription that loses the last record of each event.
struct ShortenedSubscription(Subscription);

impl Stream for ShortenedSubscription {
    type Item = Result<SubscriptionEvent, StreamError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut event = self.0.as_mut().poll_next(context);
        if let Poll::Ready(Some(Ok(event))) = &mut event
            && event.records.len() > 1
        {
            event.records.pop();
        }
        event
    }
}

impl<A: StreamApi> StreamApi for FlawedStream<A> {
    async fn describe(&self, stream: &StreamName) -> Result<StreamSummary, StreamError> {
        self.inner.describe(stream).await
    }

    async fn list_shards(
        &self,
        stream: &StreamName,
        filter: ShardFilter,
    ) -> Result<ShardList, StreamError> {
        self.inner.list_shards(stream, filter).await
    }

    async fn iterator(
        &self,
        stream: &StreamName,
        shard: &ShardId,
        at: ReadFrom,
    ) -> Result<ShardIterator, StreamError> {
        let renews = self.expired.swap(false, Ordering::Relaxed);
        let at = match (self.flaw, at) {
            (ConsumerFlaw::RenewsAtLatest, ReadFrom::After(_)) if renews => ReadFrom::Latest,
            (ConsumerFlaw::BeginsAtLatest, ReadFrom::TrimHorizon) => ReadFrom::Latest,
            (_, at) => at,
        };
        self.inner.iterator(stream, shard, at).await
    }

    async fn records(
        &self,
        stream: &StreamName,
        iterator: &ShardIterator,
        limit: u32,
    ) -> Result<FetchedRecords, StreamError> {
        match self.inner.records(stream, iterator, limit).await {
            Ok(fetched) => self.apply_flaw(stream, (iterator, limit), fetched).await,
            Err(error) => {
                if error.fault == Fault::IteratorExpired {
                    self.expired.store(true, Ordering::Relaxed);
                }
                Err(error)
            }
        }
    }

    async fn register_consumer(
        &self,
        stream: &StreamSummary,
        name: &str,
    ) -> Result<FanOutConsumer, StreamError> {
        self.inner.register_consumer(stream, name).await
    }

    async fn describe_consumer(
        &self,
        stream: &StreamSummary,
        name: &str,
    ) -> Result<FanOutConsumer, StreamError> {
        self.inner.describe_consumer(stream, name).await
    }

    async fn deregister_consumer(&self, consumer: &FanOutConsumer) -> Result<(), StreamError> {
        self.inner.deregister_consumer(consumer).await
    }

    async fn subscribe(
        &self,
        consumer: &FanOutConsumer,
        shard: &ShardId,
        at: ReadFrom,
    ) -> Result<Subscription, StreamError> {
        let events = self.inner.subscribe(consumer, shard, at).await?;
        Ok(match self.flaw {
            ConsumerFlaw::DropsTheLastPushed => Box::pin(ShortenedSubscription(events)),
            _ => events,
        })
    }

    async fn put_records(
        &self,
        stream: &StreamName,
        entries: &[PutEntry],
    ) -> Result<Vec<PutEntryResult>, StreamError> {
        self.inner.put_records(stream, entries).await
    }

    async fn put_record(
        &self,
        stream: &StreamName,
        entry: &PutEntry,
        after: Option<SequenceNumber>,
    ) -> Result<Placement, StreamError> {
        match self.flaw {
            ConsumerFlaw::LosesDeadLetter if self.now_and_then() => Ok(Placement {
                shard: ShardId::from_index(0),
                sequence: SequenceNumber::from_limbs(0, 0, 1).expect("1 is a sequence number"),
            }),
            ConsumerFlaw::CutsDeadLetter if self.now_and_then() => {
                let mut entry = entry.clone();
                entry.data.truncate(entry.data.len().saturating_sub(3));
                self.inner.put_record(stream, &entry, after).await
            }
            _ => self.inner.put_record(stream, entry, after).await,
        }
    }
}
