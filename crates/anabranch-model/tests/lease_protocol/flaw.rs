//! Deliberate flaws, which show that the exploration detects them.

use crate::rules::{Change, Row, WorkerRowState, WorkerWrite};

/// A deliberate flaw of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Flaw {
    None,
    // Broken rules of the store.
    /// A fence ignores the counter.
    FenceSkipsTheCounter,
    /// A take ignores the term.
    TakeSkipsTheTerm,
    /// A release ignores owner and term.
    ReleaseSkipsTheTerm,
    /// A hand-over ignores owner and term.
    PassSkipsTheTerm,
    /// A heartbeat ignores the fence.
    BeatSkipsTheFence,
    /// A heartbeat ignores the fence, and the owner resumes.
    ResumesAndBeatSkipsTheFence,
    /// A checkpoint ignores owner and term.
    CheckpointSkipsTheTerm,
    /// A checkpoint ignores the one that it replaces.
    CheckpointSkipsWhatItReplaces,
    // Broken workers.
    /// The owner continues past its deadline, keeps sending heartbeats, and stops only when one is
    /// refused.
    RenewsAfterItsExpiry,
    /// The owner stops at its deadline, and resumes when a later heartbeat succeeds.
    ResumesAfterItsExpiry,
    /// The deadline counts from the reply to the heartbeat.
    DeadlineFromTheReply,
    /// A retried heartbeat counts from its second sending.
    RetryCountsAnew,
    /// A silent owner's lease is taken without the fence.
    TakesWithoutTheFence,
    /// An observer waits for its own lease time, not for that of the observed worker.
    JudgesByTheWatchersLeaseTime,
    /// The fence expects the counter as read just now.
    FencesOnANewerCounter,
    /// A worker takes from an owner that sends heartbeats.
    TakesFromABeatingOwner,
    /// A read-back compares the counter, not the owner and content.
    ReadBackComparesTheCounterOnly,
    /// The owner keeps delivering under the term of a hand-over that it sent.
    GoesOnAfterAPass,
    /// The owner keeps delivering under the term of a release that it sent.
    GoesOnAfterARelease,
    /// A worker joins again under its old id.
    JoinsUnderTheOldId,
    /// A taker continues from the checkpoint of the row that it listed.
    ReadsOnFromTheListedRow,
}

impl Flaw {
    /// Returns row and change with the broken part of the condition made true.
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

    /// Returns worker row and write with the broken part of the condition made true.
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

    /// Returns true if a successful heartbeat after its own deadline makes the owner resume.
    pub(crate) fn resumes_after_expiry(self) -> bool {
        matches!(
            self,
            Self::ResumesAfterItsExpiry
                | Self::ResumesAndBeatSkipsTheFence
                | Self::RenewsAfterItsExpiry
        )
    }
}
