//! Errors of the relay and its commands.

use anabranch::producer::ProducerStartError;
use std::fmt;

/// A problem that prevents a table from being relayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableProblem {
    /// Description of the problem.
    pub what: String,
    /// Remedy: a statement to run, or an option to choose.
    pub way_out: String,
}

impl fmt::Display for TableProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.way_out)
    }
}

/// Error that ended a relay or one of its commands.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// The database URL is invalid.
    #[error("the database URL can't be used: {detail}")]
    Url {
        /// Cause. It omits the URL, which may contain a password.
        detail: String,
    },
    /// A table or column name is invalid. Holds the message.
    #[error("{0}")]
    Name(String),
    /// A database operation failed.
    #[error("{place}: could not {doing}: {detail}")]
    Database {
        /// Database label, without the password.
        place: String,
        /// The operation that failed, as a verb phrase.
        doing: &'static str,
        /// Cause reported by the driver or the server.
        detail: String,
    },
    /// The table can't be relayed as it is.
    #[error("table {table} can't be relayed: {}", list(.problems))]
    Table {
        /// Table label, `schema.name`.
        table: String,
        /// All problems found.
        problems: Vec<TableProblem>,
    },
    /// The producer failed to start.
    #[error(transparent)]
    Producer(#[from] ProducerStartError),
    /// The stream rejected rows for a reason unrelated to the rows.
    #[error("stream {stream} does not accept rows: {detail}")]
    Stream {
        /// Stream name.
        stream: String,
        /// Cause.
        detail: String,
    },
    /// The stream accepted no row for too long, so the relay gave up leadership.
    #[error("stream {stream} accepted no row for {seconds} s{}: releasing the lock so that another \
             relay can try", because(.why.as_deref()))]
    Stalled {
        /// Stream name.
        stream: String,
        /// Seconds without an accepted row.
        seconds: u64,
        /// Reason for which the stream refuses this relay, if it does.
        why: Option<String>,
    },
    /// The relay stopped while the table still contains rows that are, or may be, in the stream.
    #[error(
        "{rows} rows of {table}{} are or may be in the stream, but were not removed from the \
         table: {why}; the next relay sends them again",
        one(*.first)
    )]
    Left {
        /// Table label, `schema.name`.
        table: String,
        /// Number of rows.
        rows: usize,
        /// Id of one of them, if known.
        first: Option<i64>,
        /// Reason that the rows were not removed.
        why: String,
    },
}

fn list(problems: &[TableProblem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn because(why: Option<&str>) -> String {
    why.map_or_else(String::new, |why| format!(" ({why})"))
}

fn one(row: Option<i64>) -> String {
    row.map_or_else(String::new, |row| format!(" (such as row {row})"))
}
