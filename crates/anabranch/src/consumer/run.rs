//! A running consumer: one task per shard whose lease this worker holds, until a stop or an error.

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

/// State shared by all shards of a worker.
pub(crate) struct WorkerContext<A, H> {
    pub(super) api: Arc<A>,
    pub(super) handler: Arc<H>,
    pub(super) settings: ConsumerSettings,
    /// Registration of the fan-out consumer. `None` when polling.
    pub(super) registry: Option<Arc<FanOutRegistry>>,
    /// Layout of the lease rows, which limits what a checkpoint can hold.
    pub(super) layout: Layout,
    /// Memory for the records of all shards.
    pub(super) budget: MemoryBudget,
    pub(super) clock: Clock,
    pub(super) chance: Rng,
    pub(super) health: Health,
    /// Handler calls that a stop interrupted.
    pub(super) interrupted_calls: InterruptedCalls,
    pub(super) events: Events,
}

/// Error of a consumer that did not start, had to end, or did not stop cleanly.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The settings are invalid.
    #[error(transparent)]
    Settings(#[from] ConsumerConfigError),
    /// The configuration of Kinesis is incomplete or wrong.
    #[error(transparent)]
    Kinesis(#[from] KinesisConfigError),
    /// The worker can't start with this store or stream.
    #[error(transparent)]
    Start(#[from] CoordinatorStartError),
    /// No stream is left to read: the last one was deleted or recreated, or a KCL 3.x fleet now
    /// works on the lease table.
    #[error(transparent)]
    StreamDeleted(CoordinatorStartError),
    /// The stream already has the maximum number of fan-out consumers, without this one.
    #[error(
        "cannot register fan-out consumer {name} on {stream}, which has the maximum number of them \
         ({detail}): list them with `aws kinesis list-stream-consumers --stream-arn {stream}` and \
         remove an unused one with `aws kinesis deregister-stream-consumer --consumer-arn ARN`, or \
         read without fan-out"
    )]
    FanOutLimit {
        /// ARN of the stream.
        stream: String,
        /// Name of the consumer that could not be registered.
        name: String,
        /// Message of the service.
        detail: String,
    },
    /// The lease table was deleted while the worker ran.
    #[error("the lease table was deleted while this worker was running")]
    LeaseTableDeleted(#[source] StoreError),
    /// The signal handlers could not be installed.
    #[error("cannot install the handlers for SIGTERM and Ctrl-C: {0}")]
    Signals(#[source] std::io::Error),
    /// A task of the lease coordinator panicked. Its leases were released where possible.
    #[error(
        "the lease coordinator panicked; its leases were released where possible: see the panic \
         message for the location, then start the worker again"
    )]
    CoordinatorEnded,
    /// Some leases could not be released within the grace period: handlers still ran, or the store
    /// did not answer.
    #[error(
        "stopped, but these leases could not be released in time: {}; other workers take them \
         after the lease time",
        names(.leases)
    )]
    Unreleased {
        /// Keys of these leases. Other workers take them after the lease time.
        leases: Vec<LeaseKey>,
    },
    /// The grace period ended before some handler calls did. They were dropped, their shards were
    /// released, and their records are redelivered.
    #[error(
        "stopped at the end of the grace period; these handler calls were interrupted: {}; their \
         records are delivered again by the next owner of the shard; set a longer `grace_period` \
         to let such calls finish",
        describe(.calls)
    )]
    Interrupted {
        /// The interrupted calls, ordered by shard.
        calls: Vec<InterruptedCall>,
    },
    /// The lease store did not accept the worker's departure. Others wait for the lease time.
    #[error(
        "stopped, but the lease store did not answer: records since the last checkpoint may be \
         delivered again, and other workers take over after the lease time"
    )]
    LeaveFailed,
    /// A second signal arrived before the stop was complete.
    #[error("stopped at once by a second signal; other workers take over after the lease time")]
    Forced,
}

fn names(leases: &[LeaseKey]) -> String {
    leases.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl<K: IntoStreamApi, S: LeaseStore, H: ProcessingMode<S>> Consumer<K, S, H> {
    /// Runs until SIGTERM or Ctrl-C, and then stops cleanly.
    ///
    /// A stop ends fetching, waits for the calls of the handler that have begun, checkpoints and
    /// releases the shards, so that other workers continue at once. It takes at most the grace
    /// period and the time of one call of the lease store (3 s). Calls still in progress after the
    /// grace period are interrupted and reported as [`RunError::Interrupted`], because their
    /// records are redelivered. A second signal ends the run at once.
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

    /// Runs until `stop` completes, and then stops cleanly, as [`Consumer::run`] does. Dropping the
    /// future stops at once, as in a crash.
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
        // Boxed, because the future is large and not every caller boxes it.
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
        // Later commands fail with `ControlError::Stopped`.
        drop(control);
        let mut stopping = Box::pin(coordinator.stop(grace_ms));
        // Leases that arrive while the coordinator stops are run too, so that they are drained like
        // the others.
        let stopped = tokio::select! {
            biased;
            stopped = &mut stopping => stopped,
            () = async {
                run_shards(&worker, &mut grips, &mut shards).await;
                std::future::pending::<()>().await;
            } => unreachable!("this future never completes"),
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

/// Waits until a stream has the maximum number of fan-out consumers and this one can't register.
async fn wait_limit_reached(registry: Option<&FanOutRegistry>) -> RunError {
    let Some(registry) = registry else { return std::future::pending().await };
    let ConsumerLimitReached { arn: stream, name, detail } = registry.wait_limit_reached().await;
    RunError::FanOutLimit { stream, name, detail }
}

/// Spawns a task for each lease handle received. Returns when the coordinator sends no more.
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
            // A panicked task has dropped its lease handle, which releases the lease.
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
        // A grace period of 0 ends a stop at once. Hand-overs still use the default drain timeout.
        if !told.grace_period.is_zero() {
            settings.drain_timeout = millis(told.grace_period);
        }
        settings.audit_interval = millis(told.audit_interval);
        settings.plan = told.plan.clone();
        settings
    }
}

// Signals: the first one starts a clean stop, the second one ends the run at once.

/// Returns a future that completes with the `count`-th SIGTERM or Ctrl-C from now on.
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

/// Returns a future that completes with the `count`-th Ctrl-C from now on.
#[cfg(not(unix))]
pub(super) fn signals(count: usize) -> io::Result<impl Future<Output = ()> + Send> {
    Ok(async move {
        for _ in 0..count {
            // Without a signal handler the signal never arrives.
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    })
}
