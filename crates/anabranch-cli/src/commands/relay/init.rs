//! `relay init`: makes the table, or prints how.

use super::could_not_start;
use super::outbox::Outbox;
use crate::failure::Failure;
use crate::output::{note, show};
use anabranch_outbox::Init;

/// How the table is made.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
With a database, only what is missing is done or printed, so it may be run again, and on a table of \
your own (--columns). Without one, --print gives the whole script for your own migrations.")]
pub(super) struct Options {
    /// Print the statements, and change nothing
    #[arg(long)]
    print: bool,
    /// Make no trigger that tells of new rows: they are found by polling. PREPARE TRANSACTION needs
    /// this
    #[arg(long)]
    no_notify: bool,
}

/// Makes the table, or prints how.
pub(super) async fn run(options: Options, outbox: &Outbox) -> Result<(), Failure> {
    let table = outbox.table()?.with_notify(!options.no_notify);
    let database = match outbox.named_database()? {
        None if options.print => {
            show(&Init::fresh(&table).script());
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
        note!("{label} is ready: nothing was missing");
    } else {
        note!("{label} is ready: {} statements were run", done.statements.len());
    }
    Ok(())
}
