//! A live subscription: one shard is pushed to one consumer, without polling.
//!
//! ```text
//!            records, shard closed, taken over, consumer gone
//!                                │ wakes
//! next() ── step() ──> SubscriptionStep: Event | Quiet { until_ms } | Ended | Failed
//!                 └ at the shard's end: one event with children and no continuation, then Ended
//! ```

use crate::clock::Clock;
use crate::error::ApiError;
use crate::lifecycle::Status;
use crate::limit::PushRate;
use crate::op::ChildShard;
use crate::record_batch::RecordBatch;
use crate::shard::Shard;
use crate::shard_log::ReadLimit;
use crate::stream::Stream;
use anabranch_model::limits;
use anabranch_model::sequence::SequenceNumber;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Limits of one event.
const EVENT_TAKE: ReadLimit = ReadLimit { records: 2_000, bytes: 1024 * 1024 };

/// An event that a subscription pushes.
#[derive(Debug, Clone)]
pub struct SubscriptionEvent {
    /// The records; empty in a heartbeat event.
    pub records: RecordBatch,
    /// The sequence number after which another subscription continues; `None` at the end of the
    /// shard.
    pub continuation: Option<SequenceNumber>,
    /// Distance of the event from the newest record, in milliseconds.
    pub millis_behind_latest: u64,
    /// Children of the shard; empty before the end of the shard.
    pub child_shards: Vec<ChildShard>,
}

/// The next step of a subscription.
#[derive(Debug)]
pub enum SubscriptionStep {
    /// It pushes an event.
    Event(SubscriptionEvent),
    /// It has nothing to push until something arrives or the given time comes.
    Quiet {
        /// The time, in milliseconds since 1970.
        until_ms: u64,
    },
    /// It is over, because its time is up or its shard has ended.
    Ended,
    /// It is over because of an error.
    Failed(ApiError),
}

/// A stream's record of a subscription.
#[derive(Debug)]
pub(crate) struct LiveSubscription {
    started_ms: u64,
    state: Arc<LiveSubscriptionState>,
}

#[derive(Debug, Default)]
struct LiveSubscriptionState {
    /// True once another subscription has taken over.
    taken_over: AtomicBool,
    /// True once the [`Subscription`] has been dropped.
    dropped: AtomicBool,
}

/// The live subscriptions of a stream, by consumer ARN and shard index.
pub(crate) type LiveMap = BTreeMap<(String, u32), LiveSubscription>;

/// Duration and pacing of a subscription.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SubscriptionTerms {
    pub(crate) max_ms: u64,
    pub(crate) heartbeat_ms: u64,
    pub(crate) paced: bool,
}

/// A live subscription.
#[derive(Debug)]
pub struct Subscription {
    stream: Arc<Stream>,
    shard: Arc<Shard>,
    consumer_arn: String,
    /// The counter of the next record to push.
    counter: u64,
    /// Time at which the subscription ends, in milliseconds since 1970.
    ends_ms: u64,
    /// Time at which a heartbeat event is due, in milliseconds since 1970.
    beat_ms: u64,
    /// Interval between heartbeat events, in milliseconds.
    heartbeat_ms: u64,
    /// The consumer's rate on this shard, if limits are on.
    pace: Option<PushRate>,
    /// True once the last event has been pushed or an error returned.
    ended: bool,
    /// True if the next event falsely reports the end of the shard.
    ends_falsely: bool,
    /// State shared with the stream's [`LiveSubscription`].
    state: Arc<LiveSubscriptionState>,
    clock: Clock,
}

impl Subscription {
    /// Begins a subscription. Takes over from an existing one that is old enough; refuses if it is
    /// not.
    pub(crate) fn begin(
        stream: Arc<Stream>,
        shard: Arc<Shard>,
        consumer_arn: String,
        counter: u64,
        clock: Clock,
        terms: SubscriptionTerms,
    ) -> Result<Self, ApiError> {
        let now_ms = clock.now_ms();
        let state = Arc::new(LiveSubscriptionState::default());
        {
            let mut live = crate::lock::lock(&stream.live);
            let young =
                |l: &LiveSubscription| now_ms < l.started_ms + limits::SUBSCRIPTION_GUARD_MS;
            live.retain(|_, l| young(l) || !l.state.dropped.load(Ordering::Relaxed));
            let key = (consumer_arn.clone(), shard.index);
            if live.get(&key).is_some_and(young) {
                return Err(in_use(&consumer_arn, &shard));
            }
            let new = LiveSubscription { started_ms: now_ms, state: Arc::clone(&state) };
            if let Some(old) = live.insert(key, new) {
                old.state.taken_over.store(true, Ordering::Release);
                shard.news.notify_waiters();
            }
        }
        Ok(Self {
            stream,
            shard,
            consumer_arn,
            counter,
            ends_ms: now_ms.saturating_add(terms.max_ms),
            beat_ms: now_ms.saturating_add(terms.heartbeat_ms),
            heartbeat_ms: terms.heartbeat_ms,
            pace: terms.paced.then(|| PushRate::full(now_ms)),
            ended: false,
            ends_falsely: false,
            state,
            clock,
        })
    }

    /// Makes the first event falsely report the end of the shard.
    pub(crate) fn ending_falsely(mut self) -> Self {
        (self.ends_falsely, self.beat_ms) = (true, 0);
        self
    }

    /// Waits for the next event. Returns `None` once the subscription is over.
    pub async fn next(&mut self) -> Option<Result<SubscriptionEvent, ApiError>> {
        let shard = Arc::clone(&self.shard);
        loop {
            // Registers for wake-ups before the step, so that none is missed in between.
            let news = shard.news.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            match self.step() {
                SubscriptionStep::Event(event) => return Some(Ok(event)),
                SubscriptionStep::Failed(error) => return Some(Err(error)),
                SubscriptionStep::Ended => return None,
                SubscriptionStep::Quiet { until_ms } => tokio::select! {
                    biased;
                    () = &mut news => {}
                    () = self.clock.sleep_until(until_ms) => {}
                },
            }
        }
    }

    /// Returns the next step, without waiting.
    pub fn step(&mut self) -> SubscriptionStep {
        let now_ms = self.clock.now_ms();
        if self.ended || now_ms >= self.ends_ms {
            self.ended = true;
            return SubscriptionStep::Ended;
        }
        if self.state.taken_over.load(Ordering::Acquire) {
            return self.fail(in_use(&self.consumer_arn, &self.shard));
        }
        let stream = Arc::clone(&self.stream);
        let topology = stream.read();
        if topology.status(now_ms).is_none_or(|status| status == Status::Deleting) {
            let name = &stream.name;
            return self.fail(ApiError::not_found(format!("Stream {name} is being deleted.")));
        }
        let mut consumers = topology.present_consumers(now_ms);
        if !consumers.any(|(c, s)| c.arn == self.consumer_arn && s == Status::Active) {
            let arn = &self.consumer_arn;
            return self.fail(ApiError::not_found(format!("Consumer {arn} not found.")));
        }
        let wait_ms = self.pace.as_ref().map_or(0, |pace| pace.wait_ms(now_ms));
        if wait_ms > 0 {
            return SubscriptionStep::Quiet {
                until_ms: now_ms.saturating_add(wait_ms).min(self.ends_ms),
            };
        }
        let reading = topology.read_shard(self.shard.index, self.counter, now_ms, EVENT_TAKE);
        if reading.records.is_empty() && reading.end.is_none() && now_ms < self.beat_ms {
            return SubscriptionStep::Quiet { until_ms: self.beat_ms.min(self.ends_ms) };
        }
        self.counter = reading.records.next_counter;
        self.beat_ms = now_ms.saturating_add(self.heartbeat_ms);
        self.ended = self.ends_falsely || reading.end.is_some();
        if let Some(pace) = &mut self.pace {
            pace.pushed(reading.records.bytes(), now_ms);
        }
        // The next subscription requests the records *after* the continuation.
        let reached = self.shard.stamp.number(self.counter.saturating_sub(1));
        SubscriptionStep::Event(SubscriptionEvent {
            records: reading.records,
            continuation: (!self.ended).then_some(reached),
            millis_behind_latest: reading.behind_ms,
            child_shards: reading.end.filter(|_| !self.ends_falsely).unwrap_or_default(),
        })
    }

    fn fail(&mut self, error: ApiError) -> SubscriptionStep {
        self.ended = true;
        SubscriptionStep::Failed(error)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.state.dropped.store(true, Ordering::Relaxed);
    }
}

fn in_use(consumer_arn: &str, shard: &Shard) -> ApiError {
    let id = &shard.id;
    ApiError::in_use(format!(
        "Another active subscription exists for this consumer: {consumer_arn} and shard {id}."
    ))
}
