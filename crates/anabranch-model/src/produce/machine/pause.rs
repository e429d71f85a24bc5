//! Pauses: while the service refuses the caller, nothing is sent over the hashes concerned.
//!
//! Such a refusal says nothing about the records, so none is given up for it: the containers go
//! back to the front of their lanes, and every lane over the same hashes waits. After the wait one
//! lane sends one request, the probe, and its answer counts for all of them.
//!
//! | state | what happens | then |
//! |---|---|---|
//! | no pause | a container is refused because of the caller | waiting |
//! | waiting | the wait is over, and a lane has something to send | probing |
//! | probing | the probe is refused because of the caller | waiting, longer |
//! | probing | it is not known whether the caller was let in | waiting, as long as before |
//! | probing | any other answer | no pause |
//!
//! A pause belongs to a range of hashes, not to a lane or a shard: it outlives a change of the map.

use super::Machine;
use super::action::{Action, EntryResult, MachineNotice, PutReply};
use super::judge::EntryFailure;
use crate::hash::{HashKey, HashRange};
use crate::ids::ShardId;
use crate::produce::outcome::RejectReason;
use crate::produce::seal::InFlightRecord;
use crate::retry::{Backoff, Fault};
use std::sync::Arc;

/// The time between two notices of a pause that lasts.
const REMINDER_MS: u64 = 60_000;

/// Where nothing is sent because the service refuses the caller.
#[derive(Debug)]
pub(super) struct CallerPauses {
    all: Vec<ShardPause>,
    backoff: Backoff,
    /// When pauses were told last.
    told_ms: u64,
}

#[derive(Debug)]
struct ShardPause {
    /// The hashes that it holds up.
    range: HashRange,
    /// The shard that takes them, if it was known at the beginning.
    shard: Option<ShardId>,
    /// The last refusal.
    cause: EntryFailure,
    /// Refusals in a row.
    refusals: u32,
    state: PauseState,
    began_ms: u64,
    is_told: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PauseState {
    /// Nothing is sent before this time.
    Waiting { until_ms: u64 },
    /// This request finds out whether the caller is let in.
    Probing { request: u64 },
}

/// The permission of a lane to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendPermission {
    /// Send.
    Free,
    /// Send one request by itself, as a probe.
    Probe,
    /// Nothing.
    Paused,
}

/// The meaning of the answer to a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ProbeResult {
    /// The service lets the caller in.
    Accepted,
    /// It still refuses the caller.
    Refused(EntryFailure),
    /// Unknown.
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

    /// Whether nothing is paused, the usual case.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn over(&self, range: HashRange) -> impl Iterator<Item = &ShardPause> {
        self.all.iter().filter(move |pause| pause.range.overlaps(&range))
    }

    /// Until when a lane over these hashes waits; `u64::MAX` while a probe is on its way.
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

    /// Returns whether a lane over these hashes may send now.
    #[inline]
    pub(super) fn hold(&self, range: HashRange, now_ms: u64) -> SendPermission {
        match self.held_until_ms(range) {
            None => SendPermission::Free,
            Some(until_ms) if until_ms <= now_ms => SendPermission::Probe,
            Some(_) => SendPermission::Paused,
        }
    }

    /// A lane over these hashes sends this request as a probe.
    pub(super) fn probe(&mut self, range: HashRange, request: u64) {
        for pause in self.all.iter_mut().filter(|pause| pause.range.overlaps(&range)) {
            pause.state = PauseState::Probing { request };
        }
    }

    /// Whether a request is a probe.
    pub(super) fn has_probe(&self, request: u64) -> bool {
        self.all.iter().any(|pause| pause.state == PauseState::Probing { request })
    }

    /// Why records of this hash are not placed, where it is paused.
    pub(super) fn cause(&self, hash: HashKey) -> Option<RejectReason> {
        let pause = self.all.iter().find(|pause| pause.range.contains(hash))?;
        let EntryFailure { fault, detail } = pause.cause.clone();
        Some(RejectReason::Refused { fault, detail })
    }
}

impl<T> Machine<T> {
    /// Pauses the shard that a container was meant for, unless it is paused. Says until when; while
    /// a probe is on its way that is not known.
    pub(super) fn pause(
        &mut self,
        flight: &InFlightRecord<T>,
        failure: &EntryFailure,
        now_ms: u64,
    ) -> u64 {
        let lane = flight.lane.and_then(|at| self.lanes[at].as_ref());
        let hashes = lane.map_or(flight.record.hash_span, |lane| lane.place.range());
        // Only the answer to a probe changes how long it lasts, not those to what left before it.
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

    /// Takes the answer to a probe.
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

    /// Tells of pauses that began, and at times of those that last.
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
