//! The gate before a child shard: it opens when each of its parents has ended.
//!
//! A parent has ended when its row says so. A parent without a row is the hard case: it may lie
//! before the application's start, or its row may only be on its way. With G split into A and B,
//! and B merged with X into M, the end of X makes the row of M while G is still being read and B
//! has no row yet. So a missing row proves nothing alone. It is enough that
//!
//! - a full list that names the child lacks the parent: it is trimmed and holds nothing; or that
//! - nobody is left who could make the parent's row: no ancestor of it has an unfinished row. Rows
//!   are made downwards, so the ancestors' rows are read one by one from the oldest to the parent:
//!   whoever ended before its row was read had made the next row by then. One list or scan of the
//!   rows could see the child of a row before it is made and the row itself after its end.
//!
//! One consistent scan after the list serves all gates of a stream. What it shows of a row counts,
//! and an end is final. What it leaves out was not there when the scan passed its place, since it
//! names the rows that can't be read: as much as a single read at that moment would prove. That is
//! enough for the row of a trimmed parent, which is judged alone. It is not for a listed one, which
//! is judged by several rows in an order.
//!
//! A row that can't be read may be unfinished.
//!
//! Above a trimmed ancestor no names are known, so that part goes by range: an unfinished row of
//! an unlisted shard that shares keys with the parent may still make the parent's row, because the
//! heirs of a lost shard get rows.

use super::listing::LeaseListing;
use super::row::Lease;
use crate::hash::HashRange;
use crate::ids::ShardId;
use crate::lineage::{Lineage, Shard};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a consistent read of one row showed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowState {
    /// There is no row.
    Absent,
    /// The row is short of the shard's end.
    Unfinished,
    /// The row is at the shard's end.
    Ended,
    /// The row can't be read, and may be short of the end.
    Unreadable,
}

/// A full, unfiltered list of the shards, and a scan of all rows that began after it. One serves
/// all gates of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GateListing {
    /// The shards.
    list: Lineage,
    /// What the scan showed of each row that was there.
    scan: BTreeMap<ShardId, RowState>,
    /// Unfinished rows of shards that the list lacks, with their ranges.
    unlisted: Vec<(ShardId, Option<HashRange>)>,
    /// Rows of shards that the list lacks that can't be read.
    unreadable: Vec<ShardId>,
}

impl GateListing {
    /// A list, and then a scan. Its rows may have been read at different moments, all of them after
    /// the list, and what it leaves out was not there.
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

    /// The shards.
    pub fn list(&self) -> &Lineage {
        &self.list
    }

    /// What the scan showed of a row.
    fn scanned(&self, shard: &ShardId) -> RowState {
        self.scan.get(shard).copied().unwrap_or(RowState::Absent)
    }

    /// Why the row of a listed shard may yet be made by the end of an unlisted one: its row is
    /// unfinished and shares keys with the shard, or can't be read and is older. A row that does
    /// not tell its range may share any key.
    fn unlisted_over(&self, shard: &Shard) -> Option<WaitReason> {
        let shares = |other: &Option<HashRange>| other.is_none_or(|it| it.overlaps(&shard.range));
        let unfinished = self.unlisted.iter().find(|(_, other)| shares(other));
        let unfinished = unfinished.map(|(gone, _)| WaitReason::UnlistedUnfinished(gone.clone()));
        let unreadable = || self.unreadable.iter().find(|gone| may_be_older(gone, &shard.id));
        unfinished.or_else(|| unreadable().cloned().map(WaitReason::Unreadable))
    }
}

/// Shards are numbered in the order of their birth, so a younger one is no ancestor. A key that has
/// no number is none of the service's shards, where these have numbers.
fn may_be_older(gone: &ShardId, shard: &ShardId) -> bool {
    match (gone.index(), shard.index()) {
        (Some(gone), Some(shard)) => gone < shard,
        (None, Some(_)) => false,
        (_, None) => true,
    }
}

/// What one attempt to pass the gate has learned so far. A new attempt starts with nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GateEvidence {
    /// The shards and the scanned rows.
    listed: Option<Arc<GateListing>>,
    /// Rows read one by one, in the order of the reads.
    reads: Vec<(ShardId, RowState)>,
}

impl GateEvidence {
    /// Notes a consistent read of one row.
    pub fn saw(&mut self, shard: ShardId, seen: RowState) {
        self.reads.push((shard, seen));
    }

    /// Notes a list and a scan. What was read before is forgotten, because the order of the reads
    /// counts from here.
    pub fn listed(&mut self, listed: Arc<GateListing>) {
        self.listed = Some(listed);
        // An end is final, so an ended row need not be read again.
        self.reads.retain(|(_, seen)| *seen == RowState::Ended);
    }

    /// The last that single reads showed of a row, or else the scan.
    fn last_seen(&self, shard: &ShardId) -> Option<RowState> {
        let read = self.reads.iter().rev().find(|(read, _)| read == shard).map(|(_, seen)| *seen);
        read.or_else(|| Some(self.listed.as_ref()?.scanned(shard)))
    }
}

/// Why a child waits for a parent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WaitReason {
    /// The parent's row is short of its end.
    ParentUnfinished,
    /// The parent has no row yet, and this ancestor of it, still being read, may bring it.
    AncestorUnfinished(ShardId),
    /// The parent has no row yet, and this unfinished row of a shard that is gone may bring it.
    UnlistedUnfinished(ShardId),
    /// The row of this shard, the parent or an ancestor of it, can't be read.
    Unreadable(ShardId),
    /// The list does not name the child: it is too old, or the child itself is gone.
    ChildNotListed,
}

/// Whether a child may start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Gate {
    /// Every parent has ended.
    Open,
    /// This parent has not ended, or is not known to have.
    Wait {
        /// The parent.
        parent: ShardId,
        /// What it waits for.
        why: WaitReason,
    },
    /// A full, unfiltered list of the shards is needed, and then a scan of the rows.
    NeedList,
    /// These rows are to be read next, one by one, in this order.
    NeedReads(Vec<ShardId>),
}

/// Decides whether the shard `child`, which came from `parents`, may start.
///
/// The driver does what the answer asks for and asks again with more evidence, until the gate
/// opens or the child has to wait; after a while it starts anew.
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
    // A list makes earlier reads void, so the rows that tell whether one is needed come first.
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
            // The list names the child and lacks the parent: the parent is trimmed. The scan after
            // the list shows no row of it: none of its records are being read.
            None => Gate::Open,
            Some(shard) => match listed.unlisted_over(shard) {
                Some(why) => wait(why),
                None => gate_of_ancestors(parent, listed, evidence),
            },
        },
    }
}

/// The parent is listed and has no row. It has ended if no ancestor can bring its row any more.
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
        // Each row must have been read after all that stand before it.
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
