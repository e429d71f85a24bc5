//! Periodic checkpoints of a shard: one write at a time, and only when progress has moved.

use super::health::telemetry::ShardTelemetry;
use crate::event::{Events, ShardEvent};
use crate::lease::{CheckpointResult, LeaseHandle, LeaseStore};
use crate::stream::api::StreamApi;
use anabranch_model::lease::{Checkpoint, LeaseKey};
use anabranch_model::position::Position;
use std::sync::Arc;

/// Writes the checkpoints of one shard to its lease row.
pub(super) struct CheckpointWriter {
    shard: Arc<LeaseKey>,
    /// The checkpoint that the row holds.
    written: Checkpoint,
    vitals: Arc<ShardTelemetry>,
    events: Events,
}

/// Returns `to` as a checkpoint that a row holding `taken` accepts.
///
/// If the lanes of `taken` are not level, the result keeps their number, and lanes that are ahead
/// of `to` stay ahead.
pub(super) fn in_lanes_of(taken: &Checkpoint, to: Position) -> Checkpoint {
    let lanes = taken.lanes().iter().map(|lane| (*lane).max(to)).collect();
    Checkpoint::of_lanes(lanes).filter(|_| !taken.is_level()).unwrap_or(Checkpoint::at(to))
}

/// State of the lease after a checkpoint was written or attempted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LeaseStatus {
    /// This worker still holds the lease.
    Kept,
    /// This worker no longer holds the lease.
    Lost,
}

impl CheckpointWriter {
    /// Creates a writer for a row that holds `written`.
    pub(super) fn new(
        shard: Arc<LeaseKey>,
        written: Checkpoint,
        vitals: Arc<ShardTelemetry>,
        events: Events,
    ) -> Self {
        Self { shard, written, vitals, events }
    }

    /// Writes the checkpoint `at`, unless the row already holds it. A write that the store rejects
    /// is reported as an event and does not end the reading.
    pub(super) async fn write<S: LeaseStore, A: StreamApi>(
        &mut self,
        grip: &LeaseHandle<S, A>,
        at: Checkpoint,
    ) -> LeaseStatus {
        if at == self.written || (at.is_level() && self.written == at.lowest()) {
            return LeaseStatus::Kept;
        }
        self.vitals.note_unsaved();
        let shard = Arc::clone(&self.shard);
        let error = match grip.checkpoint_progress(at.clone()).await {
            CheckpointResult::Done => {
                self.vitals.note_saved(&at);
                self.events.emit(ShardEvent::Checkpointed { shard, at: at.clone() });
                self.written = at;
                return LeaseStatus::Kept;
            }
            CheckpointResult::Lost => return LeaseStatus::Lost,
            CheckpointResult::BehindCurrent => format!(
                "checkpoint {at} is before the one in the \
                                                        lease row"
            ),
            CheckpointResult::Failed(error) => error.to_string(),
        };
        // Records done since the last checkpoint are redelivered if the lease changes owner now. A
        // later write may succeed.
        self.events.emit(ShardEvent::CheckpointFailed { shard, error });
        LeaseStatus::Kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_model::sequence::SequenceNumber;

    #[test]
    fn a_row_with_lanes_ahead_can_take_every_position_of_one_lane() {
        let at =
            |low| Position::At { sequence: SequenceNumber::from_limbs(0, 0, low).unwrap(), sub: 0 };
        for (taken, steps) in [
            (vec![at(1)], [at(2), at(9)]),
            (vec![at(1), at(1)], [at(2), at(9)]),
            (vec![at(1), at(5)], [at(2), at(9)]),
            (vec![at(4), at(1), at(5)], [at(5), at(5)]),
        ] {
            let taken = Checkpoint::of_lanes(taken).unwrap();
            let mut row = taken.clone();
            for step in steps {
                let next = in_lanes_of(&taken, step);
                assert!(row.may_become(&next), "{row} to {next}");
                row = next;
            }
            assert_eq!(row.lowest(), steps[1]);
        }
    }
}
