//! Requests for the summary of a stream: one worker sends one for all of its shards.

use crate::world::{ConsumerFixture, RunningWorker, STREAM, pause};
use anabranch::clock::{Clock, Rng};
use anabranch::consumer::{Consumer, Delivery, FetchMode, HandlerError, RunError};
use anabranch::event::{Event, Events, LeaseEvent, ShardEvent};
use anabranch::stream::LocalKinesis;
use anabranch::stream::api::{
    FanOutConsumer, ReadFrom, StreamApi, StreamError, StreamSummary, Subscription,
};
use anabranch_local::fault::FaultEffect;
use anabranch_local::op::{
    Operation, StreamTarget, increase_stream_retention_period, register_stream_consumer,
};
use anabranch_model::ids::{ShardId, StreamName};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const HOUR_MS: u64 = 3_600_000;
const SHARDS: u8 = 40;

/// Counts of the calls that concern a stream as a whole.
#[derive(Default)]
struct DescribeCalls {
    summaries: AtomicUsize,
    consumers: AtomicUsize,
}

impl DescribeCalls {
    fn take(of: &AtomicUsize) -> usize {
        of.swap(0, Ordering::Relaxed)
    }
}

/// A client that counts them. A reply takes 20 ms, and replies differ in the fraction of the second
/// in which the stream was created.
struct CountingStream {
    local: LocalKinesis,
    calls: Arc<DescribeCalls>,
}

impl StreamApi for CountingStream {
    delegate!(local: list_shards iterator records put_records put_record);

    async fn describe(&self, stream: &StreamName) -> Result<StreamSummary, StreamError> {
        let asked = self.calls.summaries.fetch_add(1, Ordering::Relaxed);
        pause(20).await;
        let mut summary = self.local.describe(stream).await?;
        summary.created_ms = summary.created_ms / 1_000 * 1_000 + asked as u64 * 100 % 1_000;
        Ok(summary)
    }

    async fn register_consumer(
        &self,
        stream: &StreamSummary,
        name: &str,
    ) -> Result<FanOutConsumer, StreamError> {
        self.calls.consumers.fetch_add(1, Ordering::Relaxed);
        pause(20).await;
        self.local.register_consumer(stream, name).await
    }

    async fn describe_consumer(
        &self,
        stream: &StreamSummary,
        name: &str,
    ) -> Result<FanOutConsumer, StreamError> {
        self.calls.consumers.fetch_add(1, Ordering::Relaxed);
        pause(20).await;
        self.local.describe_consumer(stream, name).await
    }

    async fn deregister_consumer(&self, consumer: &FanOutConsumer) -> Result<(), StreamError> {
        self.local.deregister_consumer(consumer).await
    }

    async fn subscribe(
        &self,
        consumer: &FanOutConsumer,
        shard: &ShardId,
        at: ReadFrom,
    ) -> Result<Subscription, StreamError> {
        self.local.subscribe(consumer, shard, at).await
    }
}

impl ConsumerFixture {
    fn counting(
        &self,
        fetch: FetchMode,
    ) -> (Consumer<CountingStream, anabranch::lease::MemoryStore>, Arc<DescribeCalls>) {
        let (calls, told) = (Arc::<DescribeCalls>::default(), Arc::clone(&self.events));
        let local = LocalKinesis::new(Arc::clone(&self.engine));
        let consumer = Consumer::new(STREAM, "mailer")
            .with_kinesis(CountingStream { local, calls: Arc::clone(&calls) })
            .with_leases(self.leases.clone())
            .with_clock(Clock::of_runtime(), Rng::seeded(1))
            .with_events(Events::new(move |event| told.lock().unwrap().push(event.clone())))
            .with_settings(|settings| {
                settings.fetch = fetch;
                settings.plan.max_leases = usize::MAX;
            });
        (consumer, calls)
    }

    /// Puts `count` records into every shard.
    fn put_everywhere(&self, count: usize) {
        for (_, start, _) in self.open_shards() {
            (0..count).for_each(|_| self.put_at(start));
        }
    }

    fn put_at(&self, hash: u128) {
        let entry = anabranch_local::op::put_records::PutRecordsEntry {
            partition_key: std::borrow::Cow::Borrowed("k"),
            explicit_hash_key: Some(std::borrow::Cow::Owned(hash.to_string())),
            data: anabranch_local::op::put_records::Payload::Raw(b"x"),
        };
        let request = anabranch_local::op::put_record::Request {
            stream: anabranch_local::StreamRef::named(STREAM),
            entry,
            sequence_number_for_ordering: None,
        };
        self.engine.put_record(&request).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_far_behind_asks_for_the_retention_once_for_all_shards() {
    for fetch in [FetchMode::Poll, FetchMode::FanOut] {
        let clock = anabranch_local::Clock::manual(1_700_000_000_000);
        let world = ConsumerFixture::by(clock.clone(), i64::from(SHARDS));
        let longer = increase_stream_retention_period::Request {
            stream: StreamTarget::named(STREAM),
            retention_period_hours: Some(72),
        };
        world.engine.increase_stream_retention_period(&longer).unwrap();
        let hangs = Arc::new(AtomicBool::new(true));
        let handled = Arc::new(AtomicUsize::new(0));
        let (hang, count) = (Arc::clone(&hangs), Arc::clone(&handled));
        let (consumer, calls) = world.counting(fetch);
        let consumer = consumer.with_settings(|settings| {
            settings.lane_records = 1;
            settings.watchdog.handler_ms = 24 * HOUR_MS;
            settings.lease_time = Duration::from_millis(HOUR_MS);
            settings.audit_interval = Duration::from_millis(24 * HOUR_MS);
        });
        let worker = RunningWorker::start(consumer.each(move |_: Delivery| {
            let (hang, count) = (Arc::clone(&hang), Arc::clone(&count));
            async move {
                while hang.load(Ordering::Relaxed) {
                    pause(60_000).await;
                }
                count.fetch_add(1, Ordering::Relaxed);
                Ok::<(), HandlerError>(())
            }
        }));
        // More than the lanes hold, so that no more is requested.
        world.put_everywhere(300);
        pause(10_000).await;
        let step_ms = HOUR_MS / 6;
        for _ in 0..25 * 6 {
            clock.advance(step_ms);
            tokio::time::advance(Duration::from_millis(step_ms)).await;
            pause(1).await;
        }
        world.put_everywhere(1);
        DescribeCalls::take(&calls.summaries);
        hangs.store(false, Ordering::Relaxed);
        let all = 301 * usize::from(SHARDS);
        world.until("all come", || handled.load(Ordering::Relaxed) >= all).await;
        let asked = DescribeCalls::take(&calls.summaries);
        worker.stop().await;
        // One for the readers, and one where an audit falls into the same time.
        assert!((1..=2).contains(&asked), "{asked} questions by {SHARDS} shards, {fetch:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_denied_registration_is_tried_once_for_all_shards() {
    let world = ConsumerFixture::ticking(i64::from(SHARDS));
    world.strike(Operation::RegisterStreamConsumer, FaultEffect::Deny, 0, 10_000);
    let (consumer, calls) = world.counting(FetchMode::FanOut);
    let worker = RunningWorker::start(consumer.each(world.note("one")));
    let failing = |event: &Event| matches!(event, Event::Shard(ShardEvent::FetchFailed { .. }));
    world.until("it is denied", || world.told(failing)).await;
    pause(120_000).await;
    // Pauses of ten seconds at most, and of five on average.
    let (summaries, consumers) =
        (DescribeCalls::take(&calls.summaries), DescribeCalls::take(&calls.consumers));
    assert!(summaries < 40, "{summaries} questions in two minutes");
    assert!(consumers < 80, "{consumers} attempts in two minutes");
    world.engine.faults().clear();
    (0..10).for_each(|_| world.put_round(10));
    world.until_all_seen().await;
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn another_fraction_of_the_second_is_no_other_stream() {
    let world = ConsumerFixture::ticking(2);
    let (consumer, calls) = world.counting(FetchMode::Poll);
    let consumer =
        consumer.with_settings(|settings| settings.audit_interval = Duration::from_secs(1));
    let worker = RunningWorker::start(consumer.each(world.note("one")));
    for _ in 0..20 {
        world.put_round(10);
        pause(1_000).await;
    }
    world.until_all_seen().await;
    assert!(DescribeCalls::take(&calls.summaries) > 10, "it was asked for");
    let recreated =
        |event: &Event| matches!(event, Event::Lease(LeaseEvent::StreamRecreated { .. }));
    assert!(!world.told(recreated));
    worker.stop().await;
}

/// Registers consumers of other names.
fn register_others(world: &ConsumerFixture, count: usize) {
    for other in 0..count {
        let request = register_stream_consumer::Request {
            stream: StreamTarget::named(STREAM),
            consumer_name: Some(format!("other-{other}")),
            tags: None,
        };
        world.engine.register_stream_consumer(&request).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_with_all_its_fan_out_consumers_is_an_error_with_the_way_out() {
    let world = ConsumerFixture::ticking(2);
    register_others(&world, 20);
    let worker = RunningWorker::start(world.consumer(1).with_fan_out().each(world.note("one")));
    let ended = tokio::time::timeout(Duration::from_mins(1), worker.stopped()).await;
    let error = match ended.expect("it tries for ever") {
        Err(error @ RunError::FanOutLimit { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    for part in
        ["stream/orders", "20", "mailer", "list-stream-consumers", "deregister-stream-consumer"]
    {
        assert!(error.contains(part), "{error} names {part}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_throttled_registration_is_tried_again() {
    let world = ConsumerFixture::ticking(2);
    register_others(&world, 19);
    world.strike(Operation::RegisterStreamConsumer, FaultEffect::Throttle, 0, 5);
    let worker = RunningWorker::start(world.consumer(1).with_fan_out().each(world.note("one")));
    world.put_round(10);
    world.until_all_seen().await;
    worker.stop().await;
}
