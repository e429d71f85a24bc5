//! The leases that this worker holds, under its present id.

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
    /// Tells of every change to those that wait until leases are gone.
    changed: watch::Sender<()>,
}

#[derive(Debug)]
struct HeldLeasesState {
    /// The present join.
    member: Arc<Membership>,
    /// The leases, by key.
    held: BTreeMap<LeaseKey, Arc<HeldLease>>,
    /// Lost leases whose grips have not come back. Nobody here reads these shards again before.
    astray: Vec<Arc<HeldLease>>,
    /// Takes that were sent and are not answered: each may yet become a lease.
    takes: usize,
    /// KCL's layout: leases that this worker asked for and may yet get. There no row says that it
    /// has left, so it must not leave a name behind. With the counter at which it asked last.
    asked: BTreeMap<LeaseKey, u64>,
}

/// A take on its way, until its answer is among the holdings.
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

    /// The present join.
    pub(super) fn member(&self) -> Arc<Membership> {
        self.lock().member.clone()
    }

    /// All leases that are held.
    pub(super) fn all(&self) -> Vec<Arc<HeldLease>> {
        self.lock().held.values().cloned().collect()
    }

    /// Their keys.
    pub(super) fn keys(&self) -> Vec<LeaseKey> {
        self.lock().held.keys().cloned().collect()
    }

    /// One lease.
    pub(super) fn get(&self, key: &LeaseKey) -> Option<Arc<HeldLease>> {
        self.lock().held.get(key).cloned()
    }

    /// What the planner is told to be running: what is held, and what was lost and has not stopped.
    pub(super) fn running(&self) -> BTreeSet<LeaseKey> {
        let mut inner = self.lock();
        inner.astray.retain(|held| !held.is_idle());
        let astray = inner.astray.iter().map(|held| held.taken_row().key.clone());
        astray.chain(inner.held.keys().cloned()).collect()
    }

    /// Notes that a take goes out.
    pub(super) fn begin_take(&self) -> TakeInFlight<'_> {
        self.lock().takes += 1;
        TakeInFlight(self)
    }

    /// Notes that this worker asks for a lease whose row has this counter.
    pub(super) fn note_request(&self, key: &LeaseKey, term: u64) {
        self.lock().asked.insert(key.clone(), term);
    }

    /// Notes that a lease is no longer asked for.
    pub(super) fn forget_request(&self, key: &LeaseKey) {
        self.lock().asked.remove(key);
        self.changed.send_replace(());
    }

    /// The leases that this worker asked for and may yet get, and the counters at which it asked.
    pub(super) fn requests(&self) -> Vec<(LeaseKey, u64)> {
        self.lock().asked.iter().map(|(key, term)| (key.clone(), *term)).collect()
    }

    /// Adds a lease that was taken under `member`. `false` if that is no longer this worker: then
    /// the lease is nobody's that lives.
    pub(super) fn insert(&self, member: &Membership, held: Arc<HeldLease>) -> bool {
        let mut inner = self.lock();
        let current = inner.member.id == member.id;
        if current {
            inner.asked.remove(&held.taken_row().key);
            inner.held.insert(held.taken_row().key.clone(), held);
            self.changed.send_replace(());
        }
        current
    }

    /// Forgets a lease. Its grip may still be out.
    pub(super) fn remove(&self, held: &Arc<HeldLease>) {
        let mut inner = self.lock();
        let key = &held.taken_row().key;
        if inner.held.get(key).is_some_and(|known| Arc::ptr_eq(known, held)) {
            inner.held.remove(key);
            inner.astray.push(held.clone());
            self.changed.send_replace(());
        }
    }

    /// Begins anew under another join. Returns what was held.
    pub(super) fn rejoin(&self, member: Arc<Membership>) -> Vec<Arc<HeldLease>> {
        let mut inner = self.lock();
        inner.member = member;
        self.forget_all(&mut inner)
    }

    /// Forgets every lease. Returns what was held.
    pub(super) fn take_all(&self, id: &WorkerId) -> Vec<Arc<HeldLease>> {
        let mut inner = self.lock();
        if inner.member.id == *id { self.forget_all(&mut inner) } else { Vec::new() }
    }

    fn forget_all(&self, inner: &mut HeldLeasesState) -> Vec<Arc<HeldLease>> {
        let lost: Vec<_> = std::mem::take(&mut inner.held).into_values().collect();
        // Also those whose grip is not out: it may be about to be.
        inner.astray.extend(lost.iter().cloned());
        self.changed.send_replace(());
        lost
    }

    /// Waits until every lease for which `of` holds is gone, and none is on its way or asked for.
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
        // Each change is one insertion or removal, so a panic leaves no half of one.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
