//! The workers of an application. Each step of each shard's reader is taken separately.

use crate::stream::{SeededRng, Stream};
use anabranch_model::coverage::holes;
use anabranch_model::ids::ShardId;
use anabranch_model::lease::{
    Gate, GateEvidence, GateListing, Lease, NewLease, OnInconsistentChild, Protocol, RowState,
    WaitReason, first_sync, gate, sync,
};
use anabranch_model::lineage::Lineage;
use anabranch_model::position::{Position, StartPosition};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::sync::Arc;

/// A deliberate flaw of the rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LeaseHistoryFlaw {
    None,
    /// A merged child starts when one of its parents has ended.
    OneParentSuffices,
    /// A parent without a row counts as ended.
    MissingRowIsAnEnd,
    /// The rows are read from the parent up to its oldest ancestor.
    NewestRowFirst,
    /// Unfinished rows of unlisted shards are ignored.
    UnlistedRowsDoNotCount,
    /// The shard's end is written first.
    EndBeforeTheChildrensRows,
}

/// Number of times that each interesting case occurred.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HistoryCounts {
    pub(crate) merges_started: u32,
    pub(crate) waited_for_ancestor: u32,
    pub(crate) waited_for_unlisted: u32,
    pub(crate) opened_without_row: u32,
    pub(crate) lost_shards: u32,
    pub(crate) lost_rangeless: u32,
    pub(crate) repairs: u32,
}

impl AddAssign for HistoryCounts {
    fn add_assign(&mut self, more: Self) {
        self.merges_started += more.merges_started;
        self.waited_for_ancestor += more.waited_for_ancestor;
        self.waited_for_unlisted += more.waited_for_unlisted;
        self.opened_without_row += more.opened_without_row;
        self.lost_shards += more.lost_shards;
        self.lost_rangeless += more.lost_rangeless;
        self.repairs += more.repairs;
    }
}

/// Progress of the reader of an unfinished row. A crash resets it to the gate.
enum ReaderPhase {
    AtTheGate {
        evidence: GateEvidence,
        read_ahead: Vec<(ShardId, RowState)>,
    },
    /// The first rows of a scan were read, up to this shard, and the rest are not.
    Scanning {
        evidence: GateEvidence,
        list: Lineage,
        scan: Vec<Lease>,
        up_to: ShardId,
    },
    Reading,
    MakingRows {
        rows: Vec<NewLease>,
    },
}

impl Default for ReaderPhase {
    fn default() -> Self {
        Self::AtTheGate { evidence: GateEvidence::default(), read_ahead: Vec::new() }
    }
}

pub(crate) struct HistoryFleet {
    /// Lease rows.
    rows: BTreeMap<ShardId, Lease>,
    /// Readers of unfinished rows that have begun anything.
    phases: BTreeMap<ShardId, ReaderPhase>,
    /// Shards of which a record was delivered, and those delivered completely.
    started: BTreeSet<ShardId>,
    drained: BTreeSet<ShardId>,
    /// Shards closed by this time are not to be read.
    from: u64,
    start: StartPosition,
    protocol: Protocol,
    flaw: LeaseHistoryFlaw,
    /// True if some rows lack their range, as old versions of KCL leave them.
    rangeless: bool,
    pub(crate) seen: HistoryCounts,
    /// Log of events, to explain why a history failed.
    story: Vec<String>,
}

impl HistoryFleet {
    /// Runs the first sync, with crashes that each leave some rows missing.
    pub(crate) fn start(stream: &mut Stream, dice: &mut SeededRng, flaw: LeaseHistoryFlaw) -> Self {
        let start = match dice.below(3) {
            0 => StartPosition::TrimHorizon,
            1 => StartPosition::Latest,
            _ => StartPosition::AtTimestamp(dice.below(stream.now + 1)),
        };
        let mut fleet = Self {
            rows: BTreeMap::new(),
            phases: BTreeMap::new(),
            started: BTreeSet::new(),
            drained: BTreeSet::new(),
            from: 0,
            start,
            protocol: Protocol::Native { t0_ms: stream.now },
            flaw,
            rangeless: dice.one_in(2),
            seen: HistoryCounts::default(),
            story: Vec::new(),
        };
        let t0 = stream.now;
        loop {
            let time = match start {
                StartPosition::TrimHorizon => 0,
                StartPosition::Latest => t0,
                StartPosition::AtTimestamp(time) => time,
            };
            let list = stream.list_open_at(time);
            let new =
                first_sync(&list, start, fleet.protocol, OnInconsistentChild::Refuse).unwrap();
            let crash = dice.one_in(3);
            let made = if crash { dice.below(8) } else { u64::MAX };
            for lease in new.into_iter().take(usize::try_from(made).unwrap()) {
                fleet.create(lease, "by the first sync");
            }
            if !crash {
                fleet.from = time.max(stream.horizon);
                return fleet;
            }
            stream.change(dice);
        }
    }

    fn create(&mut self, new: NewLease, why: &str) {
        if !self.rows.contains_key(&new.shard) {
            self.story.push(format!("row of {} made {why}", new.shard));
        }
        let rangeless = self.rangeless && new.shard.index().is_some_and(|index| index % 3 != 1);
        self.rows.entry(new.shard.clone()).or_insert_with(|| {
            let row = new.into_lease(&"s".into());
            Lease { range: row.range.filter(|_| !rangeless), ..row }
        });
    }

    fn look(&self, id: &ShardId) -> RowState {
        self.rows.get(id).map_or(RowState::Absent, |row| {
            if row.is_ended() { RowState::Ended } else { RowState::Unfinished }
        })
    }

    fn is_to_be_read(&self, stream: &Stream, id: &ShardId) -> bool {
        stream.closed_at(id).is_none_or(|closed| closed > self.from)
    }

    /// Lets the reader of one unfinished row take one step.
    pub(crate) fn step(&mut self, stream: &Stream, dice: &mut SeededRng) -> Result<(), String> {
        let unfinished: Vec<_> = self.rows.values().filter(|row| !row.is_ended()).collect();
        let Some(row) = dice.pick(&unfinished).map(|row| (*row).clone()) else { return Ok(()) };
        let id = row.key.shard.clone();
        let phase = self.phases.remove(&id).unwrap_or_default();
        let next = match phase {
            ReaderPhase::AtTheGate { .. } | ReaderPhase::Scanning { .. } | ReaderPhase::Reading
                if !stream.knows(&id) =>
            {
                self.give_up(&id, stream, dice)
            }
            ReaderPhase::Scanning { mut evidence, list, mut scan, up_to } => {
                scan.extend(self.rows.range(up_to..).map(|(_, row)| row.clone()));
                evidence.listed(Arc::new(GateListing::new(list, &scan.into())));
                Some(ReaderPhase::AtTheGate { evidence, read_ahead: Vec::new() })
            }
            ReaderPhase::AtTheGate { evidence, read_ahead } => {
                Some(self.advance_gate(&row, evidence, read_ahead, stream, dice)?)
            }
            ReaderPhase::Reading if stream.closed_at(&id).is_none() => Some(ReaderPhase::Reading),
            ReaderPhase::Reading => {
                self.drained.insert(id.clone());
                let mut rows: Vec<_> = stream.children(&id).map(NewLease::child).collect();
                if dice.one_in(2) {
                    rows.reverse();
                }
                if self.flaw == LeaseHistoryFlaw::EndBeforeTheChildrensRows {
                    self.end(&id);
                    // The reader of an ended row is gone; the rows come later, or never.
                    if dice.one_in(2) {
                        for new in rows {
                            self.create(new, "too late");
                        }
                    }
                    None
                } else {
                    Some(ReaderPhase::MakingRows { rows })
                }
            }
            ReaderPhase::MakingRows { mut rows } => {
                if let Some(new) = rows.pop() {
                    self.create(new, &format!("by {id}"));
                    Some(ReaderPhase::MakingRows { rows })
                } else {
                    self.end(&id);
                    None
                }
            }
        };
        self.phases.extend(next.map(|phase| (id, phase)));
        Ok(())
    }

    fn end(&mut self, id: &ShardId) {
        let row = self.rows.get_mut(id).expect("only rows of the table are read");
        row.checkpoint = Position::ShardEnd.into();
        self.story.push(format!("{id} ended"));
    }

    /// Handles a shard that the service no longer knows: once a list confirms it, its successors
    /// get rows.
    fn give_up(
        &mut self,
        id: &ShardId,
        stream: &Stream,
        dice: &mut SeededRng,
    ) -> Option<ReaderPhase> {
        let list = stream.any_list(dice);
        let heirs = list.successors(id, self.rows.get(id)?.range.as_ref())?;
        self.seen.lost_shards += u32::from(!self.drained.contains(id));
        self.seen.lost_rangeless += u32::from(self.rows[id].range.is_none());
        self.story.push(format!("{id} is gone"));
        Some(ReaderPhase::MakingRows { rows: heirs.into_iter().map(NewLease::child).collect() })
    }

    fn advance_gate(
        &mut self,
        row: &Lease,
        mut evidence: GateEvidence,
        mut read_ahead: Vec<(ShardId, RowState)>,
        stream: &Stream,
        dice: &mut SeededRng,
    ) -> Result<ReaderPhase, String> {
        match self.decide(row, &evidence) {
            Gate::Open => {
                self.begin(&row.key.shard, stream)?;
                return Ok(ReaderPhase::Reading);
            }
            Gate::Wait { why, .. } => {
                match why {
                    WaitReason::AncestorUnfinished(_) => self.seen.waited_for_ancestor += 1,
                    WaitReason::UnlistedUnfinished(_) => self.seen.waited_for_unlisted += 1,
                    WaitReason::ParentUnfinished
                    | WaitReason::ChildNotListed
                    | WaitReason::Unreadable(_) => {}
                }
                return Ok(ReaderPhase::default());
            }
            Gate::NeedList => {
                let list = stream.any_list(dice);
                let (mut scan, up_to): (Vec<_>, _) = match self.flaw {
                    LeaseHistoryFlaw::UnlistedRowsDoNotCount => (Vec::new(), None),
                    // A long scan reads its rows at different moments.
                    _ if dice.one_in(2) => {
                        let ids: Vec<_> = self.rows.keys().cloned().collect();
                        (Vec::new(), dice.pick(&ids).cloned())
                    }
                    _ => (self.rows.values().cloned().collect(), None),
                };
                if let Some(up_to) = up_to {
                    scan.extend(self.rows.range(..&up_to).map(|(_, row)| row.clone()));
                    return Ok(ReaderPhase::Scanning { evidence, list, scan, up_to });
                }
                evidence.listed(Arc::new(GateListing::new(list, &scan.into())));
            }
            Gate::NeedReads(ids) if self.flaw == LeaseHistoryFlaw::NewestRowFirst => {
                let is_read = |id: &ShardId| read_ahead.iter().any(|(read, _)| read == id);
                if let Some(id) = ids.iter().rev().find(|id| !is_read(id)) {
                    read_ahead.push((id.clone(), self.look(id)));
                } else {
                    for id in ids {
                        let (_, seen) = *read_ahead.iter().find(|(read, _)| *read == id).unwrap();
                        evidence.saw(id, seen);
                    }
                    read_ahead.clear();
                }
            }
            Gate::NeedReads(ids) => {
                // A driver reads the next row, or several at once without an event in between.
                for id in ids.into_iter().take(1 + usize::try_from(dice.below(2)).unwrap()) {
                    let seen = self.look(&id);
                    evidence.saw(id, seen);
                }
            }
        }
        Ok(ReaderPhase::AtTheGate { evidence, read_ahead })
    }

    fn decide(&self, row: &Lease, evidence: &GateEvidence) -> Gate {
        let sound = gate(&row.key.shard, &row.parents, evidence);
        match (self.flaw, &sound) {
            (LeaseHistoryFlaw::MissingRowIsAnEnd, Gate::NeedList) => Gate::Open,
            (LeaseHistoryFlaw::OneParentSuffices, _) => {
                let mut each = row
                    .parents
                    .iter()
                    .map(|parent| gate(&row.key.shard, std::slice::from_ref(parent), evidence));
                if each.any(|gate| gate == Gate::Open) { Gate::Open } else { sound }
            }
            _ => sound,
        }
    }

    /// Delivers the first record of a shard.
    fn begin(&mut self, id: &ShardId, stream: &Stream) -> Result<(), String> {
        let ancestors = stream.ancestors(id);
        for ancestor in &ancestors {
            let holds_data = self.is_to_be_read(stream, ancestor) && stream.knows(ancestor);
            if holds_data && !self.drained.contains(*ancestor) {
                return Err(format!("{id} starts before {ancestor} is drained"));
            }
        }
        self.story.push(format!("{id} starts"));
        if self.started.insert(id.clone()) && self.is_to_be_read(stream, id) {
            if let Some(later) =
                self.started.iter().find(|other| stream.ancestors(other).contains(&id))
            {
                return Err(format!("{id} starts after its descendant {later}"));
            }
            self.seen.merges_started += u32::from(stream.get(id).parents().count() == 2);
            let mut parents = stream.get(id).parents();
            self.seen.opened_without_row +=
                u32::from(parents.any(|parent| !self.rows.contains_key(parent)));
        }
        Ok(())
    }

    /// Crashes a worker: its reader's state is gone, and its writes stay.
    pub(crate) fn crash(&mut self, dice: &mut SeededRng) {
        let reading: Vec<_> = self.phases.keys().cloned().collect();
        if let Some(id) = dice.pick(&reading) {
            self.phases.remove(id);
        }
    }

    /// Runs a sync over existing rows, which may crash halfway.
    pub(crate) fn audit(&mut self, stream: &Stream, dice: &mut SeededRng) {
        let rows: Vec<_> = self.rows.values().cloned().collect();
        let list = stream.any_list(dice);
        let new = sync(&list, &rows, self.start, self.protocol, OnInconsistentChild::Refuse);
        let made = usize::try_from(1 + dice.below(4)).unwrap();
        for lease in new.unwrap().into_iter().take(made) {
            self.seen.repairs += 1;
            self.create(lease, "by an audit");
        }
    }

    /// Deletes a finished row if a full list no longer shows its shard.
    pub(crate) fn delete_a_tombstone(&mut self, stream: &Stream, dice: &mut SeededRng) {
        let finished: Vec<_> = self.rows.values().filter(|row| row.is_ended()).collect();
        let Some(id) = dice.pick(&finished).map(|row| row.key.shard.clone()) else { return };
        if !stream.knows(&id) {
            self.rows.remove(&id);
            self.story.push(format!("row of {id} deleted"));
        }
    }

    /// Returns true if nothing is left to do but to read the open shards.
    pub(crate) fn is_at_rest(&self, stream: &Stream) -> bool {
        self.rows.values().filter(|row| !row.is_ended()).all(|row| {
            let reading = matches!(self.phases.get(&row.key.shard), Some(ReaderPhase::Reading));
            reading && stream.closed_at(&row.key.shard).is_none()
        })
    }

    pub(crate) fn check_nothing_is_lost(&self, stream: &Stream) -> Result<(), String> {
        let read = self.rows.values().filter(|row| !row.is_ended());
        let holes = holes(read.map(|row| stream.get(&row.key.shard).range));
        if !holes.is_empty() {
            return Err(format!("nobody reads {holes:?}: {}", self.describe(stream)));
        }
        for shard in stream.all().filter(|shard| stream.knows(&shard.id)) {
            let done = if shard.is_open() { &self.started } else { &self.drained };
            if self.is_to_be_read(stream, &shard.id) && !done.contains(&shard.id) {
                return Err(format!("{} is never read: {}", shard.id, self.describe(stream)));
            }
        }
        Ok(())
    }

    /// Describes the history so far and the shards of the stream.
    pub(crate) fn describe(&self, stream: &Stream) -> String {
        let shards: Vec<_> = stream
            .all()
            .map(|shard| {
                let parents: Vec<_> = shard.parents().filter_map(ShardId::index).collect();
                let known = if stream.knows(&shard.id) { "" } else { ", trimmed" };
                let closed = stream.closed_at(&shard.id);
                format!("{} from {parents:?}, closed {closed:?}{known}", shard.id)
            })
            .collect();
        format!("from {}\n{}\n{}", self.from, shards.join("\n"), self.story.join("\n"))
    }
}
