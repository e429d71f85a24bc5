//! Records that the user acks, and the tracker that turns acks into a checkpoint.

use crate::consumer::dispatch::memory::ReplyReservation;
use anabranch_model::ack::{AckTicket, AckWindow};
use anabranch_model::position::Position;
use anabranch_model::record::UserRecord;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::DropGuard;

/// A record on its way to the user. It holds a place above the watermark, which only its ack
/// releases. A record that is dropped on the way is not done.
#[derive(Debug)]
pub(in crate::consumer) struct StreamItem {
    pub(in crate::consumer) record: UserRecord,
    /// Memory reservation of the whole reply.
    pub(in crate::consumer) room: Option<Arc<ReplyReservation>>,
}

/// A record of a shard's stream. It is done once it is acked. A record that is dropped unacked
/// holds back the shard's checkpoint, and is redelivered after a change of owner.
#[must_use = "a record that is not acked is delivered again"]
pub struct ShardRecord {
    record: UserRecord,
    /// Identifies the record in the ack window.
    ticket: AckTicket,
    acks: Arc<AckTracker>,
    /// Signals, when dropped with the stream and all its records, that no more acks can arrive.
    _hope: Arc<AckHandle>,
    /// Memory reservation of the whole reply.
    _room: Option<Arc<ReplyReservation>>,
}

impl ShardRecord {
    /// Marks the record as done. Records may be acked in any order: the checkpoint never passes an
    /// unacked record.
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

/// Guard that the stream and all its records share. While it exists, acks can still arrive.
#[derive(Debug)]
pub(in crate::consumer) struct AckHandle {
    /// Cancels the token for "some record can no longer be acked".
    pub(in crate::consumer) _hopeless: DropGuard,
    /// Cancels the token for "no record can be acked any more".
    pub(in crate::consumer) _forsaken: DropGuard,
}

/// Tracks the records of a shard that were taken, and those that were acked.
#[derive(Debug)]
pub(in crate::consumer) struct AckTracker {
    inside: Mutex<AckState>,
    /// One permit for each place above the watermark. A permit is forgotten once its record is
    /// sent, and added again when the watermark passes the record.
    pub(in crate::consumer) places: Semaphore,
    /// Total number of places.
    unacked: u32,
    /// Notifies that all taken records are acked.
    drained: Notify,
}

#[derive(Debug)]
struct AckState {
    window: AckWindow<Position>,
    /// True once no more records may be taken.
    closed: bool,
}

impl AckTracker {
    /// Creates a tracker for a shard that is done up to `done`. Up to `unacked` records may be
    /// above the watermark.
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

    /// Hands a record to the user. Returns `None` if it was taken before, or if the tracker is
    /// closed.
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
            // The record that was taken before holds a place already, so this place is released.
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

    /// Prevents further records from being taken.
    pub(in crate::consumer) fn close(&self) {
        self.inside().closed = true;
    }

    /// Returns the position up to which everything is acked.
    pub(in crate::consumer) fn watermark(&self) -> Option<Position> {
        self.inside().window.watermark().copied()
    }

    /// Returns true if everything that was sent to the user is acked.
    pub(in crate::consumer) fn is_idle(&self) -> bool {
        self.places.available_permits() == self.unacked as usize
    }

    /// Waits until everything that was sent to the user is acked.
    pub(in crate::consumer) async fn wait_idle(&self) {
        // The semaphore is never closed.
        let _ = self.places.acquire_many(self.unacked).await;
    }

    /// Waits until everything that was taken is acked.
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
        // The calls of the window do not panic midway.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
