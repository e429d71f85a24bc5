//! Streams that the service reported as missing while others are read. The audit asks for them
//! again, in case that answer was wrong.

use super::LeaseContext;
use super::crew::{ActiveStream, CoordinatorShared};
use crate::event::LeaseEvent;
use crate::lease::LeaseStore;
use crate::stream::api::StreamApi;
use anabranch_model::ids::StreamName;
use anabranch_model::lease::is_same_creation;
use anabranch_model::retry::Fault;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The first pause before a missing stream is asked for again. Each one is twice as long as the one
/// before it, up to the pause between two audits.
const FIRST_PAUSE_MS: u64 = 1_000;

/// The streams that are missing, by name.
#[derive(Debug, Default)]
pub(super) struct MissingStreams(Mutex<BTreeMap<StreamName, MissingStream>>);

/// A stream that was read until the service said that it is gone.
#[derive(Debug)]
struct MissingStream {
    stream: ActiveStream,
    /// When it is asked for again.
    due_ms: u64,
    /// The pause before that.
    pause_ms: u64,
}

/// What became of a missing stream.
enum RecheckResult {
    /// It is there, and it is the one that was read.
    Same,
    /// Another one of the same name is there, created at this moment.
    Other(u64),
    /// It is still missing, or nothing is known.
    StillMissing,
}

impl MissingStreams {
    /// Adds a stream that is missing since now.
    pub(super) fn add(&self, stream: ActiveStream, now_ms: u64) {
        let (due_ms, pause_ms) = (now_ms.saturating_add(FIRST_PAUSE_MS), FIRST_PAUSE_MS);
        let name = stream.settings.name.clone();
        self.lock().insert(name, MissingStream { stream, due_ms, pause_ms });
    }

    /// Removes a stream that is read again, or that its user removed.
    pub(super) fn remove(&self, stream: &StreamName) -> Option<ActiveStream> {
        self.lock().remove(stream).map(|missing| missing.stream)
    }

    /// Removes a stream that is read under another name.
    pub(super) fn remove_arn(&self, arn: &str) {
        self.lock().retain(|_, missing| missing.stream.arn != arn);
    }

    /// Removes all streams.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    /// Returns the name that the rows of a missing stream lie under, by any of its names.
    pub(super) fn key_of(&self, name: &StreamName) -> Option<StreamName> {
        let missing = self.lock();
        let mut streams = missing.values().map(|missing| &missing.stream);
        streams.find(|stream| stream.has_name(name)).map(ActiveStream::key)
    }

    /// Returns when the next one is asked for.
    pub(super) fn next_due_ms(&self) -> Option<u64> {
        self.lock().values().map(|missing| missing.due_ms).min()
    }

    /// Returns those that are due now, and has them due again later.
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
        // Each change is one insertion, removal or pair of assignments of numbers.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks for the missing streams that are due, and reads those again that are there.
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
                    let known_ms = Some(stream.created_ms);
                    crew.context.emit(LeaseEvent::StreamRecreated {
                        stream: name,
                        known: known_ms,
                        found: found_ms,
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
