//! A session: the tasks of a shard while it is read, one that fetches and one for each lane.
//!
//! ```text
//! Reader::start ─┬─► fetch ─ Chunk ─► lane 0        dropped: another one fetches on behind what
//!                │              └───► lane 1        the lanes were given
//!                └─ Left: a lane of the last session whose handler still runs ─► its successor
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
use anabranch_model::hash::HashRange;
use anabranch_model::lease::{Checkpoint, Layout};
use anabranch_model::position::Position;
use std::sync::{Arc, Mutex};
use tokio::task::{self, AbortHandle, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

/// Records of one lane that go together, at least.
const CHUNK: usize = 64;

/// The tasks of a shard, while it is read.
pub(super) struct Session {
    /// The lanes, the task that fetches for them, and what the last session left.
    tasks: JoinSet<Option<FetchEnd>>,
    /// Where the shard stands.
    pub(super) progress: Arc<Progress>,
    /// Ends the fetching at once, and each lane after the call that it is in.
    stop: StopSignal,
    /// The user's code can't go on.
    pub(super) start_over: CancellationToken,
    /// What was done before.
    resume: Resume,
    /// The memory that the records may take.
    share: ShardBudget,
    /// How far the fetching is.
    fetching: FetchState,
    /// Each lane's own task, for whoever takes its place.
    lanes: Vec<PreviousLane>,
    /// The lanes of earlier sessions whose places were taken.
    before: Vec<Option<PreviousLane>>,
}

/// How far the fetching of a session is.
enum FetchState {
    /// A task fetches. The lanes end when it is over, so nobody else keeps the way to them.
    Runs { task: AbortHandle, lanes: Vec<WeakLaneSender> },
    /// It was dropped. Another one begins when it is gone.
    Dropped { task: task::Id, lanes: Vec<LaneSender> },
    /// It has ended.
    Over(FetchEnd),
}

/// The task of a lane, as its successor knows it.
#[derive(Clone)]
pub(in crate::consumer) struct PreviousLane {
    /// Which lane.
    lane: usize,
    /// Cancelled when the task is over.
    over: CancellationToken,
    /// What it has done.
    progress: Arc<Progress>,
}

impl PreviousLane {
    /// Waits until it is over. Returns up to where it was done.
    pub(in crate::consumer) async fn over(&self) -> Position {
        self.over.cancelled().await;
        self.progress.done_up_to(self.lane)
    }

    fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }
}

/// What a session leaves to the next: lanes whose handlers can't be stopped.
#[derive(Default)]
pub(super) struct LeftoverLanes {
    /// Their tasks.
    tasks: JoinSet<Option<FetchEnd>>,
    /// Those lanes.
    lanes: Vec<Option<PreviousLane>>,
}

impl LeftoverLanes {
    /// Whether a lane still runs.
    pub(super) fn runs(&self) -> bool {
        self.lanes.iter().any(Option::is_some)
    }

    fn of(&self, lane: usize) -> Option<&PreviousLane> {
        self.lanes.get(lane).and_then(Option::as_ref)
    }
}

/// A task of a session that has ended.
pub(super) enum TaskEnd {
    /// One that was dropped, or had nothing more to do.
    Over,
    /// The fetching was dropped, and is to begin anew for these lanes.
    FetchDropped(Vec<LaneSender>),
    /// A fault of this library.
    Panicked,
}

impl<A: StreamApi, S: LeaseStore, H: ProcessingMode<S>> ShardReader<A, S, H> {
    /// Begins to read. Where a lane of the last session still runs, its successor waits for it.
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

    /// Begins to fetch anew, behind what the lanes were given.
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
                let idle_poll_ms = worker.settings.idle_poll_interval;
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

    /// How many records of one lane go together.
    fn chunk(&self) -> usize {
        CHUNK.max(self.worker.handler.max_records())
    }
}

impl Session {
    /// Waits until a task ends. `None` if none runs.
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

    /// Only tasks that were dropped on purpose end so, or those with a fault.
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

    /// Has the fetching begin anew. What the lanes have, they go on with.
    pub(super) fn drop_fetching(&mut self) {
        let FetchState::Runs { task, lanes } = &self.fetching else { return };
        // Without a way to a lane the fetching has ended by itself.
        let lanes: Option<Vec<_>> = lanes.iter().map(WeakLaneSender::upgrade).collect();
        if let Some(lanes) = lanes.filter(|_| !self.is_stopping()) {
            task.abort();
            self.fetching = FetchState::Dropped { task: task.id(), lanes };
        }
    }

    /// Fetches no more, and lets each lane end the call that it is in.
    pub(super) fn stop(&self) {
        self.stop.set();
    }

    fn is_stopping(&self) -> bool {
        self.stop.is_set()
    }

    /// How the fetching ended, once nothing runs and every record is done.
    pub(super) fn outcome(&mut self) -> Option<FetchEnd> {
        if !self.tasks.is_empty() || self.progress.open() > 0 {
            return None;
        }
        match std::mem::replace(&mut self.fetching, FetchState::Over(FetchEnd::Stopped)) {
            FetchState::Over(end) => Some(end),
            FetchState::Runs { .. } | FetchState::Dropped { .. } => Some(FetchEnd::Stopped),
        }
    }

    /// Whether no task runs.
    pub(super) fn is_over(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Whether a lane of an earlier session still runs.
    pub(super) fn has_left(&self) -> bool {
        self.before.iter().flatten().any(|lane| !lane.is_over())
    }

    /// Waits until all tasks have ended.
    pub(super) async fn ended(&mut self) {
        while self.next_end().await.is_some() {}
    }

    /// Drops all tasks. Those that block their thread run on.
    pub(super) fn drop_tasks(&mut self) {
        self.tasks.abort_all();
    }

    /// Drops all tasks, and waits until none runs.
    pub(super) async fn drop_all(&mut self) {
        self.stop();
        self.drop_tasks();
        self.ended().await;
    }

    /// Up to where each lane is done, by what this session and those before it did.
    pub(super) fn positions(&self) -> Checkpoint {
        for before in self.before.iter().flatten().filter(|before| before.is_over()) {
            self.progress.catch_up(before.lane, before.progress.done_up_to(before.lane));
        }
        self.progress.checkpoint(Layout::Native)
    }

    /// What still runs, for the next session. A successor that waits has done nothing yet, so its
    /// own successor waits for the same lane.
    pub(super) fn leftover(self) -> LeftoverLanes {
        let runs = |lane: &PreviousLane| !lane.is_over();
        let waited = self.before.into_iter().map(|before| before.filter(runs));
        let lanes = waited.zip(self.lanes).map(|(before, own)| before.or(Some(own).filter(runs)));
        LeftoverLanes { tasks: self.tasks, lanes: lanes.collect() }
    }
}
