//! Duplicates checker (G4).
//!
//! - Records behind the checkpoint are never delivered again.
//! - Nothing is redelivered after a worker released the lease in an orderly stop.
//! - Under one term, a record is delivered again only if it failed.

use super::retention::host_of;
use super::violation::{Violation, of_grain};
use crate::history::{HistoryEvent, HistoryLine, HostId, brief};
use crate::record_source::SimRecord;
use anabranch::event::{Event, LeaseEvent, ShardEvent, ShardStopReason};
use anabranch_model::lease::{
    Checkpoint, Layout, Lease, LeaseChange, LeaseKey, LeaseToken, StoredRow, Write, WriteOutcome,
};
use anabranch_model::position::Position;
use std::collections::{BTreeMap, BTreeSet};

/// The guarantee this checker verifies.
pub const PROMISE: &str =
    "duplicates are bounded by the checkpoint, and none follow a stop in order";

#[derive(Default)]
struct DuplicateState<'a> {
    /// True if the library itself checkpoints records that are done.
    by_itself: bool,
    /// True if a row has one position for all lanes.
    one_position: bool,
    /// True if there may be several lanes.
    has_lanes: bool,
    /// Positions of the records that were put and must be delivered.
    puts: BTreeMap<&'a LeaseKey, BTreeSet<Position>>,
    /// Checkpoint of the row at the start of each term.
    began: BTreeMap<(LeaseKey, u64), Checkpoint>,
    /// Term under which the lease was taken, for each later value of its counter. Only in KCL's
    /// layout do writes other than a take advance the counter.
    taken: BTreeMap<(&'a LeaseKey, u64), u64>,
    /// Positions that each host received of a shard since it last acquired the lease.
    arrived: BTreeMap<(HostId, &'a LeaseKey), BTreeSet<Position>>,
    /// Records that were handed out under each lease token and have not failed.
    handed: BTreeSet<(&'a LeaseKey, u64, Position)>,
    /// Records that are done under each lease token.
    done: BTreeMap<(&'a LeaseKey, u64), Vec<&'a SimRecord>>,
    /// Term under which each host last received records of a shard.
    reads: BTreeMap<(Option<HostId>, &'a LeaseKey), u64>,
    /// Lease tokens whose reading has ended. Records done later are not checkpointed: an
    /// application that takes records from a stream may still work on one.
    over: BTreeSet<(&'a LeaseKey, u64)>,
    /// Lease tokens whose reading ended because the lease was lost. Nothing could be checkpointed
    /// then, even if no other worker took the row and this worker passes it on later.
    lost: BTreeSet<(&'a LeaseKey, u64)>,
    /// Lease tokens whose last checkpoint the store refused for good.
    refused: BTreeSet<(&'a LeaseKey, u64)>,
}

/// Checks that every redelivery was justified, in the native layout.
pub fn check(lines: &[HistoryLine]) -> Option<Violation> {
    check_in(lines, Layout::Native, true, true)
}

/// Checks that every redelivery was justified. A row in KCL's layout has one position for all
/// lanes, so records done above the lowest lane are redelivered while any lane still has work. If
/// the library does not checkpoint done records `by_itself`, a release may carry an older position.
pub fn check_in(
    lines: &[HistoryLine],
    layout: Layout,
    has_lanes: bool,
    by_itself: bool,
) -> Option<Violation> {
    let one_position = layout == Layout::Kcl;
    let mut known =
        DuplicateState { by_itself, one_position, has_lanes, ..DuplicateState::default() };
    for (at, line) in lines.iter().enumerate() {
        match &line.what {
            HistoryEvent::WriteApplied {
                write,
                outcome: WriteOutcome::Done(StoredRow::Lease(row)),
            } => {
                if let Some(words) = known.landed(line.host, write, row) {
                    let lease = Some(row.key.clone());
                    return Some(Violation { promise: PROMISE, words, line: at, lease });
                }
            }
            HistoryEvent::Put(grain) => {
                known.puts.entry(&grain.shard).or_default().insert(grain.at);
            }
            HistoryEvent::Arrived(grains) => {
                for grain in grains {
                    known.receive(line.host, &grain.shard, grain.at);
                }
            }
            HistoryEvent::Trimmed => known.puts.clear(),
            HistoryEvent::Skipped(grain) => {
                known.puts.entry(&grain.shard).or_default().remove(&grain.at);
            }
            HistoryEvent::LibraryReported(Event::Shard(ShardEvent::Stopped { shard, why })) => {
                if let Some(term) = known.reads.get(&(line.host, &**shard)) {
                    known.over.insert((&**shard, *term));
                    if *why == ShardStopReason::Lost {
                        known.lost.insert((&**shard, *term));
                    }
                }
            }
            // The worker may pass the row on before its reader has stopped.
            HistoryEvent::LibraryReported(Event::Lease(LeaseEvent::LeaseLost { lease })) => {
                if let Some(term) = known.reads.get(&(line.host, lease)) {
                    known.lost.insert((lease, *term));
                }
            }
            // Records whose checkpoint the store refuses are redelivered.
            HistoryEvent::LibraryReported(Event::Shard(ShardEvent::CheckpointFailed {
                shard,
                error,
            })) if error.contains("lease store") => {
                if let Some(term) = known.reads.get(&(line.host, &**shard)) {
                    known.refused.insert((&**shard, *term));
                }
            }
            HistoryEvent::LibraryReported(Event::Shard(ShardEvent::Checkpointed {
                shard, ..
            })) => {
                if let Some(term) = known.reads.get(&(line.host, &**shard)) {
                    known.refused.remove(&(&**shard, *term));
                }
            }
            HistoryEvent::Handed { hold, grain } => {
                known.reads.insert((line.host, &hold.key), hold.term);
                known.receive(line.host, &hold.key, grain.at);
                if let Some(words) = known.handed(hold, grain) {
                    return Some(of_grain(PROMISE, words, at, hold));
                }
            }
            HistoryEvent::Handled { hold, done: true, .. }
                if known.over.contains(&(&hold.key, hold.term)) => {}
            HistoryEvent::Handled { hold, grain, done: true } => {
                known.done.entry((&hold.key, hold.term)).or_default().push(grain);
            }
            HistoryEvent::Handled { hold, grain, done: false } => {
                known.handed.remove(&(&hold.key, hold.term, grain.at));
            }
            _ => {}
        }
    }
    None
}

impl<'a> DuplicateState<'a> {
    fn term_of_take(&self, key: &LeaseKey, counter: u64) -> u64 {
        self.taken.get(&(key, counter)).copied().unwrap_or(counter)
    }

    fn receive(&mut self, host: Option<HostId>, shard: &'a LeaseKey, at: Position) {
        if let Some(host) = host {
            self.arrived.entry((host, shard)).or_default().insert(at);
        }
    }

    /// Returns true if a record before `lost` was not done, so that the single position of the row
    /// had to stay behind `lost`. Another owner may do that record later. A single lane waits for
    /// all records before it. With several lanes, each may wait for anything that its host
    /// received.
    fn has_gap(&self, host: HostId, row: &Lease, done: &[&SimRecord], lost: &SimRecord) -> bool {
        let done: BTreeSet<Position> = done.iter().map(|grain| grain.at).collect();
        let (places, until) = if self.has_lanes {
            (self.arrived.get(&(host, &row.key)), Position::ShardEnd)
        } else {
            (self.puts.get(&row.key), lost.at)
        };
        let from = row.checkpoint.lowest();
        let mut places = places.into_iter().flat_map(|places| places.range(from..until));
        places.any(|at| *at > from && !done.contains(at))
    }

    fn handed(&mut self, hold: &'a LeaseToken, grain: &SimRecord) -> Option<String> {
        let began = self.began.get(&(hold.key.clone(), hold.term));
        if let Some(stood) = began.filter(|stood| grain.is_behind(stood)) {
            return Some(format!("{grain} came again; {} began at {stood}", brief(hold)));
        }
        let new = self.handed.insert((&hold.key, hold.term, grain.at));
        (!new).then(|| format!("{grain} came twice under {}", brief(hold)))
    }

    fn landed(&mut self, host: Option<HostId>, write: &'a Write, row: &Lease) -> Option<String> {
        let Write::Lease { key, change, .. } = write else { return None };
        let words = self.given_back(host, key, change, row);
        if let LeaseChange::Take { .. } | LeaseChange::HandOver { .. } = change
            && let Some(owner) = row.owner.as_ref().and_then(host_of)
        {
            self.arrived.remove(&(owner, key));
        }
        words
    }

    /// Processes a change to a lease row. Returns a description of a record that was done but is
    /// not covered by the row that its owner releases.
    fn given_back(
        &mut self,
        host: Option<HostId>,
        key: &'a LeaseKey,
        change: &LeaseChange,
        row: &Lease,
    ) -> Option<String> {
        let stood = || row.checkpoint.clone();
        self.began.entry((row.key.clone(), row.term)).or_insert_with(stood);
        let term = match change {
            LeaseChange::Renew { term, .. }
            | LeaseChange::Checkpoint { term, .. }
            | LeaseChange::End { term, .. } => {
                let taken = self.term_of_take(key, *term);
                self.taken.insert((key, row.term), taken);
                return None;
            }
            LeaseChange::HandOver { term, .. } | LeaseChange::Release { term, .. } => {
                self.term_of_take(key, *term)
            }
            _ => return None,
        };
        if self.lost.contains(&(key, term))
            || self.refused.contains(&(key, term))
            || !self.by_itself
        {
            return None;
        }
        let done = self.done.get(&(key, term))?;
        let above = |grain: &&&SimRecord| !grain.is_behind(&row.checkpoint);
        let lost = done.iter().filter(above).min_by_key(|grain| grain.at)?;
        if self.one_position && host.is_none_or(|host| self.has_gap(host, row, done, lost)) {
            return None;
        }
        Some(format!("given back at {}, and {lost} was done under term {term}", row.checkpoint))
    }
}
