//! Enhanced fan-out: consecutive subscriptions, each starting after the previous one.
//!
//! ```text
//! register ─► subscribe ─► event ─► lanes ─┐
//!                ▲  ▲        └─────────────┤ next event
//!                │  └── five minutes over ─┤ after the continuation, at once
//!                └───── failed: a pause ───┤
//!                └───── unproven end ──────┘
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

/// Pause between two checks of a consumer that is not active yet.
const REGISTERING_MS: u64 = 500;
/// Maximum pause after a subscription that conflicts with another one: the service frees the place
/// after five seconds.
const BUSY_MS: u64 = 5_000;

/// The registered fan-out consumers of a worker: one per stream, shared by all workers of the
/// application.
#[derive(Debug)]
pub(in crate::consumer) struct FanOutRegistry {
    /// Name or ARN of the consumer; by default the application's name.
    name: String,
    /// The consumer of each stream. A lookup blocks only lookups of the same stream.
    known: std::sync::Mutex<BTreeMap<StreamName, KnownConsumer>>,
    /// Set when no consumer can be registered on a stream until an operator removes one.
    full: watch::Sender<Option<ConsumerLimitReached>>,
}

/// A stream that has as many consumers as the service allows.
#[derive(Clone, Debug)]
pub(in crate::consumer) struct ConsumerLimitReached {
    /// ARN of the stream.
    pub(in crate::consumer) arn: String,
    /// Name under which the consumer would be registered.
    pub(in crate::consumer) name: String,
    /// Error message of the service.
    pub(in crate::consumer) detail: String,
}

/// Shared lookup state of one stream's consumer.
type KnownConsumer = Arc<Mutex<ConsumerLookup>>;

/// Lookup state of one stream's consumer.
#[derive(Debug, Default)]
struct ConsumerLookup {
    /// The consumer, once found or registered.
    found: Option<FanOutConsumer>,
    /// Number of consecutive failed attempts.
    failures: u32,
    /// Last failure, and the time in milliseconds until which all shards get it without another
    /// attempt.
    failed: Option<(u64, SharedError)>,
}

impl ConsumerLookup {
    /// Returns the result of the last attempt while it is valid.
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

    /// Waits until a stream turns out to have reached its limit of consumers.
    pub(in crate::consumer) async fn wait_limit_reached(&self) -> ConsumerLimitReached {
        let mut full = self.full.subscribe();
        match full.wait_for(Option::is_some).await.map(|full| full.clone()) {
            Ok(Some(full)) => full,
            // The registry owns the sender, so the channel cannot close.
            _ => std::future::pending().await,
        }
    }

    /// Returns the active consumer of a stream, and registers it if necessary.
    async fn consumer<A: StreamApi>(
        &self,
        source: &FetchContext<A>,
    ) -> Result<FanOutConsumer, StreamError> {
        let stream = &source.feed.shard.stream;
        // One lookup at a time, whose result all shards share: the API's rate limit is low.
        let known = self.known(stream);
        let mut known = known.lock().await;
        if let Some(last) = known.last(source.clock.now_ms()) {
            return last;
        }
        let outcome = self.look_up(source).await;
        known.note(source.clock.now_ms(), source.chance.bits(), &outcome);
        outcome
    }

    /// Looks up the consumer, and registers it unless another worker did.
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
                // A consumer named by its ARN belongs to an operator, perhaps of another account,
                // so it is never registered here.
                Err(error) if error.fault == Fault::Missing && !is_arn(&self.name) => {
                    let made = api.register_consumer(&summary, &self.name);
                    match source.in_time("RegisterStreamConsumer", made).await {
                        // Another worker has registered the consumer.
                        Err(error) if error.fault == Fault::Busy => None,
                        Err(error) if error.fault == Fault::LimitReached => {
                            // Another worker may have registered the last allowed consumer under
                            // this very name, so the first refusal leads to another lookup.
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

/// Removes the fan-out consumer of an application from a stream. Call it once no worker needs the
/// consumer, because it costs money while it is registered. Returns true if there was one.
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

/// Reads a shard by subscriptions.
pub(in crate::consumer) struct FanOutReader<A> {
    pub(in crate::consumer) source: FetchContext<A>,
    pub(in crate::consumer) registry: Arc<FanOutRegistry>,
}

/// Reason why a subscription ended.
enum SubscriptionEnd {
    /// The service ended the subscription. The next one begins at once if this one delivered an
    /// event.
    Over {
        /// True if at least one event arrived.
        told: bool,
    },
    /// The subscription failed.
    Failed(StreamError),
    /// The last event claimed the end of the shard and named these children.
    ShardEnd(Vec<ChildShard>),
    /// The lanes have stopped.
    Unwanted,
}

impl<A: StreamApi> FanOutReader<A> {
    /// Reads from `from` to the end of the shard, or until `stop` is cancelled.
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
                // A service that ends a subscription without an event may do so again, so this
                // backs off.
                SubscriptionEnd::Over { told: false } => {
                    failures = failures.saturating_add(1);
                    source.clock.sleep(FAILED.wait_ms(failures, source.chance.bits())).await;
                    continue;
                }
                SubscriptionEnd::Failed(error) => error,
            };
            if error.fault == Fault::Missing {
                // Either the consumer or the shard is gone. A request for an iterator tells which.
                self.registry.forget(&source.feed.shard.stream).await;
                let key = &source.feed.shard;
                let asked = source.api.iterator(&key.stream, &key.shard, ReadFrom::TrimHorizon);
                let asked = source.in_time("GetShardIterator", asked).await;
                if asked.is_err_and(|error| error.fault == Fault::Missing) {
                    return FetchEnd::Missing;
                }
            }
            // Failures count as consecutive only while the reading makes no progress.
            failures = if before == from { failures.saturating_add(1) } else { 1 };
            let pause_ms = match error.fault {
                Fault::Busy => {
                    let pause_ms = FAILED.wait_ms(failures, source.chance.bits()).min(BUSY_MS);
                    if contest.note_lost(source.clock.now_ms()) {
                        let name = &self.registry.name;
                        let error = format!(
                            "{error}; another subscriber named {name} takes the shard over \
                             repeatedly: give each application its own fan-out consumer name"
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

    /// Reads one subscription to its end, and advances `from`.
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
        // Only the first event of a subscription has waited in the stream. A later event may have
        // waited to be read here, but it left the service no earlier than the event before it was
        // received.
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

// Conflicts between subscriptions of one consumer: a hand-over, or two applications that share a
// consumer name.
//
// The service lets a new subscription replace one that is at least five seconds old, and refuses it
// before. A hand-over costs a few refusals within that time. Two applications that share a consumer
// name take each shard from each other without end: each is refused or ended every few seconds.

/// Maximum duration of a hand-over. A conflict that follows the last one after a longer pause has
/// another cause.
const HAND_OVER_MS: u64 = 15_000;

/// Conflicts of a shard's subscriptions with others.
#[derive(Debug, Default)]
pub(super) struct SubscriptionConflicts {
    /// Times of the first and the last conflict of the current series, in milliseconds.
    since_to_ms: Option<(u64, u64)>,
}

impl SubscriptionConflicts {
    /// Notes a conflict with another subscription. Returns true if the series is too long for a
    /// hand-over.
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
        // Separate hand-overs, with a pause in between.
        check(&[100, 104, 120, 124, 140], &[]);
        // A slow rival: replaced less often than every few seconds.
        check(&[100, 112, 124, 136], &[124, 136]);
    }
}
