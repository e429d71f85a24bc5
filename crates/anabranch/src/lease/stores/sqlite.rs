//! Leases in a SQLite file, for all processes of one machine.

use super::sql::{DatabaseAddress, SQLITE, SqlExecutor, SqlStore, StoreTimeouts, TableNames};
use crate::lease::store::{LeaseStore, StoreError, StorePoll};
use crate::lease::transactional::{StoreTransaction, TransactionCheckpoint, TransactionalStore};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{
    ApplicationFacts, Checkpoint, Layout, Lease, LeaseKey, LeaseListing, LeaseToken, Nonce,
    WorkerId, WorkerRow, Write, WriteOutcome,
};
use sqlx::ConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Number of connections: reads continue while a write waits for another process.
const CONNECTIONS: usize = 2;
/// Number of concurrent writes: one lock covers the file.
const WRITERS: usize = 1;

/// Leases in a SQLite file, shared by all processes of one machine that open it. Clones share their
/// connections.
///
/// The file may also hold other tables, and several applications. It must be on a local disk:
/// SQLite's locks don't work over a network.
///
/// ```
/// use anabranch::lease::{LeaseStore, SqliteStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("leases.db");
/// let store = SqliteStore::open(path, "billing")?;
/// store.prepare().await?;
/// assert_eq!(store.poll().await?.version, Some(0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SqliteStore {
    /// Settings that the store was created from.
    settings: SqliteSettings,
    inner: Arc<SqlStore>,
    /// Identity of the file when the tables were created or found.
    prepared: Arc<OnceLock<FileId>>,
}

/// Identity of the file at a path. It changes when another file replaces it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FileId {
    device: u64,
    inode: u64,
}

#[derive(Clone)]
struct SqliteSettings {
    path: PathBuf,
    application: String,
    prefix: String,
}

impl SqliteStore {
    /// Opens the leases of `application` in the file at `path`, which is created if it is missing.
    ///
    /// The file is opened with the first call. [`LeaseStore::prepare`] creates the tables.
    pub fn open(
        path: impl AsRef<Path>,
        application: impl Into<String>,
    ) -> Result<Self, StoreError> {
        let settings = SqliteSettings {
            path: path.as_ref().to_owned(),
            application: application.into(),
            prefix: "anabranch_".to_owned(),
        };
        Self::of(settings)
    }

    /// Sets the prefix of the table names: letters, digits and `_`. Default: `anabranch_`.
    pub fn with_table_prefix(self, prefix: impl Into<String>) -> Result<Self, StoreError> {
        Self::of(SqliteSettings { prefix: prefix.into(), ..self.settings })
    }

    /// Moves the checkpoint of a lease inside a transaction of the user's own, on the same file, so
    /// that it and the effects of the records are stored together or not at all.
    ///
    /// Begin the transaction with `BEGIN IMMEDIATE`: one that reads first may fail to write. While
    /// it is open, nothing else can write to the file, not even this worker's heartbeat. Keep it
    /// short.
    pub async fn checkpoint_in(
        &self,
        transaction: &mut sqlx::Transaction<'_, sqlx::Sqlite>,
        hold: &LeaseToken,
        replaces: &Checkpoint,
        to: &Checkpoint,
        nonce: Nonce,
    ) -> Result<TransactionCheckpoint, StoreError> {
        let mut wire = SqlExecutor::Sqlite(&mut *transaction);
        self.inner.checkpoint_in(&mut wire, hold, replaces, to, nonce).await
    }

    fn of(settings: SqliteSettings) -> Result<Self, StoreError> {
        settings.check()?;
        let patience = StoreTimeouts::default();
        let options = SqliteConnectOptions::new()
            .filename(&settings.path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // An acknowledged checkpoint survives a power failure.
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(patience.call.mul_f64(0.8))
            .disable_statement_logging();
        let inner = SqlStore::new(
            settings.application.clone(),
            settings.label(),
            &SQLITE,
            TableNames::with_prefix(&settings.prefix),
            DatabaseAddress::Sqlite(Box::new(options)),
            (CONNECTIONS, WRITERS),
            patience,
        );
        Ok(Self { settings, inner: Arc::new(inner), prepared: Arc::default() })
    }

    /// Returns the store, while its file is the one that it was prepared on.
    ///
    /// An open connection continues with a deleted file, and a new connection creates another file
    /// in its place. Two fleets would then own the same shards, each in its own file.
    fn store(&self) -> Result<&SqlStore, StoreError> {
        match self.prepared.get() {
            Some(file) if FileId::of(&self.settings.path) != Some(*file) => {
                Err(StoreError::Unreachable {
                    store: self.settings.label(),
                    detail: "the file was deleted or replaced while in use, and its leases are \
                             lost: stop all workers of the application, then start them again"
                        .to_owned(),
                    source: None,
                })
            }
            _ => Ok(&self.inner),
        }
    }
}

impl FileId {
    #[cfg(unix)]
    fn of(path: &Path) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        let about = std::fs::metadata(path).ok()?;
        Some(Self { device: about.dev(), inode: about.ino() })
    }

    /// On other systems a file in use can't be removed.
    #[cfg(not(unix))]
    fn of(_: &Path) -> Option<Self> {
        Some(Self { device: 0, inode: 0 })
    }
}

impl SqliteSettings {
    fn label(&self) -> String {
        format!("SQLite file {}", self.path.display())
    }

    fn check(&self) -> Result<(), StoreError> {
        let folder = match self.path.parent() {
            Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
            Some(folder) => folder,
            None => Path::new("/"),
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let problem = if self.path.as_os_str().is_empty() {
            "the path is empty: use the path of a file".to_owned()
        } else if self.path == Path::new(":memory:") {
            "connections do not share an in-memory database: use MemoryStore".to_owned()
        } else if self.path.is_dir() {
            "it is a folder: use the path of a file in it".to_owned()
        } else if !folder.is_dir() {
            format!("there is no folder {}: create it first", folder.display())
        } else if !self.prefix.chars().all(plain)
            || self.prefix.starts_with(|c: char| c.is_ascii_digit())
        {
            format!(
                "{:?} is not a valid prefix of a table name: use letters, digits and _, and do \
                     not start with a digit",
                self.prefix
            )
        } else if let Some(problem) = super::sql::problem_with_application(&self.application) {
            problem
        } else {
            return Ok(());
        };
        Err(StoreError::Unusable { store: self.label(), detail: problem })
    }
}

impl TransactionalStore for SqliteStore {}

impl<'t> StoreTransaction<sqlx::Transaction<'t, sqlx::Sqlite>> for SqliteStore {
    fn checkpoint_in(
        &self,
        transaction: &mut sqlx::Transaction<'t, sqlx::Sqlite>,
        hold: &LeaseToken,
        replaces: &Checkpoint,
        to: &Checkpoint,
        nonce: Nonce,
    ) -> impl Future<Output = Result<TransactionCheckpoint, StoreError>> + Send {
        Self::checkpoint_in(self, transaction, hold, replaces, to, nonce)
    }
}

impl LeaseStore for SqliteStore {
    fn layout(&self) -> Layout {
        Layout::Native
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        self.store()?.prepare().await?;
        if let Some(file) = FileId::of(&self.settings.path) {
            self.prepared.get_or_init(|| file);
        }
        Ok(())
    }

    async fn application(&self) -> Result<ApplicationFacts, StoreError> {
        self.store()?.application().await
    }

    async fn poll(&self) -> Result<StorePoll, StoreError> {
        self.store()?.look().await
    }

    async fn list(&self, stream: &StreamName) -> Result<LeaseListing, StoreError> {
        self.store()?.list(stream).await
    }

    async fn get(&self, key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        self.store()?.get(key).await
    }

    async fn worker(&self, id: &WorkerId) -> Result<Option<WorkerRow>, StoreError> {
        self.store()?.worker(id).await
    }

    async fn write(&self, write: &Write) -> Result<WriteOutcome, StoreError> {
        self.store()?.write(write).await
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SqliteStore({:?})", self.inner)
    }
}
