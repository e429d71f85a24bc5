//! Events of an outbox relay.

use std::time::Duration;

/// An event of a relay, which moves the rows of an outbox table into a stream.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum RelayEvent {
    /// The relay holds the lock of the table and relays its rows.
    Leading {
        /// Name of the outbox table.
        table: String,
    },
    /// Another relay holds the lock. This one takes over when that one ends.
    StandingBy {
        /// Name of the outbox table.
        table: String,
    },
    /// Relaying failed. The relay gave up the lock, and tries again after a pause.
    Interrupted {
        /// Name of the outbox table.
        table: String,
        /// Description of the failure.
        error: String,
        /// Pause before the next attempt.
        retry_in: Duration,
    },
    /// Rows were placed in the stream and removed from the table.
    Sent {
        /// Name of the outbox table.
        table: String,
        /// Number of rows.
        rows: u64,
    },
    /// A row and all rows behind it wait for a transaction that has been running for a long time.
    WaitingForTransaction {
        /// Name of the outbox table.
        table: String,
        /// Id of the first waiting row.
        row: i64,
        /// Transaction of that row. It or an earlier transaction is still running.
        transaction: u64,
    },
    /// The database refuses to remove a row that is in the stream. The removal is retried; other
    /// rows continue meanwhile.
    RemovalRefused {
        /// Name of the outbox table.
        table: String,
        /// Id of the row.
        row: i64,
        /// Error message of the database.
        error: String,
    },
    /// A row can never be sent, so its key is blocked until an operator acts.
    KeyBlocked {
        /// Name of the outbox table.
        table: String,
        /// Id of the row.
        row: i64,
        /// Key of the row.
        key: String,
        /// Reason why the row cannot be sent.
        why: String,
    },
    /// A blocked key was resumed.
    KeyResumed {
        /// Name of the outbox table.
        table: String,
        /// The resumed key.
        key: String,
    },
    /// A row was found behind the read position, as after a restore. It is sent now.
    RowRestored {
        /// Name of the outbox table.
        table: String,
        /// Id of the first such row.
        row: i64,
    },
    /// Backlog of the relay, reported periodically.
    Lagging {
        /// Name of the outbox table.
        table: String,
        /// Number of waiting rows, at most.
        rows: u64,
        /// Age of the oldest waiting row. Zero if none waits.
        age: Duration,
        /// Number of blocked keys.
        blocked_keys: usize,
    },
}
