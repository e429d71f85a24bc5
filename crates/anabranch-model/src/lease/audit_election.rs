//! Election of the worker that audits a stream, and the rules for removing rows.

use super::java_shuffle;
use super::row::Lease;
use super::table::Layout;
use super::worker_row::WorkerId;
use crate::ids::ShardId;
use crate::lineage::Lineage;
use crate::position::Position;
use std::collections::BTreeSet;

/// Returns true if `me` audits the stream with these rows, which are sorted by key.
///
/// In the native layout the auditor is the owner of the lowest unfinished lease that has an owner,
/// so the duty moves with the lease and needs no election. If no unfinished lease has an owner,
/// `lowest_worker` is the auditor. In KCL's layout it is the leader that Java elects among
/// `owners`, the owners in the whole table over all streams. If these are not known, the owners of
/// this stream are used.
pub fn is_auditor(
    layout: Layout,
    rows: &[Lease],
    me: &WorkerId,
    lowest_worker: Option<&WorkerId>,
    owners: Option<&BTreeSet<String>>,
) -> bool {
    match layout {
        Layout::Native => {
            let owner =
                rows.iter().filter(|row| !row.is_ended()).find_map(|row| row.owner.as_ref());
            owner.or(lowest_worker) == Some(me)
        }
        Layout::Kcl => {
            let of_stream =
                || rows.iter().filter_map(|row| row.owner.as_ref()).map(WorkerId::as_str);
            owners.map_or_else(
                || java_shuffle::leads(me.as_str(), of_stream()),
                |owners| java_shuffle::leads(me.as_str(), owners.iter().map(String::as_str)),
            )
        }
    }
}

/// Returns true if the row of a finished shard may be removed. `rows` are all rows of the stream,
/// sorted by key, and `list` is a full list of its shards.
///
/// In the native layout the list must prove that the shard is gone. Until then the row is a
/// tombstone that makes a late create fail. In KCL's layout the rule is KCL's: every child has
/// begun, and no parent has a row. There the row of a shard that is gone may be removed too. KCL
/// counts a child at `LATEST` as begun. This function does not, because a merged child may wait for
/// its other parent, whose end reads this row.
pub fn may_remove(layout: Layout, row: &Lease, rows: &[Lease], list: &Lineage) -> bool {
    if !row.is_ended() {
        return false;
    }
    let gone = list.successors(&row.key.shard, row.range.as_ref()).is_some();
    match layout {
        Layout::Native => gone,
        Layout::Kcl => gone || is_behind(row, rows),
    }
}

/// Returns a row whose checkpoint proves that the list belongs to another stream of the same name,
/// created later. KCL's table stores no creation time, and a recreated stream has shards of the
/// same names.
///
/// No record of a shard has a lower sequence number than the shard's starting number. A shard that
/// is missing from the list, though it is younger than all listed shards, would start above their
/// starting numbers. A sequence number with fewer digits than those of Kinesis proves nothing.
pub fn of_another_stream<'a>(rows: &'a [Lease], list: &Lineage) -> Option<&'a Lease> {
    let oldest = list.shards().map(|shard| shard.starting).min()?;
    rows.iter().find(|row| {
        let Position::At { sequence, .. } = row.checkpoint.lowest() else { return false };
        if sequence.limbs()[0] == 0 {
            return false;
        }
        match list.get(&row.key.shard) {
            Some(shard) => sequence < shard.starting,
            None => sequence < oldest && list.shards().all(|shard| shard.id < row.key.shard),
        }
    })
}

fn is_behind(row: &Lease, rows: &[Lease]) -> bool {
    let find = |shard: &ShardId| {
        let at = rows.binary_search_by(|other| other.key.shard.cmp(shard)).ok()?;
        rows.get(at)
    };
    let has_begun = |child: &Lease| {
        matches!(child.checkpoint.lowest(), Position::At { .. } | Position::ShardEnd)
    };
    !row.children.is_empty()
        && row.children.iter().all(|child| find(child).is_some_and(has_begun))
        && row.parents.iter().all(|parent| find(parent).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::HashRange;
    use crate::lease::row::NewLease;
    use crate::lineage::Shard;
    use crate::sequence::SequenceNumber;

    fn shard(index: u32, parent: Option<u32>, half: Option<usize>) -> Shard {
        let range = half.map_or(HashRange::ALL, |half| HashRange::divide_all(2)[half]);
        Shard {
            id: ShardId::from_index(index),
            parent: parent.map(ShardId::from_index),
            adjacent_parent: None,
            range,
            starting: SequenceNumber::from_limbs(0, 0, u64::from(index)).unwrap(),
            ending: None,
        }
    }

    /// Shard 0, split into 1 and 2.
    fn split() -> Vec<Shard> {
        vec![shard(0, None, None), shard(1, Some(0), Some(0)), shard(2, Some(0), Some(1))]
    }

    fn row(shard: &Shard, checkpoint: Position, owner: Option<&str>) -> Lease {
        let mut row = NewLease::new(shard, checkpoint).into_lease(&"s".into());
        row.owner = owner.map(WorkerId::from);
        row
    }

    #[test]
    fn the_owner_of_the_lowest_unfinished_lease_audits() {
        let [zero, one, two] = <[Shard; 3]>::try_from(split()).unwrap();
        let (end, begin) = (Position::ShardEnd, Position::TrimHorizon);
        let cases: [(&[Lease], &str); 5] = [
            (&[row(&zero, begin, Some("a")), row(&one, begin, Some("b"))], "a"),
            (&[row(&zero, end, Some("a")), row(&one, begin, Some("b"))], "b"),
            (&[row(&one, begin, None), row(&two, begin, Some("b"))], "b"),
            (&[row(&zero, end, Some("a")), row(&one, end, Some("b"))], "c"),
            (&[], "c"),
        ];
        for (rows, auditor) in cases {
            for me in ["a", "b", "c"] {
                let (lowest, id) = (WorkerId::from("c"), WorkerId::from(me));
                let does = is_auditor(Layout::Native, rows, &id, Some(&lowest), None);
                assert_eq!(does, me == auditor, "{me} with {rows:?}");
            }
        }
    }

    #[test]
    fn in_kcls_layout_the_leader_of_the_whole_table_audits_each_stream() {
        let [zero, one, _] = <[Shard; 3]>::try_from(split()).unwrap();
        let begin = Position::TrimHorizon;
        let rows = [row(&zero, begin, Some("java-1")), row(&one, begin, Some("rust-1"))];
        // Of two owners Java elects the first, of three the third.
        let table = ["java-1", "java-2", "rust-1"].map(str::to_owned).into_iter().collect();
        for (owners, auditor) in [(None, "java-1"), (Some(&table), "rust-1")] {
            for me in ["java-1", "java-2", "rust-1"] {
                let does = is_auditor(Layout::Kcl, &rows, &me.into(), None, owners);
                assert_eq!(does, me == auditor, "{me} with {owners:?}");
            }
        }
    }

    #[test]
    fn a_checkpoint_below_the_first_number_is_of_another_stream() {
        let at =
            |low| Position::At { sequence: SequenceNumber::from_limbs(1, 0, low).unwrap(), sub: 3 };
        let short = SequenceNumber::from_limbs(0, 0, 99).unwrap();
        let born = |index: u32, first: u64| Shard {
            starting: SequenceNumber::from_limbs(1, 0, first).unwrap(),
            ..shard(index, None, None)
        };
        let list = Lineage::new([born(1, 100), born(2, 200)]);
        for (index, checkpoint, is_other) in [
            (1, at(99), true),
            (1, at(100), false),
            (2, at(150), true),
            (2, at(200), false),
            // Trimmed: older than the listed shards.
            (0, at(50), false),
            // Younger than the listed shards, but with a lower sequence number.
            (3, at(50), true),
            // Younger than the list.
            (3, at(300), false),
            (1, Position::At { sequence: short, sub: 0 }, false),
            (1, Position::TrimHorizon, false),
            (1, Position::Latest, false),
            (1, Position::ShardEnd, false),
        ] {
            let rows = [row(&born(index, 1), checkpoint, None)];
            let found = of_another_stream(&rows, &list).is_some();
            assert_eq!(found, is_other, "{index} at {checkpoint:?}");
            assert!(of_another_stream(&rows, &Lineage::default()).is_none());
        }
    }

    #[test]
    fn a_finished_row_goes_when_its_shard_is_gone_or_in_kcls_layout_when_its_children_have_begun() {
        let shards = split();
        let (full, trimmed) = (Lineage::new(shards.clone()), Lineage::new(shards[1..].to_vec()));
        let old = Lineage::new(shards[..1].to_vec());
        let at =
            |low| Position::At { sequence: SequenceNumber::from_limbs(0, 0, low).unwrap(), sub: 0 };
        let zero = |checkpoint| {
            let children = vec![shards[1].id.clone(), shards[2].id.clone()];
            Lease { children, ..row(&shards[0], checkpoint, None) }
        };
        let child = |index: usize, checkpoint| row(&shards[index], checkpoint, None);
        let (end, begin) = (Position::ShardEnd, Position::TrimHorizon);
        // Rows, list, and if the row of shard 0 may be removed in the native and in KCL's layout.
        let cases: [(Vec<Lease>, &Lineage, (bool, bool)); 7] = [
            (vec![zero(end), child(1, begin), child(2, begin)], &full, (false, false)),
            (vec![zero(end), child(1, at(5)), child(2, begin)], &full, (false, false)),
            (vec![zero(end), child(1, at(5)), child(2, Position::Latest)], &full, (false, false)),
            (vec![zero(end), child(1, at(5)), child(2, end)], &full, (false, true)),
            (vec![zero(end), child(1, at(5))], &full, (false, false)),
            (vec![zero(end), child(1, begin), child(2, begin)], &trimmed, (true, true)),
            (vec![zero(at(3)), child(1, at(5)), child(2, at(6))], &trimmed, (false, false)),
        ];
        for (rows, list, (native, kcl)) in cases {
            assert_eq!(
                may_remove(Layout::Native, &rows[0], &rows, list),
                native,
                "native: {rows:?}"
            );
            assert_eq!(may_remove(Layout::Kcl, &rows[0], &rows, list), kcl, "KCL: {rows:?}");
        }
        let late = row(&shards[1], end, None);
        assert!(
            !may_remove(Layout::Native, &late, &[], &old),
            "a list can be older than the shard"
        );
    }
}
