//! The shard graph of a stream: parents, children and the order of reading.
//!
//! A graph is built from any list of the service. Invalid input is reported as [`Inconsistency`]
//! values and never causes an endless walk.

mod successors;
mod inconsistency;

pub use inconsistency::Inconsistency;

use crate::coverage;
use crate::hash::HashRange;
use crate::ids::ShardId;
use crate::sequence::SequenceNumber;
use std::collections::{BTreeMap, BTreeSet};

/// A shard as the service lists it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shard {
    /// Id of the shard.
    pub id: ShardId,
    /// Shard that was split, or one of the two that were merged. Named even once it is trimmed.
    pub parent: Option<ShardId>,
    /// Other one of the two shards that were merged.
    pub adjacent_parent: Option<ShardId>,
    /// Hash range of the shard. It never changes.
    pub range: HashRange,
    /// No record of the shard has a lower sequence number.
    pub starting: SequenceNumber,
    /// No record of the shard has a higher sequence number. `None` while the shard is open.
    pub ending: Option<SequenceNumber>,
}

impl Shard {
    /// Returns the parents of this shard: none, one or two. Some lists name a single parent as the
    /// adjacent one.
    pub fn parents(&self) -> impl Iterator<Item = &ShardId> {
        let second = self.adjacent_parent.as_ref().filter(|id| Some(*id) != self.parent.as_ref());
        self.parent.iter().chain(second)
    }

    /// Returns true if the shard still accepts records.
    pub fn is_open(&self) -> bool {
        self.ending.is_none()
    }

    /// Returns the sort key for creating rows: the starting sequence number, then the id. Parents
    /// come before their children, so that a crash half-way leaves no child row without its
    /// parent's.
    pub fn birth(&self) -> (SequenceNumber, &ShardId) {
        (self.starting, &self.id)
    }
}

/// The graph of one shard list.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lineage {
    /// Every listed shard by its id.
    shards: BTreeMap<ShardId, Shard>,
    /// Listed children of every shard that is named as a parent, listed or not.
    children: BTreeMap<ShardId, Vec<ShardId>>,
    /// Ids that the list contained more than once; the first entry was kept.
    duplicates: BTreeSet<ShardId>,
}

impl Lineage {
    /// Builds the graph of `shards`, which may be in any order.
    pub fn new(shards: impl IntoIterator<Item = Shard>) -> Self {
        let mut lineage = Self::default();
        for shard in shards {
            if lineage.shards.contains_key(&shard.id) {
                lineage.duplicates.insert(shard.id);
                continue;
            }
            for parent in shard.parents() {
                lineage.children.entry(parent.clone()).or_default().push(shard.id.clone());
            }
            lineage.shards.insert(shard.id.clone(), shard);
        }
        lineage.children.values_mut().for_each(|children| children.sort_unstable());
        lineage
    }

    /// Returns every listed shard, by id.
    pub fn shards(&self) -> impl Iterator<Item = &Shard> {
        self.shards.values()
    }

    /// Returns true if the list contained no shard.
    pub fn is_empty(&self) -> bool {
        self.shards.is_empty()
    }

    /// Returns the shard with this id, if it is listed.
    pub fn get(&self, id: &ShardId) -> Option<&Shard> {
        self.shards.get(id)
    }

    /// Returns true if the list contains a shard with this id.
    pub fn names(&self, id: &ShardId) -> bool {
        self.shards.contains_key(id)
    }

    /// Returns the listed shards that are open.
    pub fn open_shards(&self) -> impl Iterator<Item = &Shard> {
        self.shards().filter(|shard| shard.is_open())
    }

    /// Returns the listed children of a shard, which need not be listed itself.
    pub fn children(&self, id: &ShardId) -> &[ShardId] {
        self.children.get(id).map_or(&[], Vec::as_slice)
    }

    /// Returns the listed parents of a shard.
    pub fn listed_parents(&self, id: &ShardId) -> impl Iterator<Item = &Shard> {
        self.get(id).into_iter().flat_map(Shard::parents).filter_map(|parent| self.get(parent))
    }

    /// Returns the parents of a listed shard that are not listed: they are trimmed, or the list is
    /// not full.
    pub fn missing_parents(&self, id: &ShardId) -> impl Iterator<Item = &ShardId> {
        self.get(id).into_iter().flat_map(Shard::parents).filter(|parent| !self.names(parent))
    }

    /// Returns every known ancestor of a shard, oldest first: each comes after all of its own
    /// parents. Includes ancestors that are named as a parent but not listed.
    pub fn ancestors<'a>(&'a self, id: &'a ShardId) -> Vec<&'a ShardId> {
        let mut order = self.oldest_first(id, |_| false);
        order.pop();
        order
    }

    /// Returns the shard after its known ancestors, each after its own parents. The walk does not
    /// go above a shard for which `stop` returns true. In a cycle, each shard still comes once.
    pub(crate) fn oldest_first<'a>(
        &'a self,
        id: &'a ShardId,
        stop: impl Fn(&ShardId) -> bool,
    ) -> Vec<&'a ShardId> {
        /// A step of a walk with an explicit stack: a lineage can be as deep as it has shards.
        enum WalkStep<'a> {
            Enter(&'a ShardId),
            Leave(&'a ShardId),
        }
        let mut seen = BTreeSet::new();
        let mut order = Vec::new();
        let mut steps = vec![WalkStep::Enter(id)];
        while let Some(step) = steps.pop() {
            match step {
                WalkStep::Enter(id) if seen.insert(id) => {
                    steps.push(WalkStep::Leave(id));
                    if !stop(id) {
                        let parents = self.get(id).into_iter().flat_map(Shard::parents);
                        steps.extend(parents.map(WalkStep::Enter));
                    }
                }
                WalkStep::Enter(_) => {}
                WalkStep::Leave(id) => order.push(id),
            }
        }
        order
    }

    /// Returns true if a shard may start, given the ended ones. An unlisted parent holds no more
    /// records and is not waited for, so the list must be full and unfiltered.
    pub fn may_start(&self, id: &ShardId, ended: impl Fn(&ShardId) -> bool) -> bool {
        self.names(id) && self.listed_parents(id).all(|parent| ended(&parent.id))
    }

    /// Returns the listed shards that have not ended and may start, oldest first.
    pub fn startable(&self, ended: impl Fn(&ShardId) -> bool) -> Vec<&Shard> {
        let mut shards: Vec<_> = self
            .shards()
            .filter(|shard| !ended(&shard.id) && self.may_start(&shard.id, &ended))
            .collect();
        shards.sort_unstable_by_key(|shard| shard.birth());
        shards
    }

    /// Returns the children of an ended shard, or `None` while they do not cover all of its keys. A
    /// list that was read during a reshard may contain only one of two children.
    ///
    /// `range` is the caller's knowledge of the shard's range, for a list that lacks the shard. If
    /// it is not known either, [`Self::keys_of_lost`] is used.
    pub fn followers(&self, ended: &ShardId, range: Option<&HashRange>) -> Option<Vec<&Shard>> {
        let children: Vec<_> = self.children(ended).iter().filter_map(|id| self.get(id)).collect();
        let keys = match self.get(ended).map(|shard| &shard.range).or(range) {
            Some(range) => vec![*range],
            None => self.keys_of_lost(ended)?,
        };
        let holes = coverage::holes(children.iter().map(|child| child.range));
        let left_out = holes.iter().any(|hole| keys.iter().any(|keys| hole.overlaps(keys)));
        (!keys.is_empty() && !left_out).then_some(children)
    }
}

#[cfg(test)]
pub(crate) mod graphs;
#[cfg(test)]
mod tests;
pub mod walk;
