//! A lease store as a flawed consumer sees it: calls and replies are altered.

use super::consumer::ConsumerFlaw;
use anabranch::lease::{LeaseStore, StoreError, StorePoll};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{
    ApplicationFacts, Checkpoint, HandOver, Layout, Lease, LeaseChange, LeaseKey, LeaseListing,
    NewLease, Nonce, StoredRow, WorkerChange, WorkerId, WorkerRow, WorkerState, Write,
    WriteOutcome, WriteRefusal,
};
use anabranch_model::position::Position;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An intermittent flaw affects one in this many writes.
const NOW_AND_THEN: u64 = 4;

/// A lease store whose replies may be false.
#[derive(Debug)]
pub struct FlawedStore<S> {
    inner: S,
    /// The broken rule.
    flaw: ConsumerFlaw,
    /// Ids under which this worker run has joined.
    mine: Mutex<BTreeSet<WorkerId>>,
    /// Leases of this worker run as it last saw them, for one that believes that it still holds
    /// them.
    believed: Mutex<BTreeMap<LeaseKey, Lease>>,
    /// True once the worker was fenced.
    fenced: AtomicBool,
    /// Number of writes that the flaw applies to.
    writes: AtomicU64,
}

impl<S: LeaseStore> FlawedStore<S> {
    /// Wraps a store with one flaw or none.
    pub fn new(inner: S, flaw: ConsumerFlaw) -> Self {
        Self {
            inner,
            flaw,
            mine: Mutex::default(),
            believed: Mutex::default(),
            fenced: AtomicBool::new(false),
            writes: AtomicU64::new(0),
        }
    }

    /// Returns the broken rule.
    pub(crate) fn flaw(&self) -> ConsumerFlaw {
        self.flaw
    }

    async fn listed(&self, mut rows: LeaseListing) -> LeaseListing {
        match self.flaw {
            ConsumerFlaw::PassesBeforeTheDrain => self.pass_at_once(&rows.rows).await,
            ConsumerFlaw::HidesALease => drop(rows.rows.pop()),
            ConsumerFlaw::MissingRowCountsAsEnded => rows.rows.extend(ended_parents(&rows.rows)),
            _ => {}
        }
        rows.map(|row| self.shown(row))
    }

    fn shown(&self, mut row: Lease) -> Lease {
        if self.flaw == ConsumerFlaw::StartsAfterOneParent {
            row.parents.truncate(1);
        }
        if self.flaw == ConsumerFlaw::GoesOnWhenFenced {
            return self.as_believed(row);
        }
        row
    }

    /// Returns a lease of this worker run as it was before the worker was fenced.
    fn as_believed(&self, row: Lease) -> Lease {
        let mut believed = self.believed.lock().unwrap_or_else(PoisonError::into_inner);
        if self.fenced.load(Ordering::Relaxed) {
            return believed.get(&row.key).cloned().unwrap_or(row);
        }
        if row.owner.as_ref().is_some_and(|owner| self.mine().contains(owner)) {
            believed.insert(row.key.clone(), row.clone());
        } else {
            believed.remove(&row.key);
        }
        row
    }

    /// Returns true if the flaw affects this write.
    fn now_and_then(&self) -> bool {
        self.writes.fetch_add(1, Ordering::Relaxed) % NOW_AND_THEN == NOW_AND_THEN - 1
    }

    fn mine(&self) -> MutexGuard<'_, BTreeSet<WorkerId>> {
        self.mine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the outcome as if the checkpoint had been stored.
    async fn as_if_stored(
        &self,
        key: &LeaseKey,
        to: &Checkpoint,
        nonce: Nonce,
    ) -> Result<WriteOutcome, StoreError> {
        Ok(match self.inner.get(key).await? {
            Some(row) => {
                let row = Lease { checkpoint: to.clone(), nonce, ..row };
                WriteOutcome::Done(StoredRow::Lease(Box::new(row)))
            }
            None => {
                WriteOutcome::Refused { why: WriteRefusal::Missing, now: Some(StoredRow::Absent) }
            }
        })
    }

    /// Hands over at once all leases that other workers have requested.
    async fn pass_at_once(&self, rows: &[Lease]) {
        for row in rows {
            let (Some(owner), HandOver::Requested { taker }) = (&row.owner, &row.hand_over) else {
                continue;
            };
            if self.mine().contains(owner) {
                let (owner, to, term) = (owner.clone(), taker.clone(), row.term);
                let pass = LeaseChange::HandOver { owner, term, to };
                let _ = self.inner.write(&Write::lease(&row.key, pass, Nonce(term))).await;
            }
        }
    }

    /// Returns the write that is sent instead, or the outcome that the flaw reports without a
    /// write.
    async fn flawed_write(&self, write: &Write) -> Result<Result<Write, WriteOutcome>, StoreError> {
        use ConsumerFlaw as Flaw;
        let Write::Lease { key, change, nonce } = write else { return Ok(Ok(write.clone())) };
        let lease = |change| Write::lease(key, change, *nonce);
        Ok(match (self.flaw, change) {
            (Flaw::ChildAtLatest, LeaseChange::Create(new)) if !new.parents.is_empty() => {
                let checkpoint = Position::Latest;
                let new = NewLease { checkpoint, ..(**new).clone() };
                Ok(lease(LeaseChange::Create(Box::new(new))))
            }
            (Flaw::ForgetsAChild, LeaseChange::Create(new)) if forgets(new) => {
                let row = (**new).clone().into_lease(&key.stream);
                Err(WriteOutcome::Done(StoredRow::Lease(Box::new(Lease { nonce: *nonce, ..row }))))
            }
            (Flaw::AcksWithoutStoring, LeaseChange::Checkpoint { to, .. })
                if self.now_and_then() =>
            {
                Err(self.as_if_stored(key, to, *nonce).await?)
            }
            (Flaw::KeepsLatest, LeaseChange::Checkpoint { to, replaces, .. })
                if is_moment(to) && *replaces == Position::Latest =>
            {
                Err(self.as_if_stored(key, to, *nonce).await?)
            }
            (
                Flaw::StoresTheFurthestLane | Flaw::StoresTheSlowestLane,
                LeaseChange::Checkpoint { to, .. },
            ) => {
                let lanes = to.lanes();
                let furthest = lanes.iter().copied().max().unwrap_or(Position::TrimHorizon);
                let furthest_too = self.flaw == Flaw::StoresTheFurthestLane;
                let at = if furthest_too { furthest } else { to.lowest() };
                let mut change = change.clone();
                if let LeaseChange::Checkpoint { to, .. } = &mut change {
                    *to = Checkpoint::of_lanes(vec![at; lanes.len()]).unwrap_or(to.clone());
                }
                Ok(lease(change))
            }
            (Flaw::EndsTooEarly, LeaseChange::Checkpoint { owner, term, replaces, .. })
                if self.now_and_then() =>
            {
                let (owner, term, replaces) = (owner.clone(), *term, replaces.clone());
                Ok(lease(LeaseChange::End { owner, term, replaces }))
            }
            (Flaw::TakesFromALiveOwner, LeaseChange::RequestHandOver { taker, term }) => {
                Ok(lease(LeaseChange::Take { taker: taker.clone(), term: *term }))
            }
            (Flaw::NeverAsks, LeaseChange::RequestHandOver { .. }) => {
                let now = self.inner.get(key).await?;
                let now = Some(StoredRow::of_lease(now.as_ref()));
                Err(WriteOutcome::Refused { why: WriteRefusal::HandOverRefused, now })
            }
            _ => Ok(write.clone()),
        })
    }

    /// Returns the outcome that the worker sees.
    async fn flawed_outcome(
        &self,
        write: &Write,
        outcome: WriteOutcome,
    ) -> Result<WriteOutcome, StoreError> {
        use ConsumerFlaw as Flaw;
        Ok(match (self.flaw, write, outcome) {
            (_, _, WriteOutcome::Done(StoredRow::Lease(row))) => {
                WriteOutcome::Done(StoredRow::Lease(Box::new(self.shown(*row))))
            }
            (
                Flaw::UnknownCountsAsStored,
                Write::Lease { key, change: LeaseChange::Checkpoint { to, .. }, nonce },
                WriteOutcome::Unknown,
            ) => self.as_if_stored(key, to, *nonce).await?,
            (
                Flaw::GoesOnWhenFenced,
                Write::Worker { change: WorkerChange::Beat { counter }, nonce, .. },
                WriteOutcome::Refused { now: Some(StoredRow::Worker(row)), .. },
            ) => {
                self.fenced.store(true, Ordering::Relaxed);
                let (counter, state) = (counter + 1, WorkerState::Alive);
                WriteOutcome::Done(StoredRow::Worker(WorkerRow {
                    counter,
                    state,
                    nonce: *nonce,
                    ..row
                }))
            }
            (_, _, outcome) => outcome,
        })
    }
}

fn is_moment(checkpoint: &Checkpoint) -> bool {
    matches!(checkpoint.lowest(), Position::AtTimestamp(_))
}

/// Returns a row at its end for a shard that has no row.
fn ended(key: &LeaseKey) -> Lease {
    let new = NewLease {
        shard: key.shard.clone(),
        parents: Vec::new(),
        range: anabranch_model::hash::HashRange::ALL,
        checkpoint: Position::TrimHorizon,
    };
    let checkpoint = Checkpoint::at(Position::ShardEnd);
    Lease { checkpoint, ..new.into_lease(&key.stream) }
}

/// Returns rows at their end for the parents that have no row.
fn ended_parents(rows: &[Lease]) -> Vec<Lease> {
    let keys: BTreeSet<&LeaseKey> = rows.iter().map(|row| &row.key).collect();
    let parents = rows.iter().flat_map(|row| {
        row.parents.iter().map(|parent| LeaseKey { shard: parent.clone(), ..row.key.clone() })
    });
    let missing: BTreeSet<LeaseKey> = parents.filter(|key| !keys.contains(key)).collect();
    missing.iter().map(ended).collect()
}

/// Returns true if this is the second of two children.
fn forgets(new: &NewLease) -> bool {
    let number = new.shard.as_str().chars().last().and_then(|digit| digit.to_digit(10));
    !new.parents.is_empty() && number.is_some_and(|number| number % 2 == 1)
}

impl<S: LeaseStore> LeaseStore for FlawedStore<S> {
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
        self.inner.poll().await
    }

    async fn list(&self, stream: &StreamName) -> Result<LeaseListing, StoreError> {
        Ok(self.listed(self.inner.list(stream).await?).await)
    }

    async fn list_recent(
        &self,
        streams: &[StreamName],
    ) -> Result<BTreeMap<StreamName, LeaseListing>, StoreError> {
        let mut all = self.inner.list_recent(streams).await?;
        for rows in all.values_mut() {
            *rows = self.listed(std::mem::take(rows)).await;
        }
        Ok(all)
    }

    async fn get(&self, key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        let row = self.inner.get(key).await?.map(|row| self.shown(row));
        Ok(match self.flaw {
            ConsumerFlaw::MissingRowCountsAsEnded => row.or_else(|| Some(ended(key))),
            _ => row,
        })
    }

    async fn worker(&self, id: &WorkerId) -> Result<Option<WorkerRow>, StoreError> {
        self.inner.worker(id).await
    }

    async fn read_back(&self, write: &Write) -> Result<StoredRow, StoreError> {
        self.inner.read_back(write).await
    }

    async fn write(&self, write: &Write) -> Result<WriteOutcome, StoreError> {
        if let Write::Worker { id, change: WorkerChange::Join { .. }, .. } = write {
            self.mine().insert(id.clone());
        }
        match self.flawed_write(write).await? {
            Ok(sent) => {
                let outcome = self.inner.write(&sent).await?;
                self.flawed_outcome(write, outcome).await
            }
            Err(answer) => Ok(answer),
        }
    }
}
