//! Lifecycle of the reading of one shard.
//!
//! ```text
//! session ─┬─ stop: Lost ──────────────► drop all tasks ────────────────────► Failed
//!   ▲      ├─ stop: Drain ─► lanes end their calls ─► checkpoint ───────────► Drained
//!   │      │     └─ deadline: drop handlers ──┘ └─ one cannot be dropped: refuse,
//!   │      │                                       continue in the other lanes ───────┐
//!   │      ├─ fetch: ShardEnd, lanes done ─► LeaseHandle::end ──────────────► Ended   │
//!   │      └─ fetch: Missing, lanes done ──► LeaseHandle::resolve_missing ─┬► Ended   │
//!   │                                                                      └► retry ──┤
//!   └─────────────────────────────────────────────────────────────────────────────────┘
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
use crate::time::millis;
use anabranch_model::lease::{Checkpoint, LeaseKey};
use anabranch_model::position::Position;
use anabranch_model::retry::Fault;
use session::{LeftoverLanes, Session};
use std::sync::Arc;
use std::time::Duration;

/// Time that a dropped handler has to end, before it counts as one that cannot be stopped.
const ABORT_MS: u64 = 500;
/// Maximum time for the user's `lease_lost` callback while other workers wait for the shard.
const OVER_MS: u64 = 5_000;
/// Error reported for a call that was dropped on order of the watchdog.
const STOOD_STILL: &str = "it did not return within the watchdog's limit, and was interrupted";
/// Pause before a failed step is retried, in milliseconds.
const AGAIN_MS: u64 = 1_000;

/// Reads a shard until its end, or until the lease must go.
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
    // The last metrics event covers the records done since the previous one.
    events.emit(reader.vitals.interval_totals(reader.worker.clock.wall_ms()));
    events.emit(ShardEvent::Stopped { shard, why });
    reader.grip.finish(how);
}

/// The reading of one shard.
struct ShardReader<A: StreamApi, S: LeaseStore, H: ProcessingMode<S>> {
    worker: Arc<WorkerContext<A, H>>,
    /// The user's code for this shard.
    work: Arc<H::ShardWork>,
    grip: Arc<LeaseHandle<S, A>>,
    shard: Arc<LeaseKey>,
    checkpoints: CheckpointWriter,
    vitals: Arc<ShardTelemetry>,
    /// Position up to which each lane is done, whether the row can hold it or not.
    stands_at: Checkpoint,
    /// Timestamp for LATEST, while the shard is at LATEST.
    latest: Arc<LatestResolver>,
    /// Checkpoint at which the user's code last began.
    began_at: Checkpoint,
    /// Number of restarts of the user's code since its checkpoint last moved.
    failures: u32,
    /// True if the row says that the lease cannot be handed over.
    refused: bool,
}

/// Result of a session.
enum SessionEnd {
    /// The reading is over.
    Finished(FinishReason, ShardStopReason),
    /// The reading continues where it is, after a pause: in all lanes except those whose handlers
    /// still run.
    Restart,
    /// The user's code cannot continue. It restarts at its last checkpoint, after a pause.
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

    /// Resolves LATEST to a timestamp before the user's code runs, so that records that arrive
    /// while the user's code makes no progress are not skipped. Returns the result of the reading
    /// if it must stop.
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
                    // The coordinator finds out what happened to the stream.
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
                retry_in: Duration::from_millis(pause_ms),
            });
            if let Some(end) = self.pause(pause_ms).await {
                return Some(end);
            }
        }
    }

    /// Stores the timestamp for LATEST in the row before any record is delivered, so that records
    /// that arrive while no worker reads are not skipped. Returns the result of the reading if it
    /// must stop or the lease is lost.
    async fn keep_latest(&self, moment_ms: u64) -> Option<(FinishReason, ShardStopReason)> {
        let mut failures = 0_u32;
        loop {
            let error = tokio::select! {
                biased;
                stop = self.grip.wait_for_stop() => return Some(end_before_start(&stop)),
                kept = self.grip.pin_latest(moment_ms) => match kept {
                    // The row may already hold a timestamp that this worker resolved earlier.
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

    /// Pauses before the user's code runs. Returns the result of the reading if a stop comes
    /// meanwhile.
    async fn pause(&self, pause_ms: u64) -> Option<(FinishReason, ShardStopReason)> {
        tokio::select! {
            biased;
            stop = self.grip.wait_for_stop() => Some(end_before_start(&stop)),
            () = self.worker.clock.sleep(pause_ms) => None,
        }
    }

    /// Reads with the current user's code. Returns `None` once that code was restarted because it
    /// could not continue.
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

    /// Returns the position at which the next session begins. While a lane of the last session
    /// still runs, the number of lanes does not change.
    fn resume(&self, left: &LeftoverLanes) -> Resume {
        if left.runs() {
            Resume::as_it_stands(&self.stands_at)
        } else if self.worker.handler.supports_lanes() {
            Resume::of(&self.stands_at, self.worker.settings.concurrency)
        } else {
            Resume::in_one_lane(&self.stands_at)
        }
    }

    /// Restarts the user's code at its last checkpoint. Returns the result of the reading if it
    /// must end.
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

    /// Runs the user's callback before the first record. Returns [`SessionEnd::Restart`] if the
    /// reading may begin.
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

    /// Waits until the watchdog orders that a stuck call be dropped. Returns the reason to report
    /// if the shard is released because of it.
    async fn wait_for_drop_order(&self) -> ShardStopReason {
        loop {
            match self.vitals.wait_for_order().await {
                WatchdogOrder::Refetch => {}
                WatchdogOrder::DropHandlers => return ShardStopReason::Failed,
                WatchdogOrder::Release => return ShardStopReason::Stuck,
            }
        }
    }

    /// Runs the user's callback after the reading has ended, unless the shard ended.
    async fn notify_closed(&self, why: ShardStopReason) {
        if why == ShardStopReason::Ended {
            return;
        }
        let over = attempt(async {
            self.work.closed().await;
            Ok(())
        });
        let patience_ms = millis(self.worker.settings.lease_lost_timeout);
        // A lost lease already belongs to another worker. A released one is waited for, so its time
        // is capped.
        let patience_ms =
            if why == ShardStopReason::Lost { patience_ms } else { patience_ms.min(OVER_MS) };
        let over = tokio::select! {
            biased;
            over = over => over,
            () = self.worker.clock.sleep(patience_ms) => {
                Err(format!("it did not return within {patience_ms} ms, and was interrupted").into())
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

    /// Writes the final checkpoint before the lease is released, and again while the user's code
    /// makes progress meanwhile. The user's code gets no more records by then, so this ends.
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

    /// Writes the checkpoint of the session.
    async fn save_checkpoint(&mut self, session: &Session) -> LeaseStatus {
        self.grip.add_read_bytes(session.progress.take_read_bytes());
        match self.work.checkpoint_for(&session.progress, self.worker.layout) {
            Some(at) => self.checkpoints.write(&self.grip, at).await,
            None => LeaseStatus::Kept,
        }
    }
}

/// Returns the result of a reading that was stopped before it began.
fn end_before_start(stop: &StopReason) -> (FinishReason, ShardStopReason) {
    match stop {
        StopReason::Lost => (FinishReason::Failed, ShardStopReason::Lost),
        StopReason::Drain { .. } => (FinishReason::Drained, ShardStopReason::Drained),
    }
}
