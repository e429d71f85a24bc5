//! One shard: its tasks, its checkpoints, and how its reading ends.
//!
//! ```text
//!           asked to stop: Lost ──────────► drop all tasks ────────────────► Failed
//!               │  └────── Drain ─► stop ─► lanes end their call ─► note ──► Drained
//! tasks ────────┤                     └ deadline: drop them ─┘ └ can't be dropped: refuse, wait
//!               ├ fetch: ShardEnd, lanes done ─► Grip::end ────────────────► Ended
//!               └ fetch: Missing, lanes done ──► Grip::gone ─► read again or Ended
//! ```

use super::Worker;
use super::checkpoint::{Checkpoints, Tenancy};
use super::decode::Feed;
use super::fetch::fanout::FanOut;
use super::fetch::poll::Poll;
use super::fetch::{FetchEnd, Latest, Source};
use super::handler::{HandlerError, attempt};
use super::lanes::Lane;
use super::processor::StartOver;
use super::progress::Progress;
use super::resume::Resume;
use super::shape::{Shape, Work};
use super::vitals::{Order, Vitals};
use crate::event::{ShardEvent, ShardStop};
use crate::lease::{DrainReason, Ended, Gone, Grip, How, LeaseStore, Stop};
use crate::stream::api::{ChildShard, ReadFrom, StreamApi};
use anabranch_model::hash::HashRange;
use anabranch_model::lease::{Checkpoint, Layout, LeaseKey};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Records of one lane that go together, at least.
const CHUNK: usize = 64;
/// How long a dropped handler is waited for before it counts as one that can't be stopped.
const ABORT_MS: u64 = 500;
/// How long the user's code may take to hear that the shard is no longer read here, while others
/// wait for the shard.
const OVER_MS: u64 = 5_000;
/// The pause before something that could not be done is tried again.
const AGAIN_MS: u64 = 1_000;

/// Reads a shard until its end, or until the lease has to go.
pub(super) async fn run<A: StreamApi, S: LeaseStore, H: Shape<S>>(
    worker: Arc<Worker<A, H>>,
    grip: Grip<S, A>,
) {
    let (events, shard) = (worker.events.clone(), Arc::new(grip.key().clone()));
    let from = grip.lease().checkpoint.clone();
    events.emit(ShardEvent::Started { shard: Arc::clone(&shard), from: from.clone() });
    let vitals = Arc::new(Vitals::new(Arc::clone(&shard), from.clone()));
    let admitted = worker.health.admit(Arc::clone(&vitals));
    let checkpoints = {
        let (shard, vitals, events) = (Arc::clone(&shard), Arc::clone(&vitals), events.clone());
        Checkpoints::new(shard, from.clone(), vitals, events)
    };
    let grip = Arc::new(grip);
    let mut reader = Reader {
        work: Arc::new(worker.handler.work(&grip)),
        worker,
        grip,
        shard: Arc::clone(&shard),
        checkpoints,
        vitals,
        began_at: from.clone(),
        stands_at: from,
        latest: Arc::default(),
        failures: 0,
    };
    let (how, why) = reader.read().await;
    reader.over(why).await;
    drop(admitted);
    // What was done since the figures were last told belongs to them too.
    events.emit(reader.vitals.figures(reader.worker.clock.wall_ms()));
    events.emit(ShardEvent::Stopped { shard, why });
    reader.grip.finish(how);
}

/// The reading of one shard.
struct Reader<A: StreamApi, S: LeaseStore, H: Shape<S>> {
    /// What all shards of the worker share.
    worker: Arc<Worker<A, H>>,
    /// The user's code.
    work: Arc<H::Work>,
    /// The right to read.
    grip: Arc<Grip<S, A>>,
    /// Which shard.
    shard: Arc<LeaseKey>,
    /// What the row holds.
    checkpoints: Checkpoints,
    /// The signs of life of the shard.
    vitals: Arc<Vitals>,
    /// Up to where each lane is done, whether the row can hold it or not.
    stands_at: Checkpoint,
    /// What LATEST stands for, as long as the shard stands there.
    latest: Arc<Latest>,
    /// Where the user's code last began.
    began_at: Checkpoint,
    /// How often it could not go on since its checkpoint moved.
    failures: u32,
}

/// The tasks of a shard, while it is read.
struct Session {
    /// The lanes, and the task that fetches for them.
    tasks: JoinSet<Option<FetchEnd>>,
    /// Where the shard stands.
    progress: Arc<Progress>,
    /// Ends the fetching at once, and each lane after the call that it is in.
    stop: CancellationToken,
    /// The user's code can't go on.
    start_over: CancellationToken,
}

/// How a session ended.
enum SessionEnd {
    /// The reading is over.
    Over(How, ShardStop),
    /// It goes on where it stands, after a pause.
    Again,
    /// The user's code can't go on: it begins anew at its last checkpoint, after a pause.
    StartOver,
}

const LOST: SessionEnd = SessionEnd::Over(How::Failed, ShardStop::Lost);

impl<A: StreamApi, S: LeaseStore, H: Shape<S>> Reader<A, S, H> {
    async fn read(&mut self) -> (How, ShardStop) {
        if self.stands_at.is_shard_end() {
            return (How::Ended, ShardStop::Ended);
        }
        loop {
            match self.begin().await {
                SessionEnd::Over(how, why) => return (how, why),
                SessionEnd::Again => {}
                SessionEnd::StartOver => match self.start_over().await {
                    Some(end) => return end,
                    None => continue,
                },
            }
            if let Some(end) = self.read_on().await {
                return end;
            }
        }
    }

    /// Reads with the user's code as it is. `None` if that can't go on, and begins anew.
    async fn read_on(&mut self) -> Option<(How, ShardStop)> {
        loop {
            let resume = if self.worker.handler.takes_lanes() {
                Resume::of(&self.stands_at, self.worker.settings.concurrency)
            } else {
                Resume::in_one_lane(&self.stands_at)
            };
            let Some(from) = resume.read_from() else {
                return Some((How::Ended, ShardStop::Ended));
            };
            let mut session = self.start(resume, from);
            let end = self.oversee(&mut session).await;
            self.stands_at = session.progress.checkpoint(Layout::Native);
            match end {
                SessionEnd::Over(how, why) => return Some((how, why)),
                SessionEnd::StartOver => return self.start_over().await,
                SessionEnd::Again => self.worker.clock.sleep(AGAIN_MS).await,
            }
        }
    }

    /// Has the user's code begin anew where it last checkpointed. Returns how the reading ended, if
    /// it is not to be read any more.
    async fn start_over(&mut self) -> Option<(How, ShardStop)> {
        let worker = Arc::clone(&self.worker);
        let again = tokio::select! {
            biased;
            stop = self.grip.asked_to_stop() => return Some(stopped_before(&stop)),
            again = worker.handler.again(&self.work, &self.grip.lease().checkpoint) => again,
        };
        let Some((work, from)) = again else { return Some((How::Failed, ShardStop::Failed)) };
        let moved = self.began_at != from;
        self.failures = if moved { 1 } else { self.failures.saturating_add(1) };
        self.work = Arc::new(work);
        self.began_at = from.clone();
        self.stands_at = from;
        let pause_ms = worker.settings.retry.wait_ms(self.failures, worker.chance.bits());
        tokio::select! {
            biased;
            stop = self.grip.asked_to_stop() => Some(stopped_before(&stop)),
            () = worker.clock.sleep(pause_ms) => None,
        }
    }

    /// Tells the user's code that the shard is about to be read: `Again` if it may be.
    async fn begin(&self) -> SessionEnd {
        let work = Arc::clone(&self.work);
        let begun = tokio::select! {
            biased;
            stop = self.grip.asked_to_stop() => {
                let (how, why) = stopped_before(&stop);
                return SessionEnd::Over(how, why);
            }
            begun = attempt(async { work.begin().await }) => begun,
        };
        let Err(error) = begun else { return SessionEnd::Again };
        self.call_failed("initialize", &error);
        if error.is::<StartOver>() {
            return SessionEnd::StartOver;
        }
        SessionEnd::Over(How::Failed, ShardStop::Failed)
    }

    /// Tells the user's code that the shard is no longer read here, unless it knows.
    async fn over(&self, why: ShardStop) {
        if why == ShardStop::Ended {
            return;
        }
        let over = attempt(async {
            self.work.over().await;
            Ok(())
        });
        let patience_ms = self.worker.settings.lease_lost_ms;
        // A lease that is lost is another's already; one that is given back is waited for.
        let patience_ms =
            if why == ShardStop::Lost { patience_ms } else { patience_ms.min(OVER_MS) };
        let over = tokio::select! {
            biased;
            over = over => over,
            () = self.worker.clock.sleep(patience_ms) => {
                Err(format!("it did not return within {patience_ms} ms, and was dropped").into())
            }
        };
        if let Err(error) = over {
            self.call_failed("lease_lost", &error);
        }
    }

    fn call_failed(&self, call: &'static str, error: &HandlerError) {
        let (shard, error) = (Arc::clone(&self.shard), error.to_string());
        self.worker.events.emit(ShardEvent::CallFailed { shard, call, error });
    }

    fn start(&self, resume: Resume, from: ReadFrom) -> Session {
        let worker = &self.worker;
        let progress = Arc::new(Progress::new(&resume));
        let (stop, start_over) = (CancellationToken::new(), CancellationToken::new());
        let mut tasks = JoinSet::new();
        let mut lanes = Vec::with_capacity(resume.lanes());
        let chunk = CHUNK.max(worker.handler.most());
        for (index, sign) in self.vitals.lanes(resume.lanes()).into_iter().enumerate() {
            let (sender, chunks) = mpsc::channel((worker.settings.lane_records / chunk).max(1));
            lanes.push(sender);
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
            };
            tasks.spawn(async move {
                lane.run(chunks).await;
                None
            });
        }
        let feed = Feed {
            shard: Arc::clone(&self.shard),
            range: self.grip.lease().range.unwrap_or(HashRange::ALL),
            resume,
            lanes,
            chunk,
            tells_empty: worker.handler.takes_empty(),
            progress: Arc::clone(&progress),
            vitals: Arc::clone(&self.vitals),
            share: worker.budget.share(),
            clock: worker.clock.clone(),
            events: worker.events.clone(),
        };
        let source = Source {
            api: Arc::clone(&worker.api),
            feed,
            latest: Arc::clone(&self.latest),
            clock: worker.clock.clone(),
            chance: worker.chance.clone(),
        };
        let stopped = stop.clone();
        match &worker.registry {
            None => {
                let idle_poll_ms = worker.settings.idle_poll_ms;
                let poll = Poll { source, idle_poll_ms, first: None };
                tasks.spawn(async move { Some(poll.run(from, stopped).await) });
            }
            Some(registry) => {
                let fan_out = FanOut { source, registry: Arc::clone(registry) };
                tasks.spawn(async move { Some(fan_out.run(from, stopped).await) });
            }
        }
        Session { tasks, progress, stop, start_over }
    }

    /// Watches over the tasks, and writes down what they have done.
    async fn oversee(&mut self, session: &mut Session) -> SessionEnd {
        let (worker, grip) = (Arc::clone(&self.worker), Arc::clone(&self.grip));
        let vitals = Arc::clone(&self.vitals);
        let work = Arc::clone(&self.work);
        let every_ms = worker.settings.checkpoint_ms;
        let mut due_ms = worker.clock.now_ms().saturating_add(every_ms);
        let (mut fetched, mut ordered) = (None, None);
        loop {
            tokio::select! {
                biased;
                stop = grip.asked_to_stop() => return self.stop(session, stop).await,
                () = work.gives_up() => {
                    session.drop_all().await;
                    return SessionEnd::Over(How::Failed, ShardStop::Failed);
                }
                Some(ended) = session.tasks.join_next() => {
                    // Those that the watcher had dropped end so too.
                    let dropped = ordered == Some(Order::DropHandlers);
                    let ended = ended.or_else(|error| {
                        if error.is_cancelled() && dropped { Ok(None) } else { Err(error) }
                    });
                    let Ok(end) = ended else {
                        // A fault of this library, not of the handler.
                        session.drop_all().await;
                        return SessionEnd::Over(How::Failed, ShardStop::Failed);
                    };
                    fetched = fetched.or(end);
                }
                order = vitals.ordered() => {
                    session.carry_out(order, ordered, &vitals);
                    ordered = Some(order);
                }
                () = worker.clock.sleep_until(due_ms) => {
                    // A store that never answers must not keep the watcher's word from being heard.
                    // A write that is given up may still land; the next one finds it on the row.
                    let noted = tokio::select! {
                        biased;
                        order = vitals.ordered() => {
                            session.carry_out(order, ordered, &vitals);
                            ordered = Some(order);
                            Tenancy::Kept
                        }
                        noted = self.note(session) => noted,
                    };
                    if noted == Tenancy::Lost {
                        session.drop_all().await;
                        return LOST;
                    }
                    due_ms = worker.clock.now_ms().saturating_add(every_ms);
                }
            }
            if session.start_over.is_cancelled() {
                session.drop_all().await;
                return SessionEnd::StartOver;
            }
            if let Some(order) = ordered.filter(|_| session.tasks.is_empty()) {
                return self.begin_anew(session, order).await;
            }
            if session.tasks.is_empty() && session.progress.open() == 0 {
                match fetched.take() {
                    Some(FetchEnd::ShardEnd(children)) => {
                        return self.end(session, &children).await;
                    }
                    Some(FetchEnd::Missing) => return self.gone().await,
                    Some(FetchEnd::Stopped) | None => return SessionEnd::Again,
                }
            }
        }
    }

    /// Nothing of a shard that stood still runs any more.
    async fn begin_anew(&mut self, session: &Session, order: Order) -> SessionEnd {
        self.vitals.set_unstoppable(false);
        let clock = self.worker.clock.clone();
        let patience_ms = self.worker.settings.lease_time_ms / 2;
        let noted = tokio::select! {
            biased;
            noted = self.note(session) => noted,
            () = clock.sleep(patience_ms) => Tenancy::Kept,
        };
        match (noted, order) {
            (Tenancy::Lost, _) => LOST,
            (Tenancy::Kept, Order::Release) => SessionEnd::Over(How::Failed, ShardStop::Stuck),
            (Tenancy::Kept, Order::Restart | Order::DropHandlers) => SessionEnd::Again,
        }
    }

    async fn note(&mut self, session: &Session) -> Tenancy {
        self.grip.note_read(session.progress.take_read_bytes());
        match self.work.done(&session.progress, self.worker.layout) {
            Some(at) => self.checkpoints.note(&self.grip, at).await,
            None => Tenancy::Kept,
        }
    }

    /// Every record is done: writes the shard's end.
    async fn end(&mut self, session: &mut Session, children: &[ChildShard]) -> SessionEnd {
        let work = Arc::clone(&self.work);
        loop {
            let ended = tokio::select! {
                biased;
                stop = self.grip.asked_to_stop() => return self.stop(session, stop).await,
                ended = attempt(async { work.ended().await }) => ended,
                () = work.gives_up() => return match self.note(session).await {
                    Tenancy::Kept => SessionEnd::Over(How::Failed, ShardStop::Failed),
                    Tenancy::Lost => LOST,
                },
            };
            let Err(error) = ended else { break };
            self.call_failed("shard_ended", &error);
            if error.is::<StartOver>() {
                return SessionEnd::StartOver;
            }
            tokio::select! {
                biased;
                stop = self.grip.asked_to_stop() => return self.stop(session, stop).await,
                () = self.worker.clock.sleep(AGAIN_MS) => {}
            }
        }
        loop {
            match self.grip.end(children).await {
                Ended::Done => return SessionEnd::Over(How::Ended, ShardStop::Ended),
                Ended::Lost => return LOST,
                Ended::NotYet { why } => self.not_ended(why.to_owned()),
                Ended::Failed(error) => self.not_ended(error.to_string()),
            }
            tokio::select! {
                biased;
                stop = self.grip.asked_to_stop() => return self.stop(session, stop).await,
                () = self.worker.clock.sleep(AGAIN_MS) => {}
            }
        }
    }

    fn not_ended(&self, error: String) {
        let shard = Arc::clone(&self.shard);
        self.worker.events.emit(ShardEvent::CheckpointFailed { shard, error });
    }

    /// The service says that it has no such shard.
    async fn gone(&self) -> SessionEnd {
        match self.grip.gone().await {
            Gone::NotProven => SessionEnd::Again,
            Gone::Ended => SessionEnd::Over(How::Ended, ShardStop::Gone),
            Gone::Lost => LOST,
            Gone::OtherStream | Gone::Failed(_) => SessionEnd::Over(How::Failed, ShardStop::Failed),
        }
    }

    async fn stop(&mut self, session: &mut Session, stop: Stop) -> SessionEnd {
        let Stop::Drain { deadline_ms, why } = stop else {
            session.drop_all().await;
            return LOST;
        };
        session.stop.cancel();
        self.work.stop_soon();
        let grip = Arc::clone(&self.grip);
        let clock = self.worker.clock.clone();
        let lost = async { while grip.asked_to_stop().await != Stop::Lost {} };
        let lost = &mut std::pin::pin!(lost);
        tokio::select! {
            biased;
            () = &mut *lost => {
                session.drop_all().await;
                return LOST;
            }
            () = async {
                session.ended().await;
                self.stopping().await;
            } => {}
            () = clock.sleep_until(deadline_ms) => session.tasks.abort_all(),
        }
        tokio::select! {
            biased;
            () = session.ended() => {}
            () = clock.sleep(ABORT_MS) => return self.cant_stop(session, &why).await,
        }
        match self.note(session).await {
            Tenancy::Kept => SessionEnd::Over(How::Drained, ShardStop::Drained),
            Tenancy::Lost => LOST,
        }
    }

    /// Tells the user's code that the shard is to be given back.
    async fn stopping(&self) {
        if let Err(error) = attempt(async { self.work.stopping().await }).await {
            self.call_failed("shutdown_requested", &error);
        }
    }

    /// A handler that blocks its thread can't be dropped. The lease is kept until it returns, and
    /// nobody may ask for it meanwhile. Whoever asked before has been told no, so the reading goes
    /// on; any other reason to stop still holds.
    async fn cant_stop(&mut self, session: &mut Session, why: &DrainReason) -> SessionEnd {
        self.vitals.set_unstoppable(true);
        self.grip.cant_stop().await;
        session.ended().await;
        self.vitals.set_unstoppable(false);
        if self.note(session).await == Tenancy::Lost {
            return LOST;
        }
        self.grip.can_stop().await;
        match why {
            DrainReason::HandOver { .. } => SessionEnd::Again,
            DrainReason::Stopping | DrainReason::StreamRemoved | DrainReason::StreamRecreated => {
                SessionEnd::Over(How::Drained, ShardStop::Drained)
            }
        }
    }
}

/// How the reading ends that a stop came before.
fn stopped_before(stop: &Stop) -> (How, ShardStop) {
    match stop {
        Stop::Lost => (How::Failed, ShardStop::Lost),
        Stop::Drain { .. } => (How::Drained, ShardStop::Drained),
    }
}

impl Session {
    /// Ends the tasks of a shard that stands still, as far as they can be ended.
    fn carry_out(&mut self, order: Order, before: Option<Order>, vitals: &Vitals) {
        self.stop.cancel();
        match order {
            // Handlers end the call that they are in.
            Order::Restart | Order::Release => {}
            Order::DropHandlers => {
                self.tasks.abort_all();
                // It was dropped before, and runs all the same.
                vitals.set_unstoppable(before == Some(Order::DropHandlers));
            }
        }
    }

    /// Waits until all tasks have ended.
    async fn ended(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }

    /// Drops all tasks, and waits until none runs.
    async fn drop_all(&mut self) {
        self.tasks.abort_all();
        self.ended().await;
    }
}
