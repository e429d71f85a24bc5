//! Shard sync: the lease rows to create, given the shards of the stream and the existing rows.

use super::row::{Lease, NewLease};
use crate::coverage;
use crate::hash::HashRange;
use crate::ids::ShardId;
use crate::lineage::{Inconsistency, Lineage, Shard};
use crate::position::{Position, StartPosition};
use std::collections::{BTreeMap, BTreeSet};

/// Protocol by which the workers of an application store their rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// The native layout.
    Native {
        /// First start of the application, by the service's clock, in milliseconds since the Unix
        /// epoch. `LATEST` means this time, permanently and for every worker. Otherwise a shard
        /// that is idle until a restart would lose the records that arrive during it.
        t0_ms: u64,
    },
    /// The rows and rules of KCL 1.x and 2.x, shared with Java workers.
    Kcl2,
}

impl Protocol {
    /// Returns the meaning of `start` under this protocol.
    fn resolve(self, start: StartPosition) -> StartPosition {
        match (self, start) {
            (Self::Native { t0_ms }, StartPosition::Latest) => StartPosition::AtTimestamp(t0_ms),
            (_, start) => start,
        }
    }
}

/// Handling of a listed child whose parent is still open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnInconsistentChild {
    /// Create no rows and return an error.
    Refuse,
    /// Create the other rows, and leave the child to a later sync.
    Skip,
}

/// Reason why no row can be created.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SyncError {
    /// A child of an open parent is listed: the list was read in the middle of a reshard.
    #[error("the shard list cannot be used: {0}; list the shards again")]
    InconsistentChild(Inconsistency),
    /// The first list has holes in the hash range, so the application would never read these keys.
    #[error("the first shard list has holes in the hash range: {holes:?}; list the shards again")]
    IncompleteList {
        /// Hash ranges that no listed shard covers.
        holes: Vec<HashRange>,
    },
}

/// Returns the rows to create, oldest shard first. An empty list creates none.
///
/// Without rows, `lineage` is the list filtered by the start position, and this is [`first_sync`].
/// With rows, `lineage` is a full list, and the missing rows are those of KCL. Of the shards
/// without rows, these are the oldest layer that has to be read; younger shards get their rows when
/// their parents end. A child that lost its row although its parent ended also gets one, as
/// [`forgotten`] describes. KCL does not recreate that row.
pub fn sync(
    lineage: &Lineage,
    rows: &[Lease],
    start: StartPosition,
    protocol: Protocol,
    on_inconsistent: OnInconsistentChild,
) -> Result<Vec<NewLease>, SyncError> {
    if lineage.is_empty() {
        return Ok(Vec::new());
    }
    if rows.is_empty() {
        return first_sync(lineage, start, protocol, on_inconsistent);
    }
    let skipped = inconsistent_children(lineage, on_inconsistent)?;
    let start = protocol.resolve(start);
    let mut missing = MissingRows {
        lineage,
        leased: rows.iter().map(|row| &row.key.shard).collect(),
        awaited: awaited(lineage, rows),
        over: over(lineage, rows),
        from_the_past: start != StartPosition::Latest,
        standing: BTreeMap::new(),
        found: BTreeSet::new(),
    };
    let mut open: Vec<_> =
        lineage.open_shards().filter(|shard| !skipped.contains(&shard.id)).collect();
    open.sort_unstable_by_key(|shard| shard.birth());
    for shard in open {
        missing.visit(&shard.id);
    }
    let mut checkpoints: BTreeMap<_, Position> =
        missing.found.iter().map(|id| (*id, start.into())).collect();
    for id in forgotten_children(lineage, rows, &missing.over) {
        checkpoints.insert(id, Position::TrimHorizon);
    }
    let made = checkpoints
        .into_iter()
        .filter(|(id, _)| !skipped.contains(*id))
        .filter_map(|(id, checkpoint)| Some((lineage.get(id)?, checkpoint)));
    Ok(oldest_first(made.collect()))
}

/// Returns the rows of an application without any: one for every shard that was open at the start
/// position, which are the shards in the filtered list.
///
/// A worker that finds the first sync unfinished repeats it, regardless of the rows that exist by
/// then. A list with holes in the hash range, including an empty one, is an error, so that the sync
/// is not taken as done.
pub fn first_sync(
    filtered: &Lineage,
    start: StartPosition,
    protocol: Protocol,
    on_inconsistent: OnInconsistentChild,
) -> Result<Vec<NewLease>, SyncError> {
    let holes = coverage::holes(filtered.shards().map(|shard| shard.range));
    if !holes.is_empty() {
        return Err(SyncError::IncompleteList { holes });
    }
    let skipped = inconsistent_children(filtered, on_inconsistent)?;
    let checkpoint = protocol.resolve(start).into();
    let listed = filtered.shards().filter(|shard| !skipped.contains(&shard.id));
    Ok(oldest_first(listed.map(|shard| (shard, checkpoint)).collect()))
}

fn oldest_first(mut rows: Vec<(&Shard, Position)>) -> Vec<NewLease> {
    rows.sort_unstable_by_key(|(shard, _)| shard.birth());
    rows.into_iter().map(|(shard, checkpoint)| NewLease::new(shard, checkpoint)).collect()
}

fn inconsistent_children(
    lineage: &Lineage,
    on_inconsistent: OnInconsistentChild,
) -> Result<BTreeSet<ShardId>, SyncError> {
    let mut children = BTreeSet::new();
    for found in lineage.children_of_open_parents() {
        match (on_inconsistent, found) {
            (OnInconsistentChild::Skip, Inconsistency::ChildOfOpenParent { child, .. }) => {
                children.insert(child);
            }
            (_, found) => return Err(SyncError::InconsistentChild(found)),
        }
    }
    Ok(children)
}

/// Returns the rows of children that were lost, oldest shard first. `lineage` is a full list that
/// was read before `rows`.
///
/// The end of a shard is written after its children's rows. A listed child without a row, whose
/// parent's row has ended, therefore had one. The native layout removes a row only after its shard
/// is trimmed. KCL removes the row of a finished shard once its children have begun; the rows of
/// these or of their descendants then prove that the shard is over. Java workers never recreate a
/// lost row.
pub fn forgotten(lineage: &Lineage, rows: &[Lease]) -> Vec<NewLease> {
    let over = over(lineage, rows);
    let children: BTreeSet<_> = forgotten_children(lineage, rows, &over).collect();
    let listed = children.into_iter().filter_map(|id| lineage.get(id));
    oldest_first(listed.map(|shard| (shard, Position::TrimHorizon)).collect())
}

/// Returns the listed children of ended shards that have no row and are not over.
fn forgotten_children<'a>(
    lineage: &'a Lineage,
    rows: &'a [Lease],
    over: &BTreeSet<&'a ShardId>,
) -> impl Iterator<Item = &'a ShardId> {
    let leased: BTreeSet<_> = rows.iter().map(|row| &row.key.shard).collect();
    let ended = rows.iter().filter(|row| row.is_ended());
    let children = ended.flat_map(|row| lineage.children(&row.key.shard));
    children.filter(move |child| !leased.contains(child) && !over.contains(child))
}

/// Returns the shards, with or without rows, that the rows prove to be over: ended, or before the
/// start position.
///
/// A row is created at the start position or by the end of a parent. The row of a split child
/// therefore proves that its parent is over, and that of a merged child only that one of its two
/// parents is. A row that has advanced proves that all parents are over, because the gate let it
/// start. All ancestors of an ended shard are over.
///
/// Without this rule, a lost row of one split child would make the application read the whole
/// history before the split again. KCL does so from `TRIM_HORIZON`, and its test of that case is
/// disabled.
fn over<'a>(lineage: &'a Lineage, rows: &'a [Lease]) -> BTreeSet<&'a ShardId> {
    let mut over = BTreeSet::new();
    let mut next: Vec<&ShardId> = rows
        .iter()
        .filter(|row| row.parents.len() == 1 || row.is_started())
        .flat_map(|row| &row.parents)
        .collect();
    while let Some(id) = next.pop() {
        if over.insert(id) {
            next.extend(lineage.listed_parents(id).map(|parent| &parent.id));
        }
    }
    over
}

/// Returns the shards whose rows will be created by the end of an unlisted shard. That end creates
/// them at the trim horizon. A sync would create them at the start position and could skip records.
fn awaited<'a>(lineage: &'a Lineage, rows: &[Lease]) -> BTreeSet<&'a ShardId> {
    let unlisted = rows.iter().filter(|row| !row.is_ended() && !lineage.names(&row.key.shard));
    let heirs = unlisted.filter_map(|row| lineage.successors(&row.key.shard, row.range.as_ref()));
    heirs.flatten().map(|heir| &heir.id).collect()
}

/// Returns the hash ranges covered by the unfinished rows. Returns `None` if the range of a row is
/// neither in the row nor known from the list.
pub fn covered(lineage: &Lineage, rows: &[Lease]) -> Option<Vec<HashRange>> {
    let mut keys = Vec::new();
    for row in rows.iter().filter(|row| !row.is_ended()) {
        match row.range.or_else(|| lineage.get(&row.key.shard).map(|shard| shard.range)) {
            Some(range) => keys.push(range),
            None => keys.extend(lineage.keys_of_lost(&row.key.shard)?),
        }
    }
    Some(keys)
}

/// Relation of a shard to the existing rows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RowStatus {
    /// It has a row, or gets one by the end of a parent that has or gets one.
    Descendant,
    /// It descends from no row and has to be read: its row is created once a child requires it.
    ToBeMade,
    /// It descends from no row, and it is over or before the start position.
    Foreign,
}

/// Search for shards that need a row, from each open shard up to its oldest ancestors.
struct MissingRows<'a> {
    /// Full list of the shards.
    lineage: &'a Lineage,
    /// Shards with a row.
    leased: BTreeSet<&'a ShardId>,
    /// Shards whose rows will be created by the end of an unlisted shard.
    awaited: BTreeSet<&'a ShardId>,
    /// Shards that the rows prove to be over.
    over: BTreeSet<&'a ShardId>,
    /// True if the start position is in the past, so that closed shards are read too.
    from_the_past: bool,
    /// Status of each visited shard.
    standing: BTreeMap<&'a ShardId, RowStatus>,
    /// Shards that need a row.
    found: BTreeSet<&'a ShardId>,
}

impl<'a> MissingRows<'a> {
    /// Finds the rows that an open shard needs: its own, or those of its ancestors.
    ///
    /// The walk visits parents before children and stops at rows, because a sync that created a row
    /// also created those of its ancestors.
    fn visit(&mut self, open: &'a ShardId) {
        let leased = &self.leased;
        for id in self.lineage.oldest_first(open, |id| leased.contains(id)) {
            if self.lineage.names(id) && !self.standing.contains_key(id) {
                let standing = self.stand(id);
                self.standing.insert(id, standing);
            }
        }
        if self.standing_of(open) != RowStatus::Descendant {
            self.found.insert(open);
        }
    }

    fn stand(&mut self, id: &'a ShardId) -> RowStatus {
        if self.leased.contains(id) {
            return RowStatus::Descendant;
        }
        let parents: Vec<_> = self.lineage.listed_parents(id).map(|parent| &parent.id).collect();
        let is_foreign = |parent: &&ShardId| self.standing_of(parent) == RowStatus::Foreign;
        if !self.awaited.contains(id) && parents.iter().all(is_foreign) {
            let to_be_read = self.from_the_past && !self.over.contains(id);
            return if to_be_read { RowStatus::ToBeMade } else { RowStatus::Foreign };
        }
        // The shard will be read after one parent, so the other one is read too, from the start
        // position.
        for parent in parents {
            if self.standing_of(parent) != RowStatus::Descendant && !self.over.contains(parent) {
                self.found.insert(parent);
            }
        }
        RowStatus::Descendant
    }

    /// Returns the status of a shard. A parent that is not listed, or that a cycle put after its
    /// child, counts as foreign.
    fn standing_of(&self, id: &ShardId) -> RowStatus {
        self.standing.get(id).copied().unwrap_or(RowStatus::Foreign)
    }
}

#[cfg(test)]
mod tests;
