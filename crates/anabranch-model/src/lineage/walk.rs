//! Reading order for a reader without leases: each shard after its ancestors.

use crate::hash::HashRange;
use crate::ids::ShardId;
use std::collections::BTreeMap;

/// Shards that are being read or wait for their ancestors.
///
/// The first shards are a cut through the stream: they share no key, and together they cover all
/// keys. After that, each shard that ends names its followers. A shard waits while an older one
/// that shares a key with it has not ended. That one is an ancestor, either a known one or one
/// whose descendants have not been found yet. Shards are numbered in the order of creation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LineageWalk {
    active: BTreeMap<ShardId, WalkedShard>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct WalkedShard {
    range: HashRange,
    reading: bool,
}

impl LineageWalk {
    /// Adds a shard to be read, unless it is known.
    pub fn add(&mut self, shard: ShardId, range: HashRange) {
        self.active.entry(shard).or_insert(WalkedShard { range, reading: false });
    }

    /// Marks a shard as ended. Add its followers first.
    pub fn end(&mut self, shard: &ShardId) {
        self.active.remove(shard);
    }

    /// Returns the shards that may be read from now on. Each is returned once.
    pub fn start(&mut self) -> Vec<(ShardId, HashRange)> {
        let may = |(id, shard): &(&ShardId, &WalkedShard)| {
            !shard.reading
                && self.active.range(..*id).all(|(_, older)| !older.range.overlaps(&shard.range))
        };
        let ready: Vec<_> =
            self.active.iter().filter(may).map(|(id, it)| (id.clone(), it.range)).collect();
        for (id, _) in &ready {
            if let Some(shard) = self.active.get_mut(id) {
                shard.reading = true;
            }
        }
        ready
    }

    /// Returns true if no shard is left.
    pub fn is_over(&self) -> bool {
        self.active.is_empty()
    }

    /// Returns the shards that are being read or wait.
    pub fn shards(&self) -> impl Iterator<Item = &ShardId> {
        self.active.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::HashKey;
    use proptest::prelude::*;

    fn range(start: u128, end: u128) -> HashRange {
        HashRange::new(HashKey(start), HashKey(end)).unwrap()
    }

    fn id(number: usize) -> ShardId {
        format!("shardId-{number:012}").into()
    }

    fn names(started: Vec<(ShardId, HashRange)>) -> Vec<ShardId> {
        started.into_iter().map(|(id, _)| id).collect()
    }

    #[test]
    fn a_merged_shard_waits_for_a_parent_that_nobody_has_named_yet() {
        // The first shard is split into low and high, and high is merged with the other one, which
        // is drained first.
        let (first, other, low, high, merged) = (id(0), id(1), id(2), id(3), id(4));
        let mut descent = LineageWalk::default();
        descent.add(first.clone(), range(0, 99));
        descent.add(other.clone(), range(100, 199));
        assert_eq!(names(descent.start()), [first.clone(), other.clone()]);
        descent.add(merged.clone(), range(50, 199));
        descent.end(&other);
        assert_eq!(names(descent.start()), [], "the first has not ended");
        descent.add(low.clone(), range(0, 49));
        descent.add(high.clone(), range(50, 99));
        descent.end(&first);
        assert_eq!(names(descent.start()), [low, high.clone()]);
        descent.add(merged.clone(), range(50, 199));
        descent.end(&high);
        assert_eq!(names(descent.start()), [merged]);
    }

    /// A stream of shards over 64 keys that was split and merged at random.
    #[derive(Debug, Clone)]
    struct Made {
        range: (u128, u128),
        parents: Vec<usize>,
        children: Vec<usize>,
    }

    fn stream(steps: &[(usize, bool)]) -> Vec<Made> {
        let fresh = |range, parents| Made { range, parents, children: Vec::new() };
        let mut made = vec![fresh((0, 31), vec![]), fresh((32, 63), vec![])];
        for &(pick, splits) in steps {
            let mut open: Vec<_> =
                (0..made.len()).filter(|i| made[*i].children.is_empty()).collect();
            open.sort_by_key(|i| made[*i].range);
            let at = pick % open.len();
            let (one, (start, end)) = (open[at], made[open[at]].range);
            let next = made.len();
            if splits && start < end {
                let middle = start.midpoint(end);
                made.push(fresh((start, middle), vec![one]));
                made.push(fresh((middle + 1, end), vec![one]));
                made[one].children = vec![next, next + 1];
            } else if at + 1 < open.len() {
                let other = open[at + 1];
                made.push(fresh((start, made[other].range.1), vec![one, other]));
                made[one].children = vec![next];
                made[other].children = vec![next];
            }
        }
        made
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn every_shard_is_read_once_and_after_its_parents(
            steps in proptest::collection::vec((any::<usize>(), any::<bool>()), 0..30),
            order in proptest::collection::vec(any::<usize>(), 200),
        ) {
            let made = stream(&steps);
            let mut descent = LineageWalk::default();
            let add = |descent: &mut LineageWalk, at: usize| {
                let (start, end) = made[at].range;
                descent.add(id(at), range(start, end));
            };
            add(&mut descent, 0);
            add(&mut descent, 1);
            let (mut reading, mut ended) = (Vec::new(), vec![false; made.len()]);
            let mut order = order.into_iter().cycle();
            loop {
                for (name, _) in descent.start() {
                    let at = (0..made.len()).find(|at| id(*at) == name).unwrap();
                    prop_assert!(made[at].parents.iter().all(|parent| ended[*parent]), "{}", at);
                    prop_assert!(!ended[at]);
                    reading.push(at);
                }
                if reading.is_empty() {
                    break;
                }
                let at = reading.swap_remove(order.next().unwrap() % reading.len());
                made[at].children.iter().for_each(|child| add(&mut descent, *child));
                descent.end(&id(at));
                ended[at] = true;
            }
            prop_assert!(descent.is_over() && ended.into_iter().all(|it| it));
        }
    }
}
