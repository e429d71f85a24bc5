//! `leases restore`: restores the leases of a snapshot.

use super::application::{ApplicationState, StreamRows};
use super::editor::LeaseEditor;
use super::interruptible::Interruptible;
use super::snapshot::{LeaseSnapshotFile, SavedLayout, TargetLease};
use super::{LeasesOptions, liveness};
use crate::connection::ConnectionSettings;
use crate::failure::CommandFailure;
use crate::output::{print_line, print_note};
use crate::shell_word::shell_word;
use anabranch::lease::LeaseStore;
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::{Layout, Lease};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Shows the changes of a restore, and executes them with `--yes`.
pub(super) async fn run(
    options: &LeasesOptions,
    connection: &ConnectionSettings,
    file: &Path,
    yes: bool,
) -> Result<(), CommandFailure> {
    let snapshot = LeaseSnapshotFile::read(file)?;
    if snapshot.application != options.app {
        return Err(CommandFailure::usage(format!(
            "{} is a snapshot of application {}, not of {}",
            file.display(),
            snapshot.application,
            options.app
        )));
    }
    let store = connection.existing_leases(&options.app, None).await?;
    let layout = match store.layout() {
        Layout::Native => SavedLayout::Native,
        Layout::Kcl => SavedLayout::Kcl,
    };
    if layout != snapshot.layout {
        return Err(CommandFailure::usage(format!(
            "{} has the {:?} layout, and the store has the {layout:?} layout: `leases {} copy` \
             moves leases between layouts",
            file.display(),
            snapshot.layout,
            options.app
        )));
    }
    let mut plans = Vec::new();
    for kept in &snapshot.streams {
        let stream = StreamName::from(kept.stream.as_str());
        let standing =
            ApplicationState::of(store.clone(), Some(stream.as_str()), &options.app).await?;
        let rows = standing.streams.first().map(StreamRows::by_shard);
        let plan = RestorePlan::of(kept.wanted()?, rows.unwrap_or_default());
        plan.show(&stream);
        plans.push((stream, plan, kept.facts()));
    }
    if !yes {
        print_note!("nothing was written: add --yes to execute the changes");
        return Ok(());
    }
    let mut before = Vec::new();
    for (stream, _, _) in &plans {
        let standing =
            ApplicationState::of(store.clone(), Some(stream.as_str()), &options.app).await?;
        liveness::require_stopped(&standing, &options.app, options.lease_time).await?;
        before.push(standing);
    }
    let rows: Vec<StreamRows> = before.iter().flat_map(|it| it.streams.clone()).collect();
    LeaseSnapshotFile::of_streams(&options.app, store.layout(), &rows)
        .write_before_a_change(None)?;
    let words = format!("restore {} --yes", shell_word(file.display()));
    let again = super::command(options, connection, &words);
    let mut halt =
        Interruptible::new(format!("before workers start, finish the restore: `{again}`"))?;
    let editor = LeaseEditor::with_marker(&store, again);
    for worker in before.first().into_iter().flat_map(liveness::dead_workers) {
        halt.step(editor.fence(worker)).await?;
    }
    for (stream, plan, facts) in plans {
        for row in plan.going.iter().rev() {
            halt.step(editor.remove(row)).await?;
        }
        for (wanted, now) in &plan.placed {
            halt.step(editor.place(&stream, wanted, now.as_ref())).await?;
        }
        let known = rows.iter().any(|rows| rows.stream == stream && rows.facts.is_some());
        if let (false, Some(facts)) = (known, facts) {
            editor.remember(&stream, facts).await?;
        }
    }
    editor.remove_marker().await?;
    print_note!("restored");
    Ok(())
}

/// Planned changes.
struct RestorePlan {
    /// Rows that differ or are missing.
    placed: Vec<(TargetLease, Option<Lease>)>,
    /// Rows that the snapshot lacks.
    going: Vec<Lease>,
}

impl RestorePlan {
    fn of(wanted: Vec<TargetLease>, rows: BTreeMap<ShardId, Lease>) -> Self {
        let kept: BTreeSet<ShardId> = wanted.iter().map(|lease| lease.shard.clone()).collect();
        let placed = wanted
            .into_iter()
            .map(|wanted| {
                let now = rows.get(&wanted.shard).cloned();
                (wanted, now)
            })
            .filter(|(wanted, now)| now.as_ref().map(TargetLease::of).as_ref() != Some(wanted))
            .collect();
        let going = rows.into_values().filter(|row| !kept.contains(&row.key.shard)).collect();
        Self { placed, going }
    }

    fn show(&self, stream: &StreamName) {
        if self.placed.is_empty() && self.going.is_empty() {
            print_line!("{stream}: the leases match the snapshot");
        }
        for (wanted, now) in &self.placed {
            let now = now.as_ref().map_or("no lease".to_owned(), |row| row.checkpoint.to_string());
            print_line!("{stream}/{}: {now} becomes {}", wanted.shard, wanted.checkpoint);
        }
        for row in &self.going {
            print_line!("{} is removed", row.key);
        }
    }
}
