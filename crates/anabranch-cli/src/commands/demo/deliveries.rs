//! Delivery log: one file that all workers append to, which defines a total order.

use super::produce::DemoRecord;
use crate::failure::CommandFailure;
use anabranch_model::ids::ShardId;
use anabranch_model::lease::LeaseKey;
use anabranch_model::record::UserRecord;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Formats one delivery. It is written with one call, so a kill never leaves a partial line.
pub(super) fn line(worker: &str, now_ms: u64, shard: &LeaseKey, record: &UserRecord) -> String {
    let payload = record.data.escape_ascii();
    format!("D {worker} {now_ms} {} {payload}\n", shard.shard)
}

/// Formats the eviction of a starved worker.
pub(super) fn expelled(worker: &str, now_ms: u64) -> String {
    format!("E {worker} {now_ms}\n")
}

/// An entry of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DeliveryLogEntry {
    /// A record was handled.
    Delivered { worker: String, at_ms: u64, shard: ShardId, item: DemoRecord },
    /// A worker was evicted.
    Evicted { worker: String },
}

impl DeliveryLogEntry {
    fn read(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let (kind, worker) = (words.next()?, words.next()?.to_owned());
        let at_ms = words.next()?.parse().ok()?;
        match kind {
            "D" => {
                let shard = words.next()?.into();
                Some(Self::Delivered {
                    worker,
                    at_ms,
                    shard,
                    item: DemoRecord::read(words.next()?)?,
                })
            }
            "E" => Some(Self::Evicted { worker }),
            _ => None,
        }
    }
}

/// The log as read so far.
pub(super) struct DeliveryLog(Mutex<DeliveryLogState>);

struct DeliveryLogState {
    file: File,
    /// Start of an incomplete line.
    rest: String,
    entries: Vec<DeliveryLogEntry>,
    distinct: BTreeSet<DemoRecord>,
    by_shard: BTreeMap<ShardId, u64>,
    /// The worker that last delivered from each shard.
    readers: BTreeMap<ShardId, String>,
}

impl DeliveryLog {
    /// Creates the file.
    pub(super) fn new(path: &Path) -> Result<Self, CommandFailure> {
        let file = File::create(path).and_then(|_| File::open(path));
        let file =
            file.map_err(|error| CommandFailure::usage(format!("{}: {error}", path.display())))?;
        Ok(Self(Mutex::new(DeliveryLogState {
            file,
            rest: String::new(),
            entries: Vec::new(),
            distinct: BTreeSet::new(),
            by_shard: BTreeMap::new(),
            readers: BTreeMap::new(),
        })))
    }

    fn log(&self) -> MutexGuard<'_, DeliveryLogState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the entries added since the last call.
    pub(super) fn read(&self) -> Result<(), CommandFailure> {
        let mut log = self.log();
        let mut text = std::mem::take(&mut log.rest);
        log.file.read_to_string(&mut text).map_err(CommandFailure::result)?;
        let (whole, rest) = text.rsplit_once('\n').unwrap_or(("", &text));
        rest.clone_into(&mut log.rest);
        for line in whole.lines() {
            let entry = DeliveryLogEntry::read(line);
            let entry = entry.ok_or_else(|| {
                CommandFailure::result(format!("a record that was never put was delivered: {line}"))
            })?;
            if let DeliveryLogEntry::Delivered { item, shard, worker, .. } = &entry
                && log.distinct.insert(*item)
            {
                *log.by_shard.entry(shard.clone()).or_default() += 1;
                log.readers.insert(shard.clone(), worker.clone());
            }
            log.entries.push(entry);
        }
        Ok(())
    }

    /// Returns the number of distinct records delivered.
    pub(super) fn distinct(&self) -> usize {
        self.log().distinct.len()
    }

    /// Returns the number of distinct records of a shard delivered.
    pub(super) fn of_shard(&self, shard: &ShardId) -> u64 {
        self.log().by_shard.get(shard).copied().unwrap_or(0)
    }

    /// Returns the worker that last delivered from a shard.
    pub(super) fn reader_of(&self, shard: &ShardId) -> Option<String> {
        self.log().readers.get(shard).cloned()
    }

    /// Returns all entries in order of delivery.
    pub(super) fn all(&self) -> Vec<DeliveryLogEntry> {
        self.log().entries.clone()
    }

    /// Returns the time at which a worker other than `not` first delivered from a shard at or after
    /// `after_ms`.
    pub(super) fn next_reader(&self, shard: &ShardId, not: &str, after_ms: u64) -> Option<u64> {
        self.log().entries.iter().find_map(|entry| match entry {
            DeliveryLogEntry::Delivered { worker, at_ms, shard: of, .. } => {
                (of == shard && worker != not && *at_ms >= after_ms).then_some(*at_ms)
            }
            DeliveryLogEntry::Evicted { .. } => None,
        })
    }
}
