//! What can be broken on purpose, to see that the checkers would notice.
//!
//! The library has no switches for this. A flaw lives at a seam: in the rules of the store
//! ([`rules`]), in what passes between a worker and the store ([`worker`]), or in the reader, which
//! asks [`WorkerFlaws`] whether it goes on where the library said stop.

pub mod rules;
pub mod reused_id;
pub mod worker;
pub mod consumer;
pub mod store;
pub mod stream;
pub mod handler;
pub mod producer;

pub use handler::FlawedHandler;
pub use rules::FlawedRulesStore;
pub use store::FlawedStore;
pub use stream::FlawedStream;
pub use worker::{FlawedWorkerStore, WorkerFlaws};

use std::fmt;

/// One thing that is broken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum LeaseFlaw {
    /// Nothing is.
    #[default]
    None,
    /// A take does not look at the term.
    SkipsTermCheck,
    /// The owner goes on past its deadline, beats on, and stops only when a beat is refused.
    RenewsAfterExpiry,
    /// A silent owner's leases are taken without the fence.
    TakesWithoutFence,
    /// The fence asks for the counter as read just now.
    FencesNewerCounter,
    /// The own deadline counts from the reply to the beat.
    DeadlineFromReply,
    /// A read-back looks at the counter, not at owner and content.
    ReadBackComparesCounterOnly,
    /// A taker takes from an owner whose heart beats, instead of asking for the lease.
    TakesFromLiveOwner,
    /// A checkpoint does not look at the one that it replaces.
    CheckpointSkipsWhatItReplaces,
    /// The owner delivers on under the term of a pass or release that it sent, until the reply.
    DeliversAfterHandOver,
    /// A worker joins again under its old id.
    ReusesWorkerId,
    /// A worker is watched for the lease time of its watcher, not for its own.
    UsesOwnLeaseTime,
}

impl LeaseFlaw {
    /// Every flaw.
    pub const ALL: [Self; 11] = [
        Self::SkipsTermCheck,
        Self::RenewsAfterExpiry,
        Self::TakesWithoutFence,
        Self::FencesNewerCounter,
        Self::DeadlineFromReply,
        Self::ReadBackComparesCounterOnly,
        Self::TakesFromLiveOwner,
        Self::CheckpointSkipsWhatItReplaces,
        Self::DeliversAfterHandOver,
        Self::ReusesWorkerId,
        Self::UsesOwnLeaseTime,
    ];

    /// The flaw of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|flaw| flaw.to_string() == name)
    }
}

impl fmt::Display for LeaseFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}"))
    }
}
