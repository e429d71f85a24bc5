//! The driver's side of all open tickets: collects outcomes and publishes them.

use super::outcome::{BulkCompletion, OpenBulk};
use super::outcome_set::{CompletedOutcome, shared_receipts};
use super::outcome_set::{GROUP, TicketGroup};
use anabranch_model::group_by::GroupBy;
use anabranch_model::produce::outcome::{Attempt, OutcomeKind, Receipt};
use std::collections::VecDeque;
use std::sync::Arc;

/// Maximum capacity in outcomes that is kept between publications.
const KEPT_MOST: usize = 1 << 12;

/// The tickets of outstanding records. The driver holds one entry per group, not per ticket.
#[derive(Debug, Default)]
pub(super) struct Completions {
    /// Groups and bulks with records that have no outcome. Free entries are reused.
    places: Vec<OpenTickets>,
    /// Indexes of the free entries in `places`.
    free: Vec<u32>,
    /// Index of the group whose tickets are being assigned.
    current: u32,
    /// Tickets of the current group that are assigned.
    came: u32,
    /// Indexes of the groups after the current one.
    next: VecDeque<u32>,
    /// Number of groups opened so far.
    groups: u64,
    /// Outcomes not yet published, by index in `places`.
    untold: GroupBy<PendingOutcome>,
    /// The receipts that `untold` refers to.
    receipts: Vec<Arc<Receipt>>,
    /// The outcomes other than a plain placement that `untold` refers to.
    others: Vec<Option<CompletedOutcome>>,
    /// Bulks with all their outcomes that are not yet published.
    over: Vec<OpenBulk>,
}

/// An outcome that is not yet published.
#[derive(Debug)]
enum PendingOutcome {
    /// The ticket at index `at` was placed, with this receipt, as record `sub` of the aggregate.
    Placed { at: u32, receipt: u32, sub: u32 },
    /// The ticket at index `at` has another outcome.
    Other { at: u32, other: u32 },
}

#[derive(Debug)]
enum OpenTickets {
    /// A group of tickets.
    Group {
        group: Arc<TicketGroup>,
        /// Number of groups opened before it.
        number: u64,
        /// Tickets without an outcome.
        left: usize,
    },
    Bulk(Box<OpenBulk>),
    /// A free entry.
    Free,
}

/// A ticket without an outcome. Completing it consumes the slot.
#[derive(Debug)]
pub(super) struct TicketSlot {
    /// Index of its group or bulk in [`Completions`].
    place: u32,
    /// Buffer bytes that the record holds.
    pub(super) cost: u32,
    /// Index within the group or bulk.
    at: u32,
}

impl Completions {
    /// Opens groups. Their tickets are assigned after those of all earlier groups.
    pub(super) fn open(&mut self, groups: impl Iterator<Item = Arc<TicketGroup>>) {
        for group in groups {
            let number = self.groups;
            self.groups += 1;
            let place = self.add(OpenTickets::Group { group, number, left: GROUP });
            self.next.push_back(place);
        }
    }

    /// Opens a bulk. Returns the location of its slots.
    pub(super) fn open_bulk(&mut self, cell: &Arc<BulkCompletion>, records: usize) -> BulkSlots {
        let bulk = OpenBulk::new(Arc::clone(cell), records);
        BulkSlots(self.add(OpenTickets::Bulk(Box::new(bulk))))
    }

    fn add(&mut self, open: OpenTickets) -> u32 {
        if let Some(place) = self.free.pop() {
            self.places[place as usize] = open;
            return place;
        }
        self.places.push(open);
        last(self.places.len())
    }

    /// Returns the slot of the next ticket, in the order in which tickets were handed out.
    #[inline]
    pub(super) fn slot(&mut self, cost: u32) -> TicketSlot {
        if self.came == 0 || self.came as usize == GROUP {
            self.current = self.next.pop_front().expect("a group comes with its first ticket");
            self.came = 0;
        }
        let at = self.came;
        self.came += 1;
        TicketSlot { place: self.current, cost, at }
    }

    /// Stores the outcome of a ticket, or of a record of a bulk, for [`Completions::publish`].
    #[inline]
    #[expect(clippy::needless_pass_by_value, reason = "a slot is used up by its outcome")]
    pub(super) fn complete(
        &mut self,
        slot: TicketSlot,
        fate: &OutcomeKind,
        sub: u64,
        past: Option<Arc<Vec<Attempt>>>,
    ) {
        let TicketSlot { place, at, .. } = slot;
        match &mut self.places[place as usize] {
            OpenTickets::Group { .. } => {
                let untold = self.store(at, fate, sub, past);
                self.untold.add(place as usize, untold);
            }
            OpenTickets::Bulk(bulk) => {
                if bulk.settle(at, fate, sub, past) {
                    self.close_bulk(place);
                }
            }
            OpenTickets::Free => {}
        }
    }

    /// Converts the outcome of a ticket to its stored form.
    #[inline]
    fn store(
        &mut self,
        at: u32,
        fate: &OutcomeKind,
        sub: u64,
        past: Option<Arc<Vec<Attempt>>>,
    ) -> PendingOutcome {
        if let (OutcomeKind::Placed(receipt), Ok(sub), None) = (fate, u32::try_from(sub), &past) {
            // The records of an aggregate are completed one after the other.
            if !self.receipts.last().is_some_and(|last| Arc::ptr_eq(last, receipt)) {
                self.receipts.push(Arc::clone(receipt));
            }
            return PendingOutcome::Placed { at, receipt: last(self.receipts.len()), sub };
        }
        self.others.push(Some(CompletedOutcome { fate: fate.clone(), sub, past }));
        PendingOutcome::Other { at, other: last(self.others.len()) }
    }

    /// Publishes the stored outcomes: each group at once, groups in the order of their puts, and
    /// bulks last. A bulk is published when all its records are complete.
    ///
    /// A caller that sees the outcome of a record or bulk therefore also sees those of all records
    /// put individually before it with the same key.
    pub(super) fn publish(&mut self) {
        let Self { places, free, untold, receipts, others, over, .. } = self;
        untold.order_by_key(|place| match &places[place] {
            OpenTickets::Group { number, .. } => *number,
            _ => u64::MAX,
        });
        let sheet = shared_receipts(receipts);
        untold.drain(|place, row| {
            let OpenTickets::Group { group, left, .. } = &mut places[place] else { return };
            group.publish(|told| {
                for (_, untold) in row {
                    match untold {
                        PendingOutcome::Placed { at, receipt, sub } => match &sheet {
                            Some(sheet) => told.place_shared(at, sheet, receipt, sub),
                            None => told.place(at, &receipts[receipt as usize], sub),
                        },
                        PendingOutcome::Other { at, other } => {
                            others[other as usize]
                                .take()
                                .into_iter()
                                .for_each(|one| told.note(at, one));
                        }
                    }
                    *left -= 1;
                }
                *left == 0
            });
            if *left == 0 {
                places[place] = OpenTickets::Free;
                free.push(last(place + 1));
            }
        });
        over.drain(..).for_each(OpenBulk::tell);
        receipts.clear();
        receipts.shrink_to(KEPT_MOST);
        others.clear();
        others.shrink_to(KEPT_MOST);
    }

    /// Frees the entry of a bulk whose records are all complete.
    #[inline(never)]
    fn close_bulk(&mut self, place: u32) {
        let over = std::mem::replace(&mut self.places[place as usize], OpenTickets::Free);
        self.free.push(place);
        if let OpenTickets::Bulk(bulk) = over {
            self.over.push(*bulk);
        }
    }
}

/// Returns the last index of a list with `count` entries.
fn last(count: usize) -> u32 {
    u32::try_from(count - 1).expect("memory ends before the indices do")
}

impl Drop for Completions {
    /// Resolves every remaining ticket as unknown, however the driver ended.
    fn drop(&mut self) {
        self.publish();
        for open in self.places.drain(..) {
            match open {
                OpenTickets::Group { group, .. } => group.publish(|_| true),
                OpenTickets::Bulk(bulk) => bulk.tell(),
                OpenTickets::Free => {}
            }
        }
    }
}

/// Location of the slots of a bulk.
#[derive(Debug, Clone, Copy)]
pub(super) struct BulkSlots(u32);

impl BulkSlots {
    /// Returns a slot for each record. `costs` are the costs of the records, and `room` is the
    /// space reserved for the bulk.
    ///
    /// The slots hold `room` together: each its own cost, or a proportional share if the bulk is
    /// larger than the buffer.
    pub(super) fn slots(
        self,
        costs: impl Iterator<Item = usize> + Clone,
        room: u32,
    ) -> impl Iterator<Item = TicketSlot> {
        let all = costs.clone().map(|cost| cost as u128).sum::<u128>().max(1);
        let fits = all == u128::from(room);
        let (mut before, mut held) = (0_u128, 0_u32);
        (0..).zip(costs).map(move |(at, cost)| {
            if let (true, Ok(cost)) = (fits, u32::try_from(cost)) {
                return TicketSlot { place: self.0, cost, at };
            }
            before += cost as u128;
            let part = before * u128::from(room) / all;
            let upto = u32::try_from(part).unwrap_or(room);
            let cost = upto - held;
            held = upto;
            TicketSlot { place: self.0, cost, at }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::producer::outcome::BulkTicket;
    use crate::producer::outcome::{Outcome, Ticket};
    use crate::producer::queue::DriverWake;
    use anabranch_model::ids::ShardId;
    use anabranch_model::produce::outcome::RejectReason;
    use anabranch_model::sequence::SequenceNumber;
    use proptest::prelude::*;
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::sync::Mutex;
    use std::task::{Context, Wake, Waker};

    /// Opens a group. Returns `count` of its tickets with their slots.
    fn tickets(desk: &mut Completions, count: usize) -> Vec<(Ticket, TicketSlot)> {
        let group = TicketGroup::new(&Arc::new(DriverWake::default()));
        desk.open([Arc::clone(&group)].into_iter());
        (0..count).map(|at| (Ticket::of(Arc::clone(&group), at), desk.slot(1))).collect()
    }

    /// Opens a bulk. Returns its ticket and slots.
    fn bulk(desk: &mut Completions, records: usize) -> (BulkTicket, Vec<TicketSlot>) {
        let cell = BulkCompletion::new(&Arc::new(DriverWake::default()));
        let place = desk.open_bulk(&cell, records);
        let slots = place.slots(std::iter::repeat_n(1, records), u32::try_from(records).unwrap());
        (BulkTicket::of(cell), slots.collect())
    }

    /// Number of placed aggregates; enough to take the path for many receipts in one publication.
    const CONTAINERS: usize = 150;
    /// Code of a rejected record. Lower codes stand for placed records and one unknown record.
    const REJECTED: usize = CONTAINERS + 1;

    fn receipt(container: usize) -> OutcomeKind {
        let shard = ShardId::from_index(u32::try_from(container).unwrap());
        let sequence = SequenceNumber::default();
        OutcomeKind::Placed(Arc::new(Receipt { shard, sequence, attempts: Vec::new(), tries: 1 }))
    }

    fn container(shard: &ShardId) -> usize {
        usize::try_from(shard.index().unwrap()).unwrap()
    }

    #[test]
    fn each_record_of_a_bulk_has_its_own_receipt() {
        let mut desk = Completions::default();
        let (ticket, slots) = bulk(&mut desk, 2 * CONTAINERS);
        let receipts: Vec<OutcomeKind> = (0..CONTAINERS).map(receipt).collect();
        for (at, slot) in slots.into_iter().enumerate() {
            desk.complete(slot, &receipts[at / 2], at as u64 % 2, None);
        }
        desk.publish();
        let outcomes = ticket.try_outcomes().unwrap();
        for (at, outcome) in outcomes.iter().enumerate() {
            let Outcome::Placed { shard, sub, .. } = outcome else { panic!("{outcome:?}") };
            assert_eq!((container(&shard), sub), (at / 2, at as u64 % 2));
        }
    }

    proptest! {
        #[test]
        fn each_ticket_learns_its_own_outcome_when_it_is_told_and_not_before(
            order in Just((0..3 * GROUP).collect::<Vec<_>>()).prop_shuffle(),
            fates in proptest::collection::vec(0_usize..=REJECTED, 3 * GROUP),
            tells in proptest::collection::vec(proptest::bool::weighted(0.02), 3 * GROUP),
        ) {
            let mut desk = Completions::default();
            let (tickets, slots): (Vec<_>, Vec<_>) =
                (0..3).flat_map(|_| tickets(&mut desk, GROUP)).unzip();
            let mut slots: Vec<_> = slots.into_iter().map(Some).collect();
            let receipts: Vec<OutcomeKind> = (0..CONTAINERS).map(receipt).collect();
            let mut untold = Vec::new();
            for (step, at) in order.into_iter().enumerate() {
                let (slot, sub) = (slots[at].take().unwrap(), step as u64);
                let past = fates[at].is_multiple_of(7).then(|| Arc::new(Vec::new()));
                match receipts.get(fates[at]) {
                    Some(placed) => desk.complete(slot, placed, sub, past),
                    None if fates[at] == CONTAINERS => desk.complete(slot, &OutcomeKind::Unknown, 0, None),
                    None => desk.complete(slot, &OutcomeKind::Rejected(RejectReason::Expired), 0, None),
                }
                untold.push((at, sub));
                if tells[step] || step + 1 == tickets.len() {
                    let none = untold.iter().all(|(at, _)| tickets[*at].try_outcome().is_none());
                    prop_assert!(none, "not before");
                    desk.publish();
                    for (at, sub) in untold.drain(..) {
                        match (fates[at], tickets[at].try_outcome().unwrap()) {
                            (0..CONTAINERS, Outcome::Placed { shard, sub: told, .. }) => {
                                prop_assert_eq!((container(&shard), told), (fates[at], sub));
                            }
                            (CONTAINERS, Outcome::Unknown { .. })
                            | (REJECTED, Outcome::Rejected { .. }) => {}
                            (_, other) => prop_assert!(false, "{} is told {:?}", fates[at], other),
                        }
                    }
                }
            }
            desk.publish();
            prop_assert!(tickets.iter().all(|ticket| ticket.try_outcome().is_some()));
            prop_assert!(desk.places.iter().all(|open| matches!(open, OpenTickets::Free)), "nothing is kept");
            prop_assert!(desk.receipts.is_empty() && desk.others.is_empty());
        }
    }

    #[test]
    fn places_are_used_again_by_groups_and_by_bulks_and_no_outcome_strays() {
        let mut desk = Completions::default();
        let kept = tickets(&mut desk, GROUP);
        for round in 0..10 {
            let group = tickets(&mut desk, GROUP);
            let (bulk, mut of_bulk) = bulk(&mut desk, 5);
            let (told, slots): (Vec<_>, Vec<_>) = group.into_iter().unzip();
            let before_last = GROUP - 1 - round % 2;
            for (at, slot) in slots.into_iter().enumerate() {
                desk.complete(slot, &OutcomeKind::Rejected(RejectReason::Expired), 0, None);
                if at == before_last {
                    // A bulk that is complete but not yet published frees its entry for the next
                    // group.
                    for slot in of_bulk.drain(..) {
                        desk.complete(slot, &OutcomeKind::Unknown, 0, None);
                    }
                    assert!(bulk.try_outcomes().is_none());
                }
            }
            let next = tickets(&mut desk, GROUP);
            desk.publish();
            assert!(
                told.iter().all(|one| matches!(one.try_outcome(), Some(Outcome::Rejected { .. })))
            );
            assert_eq!(bulk.try_outcomes().unwrap().account().unknown, 5);
            assert!(next.iter().all(|(ticket, _)| ticket.try_outcome().is_none()));
            for (_, slot) in next {
                desk.complete(slot, &OutcomeKind::Unknown, 0, None);
            }
            desk.publish();
        }
        assert_eq!(desk.places.len(), 3);
        assert!(kept.iter().all(|(ticket, _)| ticket.try_outcome().is_none()));
    }

    /// Appends its name to the list when it is woken.
    struct Named(&'static str, Arc<Mutex<Vec<&'static str>>>);

    impl Wake for Named {
        fn wake(self: Arc<Self>) {
            self.1.lock().unwrap().push(self.0);
        }
    }

    #[test]
    fn outcomes_are_told_in_the_order_of_the_puts_and_bulks_last() {
        let mut desk = Completions::default();
        let awake = Arc::default();
        let waker = |name| Waker::from(Arc::new(Named(name, Arc::clone(&awake))));
        // The groups occupy entries in an order other than that of their puts.
        let first = tickets(&mut desk, GROUP);
        let mut second = tickets(&mut desk, GROUP);
        for (_, slot) in first {
            desk.complete(slot, &OutcomeKind::Unknown, 0, None);
        }
        desk.publish();
        let mut third = tickets(&mut desk, GROUP);
        let (mut bulk, slots) = bulk(&mut desk, 1);
        assert_eq!(desk.places.len(), 3);
        let poll = |future: Pin<&mut dyn Future<Output = Outcome>>, name| {
            assert!(future.poll(&mut Context::from_waker(&waker(name))).is_pending());
        };
        poll(pin!(&mut third[0].0), "third");
        poll(pin!(&mut second[9].0), "second");
        assert!(pin!(&mut bulk).poll(&mut Context::from_waker(&waker("bulk"))).is_pending());
        for slot in slots {
            desk.complete(slot, &OutcomeKind::Unknown, 0, None);
        }
        desk.complete(third.swap_remove(0).1, &OutcomeKind::Unknown, 0, None);
        desk.complete(second.swap_remove(9).1, &OutcomeKind::Unknown, 0, None);
        assert!(awake.lock().unwrap().is_empty());
        desk.publish();
        assert_eq!(*awake.lock().unwrap(), ["second", "third", "bulk"]);
    }

    #[test]
    fn the_records_of_a_bulk_share_its_room_and_leave_nothing_of_it() {
        let held = |costs: &[usize], room| -> Vec<u32> {
            BulkSlots(0).slots(costs.iter().copied(), room).map(|slot| slot.cost).collect()
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
        let mut desk = Completions::default();
        let mut settled = tickets(&mut desk, 3);
        let (ticket, slot) = settled.pop().unwrap();
        desk.complete(slot, &OutcomeKind::Rejected(RejectReason::Closed), 0, None);
        drop(desk);
        assert!(matches!(ticket.try_outcome(), Some(Outcome::Rejected { .. })));
        for (ticket, _) in settled {
            assert!(matches!(ticket.try_outcome(), Some(Outcome::Unknown { .. })));
        }
    }
}
