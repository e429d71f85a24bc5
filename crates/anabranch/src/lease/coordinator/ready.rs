//! Which leases may be read: those whose gate is open.

use super::crew::CoordinatorShared;
use super::gate_attempt::{DecidedGates, GateAttempt, GateResult};
use crate::event::LeaseEvent;
use crate::lease::LeaseStore;
use crate::stream::api::StreamApi;
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::snapshot::LeasePhase;
use anabranch_model::lease::{Lease, LeaseKey, WaitReason};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::task::{self, JoinSet};

/// The pause before a gate is tried for the second time, in milliseconds. Each try doubles it.
const FIRST_PAUSE_MS: u64 = 1_000;

/// The longest pause between two tries, in milliseconds, while it is known what a gate waits for.
const LONGEST_PAUSE_MS: u64 = 30_000;

/// What is known of the gates.
#[derive(Debug, Default)]
pub(super) struct GateTracker {
    /// How far each lease is, as last judged.
    phases: BTreeMap<LeaseKey, LeasePhase>,
    /// Gates that were found open where rows alone don't tell. What has ended stays so.
    open: BTreeSet<LeaseKey>,
    /// Gates that were not found open: when to try them again.
    tries: BTreeMap<LeaseKey, GateRetry>,
    /// Attempts under way, at most one per stream. They ask the service, which may hang, and no
    /// take of another lease waits for that.
    attempts: JoinSet<()>,
    /// The streams of those attempts.
    under_way: BTreeMap<task::Id, StreamName>,
    /// What they have decided so far.
    decided: Arc<DecidedGates>,
}

/// When a gate is tried again.
#[derive(Debug)]
struct GateRetry {
    /// Then, at the latest.
    at_ms: u64,
    /// After this pause.
    pause_ms: u64,
    /// As soon as the row of this shard has ended, if the gate waits for one.
    after: Option<ShardId>,
}

/// What the rows alone say about a gate.
enum RowVerdict {
    Known(LeasePhase),
    /// A parent has no row.
    Unclear,
}

impl GateTracker {
    /// How far a lease is.
    pub(super) fn phase(&self, lease: &Lease) -> LeasePhase {
        self.phases.get(&lease.key).copied().unwrap_or(LeasePhase::Blocked)
    }

    /// Whether a lease may be read.
    pub(super) fn is_open(&self, key: &LeaseKey) -> bool {
        self.phases.get(key) == Some(&LeasePhase::Ready)
    }

    /// Judges all leases anew. Where the rows don't tell, an attempt at the gate is begun, with a
    /// fresh list of the shards and single reads; it wakes the loop when it has decided some.
    pub(super) fn evaluate<S: LeaseStore, A: StreamApi>(
        &mut self,
        crew: &CoordinatorShared<S, A>,
        rows: &BTreeMap<StreamName, Vec<Lease>>,
    ) {
        self.take_in(crew);
        let mut phases = BTreeMap::new();
        for (stream, rows) in rows {
            let by_shard: BTreeMap<_, _> = rows.iter().map(|row| (&row.key.shard, row)).collect();
            let mut unclear = Vec::new();
            for row in rows {
                let phase = match by_rows(row, &by_shard) {
                    RowVerdict::Known(phase) => phase,
                    RowVerdict::Unclear if self.open.contains(&row.key) => LeasePhase::Ready,
                    RowVerdict::Unclear => {
                        unclear.push(row);
                        LeasePhase::Blocked
                    }
                };
                phases.insert(row.key.clone(), phase);
            }
            self.try_gates(crew, stream, unclear, &by_shard);
        }
        self.tries.retain(|key, _| phases.get(key) == Some(&LeasePhase::Blocked));
        self.open.retain(|key| phases.contains_key(key));
        self.phases = phases;
    }

    /// Begins to try the gates that are due.
    fn try_gates<S: LeaseStore, A: StreamApi>(
        &mut self,
        crew: &CoordinatorShared<S, A>,
        stream: &StreamName,
        unclear: Vec<&Lease>,
        rows: &BTreeMap<&ShardId, &Lease>,
    ) {
        let now_ms = crew.now_ms();
        let has_ended = |shard: &ShardId| rows.get(shard).is_some_and(|row| row.is_ended());
        let due = |key: &LeaseKey| {
            let Some(again) = self.tries.get(key) else { return true };
            again.at_ms <= now_ms || again.after.as_ref().is_some_and(has_ended)
        };
        let due = unclear.into_iter().filter(|lease| due(&lease.key));
        let due: Vec<Lease> = due.cloned().collect();
        if due.is_empty() || self.under_way.values().any(|it| it == stream) {
            return;
        }
        let attempt = GateAttempt {
            tools: crew.context.clone(),
            stream: stream.clone(),
            decided: self.decided.clone(),
            wake: crew.wake.clone(),
        };
        let attempt = self.attempts.spawn(attempt.run(due));
        self.under_way.insert(attempt.id(), stream.clone());
    }

    /// Takes in what the attempts have come to so far.
    fn take_in<S: LeaseStore, A: StreamApi>(&mut self, crew: &CoordinatorShared<S, A>) {
        let now_ms = crew.now_ms();
        // What only a call that failed or an old list stands in the way of must not wait for the
        // two lease times in which every shard is to be owned.
        let half_ms = crew.settings().lease_time_ms / 2;
        // Ends first: nothing is decided after them.
        while let Some(ended) = self.attempts.try_join_next_with_id() {
            let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
            self.under_way.remove(&id);
        }
        for (key, tried) in self.decided.take() {
            match tried {
                GateResult::Open => {
                    self.tries.remove(&key);
                    self.open.insert(key);
                }
                GateResult::Waits(parent, why) => {
                    let (after, longest_ms) = match &why {
                        WaitReason::AncestorUnfinished(shard)
                        | WaitReason::UnlistedUnfinished(shard) => {
                            (Some(shard.clone()), LONGEST_PAUSE_MS)
                        }
                        WaitReason::ParentUnfinished => (Some(parent.clone()), LONGEST_PAUSE_MS),
                        WaitReason::ChildNotListed | WaitReason::Unreadable(_) => (None, half_ms),
                    };
                    if !self.tries.contains_key(&key) {
                        let lease = key.clone();
                        crew.context.emit(LeaseEvent::WaitingForParent { lease, parent, why });
                    }
                    self.retry_later(&key, now_ms, longest_ms, after);
                }
                GateResult::Undetermined => self.retry_later(&key, now_ms, half_ms, None),
            }
        }
    }

    fn retry_later(
        &mut self,
        key: &LeaseKey,
        now_ms: u64,
        longest_ms: u64,
        after: Option<ShardId>,
    ) {
        let before_ms = self.tries.get(key).map_or(FIRST_PAUSE_MS / 2, |again| again.pause_ms);
        let pause_ms = (before_ms * 2).min(longest_ms.min(LONGEST_PAUSE_MS));
        let again = GateRetry { at_ms: now_ms + pause_ms, pause_ms, after };
        self.tries.insert(key.clone(), again);
    }
}

fn by_rows(row: &Lease, rows: &BTreeMap<&ShardId, &Lease>) -> RowVerdict {
    if row.is_ended() {
        return RowVerdict::Known(LeasePhase::Finished);
    }
    // A row that has moved was let through the gate before.
    if row.is_started() {
        return RowVerdict::Known(LeasePhase::Ready);
    }
    let parents: Vec<_> = row.parents.iter().map(|parent| rows.get(parent)).collect();
    if parents.iter().flatten().any(|parent| !parent.is_ended()) {
        RowVerdict::Known(LeasePhase::Blocked)
    } else if parents.iter().all(Option::is_some) {
        RowVerdict::Known(LeasePhase::Ready)
    } else {
        RowVerdict::Unclear
    }
}
