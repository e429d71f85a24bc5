//! A stream that is split, merged and trimmed at random.

use anabranch_model::hash::{HashKey, HashRange};
use anabranch_model::ids::ShardId;
use anabranch_model::lineage::{Lineage, Shard};
use anabranch_model::sequence::SequenceNumber;

/// A generator of numbers that follow from a seed.
pub(crate) struct SeededRng(u64);

impl SeededRng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        // SplitMix64: good enough for random choices, and three lines long.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        let index = self.below(u64::try_from(from.len()).unwrap());
        from.get(usize::try_from(index).unwrap())
    }
}

/// The stream. Time is counted in changes, and a shard's sequence numbers are times.
pub(crate) struct Stream {
    /// Number of changes so far.
    pub(crate) now: u64,
    /// Records before this time are trimmed, and so are shards that were closed by then.
    pub(crate) horizon: u64,
    /// Every shard that ever existed, by its index, with its creation time and the time it was
    /// closed.
    shards: Vec<(Shard, u64, Option<u64>)>,
    /// Full list after each change.
    lists: Vec<Lineage>,
}

fn number(time: u64) -> SequenceNumber {
    SequenceNumber::from_limbs(0, 0, time).unwrap()
}

impl Stream {
    pub(crate) fn new(dice: &mut SeededRng) -> Self {
        let mut stream = Self { now: 0, horizon: 0, shards: Vec::new(), lists: Vec::new() };
        for range in HashRange::divide_all(1 + u32::try_from(dice.below(4)).unwrap()) {
            stream.add_shard(range, None, None);
        }
        stream.lists.push(stream.list());
        stream
    }

    fn add_shard(&mut self, range: HashRange, parent: Option<ShardId>, adjacent: Option<ShardId>) {
        let shard = Shard {
            id: ShardId::from_index(u32::try_from(self.shards.len()).unwrap()),
            parent,
            adjacent_parent: adjacent,
            range,
            starting: number(self.now),
            ending: None,
        };
        self.shards.push((shard, self.now, None));
    }

    fn close(&mut self, id: &ShardId) {
        let (shard, _, closed) = &mut self.shards[id.index().unwrap() as usize];
        (shard.ending, *closed) = (Some(number(self.now)), Some(self.now));
    }

    /// Splits, merges or trims.
    pub(crate) fn change(&mut self, dice: &mut SeededRng) {
        self.now += 1;
        match dice.below(7) {
            0..=2 => self.split(dice),
            3..=5 => self.merge(dice),
            _ => self.horizon += dice.below(self.now - self.horizon),
        }
        self.lists.push(self.list());
    }

    fn open(&self) -> Vec<Shard> {
        let open = self.shards.iter().filter(|(_, _, closed)| closed.is_none());
        let mut open: Vec<_> = open.map(|(shard, _, _)| shard.clone()).collect();
        open.sort_unstable_by_key(|shard| shard.range);
        open
    }

    fn split(&mut self, dice: &mut SeededRng) {
        let open = self.open();
        let Some(shard) = dice.pick(&open).filter(|_| open.len() < 7) else { return };
        let (start, end) = (shard.range.start().0, shard.range.end().0);
        let at = start + (end - start) / (2 + u128::from(dice.below(3))) + 1;
        let Some((low, high)) = shard.range.split_at(HashKey(at)) else { return };
        self.close(&shard.id);
        self.add_shard(low, Some(shard.id.clone()), None);
        // Some lists name an only parent as the adjacent one.
        let (parent, adjacent) = (Some(shard.id.clone()), None);
        let (parent, adjacent) =
            if dice.one_in(4) { (adjacent, parent) } else { (parent, adjacent) };
        self.add_shard(high, parent, adjacent);
    }

    fn merge(&mut self, dice: &mut SeededRng) {
        let open = self.open();
        let pairs: Vec<_> = open.windows(2).collect();
        let Some([low, high]) = dice.pick(&pairs).copied() else { return };
        self.close(&low.id);
        self.close(&high.id);
        let range = low.range.join(&high.range).unwrap();
        let (first, second) = if dice.one_in(2) { (low, high) } else { (high, low) };
        self.add_shard(range, Some(first.id.clone()), Some(second.id.clone()));
    }

    fn list_where(&self, is_listed: impl Fn(u64, Option<u64>) -> bool) -> Lineage {
        let listed = self.shards.iter().filter(|(_, born, closed)| is_listed(*born, *closed));
        Lineage::new(listed.map(|(shard, _, _)| shard.clone()))
    }

    /// Returns the current full list.
    pub(crate) fn list(&self) -> Lineage {
        self.list_where(|_, closed| closed.is_none_or(|closed| closed > self.horizon))
    }

    /// Returns a full list as the service may give it: some are a few changes old.
    pub(crate) fn any_list(&self, dice: &mut SeededRng) -> Lineage {
        let age = if dice.one_in(3) { dice.below(4) } else { 0 };
        let at = self.lists.len().saturating_sub(1 + usize::try_from(age).unwrap());
        self.lists[at].clone()
    }

    /// Returns the shards that were open at a time, or at the horizon if that is later.
    pub(crate) fn list_open_at(&self, time: u64) -> Lineage {
        let time = time.max(self.horizon);
        self.list_where(|born, closed| born <= time && closed.is_none_or(|closed| closed > time))
    }

    pub(crate) fn get(&self, id: &ShardId) -> &Shard {
        &self.shards[id.index().unwrap() as usize].0
    }

    /// Returns true if the service still knows the shard.
    pub(crate) fn knows(&self, id: &ShardId) -> bool {
        self.closed_at(id).is_none_or(|closed| closed > self.horizon)
    }

    pub(crate) fn closed_at(&self, id: &ShardId) -> Option<u64> {
        self.shards[id.index().unwrap() as usize].2
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Shard> {
        self.shards.iter().map(|(shard, _, _)| shard)
    }

    /// Returns the children that the last read of a shard names.
    pub(crate) fn children<'a>(&'a self, id: &'a ShardId) -> impl Iterator<Item = &'a Shard> {
        self.all().filter(move |shard| shard.parents().any(|parent| parent == id))
    }

    /// Returns every ancestor of a shard, including trimmed ones.
    pub(crate) fn ancestors<'a>(&'a self, id: &'a ShardId) -> Vec<&'a ShardId> {
        let mut found: Vec<_> = self.get(id).parents().collect();
        let mut i = 0;
        while let Some(id) = found.get(i).copied() {
            for parent in self.get(id).parents() {
                if !found.contains(&parent) {
                    found.push(parent);
                }
            }
            i += 1;
        }
        found
    }
}
