//! A flawed worker: its calls to the store and their replies are altered, or its reader continues.

use super::LeaseFlaw;
use super::reused_id::ReusedWorkerId;
use anabranch::clock::Clock;
use anabranch::lease::{LeaseStore, StoreError, StorePoll};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{
    ApplicationFacts, Deadline, Layout, Lease, LeaseChange, LeaseKey, LeaseListing, LeaseToken,
    LeaseValidity, Nonce, StoredRow, WorkerChange, WorkerId, WorkerRow, WorkerState, Write,
    WriteOutcome, WriteRefusal,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Observations of one worker run, for readers that continue where they should stop.
#[derive(Debug)]
pub struct WorkerFlaws {
    /// The broken rule.
    flaw: LeaseFlaw,
    /// Lease time, in milliseconds.
    lease_time_ms: u64,
    /// Heartbeats of each worker id.
    beats: Mutex<BTreeMap<WorkerId, BeatLog>>,
    /// Terms of which a hand-over or a release was answered.
    given: Mutex<BTreeSet<(LeaseKey, u64)>>,
}

/// Heartbeats of one worker id.
#[derive(Clone, Copy, Debug, Default)]
struct BeatLog {
    /// Last answered counter.
    counter: u64,
    /// Time of the reply to the last successful heartbeat, by the worker's clock.
    answered_ms: u64,
    /// Time at which one was last sent after the deadline.
    renewed_ms: u64,
    /// True once one was refused.
    refused: bool,
}

impl WorkerFlaws {
    /// Creates the state of a new worker run.
    pub fn new(flaw: LeaseFlaw, lease_time_ms: u64) -> Arc<Self> {
        let (beats, given) = (Mutex::default(), Mutex::default());
        Arc::new(Self { flaw, lease_time_ms, beats, given })
    }

    /// Returns true if a reader continues although its lease is lost.
    pub fn ignores_lost_lease(&self) -> bool {
        matches!(self.flaw, LeaseFlaw::RenewsAfterExpiry | LeaseFlaw::DeadlineFromReply)
    }

    /// Returns true if a reader continues although it has finished.
    pub fn ignores_hand_over(&self) -> bool {
        self.flaw == LeaseFlaw::DeliversAfterHandOver
    }

    /// Returns true if a reader may deliver, according to the library (`grip_says`) and the broken
    /// rule.
    pub fn may_deliver(&self, hold: &LeaseToken, grip_says: bool, now_ms: u64) -> bool {
        let beats = self.beats().get(&hold.owner).copied().unwrap_or_default();
        match self.flaw {
            LeaseFlaw::RenewsAfterExpiry => !beats.refused,
            LeaseFlaw::DeadlineFromReply => {
                let deadline = Deadline::new(self.lease_time_ms, beats.answered_ms);
                grip_says
                    || (!beats.refused && deadline.validity_at(now_ms) == LeaseValidity::Valid)
            }
            _ => grip_says,
        }
    }

    /// Returns true if a reader still delivers under a lease token that it has released.
    pub fn goes_on(&self, hold: &LeaseToken, let_go_ms: u64, now_ms: u64) -> bool {
        let given = self.given().contains(&(hold.key.clone(), hold.term));
        self.ignores_hand_over() && !given && now_ms < let_go_ms + self.lease_time_ms / 2
    }

    /// Sends heartbeats under an expired id. Returns true if the reader may continue.
    pub async fn renew<S: LeaseStore>(&self, store: &S, id: &WorkerId, now_ms: u64) -> bool {
        let counter = {
            let mut all = self.beats();
            let beats = all.entry(id.clone()).or_default();
            if beats.refused || self.flaw != LeaseFlaw::RenewsAfterExpiry {
                return !beats.refused;
            }
            if now_ms < beats.renewed_ms + self.lease_time_ms / 3 {
                return true;
            }
            beats.renewed_ms = now_ms;
            beats.counter
        };
        let beat = Write::worker(id, WorkerChange::Beat { counter }, Nonce(now_ms));
        let _ = store.write(&beat).await;
        !self.beats().get(id).is_some_and(|beats| beats.refused)
    }

    fn saw(&self, write: &Write, outcome: &WriteOutcome, now_ms: u64) {
        match (write, outcome) {
            (
                Write::Worker {
                    id,
                    change: WorkerChange::Join { .. } | WorkerChange::Beat { .. },
                    ..
                },
                WriteOutcome::Done(StoredRow::Worker(row)),
            ) => {
                let mut all = self.beats();
                let beats = all.entry(id.clone()).or_default();
                (beats.counter, beats.answered_ms) = (row.counter, now_ms);
            }
            (
                Write::Worker { id, change: WorkerChange::Beat { .. }, .. },
                WriteOutcome::Refused { why, .. },
            ) => {
                let shut_out = matches!(why, WriteRefusal::Fenced | WriteRefusal::Missing);
                self.beats().entry(id.clone()).or_default().refused |= shut_out;
            }
            (
                Write::Lease {
                    key,
                    change: LeaseChange::HandOver { term, .. } | LeaseChange::Release { term, .. },
                    ..
                },
                WriteOutcome::Done(_) | WriteOutcome::Refused { .. },
            ) => {
                self.given().insert((key.clone(), *term));
            }
            _ => {}
        }
    }

    fn beats(&self) -> MutexGuard<'_, BTreeMap<WorkerId, BeatLog>> {
        self.beats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn given(&self) -> MutexGuard<'_, BTreeSet<(LeaseKey, u64)>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A store as a flawed worker uses it.
#[derive(Debug)]
pub struct FlawedWorkerStore<S> {
    /// The store as others use it.
    inner: S,
    /// Observations of this worker run.
    habits: Arc<WorkerFlaws>,
    clock: Clock,
    /// Workers that this one believes that it has fenced.
    believed_fenced: Mutex<BTreeSet<WorkerId>>,
    /// The host's old id, under which every worker run joins.
    id: Mutex<ReusedWorkerId>,
}

impl<S: LeaseStore> FlawedWorkerStore<S> {
    /// Wraps the store for one run of the worker `name`.
    pub fn new(inner: S, habits: Arc<WorkerFlaws>, clock: Clock, name: &str) -> Self {
        let id = Mutex::new(ReusedWorkerId::new(name));
        Self { inner, habits, clock, believed_fenced: Mutex::default(), id }
    }

    fn has(&self, flaw: LeaseFlaw) -> bool {
        self.habits.flaw == flaw
    }

    fn believed_fenced(&self) -> MutexGuard<'_, BTreeSet<WorkerId>> {
        self.believed_fenced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn id(&self) -> MutexGuard<'_, ReusedWorkerId> {
        self.id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seen(&self, mut row: WorkerRow) -> WorkerRow {
        if self.believed_fenced().contains(&row.id) {
            row.state = WorkerState::Fenced;
        }
        if self.has(LeaseFlaw::UsesOwnLeaseTime) {
            row.lease_time_ms = None;
        }
        if self.has(LeaseFlaw::ReusesWorkerId) { self.id().worker(row) } else { row }
    }

    fn seen_lease(&self, row: Lease) -> Lease {
        if self.has(LeaseFlaw::ReusesWorkerId) { self.id().lease(row) } else { row }
    }

    async fn send(&self, write: &Write) -> Result<WriteOutcome, StoreError> {
        match (self.habits.flaw, write) {
            (
                LeaseFlaw::TakesWithoutFence,
                Write::Worker { id, change: WorkerChange::Fence { .. }, .. },
            ) => Ok(match self.inner.worker(id).await? {
                Some(row) => {
                    self.believed_fenced().insert(id.clone());
                    WriteOutcome::Done(StoredRow::Worker(self.seen(row)))
                }
                None => WriteOutcome::Refused {
                    why: WriteRefusal::Missing,
                    now: Some(StoredRow::Absent),
                },
            }),
            (
                LeaseFlaw::TakesFromLiveOwner,
                Write::Lease { key, change: LeaseChange::RequestHandOver { taker, term }, nonce },
            ) => {
                let take = LeaseChange::Take { taker: taker.clone(), term: *term };
                self.inner.write(&Write::lease(key, take, *nonce)).await
            }
            (LeaseFlaw::ReusesWorkerId, _) => self.send_as_before(write).await,
            _ => self.inner.write(write).await,
        }
    }

    /// Sends under the host's old id. A join finds its row there and continues with it.
    async fn send_as_before(&self, write: &Write) -> Result<WriteOutcome, StoreError> {
        match write {
            Write::Worker { id, change: WorkerChange::Join { .. }, .. } => {
                let old = self.id().old().clone();
                let row = self.inner.worker(&old).await?;
                self.id().join(id, row.as_ref().map_or(0, |row| row.counter));
                if let Some(row) = row.filter(WorkerRow::is_alive) {
                    return Ok(WriteOutcome::Done(StoredRow::Worker(self.id().worker(row))));
                }
            }
            // A worker that fences an older join of its own would fence itself.
            Write::Worker { id, change: WorkerChange::Fence { .. }, .. }
                if self.id().is_mine(id) =>
            {
                return Ok(WriteOutcome::Refused {
                    why: WriteRefusal::Fenced,
                    now: Some(StoredRow::Absent),
                });
            }
            _ => {}
        }
        let write = self.id().outgoing(write);
        let outcome = self.inner.write(&write).await?;
        Ok(self.id().incoming(outcome))
    }
}

impl<S: LeaseStore> LeaseStore for FlawedWorkerStore<S> {
    fn layout(&self) -> Layout {
        self.inner.layout()
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        self.inner.prepare().await
    }

    async fn application(&self) -> Result<ApplicationFacts, StoreError> {
        self.inner.application().await
    }

    async fn poll(&self) -> Result<StorePoll, StoreError> {
        let look = self.inner.poll().await?;
        let workers = look.workers.into_iter().map(|row| self.seen(row)).collect();
        Ok(StorePoll { workers, ..look })
    }

    async fn list(&self, stream: &StreamName) -> Result<LeaseListing, StoreError> {
        let rows = self.inner.list(stream).await?;
        Ok(rows.map(|row| self.seen_lease(row)))
    }

    async fn list_recent(
        &self,
        streams: &[StreamName],
    ) -> Result<BTreeMap<StreamName, LeaseListing>, StoreError> {
        let mut all = self.inner.list_recent(streams).await?;
        for rows in all.values_mut() {
            *rows = std::mem::take(rows).map(|row| self.seen_lease(row));
        }
        Ok(all)
    }

    async fn get(&self, key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        Ok(self.inner.get(key).await?.map(|row| self.seen_lease(row)))
    }

    async fn worker(&self, id: &WorkerId) -> Result<Option<WorkerRow>, StoreError> {
        let asked = if self.has(LeaseFlaw::ReusesWorkerId) && self.id().is_mine(id) {
            self.id().old().clone()
        } else {
            id.clone()
        };
        Ok(self.inner.worker(&asked).await?.map(|row| self.seen(row)))
    }

    async fn write(&self, write: &Write) -> Result<WriteOutcome, StoreError> {
        let outcome = self.send(write).await?;
        self.habits.saw(write, &outcome, self.clock.now_ms());
        Ok(outcome)
    }

    async fn read_back(&self, write: &Write) -> Result<StoredRow, StoreError> {
        let stored = match write {
            Write::Lease { key, .. } => StoredRow::of_lease(self.get(key).await?.as_ref()),
            Write::Worker { id, .. } => StoredRow::of_worker(self.worker(id).await?.as_ref()),
            Write::Stream { .. } => self.inner.read_back(write).await?,
        };
        let lies = self.has(LeaseFlaw::ReadBackComparesCounterOnly);
        Ok(if lies { by_the_counter(write, stored) } else { stored })
    }
}

/// Returns the row with this write's nonce if its counter has the value that the write would have
/// produced.
fn by_the_counter(write: &Write, stored: StoredRow) -> StoredRow {
    let (Write::Lease { change, nonce, .. }, StoredRow::Lease(mut row)) = (write, stored.clone())
    else {
        return stored;
    };
    let (owner, made) = match change {
        LeaseChange::Take { taker, term } => (Some(taker), term + 1),
        LeaseChange::HandOver { to, term, .. } => (Some(to), term + 1),
        LeaseChange::Release { term, .. } => (None, term + 1),
        LeaseChange::Checkpoint { owner, term, .. } | LeaseChange::End { owner, term, .. } => {
            (Some(owner), *term)
        }
        _ => return stored,
    };
    if row.term != made {
        return stored;
    }
    row.owner = owner.cloned();
    row.nonce = *nonce;
    StoredRow::Lease(row)
}
