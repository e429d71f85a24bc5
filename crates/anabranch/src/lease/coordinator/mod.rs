//! The coordinator: decides which shards this worker reads.
//!
//! ```text
//!            ┌─ membership ─► heartbeats: the worker's row (or each lease's, in KCL's layout)
//! Coordinator┼─ run ─► FleetPoller ─ FleetView ─ plan ─ LeaseMove ─ execute_moves ─► HeldLease
//!            │           ▲                                                              │
//!            │           │                                   GateTracker opens its gate │
//!            │           │                                                              ▼
//!            │           └────── begin_release: hand over, release ◄── finish ─── LeaseHandle
//!            └─ audit ─► holes, finished rows, gone workers, recreated streams
//! ```

use std::future::Future;
use tokio_util::sync::CancellationToken;

mod start;
mod first_sync;
mod shared;
mod membership;
mod held_leases;
mod gates;
mod poll;
mod moves;
mod run;
mod audit;

pub(crate) use super::context::LeaseContext;
pub use super::settings::{CoordinatorSettings, StreamSettings};
pub use start::CoordinatorStartError;

use super::context::SuspectStreams;
use super::handle::DrainReason;
use super::{LeaseHandle, LeaseStore};
use crate::clock::{Clock, Rng};
use crate::event::{Events, LeaseEvent};
use crate::stream::api::StreamApi;
use crate::stream::shard_lists::ShardLists;
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{Layout, LeaseKey, ProbeBaseline, WorkerId};
use held_leases::HeldLeases;
use membership::Membership;
use shared::{ActiveStream, CoordinatorShared};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// One worker of an application. Dropping it stops it at once, as in a crash.
#[derive(Debug)]
pub struct Coordinator<S: LeaseStore, A: StreamApi> {
    /// State shared by the tasks.
    shared: Arc<CoordinatorShared<S, A>>,
    /// The heartbeat task.
    heartbeat: JoinSet<()>,
    /// The poll loop and the audit.
    tasks: JoinSet<()>,
}

/// A stream that was opened and can be read.
#[derive(Debug)]
pub(crate) struct ReadyStream(ActiveStream);

/// The result of [`Coordinator::stop`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum StopResult {
    /// Every lease was handed over or released, and the worker has left.
    Left,
    /// Every lease was released, but the store did not accept the worker's departure. No other
    /// worker waits for its leases. Its row is removed once it has been silent for a lease time.
    ///
    /// In KCL's layout, leases that this worker asked for still name it. If one is handed over to
    /// it, others take that lease after its lease time.
    LeaveFailed,
    /// These leases could not be released in time: handlers still run, or the store did not answer.
    /// The worker has not left, so no other worker takes them before the lease time is over. Exit
    /// with an error.
    Unreleased {
        /// Keys of the leases that were not released.
        leases: Vec<LeaseKey>,
    },
}

impl<S: LeaseStore, A: StreamApi> Coordinator<S, A> {
    /// Checks the store and the streams, creates the first rows, joins the fleet and begins to take
    /// leases. Each handle that the receiver yields is the right to read one shard.
    ///
    /// Retries transient failures. An `Err` needs operator action.
    pub async fn start(
        store: Arc<S>,
        api: Arc<A>,
        settings: CoordinatorSettings,
        clock: Clock,
        chance: Rng,
        events: Events,
    ) -> Result<(Self, mpsc::Receiver<LeaseHandle<S, A>>), CoordinatorStartError> {
        let (grips, receiver) = mpsc::channel(settings.max_waiting_handles.max(1));
        let streams = settings.streams.clone();
        let tools = Arc::new(LeaseContext {
            store,
            api,
            settings,
            clock,
            rng: chance,
            events,
            summaries: Arc::default(),
            shard_lists: ShardLists::default(),
            suspect_streams: SuspectStreams::default(),
            unreadable_rows: super::context::ReportedRows::default(),
        });
        start::prepare(&tools).await?;
        let (survey, since_ms) = start::probe_table(&tools).await?;
        let mut opened: Vec<ActiveStream> = Vec::new();
        for stream in streams {
            let stream = start::open(&tools, stream).await?;
            if opened.iter().any(|other| other.arn == stream.arn) {
                return Err(CoordinatorStartError::DuplicateStream { stream: stream.names.given });
            }
            opened.push(stream);
        }
        let mut reads: Vec<StreamName> =
            opened.iter().map(|stream| stream.settings.name.clone()).collect();
        reads.sort_unstable();
        let member = Membership::join(&tools, reads).await?;
        tools.emit(LeaseEvent::Joined { worker: member.id.clone() });
        let holdings = HeldLeases::new(Arc::new(member));
        let crew = Arc::new(CoordinatorShared::new(tools, holdings, opened, grips));
        let (mut heart, mut tasks) = (JoinSet::new(), JoinSet::new());
        heart.spawn(crew.task_guard.run(membership::run(crew.clone())));
        let surveyed = ProbeBaseline::new(&survey, since_ms);
        tasks.spawn(crew.task_guard.run(run::run(crew.clone(), surveyed)));
        tasks.spawn(crew.task_guard.run(audit::run(crew.clone(), survey)));
        Ok((Self { shared: crew, heartbeat: heart, tasks }, receiver))
    }

    /// Returns the worker's id. It changes with every join.
    pub fn worker(&self) -> WorkerId {
        self.shared.held_leases.member().id.clone()
    }

    /// Returns the keys of the leases that this worker holds, in order.
    pub fn leases(&self) -> Vec<LeaseKey> {
        self.shared.held_leases.keys()
    }

    /// Starts reading one more stream. All workers of an application should read the same streams:
    /// leases of a stream that one worker does not read are balanced late by the others.
    pub async fn add_stream(&self, stream: StreamSettings) -> Result<(), CoordinatorStartError> {
        let opened = self.open_stream(stream).await?;
        self.read_stream(opened)
    }

    /// Opens a stream, so that it can be read. This can last as long as a change of the stream, so
    /// the future borrows nothing and the caller can do other work meanwhile.
    pub(crate) fn open_stream(
        &self,
        stream: StreamSettings,
    ) -> impl Future<Output = Result<ReadyStream, CoordinatorStartError>> + Send + use<S, A> {
        let crew = self.shared.clone();
        async move {
            if crew.key_of(&stream.name).is_some() {
                return Err(CoordinatorStartError::DuplicateStream { stream: stream.name });
            }
            Ok(ReadyStream(start::open(&crew.context, stream).await?))
        }
    }

    /// Starts reading an opened stream.
    pub(crate) fn read_stream(
        &self,
        ReadyStream(stream): ReadyStream,
    ) -> Result<(), CoordinatorStartError> {
        if self.shared.key_of(&StreamName::from(stream.arn.as_str())).is_some() {
            return Err(CoordinatorStartError::DuplicateStream { stream: stream.names.given });
        }
        self.shared.add_stream(stream);
        self.shared.announce_streams();
        Ok(())
    }

    /// Stops reading a stream: drains its shards for up to `grace_ms` milliseconds and releases
    /// them. Returns the leases that were not released in time.
    pub async fn remove_stream(&self, stream: &StreamName, grace_ms: u64) -> Vec<LeaseKey> {
        let key = self.shared.key_of(stream).or_else(|| self.shared.missing.key_of(stream));
        let stream = &key.unwrap_or_else(|| stream.clone());
        self.shared.remove_stream(stream);
        self.shared.announce_streams();
        let removed = DrainReason::StreamRemoved;
        self.shared.drain(grace_ms, &removed, |key| key.stream == *stream).await
    }

    /// Waits until no stream is left to read: the last one was deleted or recreated, a KCL 3.x
    /// fleet now works on the table, or the lease table is gone. The worker takes no more leases
    /// and must be stopped.
    pub async fn wait_refused(&self) -> CoordinatorStartError {
        self.shared.wait_refused().await
    }

    /// Waits until one of the coordinator's tasks has panicked. The coordinator no longer works
    /// then, and must be stopped.
    pub async fn wait_for_panic(&self) {
        self.shared.task_guard.wait_for_panic().await;
    }

    /// Drains every shard for up to `grace_ms` milliseconds, releases the leases and leaves. All
    /// final writes together get one more call timeout.
    pub async fn stop(mut self, grace_ms: u64) -> StopResult {
        let crew = &self.shared;
        crew.begin_stop();
        let over_ms = crew.drain_expires_ms(crew.now_ms().saturating_add(grace_ms));
        let native = crew.context.store.layout() == Layout::Native;
        let member = crew.held_leases.member();
        // The leases are released even if the store does not accept the announcement. A write that
        // is cut off here may still be applied. Only `leave` writes the row after it, and is then
        // refused.
        let retire = async {
            if native {
                tokio::select! {
                    biased;
                    _ = member.announce_leaving(&crew.context) => {}
                    () = crew.context.clock.sleep_until(over_ms) => {}
                }
            }
        };
        let drain = crew.drain(grace_ms, &DrainReason::Stopping, |_| true);
        let leases = tokio::select! {
            biased;
            ((), leases) = async { tokio::join!(retire, drain) } => leases,
            () = moves::process_finished_until_dropped(crew) => unreachable!("this future never \
                                                                              completes"),
        };
        self.tasks.shutdown().await;
        if !leases.is_empty() {
            return StopResult::Unreleased { leases };
        }
        if !native {
            let names_stay = !crew.held_leases.requests().is_empty();
            return if names_stay { StopResult::LeaveFailed } else { StopResult::Left };
        }
        // The worker may have rejoined in the meantime.
        let member = crew.held_leases.member();
        let left = tokio::select! {
            biased;
            left = member.leave(&crew.context, &mut self.heartbeat) => left,
            () = crew.context.clock.sleep_until(over_ms) => false,
        };
        if left { StopResult::Left } else { StopResult::LeaveFailed }
    }
}

// Panic detection: if one of the coordinator's tasks panics, the coordinator has ended.
//
// Without its heartbeats, or without the task that takes and releases leases, a worker would hold
// leases that it does not read and that no other worker could take.

/// Detects a panic in any of the coordinator's tasks. Clones share one state.
#[derive(Debug, Clone, Default)]
pub(super) struct TaskGuard(CancellationToken);

/// Cancels the token if it is dropped by a panic.
struct PanicNotifier(CancellationToken);

impl Drop for PanicNotifier {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.cancel();
        }
    }
}

impl TaskGuard {
    /// Wraps a task, so that its panic is detected.
    pub(super) fn run<F: Future<Output = ()>>(&self, work: F) -> impl Future<Output = ()> + use<F> {
        let guard = PanicNotifier(self.0.clone());
        async move {
            // `work` is dropped before the guard.
            let _guard = guard;
            work.await;
        }
    }

    /// Waits until a wrapped task has panicked.
    pub(super) async fn wait_for_panic(&self) {
        self.0.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::task::JoinSet;

    #[tokio::test]
    async fn only_a_panic_breaks_the_whole() {
        let (parts, mut tasks) = (TaskGuard::default(), JoinSet::new());
        tasks.spawn(parts.run(async {}));
        tasks.join_next().await.unwrap().unwrap();
        tasks.spawn(parts.run(std::future::pending()));
        tasks.shutdown().await;
        assert!(!parts.0.is_cancelled(), "parts that end or are stopped break nothing");
        tasks.spawn(parts.run(async { panic!("on purpose") }));
        parts.wait_for_panic().await;
    }
}
