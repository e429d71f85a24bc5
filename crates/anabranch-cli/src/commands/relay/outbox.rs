//! Outbox options, shared by all relay commands.

use super::could_not_start;
use crate::failure::CommandFailure;
use anabranch_outbox::{AfterSend, ColumnNames, Database, OutboxTable};

/// Options that select the outbox.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Outbox")]
pub(super) struct OutboxOptions {
    /// Database URL: `postgres://user:password@host:port/name`
    #[arg(long, global = true, value_name = "URL", env = "DATABASE_URL", hide_env_values = true)]
    database: Option<String>,
    /// Outbox table: NAME or SCHEMA.NAME
    #[arg(long, global = true, value_name = "TABLE", default_value = "outbox")]
    table: String,
    /// Names of your columns, such as `id=event_no,data=payload`
    #[arg(long, global = true, value_name = "OURS=YOURS,…", default_value = "")]
    columns: String,
    /// Keep sent rows and set their column `sent_at`
    #[arg(long, global = true)]
    keep: bool,
}

impl OutboxOptions {
    /// Returns the database, if one was given.
    pub(super) fn named_database(&self) -> Result<Option<Database>, CommandFailure> {
        self.database.as_deref().map(Database::from_url).transpose().map_err(could_not_start)
    }

    /// Returns the database, or an error if none was given.
    pub(super) fn database(&self) -> Result<Database, CommandFailure> {
        let missing = "no database is given: use --database \
                       postgres://user:password@host:port/name, or set DATABASE_URL";
        self.named_database()?.ok_or_else(|| CommandFailure::usage(missing))
    }

    /// Returns the table.
    pub(super) fn table(&self) -> Result<OutboxTable, CommandFailure> {
        let columns = ColumnNames::parse(&self.columns).map_err(could_not_start)?;
        let table = OutboxTable::named(&self.table).map_err(could_not_start)?;
        let after = if self.keep { AfterSend::Mark } else { AfterSend::Delete };
        Ok(table.with_columns(columns).with_after_send(after))
    }
}
