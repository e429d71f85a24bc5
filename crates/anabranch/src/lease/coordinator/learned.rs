//! Rows that refused writes have shown. They are newer than the list that the writes rested on, which
//! may be old where the store throttles lists: without them the same writes would be made again.

use anabranch_model::lease::Lease;
use std::sync::{Mutex, PoisonError};

/// The rows that refused writes have shown since the last look.
#[derive(Debug, Default)]
pub(super) struct LearnedRows(Mutex<Vec<Lease>>);

impl LearnedRows {
    /// Notes a row that a refused write has shown.
    pub(super) fn add(&self, row: Lease) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(row);
    }

    /// Takes out what was noted.
    pub(super) fn take(&self) -> Vec<Lease> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
