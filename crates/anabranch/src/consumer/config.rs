//! What a consumer is told before it runs.

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

/// Reads streams for an application: give it Kinesis, a lease store and a closure, and run it.
///
/// Run as many processes of the same application as you like: they share the shards among
/// themselves.
///
/// ```no_run
/// # use anabranch::consumer::{Consumer, Delivery, HandlerError};
/// # use anabranch::lease::MemoryStore;
/// # use anabranch_model::lease::Layout;
/// # async fn run() -> Result<(), HandlerError> {
/// Consumer::new("orders", "mailer")
///     .with_kinesis(anabranch::stream::aws::from_env().await?)
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
    /// What it was told.
    pub(super) settings: ConsumerSettings,
    /// Kinesis, or how to reach it.
    pub(super) kinesis: K,
    /// Where the leases are kept.
    pub(super) store: S,
    /// Who is given the records.
    pub(super) handler: H,
    /// Requests for other streams.
    pub(super) control: Option<mpsc::Receiver<ControlCommand>>,
    /// Where it reads the time.
    pub(super) clock: Option<Clock>,
    /// Where it draws random numbers.
    pub(super) chance: Rng,
    /// How it is, for whoever asks.
    pub(super) health: Health,
    /// Who wants to know what happens.
    pub(super) events: Events,
}

/// The settings of a consumer. Change them with [`Consumer::with_settings`].
#[derive(Clone, Debug)]
pub struct ConsumerSettings {
    /// The application: workers of one application share its streams.
    pub application: String,
    /// The streams, and where to start each that the application has never read.
    pub streams: Vec<StreamSettings>,
    /// How many records of one shard are handled at once, of different keys. Default 1: strict
    /// order of the whole shard. At most 1,024.
    pub concurrency: usize,
    /// How often it is written down what is done. Default 1 s; at least 50 ms. After a crash, what
    /// was done since comes again.
    pub checkpoint_interval: Duration,
    /// How records are fetched. Default: polled.
    pub fetch: FetchMode,
    /// The longest pause between two reads of an idle shard. Default 1.5 s, as in KCL; at least 200 ms.
    /// The service allows five reads a second, shared by all applications.
    pub idle_poll_interval: Duration,
    /// Bytes of records that all shards of this worker hold together; one record of each shard comes
    /// on top. Default 256 MiB; 16 at least. Each read reserves 10 MiB until its reply is there, so
    /// this also bounds how many shards that have much to read are read at once.
    pub memory_bytes: usize,
    /// Records that wait in front of one lane. Default 512; 1 at least. They count to
    /// `memory_bytes`.
    pub lane_records: usize,
    /// For how long this worker may be silent before others take its shards. Default 10 s; at
    /// least 1 s. It may differ from worker to worker and change with a rolling deploy, once all
    /// workers are of a version that names its lease time. Beside workers of Java it has to be their
    /// failover time.
    pub lease_time: Duration,
    /// For how long a stop waits for handlers that are busy. Default 20 s.
    pub grace_period: Duration,
    /// For how long a processor may take to hear that its lease is lost. Default 5 s; where the
    /// lease is given back and not lost, it is never more than that.
    pub lease_lost_timeout: Duration,
    /// The pauses after a failure of the handler. Default: from 100 ms, doubled up to 30 s.
    pub retry: Backoff,
    /// What happens to a record that the handler can't do. Default: it is tried for ever.
    pub on_error: OnError,
    /// For how long a shard may stand still although there is something to do, and what follows.
    pub watchdog: WatchdogLimits,
    /// How often the figures of each shard are told as an event. Default 10 s; at least 1 s.
    pub metrics_interval: Duration,
    /// The worker's name in the lease store. Default: the application's, and the process id. Each
    /// start adds random digits to it.
    pub worker: Option<String>,
    /// Whom it subscribes as, with enhanced fan-out: a name, or the ARN of a consumer that is
    /// registered already, as a stream of another account needs. Default: the application's name.
    pub fan_out_name: Option<String>,
    /// How often the rows are compared with the stream. Default 1 min; at least 1 s.
    pub audit_interval: Duration,
    /// What bounds the sharing of leases.
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

    /// The durations, each with its name and its least and greatest value in milliseconds.
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
            stuck("watchdog.iterator", watchdog.iterator_ms),
            stuck("watchdog.fetch", watchdog.fetch_ms),
            stuck("watchdog.decode", watchdog.decode_ms),
            stuck("watchdog.handler", watchdog.handler_ms),
            stuck("watchdog.checkpoint", watchdog.checkpoint_ms),
        ]
    }

    /// Everything that is wrong with them.
    pub(super) fn check(&self, takes_lanes: bool) -> Result<(), ConsumerConfigError> {
        let mut wrong = Vec::new();
        if !takes_lanes && self.concurrency > 1 {
            wrong.push(format!(
                "concurrency is {}, and this shape takes a whole shard in order: leave it at 1",
                self.concurrency
            ));
        }
        let mut demand = |holds: bool, text: String| {
            if !holds {
                wrong.push(text);
            }
        };
        demand(!self.application.is_empty(), "the application has no name".to_owned());
        for stream in &self.streams {
            demand(!stream.name.as_str().is_empty(), "a stream has no name".to_owned());
        }
        let mut bounds = |name: &str, value: u64, least: u64, most: u64| {
            demand(
                (least..=most).contains(&value),
                format!("{name} is {value}, and must be {least} to {most}"),
            );
        };
        bounds("concurrency", self.concurrency as u64, 1, 1_024);
        let least = limits::GET_RECORDS_MAX_BYTES as u64 * 8 / 5;
        bounds("memory_bytes", self.memory_bytes as u64, least, u64::from(u32::MAX) * 512);
        bounds("lane_records", self.lane_records as u64, 1, 1_000_000);
        bounds("max_leases", self.plan.max_leases as u64, 1, u64::MAX);
        for (name, value, least, most) in self.times() {
            let (least, most) = (Duration::from_millis(least), Duration::from_millis(most));
            demand(
                (least..=most).contains(&value),
                format!("{name} is {value:?}, and must be {least:?} to {most:?}"),
            );
        }
        let mut bounds = |name: &str, value: u64, least: u64, most: u64| {
            demand(
                (least..=most).contains(&value),
                format!("{name} is {value}, and must be {least} to {most}"),
            );
        };
        if let Balance::Weight { hysteresis_percent } = self.plan.balance {
            bounds("hysteresis_percent", hysteresis_percent.into(), 1, 1_000);
        }
        if let OnError::DeadLetter { attempts, .. } = &self.on_error {
            bounds("attempts", u64::from(*attempts), 1, u64::from(u32::MAX));
        }
        if wrong.is_empty() { Ok(()) } else { Err(ConsumerConfigError { wrong }) }
    }
}

/// Settings that can't be run with: all that is wrong with them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConsumerConfigError {
    /// One sentence for each.
    pub wrong: Vec<String>,
}

impl fmt::Display for ConsumerConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the consumer can't run with these settings: {}", self.wrong.join("; "))
    }
}

impl std::error::Error for ConsumerConfigError {}

impl Consumer {
    /// A consumer of `stream` for `application`. Where the application has never read the stream,
    /// it starts at the oldest record.
    pub fn new(stream: impl Into<StreamName>, application: impl Into<String>) -> Self {
        Self::streams([stream], application)
    }

    /// A consumer of several streams for `application`. More can be added while it runs: see
    /// [`Consumer::control`].
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
    /// Reads from this Kinesis: an `SdkConfig`, or any [`StreamApi`](crate::StreamApi). Default:
    /// the region, credentials and endpoint of the environment ([`FromEnv`]).
    pub fn with_kinesis<L: IntoStreamApi>(self, kinesis: L) -> Consumer<L, S, H> {
        let Self { settings, store, handler, control, clock, chance, health, events, .. } = self;
        Consumer { settings, kinesis, store, handler, control, clock, chance, health, events }
    }

    /// Keeps its leases and checkpoints there.
    pub fn with_leases<T: LeaseStore>(self, store: T) -> Consumer<K, T, H> {
        let Self { settings, kinesis, handler, control, clock, chance, health, events, .. } = self;
        Consumer { settings, kinesis, store, handler, control, clock, chance, health, events }
    }

    /// Gives the records to `handler`.
    pub fn with_handler<G>(self, handler: G) -> Consumer<K, S, G> {
        let Self { settings, kinesis, store, control, clock, chance, health, events, .. } = self;
        Consumer { settings, kinesis, store, handler, control, clock, chance, health, events }
    }

    /// Calls `handle` for each record. A record is done when it returns `Ok`; on an error or a
    /// panic it comes again.
    pub fn each<F, T, E>(self, handle: F) -> Consumer<K, S, PerRecord<F>>
    where
        F: Fn(Delivery) -> T + Send + Sync + 'static,
        T: Future<Output = Result<(), E>> + Send,
        E: Into<HandlerError>,
    {
        self.with_handler(PerRecord(handle))
    }

    /// Calls `handle` with up to `most` records at once, of one lane of one shard. They are done
    /// when it returns `Ok`; on an error or a panic all of them come again.
    pub fn batches<F, T, E>(self, most: usize, handle: F) -> Consumer<K, S, PerBatch<F>>
    where
        F: Fn(Batch) -> T + Send + Sync + 'static,
        T: Future<Output = Result<(), E>> + Send,
        E: Into<HandlerError>,
    {
        self.with_handler(PerBatch { handle, most })
    }

    /// Calls `handle` with up to `most` records at once, of one lane of one shard, whose effects
    /// are stored exactly once: `handle` does them in a transaction of its own in the database of
    /// the leases, ends it with [`TransactionBatch::commit`](super::TransactionBatch::commit), and
    /// commits. Whatever it returns, the batch is done if its transaction was stored, and comes
    /// again if not.
    ///
    /// Only leases in PostgreSQL or SQLite can do that; with others it does not compile:
    ///
    /// ```compile_fail
    /// # use anabranch::consumer::{Consumer, HandlerError, TransactionBatch};
    /// # use anabranch::lease::MemoryStore;
    /// # use anabranch_model::lease::Layout;
    /// # async fn run() -> Result<(), HandlerError> {
    /// Consumer::new("orders", "mailer")
    ///     .with_kinesis(anabranch::stream::aws::from_env().await?)
    ///     .with_leases(MemoryStore::new())
    ///     .exactly_once(100, |_: TransactionBatch<MemoryStore>| async { Ok::<(), HandlerError>(()) })
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

    /// Makes a processor for each shard, as KCL does, which says itself what is done. See
    /// [`ShardProcessor`](super::ShardProcessor).
    pub fn processors<F: ProcessorFactory>(self, factory: F) -> Consumer<K, S, Processors<F>> {
        self.with_handler(Processors::new(factory))
    }

    /// Where to start, if the application has never read the streams named so far. A checkpoint
    /// goes before it.
    pub fn starting_at(mut self, start: StartPosition) -> Self {
        self.settings.streams.iter_mut().for_each(|stream| stream.start = start);
        self
    }

    /// Reads one more stream.
    pub fn and_stream(mut self, name: impl Into<StreamName>, start: StartPosition) -> Self {
        self.settings.streams.push(StreamSettings { name: name.into(), start });
        self
    }

    /// What adds streams and removes them while the consumer runs.
    pub fn control(&mut self) -> StreamControl {
        let (control, requests) = StreamControl::new();
        self.control = Some(requests);
        control
    }

    /// Handles so many records of one shard at once, of different keys; each key stays in order.
    pub fn with_concurrency(mut self, lanes: usize) -> Self {
        self.settings.concurrency = lanes;
        self
    }

    /// Has records pushed to it by enhanced fan-out, instead of polling for them.
    pub fn with_fan_out(mut self) -> Self {
        self.settings.fetch = FetchMode::FanOut;
        self
    }

    /// Levels the workers by the bytes per second that are read of their shards, once the numbers
    /// of shards are level. A worker within 20 % of the mean is left alone.
    pub fn balanced_by_bytes(mut self) -> Self {
        self.settings.plan.balance = Balance::Weight { hysteresis_percent: 20 };
        self
    }

    /// What happens to a record that the handler can't do.
    pub fn on_error(mut self, policy: OnError) -> Self {
        self.settings.on_error = policy;
        self
    }

    /// Changes other settings.
    pub fn with_settings(mut self, change: impl FnOnce(&mut ConsumerSettings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// How it is while it runs: for probes and dashboards.
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Tells `events` what happens.
    pub fn with_events(mut self, events: Events) -> Self {
        self.events = events;
        self
    }

    /// Reads the time and draws random numbers there: for tests and simulations.
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
