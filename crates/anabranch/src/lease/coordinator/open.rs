//! What has to be true before a stream is read: it is there, it is the one that the application
//! knows, and the first rows are made.

use super::crew::ReadStream;
use super::first_sync::{first_sync, has_first_rows};
use super::{StartError, StreamSettings, Tools};
use crate::event::LeaseEvent;
use crate::lease::settle::Settled;
use crate::lease::stream_names;
use crate::lease::{LeaseStore, StoreError};
use crate::stream::api::{ShardFilter, StreamApi, StreamError, StreamStatus, StreamSummary};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{
    Layout, Protocol, Stored, StreamChange, StreamFacts, StreamNames, Write, is_same_creation,
};
use anabranch_model::retry::Fault;
use std::sync::Arc;

/// The pause between two attempts, in milliseconds.
pub(super) const PAUSE_MS: u64 = 1_000;

/// Checks a stream and makes its first rows. Waits for what may pass by itself.
pub(super) async fn open<S: LeaseStore, A: StreamApi>(
    tools: &Arc<Tools<S, A>>,
    settings: StreamSettings,
) -> Result<ReadStream, StartError> {
    tools.store.note_start(&settings.name, settings.start);
    let Found { summary, names, key } = usable(tools, &settings).await?;
    let settings = StreamSettings { name: key, ..settings };
    let (created_ms, protocol) = match tools.store.layout() {
        Layout::Kcl => (summary.created_ms, Protocol::Kcl2),
        Layout::Native => {
            let facts = facts(tools, &settings.name, summary.created_ms).await?;
            (facts.created_ms, Protocol::Native { t0_ms: facts.t0_ms })
        }
    };
    let stream = ReadStream { settings, names, arn: summary.arn, created_ms, protocol };
    first_sync(tools, &stream).await?;
    Ok(stream)
}

/// A stream that can be used.
struct Found {
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
async fn usable<S: LeaseStore, A: StreamApi>(
    tools: &Tools<S, A>,
    settings: &StreamSettings,
) -> Result<Found, StartError> {
    let stream = &settings.name;
    let mut told = None;
    let mut await_status = |status| {
        if told.replace(status) != Some(status) {
            tools.tell(LeaseEvent::StreamAwaited { stream: stream.clone(), status });
        }
    };
    loop {
        match tools.describe(stream).await {
            Ok(summary) => match summary.status {
                StreamStatus::Active => {
                    if let Some(found) = named(tools, settings, summary).await? {
                        return Ok(found);
                    }
                }
                status @ StreamStatus::Updating => match named(tools, settings, summary).await? {
                    Some(found) if has_first_rows(tools, &found.key).await? => {
                        return Ok(found);
                    }
                    _ => await_status(status),
                },
                status @ StreamStatus::Creating => await_status(status),
                StreamStatus::Deleting => {
                    return Err(StartError::DeletedStream { stream: stream.clone() });
                }
            },
            Err(error) => judge(tools, stream, error)?,
        }
        tools.clock.sleep(PAUSE_MS).await;
    }
}

/// Finds out what a stream is called, and which of its names its rows lie under. `None`: not now.
async fn named<S: LeaseStore, A: StreamApi>(
    tools: &Tools<S, A>,
    settings: &StreamSettings,
    summary: StreamSummary,
) -> Result<Option<Found>, StartError> {
    let given = &settings.name;
    let names = match tools.ask(given, stream_names(&*tools.api, given, &summary)).await {
        Ok(names) => names,
        Err(error) => return judge(tools, given, error).map(|()| None),
    };
    let key = match tools.store.layout() {
        // KCL's rows have no name, or one of KCL's own that the store makes of this one.
        Layout::Kcl => given.clone(),
        Layout::Native => match tools.read(tools.store.application()).await {
            Ok(known) => names.key(|name| known.knows(name)).clone(),
            Err(error) => return judge_store(tools, error).map(|()| None),
        },
    };
    if key != *given {
        tools.store.note_start(&key, settings.start);
    }
    Ok(Some(Found { summary, names, key }))
}

/// Whether a failed call may be made again.
pub(super) fn judge<S: LeaseStore, A>(
    tools: &Tools<S, A>,
    stream: &StreamName,
    error: StreamError,
) -> Result<(), StartError> {
    let stream = stream.clone();
    match error.fault {
        Fault::Missing => Err(StartError::MissingStream { stream }),
        _ if error.is_retryable() => {
            tools.stream_trouble(&stream, &error);
            Ok(())
        }
        _ => Err(StartError::Stream { stream, error }),
    }
}

/// Whether a failed call of the store may be made again.
pub(super) fn judge_store<S: LeaseStore, A>(
    tools: &Tools<S, A>,
    error: StoreError,
) -> Result<(), StartError> {
    tools.trouble("start", &error);
    if error.is_retryable() { Ok(()) } else { Err(error.into()) }
}

/// The application's facts about the stream. The first worker notes them.
async fn facts<S: LeaseStore, A: StreamApi>(
    tools: &Tools<S, A>,
    stream: &StreamName,
    created_ms: u64,
) -> Result<StreamFacts, StartError> {
    loop {
        match tools.facts(stream).await {
            Ok(Some(facts)) => return same_stream(stream, facts, created_ms),
            Ok(None) => {
                if let Some(facts) = note_start(tools, stream, created_ms).await? {
                    return same_stream(stream, facts, created_ms);
                }
            }
            Err(error) => judge_store(tools, error)?,
        }
        tools.clock.sleep(PAUSE_MS).await;
    }
}

fn same_stream(
    stream: &StreamName,
    facts: StreamFacts,
    found_ms: u64,
) -> Result<StreamFacts, StartError> {
    if is_same_creation(facts.created_ms, found_ms) {
        return Ok(facts);
    }
    let (stream, known_ms) = (stream.clone(), facts.created_ms);
    Err(StartError::RecreatedStream { stream, known_ms, found_ms })
}

/// Notes when the application first started on the stream, by the service's clock.
async fn note_start<S: LeaseStore, A: StreamApi>(
    tools: &Tools<S, A>,
    stream: &StreamName,
    created_ms: u64,
) -> Result<Option<StreamFacts>, StartError> {
    let listed = tools.ask(stream, tools.api.list_shards(stream, ShardFilter::AtLatest)).await;
    let list = match listed {
        Ok(list) => list,
        Err(error) => return judge(tools, stream, error).map(|()| None),
    };
    // A service that tells no time leaves the choice to this worker's clock.
    let t0_ms = list.service_ms.unwrap_or_else(|| tools.clock.wall_ms());
    let write = Write::stream(stream, StreamChange::NoteStart { t0_ms, created_ms });
    match tools.attempt(&write).await {
        Settled::Applied(Stored::Stream(facts))
        | Settled::Refused { now: Stored::Stream(facts), .. } => Ok(Some(facts)),
        Settled::Failed(error) => judge_store(tools, error).map(|()| None),
        _ => Ok(None),
    }
}
