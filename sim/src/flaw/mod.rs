//! What can be broken on purpose, to see that the checkers would notice.
//!
//! The library has no switches for this. A flaw lives at a seam: in the rules of the store
//! ([`rules`]), in what passes between a worker and the store ([`habits`]), or in the reader, which
//! asks [`Habits`](habits::Habits) whether it goes on where the library said stop.

pub mod rules;
pub mod rename;
pub mod habits;
pub mod consumer;
pub mod store;
pub mod stream;
pub mod handling;
pub mod producer;

pub use habits::{Habits, Rash};
pub use handling::Handling;
pub use rules::Lax;
pub use store::Warped;
pub use stream::Bent;

use std::fmt;

/// One thing that is broken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Flaw {
    /// Nothing is.
    #[default]
    None,
    /// A take does not look at the term.
    SkipsTheCounter,
    /// The owner goes on past its deadline, beats on, and stops only when a beat is refused.
    RenewsAfterItsExpiry,
    /// A silent owner's leases are taken without the fence.
    TakesWithoutTheFence,
    /// The fence asks for the counter as read just now.
    FencesOnANewerCounter,
    /// The own deadline counts from the reply to the beat.
    DeadlineFromTheReply,
    /// A read-back looks at the counter, not at owner and content.
    ReadBackComparesTheCounterOnly,
    /// A taker takes from an owner whose heart beats, instead of asking for the lease.
    TakesFromABeatingOwner,
    /// A checkpoint does not look at the one that it replaces.
    CheckpointSkipsWhatItReplaces,
    /// The owner delivers on under the term of a pass or release that it sent, until the reply.
    GoesOnAfterAPass,
    /// A worker joins again under its old id.
    JoinsUnderTheOldId,
    /// A worker is watched for the lease time of its watcher, not for its own.
    WatchesByItsOwnLeaseTime,
}

impl Flaw {
    /// Every flaw.
    pub const ALL: [Self; 11] = [
        Self::SkipsTheCounter,
        Self::RenewsAfterItsExpiry,
        Self::TakesWithoutTheFence,
        Self::FencesOnANewerCounter,
        Self::DeadlineFromTheReply,
        Self::ReadBackComparesTheCounterOnly,
        Self::TakesFromABeatingOwner,
        Self::CheckpointSkipsWhatItReplaces,
        Self::GoesOnAfterAPass,
        Self::JoinsUnderTheOldId,
        Self::WatchesByItsOwnLeaseTime,
    ];

    /// The flaw of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|flaw| flaw.to_string() == name)
    }
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}"))
    }
}
