//! Memory: many shards under one budget while a handler hangs, and a handler that puts.

use crate::world::{ConsumerFixture, RunningWorker, STREAM, pause};
use anabranch::clock::{Clock, Rng};
use anabranch::consumer::{Consumer, Delivery, HandlerError};
use anabranch::producer::{Outcome, Producer};
use anabranch::stream::LocalKinesis;
use anabranch::stream::api::{
    FanOutConsumer, FetchedRecords, ReadFrom, ShardIterator, StreamApi, StreamError, Subscription,
    SubscriptionEvent,
};
use anabranch_local::StreamRef;
use anabranch_local::op::create_stream;
use anabranch_local::op::put_records::{self, Payload};
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::retry::Fault;
use bytes::Bytes;
use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

const SHARDS: i64 = 1_000;
const RECORDS: usize = 10;
const RECORD_BYTES: usize = 10 * 1024;
const BUDGET: usize = 64 << 20;

/// Bytes allocated for records: the current value and the maximum.
#[derive(Clone, Default)]
struct AllocationCounter(Arc<(AtomicUsize, AtomicUsize)>);

impl AllocationCounter {
    /// Returns a copy that is counted until it is freed.
    fn copy(&self, data: &[u8]) -> Bytes {
        let now = self.0.0.fetch_add(data.len(), Ordering::Relaxed) + data.len();
        self.0.1.fetch_max(now, Ordering::Relaxed);
        Bytes::from_owner(CountedBytes { data: data.to_vec(), allocated: self.clone() })
    }

    fn most(&self) -> usize {
        self.0.1.load(Ordering::Relaxed)
    }
}

struct CountedBytes {
    data: Vec<u8>,
    allocated: AllocationCounter,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.allocated.0.0.fetch_sub(self.data.len(), Ordering::Relaxed);
    }
}

/// The local stream as seen over a network: replies are delayed, and have memory of their own.
pub(crate) struct SlowStream {
    local: LocalKinesis,
    allocated: AllocationCounter,
    /// Number of subscriptions that end before their first event.
    hang_ups: usize,
    /// Number of subscriptions requested so far.
    subscribed: Arc<AtomicUsize>,
    /// Maximum number of records in a reply: a larger reply never arrives complete.
    widest: usize,
    /// True if the next read of records panics.
    breaks: Arc<AtomicBool>,
}

impl SlowStream {
    pub(crate) fn new(local: LocalKinesis) -> Self {
        Self {
            local,
            allocated: AllocationCounter::default(),
            hang_ups: 0,
            subscribed: Arc::default(),
            widest: usize::MAX,
            breaks: Arc::default(),
        }
    }

    /// Creates a stream whose connection is too slow for replies of more than `widest` records.
    pub(crate) fn narrow(local: LocalKinesis, widest: usize) -> Self {
        Self { widest, ..Self::new(local) }
    }

    /// Creates a stream that panics after a read of records, once for each time that the flag is
    /// set.
    pub(crate) fn breaking(local: LocalKinesis) -> (Self, Arc<AtomicBool>) {
        let remote = Self::new(local);
        let breaks = Arc::clone(&remote.breaks);
        (remote, breaks)
    }

    /// Creates a stream whose first subscriptions end before their first event. Also returns the
    /// number of requested subscriptions.
    pub(crate) fn hanging_up(local: LocalKinesis, hang_ups: usize) -> (Self, Arc<AtomicUsize>) {
        let remote = Self { hang_ups, ..Self::new(local) };
        let subscribed = Arc::clone(&remote.subscribed);
        (remote, subscribed)
    }
}

/// A subscription that has ended.
struct EndedSubscription;

impl futures_core::Stream for EndedSubscription {
    type Item = Result<SubscriptionEvent, StreamError>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(None)
    }
}

impl StreamApi for SlowStream {
    delegate!(local: describe list_shards iterator consumers put_records put_record);

    async fn records(
        &self,
        stream: &StreamName,
        iterator: &ShardIterator,
        limit: u32,
    ) -> Result<FetchedRecords, StreamError> {
        let mut fetched = self.local.records(stream, iterator, limit).await?;
        for record in &mut fetched.records {
            record.data = self.allocated.copy(&record.data);
        }
        pause(30).await;
        let came = !fetched.records.is_empty();
        assert!(!came || !self.breaks.swap(false, Ordering::Relaxed), "on purpose");
        if fetched.records.len() > self.widest {
            return Err(StreamError {
                fault: Fault::ReplyLost,
                operation: "GetRecords",
                target: stream.to_string(),
                detail: "the line was too slow".to_owned(),
                source: None,
            });
        }
        Ok(fetched)
    }

    async fn subscribe(
        &self,
        consumer: &FanOutConsumer,
        shard: &ShardId,
        at: ReadFrom,
    ) -> Result<Subscription, StreamError> {
        pause(1).await;
        if self.subscribed.fetch_add(1, Ordering::Relaxed) < self.hang_ups {
            return Ok(Box::pin(EndedSubscription));
        }
        self.local.subscribe(consumer, shard, at).await
    }
}

/// Puts a hundred kilobytes into every shard.
fn fill(world: &ConsumerFixture) {
    let data = vec![b'x'; RECORD_BYTES];
    for (_, start, _) in world.open_shards() {
        let entry = || put_records::PutRecordsEntry {
            partition_key: Cow::Owned(start.to_string()),
            explicit_hash_key: Some(Cow::Owned(start.to_string())),
            data: Payload::Raw(&data),
        };
        let request = put_records::Request {
            stream: StreamRef::named(STREAM),
            records: (0..RECORDS).map(|_| entry()).collect(),
        };
        let reply = world.engine.put_records(&request).unwrap();
        assert_eq!(reply.failed, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_shards_stay_within_the_budget_while_one_handler_hangs_and_the_others_go_on() {
    let world = ConsumerFixture::ticking(SHARDS);
    fill(&world);
    let (allocated, handled) = (AllocationCounter::default(), Arc::new(AtomicUsize::new(0)));
    let local = LocalKinesis::new(Arc::clone(&world.engine));
    let count = Arc::clone(&handled);
    let consumer = Consumer::new(STREAM, "mailer")
        .with_kinesis(SlowStream { allocated: allocated.clone(), ..SlowStream::new(local) })
        .with_leases(world.leases.clone())
        .with_clock(Clock::of_runtime(), Rng::seeded(1))
        .with_settings(|settings| settings.memory_bytes = BUDGET)
        .each(move |record: Delivery| {
            let count = Arc::clone(&count);
            async move {
                if record.partition_key.as_str() == "0" {
                    std::future::pending::<()>().await;
                }
                // Slow enough that replies pile up.
                pause(50).await;
                count.fetch_add(1, Ordering::Relaxed);
                Ok::<(), HandlerError>(())
            }
        });
    let health = consumer.health();
    let worker = RunningWorker::start(
        consumer.with_settings(|settings| settings.grace_period = Duration::from_secs(1)),
    );
    let others = (usize::try_from(SHARDS).unwrap() - 1) * RECORDS;
    world.until("the others are done", || handled.load(Ordering::Relaxed) == others).await;
    let (most, in_all) = (allocated.most(), RECORDS * RECORD_BYTES * 1_000);
    println!("{most} bytes of {in_all} were allocated at once, with a budget of {BUDGET}");
    assert!(most <= BUDGET, "{most} bytes were allocated at once");
    assert!(most > BUDGET / 8, "the budget was put to use: {most}");
    assert_eq!(health.memory_bytes().1, BUDGET);
    // And once more: the hanging handler does not delay later records.
    fill(&world);
    world.until("the others go on", || handled.load(Ordering::Relaxed) == 2 * others).await;
    assert!(allocated.most() <= BUDGET, "{} bytes were allocated at once", allocated.most());
    assert_eq!(worker.stop_short().await.len(), 1, "the one that hangs");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_puts_makes_progress_while_the_prefetch_is_full() {
    let world = ConsumerFixture::ticking(2);
    let request = create_stream::Request {
        stream_name: Some("mails".to_owned()),
        shard_count: Some(1),
        ..Default::default()
    };
    world.engine.create_stream(&request).unwrap();
    let data = vec![b'x'; 100 * 1024];
    (0..400).for_each(|key| world.put_data(&format!("key-{key}"), &data));
    let api = LocalKinesis::new(Arc::clone(&world.engine));
    let producer = Producer::new("mails").with_buffer_bytes(256 * 1024);
    let clock = Clock::of_runtime();
    let producer = producer.with_clock(clock).with_rng(Rng::seeded(3));
    let producer = producer.with_kinesis(api).start().await.unwrap();
    let (producer, placed) = (Arc::new(producer), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&placed);
    let consumer = world.consumer(1).with_settings(|settings| settings.memory_bytes = 16 << 20);
    let worker = RunningWorker::start(consumer.each(move |record: Delivery| {
        let (producer, count) = (Arc::clone(&producer), Arc::clone(&count));
        async move {
            let ticket = producer.put(record.partition_key.as_str(), record.data.clone()).await?;
            match ticket.await {
                Outcome::Placed { .. } => count.fetch_add(1, Ordering::Relaxed),
                other => return Err(HandlerError::from(format!("{other:?}"))),
            };
            Ok(())
        }
    }));
    world.until("everything is put", || placed.load(Ordering::Relaxed) == 400).await;
    worker.stop().await;
}
