//! What becomes of a record: one outcome, with the attempts that led to it.

use super::CarriedRecords;
use crate::ids::ShardId;
use crate::retry::Fault;
use crate::sequence::SequenceNumber;
use std::sync::Arc;

/// One attempt to put the container that held a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// When it was sent, by the producer's clock.
    pub sent_ms: u64,
    /// How long the reply took.
    pub took_ms: u64,
    /// How it ended.
    pub end: AttemptResult,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttemptResult {
    /// The container is in this shard.
    Placed(ShardId),
    /// The container is in this shard, whose range does not hold all of its records, or can't be
    /// learnt. Readers drop such a container, so it was sent again.
    Misrouted(ShardId),
    /// It failed.
    Failed {
        /// What that means.
        fault: Fault,
        /// The service's code and words.
        detail: Arc<str>,
    },
}

/// How many of the first attempts, and how many of the last, are kept: an outage of hours must not
/// fill the memory with its own history.
const KEPT: usize = 8;

/// Adds an attempt, and forgets one in the middle if there are very many.
pub(super) fn note(attempts: &mut Vec<Attempt>, attempt: Attempt) {
    if attempts.len() >= 2 * KEPT {
        attempts.remove(KEPT);
    }
    attempts.push(attempt);
}

/// Where a container was placed, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// The shard.
    pub shard: ShardId,
    /// The number of the container. A record's place in it is its place among the settled.
    pub sequence: SequenceNumber,
    /// The attempts of this container, the first and the last ones if there were very many. Those
    /// of earlier containers are with each record.
    pub attempts: Vec<Attempt>,
    /// How often this container was sent.
    pub tries: u32,
}

/// Why a record was not placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RejectReason {
    /// The service refused it.
    Refused {
        /// What that means.
        fault: Fault,
        /// The service's code and words.
        detail: Arc<str>,
    },
    /// Its deadline passed before it could be placed.
    Expired,
    /// An earlier record of its key has no certain place, and the key has not been resumed.
    KeyStopped,
    /// Too many keys stand stopped, so the whole producer does.
    ProducerStopped,
    /// The producer was closed before it could be placed.
    Closed,
}

/// What became of records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutcomeKind {
    /// They are in the stream, each at its place in the container.
    Placed(Arc<Receipt>),
    /// They are not in the stream.
    Rejected(RejectReason),
    /// They may be in the stream or not: a reply was lost, and there is no more time to learn it.
    Unknown,
}

/// Records that have their outcome. A placed record's sub-sequence number is its place here.
#[derive(Debug)]
pub struct CompletedRecords<T> {
    /// The records.
    pub records: CarriedRecords<T>,
    /// What became of all of them.
    pub fate: OutcomeKind,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_of_hours_leaves_its_first_and_its_last_attempts() {
        let mut attempts = Vec::new();
        for sent_ms in 0..10_000 {
            let end = AttemptResult::Failed { fault: Fault::NotSent, detail: "refused".into() };
            note(&mut attempts, Attempt { sent_ms, took_ms: 1, end });
        }
        let sent: Vec<_> = attempts.iter().map(|attempt| attempt.sent_ms).collect();
        let expected: Vec<_> = (0..8).chain(9_992..10_000).collect();
        assert_eq!(sent, expected);
    }
}
