//! The start of a worker: preparing the store, opening streams, and the reasons for refusing them.

use super::first_sync::{first_sync, has_first_rows};
use super::shared::{ActiveStream, CoordinatorShared};
use crate::event::LeaseEvent;
use crate::lease::context::LeaseContext;
use crate::lease::settings::StreamSettings;
use crate::lease::write_retry::WriteResult;
use crate::lease::{LeaseStore, StoreError, stream_names};
use crate::stream::api::{ShardFilter, StreamApi, StreamError, StreamStatus, StreamSummary};
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::kcl_probe::{ProbeVerdict, evaluate, must_yield};
use anabranch_model::lease::{
    KclProbe, Layout, Protocol, StoredRow, StreamChange, StreamFacts, StreamNames, Write,
    is_same_creation,
};
use anabranch_model::position::Position;
use anabranch_model::retry::Fault;
use std::sync::Arc;
use std::time::Duration;

/// Time limit of one attempt to create the table, in milliseconds. The table may be large, and
/// other workers may be creating it.
const PREPARE_MS: u64 = 120_000;

/// Error of starting a worker or of adding a stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CoordinatorStartError {
    /// The stream does not exist.
    #[error("stream {stream} does not exist: create it, or correct its name or region")]
    MissingStream {
        /// Name of the stream.
        stream: StreamName,
    },
    /// The stream is being deleted.
    #[error(
        "stream {stream} is being deleted: wait until it is gone, create it again, and start with \
         a new application name"
    )]
    DeletedStream {
        /// Name of the stream.
        stream: StreamName,
    },
    /// The stream was deleted and created again, as its creation time shows.
    #[error(
        "stream {stream} was recreated at {found_ms} ms since 1970; the application's checkpoints \
         belong to the stream created at {known_ms} and are not valid for the new one: start with \
         a new application name, or delete the application's leases"
    )]
    StreamRecreated {
        /// Name of the stream.
        stream: StreamName,
        /// Creation time that the application knows, in milliseconds since 1970.
        known_ms: u64,
        /// Creation time that the service reports, in milliseconds since 1970.
        found_ms: u64,
    },
    /// The stream was deleted and created again, as a row of KCL's table shows. KCL keeps no
    /// creation time.
    #[error(
        "stream {stream} was recreated at {found_ms} ms since 1970; the checkpoint {checkpoint} of \
         {shard} is before that, so the application's checkpoints are not valid for the new \
         stream: start with a new application name, or delete the application's leases"
    )]
    ForeignCheckpoint {
        /// Name of the stream.
        stream: StreamName,
        /// The shard of the row.
        shard: ShardId,
        /// The checkpoint of the row.
        checkpoint: Position,
        /// Creation time that the service reports, in milliseconds since 1970.
        found_ms: u64,
    },
    /// The stream is already being read.
    #[error("stream {stream} is already being read: add it once, by its name or by its ARN")]
    DuplicateStream {
        /// Name of the stream.
        stream: StreamName,
    },
    /// A call about the stream failed permanently.
    #[error("cannot read stream {stream}")]
    Stream {
        /// Name of the stream.
        stream: StreamName,
        /// The error of the call.
        #[source]
        error: StreamError,
    },
    /// The lease table is used by something else.
    #[error("cannot use the lease table: {hindrance}")]
    TableInUse {
        /// The other user of the table, and what to do.
        hindrance: String,
    },
    /// The lease store can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Returns the error for a store whose table or schema was not ready in time.
fn not_ready_in_time(within_ms: u64) -> StoreError {
    let seconds = within_ms / 1_000;
    StoreError::Unreachable {
        store: "in use".into(),
        detail: format!("it was not ready within {seconds} s; retrying"),
        source: None,
    }
}

/// Creates the store's table or schema. Waits for a store that can't be reached.
pub(super) async fn prepare<S: LeaseStore, A>(
    tools: &LeaseContext<S, A>,
) -> Result<(), CoordinatorStartError> {
    loop {
        let prepared = tokio::select! {
            biased;
            prepared = tools.store.prepare() => Some(prepared),
            () = tools.clock.sleep(PREPARE_MS) => None,
        };
        match prepared {
            Some(Ok(())) => return Ok(()),
            Some(Err(error)) => check_store_retryable(tools, error)?,
            None => tools.emit_store_failure("start", &not_ready_in_time(PREPARE_MS)),
        }
        tools.clock.sleep(PAUSE_MS).await;
    }
}

// Conditions for reading a stream: it exists, it is the one that the application knows, and the
// first rows are created.

/// Pause between two attempts, in milliseconds.
pub(super) const PAUSE_MS: u64 = 1_000;

/// Checks a stream and creates its first rows. Retries transient failures.
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
    /// The service's description of the stream.
    summary: StreamSummary,
    names: StreamNames,
    /// The name that its rows lie under.
    key: StreamName,
}

/// Waits until the stream can be used.
///
/// A reshard takes minutes, or hours with many shards, and workers that crash meanwhile must be
/// able to restart. An application that has rows reads on from them through any reshard. The first
/// rows come from a shard list, so they wait until the stream is ACTIVE.
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

/// Determines the stream's names, and which of them its rows lie under. Returns `None` if the
/// attempt must be repeated.
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
        // KCL's rows have no stream name, or KCL's own, which the store derives from this one.
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

/// Emits a retryable error and returns `Ok`. Returns any other error.
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

/// Emits a store error. Returns it too, unless it is retryable.
pub(super) fn check_store_retryable<S: LeaseStore, A>(
    tools: &LeaseContext<S, A>,
    error: StoreError,
) -> Result<(), CoordinatorStartError> {
    tools.emit_store_failure("start", &error);
    if error.is_retryable() { Ok(()) } else { Err(error.into()) }
}

/// Loads the application's facts about the stream. The first worker creates them.
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

/// Records when the application first started on the stream, by the service's clock. Returns the
/// facts on record, or `None` if the attempt must be repeated.
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
    // If the service reports no time, this worker's clock decides.
    let t0_ms = list.service_ms.unwrap_or_else(|| tools.clock.wall_ms());
    let write = Write::stream(stream, StreamChange::NoteStart { t0_ms, created_ms });
    match tools.write_once(&write).await {
        WriteResult::Applied(StoredRow::Stream(facts))
        | WriteResult::Refused { now: StoredRow::Stream(facts), .. } => Ok(Some(facts)),
        WriteResult::Failed(error) => check_store_retryable(tools, error).map(|()| None),
        _ => Ok(None),
    }
}

// A table that something else uses is left alone, at the start and later.

/// Probes the table until it is clear or must be refused. Only a table that a KCL 3.x fleet has
/// used takes time. Returns the last probe, and the time since which its leases have not moved, by
/// this worker's clock.
pub(super) async fn probe_table<S: LeaseStore, A>(
    tools: &LeaseContext<S, A>,
) -> Result<(KclProbe, u64), CoordinatorStartError> {
    let first = probe_once(tools).await?;
    let since_ms = tools.clock.now_ms();
    let (mut latest, mut elapsed_ms) = (first.clone(), 0);
    loop {
        match evaluate(&first, &latest, elapsed_ms, tools.settings.lease_time_ms) {
            ProbeVerdict::Clear => return Ok((latest, since_ms)),
            ProbeVerdict::Refuse(hindrance) => {
                return Err(CoordinatorStartError::TableInUse { hindrance: hindrance.to_string() });
            }
            ProbeVerdict::Wait { ms } => {
                if elapsed_ms == 0 {
                    let leader = latest.leader.as_ref().map(|leader| leader.owner.clone());
                    let wait = Duration::from_millis(ms);
                    tools.emit(LeaseEvent::WaitingForKcl3 { wait, leader });
                }
                // A fleet that is at work shows it before `ms` is over.
                tools.clock.sleep(ms.min(tools.settings.lease_time_ms)).await;
            }
        }
        // Measured until the probe begins, so that the elapsed time is never overestimated.
        elapsed_ms = tools.clock.now_ms() - since_ms;
        latest = probe_once(tools).await?;
    }
}

/// Probes the table while the worker runs, and leaves it to a KCL 3.x fleet if there is one. The
/// fleet's leader assigns the leases, and a worker that takes them as 2.x does would work against
/// it. Returns the probe.
pub(super) async fn probe_again<S: LeaseStore, A: StreamApi>(
    crew: &CoordinatorShared<S, A>,
    start: &KclProbe,
) -> Option<KclProbe> {
    let tools = &crew.context;
    if tools.store.layout() == Layout::Native {
        return None;
    }
    let survey = match tools.read_store(tools.store.probe()).await {
        Ok(survey) => survey,
        Err(error) => {
            tools.emit_store_failure("probe", &error);
            return None;
        }
    };
    if let Some(hindrance) = must_yield(start, &survey)
        && !crew.is_stopping()
        && !crew.stream_names().is_empty()
    {
        let hindrance = hindrance.to_string();
        tools.emit(LeaseEvent::YieldedToKcl3 { hindrance: hindrance.clone() });
        crew.stand_down(CoordinatorStartError::TableInUse { hindrance });
    }
    Some(survey)
}

async fn probe_once<S: LeaseStore, A>(
    tools: &LeaseContext<S, A>,
) -> Result<KclProbe, CoordinatorStartError> {
    loop {
        match tools.read_store(tools.store.probe()).await {
            Ok(survey) => return Ok(survey),
            Err(error) => check_store_retryable(tools, error)?,
        }
        tools.clock.sleep(PAUSE_MS).await;
    }
}
