//! Outcomes of records, with the attempts that led to them.

use super::CarriedRecords;
use crate::ids::ShardId;
use crate::retry::Fault;
use crate::sequence::SequenceNumber;
use std::fmt;
use std::sync::Arc;

/// One attempt to put the Kinesis record that held a user record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Time of sending, by the producer's clock.
    pub sent_ms: u64,
    /// Time until the reply.
    pub took_ms: u64,
    /// Result of the attempt.
    pub end: AttemptResult,
}

/// Result of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttemptResult {
    /// The Kinesis record is in this shard.
    Placed(ShardId),
    /// The Kinesis record is in this shard, whose range is unknown or does not hold all of its user
    /// records. Readers drop such a record, so it was sent again.
    Misrouted(ShardId),
    /// The attempt failed.
    Failed {
        /// Classified failure.
        fault: Fault,
        /// Error code and message of the service.
        detail: Arc<str>,
    },
}

/// Number of first attempts, and of last attempts, to keep. The history of an outage of hours must
/// not fill the memory.
const KEPT: usize = 8;

/// Adds an attempt. Beyond `2 * KEPT` attempts, drops one from the middle.
pub(super) fn note(attempts: &mut Vec<Attempt>, attempt: Attempt) {
    if attempts.len() >= 2 * KEPT {
        attempts.remove(KEPT);
    }
    attempts.push(attempt);
}

/// Placement of a Kinesis record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// Shard that holds the Kinesis record.
    pub shard: ShardId,
    /// Sequence number of the Kinesis record. A user record's sub-sequence number is its index in
    /// [`CompletedRecords::records`].
    pub sequence: SequenceNumber,
    /// Attempts of this Kinesis record: all of them up to 16, else the first 8 and the last 8. Each
    /// user record keeps the attempts of its earlier Kinesis records.
    pub attempts: Vec<Attempt>,
    /// Number of times this Kinesis record was sent.
    pub tries: u32,
}

/// Reason why a record was not placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RejectReason {
    /// The service refused it.
    Refused {
        /// Classified failure.
        fault: Fault,
        /// Error code and message of the service.
        detail: Arc<str>,
    },
    /// Its deadline passed before it could be placed.
    Expired,
    /// An earlier record of its key was not placed for certain, and the key has not been resumed.
    KeyStopped,
    /// Too many keys are stopped, so the whole producer is.
    ProducerStopped,
    /// The producer was closed before it could be placed.
    Closed,
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { detail, .. } => write!(f, "the service refused it: {detail}"),
            Self::Expired => f.write_str("its deadline passed before it was placed"),
            Self::KeyStopped => f.write_str(
                "an earlier record of its key was rejected or its outcome is unknown, so the key \
                 is stopped until it is resumed",
            ),
            Self::ProducerStopped => f.write_str(
                "too many keys are stopped, so the whole producer is stopped until \
                             they are resumed",
            ),
            Self::Closed => f.write_str("the producer was closed before the record was placed"),
        }
    }
}

/// Outcome of records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutcomeKind {
    /// The records are in the stream, in the order of the Kinesis record.
    Placed(Arc<Receipt>),
    /// The records are not in the stream.
    Rejected(RejectReason),
    /// The records may be in the stream: a reply was lost, and there is no time left to find out.
    Unknown,
}

/// Records that have an outcome. The index of a placed record is its sub-sequence number.
#[derive(Debug)]
pub struct CompletedRecords<T> {
    /// Records with this outcome.
    pub records: CarriedRecords<T>,
    /// Outcome of all of them.
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
