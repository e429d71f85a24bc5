//! The audit: checks that the streams are still the same and that the rows cover all keys, and
//! removes obsolete rows.
//!
//! Every worker checks whether its streams were recreated, and on KCL's table whether a KCL 3.x
//! fleet works there now. The rest is done by one worker per stream, which the rows determine.

use super::first_sync::{create_all, first_rows, missing_rows};
use super::shared::{ActiveStream, CoordinatorShared};
use super::start::probe_again;
use super::{CoordinatorStartError, shared};
use crate::event::LeaseEvent;
use crate::lease::LeaseStore;
use crate::lease::handle::HandleState;
use crate::lease::write_retry::WriteResult;
use crate::stream::api::{ShardFilter, StreamApi};
use crate::time::system_time;
use anabranch_model::coverage::{self, HoleDetector};
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::{
    KclProbe, Layout, Lease, LeaseChange, LeaseListing, WorkerChange, WorkerId, WorkerRow, Write,
    audit_election, is_same_creation, java_shuffle, sync,
};
use anabranch_model::lineage::Lineage;
use anabranch_model::retry::Fault;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Factor by which an audit comes sooner while there is a recent finding.
const SOONER: u64 = 6;

/// In KCL's layout, polls may cost this many times as much as audits.
const KCL_LOOKS_COST: u64 = 10;

/// Maximum factor by which an expensive audit comes later.
const KCL_LATER: u64 = 5;

/// Findings of consecutive audits, by stream.
type AuditStates = BTreeMap<StreamName, AuditState>;

/// Findings of consecutive audits of one stream.
#[derive(Debug, Default)]
struct AuditState {
    /// Holes in the covered hash range.
    holes: HoleDetector,
    /// Number of consecutive audits that have missed the row of each of these children.
    forgotten: BTreeMap<ShardId, u32>,
}

impl AuditState {
    /// Returns the pause before the next audit. A new finding is checked again soon: a reshard in
    /// progress is over by then, and readers wait for the records of a deleted row. A finding that
    /// several repairs did not fix is checked less often.
    fn pause_ms(&self, audit_ms: u64, hole_looks: u32) -> u64 {
        let seen = self.forgotten.values().copied().chain(self.holes.consecutive());
        let Some(looks) = seen.min() else { return audit_ms };
        let doubled = looks.saturating_sub(hole_looks).min(SOONER.ilog2() + 1);
        ((audit_ms / SOONER) << doubled).min(audit_ms)
    }
}

/// Audits forever. `start` is the probe of the table at the start.
pub(super) async fn run<S: LeaseStore, A: StreamApi>(
    crew: Arc<CoordinatorShared<S, A>>,
    start: KclProbe,
) {
    let mut watches = AuditStates::new();
    let mut unread = Vec::new();
    let hole_looks = crew.settings().hole_audits;
    if crew.context.store.layout() == Layout::Kcl {
        for stream in crew.streams() {
            compare_with_rows(&crew, &stream).await;
        }
    }
    loop {
        let audit_ms = audit_ms(&crew);
        let pauses = watches.values().map(|watch| watch.pause_ms(audit_ms, hole_looks));
        let pause_ms = pauses.min().unwrap_or(audit_ms);
        let due_ms = crew.now_ms() + pause_ms - crew.context.rng.below((pause_ms / 8).max(1));
        check_suspects(&crew, due_ms).await;
        let survey = probe_again(&crew, &start).await.unwrap_or_default();
        emit_unread_streams(&crew, &survey, &mut unread);
        let streams = crew.streams();
        watches.retain(|name, _| streams.iter().any(|stream| stream.settings.name == *name));
        let lowest = lowest_worker(&crew).await;
        for stream in streams {
            audit(&crew, &stream, (lowest.as_ref(), survey.owners.as_ref()), &mut watches).await;
        }
        if lowest.as_ref() == Some(&crew.held_leases.member().id) {
            remove_worker_rows(&crew).await;
        }
    }
}

/// Returns the pause between two audits. In KCL's layout an audit scans the table once, and once
/// more for each stream, at twice the cost of a poll. So it comes later on a large table.
fn audit_ms<S: LeaseStore, A: StreamApi>(crew: &CoordinatorShared<S, A>) -> u64 {
    let audit_ms = crew.settings().audit_interval;
    if crew.context.store.layout() == Layout::Native {
        return audit_ms;
    }
    let looks = (1 + crew.stream_names().len() as u64) * 2;
    let paced_ms = crew.poll_interval_ms().saturating_mul(looks * KCL_LOOKS_COST);
    paced_ms.clamp(audit_ms, audit_ms.saturating_mul(KCL_LATER))
}

/// Checks the streams that a reader reported, and rechecks the missing ones, until the next audit
/// is due.
async fn check_suspects<S: LeaseStore, A: StreamApi>(crew: &CoordinatorShared<S, A>, due_ms: u64) {
    loop {
        let missing_ms = crew.missing.next_due_ms().unwrap_or(u64::MAX);
        let suspects = tokio::select! {
            biased;
            suspects = crew.context.suspect_streams.next() => suspects,
            () = crew.context.clock.sleep_until(due_ms) => return,
            () = crew.context.clock.sleep_until(missing_ms) => {
                shared::recheck_due(crew).await;
                continue;
            }
        };
        let streams = crew.streams();
        for stream in streams.iter().filter(|it| suspects.contains(&it.settings.name)) {
            let _: bool = is_the_same(crew, stream, true).await;
        }
    }
}

/// Returns the lowest id among the live workers, which audits when no row names an auditor.
async fn lowest_worker<S: LeaseStore, A: StreamApi>(
    crew: &CoordinatorShared<S, A>,
) -> Option<WorkerId> {
    let look = crew.context.poll().await.ok()?;
    look.workers.into_iter().filter(WorkerRow::is_alive).map(|worker| worker.id).min()
}

/// Emits an event if Java's workers rely on this worker for streams that it does not read. They
/// elect one leader for the whole table, and only the leader creates and repairs rows, of any
/// stream.
fn emit_unread_streams<S: LeaseStore, A: StreamApi>(
    crew: &CoordinatorShared<S, A>,
    survey: &KclProbe,
    told: &mut Vec<String>,
) {
    let me = crew.held_leases.member().id.clone();
    let names = |owners: &BTreeSet<String>| owners.contains(me.as_str());
    let leads = |owners: &BTreeSet<String>| {
        java_shuffle::leads(me.as_str(), owners.iter().map(String::as_str))
    };
    let reads = crew.stream_names();
    let drawn = survey.owners.as_ref().is_some_and(|owners| names(owners) && leads(owners));
    let streams = if drawn { survey.others_than(&reads) } else { Vec::new() };
    if !streams.is_empty() && streams != *told {
        crew.context.emit(LeaseEvent::LeadsUnreadStreams { streams: streams.clone() });
    }
    *told = streams;
}

async fn audit<S: LeaseStore, A: StreamApi>(
    crew: &CoordinatorShared<S, A>,
    stream: &ActiveStream,
    (lowest, owners): (Option<&WorkerId>, Option<&BTreeSet<String>>),
    watches: &mut AuditStates,
) {
    let (tools, name) = (&crew.context, &stream.settings.name);
    if !is_the_same(crew, stream, false).await {
        return;
    }
    let layout = tools.store.layout();
    let me = crew.held_leases.member();
    let is_on_duty =
        |rows: &[Lease]| audit_election::is_auditor(layout, rows, &me.id, lowest, owners);
    // In KCL's layout each worker removes the rows that it finished itself, and creates those of
    // lost children, which Java's leader does not do. There a list is a scan, and the one below is
    // enough.
    if layout == Layout::Native {
        let Ok(listing) = tools.list(name).await else { return };
        if !is_on_duty(&listing.rows) {
            watches.remove(name);
            return;
        }
    }
    // The shards are listed before the rows: a shard missing from the list was gone before the rows
    // were read.
    let list = match tools.call_stream(name, tools.api.list_shards(name, ShardFilter::All)).await {
        Ok(list) => Lineage::new(list.shards),
        Err(error) => return tools.emit_stream_failure(name, &error),
    };
    let Ok(listing) = tools.list(name).await else { return };
    if layout == Layout::Kcl && !is_of_this_stream(crew, stream, &listing.rows, &list) {
        return;
    }
    let rows = listing.with_unreadable(name, &list);
    let watch = watches.entry(name.clone()).or_default();
    repair_missing_children(crew, name, &rows, &list, &mut watch.forgotten).await;
    if layout == Layout::Native || is_on_duty(&listing.rows) {
        note_ranges(crew, &listing.rows, &list).await;
        repair_holes(crew, stream, &rows, &list, &mut watch.holes).await;
    } else {
        // The next auditor starts counting from zero.
        watch.holes = HoleDetector::default();
    }
    remove_rows(crew, &rows, &list).await;
}

/// Returns true if the stream is the one that the application knows. Stops reading a recreated
/// stream. A missing stream is only given up if a reader reported it too (`suspected`).
async fn is_the_same<S: LeaseStore, A: StreamApi>(
    crew: &CoordinatorShared<S, A>,
    stream: &ActiveStream,
    suspected: bool,
) -> bool {
    let name = &stream.settings.name;
    let found_ms = match crew.context.describe(name).await {
        Ok(summary) => summary.created_ms,
        Err(error) if suspected && error.fault == Fault::Missing => {
            crew.context.emit(LeaseEvent::StreamDeleted { stream: name.clone() });
            crew.mark_missing(name);
            return false;
        }
        Err(error) => {
            crew.context.emit_stream_failure(name, &error);
            return false;
        }
    };
    let known_ms = stream.created_ms;
    let is_same = is_same_creation(known_ms, found_ms);
    if !is_same {
        let (stream, again) = (name.clone(), name.clone());
        let (known, found) = (Some(system_time(known_ms)), system_time(found_ms));
        crew.context.emit(LeaseEvent::StreamRecreated { stream, known, found });
        crew.refuse(
            CoordinatorStartError::StreamRecreated { stream: again, known_ms, found_ms },
            name,
        );
    }
    is_same
}

/// Returns true if the rows of KCL's table may belong to the existing stream. Otherwise stops
/// reading it.
fn is_of_this_stream<S: LeaseStore, A: StreamApi>(
    crew: &CoordinatorShared<S, A>,
    stream: &ActiveStream,
    rows: &[Lease],
    list: &Lineage,
) -> bool {
    let Some(row) = audit_election::of_another_stream(rows, list) else { return true };
    let (name, found_ms) = (&stream.settings.name, stream.created_ms);
    let (shard, checkpoint) = (row.key.shard.clone(), row.checkpoint.lowest());
    let stream = name.clone();
    crew.context.emit(LeaseEvent::StreamRecreated {
        stream: stream.clone(),
        known: None,
        found: system_time(found_ms),
    });
    crew.refuse(
        CoordinatorStartError::ForeignCheckpoint { stream, shard, checkpoint, found_ms },
        name,
    );
    false
}

/// Compares the stream with the rows once, at the start of the worker. If one of the two calls
/// fails, the next audit compares them.
async fn compare_with_rows<S: LeaseStore, A: StreamApi>(
    crew: &CoordinatorShared<S, A>,
    stream: &ActiveStream,
) {
    let (tools, name) = (&crew.context, &stream.settings.name);
    if let Ok(list) = tools.call_stream(name, tools.api.list_shards(name, ShardFilter::All)).await
        && let Ok(LeaseListing { rows, .. }) = tools.list(name).await
    {
        let _: bool = is_of_this_stream(crew, stream, &rows, &Lineage::new(list.shards));
    }
}

/// Creates the rows of children that several audits have missed. A single audit may have read the
/// rows while an owner was creating one.
async fn repair_missing_children<S: LeaseStore, A: StreamApi>(
    crew: &CoordinatorShared<S, A>,
    stream: &StreamName,
    rows: &[Lease],
    list: &Lineage,
    missed: &mut BTreeMap<ShardId, u32>,
) {
    let mut forgotten = sync::forgotten(list, rows);
    missed.retain(|shard, _| forgotten.iter().any(|row| row.shard == *shard));
    forgotten.retain(|row| {
        let looks = missed.entry(row.shard.clone()).or_default();
        *looks += 1;
        *looks >= crew.settings().hole_audits
    });
    if !forgotten.is_empty()
        && let Err(error) = create_all(&crew.context, stream, forgotten).await
    {
        let error = error.to_string();
        crew.context.emit(LeaseEvent::StreamCallFailed { stream: stream.clone(), error });
    }
}

/// Adds the hash range to rows that lack it. Old KCL versions don't store it.
async fn note_ranges<S: LeaseStore, A: StreamApi>(
    crew: &CoordinatorShared<S, A>,
    rows: &[Lease],
    list: &Lineage,
) {
    for row in rows.iter().filter(|row| row.range.is_none()) {
        if let Some(shard) = list.get(&row.key.shard) {
            let note = LeaseChange::NoteRange(shard.range);
            let write = Write::lease(&row.key, note, crew.context.rng.nonce());
            // If this fails, the next audit tries again.
            let _noted = crew.context.write_once(&write).await;
        }
    }
}

/// Repairs a hole that several audits have found. A single finding may be a reshard in progress.
async fn repair_holes<S: LeaseStore, A: StreamApi>(
    crew: &CoordinatorShared<S, A>,
    stream: &ActiveStream,
    rows: &[Lease],
    list: &Lineage,
    watch: &mut HoleDetector,
) {
    let (tools, name) = (&crew.context, &stream.settings.name);
    let Some(covered) = sync::covered(list, rows) else { return };
    let holes = coverage::holes(covered);
    let looks = watch.observe(&holes);
    let Some(keys) = holes.first().copied() else { return };
    tools.emit(LeaseEvent::HashRangeHole { stream: name.clone(), range: keys, audits: looks });
    if looks < crew.settings().hole_audits {
        return;
    }
    let missing = if rows.is_empty() && tools.store.layout() == Layout::Native {
        first_rows(tools, stream).await
    } else {
        missing_rows(tools, stream, rows).await
    };
    let repaired = match missing {
        Ok(Some(missing)) => create_all(tools, name, missing).await.map(drop),
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(error) = repaired {
        let error = error.to_string();
        tools.emit(LeaseEvent::StreamCallFailed { stream: name.clone(), error });
    }
}

// Removal of the rows of finished shards and of gone workers.

/// Removes the rows of finished shards that may be removed. In KCL's layout only this worker's own:
/// each Java worker does the same for its own.
pub(super) async fn remove_rows<S: LeaseStore, A: StreamApi>(
    crew: &CoordinatorShared<S, A>,
    rows: &[Lease],
    list: &Lineage,
) {
    let layout = crew.context.store.layout();
    let me = crew.held_leases.member();
    let mine = |row: &Lease| layout == Layout::Native || row.owner.as_ref() == Some(&me.id);
    for row in
        rows.iter().filter(|row| mine(row) && audit_election::may_remove(layout, row, rows, list))
    {
        let held = crew.held_leases.get(&row.key);
        let delete = LeaseChange::Delete { term: row.term };
        let write = Write::lease(&row.key, delete, crew.context.rng.nonce());
        if let WriteResult::Applied(_) = crew.context.write_once(&write).await {
            crew.context.emit(LeaseEvent::LeaseRowRemoved { lease: row.key.clone() });
            if let Some(held) = held.filter(|held| held.state() == HandleState::Retained) {
                crew.held_leases.remove(&held);
            }
        }
    }
}

/// Removes the rows of workers that have left or were fenced and that no lease names.
pub(super) async fn remove_worker_rows<S: LeaseStore, A: StreamApi>(
    crew: &CoordinatorShared<S, A>,
) {
    let tools = &crew.context;
    if tools.store.layout() == Layout::Kcl {
        return;
    }
    let Ok(look) = tools.poll().await else { return };
    let gone: Vec<WorkerId> =
        look.workers.into_iter().filter(|it| !it.is_alive()).map(|it| it.id).collect();
    if gone.is_empty() {
        return;
    }
    // Leases of streams that only other workers read count too.
    let Some(owners) = referenced_workers(crew).await else { return };
    for worker in gone.into_iter().filter(|id| !owners.contains(id)) {
        let write = Write::worker(&worker, WorkerChange::Delete, tools.rng.nonce());
        if let WriteResult::Applied(_) = tools.write_once(&write).await {
            tools.emit(LeaseEvent::WorkerRowRemoved { worker });
        }
    }
}

/// Returns all workers that a lease names, or `None` if not all leases can be read.
async fn referenced_workers<S: LeaseStore, A: StreamApi>(
    crew: &CoordinatorShared<S, A>,
) -> Option<BTreeSet<WorkerId>> {
    let tools = &crew.context;
    let application = tools.read_store(tools.store.application()).await.ok()?;
    if !application.unreadable.is_empty() {
        return None;
    }
    let mut owners = BTreeSet::new();
    for stream in application.streams.keys() {
        let rows = tools.list(stream).await.ok()?;
        owners.extend(rows.rows.into_iter().filter_map(|row| row.owner));
    }
    Some(owners)
}
