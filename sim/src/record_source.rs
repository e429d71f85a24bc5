//! Keyed records for one or two streams: their positions, their order and which of them are done.

use crate::faults::store::at_once;
use crate::history::{History, HistoryEvent};
use crate::workload::{OTHER_STREAM, ReshardChange, STREAM, Workload};
use anabranch::consumer::DeadLetter;
use anabranch::stream::api::{Placement, PutEntry, StreamApi};
use anabranch_model::aggregate::encode::{self, AggregateBuilder};
use anabranch_model::hash::HashKey;
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::{Checkpoint, Lease, LeaseKey};
use anabranch_model::lineage::Shard;
use anabranch_model::position::Position;
use anabranch_model::record::{Record, UserRecord};
use anabranch_model::sequence::SequenceNumber;
use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Longer than the retention of the stream, in milliseconds.
const PAST_RETENTION_MS: u64 = 25 * 3_600_000;

/// Maximum size of a Kinesis record that is put, in bytes.
pub const CONTAINER_MAX_BYTES: usize = 1_000_000;

/// Maximum number of shards after all shards were split.
const OPEN_MAX: usize = 16;

/// A user record that was put.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SimRecord {
    /// Partition key.
    pub key: Arc<str>,
    /// Number among the records of its key, starting at 1.
    pub number: u64,
    /// Stream and shard that took it.
    pub shard: LeaseKey,
    /// Position in the shard.
    pub at: Position,
    /// Size in bytes.
    pub bytes: usize,
    /// Arrival time, in milliseconds since 1970.
    pub arrived_ms: u64,
}

impl SimRecord {
    /// Returns true if the record is covered by a checkpoint.
    pub fn is_behind(&self, checkpoint: &Checkpoint) -> bool {
        let lanes = checkpoint.lanes();
        let HashKey(place) = HashKey::of_partition_key(&self.key);
        let lane = usize::try_from(place % lanes.len() as u128).unwrap_or(0);
        self.at <= lanes[lane]
    }
}

impl fmt::Display for SimRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.key, self.number)
    }
}

/// Parameters of the generated records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordMix {
    /// True for two streams whose shards and keys have the same names.
    pub two_streams: bool,
    /// Initial number of shards of each stream.
    pub shards: u32,
    /// Number of keys of each stream. Every third key has an explicit hash key.
    pub keys: usize,
    /// Maximum size of a record, in bytes.
    pub bytes_max: usize,
}

/// Identifies a record. A sequence number determines its shard, but not its stream.
type SourcePlace = (StreamName, SequenceNumber, u64);

/// One or two streams with their producer, and the state of every record. Clones share it.
#[derive(Clone)]
pub struct RecordSource {
    /// The streams.
    workload: Workload,
    /// Their names.
    streams: Vec<StreamName>,
    /// Receives puts and reshards.
    history: History,
    /// Maximum size of a record, in bytes.
    bytes_max: usize,
    /// All records.
    inside: Arc<Mutex<RecordSourceState>>,
}

struct RecordSourceState {
    /// The keys.
    keys: Vec<KeyCount>,
    /// Every record by its place.
    grains: BTreeMap<SourcePlace, Arc<SimRecord>>,
    /// Records that are neither done, nor past retention, nor before the start.
    open: BTreeSet<SourcePlace>,
    /// Records that precede the start of the application and need not be delivered.
    skipped: BTreeSet<SourcePlace>,
    /// Shards that were read.
    begun: BTreeSet<LeaseKey>,
    /// Records that were found among the dead letters.
    buried: BTreeSet<SourcePlace>,
    /// Position up to which the dead letters were read.
    looked: Option<SequenceNumber>,
    /// Number of records that were not done when retention removed them.
    trimmed: u64,
}

/// A key and the number of its records.
struct KeyCount {
    stream: StreamName,
    name: Arc<str>,
    hash: Option<HashKey>,
    puts: u64,
}

impl KeyCount {
    fn place(&self) -> HashKey {
        HashKey::effective(&self.name, self.hash)
    }

    fn belongs_to(&self, shard: &OpenShard) -> bool {
        self.stream == shard.stream && shard.range.contains(self.place())
    }
}

/// A shard that takes records, and its stream.
#[derive(Clone, Debug)]
pub struct OpenShard {
    /// Stream of the shard.
    pub stream: StreamName,
    shard: Shard,
}

impl Deref for OpenShard {
    type Target = Shard;

    fn deref(&self) -> &Shard {
        &self.shard
    }
}

impl RecordSource {
    /// Creates streams without records.
    pub fn new(mix: &RecordMix, history: History, rng: &mut Rng) -> Self {
        let workload = Workload::new(mix.shards);
        let mut streams = vec![StreamName::from(STREAM)];
        if mix.two_streams {
            workload.add_stream(OTHER_STREAM, mix.shards);
            streams.push(OTHER_STREAM.into());
        }
        let keys = streams.iter().flat_map(|stream| (0..mix.keys).map(move |at| (stream, at)));
        let key = |(stream, at): (&StreamName, usize)| KeyCount {
            stream: stream.clone(),
            name: format!("key-{at}").into(),
            hash: (at % 3 == 2).then(|| HashKey(rng.u128(..))),
            puts: 0,
        };
        let inside = RecordSourceState {
            keys: keys.map(key).collect(),
            grains: BTreeMap::new(),
            open: BTreeSet::new(),
            skipped: BTreeSet::new(),
            begun: BTreeSet::new(),
            buried: BTreeSet::new(),
            looked: None,
            trimmed: 0,
        };
        Self {
            workload,
            streams,
            history,
            bytes_max: mix.bytes_max,
            inside: Arc::new(Mutex::new(inside)),
        }
    }

    /// Returns the names of the streams.
    pub fn streams(&self) -> &[StreamName] {
        &self.streams
    }

    /// Returns the streams.
    pub fn workload(&self) -> &Workload {
        &self.workload
    }

    /// Puts the next record of every key, each in its own Kinesis record.
    pub fn put_round(&self, rng: &mut Rng) {
        let keys = self.inside().keys.len();
        for key in 0..keys {
            self.put(&[key], rng);
        }
    }

    /// Puts a record, or an aggregate of records of one shard.
    pub fn put_any(&self, rng: &mut Rng) {
        let count = self.inside().keys.len();
        let first = rng.usize(0..count);
        let mut keys = vec![first];
        if rng.bool() {
            let shards = self.open_shards();
            let here = |shard: &&OpenShard| self.inside().keys[first].belongs_to(shard);
            let near = shards.iter().find(here).map_or(Vec::new(), |shard| self.keys_of(shard));
            keys.extend((0..rng.usize(1..6)).filter_map(|_| rng.choice(&near)));
        }
        self.put(&keys, rng);
    }

    /// Puts `count` records into the `at`-th open shard, if any key belongs there.
    pub fn put_into(&self, at: usize, count: usize, rng: &mut Rng) {
        let near = self.open_shards().get(at).map_or(Vec::new(), |shard| self.keys_of(shard));
        for _ in 0..count {
            if let Some(key) = rng.choice(&near) {
                self.put(&[*key], rng);
            }
        }
    }

    fn keys_of(&self, shard: &OpenShard) -> Vec<usize> {
        let inside = self.inside();
        let keys = inside.keys.iter().enumerate();
        keys.filter(|(_, key)| key.belongs_to(shard)).map(|(at, _)| at).collect()
    }

    /// Puts the next records of these keys as one Kinesis record.
    fn put(&self, keys: &[usize], rng: &mut Rng) {
        let mut inside = self.inside();
        let stream = inside.keys[keys[0]].stream.clone();
        let mut builder = AggregateBuilder::new();
        let mut parts = Vec::new();
        for key in keys {
            let key = &mut inside.keys[*key];
            let (name, number) = (Arc::clone(&key.name), key.puts + 1);
            let text = text(&stream, &name, number);
            let bytes = rng.usize(0..=self.bytes_max).max(text.len());
            // Filled at once: without optimisation, resizing a vector costs a step for each byte.
            let mut data = vec![b'.'; bytes];
            data[..text.len()].copy_from_slice(text.as_bytes());
            let entry = encode::AggregateRecord {
                partition_key: &name,
                explicit_hash_key: key.hash,
                data: &data,
            };
            if builder.add_within(&entry, CONTAINER_MAX_BYTES) != encode::PushResult::Added {
                break;
            }
            key.puts = number;
            parts.push((name, number, bytes));
        }
        let container = builder.close().expect("the first record always fits").seal();
        let entry = PutEntry {
            key: container.partition_key,
            hash: container.explicit_hash_key,
            data: container.data,
        };
        let placed = at_once(self.workload.api().put_record(&stream, &entry, None));
        let Placement { shard, sequence } = placed.expect("the engine takes every record");
        let arrived_ms = self.workload.now_ms();
        for (sub, (key, number, bytes)) in (0..).zip(parts) {
            let at = Position::At { sequence, sub };
            let shard = LeaseKey { stream: stream.clone(), shard: shard.clone() };
            let grain = Arc::new(SimRecord { key, number, shard, at, bytes, arrived_ms });
            self.history.note_what(HistoryEvent::Put(Arc::clone(&grain)));
            inside.grains.insert((stream.clone(), sequence, sub), grain);
            inside.open.insert((stream.clone(), sequence, sub));
        }
    }

    /// Returns the delivered record, if it was put and is complete.
    pub fn find(&self, stream: &StreamName, record: &UserRecord) -> Option<Arc<SimRecord>> {
        let inside = self.inside();
        let grain = inside.grains.get(&(stream.clone(), record.sequence, record.sub))?;
        let whole = record.data.len() == grain.bytes
            && record.data.starts_with(text(stream, &grain.key, grain.number).as_bytes())
            && *record.partition_key.as_str() == *grain.key;
        whole.then(|| Arc::clone(grain))
    }

    /// Returns the user records of a record that arrived, each with whether it is open.
    pub fn parts(&self, stream: &StreamName, record: &Record) -> Vec<(Arc<SimRecord>, bool)> {
        let inside = self.inside();
        let place = |sub| (stream.clone(), record.sequence, sub);
        let parts = inside.grains.range(place(0)..=place(u64::MAX));
        parts.map(|(at, grain)| (Arc::clone(grain), inside.open.contains(at))).collect()
    }

    /// Marks a shard as read.
    pub fn begin(&self, shard: &LeaseKey) {
        self.inside().begun.insert(shard.clone());
    }

    /// Returns true if the shard was read.
    pub fn has_begun(&self, shard: &LeaseKey) -> bool {
        self.inside().begun.contains(shard)
    }

    /// Marks a record as done.
    pub fn done(&self, grain: &SimRecord) {
        if let Some(place) = place_of(grain) {
            self.inside().open.remove(&place);
        }
    }

    /// Marks the records for which `lies_before` holds as not required: they precede the start of
    /// the application.
    pub fn skip(&self, lies_before: impl Fn(&SimRecord) -> bool) {
        let mut inside = self.inside();
        let open = inside.open.iter().filter(|at| lies_before(&inside.grains[at]));
        for at in open.cloned().collect::<Vec<_>>() {
            inside.open.remove(&at);
            self.history.note_what(HistoryEvent::Skipped(Arc::clone(&inside.grains[&at])));
            inside.skipped.insert(at);
        }
    }

    /// Returns the user record at a position of a stream.
    pub fn at(&self, stream: &StreamName, at: Position) -> Option<Arc<SimRecord>> {
        let Position::At { sequence, sub } = at else { return None };
        self.inside().grains.get(&(stream.clone(), sequence, sub)).cloned()
    }

    /// Returns true if a record was dead-lettered completely.
    pub fn is_dead_letter(&self, grain: &SimRecord) -> bool {
        self.look_for_dead_letters();
        place_of(grain).is_some_and(|place| self.inside().buried.contains(&place))
    }

    fn look_for_dead_letters(&self) {
        let looked = self.inside().looked;
        for letter in self.workload.dead_letters(looked) {
            self.inside().looked = Some(letter.sequence);
            let parked = DeadLetter::of(&letter).ok();
            let grain = parked.and_then(|parked| self.find(&parked.shard.stream, &parked.record));
            self.inside().buried.extend(grain.and_then(|grain| place_of(&grain)));
        }
    }

    /// Returns the records that are neither done, nor past retention, nor before the start, oldest
    /// of each shard first.
    pub fn open(&self) -> Vec<Arc<SimRecord>> {
        let inside = self.inside();
        inside.open.iter().map(|at| Arc::clone(&inside.grains[at])).collect()
    }

    /// Returns the number of records that were put.
    pub fn puts(&self) -> u64 {
        self.inside().keys.iter().map(|key| key.puts).sum()
    }

    /// Returns the number of records that were not done when retention removed them.
    pub fn trimmed(&self) -> u64 {
        self.inside().trimmed
    }

    /// Returns a description of the first thing that these rows leave to do in the streams.
    pub fn remaining(&self, rows: &[Lease]) -> Option<String> {
        if let Some(grain) = self.open().first() {
            return Some(format!("{grain} of {} is not done", grain.shard));
        }
        let open = self.open_shards();
        for row in rows.iter().filter(|row| !row.is_ended()) {
            let shard = &row.key;
            if !open.iter().any(|open| open.stream == shard.stream && open.id == shard.shard) {
                return Some(format!("{shard} is closed, and its row does not say its end"));
            }
            let inside = self.inside();
            let mut of_shard = inside.grains.values().filter(|grain| grain.shard == *shard);
            let unsaid = |grain: &&Arc<SimRecord>| {
                let skipped = || place_of(grain).is_some_and(|at| inside.skipped.contains(&at));
                !grain.is_behind(&row.checkpoint) && !skipped()
            };
            if let Some(grain) = of_shard.find(unsaid) {
                return Some(format!("{grain} of {shard} is done, and the row does not say so"));
            }
        }
        None
    }

    /// Advances the service's time.
    pub fn advance(&self, by_ms: u64) {
        self.workload.advance(by_ms);
    }

    /// Lets retention pass for everything put so far. Returns how much time that takes, in
    /// milliseconds.
    pub fn trim(&self) -> u64 {
        self.look_for_dead_letters();
        self.workload.advance(PAST_RETENTION_MS);
        let mut inside = self.inside();
        inside.trimmed += inside.open.len() as u64;
        inside.open.clear();
        drop(inside);
        self.history.note_what(HistoryEvent::Trimmed);
        PAST_RETENTION_MS
    }

    /// Returns the open shards, stream by stream, in order of their hash ranges.
    pub fn open_shards(&self) -> Vec<OpenShard> {
        self.streams.iter().flat_map(|stream| self.open_shards_of(stream)).collect()
    }

    fn open_shards_of(&self, stream: &StreamName) -> Vec<OpenShard> {
        let shards = self.workload.listed(stream).into_iter().filter(Shard::is_open);
        let mut shards: Vec<OpenShard> =
            shards.map(|shard| OpenShard { stream: stream.clone(), shard }).collect();
        shards.sort_by_key(|shard| shard.range.start());
        shards
    }

    /// Splits a random shard, or merges two adjacent ones.
    pub fn reshard(&self, rng: &mut Rng) -> Option<ReshardChange> {
        let open = self.open_shards();
        let at = rng.usize(0..open.len());
        let next = open.get(at + 1).filter(|next| next.stream == open[at].stream);
        if next.is_some() && rng.bool() { self.merge(at) } else { self.split(at) }
    }

    /// Splits the `at`-th open shard in the middle.
    pub fn split(&self, at: usize) -> Option<ReshardChange> {
        self.split_one(self.open_shards().get(at)?)
    }

    /// Merges the `at`-th open shard with the next.
    pub fn merge(&self, at: usize) -> Option<ReshardChange> {
        let open = self.open_shards();
        self.merge_two(open.get(at)?, open.get(at + 1)?)
    }

    /// Splits every open shard, or merges every adjacent pair, like a change of a stream's shard
    /// count.
    pub fn reshard_all(&self, rng: &mut Rng) -> Vec<ReshardChange> {
        let mut changes = Vec::new();
        for stream in &self.streams {
            let open = self.open_shards_of(stream);
            if open.len() > OPEN_MAX / 2 || open.len() > 1 && rng.bool() {
                let pairs = open.chunks_exact(2);
                changes.extend(pairs.filter_map(|pair| self.merge_two(&pair[0], &pair[1])));
            } else {
                changes.extend(open.iter().filter_map(|shard| self.split_one(shard)));
            }
        }
        changes
    }

    fn split_one(&self, shard: &OpenShard) -> Option<ReshardChange> {
        let change = self.workload.split(&shard.stream, shard)?;
        self.changed(&shard.stream, &change);
        Some(change)
    }

    fn merge_two(&self, one: &OpenShard, other: &OpenShard) -> Option<ReshardChange> {
        let change = self.workload.merge(&one.stream, one, other)?;
        self.changed(&one.stream, &change);
        Some(change)
    }

    fn changed(&self, stream: &StreamName, change: &ReshardChange) {
        let closed = match change {
            ReshardChange::Split(shard) => vec![shard],
            ReshardChange::Merge(one, other) => vec![one, other],
        };
        let mut opened = self.open_shards_of(stream);
        opened.retain(|shard| shard.parents().any(|parent| closed.contains(&parent)));
        let key = |shard: &ShardId| LeaseKey { stream: stream.clone(), shard: shard.clone() };
        let closed = closed.into_iter().map(key).collect();
        let opened = opened.iter().map(|shard| key(&shard.id)).collect();
        self.history.note_what(HistoryEvent::Resharded { closed, opened });
    }

    fn inside(&self) -> MutexGuard<'_, RecordSourceState> {
        // A world in which something panicked has ended; its records are only read.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn place_of(grain: &SimRecord) -> Option<SourcePlace> {
    let Position::At { sequence, sub } = grain.at else { return None };
    Some((grain.shard.stream.clone(), sequence, sub))
}

fn text(stream: &StreamName, key: &str, number: u64) -> String {
    format!("{stream} {key} {number} ")
}
