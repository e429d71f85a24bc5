//! A durable engine: its state is read from a folder, and its changes are kept there.
//!
//! ```text
//! open:        files ─→ ReplayedEntry ─→ replay_change, ShardLog   (the code that ran originally)
//! run:         Change, JournalAppend ─→ JournalFiles ─→ visible    (under the lock that shows it)
//! maintenance: file full ─→ MetadataSnapshot ─→ next file ─→ drop or compact old files
//! ```

use super::entry::{self, JournalEntry, PutEntry};
use super::error::OpenError;
use super::journal::{EntryLocation, FirstFile, JournalFiles, JournalOptions};
use super::maintenance::{MaintenanceTask, Usage};
use super::metadata_snapshot::MetadataSnapshot;
use super::replay::{CutTail, ReplayedContent};
use crate::change::Change;
use crate::clock::Clock;
use crate::engine::Engine;
use crate::journal::JournalAppend;
use crate::lock;
use crate::options::EngineOptions;
use crate::shard_log::ENDING_COUNTER;
use crate::stream::Stream;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Number of counters that open shards skip at each opening. A power cut may have lost records that
/// readers have seen, and their sequence numbers must not be reused. This is more than a shard can
/// accept between two syncs.
const COUNTER_JUMP: u64 = 1_000_000;
/// Interval between checks for files that are no longer needed because of elapsed time, in
/// milliseconds.
const HOUSE_EVERY_MS: u64 = 60_000;

/// An engine restored from its folder.
#[derive(Debug)]
pub struct RecoveredEngine {
    /// The engine, in its previous state.
    pub engine: Engine,
    /// The half-written end that a crash left in the journal, which was cut off.
    pub cut: Option<CutTail>,
    /// Number of records read back.
    pub records: u64,
}

impl Engine {
    /// Opens an engine that keeps everything in `folder`, and restores the state found there.
    pub fn open(
        options: EngineOptions,
        clock: Clock,
        folder: &Path,
        keeping: JournalOptions,
    ) -> Result<RecoveredEngine, OpenError> {
        let now_ms = clock.now_ms();
        let engine = Self::new(options, clock);
        let mut recovery = Recovery::new(&engine);
        let first = FirstFile {
            salt: crc32fast::hash(
                &[now_ms.to_le_bytes(), u64::from(std::process::id()).to_le_bytes()].concat(),
            ),
            snapshot: &MetadataSnapshot { next_stream_id: 1, ..MetadataSnapshot::default() }
                .to_bytes(),
        };
        let opened = JournalFiles::open(folder, keeping, first, &mut |entry| {
            recovery.take(entry.file, entry.content)
        })?;
        // The machine's clock may have been set back since.
        engine.clock().not_before(recovery.latest_ms);
        recovery.finish(engine.clock().now_ms());
        let (records, usage) = (recovery.records, recovery.usage);
        let store = DurableStore {
            worth: keeping.file_bytes / 2,
            full: AtomicBool::new(opened.journal.is_full()),
            journal: opened.journal,
            usage: Mutex::new(usage),
            house: Mutex::new(()),
            house_at_ms: AtomicU64::new(0),
            trouble: keeping.trouble,
            troubled: AtomicBool::new(false),
        };
        crate::journal::Journal::run_maintenance(&store, &engine);
        engine.set_journal(Arc::new(store));
        Ok(RecoveredEngine { engine, cut: opened.cut, records })
    }
}

/// The state built up by a replay.
struct Recovery<'a> {
    engine: &'a Engine,
    /// The streams named by puts so far.
    streams: BTreeMap<u64, Arc<Stream>>,
    /// Counters from the first snapshot. They are applied last, because older puts may follow it.
    counters: BTreeMap<u64, Vec<u64>>,
    usage: Usage,
    records: u64,
    /// Time of the latest event, in milliseconds since 1970.
    latest_ms: u64,
}

impl<'a> Recovery<'a> {
    fn new(engine: &'a Engine) -> Self {
        Self {
            engine,
            streams: BTreeMap::new(),
            counters: BTreeMap::new(),
            usage: Usage::default(),
            records: 0,
            latest_ms: 0,
        }
    }

    fn take(&mut self, file: u64, content: ReplayedContent<'_>) -> Result<(), String> {
        match content {
            ReplayedContent::Start(bytes) => {
                let image = MetadataSnapshot::from_bytes(bytes)?;
                image.changes.iter().for_each(|change| self.engine.replay_change(change));
                self.engine.skip_stream_ids(image.next_stream_id);
                self.counters = image.counters;
            }
            // The entries before it led to the same state.
            ReplayedContent::Snapshot(_) => {}
            ReplayedContent::Appended(bytes) => match entry::read(bytes)? {
                JournalEntry::Change(change) => {
                    self.usage.count_change(file, bytes.len() as u64);
                    self.latest_ms = self.latest_ms.max(change.at_ms);
                    self.engine.replay_change(&change);
                }
                JournalEntry::Put(put) => {
                    self.latest_ms = self.latest_ms.max(put.arrival_ms);
                    self.usage.count(file, put.stream_id, bytes.len() as u64, put.arrival_ms);
                    self.store(put)?;
                }
            },
        }
        Ok(())
    }

    fn store(&mut self, put: PutEntry<'_>) -> Result<(), String> {
        if !self.streams.contains_key(&put.stream_id) {
            // A put may race with the end of its stream. Its records are unreadable then.
            let Some(stream) = self.engine.find_by_id(put.stream_id) else { return Ok(()) };
            self.streams.insert(put.stream_id, stream);
        }
        let topology = self.streams[&put.stream_id].read();
        let state = topology.shards.get(put.shard as usize).ok_or("its shard does not exist")?;
        if put.end_counter().is_none_or(|end| end > ENDING_COUNTER) {
            return Err("its records have invalid sequence numbers".to_owned());
        }
        let mut inside = state.shard.lock();
        inside.log.skip_to(put.first_counter);
        let mut records = 0;
        put.for_each(|record| {
            inside.log.append(record, put.arrival_ms);
            records += 1;
        })?;
        self.records += records;
        Ok(())
    }

    /// Raises all counters so that no number is assigned twice, and drops records past retention.
    fn finish(&mut self, now_ms: u64) {
        self.engine.with_frozen(|_, streams| {
            for (stream, topology) in streams {
                let known = self.counters.get(&stream.id).map_or(&[][..], Vec::as_slice);
                let horizon_ms = topology.horizon_ms(now_ms);
                for (at, state) in topology.shards.iter().enumerate() {
                    let mut inside = state.shard.lock();
                    inside.log.skip_to(known.get(at).copied().unwrap_or_default());
                    if state.is_open() {
                        let next = inside.log.next_counter();
                        inside.log.skip_to(next + COUNTER_JUMP);
                    }
                    inside.log.trim(horizon_ms);
                }
            }
        });
    }
}

/// The journal of an engine, and its maintenance.
struct DurableStore {
    journal: JournalFiles,
    /// Number of unneeded bytes that justify rewriting old files.
    worth: u64,
    /// The content of the files, by stream.
    usage: Mutex<Usage>,
    /// True if the newest file is full.
    full: AtomicBool,
    /// Held during maintenance.
    house: Mutex<()>,
    /// Time of the next maintenance, in milliseconds since 1970.
    house_at_ms: AtomicU64,
    /// Called with the reason when nothing can be written.
    trouble: fn(&str),
    /// True if `trouble` was called and nothing has been written since.
    troubled: AtomicBool,
}

impl crate::journal::Journal for DurableStore {
    fn change(&self, change: &Change) -> io::Result<()> {
        let place = self.write(|out| entry::write_change(out, change))?;
        lock::lock(&self.usage).count_change(place.file, place.bytes);
        Ok(())
    }

    fn append(&self, append: &JournalAppend<'_>) -> io::Result<()> {
        let place = self.write(|out| entry::write_put(out, append))?;
        let mut usage = lock::lock(&self.usage);
        usage.count(place.file, append.stream_id, place.bytes, append.arrival_ms);
        Ok(())
    }

    fn durable(&self) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + '_>> {
        Box::pin(async {
            let durable = self.journal.durable(self.journal.last()).await;
            durable.map_err(|problem| self.report(io::Error::other(problem)))
        })
    }

    fn run_maintenance(&self, engine: &Engine) {
        let now_ms = engine.clock().now_ms();
        let full = self.full.load(Ordering::Relaxed);
        if !full && now_ms < self.house_at_ms.load(Ordering::Relaxed) {
            return;
        }
        // Another thread is running maintenance.
        let Ok(_house) = self.house.try_lock() else { return };
        self.house_at_ms.store(now_ms + HOUSE_EVERY_MS, Ordering::Relaxed);
        if full {
            self.full.store(false, Ordering::Relaxed);
            self.begin_file(engine, now_ms);
        }
        self.compact_files(&engine.horizons(now_ms));
    }
}

impl DurableStore {
    fn write(&self, fill: impl FnOnce(&mut Vec<u8>)) -> io::Result<EntryLocation> {
        let place = self.journal.append(fill);
        let place = place.map_err(|problem| self.report(io::Error::other(problem)))?;
        if self.troubled.load(Ordering::Relaxed) {
            self.troubled.store(false, Ordering::Relaxed);
        }
        if place.full {
            self.full.store(true, Ordering::Relaxed);
        }
        Ok(place)
    }

    /// Reports a problem, unless one was reported since the last successful write.
    fn report(&self, problem: io::Error) -> io::Error {
        if !self.troubled.swap(true, Ordering::Relaxed) {
            (self.trouble)(&problem.to_string());
        }
        problem
    }

    fn begin_file(&self, engine: &Engine, now_ms: u64) {
        engine.with_frozen(|next_stream_id, streams| {
            let streams = streams.iter().map(|(stream, topology)| (*stream, &**topology));
            let image = MetadataSnapshot::of(next_stream_id, now_ms, streams);
            // After a failure the full file stays in use, and the journal asks again a little
            // later.
            let _ = self.journal.rotate(&image.to_bytes());
        });
    }

    /// Drops or compacts old files as long as that is due. `horizons` has the existing streams, and
    /// the time before which their records are past retention.
    fn compact_files(&self, horizons: &BTreeMap<u64, u64>) {
        loop {
            let files = self.journal.files();
            let chore = lock::lock(&self.usage).next_task(files, horizons, self.worth);
            // A task that fails on a full or failing disk is tried again at the next maintenance.
            let done = match chore {
                None => return,
                Some(MaintenanceTask::DropBelow(file)) => {
                    lock::lock(&self.usage).dropped_below(file);
                    self.journal.drop_below(file)
                }
                Some(MaintenanceTask::CompactBelow(file)) => self.compact_below(file, horizons),
            };
            if done.is_err() {
                return;
            }
        }
    }

    fn compact_below(
        &self,
        file: u64,
        horizons: &BTreeMap<u64, u64>,
    ) -> Result<(), super::error::AppendError> {
        // Changes are not kept, because the snapshot at the start of the new file contains them.
        let keep = |bytes: &[u8]| match entry::read(bytes) {
            Ok(JournalEntry::Put(put)) => {
                let horizon = horizons.get(&put.stream_id);
                horizon.is_some_and(|horizon| put.arrival_ms >= *horizon)
            }
            _ => false,
        };
        let mut kept = Usage::default();
        self.journal.compact_below(file, &keep, &mut |bytes| {
            if let Ok(JournalEntry::Put(put)) = entry::read(bytes) {
                kept.count(file - 1, put.stream_id, bytes.len() as u64, put.arrival_ms);
            }
        })?;
        lock::lock(&self.usage).replace_below(file, kept);
        Ok(())
    }
}
