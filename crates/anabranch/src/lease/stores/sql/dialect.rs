//! Where PostgreSQL and SQLite differ in words.

/// The words of one database.
#[derive(Debug)]
pub(crate) struct Dialect {
    /// What a text column is called. PostgreSQL's texts compare by their bytes, as ours do.
    pub(in crate::lease) text: &'static str,
    /// A 64-bit number.
    pub(in crate::lease) number: &'static str,
    /// A yes or no.
    pub(in crate::lease) flag: &'static str,
    /// Bytes.
    pub(in crate::lease) bytes: &'static str,
    /// A moment.
    pub(in crate::lease) moment: &'static str,
    /// The present moment, for operators to read.
    pub(in crate::lease) now: &'static str,
    /// What stands after the columns of a table.
    pub(in crate::lease) table_end: &'static str,
    /// What locks the rows of a `SELECT`. SQLite has one lock, which the transaction holds.
    pub(in crate::lease) for_update: &'static str,
    /// The tables whose names begin with `$1`, or that lie in the schema `$1`.
    pub(in crate::lease) tables: &'static str,
    /// Finds the column `$3` of the table `$2` in the schema, or behind the prefix, `$1`.
    pub(in crate::lease) column: &'static str,
    /// Bounds the time in a queue for a table, where there are such queues.
    pub(in crate::lease) queue_for: &'static str,
    /// Keeps a second worker from changing the schema at the same time, where `BEGIN` does not.
    pub(in crate::lease) schema_lock: Option<&'static str>,
    /// Whether the schema `$1` is there, where tables lie in schemas.
    pub(in crate::lease) schema_is_there: Option<&'static str>,
    /// Whether the database tells everybody who listens that the plan has changed.
    pub(in crate::lease) notifies: bool,
    /// Ends a transaction that is left open for `$10` after it locked a row, where others would
    /// have to wait for it.
    pub(in crate::lease) bound_transaction: &'static str,
}

/// The words of PostgreSQL.
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

/// The words of SQLite.
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
