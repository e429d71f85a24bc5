//! `anabranch relay`: relays the rows of a PostgreSQL outbox to a stream, with its operator
//! commands.

mod outbox;
mod run;
mod init;
mod status;
mod blocked_keys;

use crate::connection::ConnectionSettings;
use crate::failure::CommandFailure;
use anabranch_outbox::RelayError;
use outbox::OutboxOptions;

/// Options of `anabranch relay`.
#[derive(Debug, Clone, clap::Args)]
#[command(subcommand_negates_reqs = true)]
#[command(after_help = "\
Every committed row goes into the stream at least once, and the rows of a key in causal order. A \
row that was rolled back is never sent. Run several relays for availability: one leads, the others \
stand by.
Tables, formats and guarantees: docs/outbox.md.")]
pub(crate) struct RelayOptions {
    #[command(subcommand)]
    task: Option<RelayCommand>,
    #[command(flatten)]
    outbox: OutboxOptions,
    #[command(flatten)]
    run: run::RelayRunOptions,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum RelayCommand {
    /// Create the table or its missing parts, and check it
    Init(init::RelayInitOptions),
    /// Show waiting rows, the active relay, blocked keys and blocking transactions
    Status(status::RelayStatusOptions),
    /// Discard a blocking row: remove it unsent and resume its key
    Skip {
        /// Row id
        #[arg(value_name = "ID")]
        row: i64,
    },
    /// Resume a blocked key with the row that blocked it
    Retry {
        /// Partition key
        #[arg(required_unless_present = "all")]
        key: Option<String>,
        /// Resume all blocked keys
        #[arg(long, conflicts_with = "key")]
        all: bool,
    },
}

/// Runs the relay or one of its operator commands.
pub(crate) async fn run(
    options: RelayOptions,
    connection: &ConnectionSettings,
) -> Result<(), CommandFailure> {
    let outbox = options.outbox;
    match options.task {
        None => Box::pin(run::run(options.run, &outbox, connection)).await,
        Some(RelayCommand::Init(options)) => Box::pin(init::run(options, &outbox)).await,
        Some(RelayCommand::Status(options)) => Box::pin(status::run(options, &outbox)).await,
        Some(RelayCommand::Skip { row }) => Box::pin(blocked_keys::skip(row, &outbox)).await,
        Some(RelayCommand::Retry { key: Some(key), .. }) => {
            Box::pin(blocked_keys::retry(&key, &outbox)).await
        }
        Some(RelayCommand::Retry { key: None, .. }) => {
            Box::pin(blocked_keys::retry_all(&outbox)).await
        }
    }
}

fn could_not_start(error: RelayError) -> CommandFailure {
    CommandFailure::usage(error)
}

/// Formats a count with the singular or plural text.
fn counted(count: u64, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_told_as_one() {
        for (count, told) in [(0, "0 rows wait"), (1, "1 row waits"), (2, "2 rows wait")] {
            assert_eq!(counted(count, "row waits", "rows wait"), told);
        }
    }
}
