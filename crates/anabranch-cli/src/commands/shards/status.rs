//! Status of a shard for an application.

use crate::line::short;
use anabranch_model::ids::ShardId;
use anabranch_model::lease::Lease;
use anabranch_model::lineage::{Lineage, Shard};
use std::collections::BTreeMap;
use std::fmt;

/// Status of a shard for an application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ShardStatus {
    /// A worker owns it.
    Read,
    /// All its records are done.
    Done,
    /// It can be read, but has no owner.
    Free,
    /// This parent is not done.
    Waits(ShardId),
    /// It has no row. The end of this ancestor creates one.
    RowPending(ShardId),
    /// It is closed and has no row: older than the application's start, or cleaned up.
    BeforeStart,
    /// It is open and has no row, and no worker will create one.
    Hole,
    /// Its row says that it is done, but it is open: it is not read any more.
    EndedTooEarly,
}

impl ShardStatus {
    /// Returns the status as one word, for scripts.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Done => "done",
            Self::Free => "free",
            Self::Waits(_) => "waits",
            Self::RowPending(_) => "row-comes",
            Self::BeforeStart => "past",
            Self::Hole => "hole",
            Self::EndedTooEarly => "ended-too-early",
        }
    }
}

impl fmt::Display for ShardStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read => Ok(()),
            Self::Done => f.write_str("done"),
            Self::Free => f.write_str("not read: no worker has taken it"),
            Self::Waits(parent) => write!(f, "not read: {} must be done first", short(parent)),
            Self::RowPending(ancestor) => {
                write!(f, "not read: lease created when {} is done", short(ancestor))
            }
            Self::BeforeStart => f.write_str("no lease: older than the start, or cleaned up"),
            Self::Hole => f.write_str("HOLE: no lease, and none will be created"),
            Self::EndedTooEarly => f.write_str("STOPPED: its lease says done, but it is open"),
        }
    }
}

/// Returns the status of a shard, based on the application's rows.
pub(crate) fn standing(
    lineage: &Lineage,
    rows: &BTreeMap<ShardId, Lease>,
    shard: &Shard,
) -> ShardStatus {
    let unfinished = |id: &ShardId| rows.get(id).is_some_and(|row| !row.is_ended());
    match rows.get(&shard.id) {
        Some(row) if row.is_ended() && shard.is_open() => ShardStatus::EndedTooEarly,
        Some(row) if row.is_ended() => ShardStatus::Done,
        Some(row) => {
            let parent = row.parents.iter().find(|parent| unfinished(parent));
            match parent {
                // A row that has started has passed the parents' check before.
                Some(parent) if !row.is_started() => ShardStatus::Waits(parent.clone()),
                _ if row.owner.is_some() => ShardStatus::Read,
                _ => ShardStatus::Free,
            }
        }
        None => {
            let ancestors = lineage.ancestors(&shard.id);
            match ancestors.into_iter().rev().find(|ancestor| unfinished(ancestor)) {
                Some(ancestor) => ShardStatus::RowPending(ancestor.clone()),
                None if shard.is_open() => ShardStatus::Hole,
                None => ShardStatus::BeforeStart,
            }
        }
    }
}

/// Returns the open shards that will never be read.
pub(crate) fn holes<'a>(lineage: &'a Lineage, rows: &BTreeMap<ShardId, Lease>) -> Vec<&'a Shard> {
    let unread = |shard: &&Shard| {
        matches!(standing(lineage, rows, shard), ShardStatus::Hole | ShardStatus::EndedTooEarly)
    };
    lineage.open_shards().filter(unread).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_model::hash::HashRange;
    use anabranch_model::lease::{NewLease, WorkerId};
    use anabranch_model::position::Position;
    use anabranch_model::sequence::SequenceNumber;

    fn shard(index: u32, parent: Option<u32>, adjacent: Option<u32>, open: bool) -> Shard {
        Shard {
            id: ShardId::from_index(index),
            parent: parent.map(ShardId::from_index),
            adjacent_parent: adjacent.map(ShardId::from_index),
            range: HashRange::ALL,
            starting: SequenceNumber::ZERO,
            ending: (!open).then_some(SequenceNumber::ZERO),
        }
    }

    /// Shard 0 was split into 1 and 2, which were merged into 3.
    fn lineage() -> Lineage {
        Lineage::new([
            shard(0, None, None, false),
            shard(1, Some(0), None, false),
            shard(2, Some(0), None, false),
            shard(3, Some(1), Some(2), true),
        ])
    }

    fn check(rows: &[(u32, Position, Option<&str>)], expected: &[ShardStatus; 4]) {
        let lineage = lineage();
        let row = |(index, at, owner): &(u32, Position, Option<&str>)| {
            let shard = lineage.get(&ShardId::from_index(*index)).unwrap();
            let mut lease = NewLease::new(shard, *at).into_lease(&"s".into());
            lease.owner = owner.map(WorkerId::from);
            (shard.id.clone(), lease)
        };
        let rows: BTreeMap<_, _> = rows.iter().map(row).collect();
        let found: Vec<_> =
            lineage.shards().map(|shard| standing(&lineage, &rows, shard)).collect();
        assert_eq!(found, *expected, "{rows:?}");
    }

    #[test]
    fn why_a_shard_is_not_read_is_told_by_the_rows() {
        use ShardStatus::{BeforeStart, Done, EndedTooEarly, Free, Hole, Read, RowPending, Waits};
        let id = ShardId::from_index;
        let (trim, end) = (Position::TrimHorizon, Position::ShardEnd);
        check(&[], &[BeforeStart, BeforeStart, BeforeStart, Hole]);
        check(
            &[(0, trim, Some("w"))],
            &[Read, RowPending(id(0)), RowPending(id(0)), RowPending(id(0))],
        );
        check(
            &[(0, end, None), (1, trim, Some("w")), (2, trim, None)],
            &[Done, Read, Free, RowPending(id(1))],
        );
        check(
            &[(0, end, None), (1, end, None), (2, trim, Some("w")), (3, trim, None)],
            &[Done, Done, Read, Waits(id(2))],
        );
        check(&[(0, end, None), (1, end, None), (2, end, None)], &[Done, Done, Done, Hole]);
        check(&[(3, trim, Some("w"))], &[BeforeStart, BeforeStart, BeforeStart, Read]);
        check(&[(3, end, None)], &[BeforeStart, BeforeStart, BeforeStart, EndedTooEarly]);
    }
}
