//! Selection of the queues that may send, and assembly of the next requests.

use super::action::{Action, InFlight, PutRequest, RequestEntry};
use super::limit::ExtraRecords;
use super::pause::SendPermission;
use super::{Machine, ShardQueue};
use crate::aggregate::dedup_tag::DedupTag;
use crate::ids::ShardId;
use crate::pack::{PerQueue, RequestLimits, pack};
use crate::produce::router::Router;
use crate::produce::seal::{InFlightRecord, InFlightState, SealedRecord, Sealer, draft, seal};
use crate::produce::settings::KeyOrder;
use crate::produce::shard_queue::QueueScope;
use std::cmp::Reverse;

/// Target of a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MachineTimer {
    /// Slot of a queue.
    Lane(usize),
    /// Index of an open shard of the map whose waiting queues are checked.
    Rate(usize),
}

impl<T> Machine<T> {
    /// Puts a queue in the ready line if it may send now, or sets a timer if it may send later.
    pub(super) fn touch(&mut self, at: usize, now_ms: u64) {
        let per_lane = self.in_flight_per_queue();
        let target = self.aggregate_target();
        let (linger_ms, hurry_below) = (self.settings.linger_ms, self.hurry_below);
        let Some(Some(lane)) = self.lanes.get_mut(at) else { return };
        if lane.in_line || lane.blockers > 0 || lane.in_flight >= per_lane || lane.has_nothing() {
            return;
        }
        let held_ms = self.pauses.held_until_ms(lane.place.range());
        // While a probe is in flight, its reply wakes the queue.
        if held_ms == Some(u64::MAX) {
            return;
        }
        let mut from_ms = lane.not_before_ms.max(held_ms.unwrap_or(0));
        if lane.sealed.is_empty()
            && let Some((number, put_ms)) = lane.first()
            && lane.queue_bytes < target
            && number >= hurry_below
        {
            from_ms = from_ms.max(put_ms.saturating_add(linger_ms));
        }
        if from_ms <= now_ms {
            lane.in_line = true;
            self.ready.push_back(at);
        } else if lane.armed_ms.is_none_or(|armed| from_ms < armed) {
            lane.armed_ms = Some(from_ms);
            self.timers.push(Reverse((from_ms, MachineTimer::Lane(at))));
        }
    }

    /// Handles the timers that are due.
    pub(super) fn fire_timers(&mut self, now_ms: u64) {
        while let Some(Reverse((due_ms, timer))) = self.timers.peek().copied() {
            if due_ms > now_ms {
                break;
            }
            self.timers.pop();
            match timer {
                MachineTimer::Lane(at) => {
                    if let Some(Some(lane)) = self.lanes.get_mut(at) {
                        lane.armed_ms = None;
                    }
                    self.touch(at, now_ms);
                }
                MachineTimer::Rate(shard) => self.release(shard, now_ms),
            }
        }
    }

    /// Sends requests until nothing more may be sent.
    pub(super) fn send(&mut self, now_ms: u64) {
        while self.requests.len() < self.settings.max_requests {
            let lanes = self.admitted(now_ms);
            if lanes.is_empty() {
                return;
            }
            self.seal_records(&lanes, now_ms);
            self.request(&lanes, now_ms);
        }
    }

    /// Takes queues from the ready line that may send and that their shard's rate admits, for one
    /// request.
    fn admitted(&mut self, now_ms: u64) -> Vec<usize> {
        let limits = self.request_limits();
        let per_lane = self.in_flight_per_queue();
        let mut lanes = Vec::new();
        let mut bytes = 0;
        while lanes.len() < limits.max_records && bytes < limits.max_bytes {
            let Some(at) = self.ready.pop_front() else { break };
            let Some(Some(lane)) = self.lanes.get_mut(at) else { continue };
            if !may_send(lane, per_lane) {
                lane.in_line = false;
                self.unreserve(at);
                self.remove_if_idle(at);
                continue;
            }
            let range = lane.place.range();
            let hold = self.pauses.hold(range, now_ms);
            if hold == SendPermission::Paused {
                lane.in_line = false;
                self.unreserve(at);
                self.touch(at, now_ms);
                continue;
            }
            // A probe goes in a request of its own, so that the reply concerns its own hashes only.
            if hold == SendPermission::Probe && !lanes.is_empty() {
                self.ready.push_front(at);
                break;
            }
            if self.admit(at, now_ms) {
                self.lane_mut(at).in_line = false;
                bytes += self.next_bytes(at);
                lanes.push(at);
                if hold == SendPermission::Probe {
                    self.pauses.probe(range, self.next_request);
                    break;
                }
            }
        }
        lanes
    }

    fn request_limits(&self) -> RequestLimits {
        RequestLimits::for_stream(self.settings.record_max_bytes)
    }

    /// Seals the next Kinesis record of each queue that has none. Without order it seals as many as
    /// the shard's rate admits, because there is no reason to send one at a time.
    fn seal_records(&mut self, lanes: &[usize], now_ms: u64) {
        let target = self.aggregate_target();
        let mut cuts = Vec::with_capacity(lanes.len());
        let mut of = Vec::with_capacity(lanes.len());
        for &at in lanes {
            if self.lanes[at].as_ref().is_none_or(|lane| !lane.sealed.is_empty()) {
                continue;
            }
            let mut beside = ExtraRecords::default();
            while let Some(lane) = self.lanes[at].as_mut() {
                let mark = |producer| DedupTag { producer, container: self.next_mark };
                let mark = self.settings.dedup_tags.map(mark);
                self.next_mark += 1;
                let (builder, spare) = (&mut self.builder, &mut self.spare);
                let tools = Sealer { builder, spare, pages: &mut self.pages, dedup_tag: mark };
                let Some(cut) = draft(lane, tools, self.settings.aggregation, target) else {
                    break;
                };
                cuts.push((cut, predicted(&self.router, lane)));
                of.push(at);
                let one = self.settings.order == KeyOrder::Strict;
                if one || !self.admit_beside(at, &mut beside, now_ms) {
                    break;
                }
            }
        }
        let frozen = seal(cuts, self.router.era);
        for (at, frozen) in of.into_iter().zip(frozen) {
            self.lane_mut(at).sealed.push_back(frozen);
        }
    }

    /// Sends one request with Kinesis records of these queues. Queues whose records did not fit
    /// return to the front of the ready line.
    fn request(&mut self, lanes: &[usize], now_ms: u64) {
        let limits = self.request_limits();
        let per_lane = match self.settings.order {
            KeyOrder::Strict => PerQueue::One,
            KeyOrder::None => PerQueue::Any,
        };
        let isolated = |at: &usize| {
            let head = self.lanes[*at].as_ref().and_then(|lane| lane.sealed.front());
            head.is_some_and(|head| head.isolated)
        };
        let by_itself = self.settings.numbered || isolated(&lanes[0]);
        let sizes = lanes.iter().enumerate().map(|(place, at)| {
            let fits = place == 0 || !(by_itself || isolated(at));
            let heads = self.lanes[*at].iter().flat_map(|lane| &lane.sealed);
            let count = match (fits, by_itself) {
                (false, _) => 0,
                (true, true) => 1,
                (true, false) => usize::MAX,
            };
            heads.take(count).map(|head| head.sealed.bytes())
        });
        let packed = pack(sizes, limits, per_lane);
        // A record that is too large for any `PutRecords` request is sent by `PutRecord`.
        let too_large = packed.too_large.first() == Some(&0);
        let mut counts = vec![0; lanes.len()];
        if too_large {
            counts[0] = 1;
        } else {
            packed.takes.iter().for_each(|take| counts[take.lane] = take.count);
        }
        self.dispatch(lanes, &counts, self.settings.numbered || too_large, now_ms);
        for (&at, &count) in lanes.iter().zip(&counts).rev() {
            if count > 0 {
                self.touch(at, now_ms);
            } else if !self.lane_mut(at).in_line {
                self.lane_mut(at).in_line = true;
                self.ready.push_front(at);
            }
        }
    }

    fn dispatch(&mut self, lanes: &[usize], counts: &[usize], single: bool, now_ms: u64) {
        let id = self.next_request;
        let mut request =
            PutRequest { id, entries: Vec::new(), single, after: None, records: 0, bytes: 0 };
        let mut containers = Vec::new();
        let in_doubt = self.in_doubt(now_ms);
        for (&at, &count) in lanes.iter().zip(counts) {
            for _ in 0..count {
                let lane = self.lane_mut(at);
                let Some(frozen) = lane.sealed.pop_front() else { break };
                lane.in_flight += 1;
                self.account(at, frozen.sealed.bytes(), now_ms);
                request.add(&frozen);
                if in_doubt && frozen.predicted.is_some() && !frozen.has_one_hash() {
                    // Its placement will need verification; this makes the list available in time.
                    self.router.refresh.demand(now_ms);
                }
                if self.settings.numbered && !frozen.unnumbered {
                    let last = |shard: &ShardId| self.last_numbers.get(shard).copied();
                    request.after = frozen.predicted.as_ref().and_then(last);
                }
                let container = self.next_container;
                self.next_container += 1;
                containers.push(container);
                let flight =
                    InFlightRecord { record: frozen, lane: Some(at), stage: InFlightState::Sent };
                self.flights.insert(container, flight);
            }
        }
        if containers.is_empty() {
            return;
        }
        self.next_request += 1;
        let numbered = request.after.is_some();
        self.requests.insert(id, InFlight { containers, sent_ms: now_ms, numbered });
        self.actions.push_back(Action::Send(request));
    }
}

impl PutRequest {
    fn add<T>(&mut self, frozen: &SealedRecord<T>) {
        self.records += frozen.records.len();
        self.bytes += frozen.sealed.bytes();
        self.entries.push(RequestEntry {
            key: frozen.sealed.partition_key.clone(),
            hash: frozen.sealed.explicit_hash_key,
            data: frozen.sealed.data.clone(),
        });
    }
}

fn may_send<T>(lane: &ShardQueue<T>, per_lane: usize) -> bool {
    lane.blockers == 0 && lane.in_flight < per_lane && !lane.has_nothing()
}

/// Returns the predicted shard of a queue's Kinesis records.
fn predicted<T>(router: &Router, lane: &ShardQueue<T>) -> Option<ShardId> {
    match &lane.place {
        QueueScope::Shard(id, _) => Some(id.clone()),
        QueueScope::Hash(hash) => router.map()?.predict(*hash).cloned(),
    }
}
