//! Removes the rows of finished shards and of gone workers.

use super::crew::CoordinatorShared;
use crate::event::LeaseEvent;
use crate::lease::LeaseStore;
use crate::lease::grip::HandleState;
use crate::lease::settle::WriteResult;
use crate::stream::api::StreamApi;
use anabranch_model::lease::{Layout, Lease, LeaseChange, WorkerChange, WorkerId, Write, duty};
use anabranch_model::lineage::Lineage;
use std::collections::BTreeSet;

/// Removes the rows of finished shards that may go. In KCL's layout only this worker's own: a Java
/// worker does that for its own.
pub(super) async fn remove_rows<S: LeaseStore, A: StreamApi>(
    crew: &CoordinatorShared<S, A>,
    rows: &[Lease],
    list: &Lineage,
) {
    let layout = crew.context.store.layout();
    let me = crew.held_leases.member();
    let mine = |row: &Lease| layout == Layout::Native || row.owner.as_ref() == Some(&me.id);
    for row in rows.iter().filter(|row| mine(row) && duty::may_remove(layout, row, rows, list)) {
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

/// Removes the rows of workers that left or were fenced and that no lease names.
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

/// Everyone that a lease names. `None` if not all leases can be read.
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
