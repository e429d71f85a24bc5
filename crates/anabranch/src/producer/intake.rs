//! The intake: where puts hand their records to the driver, in the order of acceptance.

use super::bell::Bell;
use super::outcome::{GROUP, Group, Ticket};
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
    pub(super) room_bytes: usize,
}

#[derive(Debug)]
struct Inside {
    /// Records in the order of acceptance.
    records: Vec<Accepted>,
    /// What they cost together.
    bytes: usize,
    /// What is asked of the driver, each at its place among the records.
    asks: Vec<(usize, Ask)>,
    /// The group that tickets come from now.
    group: Arc<Group>,
    /// How many of it are given out.
    given: u8,
    /// The groups whose first ticket is one of these records, in their order.
    groups: Vec<Arc<Group>>,
    /// Whether records are still taken.
    open: bool,
    /// Whether the driver is gone, so that nobody answers what is asked.
    ended: bool,
}

/// A record that was accepted.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) record: NewRecord,
    /// What it holds of the room.
    pub(super) cost: u32,
    /// The place of its ticket in the group. The one at 0 is the first of the next group.
    pub(super) at: u8,
}

/// What is asked of the driver.
#[derive(Debug)]
pub(super) enum Ask {
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
    pub(super) records: Vec<Accepted>,
    pub(super) groups: Vec<Arc<Group>>,
    pub(super) asks: Vec<(usize, Ask)>,
}

impl Intake {
    pub(super) fn new(room_bytes: usize) -> Self {
        let bell = Arc::new(Bell::default());
        Self {
            inside: Mutex::new(Inside {
                records: Vec::new(),
                bytes: 0,
                asks: Vec::new(),
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

    fn lock(&self) -> MutexGuard<'_, Inside> {
        // Nothing here panics half-way through a change.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a record over. `None` if the producer is closed.
    pub(super) fn push(&self, record: NewRecord, cost: u32) -> Option<Ticket> {
        let mut inside = self.lock();
        if !inside.open {
            return None;
        }
        let (group, at) = inside.next(&self.bell);
        let bytes = cost as usize;
        let first = inside.records.is_empty();
        let crossed = inside.bytes < WAKE_BYTES && inside.bytes + bytes >= WAKE_BYTES;
        inside.bytes += bytes;
        inside.records.push(Accepted { record, cost, at });
        drop(inside);
        if first || crossed {
            self.bell.ring();
        }
        Some(Ticket::of(group, at))
    }

    /// Asks the driver, after what was handed over so far. Gives the ask back if the driver is
    /// gone; one that is being closed still answers.
    pub(super) fn ask(&self, ask: Ask) -> Result<(), Ask> {
        let mut inside = self.lock();
        if inside.ended {
            return Err(ask);
        }
        if matches!(ask, Ask::Close { .. }) {
            inside.open = false;
            self.room.close();
        }
        let at = inside.records.len();
        inside.asks.push((at, ask));
        drop(inside);
        self.bell.ring();
        Ok(())
    }

    /// What waits: bytes of records, and whether something was asked.
    pub(super) fn waiting(&self) -> (usize, bool) {
        let inside = self.lock();
        (inside.bytes, !inside.asks.is_empty())
    }

    /// Takes everything that waits, in exchange for empty memory.
    pub(super) fn take(&self, into: &mut Taken) {
        let mut inside = self.lock();
        std::mem::swap(&mut inside.records, &mut into.records);
        std::mem::swap(&mut inside.groups, &mut into.groups);
        std::mem::swap(&mut inside.asks, &mut into.asks);
        inside.bytes = 0;
    }

    /// Takes no more records, and answers nothing more.
    pub(super) fn shut(&self) {
        let mut inside = self.lock();
        inside.open = false;
        inside.ended = true;
        drop(inside);
        self.room.close();
    }
}

impl Inside {
    /// The group and place of the next ticket.
    fn next(&mut self, bell: &Arc<Bell>) -> (Arc<Group>, u8) {
        if usize::from(self.given) == GROUP {
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
