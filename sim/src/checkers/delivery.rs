//! Delivery checker (G2): in the end every record is done, except records that retention removed
//! before they were read. If retention removed their whole shard, the library must report the loss.
//! Records removed from a shard that goes on are covered by [`trimming`](super::trimming).

use super::lineage::ancestors;
use super::retention::RetentionTracker;
use super::violation::Violation;
use crate::history::{HistoryEvent, HistoryLine};
use crate::record_source::SimRecord;
use anabranch::event::{Event, LeaseEvent};
use anabranch_model::lease::{LeaseChange, LeaseKey, Write, WriteOutcome};
use anabranch_model::position::Position;
use std::collections::{BTreeMap, BTreeSet};

/// The delivery guarantee.
pub const PROMISE: &str = "every record is delivered, or its loss is told";

/// The guarantee for dead letters.
pub const DEAD_LETTERS: &str = "a record that is put aside is stored whole";

/// Checks that every record that was dead-lettered is among the dead letters.
pub fn dead_letters(lines: &[HistoryLine]) -> Option<Violation> {
    lines.iter().enumerate().find_map(|(line, it)| match &it.what {
        HistoryEvent::LostLetter { grain } => {
            let lease = Some(grain.shard.clone());
            let words = format!("{grain} was put aside, and is not there");
            Some(Violation { promise: DEAD_LETTERS, words, line, lease })
        }
        _ => None,
    })
}

/// Identifies a record by its shard and its position there.
type RecordPlace<'a> = (&'a LeaseKey, Position);

fn place(grain: &SimRecord) -> RecordPlace<'_> {
    (&grain.shard, grain.at)
}

/// State of the delivery checker.
#[derive(Default)]
struct TrimmedKnowledge<'a> {
    /// Records that are neither done nor lost to retention, with the line that put them.
    open: BTreeMap<RecordPlace<'a>, (&'a SimRecord, usize)>,
    /// Records that retention removed from closed shards whose lineage had a row.
    taken: BTreeMap<RecordPlace<'a>, (&'a SimRecord, usize)>,
    /// Parents of each shard.
    parents: BTreeMap<&'a LeaseKey, &'a [LeaseKey]>,
    /// Closed shards.
    closed: BTreeSet<&'a LeaseKey>,
    /// Closed shards that are entirely past retention.
    gone: BTreeSet<&'a LeaseKey>,
    /// Shards that had a row.
    rows: BTreeSet<&'a LeaseKey>,
    /// Shards that the library reported as lost.
    lost: BTreeSet<&'a LeaseKey>,
}

/// Checks that everything was delivered, at the end of a history that had time for it.
pub fn check(lines: &[HistoryLine]) -> Option<Violation> {
    let mut known = TrimmedKnowledge::default();
    let mut retention = RetentionTracker::default();
    for (at, line) in lines.iter().enumerate() {
        known.see(at, &line.what);
        for lost in retention.see(line.host, &line.what) {
            known.lose(lost.grain);
        }
    }
    let unsaid = |grain: &SimRecord| {
        let mut told = ancestors(&known.parents, &grain.shard);
        told.insert(&grain.shard);
        told.is_disjoint(&known.lost)
    };
    let missing = known.open.values().map(|it| (it, "was never delivered"));
    let taken = known.taken.values().filter(|(grain, _)| unsaid(grain));
    let mut all = missing.chain(taken.map(|it| (it, "was lost, and nobody said so")));
    let ((grain, line), what) = all.next()?;
    let lease = Some(grain.shard.clone());
    let words = format!("{grain} of {}, put in line {line}, {what}", grain.shard);
    Some(Violation { promise: PROMISE, words, line: lines.len().saturating_sub(1), lease })
}

impl<'a> TrimmedKnowledge<'a> {
    fn see(&mut self, at: usize, what: &'a HistoryEvent) {
        match what {
            HistoryEvent::Put(grain) => {
                self.open.insert(place(grain), (grain, at));
            }
            HistoryEvent::Handled { grain, done: true, .. } | HistoryEvent::Skipped(grain) => {
                self.open.remove(&place(grain));
                self.taken.remove(&place(grain));
            }
            HistoryEvent::Resharded { closed, opened } => {
                self.closed.extend(closed);
                self.parents.extend(opened.iter().map(|child| (child, closed.as_slice())));
            }
            HistoryEvent::WriteApplied {
                write: Write::Lease { key, change: LeaseChange::Create(_), .. },
                outcome: WriteOutcome::Done(_),
            } => {
                self.rows.insert(key);
            }
            HistoryEvent::LibraryReported(Event::Lease(LeaseEvent::ShardMissing {
                lease, ..
            })) => {
                self.lost.insert(lease);
            }
            HistoryEvent::Trimmed => self.gone.clone_from(&self.closed),
            _ => {}
        }
    }

    /// Records that retention removed `grain`. Shards for which the application never had a row do
    /// not count: it never began to read them. The service does not report records that retention
    /// removes from an open shard.
    fn lose(&mut self, grain: &'a SimRecord) {
        let Some(lost) = self.open.remove(&place(grain)) else { return };
        let mut line = ancestors(&self.parents, &grain.shard);
        line.insert(&grain.shard);
        if self.gone.contains(&grain.shard) && !line.is_disjoint(&self.rows) {
            self.taken.insert(place(grain), lost);
        }
    }
}
