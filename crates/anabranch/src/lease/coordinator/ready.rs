//! Which leases may be read: those whose gate is open.

use super::Tools;
use crate::event::LeaseEvent;
use crate::lease::LeaseStore;
use crate::stream::api::{ShardFilter, StreamApi};
use anabranch_model::hash::HashRange;
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::snapshot::Phase;
use anabranch_model::lease::{Evidence, Gate, Lease, LeaseKey, RowSeen, WaitReason, gate};
use anabranch_model::lineage::Lineage;
use std::collections::{BTreeMap, BTreeSet};

/// The pause before a gate is tried for the second time, in milliseconds. Each try doubles it.
const FIRST_PAUSE_MS: u64 = 1_000;

/// The longest pause between two tries, in milliseconds.
const LONGEST_PAUSE_MS: u64 = 30_000;

/// What is known of the gates.
#[derive(Debug, Default)]
pub(super) struct Ready {
    /// How far each lease is, as last judged.
    phases: BTreeMap<LeaseKey, Phase>,
    /// Gates that were found open where rows alone don't tell. What has ended stays so.
    open: BTreeSet<LeaseKey>,
    /// Gates that were found closed: when to try again, after which pause.
    tries: BTreeMap<LeaseKey, (u64, u64)>,
}

/// What the rows alone say about a gate.
enum ByRows {
    Known(Phase),
    /// A parent has no row.
    Unclear,
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

    /// Judges all leases anew. Where the rows don't tell, the gate is tried, with a fresh list of
    /// the shards and single reads.
    pub(super) async fn judge<S: LeaseStore, A: StreamApi>(
        &mut self,
        tools: &Tools<S, A>,
        rows: &BTreeMap<StreamName, Vec<Lease>>,
    ) {
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
            for key in self.try_gates(tools, stream, unclear).await {
                phases.insert(key.clone(), Phase::Ready);
                self.open.insert(key);
            }
        }
        self.tries.retain(|key, _| phases.get(key) == Some(&Phase::Blocked));
        self.open.retain(|key| phases.contains_key(key));
        self.phases = phases;
    }

    /// Tries the gates that are due. Returns those that are open.
    async fn try_gates<S: LeaseStore, A: StreamApi>(
        &mut self,
        tools: &Tools<S, A>,
        stream: &StreamName,
        unclear: Vec<&Lease>,
    ) -> Vec<LeaseKey> {
        let now_ms = tools.clock.now_ms();
        let due = |key: &LeaseKey| self.tries.get(key).is_none_or(|(at_ms, _)| *at_ms <= now_ms);
        let due: Vec<&Lease> = unclear.into_iter().filter(|lease| due(&lease.key)).collect();
        let mut attempt = Attempt { tools, stream, list: None };
        let mut open = Vec::new();
        for lease in due {
            match attempt.pass(lease).await {
                Some(Ok(())) => {
                    self.tries.remove(&lease.key);
                    open.push(lease.key.clone());
                }
                Some(Err((parent, why))) => {
                    if !self.tries.contains_key(&lease.key) {
                        let lease = lease.key.clone();
                        tools.tell(LeaseEvent::Waiting { lease, parent, why });
                    }
                    self.later(&lease.key, now_ms);
                }
                None => self.later(&lease.key, now_ms),
            }
        }
        open
    }

    fn later(&mut self, key: &LeaseKey, now_ms: u64) {
        let (at_ms, pause_ms) = self.tries.entry(key.clone()).or_insert((0, FIRST_PAUSE_MS / 2));
        *pause_ms = (*pause_ms * 2).min(LONGEST_PAUSE_MS);
        *at_ms = now_ms + *pause_ms;
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
}

impl<S: LeaseStore, A: StreamApi> Attempt<'_, S, A> {
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
        let range = lease.range.unwrap_or(HashRange::ALL);
        let heirs = self.list.as_ref().and_then(|(list, _)| list.heirs(&lease.key.shard, &range));
        heirs.is_some()
    }

    async fn listed(&mut self) -> Option<&(Lineage, Vec<Lease>)> {
        if self.list.is_none() {
            let listed = self
                .tools
                .ask(self.stream, self.tools.api.list_shards(self.stream, ShardFilter::All))
                .await;
            let shards = listed.inspect_err(|error| self.tools.stream_trouble(self.stream, error));
            let rows = self.tools.read(self.tools.store.list(self.stream)).await.ok();
            self.list = Some((Lineage::new(shards.ok()?.shards), rows?));
        }
        self.list.as_ref()
    }

    async fn read(&self, shard: &ShardId) -> Option<RowSeen> {
        let key = LeaseKey { stream: self.stream.clone(), shard: shard.clone() };
        let row = self.tools.read(self.tools.store.get(&key)).await.ok()?;
        Some(match row {
            None => RowSeen::Absent,
            Some(row) if row.is_ended() => RowSeen::Ended,
            Some(_) => RowSeen::Unfinished,
        })
    }
}
