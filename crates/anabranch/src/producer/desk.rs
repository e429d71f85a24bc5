//! Where outcomes are told: the driver's side of all tickets whose records are outstanding.

use super::outcome::{GROUP, Group};
use anabranch_model::produce::outcome::{Attempt, Fate};
use std::collections::VecDeque;
use std::sync::Arc;

/// The tickets of outstanding records. The driver holds each group once, and not each ticket.
#[derive(Debug, Default)]
pub(super) struct Desk {
    /// The groups that have tickets without an outcome. A place is used again.
    groups: Vec<Open>,
    /// Free places.
    free: Vec<u32>,
    /// The place of the group whose tickets are coming in.
    current: u32,
    /// The places of those after it.
    next: VecDeque<u32>,
}

#[derive(Debug)]
struct Open {
    group: Option<Arc<Group>>,
    /// Its tickets without an outcome.
    left: usize,
}

/// A ticket without an outcome. It is used up by settling it.
#[derive(Debug)]
pub(super) struct Slot {
    group: u32,
    /// What the record holds of the room.
    pub(super) cost: u32,
    at: u8,
}

impl Desk {
    /// Takes groups, whose tickets come in after those of the groups before.
    pub(super) fn open(&mut self, groups: impl Iterator<Item = Arc<Group>>) {
        for group in groups {
            let open = Open { group: Some(group), left: GROUP };
            let place = if let Some(place) = self.free.pop() {
                self.groups[place as usize] = open;
                place
            } else {
                self.groups.push(open);
                u32::try_from(self.groups.len() - 1).expect("memory ends before the places do")
            };
            self.next.push_back(place);
        }
    }

    /// The ticket that comes in now, by its place in its group.
    #[inline]
    pub(super) fn slot(&mut self, at: u8, cost: u32) -> Slot {
        if at == 0 {
            self.current = self.next.pop_front().unwrap_or(self.current);
        }
        Slot { group: self.current, cost, at }
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
        let Slot { group: place, at, .. } = slot;
        let open = &mut self.groups[place as usize];
        if let Some(group) = &open.group {
            group.cell(at).settle(fate, sub, past);
        }
        open.left -= 1;
        if open.left == 0 {
            open.group = None;
            self.free.push(place);
        }
    }

    /// Resolves every ticket that is left: nobody knows of its record.
    pub(super) fn give_up(&mut self) {
        for group in self.groups.drain(..).filter_map(|open| open.group) {
            for cell in group.cells() {
                cell.settle(&Fate::Unknown, 0, None);
            }
        }
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
        assert_eq!(desk.groups.len(), 2, "a place is used again");
        for (ticket, slot) in kept {
            desk.settle(slot, &Fate::Unknown, 0, None);
            assert!(matches!(ticket.try_outcome(), Some(Outcome::Unknown { .. })));
        }
        assert!(last.try_outcome().is_none(), "its record is outstanding");
        desk.settle(slot, &Fate::Unknown, 0, None);
        assert!(last.try_outcome().is_some());
        assert!(desk.groups.iter().all(|open| open.group.is_none()), "nothing is kept");
    }

    #[test]
    fn what_is_left_is_given_up_and_nothing_else() {
        let mut desk = Desk::default();
        let mut settled = tickets(&mut desk, 3);
        let (ticket, slot) = settled.pop().unwrap();
        desk.settle(slot, &Fate::Rejected(Why::Closed), 0, None);
        desk.give_up();
        assert!(matches!(ticket.try_outcome(), Some(Outcome::Rejected { .. })));
        for (ticket, _) in settled {
            assert!(matches!(ticket.try_outcome(), Some(Outcome::Unknown { .. })));
        }
    }
}
