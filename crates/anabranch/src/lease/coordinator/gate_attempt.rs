//! One attempt at the gates of a stream: one list and one scan for all of them, and single reads
//! where these don't tell.
//!
//! ```text
//! list ─► scan ─► gate of each lease ─┬─► open, or waits: told at once
//!                      ▲              └─► needs a row read ─┐
//!                      └── a wave of reads, each row once ◄─┘
//! ```

use super::LeaseContext;
use crate::lease::{LeaseStore, StoreError};
use crate::stream::api::{ShardFilter, StreamApi};
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::{
    Gate, GateEvidence, GateListing, Lease, LeaseKey, RowState, WaitReason, gate,
};
use anabranch_model::lineage::Lineage;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;
use tokio::task::{self, JoinSet};

/// Gates that are decided before the loop hears of them and others get a turn.
const TOLD_AT_ONCE: usize = 256;

/// What an attempt at a gate came to.
#[derive(Debug)]
pub(super) enum GateResult {
    /// It is open.
    Open,
    /// It waits for this parent.
    Waits(ShardId, WaitReason),
    /// Something could not be read.
    Undetermined,
}

/// Gates that were decided and that the loop has not taken in. Each gate of an attempt comes once.
#[derive(Debug, Default)]
pub(super) struct DecidedGates(Mutex<Vec<(LeaseKey, GateResult)>>);

impl DecidedGates {
    /// Takes out what has been decided so far.
    pub(super) fn take(&self) -> Vec<(LeaseKey, GateResult)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn extend(&self, some: impl IntoIterator<Item = (LeaseKey, GateResult)>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(some);
    }
}

/// One attempt to pass gates of a stream.
pub(super) struct GateAttempt<S, A> {
    pub(super) tools: Arc<LeaseContext<S, A>>,
    pub(super) stream: StreamName,
    /// Where each gate is told of as it is decided.
    pub(super) decided: Arc<DecidedGates>,
    /// Wakes the loop when there is something to take in.
    pub(super) wake: Arc<Notify>,
}

/// A gate that needs a row read.
struct UndecidedGate {
    lease: Lease,
    evidence: GateEvidence,
    /// The row to read next.
    next: ShardId,
}

/// What came of reading a row.
enum RowRead {
    Seen(RowState),
    /// The store did not answer.
    NoAnswer,
}

impl<S: LeaseStore, A: StreamApi> GateAttempt<S, A> {
    /// Tries each gate. When the stream or the store does not answer, the rest wait for the next
    /// attempt. A row that makes no sense is in the way of its own descendants alone.
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
        // The first gates open long before the last row is read.
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

    /// Decides a gate, or finds out which row it needs next.
    fn decide(
        &self,
        lease: Lease,
        evidence: GateEvidence,
        listed: &GateListing,
    ) -> Option<UndecidedGate> {
        let tried = match gate(&lease.key.shard, &lease.parents, &evidence) {
            Gate::Open => GateResult::Open,
            // The child itself is past retention, and so are its parents, which are older.
            // Whoever takes it finds that out and ends its row.
            Gate::Wait { why: WaitReason::ChildNotListed, .. } if is_missing(&lease, listed) => {
                GateResult::Open
            }
            Gate::Wait { parent, why } => GateResult::Waits(parent, why),
            Gate::NeedReads(rows) => match rows.into_iter().next() {
                Some(next) => return Some(UndecidedGate { lease, evidence, next }),
                None => GateResult::Undetermined,
            },
            // There is a list.
            Gate::NeedList => GateResult::Undetermined,
        };
        self.decided.extend([(lease.key, tried)]);
        None
    }

    /// Reads the next row of each gate, each row once. Returns the gates that need more; `None` if
    /// the store did not answer.
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

    /// Reads rows, some at a time, until the store does not answer.
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

    /// The shards and then the rows, in this order.
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
