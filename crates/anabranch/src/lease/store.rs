//! The `LeaseStore` trait: one of the library's two extension points.

use anabranch_model::ids::StreamName;
use anabranch_model::lease::{
    ApplicationFacts, KclProbe, Layout, Lease, LeaseKey, LeaseListing, StoredRow, UnreadableRow,
    WorkerId, WorkerRow, Write, WriteOutcome,
};
use anabranch_model::position::StartPosition;
use std::collections::BTreeMap;
use std::error::Error;
use std::future::Future;

/// Default pause between two polls, for a store whose polls are cheap, in milliseconds.
pub(crate) const DEFAULT_POLL_INTERVAL: u64 = 500;

/// The rows of one application, and conditional writes to them.
///
/// The store's [`Layout`] defines the rules. A store differs from
/// [`MemoryStore`](super::MemoryStore) only in where it keeps the rows; the suite in `conformance`
/// verifies this.
///
/// Reads are consistent, except for [`list_recent`](Self::list_recent): they show every write that
/// was applied before the read was sent.
pub trait LeaseStore: Send + Sync + 'static {
    /// Returns the layout, which defines the rules for writes.
    fn layout(&self) -> Layout;

    /// Returns the pause between two polls of an idle worker that suits this store, in
    /// milliseconds.
    fn poll_interval(&self) -> u64 {
        DEFAULT_POLL_INTERVAL
    }

    /// Records where the application starts on a stream. Called before the first read of that
    /// stream's leases. KCL's rows say `AT_TIMESTAMP` and leave the time to the workers; other
    /// stores need nothing.
    fn note_start(&self, _stream: &StreamName, _start: StartPosition) {}

    /// Creates the table or schema unless it exists. Several workers may call it concurrently.
    fn prepare(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Inspects the table before work begins, to detect other users of it. [`KclProbe`] describes
    /// the consequences. Stores in the native layout return the default.
    fn probe(&self) -> impl Future<Output = Result<KclProbe, StoreError>> + Send {
        async { Ok(KclProbe::default()) }
    }

    /// Returns the facts that are stored once per application. Empty in KCL's layout.
    fn application(&self) -> impl Future<Output = Result<ApplicationFacts, StoreError>> + Send;

    /// Returns the application's version and its workers. A cheap read: an idle worker lists leases
    /// only when the version has moved.
    fn poll(&self) -> impl Future<Output = Result<StorePoll, StoreError>> + Send;

    /// Returns all leases of a stream, ordered by shard, and the keys of the rows that can't be
    /// read. A shard that neither part names had no row when the list was read. One unreadable row
    /// does not fail the call.
    fn list(
        &self,
        stream: &StreamName,
    ) -> impl Future<Output = Result<LeaseListing, StoreError>> + Send;

    /// Returns all leases of some streams, for a planner that polls again soon: a row may be
    /// slightly stale. Every write that follows is conditional, so a stale row costs at most a
    /// refused write.
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

    /// Returns one lease. A row that can't be read is an error.
    fn get(&self, key: &LeaseKey)
    -> impl Future<Output = Result<Option<Lease>, StoreError>> + Send;

    /// Returns one worker. A row that can't be read is an error.
    fn worker(
        &self,
        id: &WorkerId,
    ) -> impl Future<Output = Result<Option<WorkerRow>, StoreError>> + Send;

    /// Applies one write if its condition holds.
    ///
    /// Returns [`WriteOutcome::Unknown`] for a write that may have been applied or may still be
    /// applied. An error means that the write was not applied and will not be.
    fn write(&self, write: &Write)
    -> impl Future<Output = Result<WriteOutcome, StoreError>> + Send;

    /// Waits until the plan may have changed since the last call of this store, so that the next
    /// poll can come early. The default never resolves. Callers keep polling on a timer in any
    /// case, because a notification can be lost with its connection.
    fn wait_for_change(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Reads the row that a write is for, to determine the result of that write.
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

/// The result of one poll.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StorePoll {
    /// The application's version. `None` in KCL's layout, where only a list shows changes.
    pub version: Option<u64>,
    /// All workers whose rows can be read, ordered by id. Empty in KCL's layout.
    pub workers: Vec<WorkerRow>,
    /// Workers whose rows exist and can't be read.
    pub unreadable: Vec<UnreadableRow<WorkerId>>,
}

/// Error of a call to a lease store. The call wrote nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store asks for fewer calls.
    #[error("lease store {store} is throttling: {detail}")]
    Throttled {
        /// Store name for messages.
        store: String,
        /// The store's message.
        detail: String,
    },
    /// The store did not answer, or could not be reached.
    #[error("cannot reach lease store {store}: {detail}")]
    Unreachable {
        /// Store name for messages.
        store: String,
        /// Description of the failure.
        detail: String,
        /// The underlying error, if there is one.
        #[source]
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// The write conflicted with another write. Neither was damaged.
    #[error("lease store {store} was busy with a conflicting write: {detail}")]
    Busy {
        /// Store name for messages.
        store: String,
        /// The store's message.
        detail: String,
    },
    /// The credentials do not permit the call.
    #[error("lease store {store} denies access: {detail}; grant it, then start again")]
    Denied {
        /// Store name for messages.
        store: String,
        /// The store's message.
        detail: String,
    },
    /// The table or schema belongs to something else, or has a format that this version can't read.
    #[error("the schema of lease store {store} is not usable: {detail}")]
    ForeignSchema {
        /// Store name for messages.
        store: String,
        /// The finding, and what to do.
        detail: String,
    },
    /// The store can't be used as configured: a bad address, a missing database or folder.
    #[error("cannot use lease store {store}: {detail}")]
    Unusable {
        /// Store name for messages.
        store: String,
        /// The problem, and what to do.
        detail: String,
    },
    /// The lease table does not exist: it was never created, or it was deleted.
    #[error("lease store {store} has no lease table: {detail}")]
    Missing {
        /// Store name for messages.
        store: String,
        /// The store's message, and what to do.
        detail: String,
    },
    /// A row exists and can't be read.
    #[error(
        "cannot parse row {row} of lease store {store}: {detail}; repair the row, or delete it \
         once no worker uses it"
    )]
    UnreadableRow {
        /// Store name for messages.
        store: String,
        /// Name of the row.
        row: String,
        /// The problem with the row.
        detail: String,
    },
}

impl StoreError {
    /// Returns true if the same call may succeed later.
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
