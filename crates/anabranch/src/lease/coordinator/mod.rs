//! The coordinator: which shards this worker reads.
//!
//! ```text
//!            ┌─ heart ─► the worker's row (or each lease's, in KCL's layout)
//! Coordinator┼─ run ───► look ─ View ─ plan ─ LeaseMove ─ act ─► Held ─ ready ─► Grip
//!            │             ▲                                                      │
//!            │             └──────── give: pass, release ◄── finish ──────────────┘
//!            └─ audit ─► holes, finished rows, gone workers, re-created streams
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

/// One worker of an application. Dropped, it stops at once, as in a crash.
#[derive(Debug)]
pub struct Coordinator<S: LeaseStore, A: StreamApi> {
    /// What the tasks share.
    shared: Arc<CoordinatorShared<S, A>>,
    /// The task that beats.
    heartbeat: JoinSet<()>,
    /// The tasks that look and audit.
    tasks: JoinSet<()>,
}

/// A stream that is ready to be read.
#[derive(Debug)]
pub(crate) struct ReadyStream(ActiveStream);

/// How a stop ended.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum StopResult {
    /// Every lease was passed on or given back, and the worker has left.
    Left,
    /// Every lease was given back, but the store did not take the farewell. Nobody waits for this
    /// worker's leases; others remove its row once it has been silent for a lease time.
    ///
    /// In KCL's layout: this worker is still named on leases that it asked for. One that is passed to
    /// it is taken by others after its lease time.
    LeaveFailed,
    /// These leases could not be given back in time: handlers still run, or the store did not
    /// answer. The worker has not left, so nobody takes them before the lease time is over. Exit
    /// with an error.
    Unreleased {
        /// Which.
        leases: Vec<LeaseKey>,
    },
}

impl<S: LeaseStore, A: StreamApi> Coordinator<S, A> {
    /// Checks the store and the streams, makes the first rows, joins the fleet and begins to take
    /// leases. Each grip that arrives is the right to read one shard.
    ///
    /// What may pass by itself is waited for; an error needs somebody's help.
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

    /// The worker's id for its present join.
    pub fn worker(&self) -> WorkerId {
        self.shared.held_leases.member().id.clone()
    }

    /// The leases that this worker holds, by key.
    pub fn leases(&self) -> Vec<LeaseKey> {
        self.shared.held_leases.keys()
    }

    /// Reads one more stream. All workers of an application should read the same streams: what one
    /// of them doesn't read, the others level out late.
    pub async fn add_stream(&self, stream: StreamSettings) -> Result<(), CoordinatorStartError> {
        let opened = self.open_stream(stream).await?;
        self.read_stream(opened)
    }

    /// Makes a stream ready to be read. That may take as long as somebody changes the stream, so it
    /// borrows nothing: whoever asked can do other things meanwhile.
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

    /// Reads a stream that is ready.
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

    /// Reads a stream no longer: its shards are drained for up to `grace_ms`, and given back.
    /// Returns the leases that were not given back in time.
    pub async fn remove_stream(&self, stream: &StreamName, grace_ms: u64) -> Vec<LeaseKey> {
        let key = self.shared.key_of(stream).or_else(|| self.shared.missing.key_of(stream));
        let stream = &key.unwrap_or_else(|| stream.clone());
        self.shared.remove_stream(stream);
        self.shared.announce_streams();
        let removed = DrainReason::StreamRemoved;
        self.shared.drain(grace_ms, &removed, |key| key.stream == *stream).await
    }

    /// Waits until no stream is left to read because the last one was deleted, or deleted and
    /// created again, or because the table is now worked on by a fleet of KCL 3.x. The worker holds nothing then, and is to be stopped.
    pub async fn wait_refused(&self) -> CoordinatorStartError {
        self.shared.wait_refused().await
    }

    /// Waits until one of the coordinator's tasks has panicked: it then works no longer, and is to be
    /// stopped.
    pub async fn wait_for_panic(&self) {
        self.shared.task_guard.wait_for_panic().await;
    }

    /// Drains every shard for up to `grace_ms`, gives the leases back and leaves. The last writes
    /// have the time of one call on top, all of them together.
    pub async fn stop(mut self, grace_ms: u64) -> StopResult {
        let crew = &self.shared;
        crew.begin_stop();
        let over_ms = crew.drain_expires_ms(crew.now_ms().saturating_add(grace_ms));
        let native = crew.context.store.layout() == Layout::Native;
        let member = crew.held_leases.member();
        // If the store does not take the word, the leases are given back all the same. What is cut
        // off here may still land, so nothing but the farewell follows it, which then fails.
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
            () = moves::process_finished_until_dropped(crew) => unreachable!("it gives back for ever"),
        };
        self.tasks.shutdown().await;
        if !leases.is_empty() {
            return StopResult::Unreleased { leases };
        }
        if !native {
            let names_stay = !crew.held_leases.requests().is_empty();
            return if names_stay { StopResult::LeaveFailed } else { StopResult::Left };
        }
        // It may have joined again meanwhile.
        let member = crew.held_leases.member();
        let left = tokio::select! {
            biased;
            left = member.leave(&crew.context, &mut self.heartbeat) => left,
            () = crew.context.clock.sleep_until(over_ms) => false,
        };
        if left { StopResult::Left } else { StopResult::LeaveFailed }
    }
}

// The parts of a coordinator: if one of them panics, the whole has ended.
//
// Without its heart, or without the task that takes and gives leases, a worker would hold what
// nobody reads, and nobody else could have it.

/// What the parts have in common. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct TaskGuard(CancellationToken);

/// Tells if it is dropped by a panic.
struct PanicNotifier(CancellationToken);

impl Drop for PanicNotifier {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.cancel();
        }
    }
}

impl TaskGuard {
    /// Runs one of them.
    pub(super) fn run<F: Future<Output = ()>>(&self, work: F) -> impl Future<Output = ()> + use<F> {
        let guard = PanicNotifier(self.0.clone());
        async move {
            // The work is dropped first.
            let _guard = guard;
            work.await;
        }
    }

    /// Waits until one of them has panicked.
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
