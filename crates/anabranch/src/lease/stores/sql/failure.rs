//! Failures of SQL statements, and their mapping to store errors.

use crate::lease::StoreError;
use std::time::Duration;

/// Reason why a statement was not executed, or why its answer could not be read.
#[derive(Debug)]
pub(crate) enum SqlFailure {
    /// An error of the database or of the connection to it.
    Sql(sqlx::Error),
    /// No answer arrived in time.
    NoAnswer {
        /// Time limit that was exceeded.
        within: Duration,
    },
    /// All connections are in use; nothing was sent.
    PoolBusy {
        /// Time spent waiting.
        waited: Duration,
    },
    /// The object to change is in use by others; nothing was changed.
    InUse(String),
    /// A row that can't be read.
    Unreadable {
        /// Key of the row, as far as it was read.
        row: String,
        /// The problem with the row.
        detail: String,
    },
    /// The tables are not a lease store's, or have an unknown version.
    Foreign(String),
}

/// States whether the connection was lost in a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LostConnection {
    Yes,
    No,
}

/// The error code of a database.
enum Code {
    #[cfg(feature = "postgres")]
    Postgres(String),
    /// SQLite's primary result code, without the extended part.
    #[cfg(feature = "sqlite")]
    Sqlite(i32),
}

impl From<sqlx::Error> for SqlFailure {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

impl SqlFailure {
    /// Determines whether the connection was lost, so that another one may succeed.
    pub(crate) fn lost_connection(&self) -> LostConnection {
        let lost = match self {
            Self::NoAnswer { .. } => true,
            Self::PoolBusy { .. } | Self::InUse(_) | Self::Unreadable { .. } | Self::Foreign(_) => {
                false
            }
            Self::Sql(error) => match code(error) {
                // Codes with which a server closes a connection: it shuts down, or it ends this
                // session.
                #[cfg(feature = "postgres")]
                Some(Code::Postgres(code)) => {
                    code.starts_with("57P") || code.starts_with("08") || code == "25P03"
                }
                #[cfg(feature = "sqlite")]
                Some(Code::Sqlite(_)) => false,
                None => matches!(
                    error,
                    sqlx::Error::Io(_)
                        | sqlx::Error::Tls(_)
                        | sqlx::Error::Protocol(_)
                        | sqlx::Error::WorkerCrashed
                ),
            },
        };
        if lost { LostConnection::Yes } else { LostConnection::No }
    }

    /// Returns true if another transaction was in the way, so that a retry may succeed at once.
    pub(in crate::lease) fn is_busy(&self) -> bool {
        let Self::Sql(error) = self else { return false };
        match code(error) {
            // A lock, a statement timeout, a conflict between transactions.
            #[cfg(feature = "postgres")]
            Some(Code::Postgres(code)) => {
                matches!(code.as_str(), "55P03" | "57014" | "40001" | "40P01")
            }
            #[cfg(feature = "sqlite")]
            Some(Code::Sqlite(code)) => matches!(code, 5 | 6),
            None => false,
        }
    }

    /// Returns true if an error in answer to `COMMIT` means that the transaction was rolled back.
    /// After any other error the result is unknown: a server can commit and then fail to report it.
    pub(in crate::lease) fn rolled_back(&self) -> bool {
        let Self::Sql(error) = self else { return false };
        match code(error) {
            #[cfg(feature = "postgres")]
            Some(Code::Postgres(code)) => {
                matches!(code.as_str(), "40001" | "40002" | "40P01") || code.starts_with("23")
            }
            // Busy, locked, read-only, full, constraint: each leaves the transaction uncommitted.
            #[cfg(feature = "sqlite")]
            Some(Code::Sqlite(code)) => matches!(code, 5 | 6 | 8 | 13 | 19),
            None => false,
        }
    }

    /// Returns true if a schema, a table or a column is missing.
    pub(in crate::lease) fn is_missing_table(&self) -> bool {
        let Self::Sql(error) = self else { return false };
        match code(error) {
            #[cfg(feature = "postgres")]
            Some(Code::Postgres(code)) => {
                matches!(code.as_str(), "42P01" | "42703" | "42883" | "42804" | "3F000")
            }
            #[cfg(feature = "sqlite")]
            Some(Code::Sqlite(code)) => code == 1,
            None => false,
        }
    }

    /// Converts the failure into a [`StoreError`].
    pub(crate) fn of_store(self, store: &str) -> StoreError {
        let store = store.to_owned();
        match self {
            Self::NoAnswer { within } => StoreError::Unreachable {
                store,
                detail: format!("no answer within {} ms", within.as_millis()),
                source: None,
            },
            Self::PoolBusy { waited } => StoreError::Throttled {
                store,
                detail: format!(
                    "no connection was free for {} ms; allow more connections, or write less often",
                    waited.as_millis()
                ),
            },
            Self::InUse(detail) => StoreError::Busy { store, detail },
            Self::Unreadable { row, detail } => StoreError::UnreadableRow { store, row, detail },
            Self::Foreign(detail) => StoreError::ForeignSchema { store, detail },
            Self::Sql(error) => of_sql(store, error),
        }
    }
}

fn of_sql(store: String, error: sqlx::Error) -> StoreError {
    let said = match &error {
        sqlx::Error::Database(error) => error.message().to_owned(),
        other => other.to_string(),
    };
    let unreachable = |store, detail, error: sqlx::Error| StoreError::Unreachable {
        store,
        detail,
        source: Some(Box::new(error)),
    };
    match code(&error) {
        #[cfg(feature = "postgres")]
        Some(Code::Postgres(code)) => match code.as_str() {
            "55P03" => StoreError::Busy {
                store,
                detail: "another transaction, possibly of the application itself, holds the row \
                         lock; it must end first"
                    .to_owned(),
            },
            "57014" | "40001" | "40P01" => StoreError::Busy { store, detail: said },
            "42501" => StoreError::Denied { store, detail: said },
            "3D000" => StoreError::Unusable {
                store,
                detail: format!("{said}: create it (CREATE DATABASE), or use another database"),
            },
            "25006" => unreachable(
                store,
                format!("{said}: this server is read-only, possibly a standby"),
                error,
            ),
            "42P01" | "3F000" => StoreError::Missing {
                store,
                detail: format!("{said}: call `prepare` first, or use another schema"),
            },
            "42703" => StoreError::ForeignSchema {
                store,
                detail: format!("{said}: call `prepare` first, or use another schema"),
            },
            code if code.starts_with("28") => StoreError::Denied { store, detail: said },
            code if code.starts_with("53") => StoreError::Throttled { store, detail: said },
            code if code.starts_with("57P") || code.starts_with("08") || code == "25P03" => {
                unreachable(store, said, error)
            }
            _ => StoreError::Unusable { store, detail: said },
        },
        #[cfg(feature = "sqlite")]
        Some(Code::Sqlite(code)) => match code {
            5 | 6 => StoreError::Busy { store, detail: said },
            3 | 8 | 23 => StoreError::Denied { store, detail: said },
            14 => StoreError::Unusable {
                store,
                detail: format!("{said}: the folder must exist and be writable"),
            },
            26 => StoreError::ForeignSchema { store, detail: format!("{said}: use another file") },
            1 if said.contains("no such table") => StoreError::Missing {
                store,
                detail: format!("{said}: call `prepare` first, or use another file"),
            },
            1 => StoreError::ForeignSchema {
                store,
                detail: format!("{said}: call `prepare` first, or use another file"),
            },
            10 | 13 => unreachable(store, said, error),
            _ => StoreError::Unusable { store, detail: said },
        },
        None => match error {
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::WorkerCrashed => unreachable(store, said, error),
            _ => StoreError::Unusable { store, detail: said },
        },
    }
}

fn code(error: &sqlx::Error) -> Option<Code> {
    let sqlx::Error::Database(error) = error else { return None };
    #[cfg(feature = "postgres")]
    if let Some(error) = error.try_downcast_ref::<sqlx::postgres::PgDatabaseError>() {
        return Some(Code::Postgres(error.code().to_owned()));
    }
    #[cfg(feature = "sqlite")]
    if let Some(code) = error.code().and_then(|code| code.parse::<i32>().ok()) {
        return Some(Code::Sqlite(code & 0xff));
    }
    None
}
