//! Where leases are kept: one of the library's two seams.

use anabranch_model::ids::StreamName;
use anabranch_model::lease::{
    ApplicationFacts, KclProbe, Layout, Lease, LeaseKey, LeaseListing, StoredRow, UnreadableRow,
    WorkerId, WorkerRow, Write, WriteOutcome,
};
use anabranch_model::position::StartPosition;
use std::collections::BTreeMap;
use std::error::Error;
use std::future::Future;

/// The pause between two looks that suits a store whose looks are cheap, in milliseconds.
pub(crate) const DEFAULT_POLL_INTERVAL: u64 = 500;

/// The rows of one application, and conditional writes to them.
///
/// The rules are those of the store's [`Layout`]: a store differs from
/// [`MemoryStore`](super::MemoryStore) in where the rows are, and in nothing else. The suite in
/// `conformance` holds it to that.
///
/// Reads are consistent, but for [`list_recent`](Self::list_recent): they show every write that was
/// applied before they were asked.
pub trait LeaseStore: Send + Sync + 'static {
    /// Which rules hold.
    fn layout(&self) -> Layout;

    /// The pause between two looks of an idle worker that suits the store, in milliseconds.
    fn poll_interval(&self) -> u64 {
        DEFAULT_POLL_INTERVAL
    }

    /// Hears where the application starts on a stream, before it is asked for that stream's leases.
    /// KCL's rows say `AT_TIMESTAMP` and leave the time to the workers; other stores need nothing.
    fn note_start(&self, _stream: &StreamName, _start: StartPosition) {}

    /// Makes the table or the schema, unless it is there. Safe when several workers do it at once.
    fn prepare(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// What is to be seen on the table before work begins: whether somebody else works there.
    /// [`KclProbe`] says what follows. A store of our own has
    /// nothing to tell.
    fn probe(&self) -> impl Future<Output = Result<KclProbe, StoreError>> + Send {
        async { Ok(KclProbe::default()) }
    }

    /// The facts that are kept once for the application. Empty in KCL's layout.
    fn application(&self) -> impl Future<Output = Result<ApplicationFacts, StoreError>> + Send;

    /// The cheap look of an idle worker: leases need to be listed only when the version has moved.
    fn poll(&self) -> impl Future<Output = Result<StorePoll, StoreError>> + Send;

    /// All leases of a stream, by shard, and the names of the rows that can't be read: a shard that
    /// neither part names had no row when the list was read. One bad row is no reason to fail.
    fn list(
        &self,
        stream: &StreamName,
    ) -> impl Future<Output = Result<LeaseListing, StoreError>> + Send;

    /// All leases of some streams, for a planner that looks again soon: a row may be a moment old.
    /// Every write that follows is conditional, so an old row costs a refused write and no more.
    fn list_recent(
        &self,
        streams: &[StreamName],
    ) -> impl Future<Output = Result<BTreeMap<StreamName, LeaseListing>, StoreError>> + Send {
        async move {
            let mut rows = BTreeMap::new();
            for stream in streams {
                rows.insert(stream.clone(), self.list(stream).await?);
            }
            Ok(rows)
        }
    }

    /// One lease. A row that can't be read is an error.
    fn get(&self, key: &LeaseKey)
    -> impl Future<Output = Result<Option<Lease>, StoreError>> + Send;

    /// One worker. A row that can't be read is an error.
    fn worker(
        &self,
        id: &WorkerId,
    ) -> impl Future<Output = Result<Option<WorkerRow>, StoreError>> + Send;

    /// Applies one write, if its condition holds.
    ///
    /// A write that may have been applied, or may still be, is [`WriteOutcome::Unknown`]. An error says
    /// that it was not and will not be.
    fn write(&self, write: &Write)
    -> impl Future<Output = Result<WriteOutcome, StoreError>> + Send;

    /// Waits until the plan may have changed since this store was last asked, so that a look need
    /// not wait for its time. A store that can't tell never resolves: looks go on by the clock, and
    /// they do so beside a store that can, whose word may be lost with a connection.
    fn wait_for_change(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Reads back the row that a write is for, to judge what became of it.
    fn read_back(
        &self,
        write: &Write,
    ) -> impl Future<Output = Result<StoredRow, StoreError>> + Send {
        async move {
            Ok(match write {
                Write::Lease { key, .. } => StoredRow::of_lease(self.get(key).await?.as_ref()),
                Write::Worker { id, .. } => StoredRow::of_worker(self.worker(id).await?.as_ref()),
                Write::Stream { stream, .. } => {
                    StoredRow::of_stream(self.application().await?.streams.get(stream))
                }
            })
        }
    }
}

/// What an idle worker sees at a look.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StorePoll {
    /// The application's version. `None` in KCL's layout, where only a list tells.
    pub version: Option<u64>,
    /// All workers whose rows can be read, by id. Empty in KCL's layout.
    pub workers: Vec<WorkerRow>,
    /// Workers whose rows are there and can't be read.
    pub unreadable: Vec<UnreadableRow<WorkerId>>,
}

/// Why a store did not do what it was asked. Nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store asks for fewer calls.
    #[error("the lease store {store} is throttling: {detail}")]
    Throttled {
        /// Which store.
        store: String,
        /// What it said.
        detail: String,
    },
    /// The store did not answer, or could not be reached.
    #[error("the lease store {store} can't be reached: {detail}")]
    Unreachable {
        /// Which store.
        store: String,
        /// What happened.
        detail: String,
        /// The error below, if there is one.
        #[source]
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// Two writers were in each other's way; nobody lost anything.
    #[error("the lease store {store} was busy with another write: {detail}")]
    Busy {
        /// Which store.
        store: String,
        /// What it said.
        detail: String,
    },
    /// The store may not be used with these credentials.
    #[error("the lease store {store} denies access: {detail}; grant it, then start again")]
    Denied {
        /// Which store.
        store: String,
        /// What it said.
        detail: String,
    },
    /// The table or schema is not ours to touch, or not one that we can read.
    #[error("the lease store {store} holds something else: {detail}")]
    ForeignSchema {
        /// Which store.
        store: String,
        /// What was found, and what to do.
        detail: String,
    },
    /// The store can't be used as it is configured: a bad address, a missing database or folder.
    #[error("the lease store {store} can't be used: {detail}")]
    Unusable {
        /// Which store.
        store: String,
        /// What is wrong, and what to do.
        detail: String,
    },
    /// The table of the leases is not there: it was never made, or somebody deleted it.
    #[error("the lease store {store} has no table of leases: {detail}")]
    Missing {
        /// Which store.
        store: String,
        /// What it said, and what to do.
        detail: String,
    },
    /// A row is there and can't be read.
    #[error(
        "a row of the lease store {store} can't be read: {row}: {detail}: repair it, or delete it \
         once no worker uses it"
    )]
    UnreadableRow {
        /// Which store.
        store: String,
        /// Which row.
        row: String,
        /// What is wrong with it.
        detail: String,
    },
}

impl StoreError {
    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Throttled { .. } | Self::Unreachable { .. } | Self::Busy { .. } => true,
            Self::Denied { .. }
            | Self::ForeignSchema { .. }
            | Self::Unusable { .. }
            | Self::Missing { .. }
            | Self::UnreadableRow { .. } => false,
        }
    }
}
