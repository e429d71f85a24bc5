//! What has to be true before a stream is read: it is there, it is the one that the application
//! knows, and the first rows are made.

use super::crew::ActiveStream;
use super::first_sync::{first_sync, has_first_rows};
use super::{CoordinatorStartError, LeaseContext, StreamSettings};
use crate::event::LeaseEvent;
use crate::lease::settle::WriteResult;
use crate::lease::stream_names;
use crate::lease::{LeaseStore, StoreError};
use crate::stream::api::{ShardFilter, StreamApi, StreamError, StreamStatus, StreamSummary};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{
    Layout, Protocol, StoredRow, StreamChange, StreamFacts, StreamNames, Write, is_same_creation,
};
use anabranch_model::retry::Fault;
use std::sync::Arc;

/// The pause between two attempts, in milliseconds.
pub(super) const PAUSE_MS: u64 = 1_000;

/// Checks a stream and makes its first rows. Waits for what may pass by itself.
pub(super) async fn open<S: LeaseStore, A: StreamApi>(
    tools: &Arc<LeaseContext<S, A>>,
    settings: StreamSettings,
) -> Result<ActiveStream, CoordinatorStartError> {
    tools.store.note_start(&settings.name, settings.start);
    let UsableStream { summary, names, key } = wait_until_usable(tools, &settings).await?;
    let settings = StreamSettings { name: key, ..settings };
    let (created_ms, protocol) = match tools.store.layout() {
        Layout::Kcl => (summary.created_ms, Protocol::Kcl2),
        Layout::Native => {
            let facts = load_facts(tools, &settings.name, summary.created_ms).await?;
            (facts.created_ms, Protocol::Native { t0_ms: facts.t0_ms })
        }
    };
    let stream = ActiveStream { settings, names, arn: summary.arn, created_ms, protocol };
    first_sync(tools, &stream).await?;
    Ok(stream)
}

/// A stream that can be used.
struct UsableStream {
    /// What the service says of it.
    summary: StreamSummary,
    /// What it is called.
    names: StreamNames,
    /// The name that its rows lie under.
    key: StreamName,
}

/// Waits until the stream can be used.
///
/// A change of the shards takes minutes, or hours where there are many, and workers that crash
/// meanwhile have to come back: whoever has rows reads on from them through any reshard, as those
/// do that were running when it began. The first rows come from a list, and that is to be one of a
/// stream that stands still.
async fn wait_until_usable<S: LeaseStore, A: StreamApi>(
    tools: &LeaseContext<S, A>,
    settings: &StreamSettings,
) -> Result<UsableStream, CoordinatorStartError> {
    let stream = &settings.name;
    let mut told = None;
    let mut await_status = |status| {
        if told.replace(status) != Some(status) {
            tools.emit(LeaseEvent::StreamNotActive { stream: stream.clone(), status });
        }
    };
    loop {
        match tools.describe(stream).await {
            Ok(summary) => match summary.status {
                StreamStatus::Active => {
                    if let Some(found) = resolve_names(tools, settings, summary).await? {
                        return Ok(found);
                    }
                }
                status @ StreamStatus::Updating => {
                    match resolve_names(tools, settings, summary).await? {
                        Some(found) if has_first_rows(tools, &found.key).await? => {
                            return Ok(found);
                        }
                        _ => await_status(status),
                    }
                }
                status @ StreamStatus::Creating => await_status(status),
                StreamStatus::Deleting => {
                    return Err(CoordinatorStartError::DeletedStream { stream: stream.clone() });
                }
            },
            Err(error) => check_retryable(tools, stream, error)?,
        }
        tools.clock.sleep(PAUSE_MS).await;
    }
}

/// Finds out what a stream is called, and which of its names its rows lie under. `None`: not now.
async fn resolve_names<S: LeaseStore, A: StreamApi>(
    tools: &LeaseContext<S, A>,
    settings: &StreamSettings,
    summary: StreamSummary,
) -> Result<Option<UsableStream>, CoordinatorStartError> {
    let given = &settings.name;
    let names = match tools.call_stream(given, stream_names(&*tools.api, given, &summary)).await {
        Ok(names) => names,
        Err(error) => return check_retryable(tools, given, error).map(|()| None),
    };
    let key = match tools.store.layout() {
        // KCL's rows have no name, or one of KCL's own that the store makes of this one.
        Layout::Kcl => given.clone(),
        Layout::Native => match tools.read_store(tools.store.application()).await {
            Ok(known) => names.key(|name| known.knows(name)).clone(),
            Err(error) => return check_store_retryable(tools, error).map(|()| None),
        },
    };
    if key != *given {
        tools.store.note_start(&key, settings.start);
    }
    Ok(Some(UsableStream { summary, names, key }))
}

/// Whether a failed call may be made again.
pub(super) fn check_retryable<S: LeaseStore, A>(
    tools: &LeaseContext<S, A>,
    stream: &StreamName,
    error: StreamError,
) -> Result<(), CoordinatorStartError> {
    let stream = stream.clone();
    match error.fault {
        Fault::Missing => Err(CoordinatorStartError::MissingStream { stream }),
        _ if error.is_retryable() => {
            tools.emit_stream_failure(&stream, &error);
            Ok(())
        }
        _ => Err(CoordinatorStartError::Stream { stream, error }),
    }
}

/// Whether a failed call of the store may be made again.
pub(super) fn check_store_retryable<S: LeaseStore, A>(
    tools: &LeaseContext<S, A>,
    error: StoreError,
) -> Result<(), CoordinatorStartError> {
    tools.emit_store_failure("start", &error);
    if error.is_retryable() { Ok(()) } else { Err(error.into()) }
}

/// The application's facts about the stream. The first worker notes them.
async fn load_facts<S: LeaseStore, A: StreamApi>(
    tools: &LeaseContext<S, A>,
    stream: &StreamName,
    created_ms: u64,
) -> Result<StreamFacts, CoordinatorStartError> {
    loop {
        match tools.facts(stream).await {
            Ok(Some(facts)) => return same_stream(stream, facts, created_ms),
            Ok(None) => {
                if let Some(facts) = note_start(tools, stream, created_ms).await? {
                    return same_stream(stream, facts, created_ms);
                }
            }
            Err(error) => check_store_retryable(tools, error)?,
        }
        tools.clock.sleep(PAUSE_MS).await;
    }
}

fn same_stream(
    stream: &StreamName,
    facts: StreamFacts,
    found_ms: u64,
) -> Result<StreamFacts, CoordinatorStartError> {
    if is_same_creation(facts.created_ms, found_ms) {
        return Ok(facts);
    }
    let (stream, known_ms) = (stream.clone(), facts.created_ms);
    Err(CoordinatorStartError::StreamRecreated { stream, known_ms, found_ms })
}

/// Notes when the application first started on the stream, by the service's clock.
async fn note_start<S: LeaseStore, A: StreamApi>(
    tools: &LeaseContext<S, A>,
    stream: &StreamName,
    created_ms: u64,
) -> Result<Option<StreamFacts>, CoordinatorStartError> {
    let listed =
        tools.call_stream(stream, tools.api.list_shards(stream, ShardFilter::AtLatest)).await;
    let list = match listed {
        Ok(list) => list,
        Err(error) => return check_retryable(tools, stream, error).map(|()| None),
    };
    // A service that tells no time leaves the choice to this worker's clock.
    let t0_ms = list.service_ms.unwrap_or_else(|| tools.clock.wall_ms());
    let write = Write::stream(stream, StreamChange::NoteStart { t0_ms, created_ms });
    match tools.write_once(&write).await {
        WriteResult::Applied(StoredRow::Stream(facts))
        | WriteResult::Refused { now: StoredRow::Stream(facts), .. } => Ok(Some(facts)),
        WriteResult::Failed(error) => check_store_retryable(tools, error).map(|()| None),
        _ => Ok(None),
    }
}
