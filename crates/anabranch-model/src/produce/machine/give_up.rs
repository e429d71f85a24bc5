//! Failed records: completing them, and stopping their keys.

use super::Machine;
use super::action::{Action, MachineNotice};
use super::judge::unpack;
use crate::hash::HashKey;
use crate::produce::carried_records::CarriedRecords;
use crate::produce::outcome::{OutcomeKind, RejectReason};
use crate::produce::pending::PendingRecord;
use crate::produce::seal::SealedRecord;
use crate::produce::settings::{KeyOrder, OnFailure};
use crate::produce::stopped_keys::StopKeyResult;

impl<T> Machine<T> {
    /// Fails the user records of a Kinesis record that is not in flight.
    pub(super) fn give_up(&mut self, frozen: SealedRecord<T>, why: &RejectReason) {
        let records = unpack(frozen);
        self.fail(records, why);
    }

    /// Fails accepted records. In strict order with `OnFailure::StopKey`, stops the key of each.
    pub(super) fn fail(&mut self, records: Vec<PendingRecord<T>>, why: &RejectReason) {
        let stops = self.settings.order == KeyOrder::Strict
            && self.settings.on_failure == OnFailure::StopKey;
        let holes: Vec<_> = if stops {
            records.iter().map(|record| (record.key_id(), record.number, record.put.hash)).collect()
        } else {
            Vec::new()
        };
        self.refuse(records, why);
        let mut full = false;
        let mut hashes = Vec::new();
        for (key, hole, hash) in holes {
            hashes.push(hash);
            match self.stopped.stop(&key, hole, self.next_number) {
                StopKeyResult::Stopped => {
                    self.actions.push_back(Action::Notice(MachineNotice::KeyStopped { key }));
                }
                StopKeyResult::Already => {}
                StopKeyResult::Full => full = true,
            }
        }
        if full {
            self.stop_producer();
        } else {
            self.sweep(hashes);
        }
    }

    /// Rejects the queued records of stopped keys.
    fn sweep(&mut self, mut hashes: Vec<HashKey>) {
        let mut lanes: Vec<usize> =
            hashes.drain(..).filter_map(|hash| self.find_lane(hash)).collect();
        lanes.sort_unstable();
        lanes.dedup();
        for at in lanes {
            let stopped = &self.stopped;
            let Some(lane) = self.lanes[at].as_mut() else { continue };
            let refused = |record: &PendingRecord<T>| {
                stopped.refusal(&record.key_id(), record.number).is_some()
            };
            let out = lane.sweep(refused, &mut self.pages);
            self.refuse(out, &RejectReason::KeyStopped);
        }
    }

    /// Returns the queue of a hash, if it has one.
    fn find_lane(&self, hash: HashKey) -> Option<usize> {
        match self.router.shard_lane(hash) {
            Some(shard) => self.shard_lanes.get(shard).copied().flatten(),
            None => self.hash_lanes.get(&hash.0).copied(),
        }
    }

    /// Stops the producer because too many keys are stopped. Kinesis records in flight still get
    /// their reply.
    fn stop_producer(&mut self) {
        self.actions.push_back(Action::Notice(MachineNotice::ProducerStopped));
        for records in self.take_waiting() {
            self.refuse(records, &RejectReason::ProducerStopped);
        }
    }

    /// Takes every record that is not in flight.
    fn take_waiting(&mut self) -> Vec<Vec<PendingRecord<T>>> {
        let mut taken = Vec::new();
        for lane in self.lanes.iter_mut().flatten() {
            taken.push(lane.sealed.drain(..).flat_map(unpack).collect());
            taken.push(lane.drain(&mut self.pages).into());
        }
        taken
    }

    /// Completes records as rejected, or as unknown if they may have landed.
    pub(super) fn refuse(&mut self, records: Vec<PendingRecord<T>>, why: &RejectReason) {
        let (landed, not): (Vec<_>, Vec<_>) = records.into_iter().partition(|r| r.maybe_landed);
        self.complete(CarriedRecords::Unpacked(not), OutcomeKind::Rejected(why.clone()));
        self.complete(CarriedRecords::Unpacked(landed), OutcomeKind::Unknown);
    }

    /// Completes every record: as unknown if it may have landed, else as rejected. Later replies
    /// are dropped.
    pub fn abandon(&mut self) {
        self.requests.clear();
        self.unjudged.clear();
        self.orphans.clear();
        for (_, mut flight) in std::mem::take(&mut self.flights) {
            flight.record.maybe_landed = true;
            self.refuse(unpack(flight.record), &RejectReason::Closed);
        }
        for records in self.take_waiting() {
            for (why, records) in self.by_cause(records, &RejectReason::Closed) {
                self.refuse(records, &why);
            }
        }
    }

    /// Groups records by reject reason: the refusal of the caller where their hash is paused, else
    /// `otherwise`.
    pub(super) fn by_cause(
        &self,
        records: Vec<PendingRecord<T>>,
        otherwise: &RejectReason,
    ) -> Vec<(RejectReason, Vec<PendingRecord<T>>)> {
        if self.pauses.is_empty() {
            return vec![(otherwise.clone(), records)];
        }
        let mut sorted: Vec<(RejectReason, Vec<PendingRecord<T>>)> = Vec::new();
        for record in records {
            let why = self.pauses.cause(record.put.hash).unwrap_or_else(|| otherwise.clone());
            match sorted.iter_mut().find(|(other, _)| *other == why) {
                Some((_, records)) => records.push(record),
                None => sorted.push((why, vec![record])),
            }
        }
        sorted
    }
}
