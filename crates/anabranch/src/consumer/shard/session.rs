//! A session: the tasks of a shard while it is read, one that fetches and one per lane.
//!
//! ```text
//! ShardReader::start ─┬─► fetch ─ Chunk ─┬─► lane 0    if dropped, another one fetches after the
//!                     │                  └─► lane 1    records that the lanes have received
//!                     └─ LeftoverLanes: lanes of the last session that still run ─► successors
//! ```

use super::ShardReader;
use crate::consumer::dispatch::dispatcher::Dispatcher;
use crate::consumer::dispatch::lane::{Lane, LaneSender, WeakLaneSender};
use crate::consumer::dispatch::memory::ShardBudget;
use crate::consumer::dispatch::resume::Resume;
use crate::consumer::fetch::fan_out::FanOutReader;
use crate::consumer::fetch::poll::PollingReader;
use crate::consumer::fetch::{FetchContext, FetchEnd};
use crate::consumer::modes::ProcessingMode;
use crate::consumer::progress::Progress;
use crate::consumer::stop_signal::StopSignal;
use crate::lease::LeaseStore;
use crate::stream::api::{ReadFrom, StreamApi};
use crate::time::millis;
use anabranch_model::hash::HashRange;
use anabranch_model::lease::{Checkpoint, Layout};
use anabranch_model::position::Position;
use std::sync::{Arc, Mutex};
use tokio::task::{self, AbortHandle, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

/// Maximum number of records in one chunk, unless the handler takes more per call.
const CHUNK: usize = 64;

/// The tasks of a shard while it is read.
pub(super) struct Session {
    /// The lanes, the fetch task, and the tasks left by the last session.
    tasks: JoinSet<Option<FetchEnd>>,
    pub(super) progress: Arc<Progress>,
    /// Ends fetching at once, and each lane after its current call.
    stop: StopSignal,
    /// Cancelled when the user's code cannot continue.
    pub(super) start_over: CancellationToken,
    /// Position after which the fetch task sends records to each lane.
    resume: Resume,
    /// The shard's share of the memory budget.
    share: ShardBudget,
    fetching: FetchState,
    /// The task of each lane, for a lane that takes its place.
    lanes: Vec<PreviousLane>,
    /// Per lane, the lane of an earlier session that it replaces.
    before: Vec<Option<PreviousLane>>,
}

/// State of fetching in a session.
enum FetchState {
    /// A task fetches. The lanes end when it ends, so only this task keeps their channels open.
    Runs { task: AbortHandle, lanes: Vec<WeakLaneSender> },
    /// The task was dropped. Another one starts when it is gone.
    Dropped { task: task::Id, lanes: Vec<LaneSender> },
    /// Fetching has ended.
    Over(FetchEnd),
}

/// The task of a lane, as its successor knows it.
#[derive(Clone)]
pub(in crate::consumer) struct PreviousLane {
    lane: usize,
    /// Cancelled when the task has ended.
    over: CancellationToken,
    /// Progress of the session that the task belongs to.
    progress: Arc<Progress>,
}

impl PreviousLane {
    /// Waits until the task has ended. Returns the position up to which it was done.
    pub(in crate::consumer) async fn over(&self) -> Position {
        self.over.cancelled().await;
        self.progress.done_up_to(self.lane)
    }

    fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }
}

/// Lanes that a session leaves to the next one, because their handlers cannot be stopped.
#[derive(Default)]
pub(super) struct LeftoverLanes {
    /// Tasks of the session that still run.
    tasks: JoinSet<Option<FetchEnd>>,
    /// Per lane, the task that still runs.
    lanes: Vec<Option<PreviousLane>>,
}

impl LeftoverLanes {
    /// Returns true if a lane still runs.
    pub(super) fn runs(&self) -> bool {
        self.lanes.iter().any(Option::is_some)
    }

    fn of(&self, lane: usize) -> Option<&PreviousLane> {
        self.lanes.get(lane).and_then(Option::as_ref)
    }
}

/// Kind of end of a session's task.
pub(super) enum TaskEnd {
    /// The task was dropped, or had nothing more to do.
    Over,
    /// The fetch task was dropped, and must be restarted with these lanes.
    FetchDropped(Vec<LaneSender>),
    /// The task panicked, which is a fault of this library.
    Panicked,
}

impl<A: StreamApi, S: LeaseStore, H: ProcessingMode<S>> ShardReader<A, S, H> {
    /// Starts a session. Where a lane of the last session still runs, its successor waits for it.
    pub(super) fn start(&self, resume: Resume, from: ReadFrom, left: LeftoverLanes) -> Session {
        let worker = &self.worker;
        let progress = Arc::new(Progress::new(&resume));
        let (stop, start_over) = (StopSignal::default(), CancellationToken::new());
        let (mut ways, mut lanes) = (Vec::new(), Vec::new());
        let signs = self.vitals.lanes(resume.lanes(), |lane| left.of(lane).is_some());
        let before: Vec<_> = (0..resume.lanes()).map(|lane| left.of(lane).cloned()).collect();
        let mut tasks = left.tasks;
        for (index, sign) in signs.into_iter().enumerate() {
            let (way, chunks) = LaneSender::bounded_by_records(worker.settings.lane_records);
            ways.push(way);
            let over = CancellationToken::new();
            let lane = Lane {
                index,
                worker: Arc::clone(worker),
                work: Arc::clone(&self.work),
                grip: Arc::clone(&self.grip),
                shard: Arc::clone(&self.shard),
                progress: Arc::clone(&progress),
                vitals: Arc::clone(&self.vitals),
                sign,
                stop: stop.clone(),
                start_over: start_over.clone(),
                before: before[index].clone(),
                _over: over.clone().drop_guard(),
            };
            tasks.spawn(async move {
                lane.run(chunks).await;
                None
            });
            lanes.push(PreviousLane { lane: index, over, progress: Arc::clone(&progress) });
        }
        let (share, fetching) = (worker.budget.share(), FetchState::Over(FetchEnd::Stopped));
        let mut session =
            Session { tasks, progress, stop, start_over, resume, share, fetching, lanes, before };
        self.fetch(&mut session, ways, from);
        session
    }

    /// Restarts fetching after the records that the lanes have received.
    pub(super) fn fetch_on(&self, session: &mut Session, lanes: Vec<LaneSender>) {
        session.resume = session.resume.behind(&session.progress.undo_dispatch());
        if let Some(from) = session.resume.read_from() {
            self.fetch(session, lanes, from);
        }
    }

    fn fetch(&self, session: &mut Session, lanes: Vec<LaneSender>, from: ReadFrom) {
        let worker = &self.worker;
        let ways = lanes.iter().map(LaneSender::downgrade).collect();
        let feed = Dispatcher {
            shard: Arc::clone(&self.shard),
            range: self.grip.lease().range.unwrap_or(HashRange::ALL),
            resume: session.resume.clone(),
            lanes,
            chunk: self.chunk(),
            marks: Mutex::default(),
            tells_empty: worker.handler.wants_empty_reads(),
            progress: Arc::clone(&session.progress),
            vitals: Arc::clone(&self.vitals),
            share: session.share.clone(),
            clock: worker.clock.clone(),
            events: worker.events.clone(),
        };
        let source = FetchContext {
            api: Arc::clone(&worker.api),
            feed,
            latest: Arc::clone(&self.latest),
            summaries: Arc::clone(&self.grip.held_and_context().1.summaries),
            clock: worker.clock.clone(),
            chance: worker.chance.clone(),
        };
        let stopped = session.stop.token();
        let task = match &worker.registry {
            None => {
                let idle_poll_ms = millis(worker.settings.idle_poll_interval);
                let poll = PollingReader { source, idle_poll_ms, first: None, ends_refused: false };
                session.tasks.spawn(async move { Some(poll.run(from, stopped).await) })
            }
            Some(registry) => {
                let fan_out = FanOutReader { source, registry: Arc::clone(registry) };
                session.tasks.spawn(async move { Some(fan_out.run(from, stopped).await) })
            }
        };
        session.fetching = FetchState::Runs { task, lanes: ways };
    }

    /// Returns the maximum number of records in one chunk.
    fn chunk(&self) -> usize {
        CHUNK.max(self.worker.handler.max_records())
    }
}

impl Session {
    /// Waits until a task ends. Returns `None` if none is running.
    pub(super) async fn next_end(&mut self) -> Option<TaskEnd> {
        let ended = self.tasks.join_next().await?;
        Some(match ended {
            Ok(None) => TaskEnd::Over,
            Ok(Some(end)) => {
                self.fetching = FetchState::Over(end);
                TaskEnd::Over
            }
            Err(error) => self.task_failure(&error),
        })
    }

    /// Classifies a task that was cancelled or has panicked. Only tasks that were dropped on
    /// purpose are cancelled.
    fn task_failure(&mut self, error: &JoinError) -> TaskEnd {
        let stopping = self.is_stopping();
        match &mut self.fetching {
            _ if !error.is_cancelled() => TaskEnd::Panicked,
            FetchState::Dropped { task, lanes } if *task == error.id() && !stopping => {
                TaskEnd::FetchDropped(std::mem::take(lanes))
            }
            _ => TaskEnd::Over,
        }
    }

    /// Restarts fetching. The lanes continue with the records they have.
    pub(super) fn drop_fetching(&mut self) {
        let FetchState::Runs { task, lanes } = &self.fetching else { return };
        // If a lane's channel is closed, fetching has ended by itself.
        let lanes: Option<Vec<_>> = lanes.iter().map(WeakLaneSender::upgrade).collect();
        if let Some(lanes) = lanes.filter(|_| !self.is_stopping()) {
            task.abort();
            self.fetching = FetchState::Dropped { task: task.id(), lanes };
        }
    }

    /// Stops fetching, and lets each lane finish its current call.
    pub(super) fn stop(&self) {
        self.stop.set();
    }

    fn is_stopping(&self) -> bool {
        self.stop.is_set()
    }

    /// Returns the reason why fetching ended, once no task runs and every record is done.
    pub(super) fn outcome(&mut self) -> Option<FetchEnd> {
        if !self.tasks.is_empty() || self.progress.open() > 0 {
            return None;
        }
        match std::mem::replace(&mut self.fetching, FetchState::Over(FetchEnd::Stopped)) {
            FetchState::Over(end) => Some(end),
            FetchState::Runs { .. } | FetchState::Dropped { .. } => Some(FetchEnd::Stopped),
        }
    }

    /// Returns true if no task runs.
    pub(super) fn is_over(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Returns true if a lane of an earlier session still runs.
    pub(super) fn has_left(&self) -> bool {
        self.before.iter().flatten().any(|lane| !lane.is_over())
    }

    /// Waits until all tasks have ended.
    pub(super) async fn ended(&mut self) {
        while self.next_end().await.is_some() {}
    }

    /// Drops all tasks. Tasks that block their thread continue to run.
    pub(super) fn drop_tasks(&mut self) {
        self.tasks.abort_all();
    }

    /// Drops all tasks, and waits until none runs.
    pub(super) async fn drop_all(&mut self) {
        self.stop();
        self.drop_tasks();
        self.ended().await;
    }

    /// Returns the position up to which each lane is done, by this session and the ones before it.
    pub(super) fn positions(&self) -> Checkpoint {
        for before in self.before.iter().flatten().filter(|before| before.is_over()) {
            self.progress.catch_up(before.lane, before.progress.done_up_to(before.lane));
        }
        self.progress.checkpoint(Layout::Native)
    }

    /// Returns the lanes that still run, for the next session. A lane that still waits for its
    /// predecessor has done nothing yet, so its own successor waits for the same predecessor.
    pub(super) fn leftover(self) -> LeftoverLanes {
        let runs = |lane: &PreviousLane| !lane.is_over();
        let waited = self.before.into_iter().map(|before| before.filter(runs));
        let lanes = waited.zip(self.lanes).map(|(before, own)| before.or(Some(own).filter(runs)));
        LeftoverLanes { tasks: self.tasks, lanes: lanes.collect() }
    }
}
