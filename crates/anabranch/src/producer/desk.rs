//! Where outcomes are told: the driver's side of all tickets whose records are outstanding.

use super::outcome::{GROUP, Group};
use super::outcomes::{BulkCell, OpenBulk};
use anabranch_model::produce::outcome::{Attempt, Fate};
use std::collections::VecDeque;
use std::sync::Arc;

/// The tickets of outstanding records. The driver holds each group once, and not each ticket.
#[derive(Debug, Default)]
pub(super) struct Desk {
    /// The groups and bulks that have records without an outcome. A place is used again.
    places: Vec<Open>,
    /// Free places.
    free: Vec<u32>,
    /// The place of the group whose tickets are coming in.
    current: u32,
    /// The places of those after it.
    next: VecDeque<u32>,
}

#[derive(Debug)]
enum Open {
    /// A group of tickets.
    Group {
        group: Arc<Group>,
        /// Its tickets without an outcome.
        left: usize,
    },
    /// A bulk.
    Bulk(Box<OpenBulk>),
    /// Nothing.
    Free,
}

/// A ticket without an outcome. It is used up by settling it.
#[derive(Debug)]
pub(super) struct Slot {
    /// Where its group or bulk is.
    place: u32,
    /// What the record holds of the room.
    pub(super) cost: u32,
    /// Its place there.
    at: u32,
}

impl Desk {
    /// Takes groups, whose tickets come in after those of the groups before.
    pub(super) fn open(&mut self, groups: impl Iterator<Item = Arc<Group>>) {
        for group in groups {
            let place = self.add(Open::Group { group, left: GROUP });
            self.next.push_back(place);
        }
    }

    /// Takes a bulk, and says where its slots are.
    pub(super) fn open_bulk(&mut self, cell: &Arc<BulkCell>, records: usize) -> BulkPlace {
        let bulk = OpenBulk::new(Arc::clone(cell), records);
        BulkPlace(self.add(Open::Bulk(Box::new(bulk))))
    }

    fn add(&mut self, open: Open) -> u32 {
        if let Some(place) = self.free.pop() {
            self.places[place as usize] = open;
            return place;
        }
        self.places.push(open);
        u32::try_from(self.places.len() - 1).expect("memory ends before the places do")
    }

    /// The ticket that comes in now, by its place in its group.
    #[inline]
    pub(super) fn slot(&mut self, at: u8, cost: u32) -> Slot {
        if at == 0 {
            self.current = self.next.pop_front().unwrap_or(self.current);
        }
        Slot { place: self.current, cost, at: at.into() }
    }

    /// Resolves a ticket.
    #[inline]
    #[expect(clippy::needless_pass_by_value, reason = "a slot is used up by settling it")]
    pub(super) fn settle(
        &mut self,
        slot: Slot,
        fate: &Fate,
        sub: u64,
        past: Option<Arc<Vec<Attempt>>>,
    ) {
        let Slot { place, at, .. } = slot;
        let is_over = match &mut self.places[place as usize] {
            Open::Group { group, left } => {
                group.cell(at).settle(fate, sub, past);
                *left -= 1;
                *left == 0
            }
            Open::Bulk(bulk) => bulk.settle(at, fate, sub, past),
            Open::Free => false,
        };
        if is_over {
            self.close(place);
        }
    }

    /// Frees a place whose tickets have their outcomes.
    #[inline(never)]
    fn close(&mut self, place: u32) {
        let over = std::mem::replace(&mut self.places[place as usize], Open::Free);
        self.free.push(place);
        if let Open::Bulk(bulk) = over {
            bulk.tell();
        }
    }
}

impl Drop for Desk {
    /// Resolves every ticket that is left, however this came: nobody knows of its record.
    fn drop(&mut self) {
        for open in self.places.drain(..) {
            match open {
                Open::Group { group, .. } => {
                    group.cells().for_each(|cell| cell.settle(&Fate::Unknown, 0, None));
                }
                Open::Bulk(bulk) => bulk.tell(),
                Open::Free => {}
            }
        }
    }
}

/// Where the slots of a bulk are.
#[derive(Debug, Clone, Copy)]
pub(super) struct BulkPlace(u32);

impl BulkPlace {
    /// The slots of records with these costs. Together they hold the bulk's room: each its own cost,
    /// or its part of the room if the bulk is larger than all of it.
    pub(super) fn slots(
        self,
        costs: impl Iterator<Item = usize> + Clone,
        room: u32,
    ) -> impl Iterator<Item = Slot> {
        let all = costs.clone().map(|cost| cost as u128).sum::<u128>().max(1);
        let fits = all == u128::from(room);
        let (mut before, mut held) = (0_u128, 0_u32);
        (0..).zip(costs).map(move |(at, cost)| {
            if let (true, Ok(cost)) = (fits, u32::try_from(cost)) {
                return Slot { place: self.0, cost, at };
            }
            before += cost as u128;
            let part = before * u128::from(room) / all;
            let upto = u32::try_from(part).unwrap_or(room);
            let cost = upto - held;
            held = upto;
            Slot { place: self.0, cost, at }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::bell::Bell;
    use super::super::outcome::{Outcome, Ticket};
    use super::*;
    use anabranch_model::produce::outcome::Why;

    /// A group's tickets, and what the driver has of them.
    fn tickets(desk: &mut Desk, count: u8) -> Vec<(Ticket, Slot)> {
        let group = Group::new(&Arc::new(Bell::default()));
        desk.open([Arc::clone(&group)].into_iter());
        (0..count).map(|at| (Ticket::of(Arc::clone(&group), at), desk.slot(at, 1))).collect()
    }

    #[test]
    fn each_ticket_learns_its_own_outcome_once_however_they_are_settled() {
        let mut desk = Desk::default();
        let all = u8::try_from(GROUP).unwrap();
        let mut kept = tickets(&mut desk, all);
        let (last, slot) = kept.pop().unwrap();
        for _ in 0..10 {
            let mut others = tickets(&mut desk, all);
            others.rotate_left(7);
            for (at, (ticket, slot)) in others.into_iter().enumerate() {
                let why = if at % 2 == 0 { Why::Closed } else { Why::Expired };
                desk.settle(slot, &Fate::Rejected(why.clone()), 0, None);
                let Some(Outcome::Rejected { why: told, .. }) = ticket.try_outcome() else {
                    panic!("{ticket:?}")
                };
                assert_eq!(told, why);
            }
        }
        assert_eq!(desk.places.len(), 2, "a place is used again");
        for (ticket, slot) in kept {
            desk.settle(slot, &Fate::Unknown, 0, None);
            assert!(matches!(ticket.try_outcome(), Some(Outcome::Unknown { .. })));
        }
        assert!(last.try_outcome().is_none(), "its record is outstanding");
        desk.settle(slot, &Fate::Unknown, 0, None);
        assert!(last.try_outcome().is_some());
        assert!(desk.places.iter().all(|open| matches!(open, Open::Free)), "nothing is kept");
    }

    #[test]
    fn the_records_of_a_bulk_share_its_room_and_leave_nothing_of_it() {
        let held = |costs: &[usize], room| -> Vec<u32> {
            BulkPlace(0).slots(costs.iter().copied(), room).map(|slot| slot.cost).collect()
        };
        assert_eq!(held(&[300, 260, 5_000], 5_560), [300, 260, 5_000]);
        assert_eq!(
            held(&[300, 300, 600], 400),
            [100, 100, 200],
            "each a part of what is too little"
        );
        assert_eq!(held(&[256; 5], 3), [0, 1, 0, 1, 1]);
        let large = held(&[usize::MAX; 3], u32::MAX);
        assert_eq!(large.iter().map(|cost| u64::from(*cost)).sum::<u64>(), u64::from(u32::MAX));
        assert_eq!(held(&[], 0), [0; 0]);
    }

    #[test]
    fn what_is_left_is_given_up_and_nothing_else() {
        let mut desk = Desk::default();
        let mut settled = tickets(&mut desk, 3);
        let (ticket, slot) = settled.pop().unwrap();
        desk.settle(slot, &Fate::Rejected(Why::Closed), 0, None);
        drop(desk);
        assert!(matches!(ticket.try_outcome(), Some(Outcome::Rejected { .. })));
        for (ticket, _) in settled {
            assert!(matches!(ticket.try_outcome(), Some(Outcome::Unknown { .. })));
        }
    }
}
