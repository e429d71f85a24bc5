//! Usage of a store: calls made and capacity units consumed.

use aws_sdk_dynamodb::types::ConsumedCapacity;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Usage of a store since it was created.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct StoreUsage {
    /// Read calls: get, query and scan, counted per page.
    pub reads: u64,
    /// Write calls. A transaction is one call.
    pub writes: u64,
    /// Writes that were sent again because another one was in progress.
    pub conflicts: u64,
    /// Read units, as the service counted them.
    pub read_units: f64,
    /// Write units, as the service counted them.
    pub write_units: f64,
}

/// Counts usage. Clones share the counters.
#[derive(Clone, Debug, Default)]
pub(in crate::lease) struct UsageMeter(Arc<UsageCounts>);

#[derive(Debug, Default)]
struct UsageCounts {
    reads: AtomicU64,
    writes: AtomicU64,
    conflicts: AtomicU64,
    /// In tenths of a unit: the service counts in halves.
    read_tenths: AtomicU64,
    write_tenths: AtomicU64,
}

impl UsageMeter {
    pub(in crate::lease) fn usage(&self) -> StoreUsage {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        StoreUsage {
            reads: load(&self.0.reads),
            writes: load(&self.0.writes),
            conflicts: load(&self.0.conflicts),
            read_units: from_tenths(load(&self.0.read_tenths)),
            write_units: from_tenths(load(&self.0.write_tenths)),
        }
    }

    /// Counts a read that the service answered.
    pub(in crate::lease) fn read(&self, capacity: Option<&ConsumedCapacity>) {
        self.0.reads.fetch_add(1, Ordering::Relaxed);
        self.0.read_tenths.fetch_add(tenths(capacity), Ordering::Relaxed);
    }

    /// Counts a write that was sent. Refused writes cost as much as others.
    pub(in crate::lease) fn write(&self) {
        self.0.writes.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a conflict with another write.
    pub(in crate::lease) fn conflict(&self) {
        self.0.conflicts.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds the units that an applied write consumed.
    pub(in crate::lease) fn written(&self, capacity: &[ConsumedCapacity]) {
        let units = capacity.iter().map(|capacity| tenths(Some(capacity))).sum();
        self.0.write_tenths.fetch_add(units, Ordering::Relaxed);
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "units are small and not negative"
)]
fn tenths(capacity: Option<&ConsumedCapacity>) -> u64 {
    capacity.and_then(ConsumedCapacity::capacity_units).map_or(0, |units| (units * 10.0) as u64)
}

#[expect(clippy::cast_precision_loss, reason = "a sum of units stays far below 2^52")]
fn from_tenths(tenths: u64) -> f64 {
    tenths as f64 / 10.0
}
