//! The gate of a child shard: it opens when each of its parents has ended.
//!
//! A parent has ended when its row says so. A parent without a row is the hard case: it may predate
//! the application's start, or its row may not have been created yet. For example, G is split into
//! A and B, and B and X are merged into M. The end of X creates the row of M while G is still being
//! read and B has no row yet. A missing row alone therefore proves nothing. Either of these
//! conditions is sufficient:
//!
//! - A full shard list that contains the child lacks the parent: the parent is trimmed and holds no
//!   records.
//! - No ancestor of the parent has an unfinished row, so the parent's row can no longer be created.
//!   Rows are created from parents to children, so the ancestors' rows are read one by one, from
//!   the oldest to the parent. An ancestor that had ended when its row was read had created the
//!   next row by then. A single list or scan could pass the child's position before its row is
//!   created, and read the ancestor's row after its end.
//!
//! One consistent scan after the list serves all gates of a stream. A row in the scan counts, and
//! an end is final. A row that is not in the scan was absent when the scan passed its position,
//! because the scan also names unreadable rows. It proves as much as a single read at that moment.
//! That is sufficient for the row of a trimmed parent, which is judged alone. It is not sufficient
//! for a listed parent, which is judged by several rows read in order.
//!
//! An unreadable row may be unfinished.
//!
//! Above a trimmed ancestor the shard names are unknown, so that part is checked by hash range. An
//! unfinished row of an unlisted shard that shares keys with the parent may still create the
//! parent's row, because the successors of a lost shard get rows.

use super::listing::LeaseListing;
use super::row::Lease;
use crate::hash::HashRange;
use crate::ids::ShardId;
use crate::lineage::{Lineage, Shard};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Result of a consistent read of one row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowState {
    /// There is no row.
    Absent,
    /// The row is short of the shard's end.
    Unfinished,
    /// The row is at the shard's end.
    Ended,
    /// The row cannot be read, and may be short of the end.
    Unreadable,
}

/// A full, unfiltered list of the shards, and a scan of all rows that began after it. One serves
/// all gates of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GateListing {
    list: Lineage,
    /// State of each row that the scan found.
    scan: BTreeMap<ShardId, RowState>,
    /// Unfinished rows of shards that are not in the list, with their ranges.
    unlisted: Vec<(ShardId, Option<HashRange>)>,
    /// Unreadable rows of shards that are not in the list.
    unreadable: Vec<ShardId>,
}

impl GateListing {
    /// Creates a listing from a list and a later scan. The rows may have been read at different
    /// times, all of them after the list. A row that is not in the scan was absent.
    pub fn new(list: Lineage, scan: &LeaseListing) -> Self {
        let gone = |shard: &ShardId| !list.names(shard);
        let unfinished = scan.rows.iter().filter(|row| !row.is_ended() && gone(&row.key.shard));
        let unlisted = unfinished.map(|row| (row.key.shard.clone(), row.range)).collect();
        let unreadable = scan.unreadable.iter().map(|row| &row.key);
        let seen =
            |row: &Lease| if row.is_ended() { RowState::Ended } else { RowState::Unfinished };
        let rows = scan.rows.iter().map(|row| (row.key.shard.clone(), seen(row)));
        let unread = unreadable.clone().map(|shard| (shard.clone(), RowState::Unreadable));
        let scan = rows.chain(unread).collect();
        let unreadable = unreadable.filter(|shard| gone(shard)).cloned().collect();
        Self { list, scan, unlisted, unreadable }
    }

    /// Returns the shards.
    pub fn list(&self) -> &Lineage {
        &self.list
    }

    /// Returns the state of a row in the scan.
    fn scanned(&self, shard: &ShardId) -> RowState {
        self.scan.get(shard).copied().unwrap_or(RowState::Absent)
    }

    /// Returns the reason why the end of an unlisted shard may still create the row of `shard`, if
    /// there is one. The unlisted shard's row is unfinished and shares keys with `shard`, or it
    /// cannot be read and is older. A row without a range may share any key.
    fn unlisted_over(&self, shard: &Shard) -> Option<WaitReason> {
        let shares = |other: &Option<HashRange>| other.is_none_or(|it| it.overlaps(&shard.range));
        let unfinished = self.unlisted.iter().find(|(_, other)| shares(other));
        let unfinished = unfinished.map(|(gone, _)| WaitReason::UnlistedUnfinished(gone.clone()));
        let unreadable = || self.unreadable.iter().find(|gone| may_be_older(gone, &shard.id));
        unfinished.or_else(|| unreadable().cloned().map(WaitReason::Unreadable))
    }
}

/// Returns true if the shard `gone` may be older than `shard`. Shards are numbered in the order of
/// creation, so a younger one is no ancestor. If `shard` has a number, a key without one is not a
/// shard of the service.
fn may_be_older(gone: &ShardId, shard: &ShardId) -> bool {
    match (gone.index(), shard.index()) {
        (Some(gone), Some(shard)) => gone < shard,
        (None, Some(_)) => false,
        (_, None) => true,
    }
}

/// Evidence gathered in one attempt to pass the gate. A new attempt starts without any.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GateEvidence {
    listed: Option<Arc<GateListing>>,
    /// Rows read one by one, in the order of the reads.
    reads: Vec<(ShardId, RowState)>,
}

impl GateEvidence {
    /// Notes a consistent read of one row.
    pub fn saw(&mut self, shard: ShardId, seen: RowState) {
        self.reads.push((shard, seen));
    }

    /// Notes a list and a scan. Drops earlier reads, because the order of the reads counts from
    /// here.
    pub fn listed(&mut self, listed: Arc<GateListing>) {
        self.listed = Some(listed);
        // An end is final, so an ended row need not be read again.
        self.reads.retain(|(_, seen)| *seen == RowState::Ended);
    }

    /// Returns the state of a row by its last single read, or else by the scan.
    fn last_seen(&self, shard: &ShardId) -> Option<RowState> {
        let read = self.reads.iter().rev().find(|(read, _)| read == shard).map(|(_, seen)| *seen);
        read.or_else(|| Some(self.listed.as_ref()?.scanned(shard)))
    }
}

/// Reason why a child waits for a parent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WaitReason {
    /// The parent's row is short of its end.
    ParentUnfinished,
    /// The parent has no row yet, and the end of this unfinished ancestor may create it.
    AncestorUnfinished(ShardId),
    /// The parent has no row yet, and this unfinished row of an unlisted shard may create it.
    UnlistedUnfinished(ShardId),
    /// The row of this shard, the parent or one of its ancestors, cannot be read.
    Unreadable(ShardId),
    /// The list does not contain the child: it is too old, or the child itself is gone.
    ChildNotListed,
}

/// Decision of the gate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Gate {
    /// Every parent has ended.
    Open,
    /// This parent has not ended, or is not known to have.
    Wait {
        /// Parent that the child waits for.
        parent: ShardId,
        /// Reason for the wait.
        why: WaitReason,
    },
    /// The gate needs a full, unfiltered list of the shards, and then a scan of the rows.
    NeedList,
    /// The gate needs reads of these rows, one by one, in this order.
    NeedReads(Vec<ShardId>),
}

/// Decides if the shard `child`, which came from `parents`, may start.
///
/// The driver fetches the requested evidence and calls this function again, until the gate opens or
/// the child has to wait. After a delay it starts again without evidence.
pub fn gate(child: &ShardId, parents: &[ShardId], evidence: &GateEvidence) -> Gate {
    let mut need_list = false;
    let mut need_reads = Vec::new();
    for parent in parents {
        match gate_of_one(child, parent, evidence) {
            Gate::Open => {}
            wait @ Gate::Wait { .. } => return wait,
            Gate::NeedList => need_list = true,
            Gate::NeedReads(rows) => need_reads.extend(rows),
        }
    }
    // A list invalidates earlier reads, so the rows that decide if one is needed come first.
    match (need_reads.is_empty(), need_list) {
        (false, _) => Gate::NeedReads(need_reads),
        (true, true) => Gate::NeedList,
        (true, false) => Gate::Open,
    }
}

fn gate_of_one(child: &ShardId, parent: &ShardId, evidence: &GateEvidence) -> Gate {
    let wait = |why| Gate::Wait { parent: parent.clone(), why };
    match (evidence.last_seen(parent), &evidence.listed) {
        (Some(RowState::Ended), _) => Gate::Open,
        (Some(RowState::Unfinished), _) => wait(WaitReason::ParentUnfinished),
        (Some(RowState::Unreadable), _) => wait(WaitReason::Unreadable(parent.clone())),
        (None, _) => Gate::NeedReads(vec![parent.clone()]),
        (Some(RowState::Absent), None) => Gate::NeedList,
        (Some(RowState::Absent), Some(listed)) if !listed.list.names(child) => {
            wait(WaitReason::ChildNotListed)
        }
        (Some(RowState::Absent), Some(listed)) => match listed.list.get(parent) {
            // The list contains the child and lacks the parent, so the parent is trimmed. The scan
            // after the list shows no row of it, so none of its records is being read.
            None => Gate::Open,
            Some(shard) => match listed.unlisted_over(shard) {
                Some(why) => wait(why),
                None => gate_of_ancestors(parent, listed, evidence),
            },
        },
    }
}

/// Decides for a parent that is listed and has no row. It has ended if no ancestor can create its
/// row any more.
fn gate_of_ancestors(parent: &ShardId, listed: &GateListing, evidence: &GateEvidence) -> Gate {
    let mut order = listed.list.ancestors(parent);
    order.push(parent);
    // An end is final, and every single read comes after the scan.
    order.retain(|shard| listed.scanned(shard) != RowState::Ended);
    if let Some(shard) = order.iter().find(|it| listed.scanned(it) == RowState::Unreadable) {
        return unreadable(parent, shard);
    }
    let mut reads = evidence.reads.iter();
    for (i, shard) in order.iter().copied().enumerate() {
        // Each row must have been read after all rows before it.
        match reads.by_ref().find(|(read, _)| read == shard) {
            None => return Gate::NeedReads(order[i..].iter().copied().cloned().collect()),
            Some((_, RowState::Unfinished)) => {
                let why = if shard == parent {
                    WaitReason::ParentUnfinished
                } else {
                    WaitReason::AncestorUnfinished(shard.clone())
                };
                return Gate::Wait { parent: parent.clone(), why };
            }
            Some((_, RowState::Unreadable)) => return unreadable(parent, shard),
            Some((_, RowState::Absent | RowState::Ended)) => {}
        }
    }
    Gate::Open
}

fn unreadable(parent: &ShardId, shard: &ShardId) -> Gate {
    Gate::Wait { parent: parent.clone(), why: WaitReason::Unreadable(shard.clone()) }
}

#[cfg(test)]
mod tests;
