//! `leases copy`: copies an application to another store, even between layouts.

use super::application::{ApplicationState, readable};
use super::editor::{LeaseEditor, moved_to};
use super::interruptible::Interruptible;
use super::position_at_time::last_before;
use super::snapshot::TargetLease;
use super::{LeasesOptions, liveness};
use crate::connection::{AwsClients, ConnectionSettings};
use crate::failure::CommandFailure;
use crate::output::{print_line, print_note};
use crate::shell_word::shell_word;
use anabranch::clock::Clock;
use anabranch::lease::{LeaseStore, StoreAddress};
use anabranch::stream::api::{ShardFilter, StreamApi};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{Layout, Lease, LeaseKey, StreamFacts};
use anabranch_model::lineage::Lineage;
use anabranch_model::position::Position;
use std::collections::BTreeMap;

/// Shows the copy, and executes it with `--yes`.
pub(super) async fn run(
    options: &LeasesOptions,
    connection: &ConnectionSettings,
    from: Option<&StoreAddress>,
    to: &StoreAddress,
    yes: bool,
) -> Result<(), CommandFailure> {
    let words = from.map(|from| format!(" --from {}", shell_word(from))).unwrap_or_default();
    let words = format!("copy{words} --to {} --yes", shell_word(to));
    let from = match from {
        Some(address) => {
            connection.existing_store(address, &options.app, options.stream.as_deref()).await?
        }
        None => connection.existing_leases(&options.app, options.stream.as_deref()).await?,
    };
    if *to == StoreAddress::Memory {
        return Err(CommandFailure::usage(
            "a copy in memory is lost when this command exits: choose another store with --to",
        ));
    }
    let mut source = ApplicationState::of(from, options.stream.as_deref(), &options.app).await?;
    if yes {
        liveness::require_stopped(&source, &options.app, options.lease_time).await?;
        // A worker may have been running until just now, so earlier reads are out of date.
        source =
            ApplicationState::of(source.store, options.stream.as_deref(), &options.app).await?;
    }
    source.require_readable()?;
    if source.streams.iter().all(|stream| stream.rows.is_empty()) {
        return Err(CommandFailure::usage(format!(
            "there are no leases of {} to copy",
            options.app
        )));
    }
    let target = connection.store(to, &options.app).await?;
    let crosses = source.store.layout() != target.layout();
    if crosses {
        source.require_stream_name(options)?;
    }
    if target.layout() == Layout::Kcl && source.streams.len() > 1 {
        return Err(CommandFailure::usage(format!(
            "{to} would be the table of a single stream, and the application has several: choose \
             one with --stream, and use a table for each"
        )));
    }
    let aws = if crosses { Some(connection.aws().await?) } else { None };
    let mut copies = Vec::new();
    for stream in &source.streams {
        let copy = StreamCopy { aws: aws.as_ref(), stream: &stream.stream, to: target.layout() };
        let rows = copy.rows(&stream.rows).await?;
        for row in &rows {
            print_line!("{}/{}: {}", stream.stream, row.shard, row.checkpoint);
        }
        copies.push((stream.stream.clone(), rows, copy.facts(stream.facts).await?));
    }
    if !yes {
        print_note!("nothing was written: add --yes to copy them to {to}");
        return Ok(());
    }
    target.prepare().await?;
    let known = target.application().await?.streams;
    let mut there = BTreeMap::new();
    for (stream, rows, _) in &copies {
        let found = readable(target.list(stream).await?);
        let half = half_copied(target.layout(), known.contains_key(stream), rows, &found);
        if !found.is_empty() && !half {
            return Err(CommandFailure::usage(format!(
                "{to} already holds {} leases of {} on {stream}: nothing was copied",
                found.len(),
                options.app
            )));
        }
        there.extend(found.into_iter().map(|row| (row.key.clone(), row)));
    }
    let again = super::command(options, connection, &words);
    let mut halt =
        Interruptible::new(format!("before workers start there, finish the copy: `{again}`"))?;
    let editor = LeaseEditor::with_marker(&target, again);
    let mut count = 0;
    for (stream, rows, facts) in &copies {
        for row in rows {
            let key = LeaseKey { stream: stream.clone(), shard: row.shard.clone() };
            let now = there.get(&key);
            if now.map(TargetLease::of).as_ref() != Some(row) {
                halt.step(editor.place(stream, row, now)).await?;
            }
            count += 1;
        }
        // The stream is marked last: until then no worker takes the leases of an incomplete copy.
        if let Some(facts) = facts {
            editor.remember(stream, *facts).await?;
        }
    }
    editor.remove_marker().await?;
    print_note!("copied {count} leases to {to}; the source is unchanged");
    Ok(())
}

/// Returns true if the existing rows are from an interrupted copy. In the native layout the stream
/// is not marked yet. KCL's layout has no mark; there, the rows are a subset of those to copy.
fn half_copied(to: Layout, marked: bool, rows: &[TargetLease], there: &[Lease]) -> bool {
    match to {
        Layout::Native => !marked,
        Layout::Kcl => {
            let copied = |row: &Lease| row.owner.is_none() && rows.contains(&TargetLease::of(row));
            there.len() < rows.len() && there.iter().all(copied)
        }
    }
}

/// Copy of one stream to another store.
struct StreamCopy<'a> {
    /// AWS clients, if the layouts differ.
    aws: Option<&'a AwsClients>,
    stream: &'a StreamName,
    /// Target layout.
    to: Layout,
}

impl StreamCopy<'_> {
    /// Converts the rows to the target layout.
    async fn rows(&self, rows: &[Lease]) -> Result<Vec<TargetLease>, CommandFailure> {
        let Some(aws) = self.aws else { return Ok(rows.iter().map(TargetLease::of).collect()) };
        let list = || aws.kinesis.list_shards(self.stream, ShardFilter::All);
        let list = aws.ask(self.stream, list).await?;
        let now_ms = list.service_ms.unwrap_or_else(|| Clock::machine().wall_ms());
        let lineage = Lineage::new(list.shards);
        let mut wanted = Vec::new();
        for row in rows {
            let shard = lineage.get(&row.key.shard);
            let mut lease = TargetLease::of(row);
            lease.range = lease.range.or_else(|| shard.map(|shard| shard.range));
            let to = match (self.to, row.checkpoint.lowest(), shard) {
                (Layout::Native, Position::Latest, _) => Some(Position::AtTimestamp(now_ms)),
                // Placeholder that the store returns for a row without a time of its own.
                (Layout::Native, Position::AtTimestamp(0), _) => {
                    return Err(CommandFailure::usage(format!(
                        "the row of {} says AT_TIMESTAMP without a time: reset it first with \
                         `leases APP reset --shard {0} --to TIME`",
                        row.key.shard
                    )));
                }
                (Layout::Kcl, Position::AtTimestamp(ms), Some(shard)) => {
                    Some(last_before(aws, self.stream, shard, ms).await?)
                }
                (Layout::Kcl, lowest, _) => Some(lowest),
                (Layout::Native, ..) => None,
            };
            wanted.push(to.map_or(lease.clone(), |to| moved_to(lease, to)));
        }
        Ok(wanted)
    }

    /// Returns the facts for the native layout. A KCL table stores none.
    async fn facts(
        &self,
        facts: Option<StreamFacts>,
    ) -> Result<Option<StreamFacts>, CommandFailure> {
        match (self.to, facts, self.aws) {
            (Layout::Kcl, ..) | (Layout::Native, None, None) => Ok(None),
            (Layout::Native, Some(facts), _) => Ok(Some(facts)),
            (Layout::Native, None, Some(aws)) => {
                let created_ms = aws.check_stream(self.stream).await?.created_ms;
                let t0_ms = Clock::machine().wall_ms();
                Ok(Some(StreamFacts { t0_ms, created_ms, first_sync_done: true }))
            }
        }
    }
}
