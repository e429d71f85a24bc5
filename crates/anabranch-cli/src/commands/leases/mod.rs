//! `anabranch leases`: shows and changes the leases of an application.
//!
//! ```text
//! list, show                     read only
//! release, reset, restore, copy  plan ──▶ --yes ──▶ workers stopped? ──▶ LeaseEditor ──▶ store
//! ```
//!
//! `reset` and `restore` write a snapshot before the first change.

mod application;
mod list;
mod snapshot;
pub(crate) mod liveness;
pub(crate) mod editor;
mod interruptible;
mod release;
mod reset;
mod position_at_time;
mod restore;
mod copy;

pub(crate) use application::readable;

use crate::connection::ConnectionSettings;
use crate::failure::CommandFailure;
use crate::shell_word::shell_word;
use anabranch::lease::StoreAddress;
use std::path::PathBuf;
use std::time::Duration;

/// Options of `anabranch leases`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
--leases selects the lease store. For the table of a Java KCL application use --leases kcl:TABLE, \
and --stream where the stream is needed too.

Commands that change leases print the planned changes, and execute them with --yes. They refuse \
while workers of the application are alive. `reset` and `restore` write a snapshot before the \
first change.")]
pub(crate) struct LeasesOptions {
    /// Application name
    app: String,
    /// Stream name, if the application has several or its table does not name it
    #[arg(long, global = true, value_name = "NAME")]
    stream: Option<String>,
    /// Time to watch workers before they count as dead: KCL's failover time; a worker whose row has
    /// a longer lease time is watched for that long
    #[arg(long, global = true, value_name = "TIME", default_value = "10s")]
    #[arg(value_parser = humantime::parse_duration)]
    lease_time: Duration,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Option<LeasesCommand>,
}

/// Subcommands of `anabranch leases`.
#[derive(Debug, Clone, clap::Subcommand)]
enum LeasesCommand {
    /// List all leases and workers (the default)
    List,
    /// Show all details of a lease
    Show {
        /// Shard, such as shardId-000000000003 or 3
        shard: String,
    },
    /// Release the leases of dead workers
    Release {
        /// Shards; without any, all that dead workers hold
        shards: Vec<String>,
        /// Execute the change
        #[arg(long)]
        yes: bool,
    },
    /// Move the checkpoints back or forward, to read records again or to skip them
    #[command(after_help = "\
A time in the past applies to the shards that were open then; their descendants follow, as at the \
first start. A sequence number names the last record that counts as done, and needs --shard.")]
    Reset {
        /// Target: trim, latest, an age such as 10m, a time such as 2026-05-01T12:00:00Z, or a
        /// sequence number
        #[arg(long, value_name = "WHERE")]
        to: reset::ResetTarget,
        /// Reset only this shard
        #[arg(long, value_name = "SHARD")]
        shard: Option<String>,
        /// Snapshot file; without it, a file named after the application and the time
        #[arg(long, value_name = "FILE")]
        snapshot: Option<PathBuf>,
        /// Execute the change
        #[arg(long)]
        yes: bool,
    },
    /// Write all leases to a file
    Snapshot {
        /// Output file, which must not exist
        file: PathBuf,
    },
    /// Restore the leases of a snapshot, and remove leases that it lacks
    Restore {
        /// Snapshot file
        file: PathBuf,
        /// Execute the change
        #[arg(long)]
        yes: bool,
    },
    /// Copy all leases to another store, such as from DynamoDB to PostgreSQL
    Copy {
        /// Source store; without it, that of --leases
        #[arg(long, value_name = "STORE")]
        from: Option<StoreAddress>,
        /// Target store, which must hold no leases of the application
        #[arg(long, value_name = "STORE")]
        to: StoreAddress,
        /// Execute the change
        #[arg(long)]
        yes: bool,
    },
}

/// Returns a suggested command on the same leases.
fn command(options: &LeasesOptions, connection: &ConnectionSettings, words: &str) -> String {
    let stream = options.stream.as_ref().map(|name| format!(" --stream {}", shell_word(name)));
    format!(
        "anabranch leases {} {words}{}{}",
        shell_word(&options.app),
        stream.unwrap_or_default(),
        connection.options()
    )
}

/// Runs the subcommand.
pub(crate) async fn run(
    options: LeasesOptions,
    connection: &ConnectionSettings,
) -> Result<(), CommandFailure> {
    let LeasesOptions { command, .. } = &options;
    match command {
        None | Some(LeasesCommand::List) => list::run(&options, connection).await,
        Some(LeasesCommand::Show { shard }) => list::show(&options, connection, shard).await,
        Some(LeasesCommand::Release { shards, yes }) => {
            release::run(&options, connection, shards, *yes).await
        }
        Some(LeasesCommand::Reset { to, shard, snapshot, yes }) => {
            let asked = reset::ResetArgs {
                to: *to,
                shard: shard.as_deref(),
                snapshot: snapshot.as_deref(),
                yes: *yes,
            };
            reset::run(&options, connection, &asked).await
        }
        Some(LeasesCommand::Snapshot { file }) => snapshot::run(&options, connection, file).await,
        Some(LeasesCommand::Restore { file, yes }) => {
            restore::run(&options, connection, file, *yes).await
        }
        Some(LeasesCommand::Copy { from, to, yes }) => {
            copy::run(&options, connection, from.as_ref(), to, *yes).await
        }
    }
}
