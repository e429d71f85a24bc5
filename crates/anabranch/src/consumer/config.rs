//! `Consumer`, the builder of a consumer, and its settings with defaults and bounds.

use super::control::{ControlCommand, StreamControl};
use super::dead_letter::OnError;
use super::fetch::FetchMode;
use super::health::Health;
use super::modes::closure::{Batch, Delivery, HandlerError, PerBatch, PerRecord};
use super::modes::exactly_once::{ExactlyOnce, TransactionBatch};
use super::modes::processor::{ProcessorFactory, Processors};
use crate::clock::{Clock, Rng};
use crate::event::Events;
use crate::lease::{LeaseStore, StreamSettings, TransactionalStore};
use crate::stream::{FromEnv, IntoStreamApi};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::plan::{self, Balance};
use anabranch_model::limits;
use anabranch_model::position::StartPosition;
use anabranch_model::retry::Backoff;
use anabranch_model::stuck_detector::WatchdogLimits;
use std::fmt;
use std::future::Future;
use std::time::Duration;
use tokio::sync::mpsc;

/// Reads streams for an application. Give it a lease store and a handler, and run it.
///
/// Processes of the same application with the same lease store share the shards. Any number of them
/// can run.
///
/// ```no_run
/// # use anabranch::{Consumer, Delivery, HandlerError, MemoryStore};
/// # async fn run() -> Result<(), HandlerError> {
/// Consumer::new("orders", "mailer")
///     .with_leases(MemoryStore::new()) // one process; SQL or DynamoDB for more
///     .each(|record: Delivery| async move {
///         println!("{}: {:?}", record.partition_key, record.data);
///         Ok::<(), HandlerError>(())
///     })
///     .run()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a consumer does nothing until it runs"]
pub struct Consumer<K = FromEnv, S = (), H = ()> {
    pub(super) settings: ConsumerSettings,
    /// The Kinesis API, or the value from which it is made at the start.
    pub(super) kinesis: K,
    pub(super) store: S,
    pub(super) handler: H,
    /// Commands from [`StreamControl`], if there is one.
    pub(super) control: Option<mpsc::Receiver<ControlCommand>>,
    /// `None` for the machine's clock.
    pub(super) clock: Option<Clock>,
    pub(super) chance: Rng,
    pub(super) health: Health,
    pub(super) events: Events,
}

/// Settings of a consumer. Change them with [`Consumer::with_settings`].
///
/// [`Consumer::run`] checks them, and reports all values out of bounds at once.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConsumerSettings {
    /// Name of the application. Workers of one application share its shards.
    pub application: String,
    /// The streams to read, each with its start position.
    pub streams: Vec<StreamSettings>,
    /// Number of lanes per shard: calls of the handler that may overlap, for different keys.
    /// Default 1, which keeps the order of the whole shard; at most 1,024.
    pub concurrency: usize,
    /// Interval between checkpoints. Default 1 s; 50 ms to 1 h. After a crash, the records done
    /// since the last checkpoint are redelivered.
    pub checkpoint_interval: Duration,
    /// Method by which records are fetched. Default: [`FetchMode::Poll`].
    pub fetch: FetchMode,
    /// Maximum pause between two reads of an idle shard. Default 1.5 s, as in KCL; 200 ms to 1 h.
    /// The service allows five reads per second and shard, shared by all applications.
    pub idle_poll_interval: Duration,
    /// Maximum bytes of records that all shards of this worker hold together. Default 256 MiB; at
    /// least 16 MiB. On top, each shard may hold one record or pushed event, and one chunk of a
    /// lane.
    ///
    /// A read reserves 10 MiB until its reply arrives. The setting therefore also bounds the number
    /// of busy shards that are read concurrently.
    pub memory_bytes: usize,
    /// Maximum number of records queued for one lane. Default 512; 1 to 1,000,000. They count
    /// toward `memory_bytes`.
    pub lane_records: usize,
    /// Time without a heartbeat after which other workers take this worker's shards. Default 10 s;
    /// 1 s to 1 h.
    ///
    /// Workers may use different values, and a rolling deployment may change them, once all workers
    /// run a version that publishes its lease time. In a fleet with workers of KCL for Java, use
    /// their failover time.
    pub lease_time: Duration,
    /// Maximum time for which a stop waits for handlers. Default 20 s; 0 to 1 h.
    pub grace_period: Duration,
    /// Maximum time of a call of [`ShardProcessor::lease_lost`](super::ShardProcessor::lease_lost).
    /// Default 5 s; 1 ms to 1 h. If the lease is released and not lost, at most 5 s.
    pub lease_lost_timeout: Duration,
    /// Backoff after a failed call of the handler. Default: from 100 ms, doubling up to 30 s.
    pub retry: Backoff,
    /// Policy for records whose handler fails. Default: [`OnError::Retry`], without limit.
    pub on_error: OnError,
    /// Times after which a shard counts as stuck, 1 s to 24 h each, and the actions that follow.
    pub watchdog: WatchdogLimits,
    /// Interval at which the metrics of each shard are emitted as an event. Default 10 s; 1 s to
    /// 1 h.
    pub metrics_interval: Duration,
    /// Name of the worker in the lease store. Default: the application's name and the process id.
    /// Each start appends random digits.
    pub worker: Option<String>,
    /// Fan-out consumer to subscribe as: a name, or the ARN of a registered consumer. A stream of
    /// another account needs an ARN. Default: the application's name.
    pub fan_out_name: Option<String>,
    /// Interval at which the lease rows are compared with the stream. Default 1 min; 1 s to 24 h.
    pub audit_interval: Duration,
    /// Limits and settings of lease balancing.
    pub plan: plan::PlanSettings,
}

impl ConsumerSettings {
    fn new(streams: Vec<StreamSettings>, application: String) -> Self {
        Self {
            application,
            streams,
            concurrency: 1,
            checkpoint_interval: Duration::from_secs(1),
            fetch: FetchMode::Poll,
            idle_poll_interval: Duration::from_millis(1_500),
            memory_bytes: 256 << 20,
            lane_records: 512,
            lease_time: Duration::from_secs(10),
            grace_period: Duration::from_secs(20),
            lease_lost_timeout: Duration::from_secs(5),
            retry: Backoff::new(100, 30_000),
            on_error: OnError::Retry,
            watchdog: WatchdogLimits::default(),
            metrics_interval: Duration::from_secs(10),
            worker: None,
            fan_out_name: None,
            audit_interval: Duration::from_mins(1),
            plan: plan::PlanSettings::default(),
        }
    }

    /// Returns the durations, each with its name, and its minimum and maximum in milliseconds.
    fn times(&self) -> [(&'static str, Duration, u64, u64); 12] {
        const HOUR_MS: u64 = 3_600_000;
        const DAY_MS: u64 = 24 * HOUR_MS;
        let watchdog = &self.watchdog;
        let stuck = |name, limit_ms| (name, Duration::from_millis(limit_ms), 1_000, DAY_MS);
        [
            ("checkpoint_interval", self.checkpoint_interval, 50, HOUR_MS),
            ("idle_poll_interval", self.idle_poll_interval, 200, HOUR_MS),
            ("lease_time", self.lease_time, 1_000, HOUR_MS),
            ("audit_interval", self.audit_interval, 1_000, DAY_MS),
            ("grace_period", self.grace_period, 0, HOUR_MS),
            ("lease_lost_timeout", self.lease_lost_timeout, 1, HOUR_MS),
            ("metrics_interval", self.metrics_interval, 1_000, HOUR_MS),
            stuck("watchdog.iterator_ms", watchdog.iterator_ms),
            stuck("watchdog.fetch_ms", watchdog.fetch_ms),
            stuck("watchdog.decode_ms", watchdog.decode_ms),
            stuck("watchdog.handler_ms", watchdog.handler_ms),
            stuck("watchdog.checkpoint_ms", watchdog.checkpoint_ms),
        ]
    }

    /// Checks all settings, and reports all problems at once. `takes_lanes` is true if the
    /// processing mode supports several lanes per shard.
    pub(super) fn check(&self, takes_lanes: bool) -> Result<(), ConsumerConfigError> {
        let mut wrong = Vec::new();
        if !takes_lanes && self.concurrency > 1 {
            wrong.push(format!(
                "concurrency is {}, but this processing mode handles each shard in order: set it \
                 to 1",
                self.concurrency
            ));
        }
        let mut demand = |holds: bool, text: String| {
            if !holds {
                wrong.push(text);
            }
        };
        demand(!self.application.is_empty(), "the application name is empty".to_owned());
        for stream in &self.streams {
            demand(!stream.name.as_str().is_empty(), "a stream name is empty".to_owned());
        }
        let mut bounds = |name: &str, value: u64, least: u64, most: u64| {
            demand(
                (least..=most).contains(&value),
                format!("{name} is {value}, but must be from {least} to {most}"),
            );
        };
        bounds("concurrency", self.concurrency as u64, 1, 1_024);
        let least = limits::GET_RECORDS_MAX_BYTES as u64 * 8 / 5;
        bounds("memory_bytes", self.memory_bytes as u64, least, u64::from(u32::MAX) * 512);
        bounds("lane_records", self.lane_records as u64, 1, 1_000_000);
        bounds("plan.max_leases", self.plan.max_leases as u64, 1, u64::MAX);
        for (name, value, least, most) in self.times() {
            let (least, most) = (Duration::from_millis(least), Duration::from_millis(most));
            demand(
                (least..=most).contains(&value),
                format!("{name} is {value:?}, but must be from {least:?} to {most:?}"),
            );
        }
        let mut bounds = |name: &str, value: u64, least: u64, most: u64| {
            demand(
                (least..=most).contains(&value),
                format!("{name} is {value}, but must be from {least} to {most}"),
            );
        };
        if let Balance::Weight { hysteresis_percent } = self.plan.balance {
            bounds("plan.balance.hysteresis_percent", hysteresis_percent.into(), 1, 1_000);
        }
        if let OnError::DeadLetter { attempts, .. } = &self.on_error {
            bounds("on_error.attempts", u64::from(*attempts), 1, u64::from(u32::MAX));
        }
        if wrong.is_empty() { Ok(()) } else { Err(ConsumerConfigError { wrong }) }
    }
}

/// Invalid settings of a consumer.
#[non_exhaustive]
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConsumerConfigError {
    /// One message per problem.
    pub wrong: Vec<String>,
}

impl fmt::Display for ConsumerConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid consumer settings: {}", self.wrong.join("; "))
    }
}

impl std::error::Error for ConsumerConfigError {}

impl Consumer {
    /// Creates a consumer of `stream` for `application`. It starts at the oldest record if the
    /// application has never read the stream.
    pub fn new(stream: impl Into<StreamName>, application: impl Into<String>) -> Self {
        Self::streams([stream], application)
    }

    /// Creates a consumer of several streams for `application`. [`Consumer::control`] adds more
    /// while it runs.
    pub fn streams(
        streams: impl IntoIterator<Item = impl Into<StreamName>>,
        application: impl Into<String>,
    ) -> Self {
        let start = StartPosition::TrimHorizon;
        let streams = streams.into_iter().map(|name| StreamSettings { name: name.into(), start });
        Self {
            settings: ConsumerSettings::new(streams.collect(), application.into()),
            kinesis: FromEnv,
            store: (),
            handler: (),
            control: None,
            clock: None,
            chance: Rng::of_system(),
            health: Health::default(),
            events: Events::none(),
        }
    }
}

impl<K, S, H> Consumer<K, S, H> {
    /// Reads from `kinesis`: an `SdkConfig`, or any [`StreamApi`](crate::StreamApi). Default: the
    /// region, credentials and endpoint of the environment ([`FromEnv`]).
    pub fn with_kinesis<L: IntoStreamApi>(self, kinesis: L) -> Consumer<L, S, H> {
        let Self { settings, store, handler, control, clock, chance, health, events, .. } = self;
        Consumer { settings, kinesis, store, handler, control, clock, chance, health, events }
    }

    /// Keeps leases and checkpoints in `store`.
    pub fn with_leases<T: LeaseStore>(self, store: T) -> Consumer<K, T, H> {
        let Self { settings, kinesis, handler, control, clock, chance, health, events, .. } = self;
        Consumer { settings, kinesis, store, handler, control, clock, chance, health, events }
    }

    /// Passes the records to `handler`, a [`ProcessingMode`](super::ProcessingMode).
    pub fn with_handler<G>(self, handler: G) -> Consumer<K, S, G> {
        let Self { settings, kinesis, store, control, clock, chance, health, events, .. } = self;
        Consumer { settings, kinesis, store, handler, control, clock, chance, health, events }
    }

    /// Calls `handle` for each record. A record is done when the call returns `Ok`. After an error
    /// or a panic it is delivered again.
    pub fn each<F, T, E>(self, handle: F) -> Consumer<K, S, PerRecord<F>>
    where
        F: Fn(Delivery) -> T + Send + Sync + 'static,
        T: Future<Output = Result<(), E>> + Send,
        E: Into<HandlerError>,
    {
        self.with_handler(PerRecord(handle))
    }

    /// Calls `handle` with batches of 1 to `most` records, each of one lane of one shard. A batch
    /// is done when the call returns `Ok`. After an error or a panic all of it is delivered again.
    pub fn batches<F, T, E>(self, most: usize, handle: F) -> Consumer<K, S, PerBatch<F>>
    where
        F: Fn(Batch) -> T + Send + Sync + 'static,
        T: Future<Output = Result<(), E>> + Send,
        E: Into<HandlerError>,
    {
        self.with_handler(PerBatch { handle, most })
    }

    /// Calls `handle` with batches of 1 to `most` records, each of one lane of one shard, and
    /// stores their effects exactly once.
    ///
    /// `handle` writes its effects in its own transaction, in the database of the leases. As the
    /// last statement it calls [`TransactionBatch::commit`](super::TransactionBatch::commit), and
    /// then commits the transaction. The batch is done if the transaction was committed, whatever
    /// `handle` returns. Otherwise it is delivered again.
    ///
    /// This requires leases in PostgreSQL or SQLite. Other stores do not compile:
    ///
    /// ```compile_fail
    /// # use anabranch::{Consumer, HandlerError, MemoryStore, TransactionBatch};
    /// # async fn run() -> Result<(), HandlerError> {
    /// Consumer::new("orders", "mailer")
    ///     .with_leases(MemoryStore::new())
    ///     .exactly_once(100, |_: TransactionBatch<MemoryStore>| async {
    ///         Ok::<(), HandlerError>(())
    ///     })
    ///     .run()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn exactly_once<F, T, E>(self, most: usize, handle: F) -> Consumer<K, S, ExactlyOnce<F>>
    where
        S: TransactionalStore,
        F: Fn(TransactionBatch<S>) -> T + Send + Sync + 'static,
        T: Future<Output = Result<(), E>> + Send,
        E: Into<HandlerError>,
    {
        self.with_handler(ExactlyOnce { handle, most })
    }

    /// Creates a processor for each shard, as KCL does. The processor writes its own checkpoints,
    /// see [`ShardProcessor`](super::ShardProcessor).
    pub fn processors<F: ProcessorFactory>(self, factory: F) -> Consumer<K, S, Processors<F>> {
        self.with_handler(Processors::new(factory))
    }

    /// Sets the start position of the streams named so far. It applies only to streams that the
    /// application has never read; a checkpoint takes precedence.
    pub fn starting_at(mut self, start: StartPosition) -> Self {
        self.settings.streams.iter_mut().for_each(|stream| stream.start = start);
        self
    }

    /// Reads one more stream, from `start` if the application has never read it.
    pub fn and_stream(mut self, name: impl Into<StreamName>, start: StartPosition) -> Self {
        self.settings.streams.push(StreamSettings { name: name.into(), start });
        self
    }

    /// Returns a handle that adds and removes streams while the consumer runs. A second call
    /// disconnects the first handle; clone the handle instead.
    pub fn control(&mut self) -> StreamControl {
        let (control, requests) = StreamControl::new();
        self.control = Some(requests);
        control
    }

    /// Sets the number of lanes per shard, 1 to 1,024. Default 1. Records of different keys are
    /// handled concurrently; each key stays in order. Modes that process a whole shard in order,
    /// such as [`Consumer::processors`], require 1.
    pub fn with_concurrency(mut self, lanes: usize) -> Self {
        self.settings.concurrency = lanes;
        self
    }

    /// Receives records by enhanced fan-out instead of polling.
    pub fn with_fan_out(mut self) -> Self {
        self.settings.fetch = FetchMode::FanOut;
        self
    }

    /// Balances workers by the bytes per second read from their shards, once their numbers of
    /// shards are balanced. A worker within 20 % of the mean keeps its shards.
    pub fn balanced_by_bytes(mut self) -> Self {
        self.settings.plan.balance = Balance::Weight { hysteresis_percent: 20 };
        self
    }

    /// Sets the policy for records whose handler fails. Default: [`OnError::Retry`].
    pub fn on_error(mut self, policy: OnError) -> Self {
        self.settings.on_error = policy;
        self
    }

    /// Changes any of the settings.
    pub fn with_settings(mut self, change: impl FnOnce(&mut ConsumerSettings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// Returns a handle to the state of the running consumer, for probes and dashboards.
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Passes events to `events`. Default: events are discarded.
    pub fn with_events(mut self, events: Events) -> Self {
        self.events = events;
        self
    }

    /// Uses this clock and this source of random numbers, for tests and simulations.
    pub fn with_clock(mut self, clock: Clock, chance: Rng) -> Self {
        self.clock = Some(clock);
        self.chance = chance;
        self
    }
}

impl<K, S, H> fmt::Debug for Consumer<K, S, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("settings", &self.settings).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_wrong_is_said_at_once() {
        let good = Consumer::new("s", "a");
        assert_eq!(good.settings.check(true), Ok(()));
        let bad = Consumer::new("", "").with_concurrency(0).with_settings(|settings| {
            settings.checkpoint_interval = Duration::from_millis(1);
            settings.memory_bytes = 1;
        });
        let said = bad.settings.check(true).unwrap_err().to_string();
        for part in
            ["application", "stream", "concurrency is 0", "checkpoint_interval is 1ms", "memory"]
        {
            assert!(said.contains(part), "{said} names {part}");
        }
    }
}
