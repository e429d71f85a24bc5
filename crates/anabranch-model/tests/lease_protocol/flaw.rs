//! What is broken on purpose, to see that the explorer would notice.

use crate::rules::{Change, Row, WorkerRowState, WorkerWrite};

/// One thing that is broken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Flaw {
    None,
    // Broken rules of the store.
    /// A fence does not look at the counter.
    FenceSkipsTheCounter,
    /// A take does not look at the term.
    TakeSkipsTheTerm,
    /// A release does not look at owner and term.
    ReleaseSkipsTheTerm,
    /// A pass does not look at owner and term.
    PassSkipsTheTerm,
    /// A beat does not look at the fence.
    BeatSkipsTheFence,
    /// A beat does not look at the fence, and the owner resumes.
    ResumesAndBeatSkipsTheFence,
    /// A checkpoint does not look at owner and term.
    CheckpointSkipsTheTerm,
    /// A checkpoint does not look at the one that it replaces.
    CheckpointSkipsWhatItReplaces,
    // Broken agents.
    /// The owner goes on past its deadline, beats on, and stops only when a beat is refused.
    RenewsAfterItsExpiry,
    /// The owner stops at its deadline, and resumes when a later beat succeeds.
    ResumesAfterItsExpiry,
    /// The deadline counts from the reply to the beat.
    DeadlineFromTheReply,
    /// A beat sent again counts from its second sending.
    RetryCountsAnew,
    /// A silent owner's lease is taken without the fence.
    TakesWithoutTheFence,
    /// A watcher waits for its own lease time, not for that of the worker it watches.
    JudgesByTheWatchersLeaseTime,
    /// The fence asks for the counter as read just now.
    FencesOnANewerCounter,
    /// A taker takes from an owner whose heart beats.
    TakesFromABeatingOwner,
    /// A read-back looks at the counter, not at owner and content.
    ReadBackComparesTheCounterOnly,
    /// The owner delivers on under the term of a pass that it sent.
    GoesOnAfterAPass,
    /// The owner delivers on under the term of a release that it sent.
    GoesOnAfterARelease,
    /// A worker joins again under its old id.
    JoinsUnderTheOldId,
    /// A taker reads on from the row that it listed.
    ReadsOnFromTheListedRow,
}

impl Flaw {
    /// Row and change with the broken part of the condition made true.
    pub(crate) fn doctor(self, row: Row, change: Change) -> (Row, Change) {
        match (self, change) {
            (Self::TakeSkipsTheTerm, Change::Take { by, .. }) => {
                (row, Change::Take { by, term: row.term })
            }
            (Self::ReleaseSkipsTheTerm, Change::Release { by, .. }) => {
                (row, Change::Release { by: row.owner.unwrap_or(by), term: row.term })
            }
            (Self::PassSkipsTheTerm, Change::Pass { by, to, .. }) => {
                (row, Change::Pass { by: row.owner.unwrap_or(by), term: row.term, to })
            }
            (Self::CheckpointSkipsTheTerm, Change::Checkpoint { by, from, to, .. }) => {
                let by = row.owner.unwrap_or(by);
                (row, Change::Checkpoint { by, term: row.term, from, to })
            }
            (Self::CheckpointSkipsWhatItReplaces, Change::Checkpoint { from, .. }) => {
                (Row { checkpoint: from, ..row }, change)
            }
            _ => (row, change),
        }
    }

    /// The same for a worker's row.
    pub(crate) fn doctor_pulse(
        self,
        heart: WorkerRowState,
        pulse: WorkerWrite,
    ) -> (WorkerRowState, WorkerWrite) {
        match (self, pulse, heart) {
            (Self::FenceSkipsTheCounter, WorkerWrite::Fence(_), WorkerRowState::Alive(now)) => {
                (heart, WorkerWrite::Fence(now))
            }
            (
                Self::BeatSkipsTheFence | Self::ResumesAndBeatSkipsTheFence,
                WorkerWrite::Beat(_),
                WorkerRowState::Fenced(now),
            ) => (WorkerRowState::Alive(now), pulse),
            _ => (heart, pulse),
        }
    }

    /// Whether a beat that succeeds after the own deadline brings the owner back.
    pub(crate) fn resumes_after_expiry(self) -> bool {
        matches!(
            self,
            Self::ResumesAfterItsExpiry
                | Self::ResumesAndBeatSkipsTheFence
                | Self::RenewsAfterItsExpiry
        )
    }
}
