//! Retention, for the checkers that follow open records: which of them can no longer be read.
//!
//! A record that passes retention before the session that reads its shard receives it is lost, and
//! that is not a violation. The same holds for a record that the session has in memory, but only if
//! the session ends before the record is done.
//!
//! A shard that is entirely past retention is different. A reader of a child shard trusts the
//! service that the shard is gone, while the worker that read it may still have its last records in
//! memory. The order of those records relative to the shard's descendants is not checked.

use crate::history::{HistoryEvent, HostId};
use crate::record_source::SimRecord;
use anabranch::event::{Event, LeaseEvent, ShardEvent};
use anabranch_model::lease::{LeaseChange, LeaseKey, StoredRow, WorkerId, Write, WriteOutcome};
use anabranch_model::position::Position;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Records of one shard.
#[derive(Default)]
struct RetentionShard<'a> {
    /// Records that were put and are neither done nor lost.
    open: BTreeMap<Position, &'a Arc<SimRecord>>,
    /// Records that the session reading the shard has received.
    read: BTreeSet<Position>,
    /// Records that passed retention after they were received.
    expired: BTreeSet<Position>,
    /// Host of that session.
    reader: Option<HostId>,
    /// True once the shard takes no more records.
    closed: bool,
}

/// A record that need not be delivered any more.
pub(super) struct ExcusedRecord<'a> {
    pub(super) grain: &'a Arc<SimRecord>,
    /// True if it may be in memory, so that it can still be delivered.
    pub(super) may_come: bool,
}

/// Records that can still be read, or are in the memory of the session that reads their shard.
#[derive(Default)]
pub(super) struct RetentionTracker<'a> {
    shards: BTreeMap<&'a LeaseKey, RetentionShard<'a>>,
}

impl<'a> RetentionTracker<'a> {
    /// Processes an event. Returns the records that can no longer be read from now on.
    pub(super) fn see(
        &mut self,
        host: Option<HostId>,
        what: &'a HistoryEvent,
    ) -> Vec<ExcusedRecord<'a>> {
        match what {
            HistoryEvent::Put(grain) => {
                self.shard(&grain.shard).open.insert(grain.at, grain);
            }
            HistoryEvent::Handled { grain, done: true, .. } | HistoryEvent::Skipped(grain) => {
                let shard = self.shard(&grain.shard);
                shard.open.remove(&grain.at);
                shard.expired.remove(&grain.at);
            }
            HistoryEvent::Arrived(grains) => {
                for grain in grains {
                    let shard = self.shard(&grain.shard);
                    if host.is_some() && host == shard.reader {
                        shard.read.insert(grain.at);
                    }
                }
            }
            HistoryEvent::Resharded { closed, .. } => {
                for shard in closed {
                    self.shard(shard).closed = true;
                }
            }
            // The records in the memory of its sessions are gone.
            HistoryEvent::Crashed { host, .. } => {
                let shards = self.shards.values_mut();
                let read_there = shards.filter(|shard| shard.reader == Some(*host));
                return read_there.flat_map(RetentionShard::over).collect();
            }
            HistoryEvent::Trimmed => {
                return self.shards.values_mut().flat_map(RetentionShard::trim).collect();
            }
            HistoryEvent::WriteApplied {
                write: Write::Lease { key, change, .. },
                outcome: WriteOutcome::Done(StoredRow::Lease(row)),
            } if moves(change) => {
                let shard = self.shard(key);
                shard.reader = row.owner.as_ref().and_then(host_of);
                return shard.over();
            }
            HistoryEvent::LibraryReported(Event::Shard(
                ShardEvent::Stopped { shard, .. } | ShardEvent::Stuck { shard, .. },
            )) => return self.told(host, shard),
            HistoryEvent::StartedOver(lease)
            | HistoryEvent::LibraryReported(Event::Lease(
                LeaseEvent::Draining { lease, .. } | LeaseEvent::LeaseLost { lease },
            )) => return self.told(host, lease),
            _ => {}
        }
        Vec::new()
    }

    /// Ends the session of `host`, or restarts its fetching. Returns the records that are lost by
    /// it.
    fn told(&mut self, host: Option<HostId>, shard: &'a LeaseKey) -> Vec<ExcusedRecord<'a>> {
        let shard = self.shard(shard);
        if host == shard.reader { shard.over() } else { Vec::new() }
    }

    fn shard(&mut self, shard: &'a LeaseKey) -> &mut RetentionShard<'a> {
        self.shards.entry(shard).or_default()
    }
}

impl<'a> RetentionShard<'a> {
    /// Applies retention to all records put so far. Returns the lost ones.
    fn trim(&mut self) -> Vec<ExcusedRecord<'a>> {
        let (read, unread): (BTreeSet<Position>, BTreeSet<Position>) =
            self.open.keys().partition(|at| self.read.contains(at));
        let mut lost = self.lose(&unread, false);
        if self.closed {
            lost.extend(self.lose(&read, true));
        } else {
            self.expired = read;
        }
        lost
    }

    /// Ends the session and drops its records in memory. Returns the lost ones.
    fn over(&mut self) -> Vec<ExcusedRecord<'a>> {
        self.read.clear();
        let expired = std::mem::take(&mut self.expired);
        self.lose(&expired, false)
    }

    fn lose(&mut self, places: &BTreeSet<Position>, may_come: bool) -> Vec<ExcusedRecord<'a>> {
        let grains = places.iter().filter_map(|at| self.open.remove(at));
        grains.map(|grain| ExcusedRecord { grain, may_come }).collect()
    }
}

/// Returns true if a change ends the session that reads the shard.
fn moves(change: &LeaseChange) -> bool {
    matches!(
        change,
        LeaseChange::Take { .. } | LeaseChange::HandOver { .. } | LeaseChange::Release { .. }
    )
}

/// Returns the host of a worker, parsed from the worker's name.
pub(super) fn host_of(worker: &WorkerId) -> Option<HostId> {
    let name = worker.as_str().split('/').next()?;
    name.strip_prefix('h')?.parse().ok().map(HostId)
}
