//! What happens to a relay of an outbox.

/// What happened to a relay that carries the rows of a table into a stream.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum RelayEvent {
    /// It is the one that relays.
    Leading {
        /// The table.
        table: String,
    },
    /// Another one relays; this one takes over when that one goes.
    StandingBy {
        /// The table.
        table: String,
    },
    /// It had to let go, and tries again after a pause.
    Interrupted {
        /// The table.
        table: String,
        /// What happened.
        error: String,
        /// The pause, in milliseconds.
        retry_in: u64,
    },
    /// Rows are in the stream and no longer wait in the table.
    Sent {
        /// The table.
        table: String,
        /// How many.
        rows: u64,
    },
    /// A row and all behind it wait for a transaction that has been running for long.
    WaitingForTransaction {
        /// The table.
        table: String,
        /// The first row that waits.
        row: i64,
        /// Its own transaction: one at or below it is still running.
        transaction: u64,
    },
    /// The database refuses to remove a row that is in the stream. It is tried again, and others go
    /// on meanwhile.
    RemovalRefused {
        /// The table.
        table: String,
        /// The row.
        row: i64,
        /// What it said.
        error: String,
    },
    /// A row can never be sent, so its key waits for a person.
    KeyBlocked {
        /// The table.
        table: String,
        /// The row.
        row: i64,
        /// The key.
        key: String,
        /// Why the row can't be sent.
        why: String,
    },
    /// A key that was parked goes on.
    KeyResumed {
        /// The table.
        table: String,
        /// The key.
        key: String,
    },
    /// A row lay behind the place where reading stood, as after a restore; it is sent now.
    RowRestored {
        /// The table.
        table: String,
        /// The first such row.
        row: i64,
    },
    /// How far behind it is.
    Lagging {
        /// The table.
        table: String,
        /// Rows that wait, at the most.
        rows: u64,
        /// The age of the oldest, in milliseconds.
        ms: u64,
        /// Parked keys.
        blocked_keys: usize,
    },
}
