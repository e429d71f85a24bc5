//! `PutRecord`: puts one record to the open shard that covers its hash key.
//!
//! Differs from AWS: see [`put_records`](super::put_records) for a record that is too large.

use crate::constraint::Constraints;
use crate::encryption::Encryption;
use crate::engine::{Engine, StreamRef};
use crate::error::ApiError;
use crate::op::Operation;
use crate::op::put_records::{EntryOutcome, PutRecordsEntry};
use crate::stream::Topology;
use anabranch_model::sequence::SequenceNumber;
use std::borrow::Cow;

/// Request of `PutRecord`, borrowed from its body.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The stream to put to.
    pub stream: StreamRef<'a>,
    /// The record to put.
    pub entry: PutRecordsEntry<'a>,
    /// A sequence number that the record's own must exceed.
    pub sequence_number_for_ordering: Option<Cow<'a, str>>,
}

/// Reply to `PutRecord`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// The index of the shard that holds the record.
    pub shard: u32,
    /// The record's sequence number.
    pub sequence: SequenceNumber,
    /// Type of encryption at rest.
    pub encryption: Encryption,
}

impl Engine {
    /// Puts one record.
    pub fn put_record(&self, request: &Request<'_>) -> Result<Reply, ApiError> {
        let name = self.resolve(&request.stream)?;
        let ordering = request.sequence_number_for_ordering.as_deref();
        Constraints::new().sequence_number(ordering, "sequenceNumberForOrdering").check()?;
        let entries = std::slice::from_ref(&request.entry);
        let check = |topology: &Topology| match ordering {
            Some(number) if !came_from(topology, number) => {
                let account = &self.home.account;
                Err(ApiError::invalid(format!(
                    "ExclusiveMinimumSequenceNumber {number} used in PutRecord on stream {name} \
                     under account {account} is invalid."
                )))
            }
            _ => Ok(()),
        };
        let reply = self.put(Operation::PutRecord, &name, entries, check)?;
        match reply.entries.into_iter().next() {
            Some(EntryOutcome::Placed { shard, sequence }) => {
                Ok(Reply { shard, sequence, encryption: reply.encryption })
            }
            Some(EntryOutcome::Failed { code, message }) => Err(ApiError::new(code, message)),
            None => Err(ApiError::internal()),
        }
    }
}

/// Returns true if one of the stream's shards has assigned `number`.
fn came_from(topology: &Topology, number: &str) -> bool {
    let Ok(number) = number.parse::<SequenceNumber>() else { return false };
    let [high, counter, low] = number.limbs();
    let shard = usize::try_from(low).ok().and_then(|index| topology.shards.get(index));
    shard.is_some_and(|state| {
        state.shard.stamp.high == high && counter < state.shard.lock().log.next_counter()
    })
}
