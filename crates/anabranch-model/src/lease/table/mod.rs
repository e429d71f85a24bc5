//! The rules of a lease table: what each write needs and what it does.
//!
//! Each layout is a set of pure transitions from one row to the next. [`LeaseTable`] keeps whole
//! applications by them: it is the memory store, and the reference that other stores are held
//! against. A store with transactions reads the row, calls the same transition and writes the row
//! back; a store with conditional writes states the same condition in its own language, and learns
//! from the transition why a condition failed.

pub mod native;
pub mod kcl;

use super::application::ApplicationFacts;
use super::outcome::{StoredRow, WriteOutcome, WriteRefusal};
use super::row::{Lease, LeaseKey};
use super::worker_row::{WorkerId, WorkerRow};
use super::write::{LeaseChange, Nonce, StreamChange, WorkerChange, Write};
use crate::ids::StreamName;
use std::collections::BTreeMap;

/// How an application's rows are laid out, and which rules hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Layout {
    /// Ours: workers have hearts, leases have terms. One beat per worker, whatever it owns.
    Native,
    /// That of KCL 1.x and 2.x: each lease is its own heart, and its counter is the fence.
    Kcl,
}

impl Layout {
    /// The lease after `change`, or which part of the condition is false.
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
    /// Which rules hold.
    layout: Layout,
    /// The facts that are kept once.
    application: ApplicationFacts,
    /// The hearts, by id.
    workers: BTreeMap<WorkerId, WorkerRow>,
    /// The leases, by stream and shard.
    leases: BTreeMap<LeaseKey, Lease>,
}

impl LeaseTable {
    /// A table without rows.
    pub fn new(layout: Layout) -> Self {
        Self {
            layout,
            application: ApplicationFacts::default(),
            workers: BTreeMap::new(),
            leases: BTreeMap::new(),
        }
    }

    /// Which rules hold.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The facts that are kept once.
    pub fn application(&self) -> &ApplicationFacts {
        &self.application
    }

    /// All workers, by id.
    pub fn workers(&self) -> impl Iterator<Item = &WorkerRow> {
        self.workers.values()
    }

    /// One worker.
    pub fn worker(&self, id: &WorkerId) -> Option<&WorkerRow> {
        self.workers.get(id)
    }

    /// The leases of a stream, by shard.
    pub fn leases(&self, stream: &StreamName) -> impl Iterator<Item = &Lease> {
        self.leases.values().filter(move |lease| lease.key.stream == *stream)
    }

    /// One lease.
    pub fn lease(&self, key: &LeaseKey) -> Option<&Lease> {
        self.leases.get(key)
    }

    /// Applies one write, if its condition holds.
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
