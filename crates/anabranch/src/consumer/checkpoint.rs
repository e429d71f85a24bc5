//! Checkpoints of a shard: coalesced, one at a time, never past what is done.

use super::health::telemetry::ShardTelemetry;
use crate::event::{Events, ShardEvent};
use crate::lease::{CheckpointResult, LeaseHandle, LeaseStore};
use crate::stream::api::StreamApi;
use anabranch_model::lease::{Checkpoint, LeaseKey};
use anabranch_model::position::Position;
use std::sync::Arc;

/// The checkpoints of a shard.
pub(super) struct CheckpointWriter {
    /// Which shard.
    shard: Arc<LeaseKey>,
    /// What the row holds.
    written: Checkpoint,
    /// The signs of life of the shard.
    vitals: Arc<ShardTelemetry>,
    /// Who wants to know.
    events: Events,
}

/// A position as a row can take it that held `taken`. Lanes that were not level keep their number,
/// and those that were ahead stay ahead.
pub(super) fn in_lanes_of(taken: &Checkpoint, to: Position) -> Checkpoint {
    let lanes = taken.lanes().iter().map(|lane| (*lane).max(to)).collect();
    Checkpoint::of_lanes(lanes).filter(|_| !taken.is_level()).unwrap_or(Checkpoint::at(to))
}

/// Whether the lease is still this worker's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LeaseStatus {
    /// It is.
    Kept,
    /// It is not.
    Lost,
}

impl CheckpointWriter {
    /// The row holds `written`.
    pub(super) fn new(
        shard: Arc<LeaseKey>,
        written: Checkpoint,
        vitals: Arc<ShardTelemetry>,
        events: Events,
    ) -> Self {
        Self { shard, written, vitals, events }
    }

    /// Writes down up to where the shard is done, if that has moved.
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
            CheckpointResult::BehindCurrent => format!("{at} lies before what the row holds"),
            CheckpointResult::Failed(error) => error.to_string(),
        };
        // What was done since is done again after a change of owner. The next one may pass.
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
