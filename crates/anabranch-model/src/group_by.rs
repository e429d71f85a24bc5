//! Grouping of a batch of items by a small integer, the place. The items of a place are then
//! processed together, while its memory is in cache.

/// End of a linked list.
const END: u32 = u32::MAX;
/// Capacity above which the memory is not kept.
const KEPT_MOST: usize = 1 << 16;

/// Items grouped by place. Each group keeps the order in which its items were added.
#[derive(Debug)]
pub struct GroupBy<T> {
    /// All items in order, each with the index of the next one in its group.
    things: Vec<(u32, Option<T>)>,
    /// First and last index of each place's group.
    ends: Vec<(u32, u32)>,
    /// Places with a group, in the order of their first items.
    places: Vec<usize>,
}

impl<T> Default for GroupBy<T> {
    fn default() -> Self {
        Self { things: Vec::new(), ends: Vec::new(), places: Vec::new() }
    }
}

impl<T> GroupBy<T> {
    /// Adds the next item, which belongs to `place`. Memory is proportional to the highest place.
    ///
    /// # Panics
    ///
    /// If there are more items than fit into 32 bits.
    #[inline]
    pub fn add(&mut self, place: usize, thing: T) {
        let at = u32::try_from(self.things.len()).expect("few come together");
        self.things.push((END, Some(thing)));
        if place >= self.ends.len() {
            self.ends.resize(place + 1, (END, END));
        }
        let (first, last) = &mut self.ends[place];
        if *first == END {
            *first = at;
            self.places.push(place);
        } else {
            self.things[*last as usize].0 = at;
        }
        *last = at;
    }

    /// Counts an item that belongs to no group.
    pub fn skip(&mut self) {
        self.things.push((END, None));
    }

    /// Makes [`GroupBy::drain`] visit the places in the order of these keys, instead of the order
    /// of their first items.
    pub fn order_by_key<K: Ord>(&mut self, mut key: impl FnMut(usize) -> K) {
        self.places.sort_by_key(|place| key(*place));
    }

    /// Removes all groups. Calls `take` for each place with its items, each with its index in the
    /// order of adding.
    pub fn drain(&mut self, mut take: impl FnMut(usize, GroupItems<'_, T>)) {
        for at in 0..self.places.len() {
            let place = self.places[at];
            let (next, _) = std::mem::replace(&mut self.ends[place], (END, END));
            take(place, GroupItems { things: &mut self.things, next });
        }
        self.places.clear();
        self.things.clear();
        if self.things.capacity() > KEPT_MOST {
            self.things = Vec::new();
        }
    }
}

/// Items of a place.
#[derive(Debug)]
pub struct GroupItems<'a, T> {
    things: &'a mut [(u32, Option<T>)],
    next: u32,
}

impl<T> Iterator for GroupItems<'_, T> {
    type Item = (usize, T);

    #[inline]
    fn next(&mut self) -> Option<(usize, T)> {
        let at = self.next as usize;
        let (next, thing) = self.things.get_mut(at)?;
        self.next = *next;
        Some((at, thing.take()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn each_place_gets_what_is_its_own_in_order(
            groups in proptest::collection::vec(
                proptest::collection::vec(proptest::option::weighted(0.9, 0_usize..6), 0..40), 1..5),
        ) {
            let mut rows = GroupBy::default();
            for places in groups {
                let mut want: BTreeMap<usize, Vec<(usize, String)>> = BTreeMap::new();
                for (at, place) in places.into_iter().enumerate() {
                    let thing = at.to_string();
                    match place {
                        Some(place) => {
                            want.entry(place).or_default().push((at, thing.clone()));
                            rows.add(place, thing);
                        }
                        None => rows.skip(),
                    }
                }
                let mut got = BTreeMap::new();
                rows.drain(|place, row| {
                    let before = got.insert(place, row.collect::<Vec<_>>());
                    assert_eq!(before, None, "one row for a place");
                });
                prop_assert_eq!(got, want);
            }
        }
    }
}
