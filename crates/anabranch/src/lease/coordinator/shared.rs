//! State shared by the tasks of a coordinator.

use super::held_leases::HeldLeases;
use super::{CoordinatorSettings, CoordinatorStartError, LeaseContext, StreamSettings, TaskGuard};
use crate::event::LeaseEvent;
use crate::lease::{DrainReason, LeaseHandle, LeaseStore};
use crate::stream::api::StreamApi;
use crate::time::system_time;
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{Lease, LeaseKey, Protocol, StreamNames, is_same_creation};
use anabranch_model::retry::Fault;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, mpsc};

/// State shared by the tasks of a coordinator.
#[derive(Debug)]
pub(super) struct CoordinatorShared<S: LeaseStore, A: StreamApi> {
    pub(super) context: Arc<LeaseContext<S, A>>,
    pub(super) held_leases: HeldLeases,
    /// The streams that are read, by the name that their rows lie under.
    streams: Mutex<BTreeMap<StreamName, ActiveStream>>,
    /// Streams that are no longer read, while a lease of theirs may still reach this worker. The
    /// value is the time since which their rows have not named this worker.
    removed_streams: Mutex<BTreeMap<StreamName, u64>>,
    /// Streams that the service reported as missing.
    pub(super) missing: MissingStreams,
    /// Rows returned with refused writes.
    pub(super) learned: LearnedRows,
    /// Sends handles to the reader of the shards.
    pub(super) handles: mpsc::Sender<LeaseHandle<S, A>>,
    /// Wakes the poll loop.
    pub(super) wake: Arc<Notify>,
    /// Makes the heartbeat task beat at once, to publish the list of streams that are read.
    pub(super) reads_changed: Notify,
    stopping: AtomicBool,
    /// The reason why the last stream is no longer read. Set when none is left.
    refusal: Mutex<Option<CoordinatorStartError>>,
    /// Notified when `refusal` is set.
    refused: Notify,
    /// Detects a panic in any of the coordinator's tasks.
    pub(super) task_guard: TaskGuard,
}

/// A stream that is read.
#[derive(Clone, Debug)]
pub(super) struct ActiveStream {
    /// Settings of the stream, under the name that its rows lie under.
    pub(super) settings: StreamSettings,
    pub(super) names: StreamNames,
    /// The ARN, which is unique to this stream.
    pub(super) arn: String,
    /// Creation time, in milliseconds since 1970.
    pub(super) created_ms: u64,
    /// The protocol by which its rows are kept.
    pub(super) protocol: Protocol,
}

impl ActiveStream {
    /// Returns the name that the stream's rows lie under.
    pub(super) fn key(&self) -> StreamName {
        self.settings.name.clone()
    }

    /// Returns true if `name` is one of the stream's names.
    pub(super) fn has_name(&self, name: &StreamName) -> bool {
        self.settings.name == *name || self.names.contains(name) || self.arn == name.as_str()
    }
}

impl<S: LeaseStore, A: StreamApi> CoordinatorShared<S, A> {
    pub(super) fn new(
        tools: Arc<LeaseContext<S, A>>,
        holdings: HeldLeases,
        streams: Vec<ActiveStream>,
        grips: mpsc::Sender<LeaseHandle<S, A>>,
    ) -> Self {
        let named = streams.into_iter().map(|stream| (stream.settings.name.clone(), stream));
        Self {
            context: tools,
            held_leases: holdings,
            streams: Mutex::new(named.collect()),
            removed_streams: Mutex::default(),
            missing: MissingStreams::default(),
            learned: LearnedRows::default(),
            handles: grips,
            wake: Arc::new(Notify::new()),
            reads_changed: Notify::new(),
            stopping: AtomicBool::new(false),
            refusal: Mutex::new(None),
            refused: Notify::new(),
            task_guard: TaskGuard::default(),
        }
    }

    pub(super) fn settings(&self) -> &CoordinatorSettings {
        &self.context.settings
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.context.clock.now_ms()
    }

    /// Returns the pause between two polls of an idle worker, in milliseconds.
    pub(super) fn poll_interval_ms(&self) -> u64 {
        self.settings().poll_interval.unwrap_or_else(|| self.context.store.poll_interval())
    }

    /// Returns the streams that are read, ordered by name.
    pub(super) fn streams(&self) -> Vec<ActiveStream> {
        self.lock_streams().values().cloned().collect()
    }

    /// Returns the names of the streams that are read, in order.
    pub(super) fn stream_names(&self) -> Vec<StreamName> {
        self.lock_streams().keys().cloned().collect()
    }

    /// Returns the names of the streams whose rows are polled: those that are read, and removed
    /// ones.
    pub(super) fn polled_streams(&self) -> Vec<StreamName> {
        let mut names: BTreeSet<_> = self.stream_names().into_iter().collect();
        names.extend(self.lock_removed().keys().cloned());
        names.into_iter().collect()
    }

    /// Stops polling removed streams whose rows have not named this worker for a lease time: no
    /// worker will hand it a lease of theirs any more.
    pub(super) fn forget_removed_streams(&self, names_me: impl Fn(&StreamName) -> bool) {
        let (now_ms, patience_ms) = (self.now_ms(), self.settings().lease_time_ms);
        self.lock_removed().retain(|stream, since_ms| {
            if names_me(stream) {
                *since_ms = now_ms;
            }
            now_ms.saturating_sub(*since_ms) < patience_ms
        });
    }

    /// Returns true if the stream is read.
    pub(super) fn reads(&self, stream: &StreamName) -> bool {
        self.lock_streams().contains_key(stream)
    }

    /// Returns the name that the rows of a stream lie under, if it is read. `name` may be any of
    /// its names.
    pub(super) fn key_of(&self, name: &StreamName) -> Option<StreamName> {
        let streams = self.lock_streams();
        streams.values().find(|stream| stream.has_name(name)).map(ActiveStream::key)
    }

    /// Returns the creation time of a stream that is read.
    pub(super) fn created_ms(&self, stream: &StreamName) -> Option<u64> {
        self.lock_streams().get(stream).map(|stream| stream.created_ms)
    }

    pub(super) fn add_stream(&self, stream: ActiveStream) {
        let mut streams = self.lock_streams();
        // It may be missing under another of its names.
        self.missing.remove_arn(&stream.arn);
        self.insert(&mut streams, stream);
    }

    fn insert(&self, streams: &mut BTreeMap<StreamName, ActiveStream>, stream: ActiveStream) {
        self.lock_removed().remove(&stream.settings.name);
        streams.insert(stream.key(), stream);
        self.wake.notify_one();
    }

    /// Stops reading a stream. If it is missing, stops asking for it.
    pub(super) fn remove_stream(&self, stream: &StreamName) {
        let mut streams = self.lock_streams();
        streams.remove(stream);
        self.missing.remove(stream);
        drop(streams);
        self.lock_removed().insert(stream.clone(), self.now_ms());
    }

    /// Makes the heartbeat task publish the list of streams on the worker's row, so that other
    /// workers plan by it at once. The heartbeat task does it because a write to that row must not
    /// be cut off, and because callers must not wait for an unresponsive store.
    pub(super) fn announce_streams(&self) {
        self.reads_changed.notify_one();
    }

    /// Stops reading a stream for good, at once: it is not the one that the application knows.
    pub(super) fn refuse(&self, why: CoordinatorStartError, stream: &StreamName) {
        self.remove_stream(stream);
        self.drain_refused(why, stream);
    }

    /// Drains a refused stream at once. If no other stream is left to read, refuses the worker too.
    fn drain_refused(&self, why: CoordinatorStartError, stream: &StreamName) {
        let other = DrainReason::StreamRecreated;
        self.request_drain(self.now_ms(), &other, |key| key.stream == *stream);
        if self.lock_streams().is_empty() {
            *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
            self.refused.notify_one();
        }
    }

    /// Stops reading a stream that the service reports as missing. The audit asks for it again
    /// while other streams are read: one wrong answer must not end the reading of a stream.
    pub(super) fn mark_missing(&self, stream: &StreamName) {
        let mut streams = self.lock_streams();
        let Some(read) = streams.remove(stream) else { return };
        self.missing.add(read, self.now_ms());
        drop(streams);
        self.lock_removed().insert(stream.clone(), self.now_ms());
        self.drain_refused(CoordinatorStartError::MissingStream { stream: stream.clone() }, stream);
    }

    /// Reads a missing stream again, unless it was removed in the meantime or the worker is
    /// stopping. Returns true if it is read.
    pub(super) fn resume_stream(&self, stream: &StreamName) -> bool {
        let mut streams = self.lock_streams();
        let Some(found) = self.missing.remove(stream) else { return false };
        if self.is_stopping() {
            return false;
        }
        self.insert(&mut streams, found);
        self.announce_streams();
        true
    }

    /// Takes no more leases, and drains and releases those that are held: the table must not be
    /// used any longer.
    pub(super) fn stand_down(&self, why: CoordinatorStartError) {
        let mut streams = self.lock_streams();
        streams.clear();
        self.missing.clear();
        drop(streams);
        let deadline_ms = self.now_ms().saturating_add(self.settings().drain_timeout);
        self.request_drain(deadline_ms, &DrainReason::StreamRemoved, |_| true);
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
        self.refused.notify_one();
    }

    /// Waits until no stream is left to read because the last one was refused.
    pub(super) async fn wait_refused(&self) -> CoordinatorStartError {
        loop {
            let why = self.refusal.lock().unwrap_or_else(PoisonError::into_inner).take();
            match why {
                Some(why) => return why,
                None => self.refused.notified().await,
            }
        }
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    pub(super) fn begin_stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.wake.notify_one();
    }

    /// Requests a drain of the leases for which `of` holds.
    pub(super) fn request_drain(
        &self,
        deadline_ms: u64,
        why: &DrainReason,
        of: impl Fn(&LeaseKey) -> bool,
    ) {
        for held in self.held_leases.all() {
            if of(&held.taken_row().key) {
                held.request_drain(deadline_ms, why.clone());
            }
        }
        self.wake.notify_one();
    }

    /// Drains and releases leases. Returns those that are left when the time is over.
    pub(super) async fn drain(
        &self,
        grace_ms: u64,
        why: &DrainReason,
        of: impl Fn(&LeaseKey) -> bool,
    ) -> Vec<LeaseKey> {
        let deadline_ms = self.now_ms().saturating_add(grace_ms);
        self.request_drain(deadline_ms, why, &of);
        let over_ms = self.drain_expires_ms(deadline_ms);
        tokio::select! {
            biased;
            () = self.held_leases.wait_until_released(&of) => {}
            () = self.context.clock.sleep_until(over_ms) => {}
        }
        self.held_leases.keys().into_iter().filter(of).collect()
    }

    /// Returns the time at which a drain with this deadline is over. A handler may use all of the
    /// time up to its deadline, so the final writes get one more call timeout.
    pub(super) fn drain_expires_ms(&self, deadline_ms: u64) -> u64 {
        deadline_ms.saturating_add(self.settings().call_timeout)
    }

    fn lock_removed(&self) -> MutexGuard<'_, BTreeMap<StreamName, u64>> {
        // Each change is complete before the lock is released, so a panic leaves a consistent map.
        self.removed_streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_streams(&self) -> MutexGuard<'_, BTreeMap<StreamName, ActiveStream>> {
        // Each change is one insertion or removal, so a panic leaves a consistent map.
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// Streams that the service reported as missing while others are read. The audit asks for them
// again, in case that answer was wrong.

/// First pause before a missing stream is asked for again, in milliseconds. The pause doubles each
/// time, up to the audit interval.
const FIRST_PAUSE_MS: u64 = 1_000;

/// The missing streams, by name.
#[derive(Debug, Default)]
pub(super) struct MissingStreams(Mutex<BTreeMap<StreamName, MissingStream>>);

/// A stream that was read until the service reported it as missing.
#[derive(Debug)]
struct MissingStream {
    stream: ActiveStream,
    /// Time of the next check.
    due_ms: u64,
    /// Pause before that check.
    pause_ms: u64,
}

/// The result of checking a missing stream.
enum RecheckResult {
    /// The stream exists, and is the one that was read.
    Same,
    /// Another stream of the same name exists, created at this time (milliseconds since 1970).
    Other(u64),
    /// The stream is still missing, or the check failed.
    StillMissing,
}

impl MissingStreams {
    /// Adds a stream that is missing as of `now_ms`.
    pub(super) fn add(&self, stream: ActiveStream, now_ms: u64) {
        let (due_ms, pause_ms) = (now_ms.saturating_add(FIRST_PAUSE_MS), FIRST_PAUSE_MS);
        let name = stream.settings.name.clone();
        self.lock().insert(name, MissingStream { stream, due_ms, pause_ms });
    }

    /// Removes a stream that is read again or that the user removed.
    pub(super) fn remove(&self, stream: &StreamName) -> Option<ActiveStream> {
        self.lock().remove(stream).map(|missing| missing.stream)
    }

    /// Removes the stream with this ARN, which is read under another name.
    pub(super) fn remove_arn(&self, arn: &str) {
        self.lock().retain(|_, missing| missing.stream.arn != arn);
    }

    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    /// Returns the name that the rows of a missing stream lie under. `name` may be any of its
    /// names.
    pub(super) fn key_of(&self, name: &StreamName) -> Option<StreamName> {
        let missing = self.lock();
        let mut streams = missing.values().map(|missing| &missing.stream);
        streams.find(|stream| stream.has_name(name)).map(ActiveStream::key)
    }

    /// Returns the time of the next check.
    pub(super) fn next_due_ms(&self) -> Option<u64> {
        self.lock().values().map(|missing| missing.due_ms).min()
    }

    /// Returns the streams that are due now, and schedules their next check. `most_ms` bounds the
    /// pause.
    fn due(&self, now_ms: u64, most_ms: u64) -> Vec<ActiveStream> {
        let mut missing = self.lock();
        let due = missing.values_mut().filter(|missing| missing.due_ms <= now_ms);
        let due = due.map(|missing| {
            missing.pause_ms = missing.pause_ms.saturating_mul(2).min(most_ms.max(FIRST_PAUSE_MS));
            missing.due_ms = now_ms.saturating_add(missing.pause_ms);
            missing.stream.clone()
        });
        due.collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<StreamName, MissingStream>> {
        // Each change is one insertion, one removal or a pair of assignments of numbers.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks the missing streams that are due, and resumes those that exist again.
pub(super) async fn recheck_due<S: LeaseStore, A: StreamApi>(crew: &CoordinatorShared<S, A>) {
    for stream in crew.missing.due(crew.now_ms(), crew.settings().audit_interval) {
        let name = stream.key();
        match find(&crew.context, &stream).await {
            RecheckResult::Same => {
                if crew.resume_stream(&name) {
                    crew.context.emit(LeaseEvent::StreamRestored { stream: name });
                }
            }
            RecheckResult::Other(found_ms) => {
                if crew.missing.remove(&name).is_some() {
                    crew.context.emit(LeaseEvent::StreamRecreated {
                        stream: name,
                        known: Some(system_time(stream.created_ms)),
                        found: system_time(found_ms),
                    });
                }
            }
            RecheckResult::StillMissing => {}
        }
    }
}

async fn find<S: LeaseStore, A: StreamApi>(
    tools: &LeaseContext<S, A>,
    stream: &ActiveStream,
) -> RecheckResult {
    match tools.describe(&stream.settings.name).await {
        Ok(summary) if is_same_creation(stream.created_ms, summary.created_ms) => {
            RecheckResult::Same
        }
        Ok(summary) => RecheckResult::Other(summary.created_ms),
        Err(error) => {
            if error.fault != Fault::Missing {
                tools.emit_stream_failure(&stream.settings.name, &error);
            }
            RecheckResult::StillMissing
        }
    }
}

// Rows returned with refused writes. They are newer than the list on which the writes were based,
// which may be stale while the store throttles lists. Without them the same writes would be
// attempted again.

/// Rows returned with refused writes since the last poll.
#[derive(Debug, Default)]
pub(super) struct LearnedRows(Mutex<Vec<Lease>>);

impl LearnedRows {
    /// Adds a row that was returned with a refused write.
    pub(super) fn add(&self, row: Lease) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(row);
    }

    /// Takes out all rows.
    pub(super) fn take(&self) -> Vec<Lease> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
