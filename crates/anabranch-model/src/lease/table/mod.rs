//! Rules of a lease table: the condition and the effect of each write.
//!
//! Each layout is a set of pure transitions from one row to the next. [`LeaseTable`] applies them
//! to all rows of an application: it is the memory store and the reference for other stores. A
//! store with transactions reads the row, calls the same transition and writes the row back. A
//! store with conditional writes expresses the same condition in its own language, and uses the
//! transition to find the reason for a failed condition.

pub mod native;
pub mod kcl;

use super::application::ApplicationFacts;
use super::outcome::{StoredRow, WriteOutcome, WriteRefusal};
use super::row::{Lease, LeaseKey};
use super::worker_row::{WorkerId, WorkerRow};
use super::write::{LeaseChange, Nonce, StreamChange, WorkerChange, Write};
use crate::ids::StreamName;
use std::collections::BTreeMap;

/// Layout of an application's rows, and the rules for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Layout {
    /// Anabranch's own: workers have heartbeats, leases have terms. One heartbeat per worker,
    /// however many leases it owns.
    Native,
    /// The layout of KCL 1.x and 2.x: each lease has its own heartbeat, and its counter is the
    /// fencing token.
    Kcl,
}

impl Layout {
    /// Returns the lease after `change`, or the part of the condition that is false.
    pub fn lease_after(
        self,
        key: &LeaseKey,
        change: &LeaseChange,
        nonce: Nonce,
        row: Option<&Lease>,
    ) -> Result<Option<Lease>, WriteRefusal> {
        match self {
            Self::Native => native::lease_after(key, change, nonce, row),
            Self::Kcl => kcl::lease_after(key, change, row),
        }
    }
}

/// All rows of one application.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaseTable {
    /// Layout of the rows.
    layout: Layout,
    /// Facts stored once.
    application: ApplicationFacts,
    /// Worker rows, by id.
    workers: BTreeMap<WorkerId, WorkerRow>,
    /// Leases, by stream and shard.
    leases: BTreeMap<LeaseKey, Lease>,
}

impl LeaseTable {
    /// Creates a table without rows.
    pub fn new(layout: Layout) -> Self {
        Self {
            layout,
            application: ApplicationFacts::default(),
            workers: BTreeMap::new(),
            leases: BTreeMap::new(),
        }
    }

    /// Returns the layout.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the facts stored once.
    pub fn application(&self) -> &ApplicationFacts {
        &self.application
    }

    /// Returns all workers, by id.
    pub fn workers(&self) -> impl Iterator<Item = &WorkerRow> {
        self.workers.values()
    }

    /// Returns a worker's row.
    pub fn worker(&self, id: &WorkerId) -> Option<&WorkerRow> {
        self.workers.get(id)
    }

    /// Returns the leases of a stream, by shard.
    pub fn leases(&self, stream: &StreamName) -> impl Iterator<Item = &Lease> {
        self.leases.values().filter(move |lease| lease.key.stream == *stream)
    }

    /// Returns a lease.
    pub fn lease(&self, key: &LeaseKey) -> Option<&Lease> {
        self.leases.get(key)
    }

    /// Applies a write if its condition holds.
    pub fn apply(&mut self, write: &Write) -> WriteOutcome {
        let outcome = match write {
            Write::Lease { key, change, nonce } => self.change_lease(key, change, *nonce),
            Write::Worker { id, change, nonce } => self.change_worker(id, change, *nonce),
            Write::Stream { stream, change } => self.change_stream(stream, *change),
        };
        if outcome.is_done() && write.changes_plan() && self.layout == Layout::Native {
            self.application.version += 1;
        }
        outcome
    }

    fn change_lease(&mut self, key: &LeaseKey, change: &LeaseChange, nonce: Nonce) -> WriteOutcome {
        let row = self.leases.get(key);
        match self.layout.lease_after(key, change, nonce, row) {
            Err(why) => refused(why, StoredRow::of_lease(row)),
            Ok(after) => {
                let stored = StoredRow::of_lease(after.as_ref());
                put(&mut self.leases, key, after);
                WriteOutcome::Done(stored)
            }
        }
    }

    fn change_worker(
        &mut self,
        id: &WorkerId,
        change: &WorkerChange,
        nonce: Nonce,
    ) -> WriteOutcome {
        if self.layout == Layout::Kcl {
            return WriteOutcome::Refused { why: WriteRefusal::Unsupported, now: None };
        }
        let row = self.workers.get(id);
        match native::worker_after(id, change, nonce, row) {
            Err(why) => refused(why, StoredRow::of_worker(row)),
            Ok(None) if self.leases.values().any(|lease| lease.owner.as_ref() == Some(id)) => {
                refused(WriteRefusal::StillReferenced, StoredRow::of_worker(row))
            }
            Ok(after) => {
                let stored = StoredRow::of_worker(after.as_ref());
                put(&mut self.workers, id, after);
                WriteOutcome::Done(stored)
            }
        }
    }

    fn change_stream(&mut self, stream: &StreamName, change: StreamChange) -> WriteOutcome {
        if self.layout == Layout::Kcl {
            return WriteOutcome::Refused { why: WriteRefusal::Unsupported, now: None };
        }
        match native::stream_after(change, self.application.streams.get(stream)) {
            Err(why) => refused(why, StoredRow::of_stream(self.application.streams.get(stream))),
            Ok(facts) => {
                self.application.streams.insert(stream.clone(), facts);
                WriteOutcome::Done(StoredRow::Stream(facts))
            }
        }
    }
}

fn refused(why: WriteRefusal, now: StoredRow) -> WriteOutcome {
    WriteOutcome::Refused { why, now: Some(now) }
}

fn put<K: Clone + Ord, V>(rows: &mut BTreeMap<K, V>, key: &K, after: Option<V>) {
    match after {
        Some(row) => {
            rows.insert(key.clone(), row);
        }
        None => {
            rows.remove(key);
        }
    }
}

#[cfg(test)]
mod tests;
