//! Table names, and all statements that the SQL stores send.

use super::dialect::Dialect;
use std::sync::Arc;

/// The tables, in order of creation.
pub(in crate::lease) const TABLES: [&str; 5] =
    ["schema_version", "application", "stream", "worker", "lease"];

/// Columns read from a stream's row, in this order.
pub(in crate::lease) const STREAM: [&str; 4] = ["stream", "t0_ms", "created_ms", "first_sync_done"];

/// Columns read from a worker's row, in this order.
pub(in crate::lease) const WORKER: [&str; 8] =
    ["worker", "counter", "state", "host", "started_ms", "nonce", "streams", "lease_time_ms"];

/// Columns read from a lease's row, in this order.
pub(in crate::lease) const LEASE: [&str; 16] = [
    "stream",
    "shard",
    "owner",
    "term",
    "taker",
    "refused",
    "checkpoint",
    "completed",
    "pending_checkpoint",
    "pending_state",
    "parents",
    "children",
    "hash_start",
    "hash_end",
    "nonce",
    "bytes_per_second",
];

/// Names that distinguish the tables from others in the same database.
#[derive(Clone, Debug)]
pub(crate) struct TableNames {
    /// The schema (PostgreSQL) or the prefix of every name (SQLite).
    space: String,
    /// Prefix of a table's name.
    before_table: String,
    /// Prefix of an index's name. An index is always in the schema of its table.
    before_index: String,
}

impl TableNames {
    /// Names tables in a schema of their own.
    #[cfg(feature = "postgres")]
    pub(crate) fn in_schema(schema: &str) -> Self {
        let before_table = format!("\"{}\".", schema.replace('"', "\"\""));
        Self { space: schema.to_owned(), before_table, before_index: String::new() }
    }

    /// Names tables by a prefix, which must be a plain identifier.
    #[cfg(feature = "sqlite")]
    pub(crate) fn with_prefix(prefix: &str) -> Self {
        Self { space: prefix.to_owned(), before_table: prefix.into(), before_index: prefix.into() }
    }

    /// Returns the schema or the prefix.
    pub(crate) fn space(&self) -> &str {
        &self.space
    }

    /// Returns the name under which the database lists the table.
    pub(in crate::lease) fn listed(&self, table: &str) -> String {
        format!("{}{table}", self.before_index)
    }
}

/// All statements, ready to be sent. Each begins with the application as `$1`.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(in crate::lease) dialect: &'static Dialect,
    pub(in crate::lease) names: TableNames,
    /// Selects the version and all facts about streams.
    pub(in crate::lease) application: Arc<str>,
    /// Selects the version and all workers, in one read.
    pub(in crate::lease) look: Arc<str>,
    /// Selects all leases of the stream `$2`.
    pub(in crate::lease) list: Arc<str>,
    /// Increments the version. Where the database can, notifies the channel `$2` with the payload
    /// `$3`.
    pub(in crate::lease) bump: Arc<str>,
    /// Selects a lease that names the worker `$2`.
    pub(in crate::lease) names_worker: Arc<str>,
    pub(in crate::lease) lease: RowStatements,
    pub(in crate::lease) worker: RowStatements,
    pub(in crate::lease) stream: RowStatements,
    /// Moves a checkpoint if the owner, the term and the previous checkpoint are as given.
    pub(in crate::lease) checkpoint: Arc<str>,
}

/// The statements for one kind of row. Parameters are the key columns, then the other columns.
#[derive(Debug)]
pub(crate) struct RowStatements {
    /// Reads one row.
    pub(in crate::lease) get: Arc<str>,
    /// Reads one row and locks it.
    pub(in crate::lease) lock: Arc<str>,
    /// Inserts the row unless it exists.
    pub(in crate::lease) insert: Arc<str>,
    /// Updates the row. Unknown columns keep their values.
    pub(in crate::lease) update: Arc<str>,
    /// Deletes the row.
    pub(in crate::lease) delete: Arc<str>,
}

impl Statements {
    pub(in crate::lease) fn new(dialect: &'static Dialect, names: TableNames) -> Self {
        let t = &names.before_table;
        let now = dialect.now;
        let of = |alias: &str, columns: &[&str]| {
            columns.iter().map(|c| format!("{alias}.{c}")).collect::<Vec<_>>().join(", ")
        };
        let (streams, workers) = (of("s", &STREAM), of("w", &WORKER));
        let from = format!("FROM {t}application a LEFT JOIN");
        let which = "WHERE a.application = $1";
        let bump = format!(
            "INSERT INTO {t}application AS a (application, version) VALUES ($1, 1) \
             ON CONFLICT (application) DO UPDATE SET version = a.version + 1, updated_at = {now}"
        );
        Self {
            application: format!(
                "SELECT a.version, {streams} {from} {t}stream s \
                 ON s.application = a.application {which}"
            )
            .into(),
            look: format!(
                "SELECT a.version, {workers} {from} {t}worker w \
                 ON w.application = a.application {which}"
            )
            .into(),
            list: format!(
                "SELECT {} FROM {t}lease WHERE application = $1 AND stream = $2",
                LEASE.join(", ")
            )
            .into(),
            bump: if dialect.notifies {
                format!(
                    "WITH moved AS ({bump} RETURNING a.version) \
                     SELECT pg_notify($2, $3)::text FROM moved"
                )
                .into()
            } else {
                bump.into()
            },
            names_worker: format!(
                "SELECT shard FROM {t}lease WHERE application = $1 AND owner = $2 LIMIT 1"
            )
            .into(),
            lease: row(dialect, &format!("{t}lease"), &LEASE, 2),
            worker: row(dialect, &format!("{t}worker"), &WORKER, 1),
            stream: row(dialect, &format!("{t}stream"), &STREAM, 1),
            checkpoint: format!(
                "UPDATE {t}lease SET checkpoint = $7, completed = $8, pending_checkpoint = NULL, \
                 pending_state = NULL, nonce = $9, updated_at = {now} \
                 WHERE application = $1 AND stream = $2 AND shard = $3 AND owner = $4 \
                 AND term = $5 AND checkpoint = $6 RETURNING shard{}",
                dialect.bound_transaction
            )
            .into(),
            dialect,
            names,
        }
    }

    /// Fills this database's SQL fragments into the template of a migration.
    pub(in crate::lease) fn migration(&self, template: &str) -> String {
        let Dialect { text, number, flag, bytes, moment, now, table_end, .. } = self.dialect;
        [
            ("{text}", *text),
            ("{number}", number),
            ("{flag}", flag),
            ("{bytes}", bytes),
            ("{moment}", moment),
            ("{now}", now),
            ("{end}", table_end),
            // Last, so that no name is taken for a placeholder.
            ("{s}", self.names.before_table.trim_end_matches('.')),
            ("{i}", &self.names.before_index),
            ("{t}", &self.names.before_table),
        ]
        .into_iter()
        .fold(template.to_owned(), |text, (mark, word)| text.replace(mark, word))
    }

    /// Returns a query that selects all known columns of a table, and no row.
    pub(in crate::lease) fn probe(&self, table: &str, columns: &[&str]) -> String {
        format!("SELECT {} FROM {}{table} WHERE 1 = 0", columns.join(", "), self.names.before_table)
    }
}

/// Returns the statements for a table whose key is the application and the first `key` columns.
fn row(dialect: &Dialect, table: &str, columns: &[&str], key: usize) -> RowStatements {
    let now = dialect.now;
    let all = columns.join(", ");
    let place = |i: usize| format!("${}", i + 2);
    let equals = |(i, column): (usize, &&str)| format!("{column} = {}", place(i));
    let which: Vec<String> = columns.iter().enumerate().take(key).map(equals).collect();
    let changes: Vec<String> = columns.iter().enumerate().skip(key).map(equals).collect();
    let which = format!("WHERE application = $1 AND {}", which.join(" AND "));
    let values: Vec<String> = (0..columns.len()).map(place).collect();
    RowStatements {
        get: format!("SELECT {all} FROM {table} {which}").into(),
        lock: format!("SELECT {all} FROM {table} {which}{}", dialect.for_update).into(),
        insert: format!(
            "INSERT INTO {table} (application, {all}) VALUES ($1, {}) ON CONFLICT DO NOTHING",
            values.join(", ")
        )
        .into(),
        update: format!("UPDATE {table} SET {}, updated_at = {now} {which}", changes.join(", "))
            .into(),
        delete: format!("DELETE FROM {table} {which}").into(),
    }
}
