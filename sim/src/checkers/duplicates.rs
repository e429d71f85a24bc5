//! Duplicates (G4): what is behind the checkpoint never comes again, what a worker gave back in
//! order does not come again at all, and under one term a record comes again only if it failed.

use super::violation::{Violation, of_grain};
use crate::history::{HostId, Line, What, brief};
use crate::supply::Grain;
use anabranch::event::{Event, ShardEvent, ShardStop};
use anabranch_model::lease::{
    Checkpoint, Hold, Lease, LeaseChange, LeaseKey, Outcome, Stored, Write,
};
use anabranch_model::position::Position;
use std::collections::{BTreeMap, BTreeSet};

/// The promise.
pub const PROMISE: &str =
    "duplicates are bounded by the checkpoint, and none follow a stop in order";

#[derive(Default)]
struct Known<'a> {
    /// Where the row stood when each term began.
    began: BTreeMap<(LeaseKey, u64), Checkpoint>,
    /// What was handed out under each hold and has not failed.
    handed: BTreeSet<(&'a LeaseKey, u64, Position)>,
    /// What is done under each hold.
    done: BTreeMap<(&'a LeaseKey, u64), Vec<&'a Grain>>,
    /// The term under which each host was given a shard's records last.
    reads: BTreeMap<(Option<HostId>, &'a LeaseKey), u64>,
    /// The holds whose reading ended because the lease was lost. Nothing could be checkpointed then,
    /// also where nobody took the row, and its worker passes it on later.
    lost: BTreeSet<(&'a LeaseKey, u64)>,
}

/// Whether every record that came again had to.
pub fn check(lines: &[Line]) -> Option<Violation> {
    let mut known = Known::default();
    for (at, line) in lines.iter().enumerate() {
        match &line.what {
            What::Landed { write, outcome: Outcome::Done(Stored::Lease(row)) } => {
                if let Some(words) = known.landed(write, row) {
                    let lease = Some(row.key.clone());
                    return Some(Violation { promise: PROMISE, words, line: at, lease });
                }
            }
            What::Told(Event::Shard(ShardEvent::Stopped { shard, why: ShardStop::Lost })) => {
                if let Some(term) = known.reads.get(&(line.host, &**shard)) {
                    known.lost.insert((&**shard, *term));
                }
            }
            What::Handed { hold, grain } => {
                known.reads.insert((line.host, &hold.key), hold.term);
                if let Some(words) = known.handed(hold, grain) {
                    return Some(of_grain(PROMISE, words, at, hold));
                }
            }
            What::Handled { hold, grain, done: true } => {
                known.done.entry((&hold.key, hold.term)).or_default().push(grain);
            }
            What::Handled { hold, grain, done: false } => {
                known.handed.remove(&(&hold.key, hold.term, grain.at));
            }
            _ => {}
        }
    }
    None
}

impl<'a> Known<'a> {
    fn handed(&mut self, hold: &'a Hold, grain: &Grain) -> Option<String> {
        let began = self.began.get(&(hold.key.clone(), hold.term));
        if let Some(stood) = began.filter(|stood| grain.is_behind(stood)) {
            return Some(format!("{grain} came again; {} began at {stood}", brief(hold)));
        }
        let new = self.handed.insert((&hold.key, hold.term, grain.at));
        (!new).then(|| format!("{grain} came twice under {}", brief(hold)))
    }

    fn landed(&mut self, write: &'a Write, row: &Lease) -> Option<String> {
        let Write::Lease { key, change, .. } = write else { return None };
        let stood = || row.checkpoint.clone();
        self.began.entry((row.key.clone(), row.term)).or_insert_with(stood);
        let (LeaseChange::Pass { term, .. } | LeaseChange::Release { term, .. }) = change else {
            return None;
        };
        if self.lost.contains(&(key, *term)) {
            return None;
        }
        let done = self.done.get(&(key, *term)).into_iter().flatten();
        let lost = done.into_iter().find(|grain| !grain.is_behind(&row.checkpoint))?;
        Some(format!("given back at {}, and {lost} was done under term {term}", row.checkpoint))
    }
}
