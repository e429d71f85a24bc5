//! The rules of a redrive, wherever the records were put aside.

use super::record::DeadLetter;
use crate::consumer::modes::closure::{Delivery, HandlerError};
use anabranch_model::hash::HashKey;
use anabranch_model::record::PartitionKey;
use std::collections::BTreeSet;
use std::future::Future;

/// What became of records that were parked.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RedriveSummary {
    /// Records that the handler has done. They are no longer parked.
    pub done: usize,
    /// Records that stay parked, because the handler failed for them or for an earlier one of their
    /// key.
    pub left: usize,
    /// The records for which it failed, and its words.
    pub failures: Vec<(DeadLetter, String)>,
    /// Lines that can't be read. They stay where they are.
    pub unreadable: usize,
}

/// Which keys go on.
#[derive(Default)]
pub(in crate::consumer) struct RedriveKeys {
    /// Keys for which the handler failed.
    stopped: BTreeSet<(PartitionKey, Option<HashKey>)>,
    /// What was done in this redrive.
    seen: BTreeSet<String>,
    /// The outcome so far.
    redriven: RedriveSummary,
}

impl RedriveKeys {
    /// Gives one record to the handler, unless its key has stopped. Returns whether it is done.
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
        // After a crash the same record may be parked twice.
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

    /// Begins with a file that has so many unreadable lines. What an earlier one left is in it.
    pub(in crate::consumer) fn begin(&mut self, unreadable: usize) {
        self.redriven.unreadable = unreadable;
        self.redriven.left = 0;
    }

    pub(in crate::consumer) fn end(self) -> RedriveSummary {
        self.redriven
    }
}
