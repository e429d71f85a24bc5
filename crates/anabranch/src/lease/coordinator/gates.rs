//! The gates of leases: a lease may be read once its gate is open.

use super::LeaseContext;
use super::shared::CoordinatorShared;
use crate::event::LeaseEvent;
use crate::lease::{LeaseStore, StoreError};
use crate::stream::api::{ShardFilter, StreamApi};
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::fleet_snapshot::LeasePhase;
use anabranch_model::lease::{
    Gate, GateEvidence, GateListing, Lease, LeaseKey, RowState, WaitReason, gate,
};
use anabranch_model::lineage::Lineage;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;
use tokio::task::{self, JoinSet};

/// Pause before the second try of a gate, in milliseconds. It doubles with each try.
const FIRST_PAUSE_MS: u64 = 1_000;

/// Maximum pause between two tries, in milliseconds, while it is known what a gate waits for.
const LONGEST_PAUSE_MS: u64 = 30_000;

/// State of all gates.
#[derive(Debug, Default)]
pub(super) struct GateTracker {
    /// Phase of each lease, as last evaluated.
    phases: BTreeMap<LeaseKey, LeasePhase>,
    /// Gates that were found open although the rows alone don't show it. They stay open, since a
    /// shard that has ended stays ended.
    open: BTreeSet<LeaseKey>,
    /// Retries of gates that were not found open.
    tries: BTreeMap<LeaseKey, GateRetry>,
    /// Attempts in progress, at most one per stream. They call the service, which may hang, and
    /// takes of other leases don't wait for them.
    attempts: JoinSet<()>,
    /// The streams of those attempts.
    under_way: BTreeMap<task::Id, StreamName>,
    /// Decisions of those attempts that were not taken in yet.
    decided: Arc<DecidedGates>,
}

/// Schedule of the next try of a gate.
#[derive(Debug)]
struct GateRetry {
    /// Latest time of the next try.
    at_ms: u64,
    /// Pause before that time.
    pause_ms: u64,
    /// The gate is tried as soon as the row of this shard has ended, if it waits for one.
    after: Option<ShardId>,
}

/// The phase of a lease, judged by the rows alone.
enum RowVerdict {
    Known(LeasePhase),
    /// A parent has no row.
    Unclear,
}

impl GateTracker {
    /// Returns the phase of a lease.
    pub(super) fn phase(&self, lease: &Lease) -> LeasePhase {
        self.phases.get(&lease.key).copied().unwrap_or(LeasePhase::Blocked)
    }

    /// Returns true if a lease may be read.
    pub(super) fn is_open(&self, key: &LeaseKey) -> bool {
        self.phases.get(key) == Some(&LeasePhase::Ready)
    }

    /// Evaluates all leases. Where the rows are not enough, starts an attempt with a fresh shard
    /// list and single reads. The attempt wakes the loop when it has decisions.
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

    /// Starts an attempt for the gates that are due.
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

    /// Takes in the decisions of the attempts.
    fn take_in<S: LeaseStore, A: StreamApi>(&mut self, crew: &CoordinatorShared<S, A>) {
        let now_ms = crew.now_ms();
        // A gate that is only blocked by a failed call or a stale list must be tried again soon:
        // every shard is to be owned within two lease times.
        let half_ms = crew.settings().lease_time_ms / 2;
        // Finished attempts are removed first, so that all of their decisions are taken below.
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
    // A started row has passed the gate before.
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

// One attempt at the gates of a stream: one shard list and one list of rows for all of them, and
// single reads where these are not enough.
//
// ```text
// list shards ─► list rows ─► gate of each lease ─┬─► open or waits: reported at once
//                                   ▲             └─► needs a row ─┐
//                                   └── reads, each row once ◄─────┘
// ```

/// Number of gates that are decided before the loop is woken and other tasks get a turn.
const TOLD_AT_ONCE: usize = 256;

/// The result of trying a gate.
#[derive(Debug)]
pub(super) enum GateResult {
    /// The gate is open.
    Open,
    /// The gate waits for this parent.
    Waits(ShardId, WaitReason),
    /// A read failed.
    Undetermined,
}

/// Decisions that the loop has not taken in. An attempt decides each of its gates once.
#[derive(Debug, Default)]
pub(super) struct DecidedGates(Mutex<Vec<(LeaseKey, GateResult)>>);

impl DecidedGates {
    /// Takes out the decisions made so far.
    pub(super) fn take(&self) -> Vec<(LeaseKey, GateResult)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn extend(&self, some: impl IntoIterator<Item = (LeaseKey, GateResult)>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(some);
    }
}

/// One attempt at some gates of a stream.
pub(super) struct GateAttempt<S, A> {
    pub(super) tools: Arc<LeaseContext<S, A>>,
    pub(super) stream: StreamName,
    /// Receives each decision as it is made.
    pub(super) decided: Arc<DecidedGates>,
    /// Wakes the loop when there are decisions to take in.
    pub(super) wake: Arc<Notify>,
}

/// A gate that needs a row to be read.
struct UndecidedGate {
    lease: Lease,
    evidence: GateEvidence,
    next: ShardId,
}

/// The result of reading a row.
enum RowRead {
    Seen(RowState),
    NoAnswer,
}

impl<S: LeaseStore, A: StreamApi> GateAttempt<S, A> {
    /// Tries each gate. When the stream or the store does not answer, the rest wait for the next
    /// attempt. An unreadable row only blocks its own descendants.
    pub(super) async fn run(self, leases: Vec<Lease>) {
        let Some(listed) = self.listed().await.map(Arc::new) else {
            return self.emit_result(
                leases.into_iter().map(|lease| (lease.key, GateResult::Undetermined)),
            );
        };
        let mut undecided = Vec::new();
        for (i, lease) in leases.into_iter().enumerate() {
            let mut evidence = GateEvidence::default();
            evidence.listed(listed.clone());
            undecided.extend(self.decide(lease, evidence, &listed));
            if i % TOLD_AT_ONCE == TOLD_AT_ONCE - 1 {
                self.wake.notify_one();
                task::yield_now().await;
            }
        }
        // Decisions are reported in portions: the first gates open long before the last row is
        // read.
        while !undecided.is_empty() {
            self.wake.notify_one();
            let rest = undecided.split_off(undecided.len().min(TOLD_AT_ONCE));
            let mut some = undecided;
            while !some.is_empty() {
                let Some(more) = self.read_next_rows(some, &listed).await else {
                    return self.emit_result(
                        rest.into_iter().map(|it| (it.lease.key, GateResult::Undetermined)),
                    );
                };
                some = more;
            }
            undecided = rest;
        }
        self.wake.notify_one();
    }

    /// Decides a gate, or returns it with the row that it needs next.
    fn decide(
        &self,
        lease: Lease,
        evidence: GateEvidence,
        listed: &GateListing,
    ) -> Option<UndecidedGate> {
        let tried = match gate(&lease.key.shard, &lease.parents, &evidence) {
            Gate::Open => GateResult::Open,
            // The child itself is past retention, and so are its parents, which are older. The
            // worker that takes its lease finds that out and ends its row.
            Gate::Wait { why: WaitReason::ChildNotListed, .. } if is_missing(&lease, listed) => {
                GateResult::Open
            }
            Gate::Wait { parent, why } => GateResult::Waits(parent, why),
            Gate::NeedReads(rows) => match rows.into_iter().next() {
                Some(next) => return Some(UndecidedGate { lease, evidence, next }),
                None => GateResult::Undetermined,
            },
            // A list was provided.
            Gate::NeedList => GateResult::Undetermined,
        };
        self.decided.extend([(lease.key, tried)]);
        None
    }

    /// Reads the next row of each gate, each row once. Returns the gates that need more rows, or
    /// `None` if the store did not answer.
    async fn read_next_rows(
        &self,
        undecided: Vec<UndecidedGate>,
        listed: &GateListing,
    ) -> Option<Vec<UndecidedGate>> {
        let rows = undecided.iter().map(|it| it.next.clone()).collect();
        let reads = self.read_all(rows).await;
        let is_cut_off = reads.values().any(|read| matches!(read, RowRead::NoAnswer));
        let mut more = Vec::new();
        for UndecidedGate { lease, mut evidence, next } in undecided {
            let Some(RowRead::Seen(seen)) = reads.get(&next) else {
                self.decided.extend([(lease.key, GateResult::Undetermined)]);
                continue;
            };
            evidence.saw(next, *seen);
            more.extend(self.decide(lease, evidence, listed));
        }
        if is_cut_off {
            self.emit_result(more.into_iter().map(|it| (it.lease.key, GateResult::Undetermined)));
            return None;
        }
        Some(more)
    }

    /// Reads rows with bounded concurrency, until the store does not answer.
    async fn read_all(&self, rows: BTreeSet<ShardId>) -> BTreeMap<ShardId, RowRead> {
        let (mut reads, mut seen) = (JoinSet::new(), BTreeMap::new());
        let mut is_cut_off = false;
        for shard in rows {
            if reads.len() >= self.tools.settings.max_concurrent_writes
                && let Some(Ok((shard, read))) = reads.join_next().await
            {
                is_cut_off |= matches!(read, RowRead::NoAnswer);
                seen.insert(shard, read);
            }
            if is_cut_off {
                break;
            }
            let (tools, stream) = (self.tools.clone(), self.stream.clone());
            reads.spawn(async move {
                let key = LeaseKey { stream, shard };
                let read = read(&tools, &key).await;
                (key.shard, read)
            });
        }
        while let Some(ended) = reads.join_next().await {
            seen.extend(ended.ok());
        }
        seen
    }

    /// Lists the shards and then the rows, in this order.
    async fn listed(&self) -> Option<GateListing> {
        let (tools, stream) = (&self.tools, &self.stream);
        let shards =
            tools.call_stream(stream, tools.api.list_shards(stream, ShardFilter::All)).await;
        let shards = shards.inspect_err(|error| tools.emit_stream_failure(stream, error)).ok()?;
        let rows = tools.list(stream).await.ok()?;
        Some(GateListing::new(Lineage::new(shards.shards), &rows))
    }

    fn emit_result(&self, some: impl IntoIterator<Item = (LeaseKey, GateResult)>) {
        self.decided.extend(some);
        self.wake.notify_one();
    }
}

fn is_missing(lease: &Lease, listed: &GateListing) -> bool {
    listed.list().successors(&lease.key.shard, lease.range.as_ref()).is_some()
}

async fn read<S: LeaseStore, A>(tools: &LeaseContext<S, A>, key: &LeaseKey) -> RowRead {
    match tools.read_store(tools.store.get(key)).await {
        Ok(None) => RowRead::Seen(RowState::Absent),
        Ok(Some(row)) if row.is_ended() => RowRead::Seen(RowState::Ended),
        Ok(Some(_)) => RowRead::Seen(RowState::Unfinished),
        Err(StoreError::UnreadableRow { .. }) => RowRead::Seen(RowState::Unreadable),
        Err(_) => RowRead::NoAnswer,
    }
}
