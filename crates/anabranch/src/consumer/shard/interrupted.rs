//! The calls of the handler that a stop broke off at the end of its grace.

use anabranch_model::lease::LeaseKey;
use anabranch_model::position::Position;
use anabranch_model::record::{PartitionKey, UserRecord};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Calls that a message names.
const NAMED: usize = 5;

/// A call of the handler that a stop broke off. Its records are not done, and come again.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct InterruptedCall {
    /// The stream and shard.
    pub shard: Arc<LeaseKey>,
    /// Where its first record is.
    pub at: Position,
    /// That record's key.
    pub key: PartitionKey,
    /// How many records it had.
    pub records: usize,
}

impl fmt::Display for InterruptedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shard, at, key, records } = self;
        write!(f, "{shard} key {:?} at {at}", key.as_str())?;
        if *records > 1 { write!(f, " and {} behind it", records - 1) } else { Ok(()) }
    }
}

/// Names calls, the first ones if there are many.
pub(in crate::consumer) fn describe(calls: &[InterruptedCall]) -> String {
    let mut named: Vec<_> = calls.iter().take(NAMED).map(ToString::to_string).collect();
    if calls.len() > NAMED {
        named.push(format!("and those of {} other calls", calls.len() - NAMED));
    }
    named.join(", ")
}

/// The calls of a worker that its stop broke off.
#[derive(Debug, Default)]
pub(in crate::consumer) struct InterruptedCalls {
    /// Whether the worker stops. Before that, a call is dropped with its lease or by the watcher,
    /// and that is told elsewhere.
    counted: AtomicBool,
    /// The calls.
    calls: Mutex<Vec<InterruptedCall>>,
}

impl InterruptedCalls {
    /// Counts them from now on.
    pub(in crate::consumer) fn count(&self) {
        self.counted.store(true, Ordering::Relaxed);
    }

    /// Those that were counted, by shard.
    pub(in crate::consumer) fn take(&self) -> Vec<InterruptedCall> {
        let mut calls = std::mem::take(&mut *self.lock());
        calls.sort_unstable();
        calls
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<InterruptedCall>> {
        // Each change is one push, so a panic leaves no half of one.
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Records in the hands of the handler. Dropped before the call has returned, the call was broken
/// off.
pub(in crate::consumer) struct CallGuard<'a> {
    breaks: &'a InterruptedCalls,
    shard: &'a Arc<LeaseKey>,
    records: &'a [UserRecord],
}

impl<'a> CallGuard<'a> {
    /// These records are given to the handler.
    #[inline]
    pub(in crate::consumer) fn new(
        breaks: &'a InterruptedCalls,
        shard: &'a Arc<LeaseKey>,
        records: &'a [UserRecord],
    ) -> Self {
        Self { breaks, shard, records }
    }

    /// The call has returned.
    #[inline]
    pub(in crate::consumer) fn returned(mut self) {
        self.records = &[];
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        let counted = self.breaks.counted.load(Ordering::Relaxed);
        let Some(first) = self.records.first().filter(|_| counted) else { return };
        self.breaks.lock().push(InterruptedCall {
            shard: Arc::clone(self.shard),
            at: first.position(),
            // Copied: as a part of its reply it would keep all of that alive.
            key: PartitionKey::from(first.partition_key.as_str()),
            records: self.records.len(),
        });
    }
}
