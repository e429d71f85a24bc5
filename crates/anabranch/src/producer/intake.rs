//! The intake: where puts hand their records to the driver, in the order of acceptance.

use super::bell::{Bell, waking};
use super::bulk::Bulk;
use super::desk::{BulkPlace, Slot};
use super::group::{GROUP, Group};
use super::handed::Handed;
use super::outcome::Ticket;
use super::outcomes::{BulkCell, BulkTicket};
use super::record::NewRecord;
use anabranch_model::produce::KeyId;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Semaphore, oneshot};

use super::put::Account;

/// The driver is woken at once when this much waits; less may wait a moment for more.
pub(super) const WAKE_BYTES: usize = 64 * 1024;

/// What puts and the driver share.
#[derive(Debug)]
pub(super) struct Intake {
    /// What waits for the driver.
    inside: Mutex<Inside>,
    /// Wakes the driver.
    pub(super) bell: Arc<Bell>,
    /// Room for records, in bytes. Closed with the producer.
    pub(super) room: Semaphore,
    /// All the room there is.
    room_bytes: usize,
}

#[derive(Debug)]
struct Inside {
    /// Records in the order of acceptance.
    records: Handed,
    /// What is asked of the driver, and bulks, each at its place among the records.
    asks: Vec<(usize, Ask)>,
    /// What records and bulks cost together.
    bytes: usize,
    /// Whether someone waits for an answer to what is asked.
    urgent: bool,
    /// The group that tickets come from now.
    group: Arc<Group>,
    /// How many of it are given out.
    given: usize,
    /// The groups whose first ticket is one of these records, in their order.
    groups: Vec<Arc<Group>>,
    /// Whether records are still taken.
    open: bool,
    /// Whether the driver is gone, so that nobody answers what is asked.
    ended: bool,
}

/// A bulk that was accepted.
#[derive(Debug)]
pub(super) struct AcceptedBulk {
    pub(super) bulk: Bulk,
    pub(super) cell: Arc<BulkCell>,
    /// What it holds of the room.
    pub(super) cost: u32,
    /// Where the driver has its slots, once it has taken it.
    pub(super) place: Option<BulkPlace>,
}

impl AcceptedBulk {
    /// The slots of its records, once it has a place.
    pub(super) fn slots(&self) -> Option<impl Iterator<Item = Slot>> {
        Some(self.place?.slots(self.bulk.costs(), self.cost))
    }
}

/// What is asked of the driver.
#[derive(Debug)]
pub(super) enum Ask {
    /// Take these records.
    Put(AcceptedBulk),
    /// Tell when everything accepted so far has its outcome.
    Flush(oneshot::Sender<()>),
    /// Let a key go on, and tell whether it stood stopped.
    Resume(KeyId, oneshot::Sender<bool>),
    /// Which keys stand stopped.
    StoppedKeys(oneshot::Sender<Vec<KeyId>>),
    /// End: at the latest at this time.
    Close { until_ms: u64, done: oneshot::Sender<Account> },
}

/// What the driver takes in.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) records: Handed,
    pub(super) groups: Vec<Arc<Group>>,
    pub(super) asks: Vec<(usize, Ask)>,
}

impl Intake {
    pub(super) fn new(room_bytes: usize) -> Self {
        let bell = Arc::new(Bell::default());
        Self {
            inside: Mutex::new(Inside {
                records: Handed::default(),
                bytes: 0,
                asks: Vec::new(),
                urgent: false,
                group: Group::new(&bell),
                given: 0,
                groups: Vec::new(),
                open: true,
                ended: false,
            }),
            bell,
            room: Semaphore::new(room_bytes),
            room_bytes,
        }
    }

    /// What a cost takes of the room. What is larger than all of it takes all of it.
    pub(super) fn room_of(&self, cost: usize) -> u32 {
        u32::try_from(cost.min(self.room_bytes)).unwrap_or(u32::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        // Nothing here panics half-way through a change.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a record over. `None` if the producer is closed.
    #[inline]
    pub(super) fn push(&self, record: NewRecord, cost: u32) -> Option<Ticket> {
        let mut inside = self.lock();
        if !inside.open {
            return None;
        }
        let (group, at) = inside.next(&self.bell);
        let rings = inside.enter(cost);
        let copied = inside.records.push(record);
        drop(inside);
        if rings {
            self.bell.ring();
        }
        // Last of all: the memory is its owner's, and so is what is done to give it back.
        drop(copied);
        Some(Ticket::of(group, at))
    }

    /// Hands a bulk over. Gives it back if the producer is closed.
    pub(super) fn push_bulk(&self, bulk: Bulk, cost: u32) -> Result<BulkTicket, Bulk> {
        let cell = BulkCell::new(&self.bell);
        let mut inside = self.lock();
        if !inside.open {
            return Err(bulk);
        }
        let rings = inside.enter(cost);
        let at = inside.records.len();
        let put = AcceptedBulk { bulk, cell: Arc::clone(&cell), cost, place: None };
        inside.asks.push((at, Ask::Put(put)));
        drop(inside);
        if rings {
            self.bell.ring();
        }
        Ok(BulkTicket::of(cell))
    }

    /// Asks the driver, after what was handed over so far. Gives the ask back if the driver is
    /// gone; one that is being closed still answers.
    pub(super) fn ask(&self, ask: Ask) -> Result<(), Ask> {
        let mut inside = self.lock();
        if inside.ended {
            return Err(ask);
        }
        let closes = matches!(ask, Ask::Close { .. });
        inside.open &= !closes;
        let at = inside.records.len();
        inside.asks.push((at, ask));
        inside.urgent = true;
        drop(inside);
        if closes {
            waking(|| self.room.close());
        }
        self.bell.ring();
        Ok(())
    }

    /// What waits: bytes of records, and whether someone waits for an answer.
    pub(super) fn waiting(&self) -> (usize, bool) {
        let inside = self.lock();
        (inside.bytes, inside.urgent)
    }

    /// Takes everything that waits, in exchange for empty memory.
    pub(super) fn take(&self, into: &mut Taken) {
        let mut inside = self.lock();
        std::mem::swap(&mut inside.records, &mut into.records);
        std::mem::swap(&mut inside.groups, &mut into.groups);
        std::mem::swap(&mut inside.asks, &mut into.asks);
        inside.bytes = 0;
        inside.urgent = false;
    }

    /// Takes no more records, and answers nothing more.
    pub(super) fn shut(&self) {
        let mut inside = self.lock();
        inside.open = false;
        inside.ended = true;
        drop(inside);
        waking(|| self.room.close());
    }
}

impl Inside {
    /// Counts what waits. Says whether the driver is to be woken: by the first, and by much.
    #[inline]
    fn enter(&mut self, cost: u32) -> bool {
        let before = self.bytes;
        self.bytes += cost as usize;
        before == 0 || (before < WAKE_BYTES && self.bytes >= WAKE_BYTES)
    }

    /// The group and place of the next ticket.
    fn next(&mut self, bell: &Arc<Bell>) -> (Arc<Group>, usize) {
        if self.given == GROUP {
            self.group = Group::new(bell);
            self.given = 0;
        }
        let at = self.given;
        self.given += 1;
        if at == 0 {
            self.groups.push(Arc::clone(&self.group));
        }
        (Arc::clone(&self.group), at)
    }
}
