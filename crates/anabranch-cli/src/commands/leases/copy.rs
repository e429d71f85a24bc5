//! Moving an application to another store, between layouts too.

use super::application::{Standing, readable};
use super::editor::{Editor, moved_to};
use super::halt::Halt;
use super::moment_of_shard::last_before;
use super::snapshot::WantedLease;
use super::{Options, quiet};
use crate::connection::{Aws, Connection};
use crate::failure::Failure;
use crate::output::{note, say};
use crate::shell_word::shell_word;
use anabranch::clock::Clock;
use anabranch::lease::{LeaseStore, StoreAddress};
use anabranch::stream::api::{ShardFilter, StreamApi};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{Layout, Lease, LeaseKey, StreamFacts};
use anabranch_model::lineage::Lineage;
use anabranch_model::position::Position;
use std::collections::BTreeMap;

/// Shows what would be copied, and does it if that was asked for.
pub(super) async fn run(
    options: &Options,
    connection: &Connection,
    from: Option<&StoreAddress>,
    to: &StoreAddress,
    yes: bool,
) -> Result<(), Failure> {
    let words = from.map(|from| format!(" --from {}", shell_word(from))).unwrap_or_default();
    let words = format!("copy{words} --to {} --yes", shell_word(to));
    let from = match from {
        Some(address) => {
            connection.existing_store(address, &options.app, options.stream.as_deref()).await?
        }
        None => connection.existing_leases(&options.app, options.stream.as_deref()).await?,
    };
    if *to == StoreAddress::Memory {
        return Err(Failure::usage("a copy in memory would be gone with this command"));
    }
    let mut source = Standing::of(from, options.stream.as_deref(), &options.app).await?;
    if yes {
        quiet::demand(&source, &options.app, options.lease_time).await?;
        // A worker may have gone on until just now, so what was read before is old.
        source = Standing::of(source.store, options.stream.as_deref(), &options.app).await?;
    }
    source.demand_all()?;
    if source.streams.iter().all(|stream| stream.rows.is_empty()) {
        return Err(Failure::usage(format!("there are no leases of {} to copy", options.app)));
    }
    let target = connection.store(to, &options.app).await?;
    let crosses = source.store.layout() != target.layout();
    if crosses {
        source.demand_names(options)?;
    }
    if target.layout() == Layout::Kcl && source.streams.len() > 1 {
        return Err(Failure::usage(format!(
            "{to} would be the table of one stream, and the application has several: choose one \
             with --stream, and a table for each"
        )));
    }
    let aws = if crosses { Some(connection.aws().await?) } else { None };
    let mut copies = Vec::new();
    for stream in &source.streams {
        let copy = Copy { aws: aws.as_ref(), stream: &stream.stream, to: target.layout() };
        let rows = copy.rows(&stream.rows).await?;
        for row in &rows {
            say!("{}/{}: {}", stream.stream, row.shard, row.checkpoint);
        }
        copies.push((stream.stream.clone(), rows, copy.facts(stream.facts).await?));
    }
    if !yes {
        note!("nothing was written: add --yes to copy them to {to}");
        return Ok(());
    }
    target.prepare().await?;
    let known = target.application().await?.streams;
    let mut there = BTreeMap::new();
    for (stream, rows, _) in &copies {
        let found = readable(target.list(stream).await?);
        let half = half_copied(target.layout(), known.contains_key(stream), rows, &found);
        if !found.is_empty() && !half {
            return Err(Failure::usage(format!(
                "{to} holds {} leases of {} on {stream} already: nothing was copied",
                found.len(),
                options.app
            )));
        }
        there.extend(found.into_iter().map(|row| (row.key.clone(), row)));
    }
    let again = super::command(options, connection, &words);
    let mut halt = Halt::new(format!("finish it before workers start there: `{again}`"))?;
    let editor = Editor::announcing(&target, again);
    let mut count = 0;
    for (stream, rows, facts) in &copies {
        for row in rows {
            let key = LeaseKey { stream: stream.clone(), shard: row.shard.clone() };
            let now = there.get(&key);
            if now.map(WantedLease::of).as_ref() != Some(row) {
                halt.step(editor.place(stream, row, now)).await?;
            }
            count += 1;
        }
        // The mark comes last: until then no worker takes what is half copied.
        if let Some(facts) = facts {
            editor.remember(stream, *facts).await?;
        }
    }
    editor.finish().await?;
    note!("{count} leases were copied to {to}; those they came from are as they were");
    Ok(())
}

/// Whether the rows there are what a copy left that did not come to its end. In our layout it has
/// not marked the stream; in KCL's, which has no mark, its rows are some of those that it copies.
fn half_copied(to: Layout, marked: bool, rows: &[WantedLease], there: &[Lease]) -> bool {
    match to {
        Layout::Native => !marked,
        Layout::Kcl => {
            let copied = |row: &Lease| row.owner.is_none() && rows.contains(&WantedLease::of(row));
            there.len() < rows.len() && there.iter().all(copied)
        }
    }
}

/// One stream on its way to another store.
struct Copy<'a> {
    /// Where the stream is, if the layouts differ.
    aws: Option<&'a Aws>,
    stream: &'a StreamName,
    /// The layout that it goes to.
    to: Layout,
}

impl Copy<'_> {
    /// The rows as the other layout keeps them.
    async fn rows(&self, rows: &[Lease]) -> Result<Vec<WantedLease>, Failure> {
        let Some(aws) = self.aws else { return Ok(rows.iter().map(WantedLease::of).collect()) };
        let list = || aws.kinesis.list_shards(self.stream, ShardFilter::All);
        let list = aws.ask(self.stream, list).await?;
        let now_ms = list.service_ms.unwrap_or_else(|| Clock::machine().wall_ms());
        let lineage = Lineage::new(list.shards);
        let mut wanted = Vec::new();
        for row in rows {
            let shard = lineage.get(&row.key.shard);
            let mut lease = WantedLease::of(row);
            lease.range = lease.range.or_else(|| shard.map(|shard| shard.range));
            let to = match (self.to, row.checkpoint.lowest(), shard) {
                (Layout::Native, Position::Latest, _) => Some(Position::AtTimestamp(now_ms)),
                // What the store lends a row that has no time of its own.
                (Layout::Native, Position::AtTimestamp(0), _) => {
                    return Err(Failure::usage(format!(
                        "the row of {} says AT_TIMESTAMP and keeps no time: reset it first, with \
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

    /// What the native layout has to remember. A table of KCL remembers nothing.
    async fn facts(&self, facts: Option<StreamFacts>) -> Result<Option<StreamFacts>, Failure> {
        match (self.to, facts, self.aws) {
            (Layout::Kcl, ..) | (Layout::Native, None, None) => Ok(None),
            (Layout::Native, Some(facts), _) => Ok(Some(facts)),
            (Layout::Native, None, Some(aws)) => {
                let created_ms = aws.look_at(self.stream).await?.created_ms;
                let t0_ms = Clock::machine().wall_ms();
                Ok(Some(StreamFacts { t0_ms, created_ms, first_sync_done: true }))
            }
        }
    }
}
