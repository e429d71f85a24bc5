//! Replies: each Kinesis record is accepted, sent again, rejected, or verified by a newer list.

use super::action::{EntryResult, InFlight, MachineNotice, PutReply};
use super::pause::ProbeResult;
use super::{Action, Machine};
use crate::hash::HashRange;
use crate::ids::ShardId;
use crate::produce::outcome::{self, Attempt, AttemptResult, OutcomeKind, Receipt, RejectReason};
use crate::produce::router::silence_limit_ms;
use crate::produce::seal::{InFlightRecord, InFlightState, SealedRecord};
use crate::retry::Fault;
use crate::sequence::SequenceNumber;
use std::sync::Arc;

/// Failure of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EntryFailure {
    pub(super) fault: Fault,
    pub(super) detail: Arc<str>,
}

/// Placement of a Kinesis record, by its reply.
struct RecordPlacement {
    shard: ShardId,
    sequence: SequenceNumber,
    /// True if the shard may belong to another stream of the same name.
    in_doubt: bool,
}

impl<T> Machine<T> {
    /// Handles the reply to a request. Drops a reply to a request that is not in flight.
    pub fn reply(&mut self, request: u64, reply: PutReply, now_ms: u64) {
        let Some(sent) = self.requests.remove(&request) else { return };
        if self.pauses.has_probe(request) {
            self.probed(request, &ProbeResult::by(&reply), now_ms);
        }
        match reply {
            Ok(entries) if entries.len() == sent.containers.len() => {
                let in_doubt = self.in_doubt(now_ms);
                if !in_doubt {
                    self.router.proved_ms = self.router.proved_ms.max(sent.sent_ms);
                }
                let took_ms = now_ms.saturating_sub(sent.sent_ms);
                self.round_trip_ms = (self.round_trip_ms * 7 + took_ms).div_ceil(8).max(1);
                for (container, entry) in sent.containers.iter().zip(entries) {
                    match entry {
                        EntryResult::Placed { shard, sequence } => {
                            let place = RecordPlacement { shard, sequence, in_doubt };
                            self.placed(*container, place, sent.sent_ms, now_ms);
                        }
                        EntryResult::Failed { fault, detail } => {
                            self.failed(*container, &sent, &EntryFailure { fault, detail }, now_ms);
                        }
                    }
                }
            }
            // Results cannot be matched to entries, so each entry may have been placed.
            Ok(entries) => {
                let (got, want) = (entries.len(), sent.containers.len());
                let detail = format!("the reply has {got} results for {want} records").into();
                self.all_failed(&sent, &EntryFailure { fault: Fault::Internal, detail }, now_ms);
            }
            Err((fault, detail)) => self.all_failed(&sent, &EntryFailure { fault, detail }, now_ms),
        }
        self.emit_pauses(now_ms);
    }

    fn all_failed(&mut self, sent: &InFlight, failure: &EntryFailure, now_ms: u64) {
        // One bad entry makes the service refuse the whole request. Each entry is retried in a
        // request of its own before it is given up, so that it fails no other.
        let whole = matches!(failure.fault, Fault::Invalid | Fault::TooLarge);
        if whole && (sent.containers.len() > 1 || sent.numbered) {
            for container in &sent.containers {
                let Some(mut flight) = self.flights.remove(container) else { continue };
                flight.record.isolated = true;
                flight.record.unnumbered = true;
                note(&mut flight.record, sent.sent_ms, now_ms, failure);
                self.send_again(*container, flight, now_ms);
            }
            return;
        }
        for container in &sent.containers {
            self.failed(*container, sent, failure, now_ms);
        }
    }

    /// Handles a Kinesis record that landed in a shard. It counts as placed if all of its user
    /// records belong there.
    fn placed(&mut self, container: u64, place: RecordPlacement, sent_ms: u64, now_ms: u64) {
        let RecordPlacement { shard, sequence, in_doubt } = place;
        let Some(mut flight) = self.flights.remove(&container) else { return };
        let frozen = &mut flight.record;
        let took_ms = now_ms.saturating_sub(sent_ms);
        let end = AttemptResult::Placed(shard.clone());
        frozen.note(Attempt { sent_ms, took_ms, end });
        if self.settings.numbered {
            self.last_numbers.insert(shard.clone(), sequence);
        }
        let as_predicted = frozen.predicted.as_ref() == Some(&shard);
        let by_this_map = as_predicted && frozen.era == self.router.era;
        if by_this_map {
            self.router.seen_ms = now_ms;
        }
        if frozen.has_one_hash() {
            if !as_predicted && frozen.predicted.is_some() {
                self.router.refresh.invalidate(sent_ms, frozen.predicted.as_ref());
            }
            self.accept(container, flight, shard, sequence, now_ms);
        } else if by_this_map && !in_doubt && self.router.holds(&shard, frozen, now_ms) {
            // A shard's range never changes, so no newer list is needed.
            self.accept(container, flight, shard, sequence, now_ms);
        } else {
            let after_read = self.reads_begun - u64::from(by_this_map && self.reads_now(now_ms));
            flight.stage = InFlightState::Unverified { shard, sequence, after_read };
            self.flights.insert(container, flight);
            let until_ms = now_ms.saturating_add(self.settings.verify_timeout_ms);
            self.unjudged.insert((until_ms, container));
            self.router.refresh.demand(now_ms);
        }
    }

    /// Returns true if the stream may no longer be the one in the map.
    pub(super) fn in_doubt(&self, now_ms: u64) -> bool {
        self.router.in_doubt(self.settings.map_idle_ms, now_ms)
    }

    /// Returns true if a list read is in flight that began recently enough to remove the doubt.
    fn reads_now(&self, now_ms: u64) -> bool {
        let age_ms = now_ms.saturating_sub(self.read_began_ms);
        self.router.refresh.is_updating() && age_ms <= silence_limit_ms(self.settings.map_idle_ms)
    }

    /// Completes a Kinesis record that is in the right shard.
    pub(super) fn accept(
        &mut self,
        container: u64,
        flight: InFlightRecord<T>,
        shard: ShardId,
        sequence: SequenceNumber,
        now_ms: u64,
    ) {
        let InFlightRecord { record: frozen, lane, .. } = flight;
        let SealedRecord { records, attempts, tries, .. } = frozen;
        let receipt = Receipt { shard, sequence, attempts, tries };
        self.complete(records, OutcomeKind::Placed(Arc::new(receipt)));
        self.finish_flight(container, lane, true, now_ms);
    }

    /// Ends the flight of a Kinesis record: its queue, or the queues that it blocked, may go on.
    pub(super) fn finish_flight(
        &mut self,
        container: u64,
        lane: Option<usize>,
        success: bool,
        now_ms: u64,
    ) {
        match lane {
            Some(at) => {
                let lane = self.lane_mut(at);
                lane.in_flight -= 1;
                if success {
                    lane.failures = 0;
                    lane.not_before_ms = 0;
                }
                self.touch(at, now_ms);
                self.remove_if_idle(at);
            }
            None => {
                if let Some(hull) = self.orphans.remove(&container) {
                    self.unblock(hull, now_ms);
                }
            }
        }
    }

    fn unblock(&mut self, hull: HashRange, now_ms: u64) {
        for at in 0..self.lanes.len() {
            let Some(lane) = self.lanes[at].as_mut() else { continue };
            if lane.blockers > 0 && lane.place.range().overlaps(&hull) {
                lane.blockers -= 1;
                self.touch(at, now_ms);
            }
        }
    }

    /// Handles the failure of a Kinesis record's entry.
    fn failed(&mut self, container: u64, sent: &InFlight, failure: &EntryFailure, now_ms: u64) {
        let Some(mut flight) = self.flights.remove(&container) else { return };
        let frozen = &mut flight.record;
        note(frozen, sent.sent_ms, now_ms, failure);
        let class = failure.fault.class();
        frozen.maybe_landed |= class.maybe_applied;
        if class.throttle {
            self.slow_down(flight.record.predicted.clone(), now_ms);
        }
        if failure.fault.refuses_caller() {
            // The records are not at fault: they keep their place and wait.
            let at_ms = self.pause(&flight, failure, now_ms);
            self.emit_retry(&flight, failure, at_ms);
            self.send_again(container, flight, now_ms);
        } else if class.retryable {
            let at_ms = self.back_off(&flight, now_ms);
            self.emit_retry(&flight, failure, at_ms);
            self.send_again(container, flight, now_ms);
        } else if matches!(failure.fault, Fault::Invalid | Fault::TooLarge)
            && flight.record.records.len() > 1
        {
            // Its records may be accepted one by one: the stream's record limit may have been
            // lowered.
            let InFlightRecord { record: frozen, lane, .. } = flight;
            let mut records = unpack(frozen);
            for record in &mut records {
                record.alone = true;
            }
            self.requeue(records, now_ms);
            self.finish_flight(container, lane, false, now_ms);
        } else {
            let why =
                RejectReason::Refused { fault: failure.fault, detail: Arc::clone(&failure.detail) };
            let InFlightRecord { record: frozen, lane, .. } = flight;
            self.give_up(frozen, &why);
            self.finish_flight(container, lane, false, now_ms);
        }
        if failure.fault == Fault::Missing {
            self.drop_map(now_ms);
        }
    }

    /// Emits a retry notice.
    fn emit_retry(&mut self, flight: &InFlightRecord<T>, failure: &EntryFailure, at_ms: u64) {
        self.actions.push_back(Action::Notice(MachineNotice::Retry {
            shard: flight.record.predicted.clone(),
            fault: failure.fault,
            detail: Arc::clone(&failure.detail),
            records: flight.record.records.len(),
            at_ms,
        }));
    }

    /// Delays the next attempt of a queue, longer after each failure. Returns when it is due.
    fn back_off(&mut self, flight: &InFlightRecord<T>, now_ms: u64) -> u64 {
        let Some(at) = flight.lane else { return now_ms };
        let entropy = self.entropy();
        let backoff = self.settings.backoff;
        let lane = self.lane_mut(at);
        lane.failures = lane.failures.saturating_add(1);
        lane.not_before_ms = now_ms.saturating_add(backoff.wait_ms(lane.failures, entropy));
        lane.not_before_ms
    }

    fn slow_down(&mut self, shard: Option<ShardId>, now_ms: u64) {
        let Some(shard) = shard else { return };
        if let Some(limiter) = self.limiters.iter_mut().find(|limiter| limiter.shard == shard)
            && limiter.rate.refused(now_ms)
        {
            let left = limiter.rate.share();
            self.actions
                .push_back(Action::Notice(MachineNotice::RateReduced { shard, share: left }));
        }
    }

    /// Puts the Kinesis record back at the front of its queue, so that the same bytes go first. If
    /// the queue is gone, requeues the user records.
    fn send_again(&mut self, container: u64, flight: InFlightRecord<T>, now_ms: u64) {
        match flight.lane {
            _ if self.stopped.has_given_up(flight.record.records.number(0)) => {
                let InFlightRecord { record: frozen, lane, .. } = flight;
                self.refuse(unpack(frozen), &RejectReason::ProducerStopped);
                self.finish_flight(container, lane, false, now_ms);
            }
            Some(at) => {
                self.lane_mut(at).sealed.push_front(flight.record);
                self.finish_flight(container, Some(at), false, now_ms);
            }
            None => self.requeue_records(container, flight, now_ms),
        }
    }

    /// Requeues the user records of a Kinesis record under the current map, in put order.
    pub(super) fn requeue_records(
        &mut self,
        container: u64,
        flight: InFlightRecord<T>,
        now_ms: u64,
    ) {
        let InFlightRecord { record: frozen, lane, .. } = flight;
        self.requeue(unpack(frozen), now_ms);
        self.finish_flight(container, lane, false, now_ms);
    }
}

/// Adds a failed attempt.
fn note<T>(frozen: &mut SealedRecord<T>, sent_ms: u64, now_ms: u64, failure: &EntryFailure) {
    let detail = Arc::clone(&failure.detail);
    let end = AttemptResult::Failed { fault: failure.fault, detail };
    let took_ms = now_ms.saturating_sub(sent_ms);
    frozen.note(Attempt { sent_ms, took_ms, end });
}

/// Unpacks a Kinesis record; each user record gets the attempts made so far.
pub(super) fn unpack<T>(frozen: SealedRecord<T>) -> Vec<crate::produce::PendingRecord<T>> {
    let mut records = frozen.records.unpack(&frozen.sealed);
    let attempts = Arc::new(frozen.attempts);
    for record in &mut records {
        record.maybe_landed |= frozen.maybe_landed;
        record.past = Some(match record.past.take() {
            None => Arc::clone(&attempts),
            Some(past) => {
                let mut all = Vec::clone(&past);
                attempts.iter().for_each(|attempt| outcome::note(&mut all, attempt.clone()));
                Arc::new(all)
            }
        });
    }
    records
}
