//! Test fixture for the producer's state machine: its inputs and requested actions.

use anabranch_model::aggregate::decode::{DecodedAggregate, decode};
use anabranch_model::hash::{HashKey, HashRange};
use anabranch_model::ids::ShardId;
use anabranch_model::lineage::Shard;
use anabranch_model::produce::outcome::OutcomeKind;
use anabranch_model::produce::settings::ProducerSettings;
use anabranch_model::produce::{
    Action, EntryResult, Machine, MachineNotice, OfferedRecord, PutRequest, RecordContent,
    RequestEntry, ShardListRead,
};
use anabranch_model::record::Record;
use anabranch_model::retry::{Backoff, Fault};
use anabranch_model::sequence::SequenceNumber;

pub(crate) const LOW: HashKey = HashKey(1);
pub(crate) const HIGH: HashKey = HashKey(u128::MAX - 1);

/// The machine, and the actions that it has requested so far.
pub(crate) struct MachineFixture {
    pub(crate) machine: Machine<&'static str>,
    pub(crate) requests: Vec<PutRequest>,
    pub(crate) reads: Vec<ShardListRead>,
    pub(crate) notices: Vec<MachineNotice>,
    pub(crate) settled: Vec<(&'static str, OutcomeKind)>,
    pub(crate) now_ms: u64,
}

impl MachineFixture {
    pub(crate) fn new(change: impl FnOnce(&mut ProducerSettings)) -> Self {
        let mut settings = ProducerSettings {
            linger_ms: 0,
            backoff: Backoff::new(1, 1),
            refusal_backoff: Backoff::new(1, 1),
            ..ProducerSettings::default()
        };
        change(&mut settings);
        Self {
            machine: Machine::new(settings, 1, 0),
            requests: Vec::new(),
            reads: Vec::new(),
            notices: Vec::new(),
            settled: Vec::new(),
            now_ms: 0,
        }
    }

    /// Returns a fixture whose machine knows that one shard takes everything.
    pub(crate) fn with_map(change: impl FnOnce(&mut ProducerSettings)) -> Self {
        let mut bench = Self::new(change);
        bench.run(0);
        bench.list(&[HashRange::ALL]);
        bench
    }

    pub(crate) fn run(&mut self, by_ms: u64) {
        self.now_ms += by_ms;
        while let Some(action) = self.machine.poll(self.now_ms) {
            match action {
                Action::Send(request) => self.requests.push(request),
                Action::ListShards(read) => self.reads.push(read),
                Action::Notice(notice) => self.notices.push(notice),
                Action::Complete(mut settled) => {
                    let fate = settled.fate;
                    settled.records.drain(|ticket, _| self.settled.push((ticket, fate.clone())));
                }
            }
        }
    }

    pub(crate) fn put(&mut self, name: &'static str, hash: HashKey) {
        self.put_data(name, hash, name);
    }

    /// Puts a record with data of its own.
    pub(crate) fn put_data(
        &mut self,
        name: &'static str,
        hash: HashKey,
        data: impl Into<bytes::Bytes>,
    ) {
        let content = RecordContent::Shared { key: &name.into(), data: &data.into() };
        let offer = OfferedRecord { content, hash, is_explicit: true };
        self.machine.put_all(std::iter::once(name), |_| offer.hash, |_| offer, self.now_ms);
    }

    /// Answers the last list request with open shards of these ranges.
    pub(crate) fn list(&mut self, ranges: &[HashRange]) {
        let shards: Vec<_> = (0..).zip(ranges.iter().copied()).collect();
        self.list_shards(&shards);
    }

    /// Answers the last list request with open shards of these indices and ranges.
    pub(crate) fn list_shards(&mut self, shards: &[(u32, HashRange)]) {
        let shard = |(at, range): &(u32, HashRange)| Shard {
            id: ShardId::from_index(*at),
            parent: None,
            adjacent_parent: None,
            range: *range,
            starting: SequenceNumber::ZERO,
            ending: None,
        };
        let read = self.reads.pop().expect("a list was asked for");
        self.machine.shards(read, Ok(shards.iter().map(shard).collect()), self.now_ms);
        self.run(0);
    }

    /// Returns the requests since the last call, each with the records inside its entries.
    pub(crate) fn carried(&mut self) -> Vec<(u64, Vec<Vec<String>>)> {
        let requests = self.requests.drain(..);
        requests.map(|request| (request.id, request.entries.iter().map(users).collect())).collect()
    }

    /// Returns the requests since the last call, each with the data of its entries.
    pub(crate) fn sent(&mut self) -> Vec<(u64, Vec<String>)> {
        let text = |data: &[u8]| String::from_utf8_lossy(data).into_owned();
        let requests = self.requests.drain(..);
        let entries =
            |request: &PutRequest| request.entries.iter().map(|e| text(&e.data)).collect();
        requests.map(|request| (request.id, entries(&request))).collect()
    }

    pub(crate) fn place(&mut self, request: u64, shards: &[u32]) {
        let placed = |at: &u32| EntryResult::Placed {
            shard: ShardId::from_index(*at),
            sequence: SequenceNumber::ZERO,
        };
        self.machine.reply(request, Ok(shards.iter().map(placed).collect()), self.now_ms);
        self.run(0);
    }

    pub(crate) fn refuse(&mut self, request: u64, fault: Fault) {
        self.machine.reply(request, Err((fault, "refused".into())), self.now_ms);
        self.run(2);
    }

    pub(crate) fn fate(&self, name: &str) -> Option<&OutcomeKind> {
        self.settled.iter().find(|(settled, _)| *settled == name).map(|(_, fate)| fate)
    }

    pub(crate) fn is_placed(&self, name: &str) -> bool {
        matches!(self.fate(name), Some(OutcomeKind::Placed(_)))
    }
}

/// Converts an entry to a record of the stream.
pub(crate) fn carrier(entry: &RequestEntry) -> Record {
    Record {
        sequence: SequenceNumber::ZERO,
        partition_key: entry.key.clone(),
        data: entry.data.clone(),
        arrival_ms: 0,
    }
}

/// Returns the data of the records inside an entry.
fn users(entry: &RequestEntry) -> Vec<String> {
    let text = |data: &[u8]| String::from_utf8_lossy(data).into_owned();
    match decode(&carrier(entry), HashRange::ALL) {
        DecodedAggregate::Records(records) => records.map(|record| text(&record.data)).collect(),
        _ => vec![text(&entry.data)],
    }
}

pub(crate) fn halves() -> [HashRange; 2] {
    let (low, high) = HashRange::ALL.split_at(HashKey(1 << 127)).unwrap();
    [low, high]
}
