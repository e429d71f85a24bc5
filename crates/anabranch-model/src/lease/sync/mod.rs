//! Which rows are missing, given the shards of the stream and the rows that exist.

use super::row::{Lease, NewLease};
use crate::coverage;
use crate::hash::HashRange;
use crate::ids::ShardId;
use crate::lineage::{Inconsistency, Lineage, Shard};
use crate::position::{Position, StartPosition};
use std::collections::{BTreeMap, BTreeSet};

/// How the workers of an application keep their rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// Our own layout.
    Native {
        /// When the application was first started, by the service's clock, in milliseconds since
        /// 1970. `LATEST` means this moment, for every worker and for ever: a shard that is idle
        /// until a restart would else lose what arrives during it.
        t0_ms: u64,
    },
    /// The rows and rules of KCL 1.x and 2.x, shared with Java workers.
    Kcl2,
}

impl Protocol {
    /// What `start` means under this protocol.
    fn resolve(self, start: StartPosition) -> StartPosition {
        match (self, start) {
            (Self::Native { t0_ms }, StartPosition::Latest) => StartPosition::AtTimestamp(t0_ms),
            (_, start) => start,
        }
    }
}

/// What to do about a listed child whose parent is still open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnInconsistentChild {
    /// Make no row at all and say why.
    Refuse,
    /// Make the other rows, and leave the child to a later sync.
    Skip,
}

/// Why no row can be made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SyncError {
    /// A child is listed and its parent is open: the list was read in the middle of a reshard.
    #[error("the shard list cannot be used: {0}; list the shards again")]
    InconsistentChild(Inconsistency),
    /// The first list leaves keys out, so the application would never read them.
    #[error("the first shard list lacks the keys {holes:?}; list the shards again")]
    IncompleteList {
        /// The keys that no listed shard takes.
        holes: Vec<HashRange>,
    },
}

/// The rows to make, oldest shard first. An empty list makes none.
///
/// Without rows, `lineage` is the list filtered by the start position, and this is [`first_sync`].
/// With rows, `lineage` is a full list, and the missing rows are KCL's: of what has no row, the one
/// oldest layer that is to be read, so that everything younger gets its row when its parents end. A
/// child that lost its row although its parent ended gets one too, as [`forgotten`] says; KCL
/// leaves that one out.
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

/// The rows of an application that has none: one for every shard that was open at the start
/// position, which is what the filtered list holds.
///
/// A worker that finds the first sync unfinished repeats it, whatever rows there are by then. A
/// list that leaves keys out, an empty one too, is an error, so that nobody takes this sync for
/// done.
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
/// The end of a shard is written after its children's rows. So a listed child without a row, of a
/// parent whose row has ended, had one. Our own layout removes a row only after its shard is
/// trimmed; KCL removes that of a finished shard once its children have begun, and then their rows,
/// or those of their descendants, prove the shard over. Java's workers never make such a row again.
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

/// The shards that the rows prove to be over, ended or before the start position, whether they have
/// rows of their own or not.
///
/// A row is made at the start position or by the end of a parent, so the row of a split child
/// proves its parent over, and that of a merged child only one of its two. A row that has moved
/// proves all parents over, because the gate let it start. Whatever comes before an ended shard is
/// over.
///
/// Without this, a lost row of one split child would bring back the whole history before the split,
/// as it does in KCL from `TRIM_HORIZON`; KCL's test of that case is switched off.
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

/// Returns the shards whose rows come with the end of a shard that the list lacks. That end puts
/// them at the trim horizon, where a sync would put them at the start position and could leave
/// records out.
fn awaited<'a>(lineage: &'a Lineage, rows: &[Lease]) -> BTreeSet<&'a ShardId> {
    let unlisted = rows.iter().filter(|row| !row.is_ended() && !lineage.names(&row.key.shard));
    let heirs = unlisted.filter_map(|row| lineage.successors(&row.key.shard, row.range.as_ref()));
    heirs.flatten().map(|heir| &heir.id).collect()
}

/// Returns the keys that the unfinished rows stand for. `None` if the list does not tell those of a
/// row that does not tell them itself.
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

/// How a shard stands to the rows that exist.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RowStatus {
    /// It has a row, or its row will come when a parent that has or gets one ends.
    Descendant,
    /// It comes from no row, and it is to be read: its row is to be made once a child asks.
    ToBeMade,
    /// It comes from no row, and it is over or lies before the start position.
    Foreign,
}

/// The search for shards that need a row, from each open shard up to its oldest ancestors.
struct MissingRows<'a> {
    /// A full list of the shards.
    lineage: &'a Lineage,
    /// The shards that have a row.
    leased: BTreeSet<&'a ShardId>,
    /// The shards whose rows come with the end of a shard that the list lacks.
    awaited: BTreeSet<&'a ShardId>,
    /// The shards that the rows prove to be over.
    over: BTreeSet<&'a ShardId>,
    /// Whether the start position lies in the past, so that closed shards are to be read too.
    from_the_past: bool,
    /// What was found of each shard that the walk has passed.
    standing: BTreeMap<&'a ShardId, RowStatus>,
    /// The shards that need a row.
    found: BTreeSet<&'a ShardId>,
}

impl<'a> MissingRows<'a> {
    /// Finds the rows that an open shard needs: its own, or those of its ancestors.
    ///
    /// The walk passes parents before children and stops at rows, because whoever made a row made
    /// those of its ancestors too.
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
        // The shard will be read after one parent, so the other one must not be left out: it is
        // read too, from the start position.
        for parent in parents {
            if self.standing_of(parent) != RowStatus::Descendant && !self.over.contains(parent) {
                self.found.insert(parent);
            }
        }
        RowStatus::Descendant
    }

    /// A parent that is not listed, or that a cycle put after its child, counts as foreign.
    fn standing_of(&self, id: &ShardId) -> RowStatus {
        self.standing.get(id).copied().unwrap_or(RowStatus::Foreign)
    }
}

#[cfg(test)]
mod tests;
