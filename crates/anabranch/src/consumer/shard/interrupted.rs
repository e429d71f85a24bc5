//! Handler calls that a stop interrupted at the end of its grace period.

use anabranch_model::lease::LeaseKey;
use anabranch_model::position::Position;
use anabranch_model::record::{PartitionKey, UserRecord};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of calls that a message lists.
const NAMED: usize = 5;

/// A handler call that a stop interrupted. Its records are not done, and are redelivered.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct InterruptedCall {
    /// Stream and shard of the records.
    pub shard: Arc<LeaseKey>,
    /// Position of the first record.
    pub at: Position,
    /// Partition key of the first record.
    pub key: PartitionKey,
    /// Number of records in the call.
    pub records: usize,
}

impl fmt::Display for InterruptedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shard, at, key, records } = self;
        write!(f, "{shard} key {:?} at {at}", key.as_str())?;
        if *records > 1 { write!(f, " and {} more", records - 1) } else { Ok(()) }
    }
}

/// Formats a list of calls, shortened if there are many.
pub(in crate::consumer) fn describe(calls: &[InterruptedCall]) -> String {
    let mut named: Vec<_> = calls.iter().take(NAMED).map(ToString::to_string).collect();
    if calls.len() > NAMED {
        named.push(format!("and {} other calls", calls.len() - NAMED));
    }
    named.join(", ")
}

/// Handler calls of a worker that its stop interrupted.
#[derive(Debug, Default)]
pub(in crate::consumer) struct InterruptedCalls {
    /// True once the worker stops. Before that, a call is dropped with its lease or by the
    /// watchdog, and reported elsewhere.
    counted: AtomicBool,
    calls: Mutex<Vec<InterruptedCall>>,
}

impl InterruptedCalls {
    /// Starts recording interrupted calls.
    pub(in crate::consumer) fn count(&self) {
        self.counted.store(true, Ordering::Relaxed);
    }

    /// Returns the recorded calls, ordered by shard, and clears the list.
    pub(in crate::consumer) fn take(&self) -> Vec<InterruptedCall> {
        let mut calls = std::mem::take(&mut *self.lock());
        calls.sort_unstable();
        calls
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<InterruptedCall>> {
        // Each change is one push, so a panic leaves no inconsistent state.
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Guard of a running handler call. If it is dropped before the call returns, the call was
/// interrupted.
pub(in crate::consumer) struct CallGuard<'a> {
    breaks: &'a InterruptedCalls,
    shard: &'a Arc<LeaseKey>,
    records: &'a [UserRecord],
}

impl<'a> CallGuard<'a> {
    /// Notes that these records are passed to the handler.
    #[inline]
    pub(in crate::consumer) fn new(
        breaks: &'a InterruptedCalls,
        shard: &'a Arc<LeaseKey>,
        records: &'a [UserRecord],
    ) -> Self {
        Self { breaks, shard, records }
    }

    /// Notes that the call has returned.
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
            // A copy: a slice of the reply would keep the whole reply alive.
            key: PartitionKey::from(first.partition_key.as_str()),
            records: self.records.len(),
        });
    }
}
