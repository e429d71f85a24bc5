//! Anomalies of a call or its reply besides its outcome: stale, torn, duplicated, or partly
//! visible.

use super::{CallFaultRates, FaultKind, HostLink};
use crate::faults::old_scans::OLD_MS;
use crate::faults::partial_commits::{CommitPart, PartialCommit, PartialCommits, TransactionRow};
use crate::faults::unreadable::{UnreadableRows, unreadable};
use anabranch::lease::{StoreError, StorePoll};
use anabranch::stream::api::{ShardFilter, ShardList};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{Lease, LeaseKey, LeaseListing};

/// Maximum age of a list of shards, in milliseconds.
const STALE_MS: u64 = 5_000;

impl HostLink {
    /// Marks a store poll as pending until the guard is dropped.
    pub fn begin_poll(&self) -> PollGuard<'_> {
        *self.network.state().looks.entry(self.host).or_default() += 1;
        PollGuard(self)
    }

    /// Draws whether to tear a list now.
    pub fn tears(&self) -> bool {
        let mut state = self.network.state();
        let torn = state.weather.get(&self.service).map_or(0, |weather| weather.torn);
        state.draws(torn)
    }

    /// Draws whether to answer a list from an earlier state now.
    pub fn is_stale(&self) -> bool {
        let mut state = self.network.state();
        let often = state.weather.get(&self.service).map_or(0, |weather| weather.stale);
        state.draws(often)
    }

    /// Draws whether to refuse an iterator now.
    pub fn expires(&self) -> bool {
        let mut state = self.network.state();
        let expired = state.weather.get(&self.service).map_or(0, |weather| weather.expired);
        state.draws_fault(expired, FaultKind::Expired)
    }

    /// Draws whether a read falsely reports the end of its shard now.
    pub fn ends_falsely(&self) -> bool {
        let mut state = self.network.state();
        let often = state.weather.get(&self.service).map_or(0, |weather| weather.false_end);
        let ends = often > 0 && state.ends.u32(0..1_000) < often;
        if ends {
            state.counts.add(FaultKind::FalseEnd);
        }
        ends
    }

    /// Draws whether a pushed event is lost now, and the connection with it.
    pub fn breaks(&self) -> bool {
        let now_ms = self.network.clock.now_ms();
        let mut state = self.network.state();
        let cut = state.severed(self, now_ms).is_some();
        let out = state.outages.get(&self.service).is_some_and(|until| now_ms < *until);
        let error = state.weather.get(&self.service).map_or(0, |weather| weather.error);
        cut || out || state.draws_fault(error, FaultKind::Error)
    }

    /// Stores a list, and returns the oldest stored list of its kind that is still recent enough.
    pub fn older_list(
        &self,
        stream: &StreamName,
        filter: ShardFilter,
        list: ShardList,
    ) -> ShardList {
        let now_ms = self.network.clock.now_ms();
        let mut state = self.network.state();
        state.lists.retain(|(at_ms, ..)| at_ms + STALE_MS > now_ms);
        let asked = (stream.clone(), filter);
        state.lists.push((now_ms, asked.clone(), list.clone()));
        let oldest = state.lists.iter().find(|(_, of, _)| *of == asked);
        oldest.map_or(list, |(_, _, old)| old.clone())
    }

    /// Draws whether a write arrives a second time. Returns the delay in milliseconds if so.
    pub(in crate::faults) fn repeats(&self) -> Option<u64> {
        let mut state = self.network.state();
        let weather =
            state.weather.get(&self.service).cloned().unwrap_or_else(CallFaultRates::none);
        if weather.twice == 0 || state.repeats.u32(0..1_000) >= weather.twice {
            return None;
        }
        let most_ms =
            if state.repeats.bool() { weather.latency_ms * 2 } else { self.patience_ms * 12 };
        Some(state.repeats.u64(1..=most_ms))
    }

    /// Draws whether and how long a transaction is only partly visible.
    pub(in crate::faults) fn commits_slowly(&self) -> Option<PartialCommit> {
        let mut state = self.network.state();
        let often = state.weather.get(&self.service).map_or(0, |weather| weather.slow_commit);
        if often == 0 || state.commits.u32(0..1_000) >= often {
            return None;
        }
        let for_ms = state.commits.u64(1..=self.patience_ms / 2);
        Some(PartialCommit { for_ms, row_is_late: state.commits.bool() })
    }

    /// Hides a part of a transaction for a while.
    pub(in crate::faults) fn lag(&self, for_ms: u64, part: CommitPart) {
        let until_ms = self.network.clock.now_ms() + for_ms;
        let mut state = self.network.state();
        state.counts.add(FaultKind::SlowCommit);
        state.lags.add(until_ms, part);
    }

    /// Passes the currently invisible parts of transactions to `show`.
    pub(in crate::faults) fn lags<T>(&self, show: impl FnOnce(&PartialCommits) -> T) -> T {
        let now_ms = self.network.clock.now_ms();
        let mut state = self.network.state();
        state.lags.forget(now_ms);
        show(&state.lags)
    }

    /// Records the previous state of a row of KCL's table.
    pub(in crate::faults) fn changes(&self, key: LeaseKey, before: Option<Box<Lease>>) {
        let now_ms = self.network.clock.now_ms();
        self.network.state().past.changes(now_ms, key, before);
    }

    /// Returns the rows of a stream as a scan shows them, given their current state.
    pub(in crate::faults) fn scan(&self, stream: &StreamName, rows: Vec<Lease>) -> Vec<Lease> {
        let now_ms = self.network.clock.now_ms();
        let mut state = self.network.state();
        let state = &mut *state;
        let often = state.weather.get(&self.service).map_or(0, |weather| weather.old_scan);
        if often == 0 || state.scans.u32(0..1_000) >= often {
            return rows;
        }
        let scans = &mut state.scans;
        let shown = state.past.scan(now_ms, stream, rows.clone(), || scans.u64(0..=OLD_MS));
        if shown != rows {
            state.counts.add(FaultKind::OldScan);
        }
        shown
    }

    /// Returns the readable part of a list. One of its rows may turn unreadable at this moment.
    pub(in crate::faults) fn readable_list(&self, listing: LeaseListing) -> LeaseListing {
        let rows = listing.rows.iter().map(|row| TransactionRow::Lease(row.key.clone()));
        self.make_unreadable(rows.collect());
        self.is_unreadable(|spoiled| spoiled.list(listing))
    }

    /// Returns the readable part of a store poll. One of its rows may turn unreadable at this
    /// moment.
    pub(in crate::faults) fn readable_look(&self, look: StorePoll) -> StorePoll {
        let rows = look.workers.iter().map(|row| TransactionRow::Worker(row.id.clone()));
        self.make_unreadable(rows.collect());
        self.is_unreadable(|spoiled| spoiled.look(look))
    }

    /// Returns an error if a row is unreadable now.
    pub(in crate::faults) fn reads(&self, row: &TransactionRow) -> Result<(), StoreError> {
        let spoiled = self.is_unreadable(|spoiled| spoiled.has(row));
        if spoiled { Err(unreadable(row)) } else { Ok(()) }
    }

    /// Draws whether one of these rows turns unreadable.
    fn make_unreadable(&self, mut rows: Vec<TransactionRow>) {
        let now_ms = self.network.clock.now_ms();
        let mut state = self.network.state();
        let often = state.weather.get(&self.service).map_or(0, |weather| weather.spoiled);
        if often == 0 || rows.is_empty() || state.spoils.u32(0..1_000) >= often {
            return;
        }
        let row = rows.swap_remove(state.spoils.usize(0..rows.len()));
        // For a moment, or for several lease times.
        let most = if state.spoils.bool() { 2 } else { 20 };
        let for_ms = state.spoils.u64(1..=self.patience_ms * most);
        state.spoiled.add(row, now_ms + for_ms);
        state.counts.add(FaultKind::UnreadableRow);
    }

    fn is_unreadable<T>(&self, show: impl FnOnce(&UnreadableRows) -> T) -> T {
        let now_ms = self.network.clock.now_ms();
        let mut state = self.network.state();
        state.spoiled.forget(now_ms);
        show(&state.spoiled)
    }

    /// Returns true while a stream is reported as deleted.
    pub(in crate::faults) fn hides(&self, stream: &str) -> bool {
        let now_ms = self.network.clock.now_ms();
        let mut state = self.network.state();
        let hides = state.hidden.get(&StreamName::from(stream)).is_some_and(|ms| now_ms < *ms);
        if hides {
            state.counts.add(FaultKind::HiddenStream);
        }
        hides
    }

    /// Counts an injected fault.
    pub(in crate::faults) fn count(&self, fault: FaultKind) {
        self.network.count(fault);
    }

    /// Runs an action at the service later, even if the caller is gone by then.
    pub(in crate::faults) fn later(&self, after_ms: u64, happens: impl FnOnce() + Send + 'static) {
        self.network.send(after_ms, Box::new(happens));
    }
}

/// A pending store poll. It ends when its host stops waiting, or crashes.
pub struct PollGuard<'a>(&'a HostLink);

impl Drop for PollGuard<'_> {
    fn drop(&mut self) {
        if let Some(looks) = self.0.network.state().looks.get_mut(&self.0.host) {
            *looks -= 1;
        }
    }
}
