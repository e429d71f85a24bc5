//! Database address and a session in which every call has a timeout.

use crate::error::RelayError;
use crate::leadership::Leadership;
use anabranch::postgres::{session, url};
use sqlx::postgres::{PgArguments, PgConnectOptions, PgConnection, PgRow};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection as _};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// Time after which a statement without an answer counts as a lost connection. The server's own
/// `statement_timeout` is shorter, so that its answer arrives in time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Timeout for opening a connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// Session settings. Keep-alives hold idle connections open and detect lost ones. Sequential scans
/// are off, because plans must use indexes even while the statistics describe an empty table.
const SESSION: [(&str, &str); 7] = [
    ("tcp_keepalives_idle", "5"),
    ("tcp_keepalives_interval", "2"),
    ("tcp_keepalives_count", "3"),
    ("enable_seqscan", "off"),
    ("jit", "off"),
    ("lock_timeout", "2s"),
    ("statement_timeout", "25s"),
];

/// Hint for a connection through a pooler in transaction mode.
pub(crate) const SESSION_OF_ITS_OWN: &str = "the relay's lock belongs to a session, which a pooler \
                                             in transaction mode does not keep: connect to the \
                                             server itself, or to a pool in session mode";

/// SQLSTATE of a lock timeout.
const LOCK_NOT_AVAILABLE: &str = "55P03";
/// SQLSTATE of a statement timeout.
const QUERY_CANCELED: &str = "57014";

/// Builds `PgArguments` from the given values.
macro_rules! arguments {
    ($($value:expr),* $(,)?) => {{
        #[allow(unused_mut, reason = "a statement may have no arguments")]
        let mut arguments = sqlx::postgres::PgArguments::default();
        $(
            sqlx::Arguments::add(&mut arguments, $value)
                .expect("numbers and texts can always be encoded");
        )*
        arguments
    }};
}
pub(crate) use arguments;

/// Address of a PostgreSQL database. Its messages never contain the password.
#[derive(Clone, Debug)]
pub struct Database {
    options: PgConnectOptions,
    /// Label for messages.
    place: Arc<str>,
}

impl Database {
    /// Parses `postgres://user:password@host:port/name`. `libpq` variables (`PGPASSWORD`,
    /// `PGSSLMODE` and so on) supply what the URL omits.
    pub fn from_url(url: &str) -> Result<Self, RelayError> {
        let options = url::parse(url).map_err(|detail| RelayError::Url { detail })?;
        let mut options = options.disable_statement_logging();
        if options.get_application_name().is_none() {
            options = options.application_name("anabranch relay");
        }
        let place = url::label(&options).into();
        Ok(Self { options, place })
    }

    /// Returns the address, for a connection that only listens.
    pub(crate) fn options(&self) -> &PgConnectOptions {
        &self.options
    }

    /// Opens a session.
    pub(crate) async fn connect(&self) -> Result<DatabaseSession, RelayError> {
        let options = self.options.clone().options(SESSION);
        let connected =
            tokio::time::timeout(CONNECT_PATIENCE, PgConnection::connect_with(&options));
        let connection = match Box::pin(connected).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => return Err(self.failed("connect", &error)),
            Err(_) => {
                let patience = CONNECT_PATIENCE.as_secs();
                let detail =
                    format!("no answer within {patience} s; check host, port and firewall");
                return Err(self.database_error("connect", detail));
            }
        };
        Ok(DatabaseSession { connection, database: self.clone(), lead: None })
    }

    fn failed(&self, doing: &'static str, error: &sqlx::Error) -> RelayError {
        let detail = match hint(error) {
            Some(way_out) => format!("{error}; {way_out}"),
            None => error.to_string(),
        };
        self.database_error(doing, detail)
    }

    fn database_error(&self, doing: &'static str, detail: String) -> RelayError {
        RelayError::Database { place: self.place.to_string(), doing, detail }
    }
}

/// Returns a hint for the operator, if the error has a known remedy.
fn hint(error: &sqlx::Error) -> Option<&'static str> {
    if matches!(error, sqlx::Error::Io(_)) {
        return Some("check host and port, and that the server is running");
    }
    let said = error.as_database_error()?;
    let code = said.code()?;
    Some(match &*code {
        "42P05" | "26000" => SESSION_OF_ITS_OWN,
        "08P01" if said.message().contains("startup parameter") => SESSION_OF_ITS_OWN,
        "28P01" | "28000" => "check user and password, and what pg_hba.conf allows",
        "3D000" => "create the database, or check its name in the URL",
        "42501" => {
            "use a role that has the privilege, or grant it: 'anabranch relay init --print' shows \
             the statements"
        }
        "42P01" | "42703" => "run 'anabranch relay init' with the same options",
        "53300" => "end some sessions, or raise max_connections",
        _ => return None,
    })
}

/// Returns true if the statement failed because another session holds a lock.
fn is_locked(error: &sqlx::Error) -> bool {
    let said = error.as_database_error();
    said.is_some_and(|said| said.code().is_some_and(|code| code == LOCK_NOT_AVAILABLE))
}

/// Returns true if the server refused a statement but keeps the session: a constraint, a trigger, a
/// missing privilege or a statement timeout.
fn is_refused(error: &sqlx::Error) -> bool {
    let said = error.as_database_error();
    said.and_then(sqlx::error::DatabaseError::code).is_some_and(|code| {
        ["23", "42", "P0"].iter().any(|class| code.starts_with(class)) || code == QUERY_CANCELED
    })
}

/// Result of a statement that changes rows.
#[derive(Debug)]
pub(crate) enum ChangeResult {
    /// Number of rows changed.
    Rows(u64),
    /// Another session holds a lock on one of the rows. Nothing was changed.
    Locked,
    /// The server refused the statement. Nothing was changed.
    Refused(RelayError),
}

/// A database session. It is not reused after an error, because an answer may still be on its way.
#[derive(Debug)]
pub(crate) struct DatabaseSession {
    connection: PgConnection,
    /// Address, for messages.
    database: Database,
    /// Leadership that each answer renews, for the session of a relay.
    lead: Option<Leadership>,
}

/// An SQL statement with its arguments.
pub(crate) struct Statement<'a> {
    pub(crate) sql: &'a str,
    pub(crate) arguments: PgArguments,
    /// Purpose as a verb phrase, for messages.
    pub(crate) doing: &'static str,
}

impl DatabaseSession {
    /// Makes each later answer renew this leadership.
    pub(crate) fn set_leadership(&mut self, lead: Leadership) {
        self.lead = Some(lead);
    }

    /// Waits for an answer, and renews the leadership as of the time of the request.
    async fn answer<T>(
        lead: Option<&Leadership>,
        answer: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Option<Result<T, sqlx::Error>> {
        let asked_ms = lead.map(Leadership::now_ms);
        let answer = tokio::time::timeout(PATIENCE, answer).await.ok()?;
        // A lock timeout proves that the session is alive. Other errors may be the server's last
        // message.
        if answer.as_ref().map_or_else(is_locked, |_| true) {
            lead.zip(asked_ms).into_iter().for_each(|(lead, asked_ms)| lead.note_answer(asked_ms));
        }
        Some(answer)
    }

    /// Returns the time of the next ping, before which the server must not consider the session
    /// dead.
    pub(crate) fn ping_at_ms(&self) -> u64 {
        self.lead.as_ref().map_or(u64::MAX, Leadership::ping_at_ms)
    }

    /// Sends a trivial statement, so that the server does not consider the session dead.
    pub(crate) async fn ping(&mut self) -> Result<(), RelayError> {
        let ask = Statement { sql: "SELECT 1", arguments: arguments![], doing: "answer" };
        self.row(ask).await.map(drop)
    }

    /// Waits for `work` and pings the session meanwhile.
    pub(crate) async fn while_alive<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Result<T, RelayError> {
        let mut work = pin!(work);
        let Some(lead) = self.lead.clone() else { return Ok(work.await) };
        loop {
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                () = lead.wait_until_ping() => self.ping().await?,
            }
        }
    }

    /// Runs a statement and returns its rows.
    pub(crate) async fn rows(&mut self, ask: Statement<'_>) -> Result<Vec<PgRow>, RelayError> {
        let query = sqlx::query_with(AssertSqlSafe(ask.sql), ask.arguments);
        let answer = Box::pin(query.fetch_all(&mut self.connection));
        match Self::answer(self.lead.as_ref(), answer).await {
            Some(answer) => answer.map_err(|error| self.database.failed(ask.doing, &error)),
            None => Err(self.database.database_error(ask.doing, "no answer in time".to_owned())),
        }
    }

    /// Runs a statement and returns its first row.
    pub(crate) async fn row(&mut self, ask: Statement<'_>) -> Result<PgRow, RelayError> {
        let doing = ask.doing;
        let row = self.rows(ask).await?.into_iter().next();
        row.ok_or_else(|| {
            self.database.database_error(doing, "the query returned no row".to_owned())
        })
    }

    /// Runs a statement and returns the number of rows that it changed.
    pub(crate) async fn execute(&mut self, ask: Statement<'_>) -> Result<u64, RelayError> {
        let doing = ask.doing;
        match self.change(ask).await? {
            ChangeResult::Rows(count) => Ok(count),
            ChangeResult::Locked => Err(self
                .database
                .database_error(doing, "another transaction has locked the row".to_owned())),
            ChangeResult::Refused(why) => Err(why),
        }
    }

    /// Runs a statement that may be refused.
    pub(crate) async fn change(&mut self, ask: Statement<'_>) -> Result<ChangeResult, RelayError> {
        let query = sqlx::query_with(AssertSqlSafe(ask.sql), ask.arguments);
        let answer = Box::pin(query.execute(&mut self.connection));
        match Self::answer(self.lead.as_ref(), answer).await {
            Some(Ok(done)) => Ok(ChangeResult::Rows(done.rows_affected())),
            Some(Err(error)) if is_locked(&error) => Ok(ChangeResult::Locked),
            Some(Err(error)) => {
                let why = self.database.failed(ask.doing, &error);
                if is_refused(&error) { Ok(ChangeResult::Refused(why)) } else { Err(why) }
            }
            None => Err(self.database.database_error(ask.doing, "no answer in time".to_owned())),
        }
    }

    /// Runs several statements as one transaction.
    pub(crate) async fn script(
        &mut self,
        sql: &str,
        doing: &'static str,
    ) -> Result<(), RelayError> {
        match tokio::time::timeout(PATIENCE, self.long_script(sql, doing)).await {
            Ok(done) => done,
            Err(_) => Err(self.database.database_error(doing, "no answer in time".to_owned())),
        }
    }

    /// Runs several statements like `script`, but without a timeout, for example to build an index.
    pub(crate) async fn long_script(
        &mut self,
        sql: &str,
        doing: &'static str,
    ) -> Result<(), RelayError> {
        let answer = Box::pin(sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut self.connection));
        answer.await.map(drop).map_err(|error| self.database.failed(doing, &error))
    }

    /// Returns true if this connection and `other` each keep their session.
    pub(crate) async fn keeps_its_session(&mut self, other: &mut Self) -> Result<bool, RelayError> {
        let kept = session::keeps_session(&mut self.connection, &mut other.connection, PATIENCE);
        let kept = Box::pin(kept).await;
        kept.map_err(|error| self.database.failed("check whether sessions are kept", &error))
    }

    /// Closes the connection cleanly, so that the server need not detect its loss.
    pub(crate) async fn close(self) {
        let _closed =
            tokio::time::timeout(CONNECT_PATIENCE, Box::pin(self.connection.close())).await;
    }

    /// Returns an error of this database that was not reported by a statement.
    pub(crate) fn refused(&self, doing: &'static str, detail: String) -> RelayError {
        self.database.database_error(doing, detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_url_is_refused_without_being_repeated() {
        for (url, word) in [
            ("", "postgres://"),
            ("mysql://me:hunter2@host/db", "postgres://"),
            ("postgres://me:hunter2@host:port/db", "port"),
            ("postgres://me:hunter2/x@host/db", "percent-encode"),
        ] {
            let error = Database::from_url(url).unwrap_err().to_string();
            assert!(error.contains(word), "{url}: {error}");
            assert!(!error.contains("hunter2"), "{url}: {error}");
        }
    }
}
