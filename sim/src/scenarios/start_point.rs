//! Records that precede the start of an application, so that they need not be delivered.
//!
//! | start | layout | need not be delivered |
//! |---|---|---|
//! | `TRIM_HORIZON` | any | none |
//! | a time | any | records that arrived before it |
//! | LATEST | native | records that arrived before the time that the first worker stored |
//! | LATEST | KCL's | records before the first row, and those that [`LatestTracker`] skips |
//!
//! [`LatestTracker`] skips records when a worker resolves LATEST.
//!
//! [`LatestTracker`]: crate::latest_tracker::LatestTracker

use crate::fleet::ConsumerFleet;
use crate::record_source::{RecordSource, SimRecord};
use crate::rows::LeaseRows;
use anabranch::lease::LeaseStore;
use anabranch_model::ids::StreamName;
use anabranch_model::lease::Layout;
use anabranch_model::position::StartPosition;

/// Finds records of one stream before the start.
pub(super) struct StartPoint {
    stream: StreamName,
    at: StartPosition,
    rows: LeaseRows,
    supply: RecordSource,
    /// True once no new record can precede the start.
    is_known: bool,
}

impl StartPoint {
    /// Returns the start of each stream.
    pub(super) fn of(fleet: &ConsumerFleet) -> Vec<Self> {
        fleet.supply.streams().iter().map(|stream| Self::new(fleet, stream)).collect()
    }

    fn new(fleet: &ConsumerFleet, stream: &StreamName) -> Self {
        let (at, stream) = (fleet.start, stream.clone());
        let (rows, supply) = (fleet.rows.clone(), fleet.supply.clone());
        Self { stream, at, rows, supply, is_known: at == StartPosition::TrimHorizon }
    }

    /// Marks the records before the start. Must run before records of a new row can arrive.
    pub(super) fn look(&mut self) {
        if self.is_known {
            return;
        }
        match (self.at, self.rows.layout()) {
            (StartPosition::TrimHorizon, _) => {}
            (StartPosition::AtTimestamp(ms), _) => {
                self.skip(|grain| grain.arrived_ms < ms);
                self.is_known = self.supply.workload().now_ms() > ms;
            }
            (StartPosition::Latest, Layout::Native) => {
                let table = self.rows.snapshot();
                let facts = table.application().streams.get(&self.stream);
                if let Some(facts) = facts {
                    self.skip(|grain| grain.arrived_ms < facts.t0_ms);
                    self.is_known = true;
                }
            }
            (StartPosition::Latest, Layout::Kcl) => {
                self.is_known = !self.rows.leases(&self.stream).is_empty();
                self.skip(|_| true);
            }
        }
    }

    fn skip(&self, lies_before: impl Fn(&SimRecord) -> bool) {
        self.supply.skip(|grain| grain.shard.stream == self.stream && lies_before(grain));
    }
}
