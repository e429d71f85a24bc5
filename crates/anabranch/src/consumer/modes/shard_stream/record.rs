//! A record that its user acks, and the window that makes a checkpoint of the acks.

use crate::consumer::dispatch::memory::ReplyReservation;
use anabranch_model::ack::{AckTicket, AckWindow};
use anabranch_model::position::Position;
use anabranch_model::record::UserRecord;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::DropGuard;

/// A record on its way to the user. It has a place above the watermark, which comes back with its
/// ack and in no other way: one that is dropped on the way is not done.
#[derive(Debug)]
pub(in crate::consumer) struct StreamItem {
    /// The record.
    pub(in crate::consumer) record: UserRecord,
    /// The memory that it shares with the rest of its reply.
    pub(in crate::consumer) room: Option<Arc<ReplyReservation>>,
}

/// A record of a shard's stream. It is done when it is acked; one that is dropped holds back the
/// shard's checkpoint, and comes again after a change of owner.
#[must_use = "a record that is not acked comes again"]
pub struct ShardRecord {
    /// The record.
    record: UserRecord,
    /// Names it in the window.
    ticket: AckTicket,
    /// The window.
    acks: Arc<AckTracker>,
    /// Tells, dropped with the stream and all its records, that no ack can come any more.
    _hope: Arc<AckHandle>,
    /// The memory that it shares with the rest of its reply.
    _room: Option<Arc<ReplyReservation>>,
}

impl ShardRecord {
    /// The record is done. Records may be acked in any order: the checkpoint never passes one
    /// that is not.
    pub fn ack(self) {
        self.acks.ack(self.ticket);
    }
}

impl Deref for ShardRecord {
    type Target = UserRecord;

    fn deref(&self) -> &UserRecord {
        &self.record
    }
}

impl fmt::Debug for ShardRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.record, f)
    }
}

/// The hope that acks come: dropped with the stream and all its records.
#[derive(Debug)]
pub(in crate::consumer) struct AckHandle {
    /// Some record can't be acked any more.
    pub(in crate::consumer) _hopeless: DropGuard,
    /// None can.
    pub(in crate::consumer) _forsaken: DropGuard,
}

/// Which records of a shard were taken, and which of them are acked.
#[derive(Debug)]
pub(in crate::consumer) struct AckTracker {
    inside: Mutex<AckState>,
    /// One permit for each place above the watermark. It is gone with the record that it was got
    /// for, and added again when the watermark passes that.
    pub(in crate::consumer) places: Semaphore,
    /// How many places there are.
    unacked: u32,
    /// Tells that all are acked.
    drained: Notify,
}

#[derive(Debug)]
struct AckState {
    window: AckWindow<Position>,
    /// Whether no more may be taken.
    closed: bool,
}

impl AckTracker {
    /// Everything up to `done` was acked before; `unacked` records may stand above.
    pub(in crate::consumer) fn new(done: Position, unacked: u32) -> Self {
        let places = unacked as usize;
        let window = AckWindow::resume(done, places);
        Self {
            inside: Mutex::new(AckState { window, closed: false }),
            places: Semaphore::new(places),
            unacked,
            drained: Notify::new(),
        }
    }

    /// The user takes a record. `None` if it was taken before, or if no more may be.
    pub(in crate::consumer) fn take(
        self: &Arc<Self>,
        item: StreamItem,
        hope: &Arc<AckHandle>,
    ) -> Option<ShardRecord> {
        let mut inside = self.inside();
        if inside.closed {
            return None;
        }
        let Ok(ticket) = inside.window.issue(item.record.position()) else {
            // The place of the one that was taken before counts for both.
            self.places.add_permits(1);
            return None;
        };
        let (record, acks) = (item.record, Arc::clone(self));
        Some(ShardRecord { record, ticket, acks, _hope: Arc::clone(hope), _room: item.room })
    }

    fn ack(&self, ticket: AckTicket) {
        let mut inside = self.inside();
        let before = inside.window.gap();
        let _ = inside.window.ack(ticket);
        self.places.add_permits(before - inside.window.gap());
        if inside.window.is_drained() {
            self.drained.notify_waiters();
        }
    }

    /// Lets no more be taken.
    pub(in crate::consumer) fn close(&self) {
        self.inside().closed = true;
    }

    /// Everything up to here is acked.
    pub(in crate::consumer) fn watermark(&self) -> Option<Position> {
        self.inside().window.watermark().copied()
    }

    /// Whether everything that was sent to the user is acked.
    pub(in crate::consumer) fn is_idle(&self) -> bool {
        self.places.available_permits() == self.unacked as usize
    }

    /// Waits until everything that was sent to the user is acked.
    pub(in crate::consumer) async fn wait_idle(&self) {
        // The places are never closed.
        let _ = self.places.acquire_many(self.unacked).await;
    }

    /// Waits until all that was taken is acked.
    pub(in crate::consumer) async fn wait_drained(&self) {
        loop {
            let drained = self.drained.notified();
            if self.inside().window.is_drained() {
                return;
            }
            drained.await;
        }
    }

    fn inside(&self) -> MutexGuard<'_, AckState> {
        // The window's calls don't panic half-way.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
