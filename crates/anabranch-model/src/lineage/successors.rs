//! Successors of a shard that is gone, and the keys that it may have had.

use super::{Lineage, Shard};
use crate::coverage;
use crate::hash::HashRange;
use crate::ids::ShardId;

impl Lineage {
    /// Returns the oldest listed shards that share a key with the shard `gone`, oldest first.
    /// Returns `None` if this list does not prove that the shard is gone. `range` is its hash
    /// range. Rows of old KCL versions lack it, and [`Self::keys_of_lost`] is used instead.
    ///
    /// A list without the shard may also be older than the shard. It then contains an older shard
    /// over the same keys. Shards are numbered in the order of creation and trimmed in that order
    /// too. A list with neither the shard nor an older one over its keys was therefore read after
    /// its end. The range decides the successors, not the parents' ids, because the shards between
    /// the lost one and its successors may be gone too.
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

    /// Returns the keys that the unlisted shard `gone` may have had: all that it had, and more if
    /// the list is inconclusive. The result is empty if the list is older than the shard. Returns
    /// `None` if the list contains the shard or has holes in the hash range. Also returns `None` if
    /// it leaves open whether a listed shard is an ancestor of it.
    ///
    /// Shards are numbered in the order of creation, and shards that are open at the same time
    /// share no key. The shard therefore had no key of these shards:
    ///
    /// - An older shard that is still open.
    /// - An older closed shard whose children are all listed. If it were an ancestor, one of the
    ///   children would be the shard, which is unlisted, or an ancestor of it, and is checked as
    ///   such.
    /// - A younger shard whose parents are all older: these were open when the shard was created.
    ///
    /// A list from before the creation of the shard contains only older shards, which cover all
    /// keys.
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
        // Keys outside the children's ranges also belong to other shards.
        others.extend(coverage::holes(self.keys_of_children(gone)));
        Some(coverage::holes(others))
    }

    /// Returns ranges that include all keys of an unlisted shard, by its listed children. Both
    /// children of a split cover them all, and so does the child of a merge. One child of a split
    /// proves nothing, because the other one may be gone.
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
