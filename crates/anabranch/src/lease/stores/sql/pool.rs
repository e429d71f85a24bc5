//! A small connection pool.
//!
//! A connection is returned only after a clean end. Any other end closes it, which rolls an open
//! transaction back. So no call waits for an answer that may never come, and connections over a
//! failed network are not kept.

use super::failure::SqlFailure;
use super::link::{DatabaseAddress, SqlConnection, SqlExecutor};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::{Semaphore, SemaphorePermit};

/// The urgency of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::lease) enum Urgency {
    /// A heartbeat, or a poll of the heartbeats of others: delay means lost leases.
    Heartbeat,
    /// Any other call.
    Normal,
}

pub(in crate::lease) struct SqlPool {
    address: DatabaseAddress,
    /// One permit fewer than there are connections, and at least one. Normal calls wait here, so
    /// that a heartbeat finds a connection however many checkpoints are queued.
    crowd: Semaphore,
    /// One permit for each connection that may be open.
    slots: Semaphore,
    /// One permit for each concurrent writer. SQLite has one lock, and queueing for it within the
    /// process is better than polling it.
    writers: Semaphore,
    /// Open connections that are not in use.
    idle: Mutex<Vec<SqlConnection>>,
}

impl SqlPool {
    pub(in crate::lease) fn new(
        address: DatabaseAddress,
        connections: usize,
        writers: usize,
    ) -> Self {
        Self {
            address,
            crowd: Semaphore::new(connections.saturating_sub(1).max(1)),
            slots: Semaphore::new(connections),
            writers: Semaphore::new(writers),
            idle: Mutex::new(Vec::new()),
        }
    }

    /// Waits for a permit, if the call is not urgent.
    pub(in crate::lease) async fn acquire_slot(
        &self,
        urgency: Urgency,
    ) -> Option<SemaphorePermit<'_>> {
        match urgency {
            Urgency::Heartbeat => None,
            Urgency::Normal => {
                Some(self.crowd.acquire().await.expect("the semaphore is never closed"))
            }
        }
    }

    /// Returns a connection for a read. Waits until one is free, or opens one.
    pub(in crate::lease) async fn to_read(&self) -> Result<SqlLoan<'_>, SqlFailure> {
        self.acquire(None).await
    }

    /// Returns a connection for a write.
    pub(in crate::lease) async fn to_write(&self) -> Result<SqlLoan<'_>, SqlFailure> {
        let turn = self.writers.acquire().await.expect("the semaphore is never closed");
        self.acquire(Some(turn)).await
    }

    async fn acquire<'a>(
        &'a self,
        turn: Option<SemaphorePermit<'a>>,
    ) -> Result<SqlLoan<'a>, SqlFailure> {
        let slot = self.slots.acquire().await.expect("the semaphore is never closed");
        let used = self.idle().pop();
        let was_idle = used.is_some();
        let link = match used {
            Some(link) => link,
            None => self.address.connect().await?,
        };
        Ok(SqlLoan { link, was_idle, pool: self, _slot: slot, _turn: turn })
    }

    /// Closes the idle connections, because the server is gone and they are dead too.
    pub(in crate::lease) fn forget_idle(&self) {
        let idle = std::mem::take(&mut *self.idle());
        drop(idle);
    }

    fn idle(&self) -> MutexGuard<'_, Vec<SqlConnection>> {
        // A list of connections is consistent after a panic.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection on loan. Dropping it closes it.
pub(in crate::lease) struct SqlLoan<'a> {
    link: SqlConnection,
    /// True if the connection was opened by an earlier call, so that the server may have closed it
    /// since.
    was_idle: bool,
    pool: &'a SqlPool,
    _slot: SemaphorePermit<'a>,
    _turn: Option<SemaphorePermit<'a>>,
}

impl SqlLoan<'_> {
    pub(in crate::lease) fn wire(&mut self) -> SqlExecutor<'_> {
        self.link.wire()
    }

    pub(in crate::lease) fn was_idle(&self) -> bool {
        self.was_idle
    }

    /// Returns the connection to the pool. It must have no open transaction.
    pub(in crate::lease) fn give_back(self) {
        let Self { link, pool, .. } = self;
        pool.idle().push(link);
    }
}
