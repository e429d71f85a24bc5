//! The heirs of a shard that is gone, and the keys that it may have taken.

use super::{Lineage, Shard};
use crate::coverage;
use crate::hash::HashRange;
use crate::ids::ShardId;

impl Lineage {
    /// Returns the oldest listed shards that share a key with the shard `gone`, oldest first.
    /// `None` if this list does not prove that the shard is gone. `range` holds its keys; a row of
    /// an old version of KCL does not tell them, and [`Self::keys_of_lost`] takes their place.
    ///
    /// A list that lacks the shard may also be older than it; then it names an older shard over the
    /// same keys. Shards are numbered in the order of their birth and trimmed in that order too, so
    /// a list without the shard and without an older one over its keys was read after its end.
    /// The range decides who inherits and not the parents' names, because the shards between the
    /// lost one and its heirs may be gone too.
    pub fn successors(&self, gone: &ShardId, range: Option<&HashRange>) -> Option<Vec<&Shard>> {
        let keys = match range {
            Some(range) => vec![*range],
            None => self.keys_of_lost(gone)?,
        };
        let shares = |shard: &Shard| keys.iter().any(|keys| shard.range.overlaps(keys));
        let mut heirs = Vec::new();
        for shard in self.shards().filter(|shard| shares(shard)) {
            if shard.id <= *gone {
                return None;
            }
            if !self.listed_parents(&shard.id).any(shares) {
                heirs.push(shard);
            }
        }
        heirs.sort_unstable_by_key(|shard| shard.birth());
        (!heirs.is_empty()).then_some(heirs)
    }

    /// Returns the keys that the unlisted shard `gone` may have taken: all that it took, and more
    /// where the list can't tell. None are left if the list is older than the shard. `None` if the
    /// list names the shard, leaves keys out, or leaves it open whether a listed shard is an
    /// ancestor of it.
    ///
    /// Shards are numbered in the order of their birth, and shards that are open at one time share
    /// no key. So the shard took no key of these:
    ///
    /// - An older shard that is still open.
    /// - An older shard that is closed and whose children are all listed. Were it an ancestor, one
    ///   of the children would be the shard, which is unlisted, or an ancestor of it, and is
    ///   judged as such.
    /// - A younger shard whose parents are all older: they were open when the shard was born.
    ///
    /// A list from before the birth of the shard names only older shards, and they take all keys.
    pub fn keys_of_lost(&self, gone: &ShardId) -> Option<Vec<HashRange>> {
        let listed = self.shards().map(|shard| shard.range);
        if self.names(gone) || !coverage::holes(listed).is_empty() {
            return None;
        }
        let mut others = Vec::new();
        for shard in self.shards() {
            let is_older = shard.id < *gone;
            if is_older && !shard.is_open() && self.followers(&shard.id, None).is_none() {
                return None;
            }
            if is_older || shard.parents().all(|parent| parent < gone) {
                others.push(shard.range);
            }
        }
        // A part that is outside of the children's keys is another shard's too.
        others.extend(coverage::holes(self.keys_of_children(gone)));
        Some(coverage::holes(others))
    }

    /// Returns ranges that hold all keys of an unlisted shard, by its listed children: both
    /// children of a split take them all, and so does the child of a merge. One child of a split
    /// says nothing, because the other one may be gone.
    fn keys_of_children(&self, gone: &ShardId) -> Vec<HashRange> {
        let children: Vec<_> = self.children(gone).iter().filter_map(|id| self.get(id)).collect();
        match children[..] {
            [merged] if merged.parents().count() == 2 => vec![merged.range],
            [low, high] if [low, high].iter().all(|child| child.parents().count() == 1) => {
                vec![low.range, high.range]
            }
            _ => vec![HashRange::ALL],
        }
    }
}
