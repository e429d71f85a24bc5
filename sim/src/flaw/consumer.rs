//! A store that shows a consumer what is not so, as if one of its own rules were broken.

use anabranch::lease::{LeaseStore, Look, StoreError};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{
    Application, Checkpoint, Layout, Lease, LeaseChange, LeaseKey, NewLease, Outcome, Stored,
    Worker, WorkerId, Write,
};
use anabranch_model::position::Position;
use std::fmt;

/// One rule of the consumer that is broken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum ConsumerFlaw {
    /// None is.
    #[default]
    None,
    /// A merged child starts after one of its two parents.
    StartsAfterOneParent,
    /// A parent without a row counts as ended.
    MissingRowCountsAsEnded,
    /// The rows of children start at LATEST.
    ChildAtLatest,
    /// A session delivers on after its worker took the lease again.
    OldSessionGoesOn,
}

impl ConsumerFlaw {
    /// Every flaw.
    pub const ALL: [Self; 4] = [
        Self::StartsAfterOneParent,
        Self::MissingRowCountsAsEnded,
        Self::ChildAtLatest,
        Self::OldSessionGoesOn,
    ];

    /// The flaw of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|flaw| flaw.to_string() == name)
    }
}

impl fmt::Display for ConsumerFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}"))
    }
}

/// A store that may show what is not so.
#[derive(Debug)]
pub struct Warped<S> {
    /// The store.
    inner: S,
    /// What is broken.
    flaw: ConsumerFlaw,
}

impl<S: LeaseStore> Warped<S> {
    /// The store, with one flaw or none.
    pub fn new(inner: S, flaw: ConsumerFlaw) -> Self {
        Self { inner, flaw }
    }

    fn shown(&self, mut row: Lease) -> Lease {
        if self.flaw == ConsumerFlaw::StartsAfterOneParent {
            row.parents.truncate(1);
        }
        row
    }

    /// A row at its end for a shard that has none.
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
}

impl<S: LeaseStore> LeaseStore for Warped<S> {
    fn layout(&self) -> Layout {
        self.inner.layout()
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        self.inner.prepare().await
    }

    async fn application(&self) -> Result<Application, StoreError> {
        self.inner.application().await
    }

    async fn look(&self) -> Result<Look, StoreError> {
        self.inner.look().await
    }

    async fn list(&self, stream: &StreamName) -> Result<Vec<Lease>, StoreError> {
        let rows = self.inner.list(stream).await?;
        Ok(rows.into_iter().map(|row| self.shown(row)).collect())
    }

    async fn get(&self, key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        let row = self.inner.get(key).await?.map(|row| self.shown(row));
        Ok(match self.flaw {
            ConsumerFlaw::MissingRowCountsAsEnded => row.or_else(|| Some(Self::ended(key))),
            _ => row,
        })
    }

    async fn worker(&self, id: &WorkerId) -> Result<Option<Worker>, StoreError> {
        self.inner.worker(id).await
    }

    async fn read_back(&self, write: &Write) -> Result<Stored, StoreError> {
        self.inner.read_back(write).await
    }

    async fn write(&self, write: &Write) -> Result<Outcome, StoreError> {
        let mut write = write.clone();
        if let Write::Lease { change: LeaseChange::Create(new), .. } = &mut write
            && self.flaw == ConsumerFlaw::ChildAtLatest
            && !new.parents.is_empty()
        {
            new.checkpoint = Position::Latest;
        }
        Ok(match self.inner.write(&write).await? {
            Outcome::Done(Stored::Lease(row)) => {
                Outcome::Done(Stored::Lease(Box::new(self.shown(*row))))
            }
            other => other,
        })
    }
}
