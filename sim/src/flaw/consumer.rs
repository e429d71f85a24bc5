//! What can be broken on purpose around whole consumers. Each flaw lives at one seam: the lease store
//! ([`store`](super::store)), the stream ([`stream`](super::stream)), or the records on their way to
//! the handler ([`handling`](super::handler)).

use std::fmt;

/// One rule of the consumer that is broken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum ConsumerFlaw {
    /// None is.
    #[default]
    None,

    // The gate and the first sync.
    /// A merged child starts after one of its two parents.
    StartsAfterOneParent,
    /// A parent without a row counts as ended.
    MissingRowCountsAsEnded,
    /// The rows of children start at LATEST.
    ChildAtLatest,
    /// Of two children one gets no row.
    ForgetsAChild,

    // Checkpoints.
    /// Now and then a checkpoint is acknowledged and not stored.
    AcksWithoutStoring,
    /// The moment that LATEST stands for is acknowledged and not stored.
    KeepsLatest,
    /// A checkpoint of unknown fate counts as stored.
    UnknownCountsAsStored,
    /// Every lane is stored where the furthest one stands.
    StoresTheFurthestLane,
    /// Every lane is stored where the slowest one stands.
    StoresTheSlowestLane,
    /// Now and then the end of the shard is stored in place of a checkpoint.
    EndsTooEarly,

    // The coordinator and the hand-over.
    /// A lease is passed on as soon as another worker asks, before its shard is drained.
    PassesBeforeTheDrain,
    /// A taker takes from a live owner instead of asking.
    TakesFromALiveOwner,
    /// A fenced worker believes that its beats succeed.
    GoesOnWhenFenced,
    /// One lease is left out of every list.
    HidesALease,
    /// Nobody asks for a lease.
    NeverAsks,
    /// A session delivers on after its worker took the lease again.
    OldSessionGoesOn,

    // Fetching.
    /// The last record of a reply is lost.
    DropsTheLast,
    /// The last record of a pushed event is lost.
    DropsTheLastPushed,
    /// The records of a reply come in the opposite order.
    ReversesAReply,
    /// The records of a reply come again with the next one.
    RepeatsAReply,
    /// An expired iterator is renewed at LATEST.
    RenewsAtLatest,
    /// A shard that is read from its oldest record is read from LATEST.
    BeginsAtLatest,
    /// The end of a shard comes one reply early.
    EndsOneReplyEarly,

    // Taking aggregates apart.
    /// The last record of an aggregate is lost.
    DropsTheLastPart,
    /// Data lose their last bytes.
    CutsData,

    // Lanes, handlers and memory.
    /// A record whose handler failed counts as done.
    SkipsWhatFailed,
    /// A record counts as done when its handler is called.
    AcksBeforeItIsDone,
    /// Now and then a record is not handed to the handler.
    SkipsARecord,
    /// Now and then a record is handed to the handler twice.
    DeliversTwice,
    /// Now and then two records of a lane change places.
    SwapsNeighbours,
    /// The byte budget is not kept.
    IgnoresItsBudget,

    // Dead letters.
    /// Now and then a dead letter is acknowledged and not stored.
    LosesDeadLetter,
    /// Now and then a dead letter is stored without its last bytes.
    CutsDeadLetter,

    // Effects exactly once.
    /// The effects of a transaction stay although its checkpoint is refused.
    KeepsRefusedEffects,
    /// A transaction asks neither for its lease nor for the checkpoint that it replaces.
    CommitsOverAnyRow,
}

impl ConsumerFlaw {
    /// Every flaw.
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

    /// The flaw of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|flaw| flaw.to_string() == name)
    }
}

impl fmt::Display for ConsumerFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}"))
    }
}
