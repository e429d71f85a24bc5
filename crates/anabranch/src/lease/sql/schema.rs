//! The tables: made and brought up to date by the store itself, and refused if they are not ours.
//!
//! A migration only adds, so that workers of the version before it go on during a deploy. The
//! number of the last one is kept in the table `schema_version`.

use super::cell::Cell;
use super::failure::Failure;
use super::link::Wire;
use super::statement::{LEASE, STREAM, TABLES, WORKER};
use super::store::SqlStore;
use crate::lease::StoreError;
use std::sync::Arc;

/// What brings the schema from one version to the next; the first one makes it.
const MIGRATIONS: [&str; 2] = [
    "
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
",
    "
ALTER TABLE {t}lease ADD COLUMN bytes_per_second {number};
ALTER TABLE {t}worker ADD COLUMN streams {text};
",
];

/// What stands in the database under our names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    /// Nothing.
    Nothing,
    /// Our tables, this many migrations old.
    Version(usize),
}

impl SqlStore {
    /// Makes the tables, or brings them up to date.
    pub(crate) async fn prepare(&self) -> Result<(), StoreError> {
        let prepared = self.within(self.patience.prepare, self.prepare_once_or_twice()).await;
        prepared.map_err(|failure| failure.of_store(&self.label))
    }

    async fn prepare_once_or_twice(&self) -> Result<(), Failure> {
        // A worker that may not make tables can still use those that are there.
        if self.is_current().await? {
            return Ok(());
        }
        let mut lent = self.begin(&self.begin_prepare).await?;
        let made = self.migrate(&mut lent.wire()).await;
        match made {
            Ok(()) => {
                lent.wire().run("COMMIT").await?;
                lent.give_back();
                Ok(())
            }
            Err(failure) => {
                self.roll_back(lent).await;
                Err(failure)
            }
        }
    }

    /// Whether the tables are there, up to date, and the application has its row.
    async fn is_current(&self) -> Result<bool, Failure> {
        // The first answer may come on a connection that has died; the rest follow it.
        let tables = self.statements.dialect.tables.into();
        let space = vec![Cell::text(self.statements.names.space())];
        self.read_once_or_twice(&tables, space).await?;
        let mut lent = self.pool.to_read().await?;
        let current = self.look_for_tables(&mut lent.wire()).await;
        lent.give_back();
        if current? != Found::Version(MIGRATIONS.len()) {
            return Ok(false);
        }
        let look = self.with_application(vec![]);
        Ok(!self.read_once_or_twice(&self.statements.look, look).await?.is_empty())
    }

    async fn migrate(&self, wire: &mut Wire<'_>) -> Result<(), Failure> {
        let statements = &self.statements;
        let space = vec![Cell::text(statements.names.space())];
        if let Some(lock) = statements.dialect.schema_lock {
            wire.rows(&lock.into(), space.clone()).await?;
        }
        if let Some(is_there) = statements.dialect.schema_is_there
            && wire.rows(&is_there.into(), space).await?.is_empty()
        {
            wire.run(&statements.migration("CREATE SCHEMA {s}")).await?;
        }
        let done = match self.look_for_tables(wire).await? {
            Found::Nothing => 0,
            Found::Version(version) => version,
        };
        for (i, migration) in MIGRATIONS.iter().enumerate().skip(done) {
            wire.run(&statements.migration(migration)).await?;
            let note = statements.migration("INSERT INTO {t}schema_version (version) VALUES ($1)");
            wire.change(&note.into(), vec![Cell::number(i as u64 + 1)]).await?;
        }
        let first = statements.migration(
            "INSERT INTO {t}application (application, version) VALUES ($1, 0) \
             ON CONFLICT DO NOTHING",
        );
        wire.change(&first.into(), self.with_application(vec![])).await.map(drop)
    }

    /// What stands under our names, or why we must not touch it.
    async fn look_for_tables(&self, wire: &mut Wire<'_>) -> Result<Found, Failure> {
        let names = &self.statements.names;
        let space = names.space();
        let all =
            wire.rows(&self.statements.dialect.tables.into(), vec![Cell::text(space)]).await?;
        let is_there = |table: &str| all.contains(&vec![Cell::text(&names.listed(table))]);
        let ours: Vec<&str> = TABLES.into_iter().filter(|table| is_there(table)).collect();
        if ours.is_empty() {
            return Ok(Found::Nothing);
        }
        if ours.len() < TABLES.len() {
            return Err(Failure::Foreign(format!(
                "there is a table {}, and none called {}, so they are not a lease store's: name \
                 another schema or prefix",
                names.listed(ours[0]),
                TABLES
                    .iter()
                    .find(|table| !ours.contains(table))
                    .map_or_else(String::new, |t| names.listed(t)),
            )));
        }
        let version = self.version(wire).await?;
        if version > MIGRATIONS.len() as u64 {
            return Err(Failure::Foreign(format!(
                "its tables are of version {version}, and this release knows versions up to {}: \
                 use the release that made them, or a newer one",
                MIGRATIONS.len()
            )));
        }
        let version = usize::try_from(version).unwrap_or(0);
        if version == MIGRATIONS.len() {
            self.probe(wire).await?;
        }
        Ok(Found::Version(version))
    }

    async fn version(&self, wire: &mut Wire<'_>) -> Result<u64, Failure> {
        let last = self.statements.migration("SELECT max(version) FROM {t}schema_version");
        let rows = wire.rows(&Arc::from(last), vec![]).await.map_err(|failure| {
            if failure.is_missing_table() { self.not_ours(failure) } else { failure }
        })?;
        match rows.into_iter().flatten().next() {
            Some(Cell::Number(version @ 1..)) => Ok(version.cast_unsigned()),
            other => Err(Failure::Foreign(format!(
                "the table {} holds {other:?} where a version belongs: name another schema or \
                 prefix",
                self.statements.names.listed("schema_version"),
            ))),
        }
    }

    /// Tables of our version have our columns, unless they are somebody else's.
    async fn probe(&self, wire: &mut Wire<'_>) -> Result<(), Failure> {
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

    fn not_ours(&self, failure: Failure) -> Failure {
        let said = match failure {
            Failure::Sql(sqlx::Error::Database(error)) => error.message().to_owned(),
            other => format!("{other:?}"),
        };
        let space = self.statements.names.space();
        Failure::Foreign(format!(
            "{said}: the tables under {space:?} are not a lease store's; name another schema or \
             prefix"
        ))
    }
}
