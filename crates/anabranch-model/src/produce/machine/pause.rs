//! Pauses: while the service refuses the caller, nothing is sent to the affected hash ranges.
//!
//! Such a refusal does not concern the records, so no record is given up because of it. Its Kinesis
//! records return to the front of their queues, and every queue over the same hashes waits. After
//! the wait one queue sends a single request, the probe. Its reply counts for all of them.
//!
//! | state | event | next state |
//! |---|---|---|
//! | no pause | a Kinesis record is refused because of the caller | waiting |
//! | waiting | the wait is over, and a queue has something to send | probing |
//! | probing | the probe is refused because of the caller | waiting, longer |
//! | probing | the reply does not show if the caller is accepted | waiting, with the same backoff |
//! | probing | any other reply | no pause |
//!
//! A pause belongs to a hash range, not to a queue or a shard, so it outlives a change of the map.

use super::Machine;
use super::action::{Action, EntryResult, MachineNotice, PutReply};
use super::judge::EntryFailure;
use crate::hash::{HashKey, HashRange};
use crate::ids::ShardId;
use crate::produce::outcome::RejectReason;
use crate::produce::seal::InFlightRecord;
use crate::retry::{Backoff, Fault};
use std::sync::Arc;

/// Minimum time between two notices of a lasting pause.
const REMINDER_MS: u64 = 60_000;

/// Hash ranges to which nothing is sent because the service refuses the caller.
#[derive(Debug)]
pub(super) struct CallerPauses {
    all: Vec<ShardPause>,
    backoff: Backoff,
    /// Time of the last `Paused` notice.
    told_ms: u64,
}

#[derive(Debug)]
struct ShardPause {
    /// Paused hashes.
    range: HashRange,
    /// Shard of the range, if it was known when the pause began.
    shard: Option<ShardId>,
    /// Last refusal.
    cause: EntryFailure,
    /// Consecutive refusals.
    refusals: u32,
    state: PauseState,
    began_ms: u64,
    is_told: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PauseState {
    /// Nothing is sent before this time.
    Waiting { until_ms: u64 },
    /// This request finds out if the caller is accepted again.
    Probing { request: u64 },
}

/// Permission of a queue to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendPermission {
    Free,
    /// Send one request on its own, as a probe.
    Probe,
    /// Send nothing.
    Paused,
}

/// Result of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ProbeResult {
    /// The service accepts the caller.
    Accepted,
    /// The service still refuses the caller.
    Refused(EntryFailure),
    /// The reply does not show if the caller is accepted.
    Unknown,
}

impl ProbeResult {
    pub(super) fn by(reply: &PutReply) -> Self {
        match reply {
            Ok(entries) => {
                let failure = |entry: &EntryResult| match entry {
                    EntryResult::Placed { .. } => None,
                    EntryResult::Failed { fault, detail } => Some((*fault, Arc::clone(detail))),
                };
                match entries.iter().map(failure).collect::<Option<Vec<_>>>() {
                    None => Self::Accepted,
                    Some(failures) => match failures.into_iter().next() {
                        Some((fault, detail)) => Self::by_fault(fault, detail),
                        None => Self::Unknown,
                    },
                }
            }
            Err((fault, detail)) => Self::by_fault(*fault, Arc::clone(detail)),
        }
    }

    fn by_fault(fault: Fault, detail: Arc<str>) -> Self {
        if fault.refuses_caller() {
            Self::Refused(EntryFailure { fault, detail })
        } else if fault.class().maybe_applied || fault == Fault::NotSent {
            Self::Unknown
        } else {
            Self::Accepted
        }
    }
}

impl CallerPauses {
    pub(super) fn new(backoff: Backoff) -> Self {
        Self { all: Vec::new(), backoff, told_ms: 0 }
    }

    /// Returns true if nothing is paused, which is the usual case.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn over(&self, range: HashRange) -> impl Iterator<Item = &ShardPause> {
        self.all.iter().filter(move |pause| pause.range.overlaps(&range))
    }

    /// Returns until when a queue over these hashes waits, or `u64::MAX` while a probe is in
    /// flight.
    #[inline]
    pub(super) fn held_until_ms(&self, range: HashRange) -> Option<u64> {
        if self.is_empty() {
            return None;
        }
        let until_ms = |pause: &ShardPause| match pause.state {
            PauseState::Waiting { until_ms } => until_ms,
            PauseState::Probing { .. } => u64::MAX,
        };
        self.over(range).map(until_ms).max()
    }

    /// Returns the permission of a queue over these hashes to send now.
    #[inline]
    pub(super) fn hold(&self, range: HashRange, now_ms: u64) -> SendPermission {
        match self.held_until_ms(range) {
            None => SendPermission::Free,
            Some(until_ms) if until_ms <= now_ms => SendPermission::Probe,
            Some(_) => SendPermission::Paused,
        }
    }

    /// Marks a request as the probe of every pause over these hashes.
    pub(super) fn probe(&mut self, range: HashRange, request: u64) {
        for pause in self.all.iter_mut().filter(|pause| pause.range.overlaps(&range)) {
            pause.state = PauseState::Probing { request };
        }
    }

    /// Returns true if a request is a probe.
    pub(super) fn has_probe(&self, request: u64) -> bool {
        self.all.iter().any(|pause| pause.state == PauseState::Probing { request })
    }

    /// Returns the reason why records of a hash are not placed, if the hash is paused.
    pub(super) fn cause(&self, hash: HashKey) -> Option<RejectReason> {
        let pause = self.all.iter().find(|pause| pause.range.contains(hash))?;
        let EntryFailure { fault, detail } = pause.cause.clone();
        Some(RejectReason::Refused { fault, detail })
    }
}

impl<T> Machine<T> {
    /// Pauses the predicted shard of a Kinesis record, unless it is paused already. Returns the end
    /// of the pause, or `now_ms` while a probe is in flight and the end is unknown.
    pub(super) fn pause(
        &mut self,
        flight: &InFlightRecord<T>,
        failure: &EntryFailure,
        now_ms: u64,
    ) -> u64 {
        let lane = flight.lane.and_then(|at| self.lanes[at].as_ref());
        let hashes = lane.map_or(flight.record.hash_span, |lane| lane.place.range());
        // Only the reply to a probe changes the length of a pause, not replies to earlier requests.
        if let Some(until_ms) = self.pauses.held_until_ms(hashes) {
            return if until_ms == u64::MAX { now_ms } else { until_ms };
        }
        let map = self.router.map();
        let shard = map.and_then(|map| map.open_shard(map.predict_place(hashes.end())?));
        let (range, shard) = match shard {
            Some((range, id)) => (range, Some(id.clone())),
            None => (HashRange::ALL, None),
        };
        let entropy = self.entropy();
        let until_ms = now_ms.saturating_add(self.pauses.backoff.wait_ms(1, entropy));
        self.pauses.all.push(ShardPause {
            range,
            shard,
            cause: failure.clone(),
            refusals: 1,
            state: PauseState::Waiting { until_ms },
            began_ms: now_ms,
            is_told: false,
        });
        until_ms
    }

    /// Handles the reply to a probe.
    pub(super) fn probed(&mut self, request: u64, probed: &ProbeResult, now_ms: u64) {
        let entropy = self.entropy();
        let backoff = self.pauses.backoff;
        let mut over = Vec::new();
        let waits = |refusals| {
            let until_ms = now_ms.saturating_add(backoff.wait_ms(refusals, entropy));
            PauseState::Waiting { until_ms }
        };
        self.pauses.all.retain_mut(|pause| {
            if pause.state != (PauseState::Probing { request }) {
                return true;
            }
            match probed {
                ProbeResult::Accepted => {
                    over.push((pause.shard.take(), now_ms.saturating_sub(pause.began_ms)));
                    return false;
                }
                ProbeResult::Refused(cause) => {
                    pause.refusals = pause.refusals.saturating_add(1);
                    pause.cause = cause.clone();
                }
                ProbeResult::Unknown => {}
            }
            pause.state = waits(pause.refusals);
            true
        });
        if matches!(probed, ProbeResult::Refused(_))
            && now_ms.saturating_sub(self.pauses.told_ms) >= REMINDER_MS
        {
            self.pauses.all.iter_mut().for_each(|pause| pause.is_told = false);
        }
        if let Some(for_ms) = over.iter().map(|(_, for_ms)| *for_ms).max() {
            let shards = over.into_iter().filter_map(|(shard, _)| shard).collect();
            let pauses = self.pauses.all.len();
            self.actions.push_back(Action::Notice(MachineNotice::Resumed {
                shards,
                for_ms,
                pauses,
            }));
        }
        for at in 0..self.lanes.len() {
            self.touch(at, now_ms);
        }
    }

    /// Emits a notice of pauses that began, and a reminder of those that last.
    pub(super) fn emit_pauses(&mut self, now_ms: u64) {
        if self.pauses.is_empty() {
            return;
        }
        let untold = self.pauses.all.iter_mut().filter(|pause| !pause.is_told);
        let (mut shards, mut for_ms, mut cause) = (Vec::new(), 0, None);
        for pause in untold {
            pause.is_told = true;
            shards.extend(pause.shard.clone());
            for_ms = now_ms.saturating_sub(pause.began_ms).max(for_ms);
            cause = Some(pause.cause.clone());
        }
        let Some(EntryFailure { fault, detail }) = cause else { return };
        self.pauses.told_ms = now_ms;
        let pauses = self.pauses.all.len();
        let notice = MachineNotice::Paused { shards, fault, detail, for_ms, pauses };
        self.actions.push_back(Action::Notice(notice));
    }
}
