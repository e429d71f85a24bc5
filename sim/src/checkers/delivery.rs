//! Delivery (G2): in the end every record is done, but for those that retention took from a shard
//! of which the library said that it is lost.

use super::lineage::ancestors;
use super::violation::Violation;
use crate::history::{Line, What};
use crate::supply::Grain;
use anabranch::event::{Event, LeaseEvent};
use anabranch_model::ids::ShardId;
use anabranch_model::lease::{LeaseChange, LeaseKey, Outcome, Write};
use anabranch_model::position::Position;
use std::collections::{BTreeMap, BTreeSet};

/// The promise.
pub const PROMISE: &str = "every record is delivered, or its loss is told";

/// The promise of dead letters.
pub const DEAD_LETTERS: &str = "a record that is put aside is stored whole";

/// Whether every record that was put aside is among the dead letters.
pub fn dead_letters(lines: &[Line]) -> Option<Violation> {
    lines.iter().enumerate().find_map(|(line, it)| match &it.what {
        What::LostLetter { grain } => {
            let lease = Some(LeaseKey::new(crate::workload::STREAM, grain.shard.as_str()));
            let words = format!("{grain} was put aside, and is not there");
            Some(Violation { promise: DEAD_LETTERS, words, line, lease })
        }
        _ => None,
    })
}

/// What retention took and what was known of it then.
#[derive(Default)]
struct Known<'a> {
    /// The records that are neither done nor past retention.
    open: BTreeMap<Position, (&'a Grain, usize)>,
    /// The records that retention took from closed shards with rows.
    taken: BTreeMap<Position, (&'a Grain, usize)>,
    /// The shards that every shard came from.
    parents: BTreeMap<&'a ShardId, &'a [ShardId]>,
    /// The shards that were closed.
    closed: BTreeSet<&'a ShardId>,
    /// The shards that had a row.
    rows: BTreeSet<&'a ShardId>,
    /// The shards that the library said are lost.
    lost: BTreeSet<&'a ShardId>,
}

/// Whether everything was delivered, at the end of a history that had time for it.
pub fn check(lines: &[Line]) -> Option<Violation> {
    let mut known = Known::default();
    for (at, line) in lines.iter().enumerate() {
        known.see(at, &line.what);
    }
    let unsaid = |grain: &Grain| {
        let mut told = ancestors(&known.parents, &grain.shard);
        told.insert(&grain.shard);
        told.is_disjoint(&known.lost)
    };
    let missing = known.open.values().map(|it| (it, "was never delivered"));
    let taken = known.taken.values().filter(|(grain, _)| unsaid(grain));
    let mut all = missing.chain(taken.map(|it| (it, "was lost, and nobody said so")));
    let ((grain, line), what) = all.next()?;
    let lease = Some(LeaseKey::new(crate::workload::STREAM, grain.shard.as_str()));
    let words = format!("{grain} of {}, put in line {line}, {what}", grain.shard);
    Some(Violation { promise: PROMISE, words, line: lines.len().saturating_sub(1), lease })
}

impl<'a> Known<'a> {
    fn see(&mut self, at: usize, what: &'a What) {
        match what {
            What::Put(grain) => {
                self.open.insert(grain.at, (grain, at));
            }
            What::Handled { grain, done: true, .. } | What::Skipped(grain) => {
                self.open.remove(&grain.at);
                self.taken.remove(&grain.at);
            }
            What::Resharded { closed, opened } => {
                self.closed.extend(closed);
                self.parents.extend(opened.iter().map(|child| (child, closed.as_slice())));
            }
            What::Landed {
                write: Write::Lease { key, change: LeaseChange::Create(_), .. },
                outcome: Outcome::Done(_),
            } => {
                self.rows.insert(&key.shard);
            }
            What::Told(Event::Lease(LeaseEvent::ShardLost { lease, .. })) => {
                self.lost.insert(&lease.shard);
            }
            What::Trimmed => self.trim(),
            _ => {}
        }
    }

    /// What an application never had a row for, it never began to read. From an open shard
    /// retention takes records without the service telling.
    fn trim(&mut self) {
        for (at, grain) in std::mem::take(&mut self.open) {
            let shard = &grain.0.shard;
            let mut line = ancestors(&self.parents, shard);
            line.insert(shard);
            if self.closed.contains(shard) && !line.is_disjoint(&self.rows) {
                self.taken.insert(at, grain);
            }
        }
    }
}
