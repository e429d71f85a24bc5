//! `leases list` and `leases show`: all leases and workers, or one lease in full.

use super::LeasesOptions;
use super::application::ApplicationState;
use super::snapshot::{LeaseSnapshotFile, SavedLease};
use crate::commands::shards::checkpoint_text;
use crate::connection::ConnectionSettings;
use crate::failure::CommandFailure;
use crate::output::print_line;
use crate::table::{self, Column};
use crate::time_spec;
use anabranch_model::lease::{HandOver, Lease, WorkerState};
use std::time::Duration;

const LEASES: [Column; 5] = [
    Column::kept("shard"),
    Column::cut("owner", 1, 12),
    Column::dropped("term", 0),
    Column::kept("checkpoint"),
    Column::cut("", 2, 12),
];

const WORKERS: [Column; 5] = [
    Column::cut("worker", 2, 12),
    Column::kept("state"),
    Column::cut("host", 1, 8),
    Column::dropped("lease time", 1),
    Column::dropped("joined", 0),
];

/// Lists all leases and workers.
pub(super) async fn run(
    options: &LeasesOptions,
    connection: &ConnectionSettings,
) -> Result<(), CommandFailure> {
    let standing = ApplicationState::read(options, connection).await?;
    if options.json {
        print_line!("{}", LeaseSnapshotFile::of(&options.app, &standing).to_json());
        return Ok(());
    }
    for stream in &standing.streams {
        print_line!("{}", stream.stream);
        table::show(&LEASES, &stream.rows.iter().map(row).collect::<Vec<_>>());
    }
    if !standing.workers.is_empty() {
        print_line!("");
        let rows = standing.workers.iter().map(|worker| {
            vec![
                worker.id.to_string(),
                state(worker.state).to_owned(),
                if worker.host.is_empty() { "-".to_owned() } else { worker.host.clone() },
                worker.lease_time_ms.map_or_else(|| "-".to_owned(), lease_time),
                time_spec::text(worker.started_ms),
            ]
        });
        table::show(&WORKERS, &rows.collect::<Vec<_>>());
    }
    Ok(())
}

fn row(lease: &Lease) -> Vec<String> {
    let note = match (&lease.hand_over, &lease.pending) {
        (HandOver::Requested { taker }, _) => format!("requested by {taker}"),
        (HandOver::Refused, _) => "the owner can't hand it over".to_owned(),
        (HandOver::None, Some(_)) => "a checkpoint is pending".to_owned(),
        (HandOver::None, None) => String::new(),
    };
    vec![
        lease.key.shard.to_string(),
        lease.owner.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
        lease.term.to_string(),
        checkpoint_text(&lease.checkpoint),
        note,
    ]
}

fn lease_time(ms: u64) -> String {
    humantime::format_duration(Duration::from_millis(ms)).to_string()
}

fn state(state: WorkerState) -> &'static str {
    match state {
        WorkerState::Alive => "alive",
        WorkerState::Leaving => "leaving",
        WorkerState::Fenced => "fenced",
    }
}

/// Shows one lease in full.
pub(super) async fn show(
    options: &LeasesOptions,
    connection: &ConnectionSettings,
    shard: &str,
) -> Result<(), CommandFailure> {
    let standing = ApplicationState::read(options, connection).await?;
    let lease = standing.named(shard)?;
    let kept = SavedLease::of(lease);
    if options.json {
        print_line!("{}", serde_json::to_string(&kept).unwrap_or_default());
        return Ok(());
    }
    let list = |ids: &[String]| if ids.is_empty() { "-".to_owned() } else { ids.join(", ") };
    let rows = [
        ("stream", lease.key.stream.to_string()),
        ("shard", kept.shard.clone()),
        ("owner", kept.owner.clone().unwrap_or_else(|| "-".to_owned())),
        ("term", kept.term.to_string()),
        ("checkpoint", kept.checkpoint.clone()),
        ("pending", kept.pending.clone().unwrap_or_else(|| "-".to_owned())),
        ("parents", list(&kept.parents)),
        ("children", list(&kept.children)),
        ("first hash key", kept.starting_hash_key.clone().unwrap_or_else(|| "-".to_owned())),
        ("last hash key", kept.ending_hash_key.clone().unwrap_or_else(|| "-".to_owned())),
    ];
    let rows: Vec<Vec<String>> =
        rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    for line in table::aligned(&rows) {
        print_line!("{line}");
    }
    Ok(())
}
