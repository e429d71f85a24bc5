//! The log of deliveries: one file that all workers append to, so that there is one order of them.

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

/// The line of one delivery. It is written at once, so a kill never leaves half of it.
pub(super) fn line(worker: &str, now_ms: u64, shard: &LeaseKey, record: &UserRecord) -> String {
    let payload = record.data.escape_ascii();
    format!("D {worker} {now_ms} {} {payload}\n", shard.shard)
}

/// The line of a worker that starved and was shut out.
pub(super) fn expelled(worker: &str, now_ms: u64) -> String {
    format!("E {worker} {now_ms}\n")
}

/// One line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DeliveryLogEntry {
    /// A record was handled.
    Delivered { worker: String, at_ms: u64, shard: ShardId, item: DemoRecord },
    /// A worker was shut out.
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

/// What was read of the log so far.
pub(super) struct DeliveryLog(Mutex<DeliveryLogState>);

struct DeliveryLogState {
    file: File,
    /// The start of a line whose end is not there yet.
    rest: String,
    entries: Vec<DeliveryLogEntry>,
    distinct: BTreeSet<DemoRecord>,
    by_shard: BTreeMap<ShardId, u64>,
    /// Who delivered a shard last.
    readers: BTreeMap<ShardId, String>,
}

impl DeliveryLog {
    /// Makes the file.
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

    /// Reads what has come since the last time.
    pub(super) fn read(&self) -> Result<(), CommandFailure> {
        let mut log = self.log();
        let mut text = std::mem::take(&mut log.rest);
        log.file.read_to_string(&mut text).map_err(CommandFailure::result)?;
        let (whole, rest) = text.rsplit_once('\n').unwrap_or(("", &text));
        rest.clone_into(&mut log.rest);
        for line in whole.lines() {
            let entry = DeliveryLogEntry::read(line);
            let entry = entry.ok_or_else(|| {
                CommandFailure::result(format!("a record that nobody put was delivered: {line}"))
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

    /// How many different records were delivered.
    pub(super) fn distinct(&self) -> usize {
        self.log().distinct.len()
    }

    /// How many different records of a shard were delivered.
    pub(super) fn of_shard(&self, shard: &ShardId) -> u64 {
        self.log().by_shard.get(shard).copied().unwrap_or(0)
    }

    /// Who delivered a shard last.
    pub(super) fn reader_of(&self, shard: &ShardId) -> Option<String> {
        self.log().readers.get(shard).cloned()
    }

    /// Everything, in order of delivery.
    pub(super) fn all(&self) -> Vec<DeliveryLogEntry> {
        self.log().entries.clone()
    }

    /// When somebody else first delivered a record of a shard after this time.
    pub(super) fn next_reader(&self, shard: &ShardId, not: &str, after_ms: u64) -> Option<u64> {
        self.log().entries.iter().find_map(|entry| match entry {
            DeliveryLogEntry::Delivered { worker, at_ms, shard: of, .. } => {
                (of == shard && worker != not && *at_ms >= after_ms).then_some(*at_ms)
            }
            DeliveryLogEntry::Evicted { .. } => None,
        })
    }
}
