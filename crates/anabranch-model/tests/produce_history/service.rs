//! A minimal stream: shards that split, merge, and are recreated.

use anabranch_model::aggregate::decode::{DecodedAggregate, decode};
use anabranch_model::hash::{HashKey, HashRange};
use anabranch_model::ids::ShardId;
use anabranch_model::lineage::Shard;
use anabranch_model::produce::RequestEntry;
use anabranch_model::record::Record;
use anabranch_model::sequence::SequenceNumber;
use std::collections::BTreeSet;

/// One shard and all its records.
pub(crate) struct TinyShard {
    pub(crate) id: ShardId,
    pub(crate) range: HashRange,
    pub(crate) open: bool,
    pub(crate) log: Vec<Record>,
}

/// A stream, and the streams of the same name that were deleted before it.
pub(crate) struct Service {
    /// Shards of each stream, by index. The last stream exists now if `there` is true.
    pub(crate) streams: Vec<Vec<TinyShard>>,
    pub(crate) there: bool,
    next_sequence: u64,
}

impl Service {
    pub(crate) fn new(shards: u32) -> Self {
        let mut service = Self { streams: Vec::new(), there: false, next_sequence: 1 };
        service.create(shards);
        service
    }

    pub(crate) fn create(&mut self, shards: u32) {
        self.there = true;
        self.streams.push(Vec::new());
        let size = u128::MAX / u128::from(shards);
        for at in 0..shards {
            let start = u128::from(at) * size + u128::from(at > 0);
            let end = if at + 1 == shards { u128::MAX } else { u128::from(at + 1) * size };
            self.open(HashRange::new(HashKey(start), HashKey(end)).unwrap());
        }
    }

    fn now(&mut self) -> &mut Vec<TinyShard> {
        self.streams.last_mut().unwrap()
    }

    fn open(&mut self, range: HashRange) {
        let shards = self.now();
        let id = ShardId::from_index(u32::try_from(shards.len()).unwrap());
        shards.push(TinyShard { id, range, open: true, log: Vec::new() });
    }

    /// Splits the open shard selected by `choice`, in its middle.
    pub(crate) fn split(&mut self, choice: usize) {
        let open: Vec<usize> = self.open_places();
        let at = open[choice % open.len()];
        let range = self.now()[at].range;
        let middle = HashKey(range.start().0 + (range.end().0 - range.start().0) / 2 + 1);
        let Some((low, high)) = range.split_at(middle) else { return };
        self.now()[at].open = false;
        self.open(low);
        self.open(high);
    }

    /// Merges the open shard selected by `choice` with its upper neighbour.
    pub(crate) fn merge(&mut self, choice: usize) {
        let mut open = self.open_places();
        open.sort_by_key(|at| self.streams.last().unwrap()[*at].range);
        if open.len() < 2 {
            return;
        }
        let low = choice % (open.len() - 1);
        let (low, high) = (open[low], open[low + 1]);
        let above = self.now()[high].range;
        let range = self.now()[low].range.join(&above).unwrap();
        self.now()[low].open = false;
        self.now()[high].open = false;
        self.open(range);
    }

    pub(crate) fn open_places(&self) -> Vec<usize> {
        let shards = self.streams.last().unwrap();
        (0..shards.len()).filter(|at| shards[*at].open).collect()
    }

    pub(crate) fn list(&self, full: bool) -> Vec<Shard> {
        let shards = self.streams.last().unwrap();
        shards
            .iter()
            .filter(|shard| full || shard.open)
            .map(|shard| Shard {
                id: shard.id.clone(),
                parent: None,
                adjacent_parent: None,
                range: shard.range,
                starting: SequenceNumber::ZERO,
                ending: (!shard.open).then_some(SequenceNumber::ZERO),
            })
            .collect()
    }

    /// Stores an entry in the open shard that takes it.
    pub(crate) fn store(&mut self, entry: &RequestEntry) -> (ShardId, SequenceNumber) {
        let hash = HashKey::effective(entry.key.as_str(), entry.hash);
        let sequence = SequenceNumber::from_limbs(0, 0, self.next_sequence).unwrap();
        self.next_sequence += 1;
        let shard =
            self.now().iter_mut().find(|shard| shard.open && shard.range.contains(hash)).unwrap();
        shard.log.push(Record {
            sequence,
            partition_key: entry.key.clone(),
            data: entry.data.clone(),
            arrival_ms: 0,
        });
        (shard.id.clone(), sequence)
    }
}

/// Returns the distinct hashes of the records in an entry.
pub(crate) fn distinct_hashes(entry: &RequestEntry) -> BTreeSet<u128> {
    let record = Record {
        sequence: SequenceNumber::ZERO,
        partition_key: entry.key.clone(),
        data: entry.data.clone(),
        arrival_ms: 0,
    };
    match decode(&record, HashRange::ALL) {
        DecodedAggregate::Records(records) => records.map(|record| record.hash_key().0).collect(),
        _ => BTreeSet::from([HashKey::effective(entry.key.as_str(), entry.hash).0]),
    }
}
