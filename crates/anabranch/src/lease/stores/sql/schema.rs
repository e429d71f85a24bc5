//! The schema of the tables, and the check of existing ones, which refuses foreign tables.
//!
//! A migration only adds nullable columns, so that workers of the previous version keep working
//! during a deploy. The table `schema_version` holds the current version, and the oldest version
//! that may use the tables. So a worker of the previous version can also be restarted.

use super::cell::Cell;
use super::failure::SqlFailure;
use super::link::SqlExecutor;
use super::statement::{LEASE, STREAM, TABLES, WORKER};
use super::store::SqlStore;
use std::sync::Arc;

/// Creates the tables of version 1.
pub(in crate::lease) const TABLES_OF_1: &str = "
CREATE TABLE {t}schema_version (
    version {number} NOT NULL PRIMARY KEY,
    updated_at {moment} NOT NULL DEFAULT {now}
){end};
CREATE TABLE {t}application (
    application {text} NOT NULL PRIMARY KEY,
    version {number} NOT NULL,
    updated_at {moment} NOT NULL DEFAULT {now}
){end};
CREATE TABLE {t}stream (
    application {text} NOT NULL,
    stream {text} NOT NULL,
    t0_ms {number} NOT NULL,
    created_ms {number} NOT NULL,
    first_sync_done {flag} NOT NULL,
    updated_at {moment} NOT NULL DEFAULT {now},
    PRIMARY KEY (application, stream)
){end};
CREATE TABLE {t}worker (
    application {text} NOT NULL,
    worker {text} NOT NULL,
    counter {number} NOT NULL,
    state {text} NOT NULL,
    host {text} NOT NULL,
    started_ms {number} NOT NULL,
    nonce {number} NOT NULL,
    updated_at {moment} NOT NULL DEFAULT {now},
    PRIMARY KEY (application, worker)
){end};
CREATE TABLE {t}lease (
    application {text} NOT NULL,
    stream {text} NOT NULL,
    shard {text} NOT NULL,
    owner {text},
    term {number} NOT NULL,
    taker {text},
    refused {flag} NOT NULL,
    checkpoint {text} NOT NULL,
    completed {flag} NOT NULL,
    pending_checkpoint {text},
    pending_state {bytes},
    parents {text} NOT NULL,
    children {text} NOT NULL,
    hash_start {text},
    hash_end {text},
    nonce {number} NOT NULL,
    updated_at {moment} NOT NULL DEFAULT {now},
    PRIMARY KEY (application, stream, shard)
){end};
CREATE INDEX {i}lease_owner ON {t}lease (application, owner);
";

/// A nullable column that a later version adds.
pub(in crate::lease) struct AddedColumn {
    pub(in crate::lease) table: &'static str,
    pub(in crate::lease) column: &'static str,
    pub(in crate::lease) kind: &'static str,
}

/// Columns added by each version after the first.
pub(in crate::lease) const ADDED: [&[AddedColumn]; 3] = [
    &[
        AddedColumn { table: "lease", column: "bytes_per_second", kind: "{number}" },
        AddedColumn { table: "worker", column: "streams", kind: "{text}" },
    ],
    &[AddedColumn { table: "schema_version", column: "min_reader", kind: "{number}" }],
    &[AddedColumn { table: "worker", column: "lease_time_ms", kind: "{number}" }],
];

/// The schema version that this release creates.
pub(in crate::lease) const VERSION: usize = 1 + ADDED.len();

/// The oldest version whose workers may use tables of [`VERSION`]. Such workers leave unknown
/// columns of the rows that they write unchanged. A version for which that is not enough must raise
/// this number.
pub(in crate::lease) const MIN_READER: usize = 3;

const _: () = assert!(MIN_READER <= VERSION);

/// The tables found in the database under the store's names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::lease) enum FoundSchema {
    /// No tables.
    Nothing,
    /// Tables of this older version.
    Version(usize),
    /// Tables of this release's version, or of a later one that it may use.
    Usable,
}

impl SqlStore {
    /// Inspects the tables under the store's names. Returns an error if they must not be used.
    pub(in crate::lease) async fn find_tables(
        &self,
        wire: &mut SqlExecutor<'_>,
    ) -> Result<FoundSchema, SqlFailure> {
        let names = &self.statements.names;
        let space = names.space();
        let all =
            wire.rows(&self.statements.dialect.tables.into(), vec![Cell::text(space)]).await?;
        let is_there = |table: &str| all.contains(&vec![Cell::text(&names.listed(table))]);
        let ours: Vec<&str> = TABLES.into_iter().filter(|table| is_there(table)).collect();
        if ours.is_empty() {
            return Ok(FoundSchema::Nothing);
        }
        if ours.len() < TABLES.len() {
            return Err(SqlFailure::Foreign(format!(
                "table {} exists, but table {} does not, so these are not the tables of a lease \
                 store: use another schema or prefix",
                names.listed(ours[0]),
                TABLES
                    .iter()
                    .find(|table| !ours.contains(table))
                    .map_or_else(String::new, |t| names.listed(t)),
            )));
        }
        let version = self.version(wire).await?;
        if version < VERSION as u64 {
            return Ok(FoundSchema::Version(usize::try_from(version).unwrap_or(0)));
        }
        if version > VERSION as u64 {
            self.may_use(wire, version).await?;
        }
        self.probe(wire).await?;
        Ok(FoundSchema::Usable)
    }

    /// Refuses tables of a later version, unless that version permits this release.
    async fn may_use(&self, wire: &mut SqlExecutor<'_>, version: u64) -> Result<(), SqlFailure> {
        let asked = self
            .statements
            .migration("SELECT min_reader FROM {t}schema_version WHERE version = $1");
        let rows = wire.rows(&Arc::from(asked), vec![Cell::number(version)]).await?;
        let known = VERSION as u64;
        let since = match rows.into_iter().flatten().next() {
            Some(Cell::Number(oldest @ 1..)) if oldest.cast_unsigned() <= known => return Ok(()),
            Some(Cell::Number(oldest @ 1..)) => format!(
                ", which releases with version {oldest} or \
                                                         later support"
            ),
            _ => String::new(),
        };
        Err(SqlFailure::Foreign(format!(
            "its tables have version {version}{since}, but this release supports version {known}: \
             use the release that upgraded them, or a newer one; continue the deploy with it, \
             since the upgrade cannot be rolled back"
        )))
    }

    async fn version(&self, wire: &mut SqlExecutor<'_>) -> Result<u64, SqlFailure> {
        let last = self.statements.migration("SELECT max(version) FROM {t}schema_version");
        let rows = wire.rows(&Arc::from(last), vec![]).await.map_err(|failure| {
            if failure.is_missing_table() { self.not_ours(failure) } else { failure }
        })?;
        match rows.into_iter().flatten().next() {
            Some(Cell::Number(version @ 1..)) => Ok(version.cast_unsigned()),
            other => Err(SqlFailure::Foreign(format!(
                "table {} contains {other:?} instead of a version: use another schema or prefix",
                self.statements.names.listed("schema_version"),
            ))),
        }
    }

    /// Checks that the tables have the expected columns. If not, they belong to something else.
    async fn probe(&self, wire: &mut SqlExecutor<'_>) -> Result<(), SqlFailure> {
        let tables: [(&str, &[&str]); 4] = [
            ("application", &["application", "version"]),
            ("stream", &STREAM),
            ("worker", &WORKER),
            ("lease", &LEASE),
        ];
        for (table, columns) in tables {
            let probe: Arc<str> = self.statements.probe(table, columns).into();
            wire.rows(&probe, vec![]).await.map_err(|failure| {
                if failure.is_missing_table() { self.not_ours(failure) } else { failure }
            })?;
        }
        Ok(())
    }

    fn not_ours(&self, failure: SqlFailure) -> SqlFailure {
        let said = match failure {
            SqlFailure::Sql(sqlx::Error::Database(error)) => error.message().to_owned(),
            other => format!("{other:?}"),
        };
        let space = self.statements.names.space();
        SqlFailure::Foreign(format!(
            "{said}: the tables in {space:?} are not those of a lease store; use another schema or \
             prefix"
        ))
    }
}
