//! Host pauses. A host that was paused with its clock cannot know how long it was away, so its
//! worker is judged by the time that the host observed.

use crate::history::{HistoryEvent, HistoryLine, HostId};
use anabranch_model::lease::{
    LeaseChange, LeaseKey, LeaseToken, StoredRow, WorkerChange, WorkerId, Write, WriteOutcome,
};
use std::collections::BTreeMap;

/// Host pauses and signs of life of workers, as far as the history was read.
#[derive(Default)]
pub(super) struct HostPauses<'a> {
    /// Completed pauses of each host, as start and end.
    over: BTreeMap<HostId, Vec<(u64, u64)>>,
    /// Arrival time of each worker's last heartbeat at the store.
    beats: BTreeMap<&'a WorkerId, u64>,
    /// Lease time that each worker declared when it joined.
    lease_times: BTreeMap<&'a WorkerId, u64>,
    /// Arrival time of each owner's last write to the row of its lease: a sign of life in KCL's
    /// layout.
    writes: BTreeMap<(&'a LeaseKey, &'a WorkerId), u64>,
    /// Terms of each lease, with the time at which its row reached them.
    terms: BTreeMap<&'a LeaseKey, Vec<(u64, u64)>>,
}

impl<'a> HostPauses<'a> {
    /// Processes a line of the history.
    pub(super) fn see(&mut self, line: &'a HistoryLine) {
        match &line.what {
            HistoryEvent::Paused { since_ms } => {
                let Some(host) = line.host else { return };
                self.over.entry(host).or_default().push((*since_ms, line.at_ms));
            }
            HistoryEvent::WriteApplied {
                write: Write::Worker { id, change, .. },
                outcome: WriteOutcome::Done(_),
            } => {
                if let WorkerChange::Join { lease_time_ms: Some(lease_time_ms), .. } = change {
                    self.lease_times.insert(id, *lease_time_ms);
                }
                if matches!(
                    change,
                    WorkerChange::Join { .. }
                        | WorkerChange::Beat { .. }
                        | WorkerChange::SetStreams { .. }
                        | WorkerChange::AnnounceLeaving { .. }
                ) {
                    self.beats.insert(id, line.at_ms);
                }
            }
            HistoryEvent::WriteApplied {
                write: Write::Lease { key, change, .. },
                outcome: WriteOutcome::Done(now),
            } => {
                self.see_lease(key, change, now, line.at_ms);
            }
            _ => {}
        }
    }

    fn see_lease(
        &mut self,
        key: &'a LeaseKey,
        change: &'a LeaseChange,
        now: &StoredRow,
        at_ms: u64,
    ) {
        if let Some(owner) = owner(change) {
            self.writes.insert((key, owner), at_ms);
        }
        match (change, now) {
            (LeaseChange::Take { .. } | LeaseChange::HandOver { .. }, StoredRow::Lease(row)) => {
                self.terms.entry(key).or_default().push((row.term, at_ms));
            }
            // A row that is created again counts its terms from the start.
            (LeaseChange::Delete { .. }, _) => {
                self.terms.remove(key);
            }
            _ => {}
        }
    }

    /// Returns the arrival time of the owner's last write to the row of its lease.
    pub(super) fn wrote_ms(&self, hold: &LeaseToken) -> Option<u64> {
        self.writes.get(&(&hold.key, &hold.owner)).copied()
    }

    /// Returns the time between two moments that a host observed, without its pauses.
    pub(super) fn seen_ms(&self, host: Option<HostId>, from_ms: u64, until_ms: u64) -> u64 {
        let over = host.and_then(|host| self.over.get(&host)).into_iter().flatten();
        let unseen_ms =
            over.map(|(since, until)| (*until).min(until_ms).saturating_sub((*since).max(from_ms)));
        until_ms.saturating_sub(from_ms).saturating_sub(unseen_ms.sum())
    }

    /// Returns true if a delivery under `hold`, whose lease another worker has, is excused by a
    /// pause:
    ///
    /// - the host was paused after the last sign of life of its worker,
    /// - the lease has been taken from it since, and
    /// - by its own clock, its lease time is not over. That is the lease time it declared, or else
    ///   `lease_time_ms`.
    pub(super) fn excuse(&self, line: &HistoryLine, hold: &LeaseToken, lease_time_ms: u64) -> bool {
        let mut terms = self.terms.get(&hold.key).into_iter().flatten();
        let taken = terms.find(|(term, _)| *term > hold.term);
        let kcl_ms = hold.owner.kcl_lease_time_ms();
        let own_ms = kcl_ms.or_else(|| self.lease_times.get(&hold.owner).copied());
        let beat_ms = match kcl_ms {
            Some(_) => self.wrote_ms(hold),
            None => self.beats.get(&hold.owner).copied(),
        };
        let (Some(beat_ms), Some((_, taken_ms))) = (beat_ms, taken) else { return false };
        let pauses = line.host.and_then(|host| self.over.get(&host)).into_iter().flatten();
        // A heartbeat that was in flight may arrive during the pause.
        let mut pauses = pauses.map(|(since_ms, until_ms)| (*since_ms, *until_ms));
        pauses.any(|(since_ms, until_ms)| beat_ms <= until_ms && since_ms <= *taken_ms)
            && self.seen_ms(line.host, beat_ms, line.at_ms) < own_ms.unwrap_or(lease_time_ms)
    }
}

/// Returns the worker for which the change is a sign of life, in KCL's layout.
fn owner(change: &LeaseChange) -> Option<&WorkerId> {
    match change {
        LeaseChange::Take { taker: owner, .. }
        | LeaseChange::Renew { owner, .. }
        | LeaseChange::RefuseHandOver { owner, .. }
        | LeaseChange::AllowHandOver { owner, .. }
        | LeaseChange::Checkpoint { owner, .. }
        | LeaseChange::End { owner, .. } => Some(owner),
        _ => None,
    }
}
