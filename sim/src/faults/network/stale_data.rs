//! What is odd about a call or its reply beside its fate: old, torn, repeated, or visible in parts.

use super::{CallFaultRates, FaultKind, HostLink};
use crate::faults::old_scans::OLD_MS;
use crate::faults::partial_commits::{CommitPart, PartialCommit, PartialCommits, TransactionRow};
use crate::faults::unreadable::{UnreadableRows, unreadable};
use anabranch::lease::{StoreError, StorePoll};
use anabranch::stream::api::{ShardFilter, ShardList};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{Lease, LeaseKey, LeaseListing};

/// How old a list of shards may be.
const STALE_MS: u64 = 5_000;

impl HostLink {
    /// Notes that a look at the store goes out. It lasts until the guard is dropped.
    pub fn begin_poll(&self) -> PollGuard<'_> {
        *self.network.state().looks.entry(self.host).or_default() += 1;
        PollGuard(self)
    }

    /// Whether a list is to be torn now.
    pub fn tears(&self) -> bool {
        let mut state = self.network.state();
        let torn = state.weather.get(&self.service).map_or(0, |weather| weather.torn);
        state.draws(torn)
    }

    /// Whether a list is to be answered from memory now.
    pub fn is_stale(&self) -> bool {
        let mut state = self.network.state();
        let often = state.weather.get(&self.service).map_or(0, |weather| weather.stale);
        state.draws(often)
    }

    /// Whether an iterator is to be refused now.
    pub fn expires(&self) -> bool {
        let mut state = self.network.state();
        let expired = state.weather.get(&self.service).map_or(0, |weather| weather.expired);
        state.draws_fault(expired, FaultKind::Expired)
    }

    /// Whether a read is to say now that its shard has ended.
    pub fn ends_falsely(&self) -> bool {
        let mut state = self.network.state();
        let often = state.weather.get(&self.service).map_or(0, |weather| weather.false_end);
        let ends = often > 0 && state.ends.u32(0..1_000) < often;
        if ends {
            state.counts.add(FaultKind::FalseEnd);
        }
        ends
    }

    /// Whether something pushed is lost now, and the connection with it.
    pub fn breaks(&self) -> bool {
        let now_ms = self.network.clock.now_ms();
        let mut state = self.network.state();
        let cut = state.severed(self, now_ms).is_some();
        let out = state.outages.get(&self.service).is_some_and(|until| now_ms < *until);
        let error = state.weather.get(&self.service).map_or(0, |weather| weather.error);
        cut || out || state.draws_fault(error, FaultKind::Error)
    }

    /// Remembers a list, and gives the oldest of its kind that may still be answered.
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

    /// After which pause a write is to arrive a second time, if it is.
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

    /// For how long a transaction is to be visible in parts, if it is.
    pub(in crate::faults) fn commits_slowly(&self) -> Option<PartialCommit> {
        let mut state = self.network.state();
        let often = state.weather.get(&self.service).map_or(0, |weather| weather.slow_commit);
        if often == 0 || state.commits.u32(0..1_000) >= often {
            return None;
        }
        let for_ms = state.commits.u64(1..=self.patience_ms / 2);
        Some(PartialCommit { for_ms, row_is_late: state.commits.bool() })
    }

    /// Keeps a part of a transaction from sight for a while.
    pub(in crate::faults) fn lag(&self, for_ms: u64, part: CommitPart) {
        let until_ms = self.network.clock.now_ms() + for_ms;
        let mut state = self.network.state();
        state.counts.add(FaultKind::SlowCommit);
        state.lags.add(until_ms, part);
    }

    /// Shows what is visible of transactions now.
    pub(in crate::faults) fn lags<T>(&self, show: impl FnOnce(&PartialCommits) -> T) -> T {
        let now_ms = self.network.clock.now_ms();
        let mut state = self.network.state();
        state.lags.forget(now_ms);
        show(&state.lags)
    }

    /// Notes what a row of KCL's table was until now.
    pub(in crate::faults) fn changes(&self, key: LeaseKey, before: Option<Box<Lease>>) {
        let now_ms = self.network.clock.now_ms();
        self.network.state().past.changes(now_ms, key, before);
    }

    /// The rows of a stream as a scan shows them, given the rows as they stand.
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

    /// A list as it can be read. One more of its rows may turn unreadable at this moment.
    pub(in crate::faults) fn readable_list(&self, listing: LeaseListing) -> LeaseListing {
        let rows = listing.rows.iter().map(|row| TransactionRow::Lease(row.key.clone()));
        self.make_unreadable(rows.collect());
        self.is_unreadable(|spoiled| spoiled.list(listing))
    }

    /// A look as it can be read. One more of its rows may turn unreadable at this moment.
    pub(in crate::faults) fn readable_look(&self, look: StorePoll) -> StorePoll {
        let rows = look.workers.iter().map(|row| TransactionRow::Worker(row.id.clone()));
        self.make_unreadable(rows.collect());
        self.is_unreadable(|spoiled| spoiled.look(look))
    }

    /// Whether a row that is there can be read now.
    pub(in crate::faults) fn reads(&self, row: &TransactionRow) -> Result<(), StoreError> {
        let spoiled = self.is_unreadable(|spoiled| spoiled.has(row));
        if spoiled { Err(unreadable(row)) } else { Ok(()) }
    }

    /// Has one of these rows turn unreadable, now and then.
    fn make_unreadable(&self, mut rows: Vec<TransactionRow>) {
        let now_ms = self.network.clock.now_ms();
        let mut state = self.network.state();
        let often = state.weather.get(&self.service).map_or(0, |weather| weather.spoiled);
        if often == 0 || rows.is_empty() || state.spoils.u32(0..1_000) >= often {
            return;
        }
        let row = rows.swap_remove(state.spoils.usize(0..rows.len()));
        // For a moment, or for some lease times.
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

    /// Whether a stream is said to be deleted now.
    pub(in crate::faults) fn hides(&self, stream: &str) -> bool {
        let now_ms = self.network.clock.now_ms();
        let mut state = self.network.state();
        let hides = state.hidden.get(&StreamName::from(stream)).is_some_and(|ms| now_ms < *ms);
        if hides {
            state.counts.add(FaultKind::HiddenStream);
        }
        hides
    }

    /// Counts a fault that has happened.
    pub(in crate::faults) fn count(&self, fault: FaultKind) {
        self.network.count(fault);
    }

    /// Has something happen at the service later, whoever lives by then.
    pub(in crate::faults) fn later(&self, after_ms: u64, happens: impl FnOnce() + Send + 'static) {
        self.network.send(after_ms, Box::new(happens));
    }
}

/// A look that its host waits for. It ends with the wait, also when the host dies.
pub struct PollGuard<'a>(&'a HostLink);

impl Drop for PollGuard<'_> {
    fn drop(&mut self) {
        if let Some(looks) = self.0.network.state().looks.get_mut(&self.0.host) {
            *looks -= 1;
        }
    }
}
