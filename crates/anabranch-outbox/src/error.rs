//! Why a relay, or a command about one, ended.

use anabranch::producer::ProducerStartError;
use std::fmt;

/// One thing that is wrong with a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableProblem {
    /// What is wrong.
    pub what: String,
    /// The way out: a statement to run, or what to choose.
    pub way_out: String,
}

impl fmt::Display for TableProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.way_out)
    }
}

/// Why a relay, or a command about one, ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// The address of the database can't be read.
    #[error("the database's URL can't be used: {detail}")]
    Url {
        /// The reason. The URL itself is not repeated: it may hold a password.
        detail: String,
    },
    /// The name of a table or column can't be used.
    #[error("{0}")]
    Name(String),
    /// The database did not do what it was asked.
    #[error("{place} could not {doing}: {detail}")]
    Database {
        /// Which database.
        place: String,
        /// What it was asked to do.
        doing: &'static str,
        /// What it said.
        detail: String,
    },
    /// The table can't be relayed as it is.
    #[error("table {table} can't be relayed: {}", list(.problems))]
    Table {
        /// The table.
        table: String,
        /// Everything that is wrong with it.
        problems: Vec<TableProblem>,
    },
    /// The producer did not start.
    #[error(transparent)]
    Producer(#[from] ProducerStartError),
    /// Rows could not be sent for a reason that is not theirs.
    #[error("stream {stream} does not take rows: {detail}")]
    Stream {
        /// The stream.
        stream: String,
        /// What it said.
        detail: String,
    },
    /// The stream took no row for too long, so another relay may try.
    #[error("stream {stream} took no row for {seconds} s{}: another relay may try", because(.why.as_deref()))]
    Stalled {
        /// The stream.
        stream: String,
        /// For how long.
        seconds: u64,
        /// Why the stream refused this relay, if it did.
        why: Option<String>,
    },
    /// It stopped, and rows that are in the stream, or may be, are still in the table.
    #[error(
        "{rows} rows of {table}{} are or may be in the stream, and were not removed from the table: \
         {why}; the next relay sends them again",
        one(*.first)
    )]
    Left {
        /// The table.
        table: String,
        /// How many rows.
        rows: usize,
        /// One of them, where it is known.
        first: Option<i64>,
        /// What kept them.
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
    row.map_or_else(String::new, |row| format!(" (row {row} is one)"))
}
