//! Inconsistencies in a full shard list.

use super::{Lineage, Shard};
use crate::coverage;
use crate::hash::HashRange;
use crate::ids::ShardId;
use std::collections::{BTreeMap, BTreeSet};

/// An inconsistency in a full, unfiltered list of a stream's shards.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Inconsistency {
    /// Two entries have the same id; the first one was kept.
    #[error("shard {0} is listed more than once")]
    DuplicateId(ShardId),
    /// These shards are their own ancestors.
    #[error("shards {0:?} are ancestors of themselves")]
    Cycle(Vec<ShardId>),
    /// A parent is open while its child exists. Often a list read in the middle of a reshard.
    #[error("shard {child} is a child of {parent}, which is still open")]
    ChildOfOpenParent {
        /// Shard that should not exist yet.
        child: ShardId,
        /// Shard that should be closed.
        parent: ShardId,
    },
    /// A child's range is neither a part of the split parent's nor the union of the merged ones'.
    #[error("the range of shard {child} does not follow from its parents {parents:?}")]
    ParentRangeMismatch {
        /// Child with the wrong range.
        child: ShardId,
        /// Its listed parents.
        parents: Vec<ShardId>,
    },
    /// The ranges of two open shards overlap.
    #[error("the ranges of the open shards {low} and {high} overlap")]
    OverlappingOpenShards {
        /// Shard whose range starts lower.
        low: ShardId,
        /// Shard whose range starts higher, or at the same key.
        high: ShardId,
    },
    /// No open shard covers these keys.
    #[error("no open shard covers the hash range {0:?}")]
    Hole(HashRange),
}

impl Lineage {
    /// Returns all inconsistencies of this list, which must be full and unfiltered. An empty list
    /// has none.
    pub fn inconsistencies(&self) -> Vec<Inconsistency> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut found: Vec<_> =
            self.duplicates.iter().cloned().map(Inconsistency::DuplicateId).collect();
        let cycle = self.cycle();
        if !cycle.is_empty() {
            found.push(Inconsistency::Cycle(cycle));
        }
        found.extend(self.children_of_open_parents());
        found.extend(self.shards().filter_map(|shard| self.range_mismatch(shard)));
        found.extend(overlaps(self.open_shards()));
        let open = self.open_shards().map(|shard| shard.range);
        found.extend(coverage::holes(open).into_iter().map(Inconsistency::Hole));
        found
    }

    /// Returns every child whose parent is still open, by the child's id.
    pub fn children_of_open_parents(&self) -> impl Iterator<Item = Inconsistency> {
        self.shards().flat_map(|child| {
            let open = self.listed_parents(&child.id).filter(|parent| parent.is_open());
            open.map(|parent| Inconsistency::ChildOfOpenParent {
                child: child.id.clone(),
                parent: parent.id.clone(),
            })
        })
    }

    /// Returns the shards on a cycle. Repeatedly removes shards without a parent, and then those
    /// without a child, until none are left to remove.
    fn cycle(&self) -> Vec<ShardId> {
        let parents = |id| self.listed_parents(id).map(|parent| &parent.id).collect::<Vec<_>>();
        let children = |id| self.children(id).iter().collect::<Vec<_>>();
        let below = peel(&self.shards().map(|shard| &shard.id).collect(), parents, children);
        peel(&below, children, parents).into_iter().cloned().collect()
    }

    fn range_mismatch(&self, child: &Shard) -> Option<Inconsistency> {
        let parents: Vec<_> = self.listed_parents(&child.id).collect();
        let fits = match (parents.as_slice(), child.parents().count()) {
            ([], _) => true,
            ([split], 1) => encloses(&split.range, &child.range),
            // The other parent is trimmed: the listed one must be at an end of the child's range.
            ([merged], _) => {
                encloses(&child.range, &merged.range)
                    && (child.range.start() == merged.range.start()
                        || child.range.end() == merged.range.end())
            }
            ([a, b, ..], _) => a.range.join(&b.range) == Some(child.range),
        };
        (!fits).then(|| Inconsistency::ParentRangeMismatch {
            child: child.id.clone(),
            parents: parents.iter().map(|parent| parent.id.clone()).collect(),
        })
    }
}

/// Repeatedly removes nodes that have no `before` left, until all remaining nodes have one.
fn peel<'a>(
    nodes: &BTreeSet<&'a ShardId>,
    before: impl Fn(&'a ShardId) -> Vec<&'a ShardId>,
    after: impl Fn(&'a ShardId) -> Vec<&'a ShardId>,
) -> BTreeSet<&'a ShardId> {
    let count = |id| before(id).into_iter().filter(|other| nodes.contains(other)).count();
    let mut waits_for: BTreeMap<_, _> = nodes.iter().map(|id| (*id, count(id))).collect();
    let mut free: Vec<_> = waits_for.iter().filter(|(_, n)| **n == 0).map(|(id, _)| *id).collect();
    while let Some(id) = free.pop() {
        waits_for.remove(id);
        for next in after(id) {
            if let Some(n) = waits_for.get_mut(next) {
                *n -= 1;
                if *n == 0 {
                    free.push(next);
                }
            }
        }
    }
    waits_for.into_keys().collect()
}

fn encloses(outer: &HashRange, inner: &HashRange) -> bool {
    outer.contains(inner.start()) && outer.contains(inner.end())
}

/// Returns each shard that begins within the range of an earlier one, paired with the earlier one
/// that reaches furthest.
fn overlaps<'a>(shards: impl Iterator<Item = &'a Shard>) -> Vec<Inconsistency> {
    let mut shards: Vec<_> = shards.collect();
    shards.sort_unstable_by_key(|shard| (shard.range, &shard.id));
    let mut found = Vec::new();
    let mut furthest: Option<&Shard> = None;
    for shard in shards {
        match furthest {
            Some(low) if low.range.overlaps(&shard.range) => {
                found.push(Inconsistency::OverlappingOpenShards {
                    low: low.id.clone(),
                    high: shard.id.clone(),
                });
                if shard.range.end() > low.range.end() {
                    furthest = Some(shard);
                }
            }
            _ => furthest = Some(shard),
        }
    }
    found
}
