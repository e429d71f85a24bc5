//! A stream that is resharded at random, and the simulated records that readers count in its
//! shards.
//!
//! A record is a number: the first of a shard is 1. An open shard has as many as are read from it;
//! a closed shard ends with the number drawn when it was closed.

use crate::faults::store::at_once;
use anabranch::stream::LocalKinesis;
use anabranch::stream::api::{ReadFrom, ShardFilter, ShardIterator, StreamApi};
use anabranch_local::op::{StreamTarget, create_stream, merge_shards, split_shard};
use anabranch_local::{Clock, Engine, EngineOptions};
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lineage::Shard;
use anabranch_model::position::Position;
use anabranch_model::record::{Record, UserRecord};
use anabranch_model::sequence::SequenceNumber;
use fastrand::Rng;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Name of the stream.
pub const STREAM: &str = "river";

/// Name of the second stream of a fleet that has two. Its shards have the same names.
pub const OTHER_STREAM: &str = "brook";

/// Name of the dead-letter stream.
pub const DEAD_LETTERS: &str = "dead-letters";

/// Start of the stream's clock and of the world, in milliseconds since 1970.
pub const EPOCH_MS: u64 = 1_700_000_000_000;

/// Maximum number of records that a shard may still have when it is closed.
const TAIL_MAX: u64 = 30;

/// A stream that is resharded, and its simulated records. Clones share it.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The stream itself.
    api: LocalKinesis,
    /// State of each shard's records.
    shards: Arc<Mutex<BTreeMap<ShardId, PretendRecords>>>,
}

/// The records of one shard.
#[derive(Clone, Copy, Debug, Default)]
struct PretendRecords {
    /// Highest number that was delivered.
    delivered: u64,
    /// Last number, once the shard is closed.
    last: Option<u64>,
}

/// One reshard of the stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReshardChange {
    /// This shard was split.
    Split(ShardId),
    /// These two were merged.
    Merge(ShardId, ShardId),
}

impl Workload {
    /// Creates a stream with this many shards.
    pub fn new(shards: u32) -> Self {
        let engine = Arc::new(Engine::new(EngineOptions::instant(), Clock::manual(EPOCH_MS)));
        let workload = Self { api: LocalKinesis::new(engine), shards: Arc::default() };
        for (name, shards) in [(STREAM, shards), (DEAD_LETTERS, 1)] {
            workload.add_stream(name, shards);
        }
        workload
    }

    /// Adds a stream with this many shards.
    pub fn add_stream(&self, name: &str, shards: u32) {
        let request = create_stream::Request {
            stream_name: Some(name.to_owned()),
            shard_count: Some(shards.into()),
            ..Default::default()
        };
        let created = self.api.engine().create_stream(&request);
        debug_assert_eq!(created, Ok(()), "the name is new, and the request is right");
    }

    /// Returns the stream.
    pub fn api(&self) -> &LocalKinesis {
        &self.api
    }

    /// Returns the service's time, in milliseconds since 1970.
    pub fn now_ms(&self) -> u64 {
        self.api.engine().clock().now_ms()
    }

    /// Returns the dead letters behind this sequence number.
    pub fn dead_letters(&self, behind: Option<SequenceNumber>) -> Vec<UserRecord> {
        let (stream, shard) = (StreamName::from(DEAD_LETTERS), ShardId::from_index(0));
        let at = behind.map_or(ReadFrom::TrimHorizon, ReadFrom::After);
        let iterator = at_once(self.api.iterator(&stream, &shard, at));
        let read = |at: &ShardIterator| at_once(self.api.records(&stream, at, 10_000)).ok();
        let mut next = iterator.ok();
        let mut letters = Vec::new();
        while let Some(fetched) = next.as_ref().and_then(read) {
            if fetched.records.is_empty() {
                break;
            }
            letters.extend(fetched.records.into_iter().map(plain));
            next = fetched.next;
        }
        letters
    }

    /// Advances the service's time.
    pub fn advance(&self, by_ms: u64) {
        self.api.engine().clock().advance(by_ms);
    }

    /// Returns the number of a shard's last record, once it is closed.
    pub fn last_record(&self, shard: &ShardId) -> Option<u64> {
        self.shards().get(shard).and_then(|records| records.last)
    }

    /// Returns true if a shard has records that were never delivered, or may still get some.
    pub fn has_more(&self, shard: &ShardId) -> bool {
        let records = self.shards().get(shard).copied().unwrap_or_default();
        records.last.is_none_or(|last| records.delivered < last)
    }

    /// Marks a record as delivered.
    pub fn delivered(&self, shard: &ShardId, number: u64) {
        let mut shards = self.shards();
        let records = shards.entry(shard.clone()).or_default();
        records.delivered = records.delivered.max(number);
    }

    /// Splits a random shard, or merges two adjacent ones.
    pub fn reshard(&self, rng: &mut Rng) -> Option<ReshardChange> {
        let stream = StreamName::from(STREAM);
        let open: Vec<Shard> = self.listed(&stream).into_iter().filter(Shard::is_open).collect();
        let shard = rng.choice(&open)?;
        let after = open.iter().find(|other| shard.range.is_followed_by(&other.range));
        let change = match after {
            Some(neighbour) if rng.bool() => self.merge(&stream, shard, neighbour)?,
            _ => self.split(&stream, shard)?,
        };
        let closed = match &change {
            ReshardChange::Split(shard) => vec![shard],
            ReshardChange::Merge(one, other) => vec![one, other],
        };
        let mut shards = self.shards();
        for shard in closed {
            let records = shards.entry(shard.clone()).or_default();
            records.last = Some(records.delivered + rng.u64(0..=TAIL_MAX));
        }
        Some(change)
    }

    pub(crate) fn split(&self, stream: &StreamName, shard: &Shard) -> Option<ReshardChange> {
        let (start, end) = (shard.range.start().0, shard.range.end().0);
        let request = split_shard::Request {
            stream: StreamTarget::named(stream.as_str()),
            shard_to_split: Some(shard.id.to_string()),
            new_starting_hash_key: Some((start + (end - start) / 2 + 1).to_string()),
        };
        self.api.engine().split_shard(&request).ok()?;
        Some(ReshardChange::Split(shard.id.clone()))
    }

    pub(crate) fn merge(
        &self,
        stream: &StreamName,
        shard: &Shard,
        neighbour: &Shard,
    ) -> Option<ReshardChange> {
        let request = merge_shards::Request {
            stream: StreamTarget::named(stream.as_str()),
            shard_to_merge: Some(shard.id.to_string()),
            adjacent_shard_to_merge: Some(neighbour.id.to_string()),
        };
        self.api.engine().merge_shards(&request).ok()?;
        Some(ReshardChange::Merge(shard.id.clone(), neighbour.id.clone()))
    }

    pub(crate) fn listed(&self, stream: &StreamName) -> Vec<Shard> {
        let list = at_once(self.api.list_shards(stream, ShardFilter::All));
        list.map(|list| list.shards).unwrap_or_default()
    }

    fn shards(&self) -> MutexGuard<'_, BTreeMap<ShardId, PretendRecords>> {
        // Each change is one assignment, so a panic leaves no partial change.
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Converts a record that is not an aggregate.
fn plain(record: Record) -> UserRecord {
    UserRecord {
        sequence: record.sequence,
        sub: 0,
        aggregated: false,
        partition_key: record.partition_key,
        explicit_hash_key: None,
        data: record.data,
        arrival_ms: record.arrival_ms,
    }
}

/// Returns the checkpoint behind a simulated record; `TrimHorizon` for 0.
pub fn position(number: u64) -> Position {
    match SequenceNumber::from_limbs(0, 0, number) {
        Some(sequence) if number > 0 => Position::At { sequence, sub: 0 },
        _ => Position::TrimHorizon,
    }
}

/// Returns the simulated record that a checkpoint is behind; 0 before the first.
pub fn number(position: Position) -> u64 {
    match position {
        Position::At { sequence, .. } => sequence.limbs()[2],
        _ => 0,
    }
}
