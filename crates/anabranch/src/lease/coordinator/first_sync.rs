//! The first rows of a stream, and the mark that all of them exist.
//!
//! A worker that finds no mark repeats the whole sync, whatever rows exist: each is created only if
//! it is absent. KCL's layout has no mark; there the rows must cover all keys.

use super::LeaseContext;
use super::shared::ActiveStream;
use super::start::CoordinatorStartError;
use super::start::{PAUSE_MS, check_retryable, check_store_retryable};
use crate::event::LeaseEvent;
use crate::lease::write_retry::WriteResult;
use crate::lease::{LeaseStore, StoreError};
use crate::stream::api::{ShardFilter, StreamApi};
use crate::stream::start_shards::list_from;
use anabranch_model::coverage;
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::{
    Layout, Lease, NewLease, OnInconsistentChild, Protocol, StreamChange, Write, WriteRefusal, sync,
};
use anabranch_model::lineage::Lineage;
use anabranch_model::position::StartPosition;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Divisor of the missing rows: a worker creates this part of them before it lists the rows again.
const PARTS: usize = 16;

/// Creates the first rows unless they exist. Retries transient failures.
pub(super) async fn first_sync<S: LeaseStore, A: StreamApi>(
    tools: &Arc<LeaseContext<S, A>>,
    stream: &ActiveStream,
) -> Result<(), CoordinatorStartError> {
    loop {
        let done = match tools.store.layout() {
            Layout::Native => native(tools, stream).await?,
            Layout::Kcl => kcl(tools, stream).await?,
        };
        if done {
            return Ok(());
        }
        tools.clock.sleep(PAUSE_MS).await;
    }
}

/// Returns true if the first rows exist: reading them needs no shard list.
pub(super) async fn has_first_rows<S: LeaseStore, A: StreamApi>(
    tools: &LeaseContext<S, A>,
    stream: &StreamName,
) -> Result<bool, CoordinatorStartError> {
    let known = match tools.store.layout() {
        Layout::Native => has_mark(tools, stream).await,
        Layout::Kcl => tools
            .list(stream)
            .await
            .map(|listing| listing.unreadable.is_empty() && is_covered(&listing.rows)),
    };
    known.or_else(|error| check_store_retryable(tools, error).map(|()| false))
}

async fn has_mark<S: LeaseStore, A>(
    tools: &LeaseContext<S, A>,
    stream: &StreamName,
) -> Result<bool, StoreError> {
    Ok(tools.facts(stream).await?.is_some_and(|facts| facts.first_sync_done))
}

/// Makes one attempt. Returns true if the mark exists.
async fn native<S: LeaseStore, A: StreamApi>(
    tools: &Arc<LeaseContext<S, A>>,
    stream: &ActiveStream,
) -> Result<bool, CoordinatorStartError> {
    let name = &stream.settings.name;
    match has_mark(tools, name).await {
        Ok(true) => return Ok(true),
        Ok(false) => {}
        Err(error) => return check_store_retryable(tools, error).map(|()| false),
    }
    let Some(rows) = first_rows(tools, stream).await? else { return Ok(false) };
    if !create_all(tools, name, rows).await? {
        return Ok(false);
    }
    let mark = StreamChange::MarkSynced { created_ms: stream.created_ms };
    match tools.write_once(&Write::stream(name, mark)).await {
        WriteResult::Applied(_) => Ok(true),
        WriteResult::Failed(error) => check_store_retryable(tools, error).map(|()| false),
        WriteResult::Refused { .. } | WriteResult::Unknown => Ok(false),
    }
}

/// Makes one attempt. Returns true if the rows cover all keys, or no missing row can be created.
async fn kcl<S: LeaseStore, A: StreamApi>(
    tools: &Arc<LeaseContext<S, A>>,
    stream: &ActiveStream,
) -> Result<bool, CoordinatorStartError> {
    let name = &stream.settings.name;
    let listing = match tools.list(name).await {
        Ok(listing) => listing,
        Err(error) => return check_store_retryable(tools, error).map(|()| false),
    };
    let is_whole = listing.unreadable.is_empty();
    let rows = if is_whole {
        listing.rows
    } else {
        let list =
            match tools.call_stream(name, tools.api.list_shards(name, ShardFilter::All)).await {
                Ok(list) => Lineage::new(list.shards),
                Err(error) => return check_retryable(tools, name, error).map(|()| false),
            };
        listing.with_unreadable(name, &list)
    };
    if is_covered(&rows) {
        return Ok(true);
    }
    // An interrupted sync leaves rows that no worker has touched. Otherwise rows were lost. LATEST
    // is another moment now than it was then, and the shards of both moments need not fit together:
    // current shards may be children of a shard that has a row.
    let untouched = is_whole && rows.iter().all(|row| row.owner.is_none() && !row.is_started());
    let same_moment = rows.is_empty() || stream.settings.start != StartPosition::Latest;
    let missing = if untouched && same_moment {
        first_rows(tools, stream).await?
    } else {
        missing_rows(tools, stream, &rows).await?
    };
    match missing {
        // The other keys come with the ends of shards that have rows, or are lost. The readers of
        // those shards find out.
        Some(missing) if missing.is_empty() && !rows.is_empty() => return Ok(true),
        Some(missing) => drop(create_all(tools, name, missing).await?),
        None => {}
    }
    Ok(false)
}

/// Returns true if there are rows and they cover all keys. If any row lacks its range, as those of
/// old versions do, coverage is assumed.
fn is_covered(rows: &[Lease]) -> bool {
    if rows.is_empty() {
        return false;
    }
    let ranges: Option<Vec<_>> = rows.iter().map(|row| row.range).collect();
    ranges.is_none_or(|ranges| coverage::holes(ranges).is_empty())
}

/// Returns the rows of an application that has none. `None` if the list can't be used.
pub(super) async fn first_rows<S: LeaseStore, A: StreamApi>(
    tools: &Arc<LeaseContext<S, A>>,
    stream: &ActiveStream,
) -> Result<Option<Vec<NewLease>>, CoordinatorStartError> {
    let (name, start) = (&stream.settings.name, stream.settings.start);
    let filter = match (start, stream.protocol) {
        (StartPosition::TrimHorizon, _) => ShardFilter::AtTrimHorizon,
        (StartPosition::AtTimestamp(ms), _) => ShardFilter::AtTimestamp(ms),
        // Every worker lists the shards of the same moment, however late it repeats the sync.
        (StartPosition::Latest, Protocol::Native { t0_ms }) => ShardFilter::AtTimestamp(t0_ms),
        (StartPosition::Latest, Protocol::Kcl2) => ShardFilter::AtLatest,
    };
    let list = match tools.call_stream(name, list_from(&*tools.api, name, filter)).await {
        Ok(list) => list,
        Err(error) => return check_retryable(tools, name, error).map(|()| None),
    };
    let refuse = OnInconsistentChild::Refuse;
    let lineage = Lineage::new(list.shards);
    let rows = sync::first_sync(&lineage, start, stream.protocol, refuse);
    Ok(usable(tools, name, rows))
}

/// Returns the rows that are missing beside the existing ones. `None` if the list can't be used.
pub(super) async fn missing_rows<S: LeaseStore, A: StreamApi>(
    tools: &Arc<LeaseContext<S, A>>,
    stream: &ActiveStream,
    rows: &[Lease],
) -> Result<Option<Vec<NewLease>>, CoordinatorStartError> {
    let name = &stream.settings.name;
    let list = match tools.call_stream(name, tools.api.list_shards(name, ShardFilter::All)).await {
        Ok(list) => list,
        Err(error) => return check_retryable(tools, name, error).map(|()| None),
    };
    let (start, protocol) = (stream.settings.start, stream.protocol);
    let skip = OnInconsistentChild::Skip;
    let missing = sync::sync(&Lineage::new(list.shards), rows, start, protocol, skip);
    Ok(usable(tools, name, missing))
}

fn usable<S: LeaseStore, A>(
    tools: &LeaseContext<S, A>,
    stream: &StreamName,
    rows: Result<Vec<NewLease>, sync::SyncError>,
) -> Option<Vec<NewLease>> {
    rows.inspect_err(|error| {
        let error = error.to_string();
        tools.emit(LeaseEvent::StreamCallFailed { stream: stream.clone(), error });
    })
    .ok()
}

/// Creates rows, each if it is absent. Returns true if all of them exist.
///
/// Workers that start at once share the work: each creates some rows from a random position, and
/// then lists which are left.
pub(super) async fn create_all<S: LeaseStore, A: StreamApi>(
    tools: &Arc<LeaseContext<S, A>>,
    stream: &StreamName,
    mut rows: Vec<NewLease>,
) -> Result<bool, CoordinatorStartError> {
    let (mut made, mut all) = (0, true);
    loop {
        let there = match tools.list(stream).await {
            Ok(there) => there,
            Err(error) => {
                check_store_retryable(tools, error)?;
                all = false;
                break;
            }
        };
        let unreadable = there.unreadable.into_iter().map(|row| row.key);
        let readable = there.rows.into_iter().map(|row| row.key.shard);
        let there: BTreeSet<ShardId> = readable.chain(unreadable).collect();
        rows.retain(|row| !there.contains(&row.shard));
        if rows.is_empty() {
            break;
        }
        let begin = tools.rng.below(rows.len() as u64);
        rows.rotate_left(usize::try_from(begin).unwrap_or(0));
        let some = tools.settings.max_concurrent_writes.max(rows.len() / PARTS).min(rows.len());
        for settled in create_some(tools, stream, rows.drain(..some)).await {
            match settled {
                WriteResult::Applied(_) => made += 1,
                WriteResult::Refused { why: WriteRefusal::Exists, .. }
                | WriteResult::Failed(StoreError::UnreadableRow { .. }) => {}
                WriteResult::Failed(error) => {
                    check_store_retryable(tools, error)?;
                    all = false;
                }
                WriteResult::Refused { .. } | WriteResult::Unknown => all = false,
            }
        }
    }
    if made > 0 {
        tools.emit(LeaseEvent::RowsCreated { stream: stream.clone(), rows: made });
    }
    Ok(all)
}

/// Attempts each write once, with bounded concurrency.
async fn create_some<S: LeaseStore, A: StreamApi>(
    tools: &Arc<LeaseContext<S, A>>,
    stream: &StreamName,
    rows: impl Iterator<Item = NewLease>,
) -> Vec<WriteResult> {
    let (mut attempts, mut settled) = (JoinSet::new(), Vec::new());
    for row in rows {
        if attempts.len() >= tools.settings.max_concurrent_writes {
            settled.extend(attempts.join_next().await.and_then(Result::ok));
        }
        let (tools, write) = (tools.clone(), row.create(stream, tools.rng.nonce()));
        attempts.spawn(async move { tools.write_once(&write).await });
    }
    while let Some(ended) = attempts.join_next().await {
        settled.extend(ended.ok());
    }
    settled
}
