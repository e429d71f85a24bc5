//! Which leases may be read: those whose gate is open.

use super::Tools;
use super::crew::Crew;
use crate::event::LeaseEvent;
use crate::lease::{LeaseStore, StoreError};
use crate::stream::api::{ShardFilter, StreamApi};
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::snapshot::Phase;
use anabranch_model::lease::{Evidence, Gate, Lease, LeaseKey, RowSeen, WaitReason, gate};
use anabranch_model::lineage::Lineage;
use std::collections::{BTreeMap, BTreeSet};
use tokio::task::{self, JoinSet};

/// The pause before a gate is tried for the second time, in milliseconds. Each try doubles it.
const FIRST_PAUSE_MS: u64 = 1_000;

/// The longest pause between two tries, in milliseconds, while it is known what a gate waits for.
const LONGEST_PAUSE_MS: u64 = 30_000;

/// What is known of the gates.
#[derive(Debug, Default)]
pub(super) struct Ready {
    /// How far each lease is, as last judged.
    phases: BTreeMap<LeaseKey, Phase>,
    /// Gates that were found open where rows alone don't tell. What has ended stays so.
    open: BTreeSet<LeaseKey>,
    /// Gates that were not found open: when to try them again.
    tries: BTreeMap<LeaseKey, Again>,
    /// Attempts under way, at most one per stream. They ask the service, which may hang, and no
    /// take of another lease waits for that.
    attempts: JoinSet<Vec<(LeaseKey, Tried)>>,
    /// The streams of those attempts.
    under_way: BTreeMap<task::Id, StreamName>,
}

/// When a gate is tried again.
#[derive(Debug)]
struct Again {
    /// Then, at the latest.
    at_ms: u64,
    /// After this pause.
    pause_ms: u64,
    /// As soon as the row of this shard has ended, if the gate waits for one.
    after: Option<ShardId>,
}

/// What the rows alone say about a gate.
enum ByRows {
    Known(Phase),
    /// A parent has no row.
    Unclear,
}

/// What an attempt at a gate came to.
#[derive(Debug)]
enum Tried {
    /// It is open.
    Open,
    /// It waits for this parent.
    Waits(ShardId, WaitReason),
    /// Something could not be read.
    Unread,
}

impl Ready {
    /// How far a lease is.
    pub(super) fn phase(&self, lease: &Lease) -> Phase {
        self.phases.get(&lease.key).copied().unwrap_or(Phase::Blocked)
    }

    /// Whether a lease may be read.
    pub(super) fn is_open(&self, key: &LeaseKey) -> bool {
        self.phases.get(key) == Some(&Phase::Ready)
    }

    /// Judges all leases anew. Where the rows don't tell, an attempt at the gate is begun, with a
    /// fresh list of the shards and single reads; it wakes the loop when it is over.
    pub(super) fn judge<S: LeaseStore, A: StreamApi>(
        &mut self,
        crew: &Crew<S, A>,
        rows: &BTreeMap<StreamName, Vec<Lease>>,
    ) {
        self.take_in(crew);
        let mut phases = BTreeMap::new();
        for (stream, rows) in rows {
            let by_shard: BTreeMap<_, _> = rows.iter().map(|row| (&row.key.shard, row)).collect();
            let mut unclear = Vec::new();
            for row in rows {
                let phase = match by_rows(row, &by_shard) {
                    ByRows::Known(phase) => phase,
                    ByRows::Unclear if self.open.contains(&row.key) => Phase::Ready,
                    ByRows::Unclear => {
                        unclear.push(row);
                        Phase::Blocked
                    }
                };
                phases.insert(row.key.clone(), phase);
            }
            self.try_gates(crew, stream, unclear, &by_shard);
        }
        self.tries.retain(|key, _| phases.get(key) == Some(&Phase::Blocked));
        self.open.retain(|key| phases.contains_key(key));
        self.phases = phases;
    }

    /// Begins to try the gates that are due.
    fn try_gates<S: LeaseStore, A: StreamApi>(
        &mut self,
        crew: &Crew<S, A>,
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
        let (tools, wake, name) = (crew.tools.clone(), crew.wake.clone(), stream.clone());
        let attempt = self.attempts.spawn(async move {
            let tried = Attempt { tools: &tools, stream: &name, list: None, is_cut_off: false }
                .all(due)
                .await;
            wake.notify_one();
            tried
        });
        self.under_way.insert(attempt.id(), stream.clone());
    }

    /// Takes in what the attempts that are over came to.
    fn take_in<S: LeaseStore, A: StreamApi>(&mut self, crew: &Crew<S, A>) {
        let now_ms = crew.now_ms();
        // What only a call that failed or an old list stands in the way of must not wait for the
        // two lease times in which every shard is to be owned.
        let half_ms = crew.settings().lease_time_ms / 2;
        while let Some(ended) = self.attempts.try_join_next_with_id() {
            let (id, tried) = match ended {
                Ok((id, tried)) => (id, tried),
                Err(error) => (error.id(), Vec::new()),
            };
            self.under_way.remove(&id);
            for (key, tried) in tried {
                match tried {
                    Tried::Open => {
                        self.tries.remove(&key);
                        self.open.insert(key);
                    }
                    Tried::Waits(parent, why) => {
                        let (after, longest_ms) = match &why {
                            WaitReason::AncestorUnfinished(shard)
                            | WaitReason::UnlistedUnfinished(shard) => {
                                (Some(shard.clone()), LONGEST_PAUSE_MS)
                            }
                            WaitReason::ParentUnfinished => {
                                (Some(parent.clone()), LONGEST_PAUSE_MS)
                            }
                            WaitReason::ChildNotListed => (None, half_ms),
                        };
                        if !self.tries.contains_key(&key) {
                            let lease = key.clone();
                            crew.tools.tell(LeaseEvent::Waiting { lease, parent, why });
                        }
                        self.later(&key, now_ms, longest_ms, after);
                    }
                    Tried::Unread => self.later(&key, now_ms, half_ms, None),
                }
            }
        }
    }

    fn later(&mut self, key: &LeaseKey, now_ms: u64, longest_ms: u64, after: Option<ShardId>) {
        let before_ms = self.tries.get(key).map_or(FIRST_PAUSE_MS / 2, |again| again.pause_ms);
        let pause_ms = (before_ms * 2).min(longest_ms.min(LONGEST_PAUSE_MS));
        let again = Again { at_ms: now_ms + pause_ms, pause_ms, after };
        self.tries.insert(key.clone(), again);
    }
}

fn by_rows(row: &Lease, rows: &BTreeMap<&ShardId, &Lease>) -> ByRows {
    if row.is_ended() {
        return ByRows::Known(Phase::Finished);
    }
    // A row that has moved was let through the gate before.
    if row.has_moved() {
        return ByRows::Known(Phase::Ready);
    }
    let parents: Vec<_> = row.parents.iter().map(|parent| rows.get(parent)).collect();
    if parents.iter().flatten().any(|parent| !parent.is_ended()) {
        ByRows::Known(Phase::Blocked)
    } else if parents.iter().all(Option::is_some) {
        ByRows::Known(Phase::Ready)
    } else {
        ByRows::Unclear
    }
}

/// One attempt to pass gates of a stream: one fresh list for all of them, reads for each.
struct Attempt<'a, S, A> {
    tools: &'a Tools<S, A>,
    stream: &'a StreamName,
    /// The shards and then the rows, in this order.
    list: Option<(Lineage, Vec<Lease>)>,
    /// Whether the stream or the store did not answer.
    is_cut_off: bool,
}

impl<S: LeaseStore, A: StreamApi> Attempt<'_, S, A> {
    /// Tries each gate. When the stream or the store does not answer, the rest wait for the next
    /// attempt. A row that makes no sense is in the way of its own descendants alone.
    async fn all(&mut self, leases: Vec<Lease>) -> Vec<(LeaseKey, Tried)> {
        let mut tried = Vec::new();
        for lease in leases {
            let passed = if self.is_cut_off { None } else { self.pass(&lease).await };
            let became = match passed {
                Some(Ok(())) => Tried::Open,
                Some(Err((parent, why))) => Tried::Waits(parent, why),
                None => Tried::Unread,
            };
            tried.push((lease.key, became));
        }
        tried
    }

    /// Whether the gate is open, or what it waits for. `None` if something could not be read.
    async fn pass(&mut self, lease: &Lease) -> Option<Result<(), (ShardId, WaitReason)>> {
        let child = &lease.key.shard;
        let mut evidence = Evidence::default();
        loop {
            match gate(child, &lease.parents, &evidence) {
                Gate::Open => return Some(Ok(())),
                // The child itself is past retention, and so are its parents, which are older.
                // Whoever takes it finds that out and ends its row.
                Gate::Wait { why: WaitReason::ChildNotListed, .. } if self.is_gone(lease) => {
                    return Some(Ok(()));
                }
                Gate::Wait { parent, why } => return Some(Err((parent, why))),
                Gate::NeedList => {
                    let (lineage, scan) = self.listed().await?;
                    evidence.listed(lineage.clone(), scan);
                }
                Gate::NeedReads(shards) => {
                    for shard in shards {
                        let seen = self.read(&shard).await?;
                        evidence.saw(shard, seen);
                    }
                }
            }
        }
    }

    fn is_gone(&self, lease: &Lease) -> bool {
        let (shard, range) = (&lease.key.shard, lease.range.as_ref());
        self.list.as_ref().is_some_and(|(list, _)| list.heirs(shard, range).is_some())
    }

    async fn listed(&mut self) -> Option<&(Lineage, Vec<Lease>)> {
        if self.list.is_none() {
            let listed = self
                .tools
                .ask(self.stream, self.tools.api.list_shards(self.stream, ShardFilter::All))
                .await;
            let shards = listed.inspect_err(|error| self.tools.stream_trouble(self.stream, error));
            let rows = self.tools.read(self.tools.store.list(self.stream)).await.ok();
            let (Ok(list), Some(rows)) = (shards, rows) else {
                self.is_cut_off = true;
                return None;
            };
            self.list = Some((Lineage::new(list.shards), rows));
        }
        self.list.as_ref()
    }

    async fn read(&mut self, shard: &ShardId) -> Option<RowSeen> {
        let key = LeaseKey { stream: self.stream.clone(), shard: shard.clone() };
        match self.tools.read(self.tools.store.get(&key)).await {
            Ok(None) => Some(RowSeen::Absent),
            Ok(Some(row)) if row.is_ended() => Some(RowSeen::Ended),
            Ok(Some(_)) => Some(RowSeen::Unfinished),
            Err(StoreError::UnreadableRow { row, detail, .. }) => {
                self.tools.tell(LeaseEvent::UnreadableRow { row, why: detail });
                None
            }
            Err(_) => {
                self.is_cut_off = true;
                None
            }
        }
    }
}
