//! One shard: how its reading begins, goes on, and ends.
//!
//! ```text
//!           asked to stop: Lost ──────────► drop all tasks ────────────────► Failed
//!               │  └────── Drain ─► stop ─► lanes end their call ─► note ──► Drained
//! session ──────┤                     └ deadline: drop them ─┘ └ one can't be dropped: refuse,
//!   ▲           │                                                  read on in the other lanes ─┐
//!   │           ├ fetch: ShardEnd, lanes done ─► Grip::end ────────────────► Ended             │
//!   │           └ fetch: Missing, lanes done ──► Grip::gone ─► read again or Ended             │
//!   └──────────────────────────────────────────────────────────────────────────────────────────┘
//! ```

mod session;
mod supervise;
mod end;
mod stop;
pub(super) mod interrupted;

pub(super) use session::PreviousLane;

use super::WorkerContext;
use super::checkpoint::{CheckpointWriter, LeaseStatus};
use super::dispatch::resume::Resume;
use super::fetch::{FAILED, LatestResolver};
use super::health::telemetry::{ShardTelemetry, WatchdogOrder};
use super::modes::closure::{HandlerError, attempt};
use super::modes::processor::RestartProcessor;
use super::modes::{ProcessingMode, Work};
use crate::event::{ShardEvent, ShardStopReason};
use crate::lease::{CheckpointResult, FinishReason, LeaseHandle, LeaseStore, StopReason};
use crate::stream::api::StreamApi;
use anabranch_model::lease::{Checkpoint, LeaseKey};
use anabranch_model::position::Position;
use anabranch_model::retry::Fault;
use session::{LeftoverLanes, Session};
use std::sync::Arc;

/// How long a dropped handler is waited for before it counts as one that can't be stopped.
const ABORT_MS: u64 = 500;
/// How long the user's code may take to hear that the shard is no longer read here, while others
/// wait for the shard.
const OVER_MS: u64 = 5_000;
/// What is said of a call that the watcher wanted dropped.
const STOOD_STILL: &str = "it did not return within the limit of the watch, and was dropped";
/// The pause before something that could not be done is tried again.
const AGAIN_MS: u64 = 1_000;

/// Reads a shard until its end, or until the lease has to go.
pub(super) async fn run<A: StreamApi, S: LeaseStore, H: ProcessingMode<S>>(
    worker: Arc<WorkerContext<A, H>>,
    grip: LeaseHandle<S, A>,
) {
    let (events, shard) = (worker.events.clone(), Arc::new(grip.key().clone()));
    let from = grip.lease().checkpoint.clone();
    events.emit(ShardEvent::Started { shard: Arc::clone(&shard), from: from.clone() });
    let vitals = Arc::new(ShardTelemetry::new(Arc::clone(&shard), from.clone()));
    let admitted = worker.health.register(Arc::clone(&vitals));
    let checkpoints = {
        let (shard, vitals, events) = (Arc::clone(&shard), Arc::clone(&vitals), events.clone());
        CheckpointWriter::new(shard, from.clone(), vitals, events)
    };
    let grip = Arc::new(grip);
    let mut reader = ShardReader {
        work: Arc::new(worker.handler.work(&grip)),
        latest: Arc::default(),
        worker,
        grip,
        shard: Arc::clone(&shard),
        checkpoints,
        vitals,
        began_at: from.clone(),
        stands_at: from,
        failures: 0,
        refused: false,
    };
    let (how, why) = reader.read().await;
    reader.notify_closed(why).await;
    drop(admitted);
    // What was done since the figures were last told belongs to them too.
    events.emit(reader.vitals.interval_totals(reader.worker.clock.wall_ms()));
    events.emit(ShardEvent::Stopped { shard, why });
    reader.grip.finish(how);
}

/// The reading of one shard.
struct ShardReader<A: StreamApi, S: LeaseStore, H: ProcessingMode<S>> {
    /// What all shards of the worker share.
    worker: Arc<WorkerContext<A, H>>,
    /// The user's code.
    work: Arc<H::ShardWork>,
    /// The right to read.
    grip: Arc<LeaseHandle<S, A>>,
    /// Which shard.
    shard: Arc<LeaseKey>,
    /// What the row holds.
    checkpoints: CheckpointWriter,
    /// The signs of life of the shard.
    vitals: Arc<ShardTelemetry>,
    /// Up to where each lane is done, whether the row can hold it or not.
    stands_at: Checkpoint,
    /// What LATEST stands for, as long as the shard stands there.
    latest: Arc<LatestResolver>,
    /// Where the user's code last began.
    began_at: Checkpoint,
    /// How often it could not go on since its checkpoint moved.
    failures: u32,
    /// Whether the row says that the lease can't be handed over.
    refused: bool,
}

/// How a session ended.
enum SessionEnd {
    /// The reading is over.
    Finished(FinishReason, ShardStopReason),
    /// It goes on where it stands, after a pause: in all lanes but those whose handlers still run.
    Restart,
    /// The user's code can't go on: it begins anew at its last checkpoint, after a pause.
    RestartProcessor,
}

const LOST: SessionEnd = SessionEnd::Finished(FinishReason::Failed, ShardStopReason::Lost);

impl<A: StreamApi, S: LeaseStore, H: ProcessingMode<S>> ShardReader<A, S, H> {
    async fn read(&mut self) -> (FinishReason, ShardStopReason) {
        if self.stands_at.is_shard_end() {
            return (FinishReason::Ended, ShardStopReason::Ended);
        }
        if let Some(end) = self.find_latest().await {
            return end;
        }
        loop {
            match self.begin().await {
                SessionEnd::Finished(how, why) => return (how, why),
                SessionEnd::Restart => {}
                SessionEnd::RestartProcessor => match self.start_over().await {
                    Some(end) => return end,
                    None => continue,
                },
            }
            if let Some(end) = self.read_on().await {
                return end;
            }
        }
    }

    /// Finds out what LATEST stands for before the user's code runs, so that nothing is skipped that
    /// comes while that does not get on. Returns how the reading ended, if it was to stop.
    async fn find_latest(&self) -> Option<(FinishReason, ShardStopReason)> {
        if self.stands_at.lowest() != Position::Latest {
            return None;
        }
        let worker = &self.worker;
        let mut failures = 0_u32;
        loop {
            let moment = self.latest.resolve(&*worker.api, &self.shard, &worker.clock);
            let error = tokio::select! {
                biased;
                stop = self.grip.wait_for_stop() => return Some(end_before_start(&stop)),
                found = moment => match found {
                    Ok(moment_ms) => return self.keep_latest(moment_ms).await,
                    // The coordinator finds out what has become of the stream.
                    Err(error) if error.fault == Fault::Missing => {
                        self.grip.suspect_stream();
                        return Some((FinishReason::Failed, ShardStopReason::Failed));
                    }
                    Err(error) => error.to_string(),
                },
            };
            failures = failures.saturating_add(1);
            let pause_ms = FAILED.wait_ms(failures, worker.chance.bits());
            let shard = Arc::clone(&self.shard);
            worker.events.emit(ShardEvent::FetchFailed {
                shard,
                error,
                failures,
                retry_in: pause_ms,
            });
            if let Some(end) = self.pause(pause_ms).await {
                return Some(end);
            }
        }
    }

    /// Keeps on the row what LATEST stands for, so that nothing is skipped either that comes while
    /// nobody reads: no record is handed out before. Returns how the reading ended, if it was to stop
    /// or the lease is lost.
    async fn keep_latest(&self, moment_ms: u64) -> Option<(FinishReason, ShardStopReason)> {
        let mut failures = 0_u32;
        loop {
            let error = tokio::select! {
                biased;
                stop = self.grip.wait_for_stop() => return Some(end_before_start(&stop)),
                kept = self.grip.pin_latest(moment_ms) => match kept {
                    // One that the worker had found out before may be on the row already.
                    CheckpointResult::Done | CheckpointResult::BehindCurrent => return None,
                    CheckpointResult::Lost => return Some((FinishReason::Failed, ShardStopReason::Lost)),
                    CheckpointResult::Failed(error) => error.to_string(),
                },
            };
            let shard = Arc::clone(&self.shard);
            self.worker.events.emit(ShardEvent::CheckpointFailed { shard, error });
            failures = failures.saturating_add(1);
            if let Some(end) = self.pause(FAILED.wait_ms(failures, self.worker.chance.bits())).await
            {
                return Some(end);
            }
        }
    }

    /// Waits before the user's code runs. Returns how the reading ended, if it was to stop meanwhile.
    async fn pause(&self, pause_ms: u64) -> Option<(FinishReason, ShardStopReason)> {
        tokio::select! {
            biased;
            stop = self.grip.wait_for_stop() => Some(end_before_start(&stop)),
            () = self.worker.clock.sleep(pause_ms) => None,
        }
    }

    /// Reads with the user's code as it is. `None` if that can't go on, and begins anew.
    async fn read_on(&mut self) -> Option<(FinishReason, ShardStopReason)> {
        let mut left = LeftoverLanes::default();
        loop {
            let resume = self.resume(&left);
            let Some(from) = resume.read_from() else {
                return Some((FinishReason::Ended, ShardStopReason::Ended));
            };
            let mut session = self.start(resume, from, left);
            let end = self.supervise(&mut session).await;
            self.stands_at = session.positions();
            match end {
                SessionEnd::Finished(how, why) => return Some((how, why)),
                SessionEnd::RestartProcessor => return self.start_over().await,
                SessionEnd::Restart => {
                    left = session.leftover();
                    self.worker.clock.sleep(AGAIN_MS).await;
                }
            }
        }
    }

    /// Where the next session begins. While a lane of the last one still runs, their number holds.
    fn resume(&self, left: &LeftoverLanes) -> Resume {
        if left.runs() {
            Resume::as_it_stands(&self.stands_at)
        } else if self.worker.handler.supports_lanes() {
            Resume::of(&self.stands_at, self.worker.settings.concurrency)
        } else {
            Resume::in_one_lane(&self.stands_at)
        }
    }

    /// Has the user's code begin anew where it last checkpointed. Returns how the reading ended, if
    /// it is not to be read any more.
    async fn start_over(&mut self) -> Option<(FinishReason, ShardStopReason)> {
        let worker = Arc::clone(&self.worker);
        let again = tokio::select! {
            biased;
            stop = self.grip.wait_for_stop() => return Some(end_before_start(&stop)),
            again = worker.handler.restart(&self.work, &self.grip.lease().checkpoint) => again,
        };
        let Some((work, from)) = again else {
            return Some((FinishReason::Failed, ShardStopReason::Failed));
        };
        let moved = self.began_at != from;
        self.failures = if moved { 1 } else { self.failures.saturating_add(1) };
        self.work = Arc::new(work);
        self.began_at = from.clone();
        self.stands_at = from;
        let pause_ms = worker.settings.retry.wait_ms(self.failures, worker.chance.bits());
        tokio::select! {
            biased;
            stop = self.grip.wait_for_stop() => Some(end_before_start(&stop)),
            () = worker.clock.sleep(pause_ms) => None,
        }
    }

    /// Tells the user's code that the shard is about to be read: `Gate` if it may be.
    async fn begin(&self) -> SessionEnd {
        let calling = self.vitals.calling();
        let begun = tokio::select! {
            biased;
            stop = self.grip.wait_for_stop() => {
                let (how, why) = end_before_start(&stop);
                return SessionEnd::Finished(how, why);
            }
            begun = attempt(async { self.work.begin().await }) => begun,
            why = self.wait_for_drop_order() => {
                self.call_failed("initialize", &STOOD_STILL.into());
                return SessionEnd::Finished(FinishReason::Failed, why);
            }
        };
        calling.returned();
        let Err(error) = begun else { return SessionEnd::Restart };
        self.call_failed("initialize", &error);
        if error.is::<RestartProcessor>() {
            return SessionEnd::RestartProcessor;
        }
        SessionEnd::Finished(FinishReason::Failed, ShardStopReason::Failed)
    }

    /// Waits until the watcher wants a call dropped that does not return. Says what is to be said
    /// where the shard is given back for it.
    async fn wait_for_drop_order(&self) -> ShardStopReason {
        loop {
            match self.vitals.wait_for_order().await {
                WatchdogOrder::Refetch => {}
                WatchdogOrder::DropHandlers => return ShardStopReason::Failed,
                WatchdogOrder::Release => return ShardStopReason::Stuck,
            }
        }
    }

    /// Tells the user's code that the shard is no longer read here, unless it knows.
    async fn notify_closed(&self, why: ShardStopReason) {
        if why == ShardStopReason::Ended {
            return;
        }
        let over = attempt(async {
            self.work.closed().await;
            Ok(())
        });
        let patience_ms = self.worker.settings.lease_lost_timeout;
        // A lease that is lost is another's already; one that is given back is waited for.
        let patience_ms =
            if why == ShardStopReason::Lost { patience_ms } else { patience_ms.min(OVER_MS) };
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
        self.worker.events.emit(ShardEvent::CallbackFailed { shard, call, error });
    }

    /// Writes down what is done before the lease is given back, and what the user's code does while
    /// that is under way. It takes no more records then, so this ends.
    async fn save_final_checkpoint(&mut self, session: &Session) -> LeaseStatus {
        loop {
            let done = self.work.checkpoint_for(&session.progress, self.worker.layout);
            if self.save_checkpoint(session).await == LeaseStatus::Lost {
                return LeaseStatus::Lost;
            }
            if self.work.checkpoint_for(&session.progress, self.worker.layout) == done {
                return LeaseStatus::Kept;
            }
        }
    }

    /// Writes down what is done.
    async fn save_checkpoint(&mut self, session: &Session) -> LeaseStatus {
        self.grip.add_read_bytes(session.progress.take_read_bytes());
        match self.work.checkpoint_for(&session.progress, self.worker.layout) {
            Some(at) => self.checkpoints.write(&self.grip, at).await,
            None => LeaseStatus::Kept,
        }
    }
}

/// How the reading ends that a stop came before.
fn end_before_start(stop: &StopReason) -> (FinishReason, ShardStopReason) {
    match stop {
        StopReason::Lost => (FinishReason::Failed, ShardStopReason::Lost),
        StopReason::Drain { .. } => (FinishReason::Drained, ShardStopReason::Drained),
    }
}
