//! Rules of a redrive that all dead-letter stores share.

use super::record::DeadLetter;
use crate::consumer::modes::closure::{Delivery, HandlerError};
use anabranch_model::hash::HashKey;
use anabranch_model::record::PartitionKey;
use std::collections::BTreeSet;
use std::future::Future;

/// Result of a redrive.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RedriveSummary {
    /// Number of records that were handled. They are no longer dead letters.
    pub done: usize,
    /// Number of records that remain, because the handler failed for them or for an earlier record
    /// of their key.
    pub left: usize,
    /// The records for which the handler failed, each with its error message.
    pub failures: Vec<(DeadLetter, String)>,
    /// Number of lines or rows that cannot be parsed. They stay in the file or table.
    pub unreadable: usize,
}

/// Progress of a redrive: stopped keys, handled records and the summary.
#[derive(Default)]
pub(in crate::consumer) struct RedriveKeys {
    /// Keys for which the handler failed.
    stopped: BTreeSet<(PartitionKey, Option<HashKey>)>,
    /// Records that this redrive has handled.
    seen: BTreeSet<String>,
    /// Summary so far.
    redriven: RedriveSummary,
}

impl RedriveKeys {
    /// Passes one record to the handler unless its key has stopped. Returns true if it is done.
    pub(in crate::consumer) async fn handle<F, T, E>(
        &mut self,
        parked: &DeadLetter,
        handle: &F,
    ) -> bool
    where
        F: Fn(Delivery) -> T,
        T: Future<Output = Result<(), E>>,
        E: Into<HandlerError>,
    {
        let record = &parked.record;
        let place = format!("{} {} {}", parked.shard, record.sequence, record.sub);
        // After a crash the same record may have been stored twice.
        if self.seen.contains(&place) {
            return true;
        }
        let key = (record.partition_key.clone(), record.explicit_hash_key);
        if self.stopped.contains(&key) {
            self.redriven.left += 1;
            return false;
        }
        match handle(parked.delivery()).await {
            Ok(()) => {
                self.seen.insert(place);
                self.redriven.done += 1;
                true
            }
            Err(error) => {
                self.stopped.insert(key);
                self.redriven.left += 1;
                self.redriven.failures.push((parked.clone(), error.into().to_string()));
                false
            }
        }
    }

    /// Starts a pass over a file or table with this number of unreadable entries. Resets `left`,
    /// because the pass includes everything that an earlier pass left.
    pub(in crate::consumer) fn begin(&mut self, unreadable: usize) {
        self.redriven.unreadable = unreadable;
        self.redriven.left = 0;
    }

    pub(in crate::consumer) fn end(self) -> RedriveSummary {
        self.redriven
    }
}
