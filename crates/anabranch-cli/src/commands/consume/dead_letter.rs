//! Dead-letter queues of the command line: a file, a table or another stream.

use crate::connection::AwsClients;
use crate::failure::CommandFailure;
use anabranch::consumer::{DeadLetterFile, DeadLetterQueue, DeadLetterTable};
use anabranch::stream::api::StreamSummary;
use anabranch_model::ids::StreamName;
use sqlx::ConnectOptions as _;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Timeout for connecting to a database.
const PATIENCE: Duration = Duration::from_secs(10);
/// Database connections. Lanes write dead letters rarely, and seldom at the same time.
const CONNECTIONS: u32 = 2;

/// Address of a dead-letter queue, as given on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DeadLetterPlace {
    /// A file of JSON lines.
    File(PathBuf),
    /// A table in a SQLite file.
    Sqlite(PathBuf, String),
    /// A table in a PostgreSQL database, identified by its URL.
    Postgres(String, String),
    /// Another stream.
    Stream(StreamName),
}

impl FromStr for DeadLetterPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let table = |rest: &str, example: &str| {
            let parts = rest.rsplit_once('#').filter(|(place, table)| {
                !place.is_empty() && !table.is_empty() && !table.contains(['@', '/', ':'])
            });
            let parts = parts.map(|(place, table)| (place.to_owned(), table.to_owned()));
            parts.ok_or_else(|| {
                format!("the table name is missing: append it after a #, such as {example}")
            })
        };
        match text.split_once(':') {
            Some(("stream", "")) => Err("the stream name is missing: give stream:NAME".to_owned()),
            Some(("stream", name)) => Ok(Self::Stream(name.into())),
            Some(("sqlite", rest)) => {
                let (path, table) = table(rest, "sqlite:dead-letters.db#orders")?;
                Ok(Self::Sqlite(path.into(), table))
            }
            Some(("postgres" | "postgresql", rest)) => {
                let url = if rest.starts_with("//") { text } else { rest };
                let (url, table) = table(url, "postgres://me@db/shop#dead_letters")?;
                Ok(Self::Postgres(url, table))
            }
            _ if text.is_empty() => Err("the place is empty: give a file, sqlite:PATH#TABLE, \
                                         postgres:URL#TABLE or stream:NAME"
                .to_owned()),
            _ => Ok(Self::File(text.into())),
        }
    }
}

/// Formats the address without its password.
impl fmt::Display for DeadLetterPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Sqlite(path, table) => write!(f, "table {table} of {}", path.display()),
            Self::Postgres(_, table) => write!(f, "table {table}"),
            Self::Stream(stream) => write!(f, "stream {stream}"),
        }
    }
}

impl DeadLetterPlace {
    /// Opens the queue for a consumer of `stream`, and checks that it can be used.
    pub(crate) async fn open(
        &self,
        aws: &AwsClients,
        (stream, summary): (&StreamName, &StreamSummary),
    ) -> Result<DeadLetterQueue, CommandFailure> {
        let into_itself = || {
            CommandFailure::usage(format!(
                "{stream} can't hold its own dead letters, because they would be read again \
                 forever: choose another place"
            ))
        };
        match self {
            Self::File(path) => {
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
                    let folder = folder.display();
                    return Err(CommandFailure::usage(format!(
                        "there is no folder {folder}: create it first"
                    )));
                }
                if path.is_dir() {
                    return Err(CommandFailure::usage(format!(
                        "{self} is a folder: name a file in it"
                    )));
                }
                try_to_write(path, folder.unwrap_or(Path::new("."))).map_err(|error| {
                    CommandFailure::usage(format!("{self} can't be used for dead letters: {error}"))
                })?;
                Ok(DeadLetterFile::new(path).into())
            }
            Self::Stream(other) if other == stream => Err(into_itself()),
            Self::Stream(other) => {
                // A stream has two names: the plain one and its ARN.
                let there = aws.check_if_allowed(other).await?;
                if there.is_some_and(|there| there.arn == summary.arn) {
                    return Err(into_itself());
                }
                Ok(DeadLetterQueue::Stream(other.clone()))
            }
            Self::Sqlite(path, table) => sqlite(path, table, true).await,
            Self::Postgres(url, table) => postgres(url, table).await,
        }
    }

    /// Opens an existing queue. Returns `None` if the file does not exist, because no record was
    /// set aside.
    pub(crate) async fn open_existing(&self) -> Result<Option<DeadLetterQueue>, CommandFailure> {
        match self {
            Self::File(path) => {
                let mut claimed = path.clone().into_os_string();
                claimed.push(".redrive");
                let there = path.exists() || Path::new(&claimed).exists();
                Ok(there.then(|| DeadLetterFile::new(path).into()))
            }
            Self::Sqlite(path, _) if !path.exists() => Err(CommandFailure::usage(format!(
                "there is no file {}: check its name",
                path.display()
            ))),
            Self::Sqlite(path, table) => sqlite(path, table, false).await.map(Some),
            Self::Postgres(url, table) => postgres(url, table).await.map(Some),
            Self::Stream(stream) => Err(CommandFailure::usage(format!(
                "dead letters in stream {stream} are redriven by a consumer of that stream: \
                 `anabranch consume {stream} --from-dead-letter --app NAME --exec CMD`"
            ))),
        }
    }
}

/// Checks that a file can be written, or created in its folder. Leaves no file behind.
fn try_to_write(path: &Path, folder: &Path) -> std::io::Result<()> {
    if path.is_file() {
        return std::fs::OpenOptions::new().append(true).open(path).map(drop);
    }
    if path.exists() { Ok(()) } else { tempfile::tempfile_in(folder).map(drop) }
}

async fn sqlite(path: &Path, table: &str, make: bool) -> Result<DeadLetterQueue, CommandFailure> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(make)
        .busy_timeout(PATIENCE)
        .disable_statement_logging();
    let pool = SqlitePoolOptions::new().max_connections(1).acquire_timeout(PATIENCE);
    let pool = pool.connect_with(options).await.map_err(|error| {
        CommandFailure::usage(format!("{} can't be used for dead letters: {error}", path.display()))
    })?;
    DeadLetterTable::sqlite(pool, table).map(Into::into).map_err(CommandFailure::usage)
}

async fn postgres(url: &str, table: &str) -> Result<DeadLetterQueue, CommandFailure> {
    // Messages must not contain the URL, which may include a password.
    let wrong = |error: sqlx::Error| {
        CommandFailure::usage(format!(
            "the database for dead letters can't be used: {error}; its URL has the form \
             postgres://user:password@host:port/database"
        ))
    };
    let options: PgConnectOptions = url.parse().map_err(wrong)?;
    let options = options.disable_statement_logging();
    let pool = PgPoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(PATIENCE);
    let pool = pool.connect_with(options).await.map_err(wrong)?;
    DeadLetterTable::postgres(pool, table).map(Into::into).map_err(CommandFailure::usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<DeadLetterPlace, &str>) {
        assert_eq!(text.parse(), expected.map_err(str::to_owned), "{text}");
    }

    #[test]
    fn a_place_is_a_file_a_table_or_a_stream() {
        let table = || "p".to_owned();
        check("parked.jsonl", Ok(DeadLetterPlace::File("parked.jsonl".into())));
        check("a#b", Ok(DeadLetterPlace::File("a#b".into())));
        check("stream:parked", Ok(DeadLetterPlace::Stream("parked".into())));
        check("sqlite:a.db#p", Ok(DeadLetterPlace::Sqlite("a.db".into(), table())));
        let url = || "postgres://me:s%23@db/shop".to_owned();
        check("postgres://me:s%23@db/shop#p", Ok(DeadLetterPlace::Postgres(url(), table())));
        check(
            "postgres:postgres://me:s%23@db/shop#p",
            Ok(DeadLetterPlace::Postgres(url(), table())),
        );
        check("stream:", Err("the stream name is missing: give stream:NAME"));
        let behind = "the table name is missing: append it after a #, such as \
                      sqlite:dead-letters.db#orders";
        check("sqlite:a.db", Err(behind));
        let behind = "the table name is missing: append it after a #, such as \
                      postgres://me@db/shop#dead_letters";
        check("postgres://me@db/shop", Err(behind));
        check("postgres://me:a#b@db/shop", Err(behind));
    }
}
