//! Enhanced fan-out: subscriptions one after another, each behind the last.
//!
//! ```text
//! register ─► subscribe ─► event ─► lanes ─┐
//!                ▲  ▲        └─────────────┤ next event
//!                │  └── five minutes over ─┤ behind the continuation, at once
//!                └───── failed: a pause ───┤
//!                └───── ended, no proof ───┘
//! ```

use super::retention::RetentionTracker;
use super::shard_end::{EndClaim, ShardEndTracker};
use super::{FAILED, FetchContext, FetchEnd};
use crate::consumer::dispatch::dispatcher::ReadReply;
use crate::consumer::health::telemetry::FetchStep;
use crate::stream::api::{
    ChildShard, FanOutConsumer, ReadFrom, StreamApi, StreamError, StreamSummary, Subscription,
    SubscriptionEvent,
};
use crate::stream::summaries::{MaxAge, SharedError};
use anabranch_model::ids::{StreamName, is_arn};
use anabranch_model::retry::Fault;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, PoisonError};
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;

/// The pause between two looks at a consumer that is not active yet.
const REGISTERING_MS: u64 = 500;
/// The longest pause after a subscription that another one is in the way of: the service frees the
/// place after five seconds.
const BUSY_MS: u64 = 5_000;

/// Whom a worker subscribes as: one registered consumer a stream, for all workers of the
/// application.
#[derive(Debug)]
pub(in crate::consumer) struct FanOutRegistry {
    /// The consumer's name, which is the application's.
    name: String,
    /// The consumer of each stream. A look-up holds up the others of its own stream only.
    known: std::sync::Mutex<BTreeMap<StreamName, KnownConsumer>>,
    /// Why no consumer can be registered on a stream until an operator removes another one.
    full: watch::Sender<Option<ConsumerLimitReached>>,
}

/// A stream with as many consumers as the service allows.
#[derive(Clone, Debug)]
pub(in crate::consumer) struct ConsumerLimitReached {
    /// Its ARN.
    pub(in crate::consumer) arn: String,
    /// The name that the consumer would have.
    pub(in crate::consumer) name: String,
    /// The service's words.
    pub(in crate::consumer) detail: String,
}

/// The consumer of one stream.
type KnownConsumer = Arc<Mutex<ConsumerLookup>>;

/// What is known of the consumer of one stream.
#[derive(Debug, Default)]
struct ConsumerLookup {
    /// The consumer, once it was found or registered.
    found: Option<FanOutConsumer>,
    /// Attempts in a row that failed.
    failures: u32,
    /// The last failure, which holds for all shards until this moment.
    failed: Option<(u64, SharedError)>,
}

impl ConsumerLookup {
    /// What the last attempt came to, while that holds.
    fn last(&self, now_ms: u64) -> Option<Result<FanOutConsumer, StreamError>> {
        if let Some(consumer) = &self.found {
            return Some(Ok(consumer.clone()));
        }
        let failed = self.failed.as_ref().filter(|(until_ms, _)| now_ms < *until_ms);
        failed.map(|(_, error)| Err(error.clone().into_error()))
    }

    fn note(&mut self, now_ms: u64, entropy: u64, outcome: &Result<FanOutConsumer, StreamError>) {
        match outcome {
            Ok(consumer) => *self = Self { found: Some(consumer.clone()), ..Self::default() },
            Err(error) => {
                self.failures = self.failures.saturating_add(1);
                let pause_ms = FAILED.wait_ms(self.failures, entropy);
                self.failed = Some((now_ms.saturating_add(pause_ms), SharedError::of(error)));
            }
        }
    }
}

impl FanOutRegistry {
    pub(in crate::consumer) fn new(application: &str) -> Self {
        let full = watch::Sender::new(None);
        Self { name: application.to_owned(), known: std::sync::Mutex::default(), full }
    }

    /// Waits until a stream turns out to have as many consumers as the service allows.
    pub(in crate::consumer) async fn wait_limit_reached(&self) -> ConsumerLimitReached {
        let mut full = self.full.subscribe();
        match full.wait_for(Option::is_some).await.map(|full| full.clone()) {
            Ok(Some(full)) => full,
            // The sender is this registry's own.
            _ => std::future::pending().await,
        }
    }

    /// The consumer of a stream, registered if nobody has done it.
    async fn consumer<A: StreamApi>(
        &self,
        source: &FetchContext<A>,
    ) -> Result<FanOutConsumer, StreamError> {
        let stream = &source.feed.shard.stream;
        // One look-up at a time, and one for all shards: the service allows few.
        let known = self.known(stream);
        let mut known = known.lock().await;
        if let Some(last) = known.last(source.clock.now_ms()) {
            return last;
        }
        let outcome = self.look_up(source).await;
        known.note(source.clock.now_ms(), source.chance.bits(), &outcome);
        outcome
    }

    /// Looks the consumer up, and registers it unless another worker did.
    async fn look_up<A: StreamApi>(
        &self,
        source: &FetchContext<A>,
    ) -> Result<FanOutConsumer, StreamError> {
        let api = &source.api;
        let summary = source.summary(MaxAge::FRESH).await?;
        let mut refused = false;
        loop {
            let found = api.describe_consumer(&summary, &self.name);
            let found = match source.in_time("DescribeStreamConsumer", found).await {
                // One that is named by its ARN belongs to an operator, perhaps of another account.
                Err(error) if error.fault == Fault::Missing && !is_arn(&self.name) => {
                    let made = api.register_consumer(&summary, &self.name);
                    match source.in_time("RegisterStreamConsumer", made).await {
                        // Another worker was faster.
                        Err(error) if error.fault == Fault::Busy => None,
                        Err(error) if error.fault == Fault::LimitReached => {
                            // Another worker may have registered the last one, by this name.
                            if refused {
                                self.emit_limit_reached(&summary, &error);
                                return Err(error);
                            }
                            refused = true;
                            None
                        }
                        made => Some(made?),
                    }
                }
                found => Some(found?),
            };
            if let Some(consumer) = found.filter(|consumer| consumer.active) {
                return Ok(consumer);
            }
            source.clock.sleep(REGISTERING_MS).await;
        }
    }

    fn emit_limit_reached(&self, stream: &StreamSummary, error: &StreamError) {
        let (arn, name) = (stream.arn.clone(), self.name.clone());
        self.full.send_replace(Some(ConsumerLimitReached {
            arn,
            name,
            detail: error.detail.clone(),
        }));
    }

    fn known(&self, stream: &StreamName) -> KnownConsumer {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.entry(stream.clone()).or_default().clone()
    }

    /// Forgets a consumer that may have been removed.
    async fn forget(&self, stream: &StreamName) {
        self.known(stream).lock().await.found = None;
    }
}

/// Removes the fan-out consumer of an application from a stream, once no worker needs it: it costs
/// money while it is registered. Returns whether there was one.
pub async fn remove_fan_out<A: StreamApi>(
    api: &A,
    stream: &StreamName,
    application: &str,
) -> Result<bool, StreamError> {
    let summary = api.describe(stream).await?;
    match api.describe_consumer(&summary, application).await {
        Ok(consumer) => api.deregister_consumer(&consumer).await.map(|()| true),
        Err(error) if error.fault == Fault::Missing => Ok(false),
        Err(error) => Err(error),
    }
}

/// A shard whose records are pushed.
pub(in crate::consumer) struct FanOutReader<A> {
    /// What fetching needs.
    pub(in crate::consumer) source: FetchContext<A>,
    /// Whom to subscribe as.
    pub(in crate::consumer) registry: Arc<FanOutRegistry>,
}

/// How a subscription ended.
enum SubscriptionEnd {
    /// By its time: the next one begins at once, if this one told anything.
    Over {
        /// Whether an event came.
        told: bool,
    },
    /// With an error.
    Failed(StreamError),
    /// With the shard, as it says, and these children.
    ShardEnd(Vec<ChildShard>),
    /// Because nobody takes the records.
    Unwanted,
}

impl<A: StreamApi> FanOutReader<A> {
    /// Reads from `from` to the end of the shard, or until it is told to stop.
    pub(in crate::consumer) async fn run(
        self,
        from: ReadFrom,
        stop: CancellationToken,
    ) -> FetchEnd {
        tokio::select! {
            biased;
            () = stop.cancelled() => FetchEnd::Stopped,
            end = self.read(from) => end,
        }
    }

    async fn read(self, mut from: ReadFrom) -> FetchEnd {
        let source = &self.source;
        let (mut failures, mut reach) = (0_u32, RetentionTracker::new(from));
        let (mut contest, mut ending) =
            (SubscriptionConflicts::default(), ShardEndTracker::default());
        loop {
            let before = from;
            let error = match self.subscription(&mut from, &mut reach).await {
                SubscriptionEnd::Unwanted => return FetchEnd::Stopped,
                SubscriptionEnd::ShardEnd(named) => match ending.note_end(source, named).await {
                    Ok(EndClaim::Proven(children)) => return FetchEnd::ShardEnd(children),
                    Ok(EndClaim::Doubtful(pause_ms)) => {
                        source.clock.sleep(pause_ms).await;
                        continue;
                    }
                    Err(error) => error,
                },
                SubscriptionEnd::Over { told: true } => {
                    failures = 0;
                    continue;
                }
                // Not by its time: whoever ends a subscription at once may do so again.
                SubscriptionEnd::Over { told: false } => {
                    failures = failures.saturating_add(1);
                    source.clock.sleep(FAILED.wait_ms(failures, source.chance.bits())).await;
                    continue;
                }
                SubscriptionEnd::Failed(error) => error,
            };
            if error.fault == Fault::Missing {
                // The consumer may be gone, or the shard: a poll tells which.
                self.registry.forget(&source.feed.shard.stream).await;
                let key = &source.feed.shard;
                let asked = source.api.iterator(&key.stream, &key.shard, ReadFrom::TrimHorizon);
                let asked = source.in_time("GetShardIterator", asked).await;
                if asked.is_err_and(|error| error.fault == Fault::Missing) {
                    return FetchEnd::Missing;
                }
            }
            // Whoever got on is not failing in a row.
            failures = if before == from { failures.saturating_add(1) } else { 1 };
            let pause_ms = match error.fault {
                Fault::Busy => {
                    let pause_ms = FAILED.wait_ms(failures, source.chance.bits()).min(BUSY_MS);
                    if contest.note_lost(source.clock.now_ms()) {
                        let name = &self.registry.name;
                        let error = format!(
                            "{error}; whoever else subscribes as {name} takes the shard away again \
                             and again: give each application a consumer name of its own"
                        );
                        source.emit_failed(error, failures, pause_ms);
                    }
                    pause_ms
                }
                _ => source.failed(&error, failures),
            };
            source.clock.sleep(pause_ms).await;
        }
    }

    /// Reads one subscription, and moves `from` on.
    async fn subscription(
        &self,
        from: &mut ReadFrom,
        reach: &mut RetentionTracker,
    ) -> SubscriptionEnd {
        match self.events(from, reach).await {
            Ok(end) => end,
            Err(error) => SubscriptionEnd::Failed(error),
        }
    }

    async fn events(
        &self,
        from: &mut ReadFrom,
        reach: &mut RetentionTracker,
    ) -> Result<SubscriptionEnd, StreamError> {
        let (source, vitals) = (&self.source, &self.source.feed.vitals);
        vitals.enter(FetchStep::Iterator);
        *from = source.pin_latest(*from).await?;
        let consumer = self.registry.consumer(source).await?;
        let subscribed = source.api.subscribe(&consumer, &source.feed.shard.shard, *from);
        let mut events = source.in_time("SubscribeToShard", subscribed).await?;
        let share = &source.feed.share;
        let mut told = false;
        // What a subscription pushes after its first event has not waited there, though it may have
        // waited to be taken: it left the service at the event before, at the earliest.
        let mut pushed_ms = source.clock.now_ms();
        let mut waited_ms = reach.waited_ms(pushed_ms);
        loop {
            vitals.enter(FetchStep::Memory);
            let own = share.reserve_push().await;
            vitals.enter(FetchStep::Fetch);
            let event = source.in_time("SubscribeToShard", next(&mut events)).await?;
            let Some(event) = event else { return Ok(SubscriptionEnd::Over { told }) };
            told = true;
            vitals.replied(event.behind_ms);
            let (records, behind_ms) = (event.records, event.behind_ms);
            let last = records.last().map(|record| record.sequence);
            source.note_reached(reach, waited_ms.take(), (pushed_ms, &records, behind_ms)).await;
            pushed_ms = source.clock.now_ms();
            let mut room = None;
            if !records.is_empty() {
                source.fetched(records.len(), behind_ms, None);
                vitals.enter(FetchStep::Memory);
                room = Some(share.move_to_shared(&records, own, &source.clock).await);
            }
            let (at_end, more) = (event.continuation.is_none(), behind_ms > 0);
            let reply = ReadReply { records, room, behind_ms, at_end, more };
            if source.feed.dispatch(reply).await.is_err() {
                return Ok(SubscriptionEnd::Unwanted);
            }
            vitals.enter(FetchStep::Idle);
            let Some(continuation) = event.continuation else {
                *from = last.map_or(*from, ReadFrom::After);
                return Ok(SubscriptionEnd::ShardEnd(event.children));
            };
            *from = ReadFrom::After(continuation);
        }
    }
}

async fn next(events: &mut Subscription) -> Result<Option<SubscriptionEvent>, StreamError> {
    poll_fn(|context| events.as_mut().poll_next(context)).await.transpose()
}

// Subscriptions of one consumer that are in each other's way: a hand-over, or two applications
// under one name.
//
// The service lets a new subscription take the place of one that is five seconds old, and refuses it
// before. A hand-over costs a few refusals within that time. Two that share a consumer's name take
// each shard from each other for ever: each is refused, or thrown out, every few seconds.

/// A hand-over is over by then. Whoever is in the way again after this pause is so for another reason.
const HAND_OVER_MS: u64 = 15_000;

/// The subscriptions of a shard that another one was in the way of.
#[derive(Debug, Default)]
pub(super) struct SubscriptionConflicts {
    /// When the first of them was refused or ended, and when the last.
    since_to_ms: Option<(u64, u64)>,
}

impl SubscriptionConflicts {
    /// Notes that another subscription was in the way. Returns whether a hand-over does not explain
    /// it any more.
    pub(super) fn note_lost(&mut self, now_ms: u64) -> bool {
        let goes_on = |(_, to_ms): &(u64, u64)| now_ms.saturating_sub(*to_ms) <= HAND_OVER_MS;
        let since_ms = self.since_to_ms.filter(goes_on).map_or(now_ms, |(since_ms, _)| since_ms);
        self.since_to_ms = Some((since_ms, now_ms));
        now_ms.saturating_sub(since_ms) >= HAND_OVER_MS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_longer_than_a_hand_over_is_told() {
        let check = |lost_s: &[u64], told_s: &[u64]| {
            let mut contest = SubscriptionConflicts::default();
            let told = |at_s: &u64| contest.note_lost(at_s * 1_000);
            let told: Vec<u64> = lost_s.iter().copied().filter(told).collect();
            assert_eq!(told, told_s, "{lost_s:?}");
        };
        check(&[100, 101, 103, 105], &[]);
        check(&[100, 105, 110, 114, 115, 121], &[115, 121]);
        // Hand-overs that have a pause between them.
        check(&[100, 104, 120, 124, 140], &[]);
        // Thrown out less often than every few seconds, by a slow rival.
        check(&[100, 112, 124, 136], &[124, 136]);
    }
}
