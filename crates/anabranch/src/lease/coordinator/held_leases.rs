//! The leases that this worker holds under its current id.

use super::membership::Membership;
use crate::lease::handle::HeldLease;
use anabranch_model::lease::{LeaseKey, WorkerId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// The leases that this worker holds.
#[derive(Debug)]
pub(super) struct HeldLeases {
    inner: Mutex<HeldLeasesState>,
    /// Notified of every change, for waiters until leases are gone.
    changed: watch::Sender<()>,
}

#[derive(Debug)]
struct HeldLeasesState {
    /// The current membership.
    member: Arc<Membership>,
    held: BTreeMap<LeaseKey, Arc<HeldLease>>,
    /// Lost leases whose handles have not come back. This worker does not read these shards again
    /// before they do.
    astray: Vec<Arc<HeldLease>>,
    /// Number of takes without an answer yet. Each may still become a lease.
    takes: usize,
    /// KCL's layout: leases that this worker asked for and may still get, with the counter at its
    /// last request. KCL has no row that says that a worker has left, so it must not leave its name
    /// behind.
    asked: BTreeMap<LeaseKey, u64>,
}

/// A take in flight, until its answer is recorded in `HeldLeases`.
#[must_use = "dropped, the take counts as answered"]
pub(super) struct TakeInFlight<'a>(&'a HeldLeases);

impl Drop for TakeInFlight<'_> {
    fn drop(&mut self) {
        self.0.lock().takes -= 1;
        self.0.changed.send_replace(());
    }
}

impl HeldLeases {
    pub(super) fn new(member: Arc<Membership>) -> Self {
        let (held, astray, asked) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        let inner = HeldLeasesState { member, held, astray, takes: 0, asked };
        Self { inner: Mutex::new(inner), changed: watch::Sender::new(()) }
    }

    /// Returns the current membership.
    pub(super) fn member(&self) -> Arc<Membership> {
        self.lock().member.clone()
    }

    /// Returns all held leases.
    pub(super) fn all(&self) -> Vec<Arc<HeldLease>> {
        self.lock().held.values().cloned().collect()
    }

    /// Returns the keys of the held leases.
    pub(super) fn keys(&self) -> Vec<LeaseKey> {
        self.lock().held.keys().cloned().collect()
    }

    pub(super) fn get(&self, key: &LeaseKey) -> Option<Arc<HeldLease>> {
        self.lock().held.get(key).cloned()
    }

    /// Returns the leases that the planner treats as running: held leases, and lost ones whose
    /// reading has not stopped.
    pub(super) fn running(&self) -> BTreeSet<LeaseKey> {
        let mut inner = self.lock();
        inner.astray.retain(|held| !held.is_idle());
        let astray = inner.astray.iter().map(|held| held.taken_row().key.clone());
        astray.chain(inner.held.keys().cloned()).collect()
    }

    /// Registers a take that is about to be sent.
    pub(super) fn begin_take(&self) -> TakeInFlight<'_> {
        self.lock().takes += 1;
        TakeInFlight(self)
    }

    /// Records that this worker asks for a lease whose row has the counter `term`.
    pub(super) fn note_request(&self, key: &LeaseKey, term: u64) {
        self.lock().asked.insert(key.clone(), term);
    }

    /// Records that this worker no longer asks for a lease.
    pub(super) fn forget_request(&self, key: &LeaseKey) {
        self.lock().asked.remove(key);
        self.changed.send_replace(());
    }

    /// Returns the leases that this worker asked for and may still get, with the counters at which
    /// it asked.
    pub(super) fn requests(&self) -> Vec<(LeaseKey, u64)> {
        self.lock().asked.iter().map(|(key, term)| (key.clone(), *term)).collect()
    }

    /// Adds a lease that was taken under `member`. Returns false if the worker has another id by
    /// now: the lease then belongs to an id that is no longer alive.
    pub(super) fn insert(&self, member: &Membership, held: Arc<HeldLease>) -> bool {
        let mut inner = self.lock();
        let current = inner.member.id == member.id;
        if current {
            inner.asked.remove(&held.taken_row().key);
            // An earlier take of the same lease must not deliver beside the new one.
            if let Some(earlier) = inner.held.insert(held.taken_row().key.clone(), held) {
                earlier.mark_lost();
                inner.astray.push(earlier);
            }
            self.changed.send_replace(());
        }
        current
    }

    /// Forgets a lease. Its handle may still be out.
    pub(super) fn remove(&self, held: &Arc<HeldLease>) {
        let mut inner = self.lock();
        let key = &held.taken_row().key;
        if inner.held.get(key).is_some_and(|known| Arc::ptr_eq(known, held)) {
            inner.held.remove(key);
            inner.astray.push(held.clone());
            self.changed.send_replace(());
        }
    }

    /// Starts over under another membership. Returns the leases that were held.
    pub(super) fn rejoin(&self, member: Arc<Membership>) -> Vec<Arc<HeldLease>> {
        let mut inner = self.lock();
        inner.member = member;
        self.forget_all(&mut inner)
    }

    /// Forgets every lease held under `id`. Returns them.
    pub(super) fn take_all(&self, id: &WorkerId) -> Vec<Arc<HeldLease>> {
        let mut inner = self.lock();
        if inner.member.id == *id { self.forget_all(&mut inner) } else { Vec::new() }
    }

    fn forget_all(&self, inner: &mut HeldLeasesState) -> Vec<Arc<HeldLease>> {
        let lost: Vec<_> = std::mem::take(&mut inner.held).into_values().collect();
        // Leases without a handle count too: one may be about to be handed out.
        inner.astray.extend(lost.iter().cloned());
        self.changed.send_replace(());
        lost
    }

    /// Waits until every lease for which `of` holds is gone, no take is in flight and no such lease
    /// is asked for.
    pub(super) async fn wait_until_released(&self, of: impl Fn(&LeaseKey) -> bool) {
        let mut changed = self.changed.subscribe();
        while self.has_or_takes(&of) {
            // The sender lives as long as `self`.
            let _ = changed.changed().await;
        }
    }

    fn has_or_takes(&self, of: impl Fn(&LeaseKey) -> bool) -> bool {
        let inner = self.lock();
        inner.takes > 0 || inner.held.keys().any(&of) || inner.asked.keys().any(of)
    }

    fn lock(&self) -> MutexGuard<'_, HeldLeasesState> {
        // Each change is one insertion or removal, so a panic leaves a consistent state.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
