//! Differences between PostgreSQL and SQLite in SQL.

/// SQL fragments of one database.
#[derive(Debug)]
pub(crate) struct Dialect {
    /// Type of a text column. It compares by bytes, as the library does.
    pub(in crate::lease) text: &'static str,
    /// Type of a 64-bit number column.
    pub(in crate::lease) number: &'static str,
    /// Type of a boolean column.
    pub(in crate::lease) flag: &'static str,
    /// Type of a binary column.
    pub(in crate::lease) bytes: &'static str,
    /// Type of a timestamp column.
    pub(in crate::lease) moment: &'static str,
    /// Expression for the current time, for operators to read.
    pub(in crate::lease) now: &'static str,
    /// Suffix of `CREATE TABLE`.
    pub(in crate::lease) table_end: &'static str,
    /// Suffix of a `SELECT` that locks its rows. SQLite has a single lock, which the transaction
    /// holds.
    pub(in crate::lease) for_update: &'static str,
    /// Query for the tables in the schema `$1`, or with the prefix `$1`.
    pub(in crate::lease) tables: &'static str,
    /// Query for the column `$3` of the table `$2` in the schema, or with the prefix, `$1`.
    pub(in crate::lease) column: &'static str,
    /// Statement that limits the time in a lock queue of a table, where there are such queues.
    pub(in crate::lease) queue_for: &'static str,
    /// Query that keeps a second worker from changing the schema concurrently, where `BEGIN` does
    /// not.
    pub(in crate::lease) schema_lock: Option<&'static str>,
    /// Query for the schema `$1`, where tables are in schemas.
    pub(in crate::lease) schema_is_there: Option<&'static str>,
    /// True if the database can notify listeners that the plan has changed.
    pub(in crate::lease) notifies: bool,
    /// Expression that ends a transaction left idle for `$10` after it has locked a row, where
    /// others would have to wait for it.
    pub(in crate::lease) bound_transaction: &'static str,
}

/// SQL fragments of PostgreSQL.
#[cfg(feature = "postgres")]
pub(crate) const POSTGRES: Dialect = Dialect {
    text: "text COLLATE \"C\"",
    number: "bigint",
    flag: "boolean",
    bytes: "bytea",
    moment: "timestamptz",
    now: "now()",
    table_end: "",
    for_update: " FOR UPDATE",
    tables: "SELECT c.relname::text FROM pg_catalog.pg_class c \
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = $1 AND c.relkind IN ('r', 'p', 'v', 'm', 'f')",
    column: "SELECT a.attname::text FROM pg_catalog.pg_attribute a \
             JOIN pg_catalog.pg_class c ON c.oid = a.attrelid \
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = $1 AND c.relname = $2 AND a.attname = $3 AND NOT a.attisdropped",
    queue_for: "SET LOCAL lock_timeout = '{ms}ms'; ",
    schema_lock: Some("SELECT pg_advisory_xact_lock(hashtext('anabranch schema ' || $1))::text"),
    schema_is_there: Some("SELECT nspname::text FROM pg_catalog.pg_namespace WHERE nspname = $1"),
    notifies: true,
    bound_transaction: ", set_config('idle_in_transaction_session_timeout', $10, true)",
};

/// SQL fragments of SQLite.
#[cfg(feature = "sqlite")]
pub(crate) const SQLITE: Dialect = Dialect {
    text: "TEXT",
    number: "INTEGER",
    flag: "INTEGER",
    bytes: "BLOB",
    moment: "TEXT",
    now: "(strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))",
    table_end: " STRICT",
    for_update: "",
    tables: "SELECT name FROM sqlite_schema \
             WHERE type IN ('table', 'view') AND substr(name, 1, length($1)) = $1",
    column: "SELECT name FROM pragma_table_info($1 || $2) WHERE name = $3",
    queue_for: "",
    schema_lock: None,
    schema_is_there: None,
    notifies: false,
    bound_transaction: "",
};
