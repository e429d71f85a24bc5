//! Taking leases away from workers that are dead, so that others need not wait.

use super::application::Standing;
use super::editor::Editor;
use super::{Options, quiet};
use crate::connection::Connection;
use crate::failure::Failure;
use crate::output::{note, say};
use anabranch_model::lease::Lease;

/// Shows what would be released, and does it if that was asked for.
pub(super) async fn run(
    options: &Options,
    connection: &Connection,
    shards: &[String],
    yes: bool,
) -> Result<(), Failure> {
    let standing = Standing::read(options, connection).await?;
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
        say!("{lease} is held by {owner}");
    }
    if held_rows.is_empty() {
        note!("no lease is held by anybody");
        return Ok(());
    }
    if !yes {
        note!("nothing was written: add --yes to release them, if their workers are dead");
        return Ok(());
    }
    quiet::demand(&standing, &options.app, options.lease_time).await?;
    let editor = Editor::new(&standing.store);
    for worker in quiet::dead(&standing) {
        editor.fence(worker).await?;
    }
    for row in &held_rows {
        editor.release(row).await?;
    }
    note!("{} leases were released", held_rows.len());
    Ok(())
}
