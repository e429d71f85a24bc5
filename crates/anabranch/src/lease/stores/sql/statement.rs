//! The tables' names, and every statement that the stores send.

use super::dialect::Dialect;
use std::sync::Arc;

/// The tables, in the order in which they are made.
pub(in crate::lease) const TABLES: [&str; 5] =
    ["schema_version", "application", "stream", "worker", "lease"];

/// What is read of a stream's facts, in this order.
pub(in crate::lease) const STREAM: [&str; 4] = ["stream", "t0_ms", "created_ms", "first_sync_done"];

/// What is read of a worker, in this order.
pub(in crate::lease) const WORKER: [&str; 8] =
    ["worker", "counter", "state", "host", "started_ms", "nonce", "streams", "lease_time_ms"];

/// What is read of a lease, in this order.
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

/// How the tables are told apart from those of others in the same database.
#[derive(Clone, Debug)]
pub(crate) struct TableNames {
    /// The schema (PostgreSQL) or the prefix of every name (SQLite).
    space: String,
    /// What stands before a table's name.
    before_table: String,
    /// What stands before the name of an index, which lies where its table does.
    before_index: String,
}

impl TableNames {
    /// Tables in a schema of their own.
    #[cfg(feature = "postgres")]
    pub(crate) fn in_schema(schema: &str) -> Self {
        let before_table = format!("\"{}\".", schema.replace('"', "\"\""));
        Self { space: schema.to_owned(), before_table, before_index: String::new() }
    }

    /// Tables with a prefix, which has to be a plain name.
    #[cfg(feature = "sqlite")]
    pub(crate) fn with_prefix(prefix: &str) -> Self {
        Self { space: prefix.to_owned(), before_table: prefix.into(), before_index: prefix.into() }
    }

    /// The schema or the prefix.
    pub(crate) fn space(&self) -> &str {
        &self.space
    }

    /// The name under which the database lists the table.
    pub(in crate::lease) fn listed(&self, table: &str) -> String {
        format!("{}{table}", self.before_index)
    }
}

/// Every statement, ready to be sent. All begin with the application as `$1`.
#[derive(Debug)]
pub(crate) struct Statements {
    /// The words of the database.
    pub(in crate::lease) dialect: &'static Dialect,
    /// How the tables are called.
    pub(in crate::lease) names: TableNames,
    /// The version and all facts about streams.
    pub(in crate::lease) application: Arc<str>,
    /// The version and all workers, in one read.
    pub(in crate::lease) look: Arc<str>,
    /// All leases of the stream `$2`.
    pub(in crate::lease) list: Arc<str>,
    /// Moves the version, and tells the channel `$2` of it with `$3` where the database can.
    pub(in crate::lease) bump: Arc<str>,
    /// Whether a lease names the worker `$2`.
    pub(in crate::lease) names_worker: Arc<str>,
    /// The rows of leases.
    pub(in crate::lease) lease: RowStatements,
    /// The rows of workers.
    pub(in crate::lease) worker: RowStatements,
    /// The rows of streams.
    pub(in crate::lease) stream: RowStatements,
    /// Moves a checkpoint if its owner, its term and the checkpoint before it are as given.
    pub(in crate::lease) checkpoint: Arc<str>,
}

/// The statements for one kind of row. Its key comes first, then its other columns.
#[derive(Debug)]
pub(crate) struct RowStatements {
    /// Reads one row.
    pub(in crate::lease) get: Arc<str>,
    /// Reads one row and locks it.
    pub(in crate::lease) lock: Arc<str>,
    /// Makes the row, unless there is one.
    pub(in crate::lease) insert: Arc<str>,
    /// Changes the row. Columns that we don't know stay.
    pub(in crate::lease) update: Arc<str>,
    /// Removes the row.
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

    /// The template of a migration with this database's words in it.
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
            // Last, so that no name is taken for a mark.
            ("{s}", self.names.before_table.trim_end_matches('.')),
            ("{i}", &self.names.before_index),
            ("{t}", &self.names.before_table),
        ]
        .into_iter()
        .fold(template.to_owned(), |text, (mark, word)| text.replace(mark, word))
    }

    /// A read of all columns that we know of a table, of no row.
    pub(in crate::lease) fn probe(&self, table: &str, columns: &[&str]) -> String {
        format!("SELECT {} FROM {}{table} WHERE 1 = 0", columns.join(", "), self.names.before_table)
    }
}

/// The statements for a table whose key is the application and the first `key` columns.
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
