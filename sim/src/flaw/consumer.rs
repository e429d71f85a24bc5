//! Deliberate flaws around whole consumers. Each flaw is injected at one seam: the lease store
//! ([`store`](super::store)), the stream ([`stream`](super::stream)), or the records on their way
//! to the handler ([`handler`](super::handler)).

use std::fmt;

/// One rule of the consumer that is broken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum ConsumerFlaw {
    /// No flaw.
    #[default]
    None,

    // Start of child shards, and the first sync.
    /// A merged child starts after one of its two parents.
    StartsAfterOneParent,
    /// A parent without a row counts as ended.
    MissingRowCountsAsEnded,
    /// The rows of children start at LATEST.
    ChildAtLatest,
    /// One of two children gets no row.
    ForgetsAChild,

    // Checkpoints.
    /// Some checkpoints are acknowledged but not stored.
    AcksWithoutStoring,
    /// The timestamp that replaces LATEST is acknowledged but not stored.
    KeepsLatest,
    /// A checkpoint with an unknown outcome counts as stored.
    UnknownCountsAsStored,
    /// Every lane is stored at the position of the furthest one.
    StoresTheFurthestLane,
    /// Every lane is stored at the position of the slowest one.
    StoresTheSlowestLane,
    /// The end of the shard is sometimes stored in place of a checkpoint.
    EndsTooEarly,

    // The coordinator and the hand-over.
    /// A lease is passed on as soon as another worker asks, before its shard is drained.
    PassesBeforeTheDrain,
    /// A worker takes a lease from a live owner instead of requesting a hand-over.
    TakesFromALiveOwner,
    /// A fenced worker believes that its heartbeats succeed.
    GoesOnWhenFenced,
    /// One lease is left out of every list.
    HidesALease,
    /// No worker requests a lease.
    NeverAsks,
    /// A session keeps delivering after its worker took the lease again.
    OldSessionGoesOn,

    // Fetching.
    /// The last record of a reply is lost.
    DropsTheLast,
    /// The last record of a pushed event is lost.
    DropsTheLastPushed,
    /// The records of a reply arrive in reverse order.
    ReversesAReply,
    /// The records of a reply are duplicated at the start of the next one.
    RepeatsAReply,
    /// An expired iterator is renewed at LATEST.
    RenewsAtLatest,
    /// A shard that is to be read from its oldest record is read from LATEST.
    BeginsAtLatest,
    /// The end of a shard is reported one reply early.
    EndsOneReplyEarly,

    // Deaggregation.
    /// The last record of an aggregate is lost.
    DropsTheLastPart,
    /// Data lose their last bytes.
    CutsData,

    // Lanes, handlers and memory.
    /// A record whose handler failed counts as done.
    SkipsWhatFailed,
    /// A record counts as done when its handler is called.
    AcksBeforeItIsDone,
    /// Some records are not handed to the handler.
    SkipsARecord,
    /// Some records are handed to the handler twice.
    DeliversTwice,
    /// Some neighbouring records of a lane are swapped.
    SwapsNeighbours,
    /// The byte budget is ignored.
    IgnoresItsBudget,

    // Dead letters.
    /// Some dead letters are acknowledged but not stored.
    LosesDeadLetter,
    /// Some dead letters are stored without their last bytes.
    CutsDeadLetter,

    // Exactly-once effects.
    /// The effects of a transaction stay although its checkpoint is refused.
    KeepsRefusedEffects,
    /// A transaction checks neither its lease nor the checkpoint that it replaces.
    CommitsOverAnyRow,
}

impl ConsumerFlaw {
    /// All flaws.
    pub const ALL: [Self; 35] = [
        Self::StartsAfterOneParent,
        Self::MissingRowCountsAsEnded,
        Self::ChildAtLatest,
        Self::ForgetsAChild,
        Self::AcksWithoutStoring,
        Self::KeepsLatest,
        Self::UnknownCountsAsStored,
        Self::StoresTheFurthestLane,
        Self::StoresTheSlowestLane,
        Self::EndsTooEarly,
        Self::PassesBeforeTheDrain,
        Self::TakesFromALiveOwner,
        Self::GoesOnWhenFenced,
        Self::HidesALease,
        Self::NeverAsks,
        Self::OldSessionGoesOn,
        Self::DropsTheLast,
        Self::DropsTheLastPushed,
        Self::ReversesAReply,
        Self::RepeatsAReply,
        Self::RenewsAtLatest,
        Self::BeginsAtLatest,
        Self::EndsOneReplyEarly,
        Self::DropsTheLastPart,
        Self::CutsData,
        Self::SkipsWhatFailed,
        Self::AcksBeforeItIsDone,
        Self::SkipsARecord,
        Self::DeliversTwice,
        Self::SwapsNeighbours,
        Self::IgnoresItsBudget,
        Self::LosesDeadLetter,
        Self::CutsDeadLetter,
        Self::KeepsRefusedEffects,
        Self::CommitsOverAnyRow,
    ];

    /// Returns the flaw with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|flaw| flaw.to_string() == name)
    }
}

impl fmt::Display for ConsumerFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}"))
    }
}
