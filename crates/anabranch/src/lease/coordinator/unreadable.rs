//! Which rows can't be read, so that each is reported once and not at every poll.

use super::LeaseContext;
use crate::event::LeaseEvent;
use crate::lease::{LeaseStore, StoreError, StorePoll};
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::{LeaseKey, LeaseListing, UnreadableRow};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

/// Rows that can't be read and that were reported, by whose they are: a stream's, or the workers'.
#[derive(Debug, Default)]
pub(crate) struct ReportedRows(Mutex<BTreeMap<Option<StreamName>, BTreeSet<String>>>);

impl ReportedRows {
    /// Returns the rows that were not reported before. A row that is readable again is forgotten.
    fn new_ones<'a>(
        &self,
        of: Option<&StreamName>,
        rows: impl Iterator<Item = (String, &'a str)>,
    ) -> Vec<(String, &'a str)> {
        let mut reported = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rows: BTreeMap<_, _> = rows.collect();
        let before = if rows.is_empty() {
            reported.remove(&of.cloned())
        } else {
            reported.insert(of.cloned(), rows.keys().cloned().collect())
        };
        let before = before.unwrap_or_default();
        rows.into_iter().filter(|(row, _)| !before.contains(row)).collect()
    }
}

impl<S: LeaseStore, A> LeaseContext<S, A> {
    /// Lists the rows of a stream, and reports those that can't be read.
    pub(super) async fn list(&self, stream: &StreamName) -> Result<LeaseListing, StoreError> {
        let listing = self.read_store(self.store.list(stream)).await?;
        self.report(stream, &listing.unreadable);
        Ok(listing)
    }

    /// Lists the rows of some streams for the planner, and reports those that can't be read.
    pub(super) async fn list_recent(
        &self,
        streams: &[StreamName],
    ) -> Result<BTreeMap<StreamName, LeaseListing>, StoreError> {
        let listings = self.read_store(self.store.list_recent(streams)).await?;
        for (stream, listing) in &listings {
            self.report(stream, &listing.unreadable);
        }
        Ok(listings)
    }

    /// Polls the store, and reports workers whose rows can't be read.
    pub(super) async fn poll(&self) -> Result<StorePoll, StoreError> {
        let look = self.read_store(self.store.poll()).await?;
        let rows = look.unreadable.iter().map(|row| (row.key.to_string(), row.why.as_str()));
        self.report_new(None, rows);
        Ok(look)
    }

    fn report(&self, stream: &StreamName, rows: &[UnreadableRow<ShardId>]) {
        let key = |shard: &ShardId| LeaseKey { stream: stream.clone(), shard: shard.clone() };
        let rows = rows.iter().map(|row| (key(&row.key).to_string(), row.why.as_str()));
        self.report_new(Some(stream), rows);
    }

    fn report_new<'a>(
        &self,
        of: Option<&StreamName>,
        rows: impl Iterator<Item = (String, &'a str)>,
    ) {
        for (row, why) in self.unreadable_rows.new_ones(of, rows) {
            self.emit(LeaseEvent::RowUnreadable { row, why: why.to_owned() });
        }
    }
}
