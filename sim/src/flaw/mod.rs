//! Deliberate flaws, which show that the checkers detect them.
//!
//! The library has no switches for this. A flaw is injected at a seam: in the rules of the store
//! ([`rules`]), between a worker and the store ([`worker`]), or in the reader, which asks
//! [`WorkerFlaws`] whether it continues where the library said stop.

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

/// One rule of the lease protocol that is broken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum LeaseFlaw {
    /// No flaw.
    #[default]
    None,
    /// A take ignores the term.
    SkipsTermCheck,
    /// The owner continues past its deadline, keeps sending heartbeats, and stops only when one is
    /// refused.
    RenewsAfterExpiry,
    /// The leases of a silent owner are taken without fencing it.
    TakesWithoutFence,
    /// The fence expects the counter as read just now.
    FencesNewerCounter,
    /// The worker's own deadline counts from the reply to the heartbeat.
    DeadlineFromReply,
    /// A read-back compares only the counter, not the owner and content.
    ReadBackComparesCounterOnly,
    /// A worker takes from an owner that sends heartbeats, instead of requesting a hand-over.
    TakesFromLiveOwner,
    /// A checkpoint ignores the one that it replaces.
    CheckpointSkipsWhatItReplaces,
    /// The owner keeps delivering under the term of a hand-over or release that it sent, until the
    /// reply.
    DeliversAfterHandOver,
    /// A worker joins again under its old id.
    ReusesWorkerId,
    /// A worker is watched for the lease time of its observer, not for its own.
    UsesOwnLeaseTime,
}

impl LeaseFlaw {
    /// All flaws.
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

    /// Returns the flaw with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|flaw| flaw.to_string() == name)
    }
}

impl fmt::Display for LeaseFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}"))
    }
}
