//! One attempt at the gates of a stream: one list and one scan for all of them, and single reads
//! where these don't tell.
//!
//! ```text
//! list ─► scan ─► gate of each lease ─┬─► open, or waits: told at once
//!                      ▲              └─► needs a row read ─┐
//!                      └── a wave of reads, each row once ◄─┘
//! ```

use super::Tools;
use crate::lease::{LeaseStore, StoreError};
use crate::stream::api::{ShardFilter, StreamApi};
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::{Evidence, Gate, Lease, LeaseKey, Listed, RowSeen, WaitReason, gate};
use anabranch_model::lineage::Lineage;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;
use tokio::task::{self, JoinSet};

/// Gates that are decided before the loop hears of them and others get a turn.
const TOLD_AT_ONCE: usize = 256;

/// What an attempt at a gate came to.
#[derive(Debug)]
pub(super) enum Tried {
    /// It is open.
    Open,
    /// It waits for this parent.
    Waits(ShardId, WaitReason),
    /// Something could not be read.
    Unread,
}

/// Gates that were decided and that the loop has not taken in. Each gate of an attempt comes once.
#[derive(Debug, Default)]
pub(super) struct Decided(Mutex<Vec<(LeaseKey, Tried)>>);

impl Decided {
    /// Takes out what has been decided so far.
    pub(super) fn take(&self) -> Vec<(LeaseKey, Tried)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn extend(&self, some: impl IntoIterator<Item = (LeaseKey, Tried)>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(some);
    }
}

/// One attempt to pass gates of a stream.
pub(super) struct Attempt<S, A> {
    pub(super) tools: Arc<Tools<S, A>>,
    pub(super) stream: StreamName,
    /// Where each gate is told of as it is decided.
    pub(super) decided: Arc<Decided>,
    /// Wakes the loop when there is something to take in.
    pub(super) wake: Arc<Notify>,
}

/// A gate that needs a row read.
struct Undecided {
    lease: Lease,
    evidence: Evidence,
    /// The row to read next.
    next: ShardId,
}

/// What came of reading a row.
enum Read {
    Seen(RowSeen),
    /// The store did not answer.
    NoAnswer,
}

impl<S: LeaseStore, A: StreamApi> Attempt<S, A> {
    /// Tries each gate. When the stream or the store does not answer, the rest wait for the next
    /// attempt. A row that makes no sense is in the way of its own descendants alone.
    pub(super) async fn run(self, leases: Vec<Lease>) {
        let Some(listed) = self.listed().await.map(Arc::new) else {
            return self.tell(leases.into_iter().map(|lease| (lease.key, Tried::Unread)));
        };
        let mut undecided = Vec::new();
        for (i, lease) in leases.into_iter().enumerate() {
            let mut evidence = Evidence::default();
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
                let Some(more) = self.wave(some, &listed).await else {
                    return self.tell(rest.into_iter().map(|it| (it.lease.key, Tried::Unread)));
                };
                some = more;
            }
            undecided = rest;
        }
        self.wake.notify_one();
    }

    /// Decides a gate, or finds out which row it needs next.
    fn decide(&self, lease: Lease, evidence: Evidence, listed: &Listed) -> Option<Undecided> {
        let tried = match gate(&lease.key.shard, &lease.parents, &evidence) {
            Gate::Open => Tried::Open,
            // The child itself is past retention, and so are its parents, which are older.
            // Whoever takes it finds that out and ends its row.
            Gate::Wait { why: WaitReason::ChildNotListed, .. } if is_gone(&lease, listed) => {
                Tried::Open
            }
            Gate::Wait { parent, why } => Tried::Waits(parent, why),
            Gate::NeedReads(rows) => match rows.into_iter().next() {
                Some(next) => return Some(Undecided { lease, evidence, next }),
                None => Tried::Unread,
            },
            // There is a list.
            Gate::NeedList => Tried::Unread,
        };
        self.decided.extend([(lease.key, tried)]);
        None
    }

    /// Reads the next row of each gate, each row once. Returns the gates that need more; `None` if
    /// the store did not answer.
    async fn wave(&self, undecided: Vec<Undecided>, listed: &Listed) -> Option<Vec<Undecided>> {
        let rows = undecided.iter().map(|it| it.next.clone()).collect();
        let reads = self.read_all(rows).await;
        let is_cut_off = reads.values().any(|read| matches!(read, Read::NoAnswer));
        let mut more = Vec::new();
        for Undecided { lease, mut evidence, next } in undecided {
            let Some(Read::Seen(seen)) = reads.get(&next) else {
                self.decided.extend([(lease.key, Tried::Unread)]);
                continue;
            };
            evidence.saw(next, *seen);
            more.extend(self.decide(lease, evidence, listed));
        }
        if is_cut_off {
            self.tell(more.into_iter().map(|it| (it.lease.key, Tried::Unread)));
            return None;
        }
        Some(more)
    }

    /// Reads rows, some at a time, until the store does not answer.
    async fn read_all(&self, rows: BTreeSet<ShardId>) -> BTreeMap<ShardId, Read> {
        let (mut reads, mut seen) = (JoinSet::new(), BTreeMap::new());
        let mut is_cut_off = false;
        for shard in rows {
            if reads.len() >= self.tools.settings.writes_at_once
                && let Some(Ok((shard, read))) = reads.join_next().await
            {
                is_cut_off |= matches!(read, Read::NoAnswer);
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
    async fn listed(&self) -> Option<Listed> {
        let (tools, stream) = (&self.tools, &self.stream);
        let shards = tools.ask(stream, tools.api.list_shards(stream, ShardFilter::All)).await;
        let shards = shards.inspect_err(|error| tools.stream_trouble(stream, error)).ok()?;
        let rows = tools.list(stream).await.ok()?;
        Some(Listed::new(Lineage::new(shards.shards), &rows))
    }

    fn tell(&self, some: impl IntoIterator<Item = (LeaseKey, Tried)>) {
        self.decided.extend(some);
        self.wake.notify_one();
    }
}

fn is_gone(lease: &Lease, listed: &Listed) -> bool {
    listed.list().heirs(&lease.key.shard, lease.range.as_ref()).is_some()
}

async fn read<S: LeaseStore, A>(tools: &Tools<S, A>, key: &LeaseKey) -> Read {
    match tools.read(tools.store.get(key)).await {
        Ok(None) => Read::Seen(RowSeen::Absent),
        Ok(Some(row)) if row.is_ended() => Read::Seen(RowSeen::Ended),
        Ok(Some(_)) => Read::Seen(RowSeen::Unfinished),
        Err(StoreError::UnreadableRow { .. }) => Read::Seen(RowSeen::Unreadable),
        Err(_) => Read::NoAnswer,
    }
}
