//! A running consumer: a task for each shard that the coordinator lets it read.

use super::config::{Consumer, ConsumerConfigError, ConsumerSettings};
use super::dispatch::memory::MemoryBudget;
use super::fetch::FetchMode;
use super::fetch::fan_out::{ConsumerLimitReached, FanOutRegistry};
use super::health::watchdog::Watchdog;
use super::health::{Health, RunEndGuard, RunStage};
use super::modes::ProcessingMode;
use super::shard::interrupted::{InterruptedCall, InterruptedCalls, describe};
use super::{control, run, shard};
use crate::clock::{Clock, Rng};
use crate::event::Events;
use crate::lease::{
    Coordinator, CoordinatorSettings, CoordinatorStartError, LeaseHandle, LeaseStore, StopResult,
    StoreError,
};
use crate::stream::api::StreamApi;
use crate::stream::{IntoStreamApi, KinesisConfigError};
use crate::time::millis;
use anabranch_model::lease::{Layout, LeaseKey};
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// What all shards of a worker share.
pub(crate) struct WorkerContext<A, H> {
    /// The service.
    pub(super) api: Arc<A>,
    /// Who is given the records.
    pub(super) handler: Arc<H>,
    /// What the consumer was told.
    pub(super) settings: ConsumerSettings,
    /// Whom it subscribes as, with enhanced fan-out.
    pub(super) registry: Option<Arc<FanOutRegistry>>,
    /// What a lease row can keep.
    pub(super) layout: Layout,
    /// The memory that records may take.
    pub(super) budget: MemoryBudget,
    /// The worker's clock.
    pub(super) clock: Clock,
    /// The worker's chance.
    pub(super) chance: Rng,
    /// How the worker is.
    pub(super) health: Health,
    /// The calls of the handler that a stop broke off.
    pub(super) interrupted_calls: InterruptedCalls,
    /// Who wants to know.
    pub(super) events: Events,
}

/// Why a consumer did not run, or did not stop in order.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It was told nonsense.
    #[error(transparent)]
    Settings(#[from] ConsumerConfigError),
    /// Kinesis can't be reached as configured.
    #[error(transparent)]
    Kinesis(#[from] KinesisConfigError),
    /// It can't start.
    #[error(transparent)]
    Start(#[from] CoordinatorStartError),
    /// It can't go on: its last stream was deleted, and perhaps created again.
    #[error(transparent)]
    StreamDeleted(CoordinatorStartError),
    /// A stream has all the fan-out consumers that the service allows, and this one is none of them.
    #[error(
        "fan-out consumer {name} can't be registered on {stream}, which has as many as the service \
         allows ({detail}): list them with `aws kinesis list-stream-consumers --stream-arn {stream}` \
         and remove one that is not needed with `aws kinesis deregister-stream-consumer \
         --consumer-arn ARN`, or read without fan-out"
    )]
    FanOutLimit {
        /// The stream's ARN.
        stream: String,
        /// The name that the consumer would have.
        name: String,
        /// The service's words.
        detail: String,
    },
    /// It can't go on: somebody deleted the table of its leases.
    #[error("the table of leases was deleted while this worker ran")]
    LeaseTableDeleted(#[source] StoreError),
    /// It can't listen for signals.
    #[error("signals to stop can't be listened for: {0}")]
    Signals(#[source] std::io::Error),
    /// The coordinator has ended by itself: one of its tasks panicked.
    #[error(
        "what holds this worker's leases panicked, so it gave back what it could and ended: the \
         panic's message says where; start the worker again"
    )]
    CoordinatorEnded,
    /// Some handlers did not end within the grace period.
    #[error(
        "stopped, but these shards could not be given back in time: {}; other workers take them \
         when the lease time is over", names(.leases)
    )]
    Unreleased {
        /// Which.
        leases: Vec<LeaseKey>,
    },
    /// The grace period ended before some handlers did. Their shards were given back.
    #[error(
        "stopped at the end of the grace period, before these records were done: {}; they are \
         delivered again, to whoever reads the shard next; give a stop more time than they take",
        describe(.calls)
    )]
    Interrupted {
        /// The calls that were broken off, by shard.
        calls: Vec<InterruptedCall>,
    },
    /// The lease store did not take the last word.
    #[error(
        "stopped, but the lease store did not answer: what was done since the last checkpoint may come \
         again, and other workers take over when the lease time is over"
    )]
    LeaveFailed,
    /// A second signal came before the stop was over.
    #[error("stopped at once by a second signal: other workers take over after the lease time")]
    Forced,
}

fn names(leases: &[LeaseKey]) -> String {
    leases.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl<K: IntoStreamApi, S: LeaseStore, H: ProcessingMode<S>> Consumer<K, S, H> {
    /// Runs until SIGTERM or Ctrl-C. Then it fetches no more, lets the handlers end what they are
    /// at, writes down what is done and gives its shards back, so that others go on at once. All of
    /// that takes the grace period and the time of one call of the lease store (3 s) at the most; a
    /// handler that was not done by then is an error, since its records come again. A second signal
    /// ends it on the spot.
    pub async fn run(self) -> Result<(), RunError> {
        let stop = run::signals(1).map_err(RunError::Signals)?;
        let force = run::signals(2).map_err(RunError::Signals)?;
        let force = pin!(force);
        tokio::select! {
            biased;
            () = force => Err(RunError::Forced),
            ended = self.run_until(stop) => ended,
        }
    }

    /// Runs until `stop` comes true, and then stops in order as [`Consumer::run`] does. Dropped, it
    /// stops at once, as in a crash.
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Result<(), RunError> {
        self.settings.check(self.handler.supports_lanes())?;
        let grace_ms = millis(self.settings.grace_period);
        let mut stop = pin!(stop);
        let _end = RunEndGuard(self.health.clone());
        let api = tokio::select! {
            biased;
            () = &mut stop => return Ok(()),
            api = self.kinesis.into_stream_api() => Arc::new(api?),
        };
        let store = Arc::new(self.store);
        let worker = Arc::new(WorkerContext {
            registry: match self.settings.fetch {
                FetchMode::Poll => None,
                FetchMode::FanOut => {
                    let named = self.settings.fan_out_name.as_ref();
                    let name = named.unwrap_or(&self.settings.application);
                    Some(Arc::new(FanOutRegistry::new(name)))
                }
            },
            layout: store.layout(),
            budget: MemoryBudget::new(self.settings.memory_bytes),
            clock: self.clock.unwrap_or_else(Clock::machine),
            api: Arc::clone(&api),
            handler: Arc::new(self.handler),
            settings: self.settings,
            chance: self.chance,
            health: self.health,
            interrupted_calls: InterruptedCalls::default(),
            events: self.events,
        });
        worker.health.begin(&worker.clock, &worker.budget);
        // These futures are large, and not every caller boxes them.
        let start = Box::pin(Coordinator::start(
            store,
            api,
            worker.lease_settings(),
            worker.clock.clone(),
            worker.chance.clone(),
            worker.events.clone(),
        ));
        let (coordinator, mut grips) = tokio::select! {
            biased;
            () = &mut stop => return Ok(()),
            started = start => started?,
        };
        let mut watcher = JoinSet::new();
        watcher.spawn(worker.watcher().run());
        worker.health.set_stage(RunStage::Running);
        let mut shards = JoinSet::new();
        let mut control = self.control;
        let end = tokio::select! {
            biased;
            () = &mut stop => Ok(()),
            refusal = coordinator.wait_refused() => Err(match refusal {
                CoordinatorStartError::Store(error) => RunError::LeaseTableDeleted(error),
                other => RunError::StreamDeleted(other),
            }),
            () = coordinator.wait_for_panic() => Err(RunError::CoordinatorEnded),
            error = wait_limit_reached(worker.registry.as_deref()) => Err(error),
            () = Box::pin(control::serve(&coordinator, &mut control, grace_ms)) => {
                Err(RunError::CoordinatorEnded)
            }
            () = run_shards(&worker, &mut grips, &mut shards) => Err(RunError::CoordinatorEnded),
        };
        worker.health.set_stage(RunStage::Stopping);
        worker.interrupted_calls.count();
        // Whoever asks for streams from here on is told that it is too late.
        drop(control);
        let mut stopping = Box::pin(coordinator.stop(grace_ms));
        // Whatever is taken while the coordinator stops is drained like the rest.
        let stopped = tokio::select! {
            biased;
            stopped = &mut stopping => stopped,
            () = async {
                run_shards(&worker, &mut grips, &mut shards).await;
                std::future::pending::<()>().await;
            } => unreachable!("it waits for ever"),
        };
        let broken_off = match worker.interrupted_calls.take() {
            calls if calls.is_empty() => Ok(()),
            calls => Err(RunError::Interrupted { calls }),
        };
        match stopped {
            StopResult::Left => end.and(broken_off),
            StopResult::LeaveFailed => end.and(broken_off).and(Err(RunError::LeaveFailed)),
            StopResult::Unreleased { leases } => Err(RunError::Unreleased { leases }),
        }
    }
}

/// Waits until a stream has no room for the fan-out consumer.
async fn wait_limit_reached(registry: Option<&FanOutRegistry>) -> RunError {
    let Some(registry) = registry else { return std::future::pending().await };
    let ConsumerLimitReached { arn: stream, name, detail } = registry.wait_limit_reached().await;
    RunError::FanOutLimit { stream, name, detail }
}

/// Runs every shard that there is a grip for. Ends when no more can come.
async fn run_shards<A: StreamApi, S: LeaseStore, H: ProcessingMode<S>>(
    worker: &Arc<WorkerContext<A, H>>,
    grips: &mut mpsc::Receiver<LeaseHandle<S, A>>,
    shards: &mut JoinSet<()>,
) {
    loop {
        tokio::select! {
            biased;
            grip = grips.recv() => match grip {
                Some(grip) => {
                    shards.spawn(shard::run(Arc::clone(worker), grip));
                }
                None => return,
            },
            // A shard whose task panicked has dropped its grip, which gives the lease back.
            Some(_) = shards.join_next() => {}
        }
    }
}

impl<A, H> WorkerContext<A, H> {
    fn watcher(&self) -> Watchdog {
        Watchdog {
            health: self.health.clone(),
            limits: self.settings.watchdog.clone(),
            figures_ms: millis(self.settings.metrics_interval),
            clock: self.clock.clone(),
            events: self.events.clone(),
        }
    }

    fn lease_settings(&self) -> CoordinatorSettings {
        let told = &self.settings;
        let own = || format!("{}-{}", told.application, std::process::id());
        let mut settings = CoordinatorSettings::new(told.worker.clone().unwrap_or_else(own));
        settings.host = std::env::var("HOSTNAME").unwrap_or_default();
        settings.streams.clone_from(&told.streams);
        settings.lease_time_ms = millis(told.lease_time);
        // Who stops without grace still hands shards over in order.
        if !told.grace_period.is_zero() {
            settings.drain_timeout = millis(told.grace_period);
        }
        settings.audit_interval = millis(told.audit_interval);
        settings.plan = told.plan.clone();
        settings
    }
}

// Stopping: the first signal asks, the second one forces.

/// Waits for the `count`-th signal to stop, SIGTERM or Ctrl-C, from now on.
#[cfg(unix)]
pub(super) fn signals(count: usize) -> io::Result<impl Future<Output = ()> + Send> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        for _ in 0..count {
            tokio::select! {
                biased;
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
    })
}

/// Waits for the `count`-th Ctrl-C from now on.
#[cfg(not(unix))]
pub(super) fn signals(count: usize) -> io::Result<impl Future<Output = ()> + Send> {
    Ok(async move {
        for _ in 0..count {
            // Without a way to be told, there is nothing to stop for.
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    })
}
