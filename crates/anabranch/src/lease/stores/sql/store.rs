//! Reads of the SQL stores, and their timeouts.

use super::cell::{Cell, RowReader};
use super::dialect::Dialect;
use super::failure::{LostConnection, SqlFailure};
use super::link::DatabaseAddress;
use super::pool::{SqlLoan, SqlPool, Urgency};
use super::row;
use super::statement::{Statements, TableNames};
use crate::lease::{StoreError, StorePoll};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{
    ApplicationFacts, Lease, LeaseKey, LeaseListing, UnreadableRow, WorkerId, WorkerRow,
};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::SemaphorePermit;

/// The channel on which PostgreSQL notifies of changes. The payload names the application.
pub(crate) const CHANNEL: &str = "anabranch";

/// Maximum length of an application's name, in bytes.
const LONGEST_APPLICATION: usize = 255;

/// Timeouts of a store. `lock` and `call` must be well below the lease time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreTimeouts {
    /// Wait for the lock of a row that another transaction holds.
    pub(crate) lock: Duration,
    /// A whole call up to its `COMMIT`, and once more the answer to `COMMIT`.
    pub(crate) call: Duration,
    /// Wait for another worker that creates the tables.
    pub(crate) prepare: Duration,
}

impl Default for StoreTimeouts {
    fn default() -> Self {
        Self {
            lock: Duration::from_millis(500),
            call: Duration::from_secs(2),
            prepare: Duration::from_secs(15),
        }
    }
}

/// The rows of one application in a database.
pub(crate) struct SqlStore {
    pub(in crate::lease) application: String,
    /// Name of the database for messages. Contains no secret.
    pub(in crate::lease) label: String,
    pub(in crate::lease) statements: Statements,
    pub(in crate::lease) pool: SqlPool,
    /// Opens the transaction of a write.
    pub(in crate::lease) begin: Arc<str>,
    /// Opens the transaction that creates the tables.
    pub(in crate::lease) begin_prepare: Arc<str>,
    pub(in crate::lease) patience: StoreTimeouts,
}

impl SqlStore {
    pub(crate) fn new(
        application: String,
        label: String,
        dialect: &'static Dialect,
        names: TableNames,
        address: DatabaseAddress,
        (connections, writers): (usize, usize),
        patience: StoreTimeouts,
    ) -> Self {
        Self {
            begin: address.begin(patience.lock, patience.call),
            begin_prepare: address.begin(patience.prepare, patience.prepare),
            application,
            label,
            statements: Statements::new(dialect, names),
            pool: SqlPool::new(address, connections, writers),
            patience,
        }
    }

    /// Returns the payload of notifications about this application.
    pub(crate) fn payload(&self) -> String {
        format!("{}.{}", self.statements.names.space(), self.application)
    }

    pub(crate) async fn application(&self) -> Result<ApplicationFacts, StoreError> {
        let rows = self.read(Urgency::Normal, &self.statements.application, vec![]).await?;
        let mut application = ApplicationFacts::default();
        for cells in rows {
            let (version, facts) = self.after_version(cells)?;
            application.version = version;
            if let Some(facts) = facts {
                let (name, facts) = row::stream(facts).map_err(|f| f.of_store(&self.label))?;
                application.streams.insert(name, facts);
            }
        }
        Ok(application)
    }

    pub(crate) async fn look(&self) -> Result<StorePoll, StoreError> {
        let rows = self.read(Urgency::Heartbeat, &self.statements.look, vec![]).await?;
        let mut look = StorePoll { version: Some(0), workers: Vec::new(), unreadable: Vec::new() };
        for cells in rows {
            let (version, worker) = self.after_version(cells)?;
            look.version = Some(version);
            if let Some(worker) = worker {
                let id = text(worker.first());
                match row::worker(worker) {
                    Ok(worker) => look.workers.push(worker),
                    Err(failure) => look.unreadable.push(self.unreadable(id, failure)?),
                }
            }
        }
        // Sorted by bytes, as everywhere: a database may have another order.
        look.workers.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(look)
    }

    pub(crate) async fn list(&self, stream: &StreamName) -> Result<LeaseListing, StoreError> {
        let stream = vec![Cell::text(stream.as_str())];
        let rows = self.read(Urgency::Normal, &self.statements.list, stream).await?;
        let mut listing = LeaseListing::default();
        for cells in rows {
            // The columns begin with the stream and the shard.
            let shard = text(cells.get(1));
            match row::lease(cells) {
                Ok(lease) => listing.rows.push(lease),
                Err(failure) => listing.unreadable.push(self.unreadable(shard, failure)?),
            }
        }
        listing.rows.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(listing)
    }

    pub(crate) async fn get(&self, key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        let rows =
            self.read(Urgency::Normal, &self.statements.lease.get, row::lease_key(key)).await?;
        let lease = rows.into_iter().next().map(row::lease).transpose();
        lease.map_err(|f| f.of_store(&self.label))
    }

    pub(crate) async fn worker(&self, id: &WorkerId) -> Result<Option<WorkerRow>, StoreError> {
        let id = vec![Cell::text(id.as_str())];
        let rows = self.read(Urgency::Heartbeat, &self.statements.worker.get, id).await?;
        let worker = rows.into_iter().next().map(row::worker).transpose();
        worker.map_err(|f| f.of_store(&self.label))
    }

    /// Converts the failure of a single row. Any other failure fails the whole read.
    fn unreadable<K: for<'a> From<&'a str>>(
        &self,
        key: Option<String>,
        failure: SqlFailure,
    ) -> Result<UnreadableRow<K>, StoreError> {
        match (key, failure) {
            (Some(key), SqlFailure::Unreadable { detail, .. }) => {
                Ok(UnreadableRow { key: key.as_str().into(), why: detail })
            }
            (_, failure) => Err(failure.of_store(&self.label)),
        }
    }

    /// Splits a joined row into the version and the other table's columns, if that had a row.
    fn after_version(&self, mut cells: Vec<Cell>) -> Result<(u64, Option<Vec<Cell>>), StoreError> {
        let rest = cells.split_off(1.min(cells.len()));
        let version = RowReader::new(&["version"], cells).number();
        let version = version.map_err(|f| f.of_store(&self.label))?;
        let is_there = rest.first().is_some_and(|key| !key.is_absent());
        Ok((version, is_there.then_some(rest)))
    }

    /// Prepends the application's name, the first parameter of every statement.
    pub(in crate::lease) fn with_application(&self, cells: Vec<Cell>) -> Vec<Cell> {
        let mut all = Vec::with_capacity(cells.len() + 1);
        all.push(Cell::text(&self.application));
        all.extend(cells);
        all
    }

    async fn read(
        &self,
        urgency: Urgency,
        sql: &Arc<str>,
        cells: Vec<Cell>,
    ) -> Result<Vec<Vec<Cell>>, StoreError> {
        let read = async {
            let _turn = self.turn(urgency).await?;
            let cells = self.with_application(cells);
            self.with_timeout(self.patience.call, self.read_once_or_twice(sql, cells)).await
        };
        read.await.map_err(|failure| failure.of_store(&self.label))
    }

    /// Waits until this kind of call may use a connection.
    pub(in crate::lease) async fn turn(
        &self,
        urgency: Urgency,
    ) -> Result<Option<SemaphorePermit<'_>>, SqlFailure> {
        let turn = tokio::time::timeout(self.patience.call, self.pool.acquire_slot(urgency)).await;
        turn.map_err(|_| SqlFailure::PoolBusy { waited: self.patience.call })
    }

    /// Reads, and reads again on a new connection if the server had closed an idle one.
    pub(in crate::lease) async fn read_once_or_twice(
        &self,
        sql: &Arc<str>,
        cells: Vec<Cell>,
    ) -> Result<Vec<Vec<Cell>>, SqlFailure> {
        loop {
            let mut lent = self.pool.to_read().await?;
            let rows = lent.wire().rows(sql, cells.clone()).await;
            match rows.as_ref().err().map(SqlFailure::lost_connection) {
                Some(LostConnection::Yes) if lent.was_idle() => self.pool.forget_idle(),
                Some(LostConnection::Yes) => return rows,
                Some(LostConnection::No) | None => {
                    lent.give_back();
                    return rows;
                }
            }
        }
    }

    /// Opens a transaction.
    pub(in crate::lease) async fn begin(&self, begin: &str) -> Result<SqlLoan<'_>, SqlFailure> {
        loop {
            let mut lent = self.pool.to_write().await?;
            match lent.wire().run(begin).await {
                Ok(()) => return Ok(lent),
                Err(failure)
                    if lent.was_idle() && failure.lost_connection() == LostConnection::Yes =>
                {
                    self.pool.forget_idle();
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Rolls back a transaction. If even that fails, the connection is closed.
    pub(in crate::lease) async fn roll_back(&self, mut lent: SqlLoan<'_>) {
        if self.with_timeout(self.patience.call, lent.wire().run("ROLLBACK")).await.is_ok() {
            lent.give_back();
        }
    }

    /// Bounds the time of a call. A call that takes longer is dropped, and its connection with it.
    pub(in crate::lease) async fn with_timeout<T>(
        &self,
        time: Duration,
        call: impl Future<Output = Result<T, SqlFailure>>,
    ) -> Result<T, SqlFailure> {
        tokio::time::timeout(time, call).await.unwrap_or_else(|_| {
            // The cause of the timeout may have killed the idle connections too.
            self.pool.forget_idle();
            Err(SqlFailure::NoAnswer { within: time })
        })
    }
}

impl fmt::Debug for SqlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.application, self.label)
    }
}

fn text(cell: Option<&Cell>) -> Option<String> {
    if let Some(Cell::Text(text)) = cell { text.clone() } else { None }
}

/// Returns the reason why a text can't name an application, if there is one.
pub(crate) fn problem_with_application(name: &str) -> Option<String> {
    if name.is_empty() {
        Some("the application name is empty".to_owned())
    } else if name.len() > LONGEST_APPLICATION || name.contains('\0') {
        Some(format!(
            "{:?} is not a valid application name: it must have at most {LONGEST_APPLICATION} \
             bytes, none of them 0",
            name.chars().take(80).collect::<String>()
        ))
    } else {
        None
    }
}
