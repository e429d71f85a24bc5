//! Creation and migration of the tables, without blocking running workers.
//!
//! To add a column, PostgreSQL needs an exclusive lock on the table. It queues for the lock behind
//! all users of the table, even a dump that takes an hour, and later users queue behind it. So a
//! step queues only briefly, then lets the others go first, and tries again after a longer pause.
//!
//! Each step has a transaction of its own, so that no table is locked while another is waited for.
//! The lock that keeps other workers from the same work is held through the pauses. So a fleet that
//! starts disturbs no more than a single worker does.

use super::cell::Cell;
use super::failure::SqlFailure;
use super::link::SqlExecutor;
use super::schema::{ADDED, AddedColumn, FoundSchema, MIN_READER, TABLES_OF_1, VERSION};
use super::store::SqlStore;
use crate::lease::StoreError;
use std::sync::Arc;
use std::time::Duration;

/// Maximum time that a step queues for its table. Writes that queue behind it have a longer lock
/// timeout.
const TURN: Duration = Duration::from_millis(250);
/// Pause before the next turn, in which other users have the table to themselves.
const PAUSE: Duration = Duration::from_secs(2);
/// Maximum number of turns of a step. `prepare` can be called again after that.
const TURNS: u32 = 5;

/// The result of one transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MigrationProgress {
    /// One step was made; there may be more.
    Step,
    /// This was the last step.
    Done,
}

impl SqlStore {
    /// Creates the tables, or migrates them to the current version.
    pub(crate) async fn prepare(&self) -> Result<(), StoreError> {
        self.bring_up_to_date().await.map_err(|failure| failure.of_store(&self.label))
    }

    async fn bring_up_to_date(&self) -> Result<(), SqlFailure> {
        // A worker without the right to create tables can still use existing ones.
        if self.with_timeout(self.patience.prepare, self.is_current()).await? {
            return Ok(());
        }
        // Time for another worker to create them, and for this worker's own turns.
        let time = self.patience.prepare * 2;
        while self.with_timeout(time, self.transact_a_step()).await? == MigrationProgress::Step {}
        Ok(())
    }

    async fn transact_a_step(&self) -> Result<MigrationProgress, SqlFailure> {
        let mut lent = self.begin(&self.begin_prepare).await?;
        let done = self.next_step(&mut lent.wire()).await;
        match done {
            Ok(progress) => {
                lent.wire().run("COMMIT").await?;
                lent.give_back();
                Ok(progress)
            }
            Err(failure) => {
                self.roll_back(lent).await;
                Err(failure)
            }
        }
    }

    /// Returns true if the tables exist and are up to date, and the application has its row.
    async fn is_current(&self) -> Result<bool, SqlFailure> {
        // An idle connection may be dead. This read replaces it, so the reads below get a live one.
        let tables = self.statements.dialect.tables.into();
        let space = vec![Cell::text(self.statements.names.space())];
        self.read_once_or_twice(&tables, space).await?;
        let mut lent = self.pool.to_read().await?;
        let found = self.find_tables(&mut lent.wire()).await;
        lent.give_back();
        if found? != FoundSchema::Usable {
            return Ok(false);
        }
        let look = self.with_application(vec![]);
        Ok(!self.read_once_or_twice(&self.statements.look, look).await?.is_empty())
    }

    async fn next_step(&self, wire: &mut SqlExecutor<'_>) -> Result<MigrationProgress, SqlFailure> {
        self.lock_schema(wire).await?;
        let version = match self.find_tables(wire).await? {
            FoundSchema::Nothing => {
                self.make_tables(wire).await?;
                VERSION
            }
            FoundSchema::Version(version) => version,
            FoundSchema::Usable => VERSION,
        };
        // Versions count from 1, and version 1 is created, not added.
        let Some(added) = ADDED.get(version.saturating_sub(1)) else {
            return self.make_application(wire).await.map(|()| MigrationProgress::Done);
        };
        for added in *added {
            // A step may have been made before a later one failed. It is not repeated.
            if !self.has_column(wire, added).await? {
                self.add_in_turns(wire, added).await?;
                return Ok(MigrationProgress::Step);
            }
        }
        self.note_version(wire, version + 1).await.map(|()| MigrationProgress::Step)
    }

    async fn lock_schema(&self, wire: &mut SqlExecutor<'_>) -> Result<(), SqlFailure> {
        let space = vec![Cell::text(self.statements.names.space())];
        let Some(lock) = self.statements.dialect.schema_lock else { return Ok(()) };
        let locked = wire.rows(&lock.into(), space).await;
        locked.map(drop).map_err(|failure| {
            if failure.is_busy() {
                let what = "another worker is still upgrading the tables";
                SqlFailure::InUse(what.to_owned())
            } else {
                failure
            }
        })
    }

    /// Creates all tables. They are invisible to others until the commit, so this blocks no worker.
    async fn make_tables(&self, wire: &mut SqlExecutor<'_>) -> Result<(), SqlFailure> {
        let statements = &self.statements;
        let space = vec![Cell::text(statements.names.space())];
        if let Some(is_there) = statements.dialect.schema_is_there
            && wire.rows(&is_there.into(), space).await?.is_empty()
        {
            wire.run(&statements.migration("CREATE SCHEMA {s}")).await?;
        }
        wire.run(&statements.migration(TABLES_OF_1)).await?;
        for added in ADDED.into_iter().flatten() {
            wire.run(&self.addition(added)).await?;
        }
        for version in 1..=VERSION {
            self.note_version(wire, version).await?;
        }
        Ok(())
    }

    async fn make_application(&self, wire: &mut SqlExecutor<'_>) -> Result<(), SqlFailure> {
        let first = self.statements.migration(
            "INSERT INTO {t}application (application, version) VALUES ($1, 0) \
             ON CONFLICT DO NOTHING",
        );
        wire.change(&first.into(), self.with_application(vec![])).await.map(drop)
    }

    async fn has_column(
        &self,
        wire: &mut SqlExecutor<'_>,
        added: &AddedColumn,
    ) -> Result<bool, SqlFailure> {
        let cells = [self.statements.names.space(), added.table, added.column];
        let found = self.statements.dialect.column.into();
        Ok(!wire.rows(&found, cells.into_iter().map(Cell::text).collect()).await?.is_empty())
    }

    fn addition(&self, AddedColumn { table, column, kind }: &AddedColumn) -> String {
        self.statements.migration(&format!("ALTER TABLE {{t}}{table} ADD COLUMN {column} {kind}"))
    }

    /// Adds a column as soon as the table is briefly free.
    async fn add_in_turns(
        &self,
        wire: &mut SqlExecutor<'_>,
        added: &AddedColumn,
    ) -> Result<(), SqlFailure> {
        let turn = TURN.min(self.patience.lock / 2).max(Duration::from_millis(1));
        let bound =
            self.statements.dialect.queue_for.replace("{ms}", &turn.as_millis().to_string());
        // Rolling back to the savepoint also releases the place in the lock queue, and undoes the
        // limit.
        let add =
            format!("SAVEPOINT turn; {bound}{}; RELEASE SAVEPOINT turn", self.addition(added));
        for turn in 1..=TURNS {
            match wire.run(&add).await {
                Err(failure) if failure.is_busy() => {
                    wire.run("ROLLBACK TO SAVEPOINT turn").await?;
                }
                done => return done,
            }
            if turn < TURNS {
                tokio::time::sleep(PAUSE).await;
            }
        }
        let (table, column) = (self.statements.names.listed(added.table), added.column);
        Err(SqlFailure::InUse(format!(
            "cannot add column {column} to table {table}, because other sessions hold locks on it: \
             end the dump or the open transaction first (see pg_locks); workers of the previous \
             release continue meanwhile"
        )))
    }

    async fn note_version(
        &self,
        wire: &mut SqlExecutor<'_>,
        version: usize,
    ) -> Result<(), SqlFailure> {
        let mut cells = vec![Cell::number(version as u64)];
        // `min_reader` was added in version 3, and only the last row is read.
        let note = if version == VERSION {
            cells.push(Cell::number(MIN_READER as u64));
            "INSERT INTO {t}schema_version (version, min_reader) VALUES ($1, $2)"
        } else {
            "INSERT INTO {t}schema_version (version) VALUES ($1)"
        };
        wire.change(&Arc::from(self.statements.migration(note)), cells).await.map(drop)
    }
}
