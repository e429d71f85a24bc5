//! Fencing checker: checkpoints come from the lease holder, never go back, and stay once
//! acknowledged.

use super::violation::Violation;
use crate::history::{HistoryEvent, HistoryLine};
use anabranch::event::{Event, ShardEvent};
use anabranch_model::lease::{
    Checkpoint, LeaseChange, LeaseKey, StoredRow, WorkerId, Write, WriteOutcome,
};
use anabranch_model::position::Position;
use std::collections::BTreeMap;

/// The guarantee this checker verifies.
pub const PROMISE: &str = "checkpoints are fenced, go forward, and stay";

/// State of one lease, from the writes that were applied.
#[derive(Default)]
struct FencingState {
    /// Worker that last took the lease or received it in a hand-over, and the term. In KCL's layout
    /// the term is the lease counter, which each write of the holder advances.
    holder: Option<(WorkerId, u64)>,
    /// Last checkpoint that was stored.
    stored: Option<Checkpoint>,
    /// Last checkpoint of the previous, deleted row. A frozen host receives the acknowledgement of
    /// its checkpoint late.
    deleted: Option<Checkpoint>,
}

/// Checks that every stored checkpoint came from the holder, advanced, and stayed.
pub fn check(lines: &[HistoryLine]) -> Option<Violation> {
    let mut known: BTreeMap<LeaseKey, FencingState> = BTreeMap::new();
    for (at, line) in lines.iter().enumerate() {
        let (key, broken) = match &line.what {
            HistoryEvent::WriteApplied {
                write: Write::Lease { key, change, .. },
                outcome: WriteOutcome::Done(after),
            } => (key, landed(known.entry(key.clone()).or_default(), change, after)),
            HistoryEvent::Checkpointed { hold, at } => {
                let known = known.entry(hold.key.clone()).or_default();
                (&hold.key, acknowledged(known, *at))
            }
            HistoryEvent::LibraryReported(Event::Shard(ShardEvent::Checkpointed { shard, at })) => {
                (&**shard, told(known.entry((**shard).clone()).or_default(), at))
            }
            _ => continue,
        };
        if let Some(words) = broken {
            let lease = Some(key.clone());
            return Some(Violation { promise: PROMISE, words, line: at, lease });
        }
    }
    None
}

fn landed(known: &mut FencingState, change: &LeaseChange, after: &StoredRow) -> Option<String> {
    match change {
        LeaseChange::Take { taker: holder, .. }
        | LeaseChange::HandOver { to: holder, .. }
        | LeaseChange::Renew { owner: holder, .. }
        | LeaseChange::RefuseHandOver { owner: holder, .. }
        | LeaseChange::AllowHandOver { owner: holder, .. } => {
            let StoredRow::Lease(row) = after else { return None };
            known.holder = Some((holder.clone(), row.term));
            None
        }
        LeaseChange::Release { .. } => {
            known.holder = None;
            None
        }
        LeaseChange::Delete { .. } => {
            let deleted = known.stored.take().or_else(|| known.deleted.take());
            *known = FencingState { deleted, ..FencingState::default() };
            None
        }
        LeaseChange::Checkpoint { owner, term, to, .. } => stored(known, owner, *term, to, after),
        LeaseChange::End { owner, term, .. } => {
            stored(known, owner, *term, &Checkpoint::at(Position::ShardEnd), after)
        }
        _ => None,
    }
}

fn stored(
    known: &mut FencingState,
    owner: &WorkerId,
    term: u64,
    to: &Checkpoint,
    after: &StoredRow,
) -> Option<String> {
    let by = (owner.clone(), term);
    if known.holder.as_ref() != Some(&by) {
        return Some(match &known.holder {
            Some((now, at)) => format!(
                "{to} of {owner} under term {term} was stored; the lease was {now}'s, term {at}"
            ),
            None => format!("{to} of {owner} was stored; the lease was nobody's"),
        });
    }
    if let StoredRow::Lease(row) = after {
        known.holder = Some((owner.clone(), row.term));
    }
    let before = known.stored.replace(to.clone());
    let back = before.filter(|before| !before.may_become(to) || before.is_shard_end());
    back.filter(|before| before != to).map(|before| format!("{before} went back to {to}"))
}

/// Compares a checkpoint that the library reports as acknowledged with the stored one.
fn told(known: &FencingState, at: &Checkpoint) -> Option<String> {
    match &known.stored {
        Some(stored) if stored == at || at.may_become(stored) => None,
        // The number of lanes has changed since, under a later owner.
        Some(stored) if differs(stored, at) && stored.lowest() >= at.lowest() => None,
        Some(stored) => Some(format!("{at} was acknowledged, and {stored} is stored")),
        None => Some(format!("{at} was acknowledged, and nothing is stored")),
    }
}

fn differs(one: &Checkpoint, other: &Checkpoint) -> bool {
    one.lanes().len() != other.lanes().len()
}

fn acknowledged(known: &FencingState, at: Position) -> Option<String> {
    let stored =
        [&known.stored, &known.deleted].into_iter().flatten().map(Checkpoint::lowest).max();
    if stored.is_some_and(|stored| stored >= at) {
        return None;
    }
    let stored = stored.map_or("nothing".to_owned(), |stored| stored.to_string());
    Some(format!("{at} was acknowledged, and {stored} is stored"))
}
