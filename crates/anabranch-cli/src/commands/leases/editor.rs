//! Changes of lease rows by an operator, through the same conditional writes that workers use.

use super::snapshot::TargetLease;
use crate::failure::CommandFailure;
use anabranch::clock::{Clock, Rng};
use anabranch::lease::{AnyStore, LeaseStore, StoreError};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{
    Checkpoint, Layout, Lease, LeaseChange, LeaseKey, NewLease, Resolution, StoredRow,
    StreamChange, StreamFacts, WorkerChange, WorkerId, WorkerRow, Write, WriteOutcome,
    WriteRefusal, resolve,
};
use anabranch_model::position::Position;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Attempts of a write whose result stays unknown.
const TRIES: usize = 5;
/// Attempts of a call that the store could not answer.
const ATTEMPTS: u32 = 8;
/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(500);

/// Worker name under which an operator's command holds leases briefly.
const NAME: &str = "anabranch-leases";

/// Returns true if the worker is an operator's command.
pub(crate) fn is(id: &WorkerId) -> bool {
    id.as_str().strip_prefix(NAME).is_some_and(|rest| rest.starts_with('/'))
}

/// Changes rows. Every write is conditional on the row that was shown: if a worker has changed it
/// meanwhile, the write fails instead of overwriting.
pub(super) struct LeaseEditor<'a> {
    store: &'a AnyStore,
    /// Worker id under which leases are held briefly.
    me: WorkerId,
    /// RNG for names and nonces.
    chance: Rng,
    /// Command recorded in the marker row.
    command: Option<String>,
    /// True once the marker row exists.
    announced: AtomicBool,
}

impl<'a> LeaseEditor<'a> {
    /// Creates an editor for a change with one write per lease.
    pub(super) fn new(store: &'a AnyStore) -> Self {
        let chance = Rng::of_system();
        let me = WorkerId::of_join(NAME, chance.bits());
        Self { store, me, chance, command: None, announced: AtomicBool::new(false) }
    }

    /// Creates an editor for a change with many writes. The first write creates a marker row that
    /// names the `command`, and [`remove_marker`](Self::remove_marker) deletes it. If the command
    /// is killed in between, `doctor` finds the row. KCL's table can't store one.
    pub(super) fn with_marker(store: &'a AnyStore, command: String) -> Self {
        let command = (store.layout() == Layout::Native).then_some(command);
        Self { command, ..Self::new(store) }
    }

    async fn write_marker(&self) -> Result<(), CommandFailure> {
        let Some(command) = &self.command else { return Ok(()) };
        if !self.announced.load(Ordering::Relaxed) {
            let change = WorkerChange::Join {
                host: command.clone(),
                started_ms: Clock::machine().wall_ms(),
                reads: Some(Vec::new()),
                lease_time_ms: None,
            };
            self.is_own(change).await?;
            self.announced.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Removes the marker row after the change is complete.
    pub(super) async fn remove_marker(&self) -> Result<(), CommandFailure> {
        if self.announced.load(Ordering::Relaxed) {
            self.is_own(WorkerChange::Leave { counter: 0 }).await?;
            self.is_own(WorkerChange::Delete).await?;
        }
        Ok(())
    }

    async fn is_own(&self, change: WorkerChange) -> Result<(), CommandFailure> {
        let write = Write::worker(&self.me, change, self.chance.nonce());
        self.write(&write, &format!("the row of this command ({})", self.me)).await.map(drop)
    }

    /// Changes the row to the wanted state, or creates it.
    pub(super) async fn place(
        &self,
        stream: &StreamName,
        wanted: &TargetLease,
        now: Option<&Lease>,
    ) -> Result<(), CommandFailure> {
        self.write_marker().await?;
        let key = LeaseKey { stream: stream.clone(), shard: wanted.shard.clone() };
        match (self.store.layout(), now) {
            (Layout::Kcl, Some(now)) => self.note_kcl(now, wanted).await?,
            (Layout::Native, Some(now)) if now.checkpoint.may_become(&wanted.checkpoint) => {
                self.note_native(now, wanted).await?;
            }
            (Layout::Native, Some(now)) => {
                // A checkpoint never moves back, so the row is ended and recreated.
                self.remove(now).await?;
                let made = self.create(&key, wanted).await;
                made.map_err(|failure| failure.after(format!("{key} has no lease now")))?;
            }
            (_, None) => self.create(&key, wanted).await?,
        }
        if now.map_or(!wanted.children.is_empty(), |now| now.children != wanted.children) {
            self.change(&key, LeaseChange::NoteChildren(wanted.children.clone())).await?;
        }
        Ok(())
    }

    /// Changes a row of KCL's layout with one write conditional on the counter, which keeps unknown
    /// attributes.
    async fn note_kcl(&self, now: &Lease, wanted: &TargetLease) -> Result<(), CommandFailure> {
        let to = Checkpoint::at(wanted.checkpoint.lowest());
        let change = LeaseChange::Checkpoint {
            owner: self.me.clone(),
            term: now.term,
            replaces: to.clone(),
            to,
            pending: wanted.pending.clone(),
            bytes_per_second: None,
        };
        let after = self.change(&now.key, change).await?;
        match after {
            Some(lease) if lease.owner.is_some() => self.release(&lease).await,
            _ => Ok(()),
        }
    }

    async fn note_native(&self, now: &Lease, wanted: &TargetLease) -> Result<(), CommandFailure> {
        let held = self.take(now).await?;
        let change = if wanted.checkpoint.is_shard_end() {
            let replaces = held.checkpoint.clone();
            LeaseChange::End { owner: self.me.clone(), term: held.term, replaces }
        } else {
            LeaseChange::Checkpoint {
                owner: self.me.clone(),
                term: held.term,
                replaces: held.checkpoint.clone(),
                to: wanted.checkpoint.clone(),
                pending: wanted.pending.clone(),
                bytes_per_second: None,
            }
        };
        let held = self.change(&held.key, change).await?.unwrap_or(held);
        self.release(&held).await
    }

    async fn create(&self, key: &LeaseKey, wanted: &TargetLease) -> Result<(), CommandFailure> {
        let range = wanted.range.ok_or_else(|| {
            CommandFailure::usage(format!(
                "the row of {} can't be created, because its hash range is unknown",
                wanted.shard
            ))
        })?;
        let new = NewLease {
            shard: wanted.shard.clone(),
            parents: wanted.parents.clone(),
            range,
            checkpoint: wanted.checkpoint.lowest(),
        };
        let made = self.change(key, LeaseChange::Create(Box::new(new))).await?;
        let lanes = wanted.checkpoint.lanes().len() > 1 && self.store.layout() == Layout::Native;
        match made {
            Some(made) if lanes || wanted.pending.is_some() => match self.store.layout() {
                Layout::Native => self.note_native(&made, wanted).await,
                Layout::Kcl => self.note_kcl(&made, wanted).await,
            },
            _ => Ok(()),
        }
    }

    /// Removes a row.
    pub(super) async fn remove(&self, now: &Lease) -> Result<(), CommandFailure> {
        self.write_marker().await?;
        if self.store.layout() == Layout::Kcl || now.is_ended() {
            return self.delete(now).await;
        }
        let held = self.take(now).await?;
        // From here on, an active shard may look done, and no worker repairs that.
        let removed = self.end_and_delete(held).await;
        removed.map_err(|failure| {
            failure.after(format!("{} may be at SHARD_END, and then no worker reads it", now.key))
        })
    }

    async fn end_and_delete(&self, held: Lease) -> Result<(), CommandFailure> {
        let replaces = held.checkpoint.clone();
        let end = LeaseChange::End { owner: self.me.clone(), term: held.term, replaces };
        let ended = self.change(&held.key, end).await?.unwrap_or(held);
        self.delete(&ended).await
    }

    async fn delete(&self, row: &Lease) -> Result<(), CommandFailure> {
        self.change(&row.key, LeaseChange::Delete { term: row.term }).await.map(drop)
    }

    async fn take(&self, now: &Lease) -> Result<Lease, CommandFailure> {
        let take = LeaseChange::Take { taker: self.me.clone(), term: now.term };
        let taken = self.change(&now.key, take).await?;
        taken.ok_or_else(|| CommandFailure::result(format!("the row of {} is gone", now.key)))
    }

    /// Releases the lease from its owner.
    pub(super) async fn release(&self, now: &Lease) -> Result<(), CommandFailure> {
        let Some(owner) = now.owner.clone() else { return Ok(()) };
        self.change(&now.key, LeaseChange::Release { owner, term: now.term }).await.map(drop)
    }

    /// Evicts a worker without a heartbeat.
    pub(super) async fn fence(&self, worker: &WorkerRow) -> Result<(), CommandFailure> {
        let change = WorkerChange::Fence { counter: worker.counter };
        let write = Write::worker(&worker.id, change, self.chance.nonce());
        self.write(&write, &format!("worker {}", worker.id)).await.map(drop)
    }

    /// Stores the facts about a stream.
    pub(super) async fn remember(
        &self,
        stream: &StreamName,
        facts: StreamFacts,
    ) -> Result<(), CommandFailure> {
        let StreamFacts { t0_ms, created_ms, first_sync_done } = facts;
        let what = format!("stream {stream}");
        let start = Write::stream(stream, StreamChange::NoteStart { t0_ms, created_ms });
        self.write(&start, &what).await?;
        if first_sync_done {
            let mark = Write::stream(stream, StreamChange::MarkSynced { created_ms });
            self.write(&mark, &what).await?;
        }
        Ok(())
    }

    /// Changes a lease. Returns the resulting row.
    async fn change(
        &self,
        key: &LeaseKey,
        change: LeaseChange,
    ) -> Result<Option<Lease>, CommandFailure> {
        let write = Write::lease(key, change, self.chance.nonce());
        match self.write(&write, &key.to_string()).await? {
            StoredRow::Lease(lease) => Ok(Some(*lease)),
            _ => Ok(None),
        }
    }

    /// Retries a write until its result is known.
    async fn write(&self, write: &Write, what: &str) -> Result<StoredRow, CommandFailure> {
        let layout = self.store.layout();
        let mut lost = false;
        for _ in 0..TRIES {
            let (seen, refusal) = match retry_call(|| self.store.write(write)).await? {
                WriteOutcome::Done(stored) => return Ok(stored),
                // The previous attempt may have been applied.
                WriteOutcome::Refused { why, now: Some(now) } if lost => (now, Some(why)),
                WriteOutcome::Refused { why, .. } => return Err(left(what, why)),
                WriteOutcome::Unknown => {
                    lost = true;
                    (retry_call(|| self.store.read_back(write)).await?, None)
                }
            };
            match (resolve(layout, write, &seen), refusal) {
                (Resolution::Applied, _) => return Ok(seen),
                (_, Some(why)) => return Err(left(what, why)),
                (_, None) => {}
            }
        }
        Err(CommandFailure::result(format!(
            "the outcome of writing {what} is unknown: check it, and try again"
        )))
    }
}

/// Retries a call for a while, so that a briefly unavailable store does not leave a change
/// incomplete.
async fn retry_call<T, F>(call: impl Fn() -> F) -> Result<T, CommandFailure>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut attempt = 1;
    loop {
        // The combined future of all stores is large.
        match Box::pin(call()).await {
            Err(error) if attempt < ATTEMPTS && error.is_retryable() => attempt += 1,
            answer => return answer.map_err(CommandFailure::from),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn left(what: &str, why: WriteRefusal) -> CommandFailure {
    CommandFailure::result(format!(
        "{what} was changed in the meantime and is left unmodified: {why}; check whether a worker \
         is alive"
    ))
}

/// Returns the wanted row with a new position and otherwise unchanged.
pub(super) fn moved_to(wanted: TargetLease, to: Position) -> TargetLease {
    TargetLease { checkpoint: Checkpoint::at(to), pending: None, ..wanted }
}
