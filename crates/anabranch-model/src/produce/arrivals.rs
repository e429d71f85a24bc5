//! Records that arrive together, sorted by lane: those of a lane are then written one behind the
//! other, while its memory is at hand.

/// The end of a row.
const END: u32 = u32::MAX;
/// The memory of more records is not kept.
const KEPT_MOST: usize = 1 << 16;

/// Records that arrive together, in a row for each lane.
#[derive(Debug)]
pub(super) struct Arrivals<T> {
    /// The records in their order, each with the place of the next one of its lane.
    records: Vec<(u32, Option<T>)>,
    /// The first and last record of each lane.
    rows: Vec<(u32, u32)>,
    /// The lanes that have a row, in the order of their first records.
    lanes: Vec<usize>,
}

impl<T> Default for Arrivals<T> {
    fn default() -> Self {
        Self { records: Vec::new(), rows: Vec::new(), lanes: Vec::new() }
    }
}

impl<T> Arrivals<T> {
    /// Adds the next record, which belongs to this lane.
    #[inline]
    pub(super) fn add(&mut self, lane: usize, ticket: T) {
        let place = u32::try_from(self.records.len()).expect("few records arrive together");
        self.records.push((END, Some(ticket)));
        if lane >= self.rows.len() {
            self.rows.resize(lane + 1, (END, END));
        }
        let (first, last) = &mut self.rows[lane];
        if *first == END {
            *first = place;
            self.lanes.push(lane);
        } else {
            self.records[*last as usize].0 = place;
        }
        *last = place;
    }

    /// Adds a record that belongs to none.
    pub(super) fn skip(&mut self) {
        self.records.push((END, None));
    }

    /// Takes the rows out: of each lane the places of its records and their tickets.
    pub(super) fn drain(&mut self, mut take: impl FnMut(usize, Row<'_, T>)) {
        for at in 0..self.lanes.len() {
            let lane = self.lanes[at];
            let (next, _) = std::mem::replace(&mut self.rows[lane], (END, END));
            take(lane, Row { records: &mut self.records, next });
        }
        self.lanes.clear();
        self.records.clear();
        if self.records.capacity() > KEPT_MOST {
            self.records = Vec::new();
        }
    }
}

/// The records of a lane.
pub(super) struct Row<'a, T> {
    records: &'a mut [(u32, Option<T>)],
    next: u32,
}

impl<T> Iterator for Row<'_, T> {
    type Item = (usize, T);

    #[inline]
    fn next(&mut self) -> Option<(usize, T)> {
        let place = self.next as usize;
        let (next, ticket) = self.records.get_mut(place)?;
        self.next = *next;
        Some((place, ticket.take()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn each_lane_gets_its_records_in_their_order(
            groups in proptest::collection::vec(
                proptest::collection::vec(proptest::option::weighted(0.9, 0_usize..6), 0..40), 1..5),
        ) {
            let mut arrivals = Arrivals::default();
            for lanes in groups {
                let mut want: BTreeMap<usize, Vec<(usize, String)>> = BTreeMap::new();
                for (place, lane) in lanes.into_iter().enumerate() {
                    let ticket = place.to_string();
                    match lane {
                        Some(lane) => {
                            want.entry(lane).or_default().push((place, ticket.clone()));
                            arrivals.add(lane, ticket);
                        }
                        None => arrivals.skip(),
                    }
                }
                let mut got = BTreeMap::new();
                arrivals.drain(|lane, row| {
                    let before = got.insert(lane, row.collect::<Vec<_>>());
                    assert_eq!(before, None, "one row for a lane");
                });
                prop_assert_eq!(got, want);
            }
        }
    }
}
