//! `leases release`: releases the leases of dead workers, so that others need not wait.

use super::application::ApplicationState;
use super::editor::LeaseEditor;
use super::{LeasesOptions, liveness};
use crate::connection::ConnectionSettings;
use crate::failure::CommandFailure;
use crate::output::{print_line, print_note};
use anabranch_model::lease::Lease;

/// Shows the leases to release, and releases them with `--yes`.
pub(super) async fn run(
    options: &LeasesOptions,
    connection: &ConnectionSettings,
    shards: &[String],
    yes: bool,
) -> Result<(), CommandFailure> {
    let standing = ApplicationState::read(options, connection).await?;
    let mut held_rows: Vec<&Lease> = Vec::new();
    for stream in &standing.streams {
        if shards.is_empty() {
            let held = |row: &&Lease| row.owner.is_some() && !row.is_ended();
            held_rows.extend(stream.rows.iter().filter(held));
        }
    }
    for shard in shards {
        held_rows.push(standing.named(shard)?);
    }
    held_rows.retain(|row| row.owner.is_some());
    for row in &held_rows {
        let owner = row.owner.as_ref().map(ToString::to_string).unwrap_or_default();
        let lease = if standing.streams.len() > 1 {
            row.key.to_string()
        } else {
            row.key.shard.to_string()
        };
        print_line!("{lease} is held by {owner}");
    }
    if held_rows.is_empty() {
        print_note!("no lease has an owner");
        return Ok(());
    }
    if !yes {
        print_note!("nothing was written: add --yes to release them, if their workers are dead");
        return Ok(());
    }
    liveness::require_stopped(&standing, &options.app, options.lease_time).await?;
    let editor = LeaseEditor::new(&standing.store);
    for worker in liveness::dead_workers(&standing) {
        editor.fence(worker).await?;
    }
    for row in &held_rows {
        editor.release(row).await?;
    }
    print_note!("{} leases were released", held_rows.len());
    Ok(())
}
