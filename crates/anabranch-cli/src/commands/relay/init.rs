//! `relay init`: creates the outbox table, or prints the statements.

use super::could_not_start;
use super::outbox::OutboxOptions;
use crate::failure::CommandFailure;
use crate::output::{print_note, show};
use anabranch_outbox::InitReport;

/// Options of `relay init`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
With a database, only missing parts are created or printed, so the command can be run again, and \
on a table of your own (--columns). Without a database, --print prints the whole script for your \
own migrations.")]
pub(super) struct RelayInitOptions {
    /// Print the statements without executing them
    #[arg(long)]
    print: bool,
    /// Create no notification trigger; new rows are found by polling (required for PREPARE
    /// TRANSACTION)
    #[arg(long)]
    no_notify: bool,
}

/// Creates the table, or prints the statements.
pub(super) async fn run(
    options: RelayInitOptions,
    outbox: &OutboxOptions,
) -> Result<(), CommandFailure> {
    let table = outbox.table()?.with_notify(!options.no_notify);
    let database = match outbox.named_database()? {
        None if options.print => {
            show(&InitReport::fresh(&table).script());
            return Ok(());
        }
        None => outbox.database()?,
        Some(database) => database,
    };
    let done = anabranch_outbox::init(&database, &table, options.print);
    let done = done.await.map_err(could_not_start)?;
    let label = table.label();
    if options.print {
        show(&done.script());
    } else if done.statements.is_empty() {
        print_note!("{label} is ready: nothing was missing");
    } else {
        print_note!("{label} is ready: {} statements were executed", done.statements.len());
    }
    Ok(())
}
