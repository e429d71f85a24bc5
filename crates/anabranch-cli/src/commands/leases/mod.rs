//! `anabranch leases`: what an application has done, and how an operator changes that.
//!
//! ```text
//! list, show                     only read
//! release, reset, restore, copy  plan ── shown ──▶ --yes ──▶ quiet? ──▶ snapshot ──▶ editor ──▶ the store
//! ```

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

/// Which application, and what to do with its leases.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
--leases says where they are kept; the table of a Java KCL application is --leases kcl:TABLE, with \
--stream for what needs the stream too.

What changes leases shows first what it would do, and does it with --yes. It refuses while workers \
of the application are alive, and writes a snapshot before the first change.")]
pub(crate) struct LeasesOptions {
    /// The application
    app: String,
    /// The stream, where the application has several or its table does not name it
    #[arg(long, global = true, value_name = "NAME")]
    stream: Option<String>,
    /// For how long workers are watched before they count as dead: KCL's failover time. A worker
    /// whose row names a longer lease time is watched for that long
    #[arg(long, global = true, value_name = "TIME", default_value = "10s")]
    #[arg(value_parser = humantime::parse_duration)]
    lease_time: Duration,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Option<LeasesCommand>,
}

/// What to do.
#[derive(Debug, Clone, clap::Subcommand)]
enum LeasesCommand {
    /// List all leases and workers (the default)
    List,
    /// Show everything about one lease
    Show {
        /// The shard, such as shardId-000000000003 or 3
        shard: String,
    },
    /// Take leases away from workers that are dead
    Release {
        /// The shards; without any, all that a dead worker holds
        shards: Vec<String>,
        /// Do it
        #[arg(long)]
        yes: bool,
    },
    /// Have records read again, or passed over
    #[command(after_help = "\
For a time in the past the shards that were open then are read from it, and what followed from them \
comes after them, as at the first start. For SEQ the record of that number counts as the last one \
done; it needs --shard.")]
    Reset {
        /// trim, latest, an age such as 10m, a time such as 2026-05-01T12:00:00Z, or the number of
        /// a record
        #[arg(long, value_name = "WHERE")]
        to: reset::ResetTarget,
        /// Only this shard
        #[arg(long, value_name = "SHARD")]
        shard: Option<String>,
        /// Where the snapshot goes; without it, a file named after the application and the time
        #[arg(long, value_name = "FILE")]
        snapshot: Option<PathBuf>,
        /// Do it
        #[arg(long)]
        yes: bool,
    },
    /// Write all leases to a file
    Snapshot {
        /// The file, which must not be there
        file: PathBuf,
    },
    /// Bring back what a snapshot holds, and remove what it lacks
    Restore {
        /// The file
        file: PathBuf,
        /// Do it
        #[arg(long)]
        yes: bool,
    },
    /// Copy all leases to another store, such as from DynamoDB to PostgreSQL
    Copy {
        /// The store to read; without it, that of --leases
        #[arg(long, value_name = "STORE")]
        from: Option<StoreAddress>,
        /// The store to write, which holds no leases of the application
        #[arg(long, value_name = "STORE")]
        to: StoreAddress,
        /// Do it
        #[arg(long)]
        yes: bool,
    },
}

/// A command on the same leases, for a person to run.
fn command(options: &LeasesOptions, connection: &ConnectionSettings, words: &str) -> String {
    let stream = options.stream.as_ref().map(|name| format!(" --stream {}", shell_word(name)));
    format!(
        "anabranch leases {} {words}{}{}",
        shell_word(&options.app),
        stream.unwrap_or_default(),
        connection.options()
    )
}

/// Does what is asked.
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
