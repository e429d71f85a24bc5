//! A few connections, lent out one at a time.
//!
//! A connection comes back only after a clean end. Any other end closes it, which is what rolls an
//! open transaction back: nobody waits for an answer that may never come, and no connection of a
//! network that went away is kept.

use super::failure::SqlFailure;
use super::link::{DatabaseAddress, SqlConnection, SqlExecutor};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Whether a call can wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::lease) enum Urgency {
    /// A beat, or a look at the beats of others: late means lost leases.
    Heartbeat,
    /// Anything else.
    Normal,
}

pub(in crate::lease) struct SqlPool {
    /// Where to connect.
    address: DatabaseAddress,
    /// One permit less than there are connections: what is not a heart waits here, so that a beat
    /// finds a connection however many checkpoints are queued.
    crowd: Semaphore,
    /// One permit for each connection that may be open.
    slots: Semaphore,
    /// One permit for each that may write at the same time: SQLite has one lock, and those of one
    /// process queue for it better than they poll.
    writers: Semaphore,
    /// Connections that nobody uses.
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

    /// Waits in the crowd, unless it is about a heart.
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

    /// A connection to read on. Waits for one that comes back, or opens one.
    pub(in crate::lease) async fn to_read(&self) -> Result<SqlLoan<'_>, SqlFailure> {
        self.acquire(None).await
    }

    /// A connection to write on.
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

    /// Closes what nobody uses: the server is gone, and its connections with it.
    pub(in crate::lease) fn forget_idle(&self) {
        let idle = std::mem::take(&mut *self.idle());
        drop(idle);
    }

    fn idle(&self) -> MutexGuard<'_, Vec<SqlConnection>> {
        // A list of connections has no state that a panic could leave half done.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection on loan. Dropping it closes it.
pub(in crate::lease) struct SqlLoan<'a> {
    link: SqlConnection,
    /// Whether it was opened for somebody else, so that the server may have hung up since.
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

    /// Gives the connection back for others to use. It has no open transaction.
    pub(in crate::lease) fn give_back(self) {
        let Self { link, pool, .. } = self;
        pool.idle().push(link);
    }
}
