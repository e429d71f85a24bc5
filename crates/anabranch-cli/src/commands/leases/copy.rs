//! Moving an application to another store, between layouts too.

use super::application::Standing;
use super::editor::{Editor, moved_to};
use super::moment_of_shard::last_before;
use super::snapshot::WantedLease;
use super::{Options, quiet};
use crate::connection::{Aws, Connection};
use crate::failure::Failure;
use crate::output::{note, say};
use anabranch::clock::Clock;
use anabranch::lease::{LeaseStore, StoreAddress};
use anabranch::stream::api::{ShardFilter, StreamApi};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{Layout, Lease, StreamFacts};
use anabranch_model::lineage::Lineage;
use anabranch_model::position::Position;

/// Shows what would be copied, and does it if that was asked for.
pub(super) async fn run(
    options: &Options,
    connection: &Connection,
    from: Option<&StoreAddress>,
    to: &StoreAddress,
    yes: bool,
) -> Result<(), Failure> {
    let from = match from {
        Some(address) => connection.existing_store(address, &options.app).await?,
        None => connection.existing_leases(&options.app).await?,
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
    if source.streams.iter().all(|stream| stream.rows.is_empty()) {
        return Err(Failure::usage(format!("there are no leases of {} to copy", options.app)));
    }
    let target = connection.store(to, &options.app).await?;
    let crosses = source.store.layout() != target.layout();
    if crosses && source.store.layout() == Layout::Kcl && options.stream.is_none() {
        return Err(Failure::usage(
            "the table of a KCL application does not name its stream: give it with --stream",
        ));
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
    for (stream, _, _) in &copies {
        let there = target.list(stream).await?;
        if !there.is_empty() {
            return Err(Failure::usage(format!(
                "{to} holds {} leases of {} on {stream} already: nothing was copied",
                there.len(),
                options.app
            )));
        }
    }
    let editor = Editor::new(&target);
    let mut count = 0;
    for (stream, rows, facts) in &copies {
        for row in rows {
            editor.place(stream, row, None).await?;
            count += 1;
        }
        // The mark comes last: until then no worker takes what is half copied.
        if let Some(facts) = facts {
            editor.remember(stream, *facts).await?;
        }
    }
    note!("{count} leases were copied to {to}; those they came from are as they were");
    Ok(())
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
                (Layout::Native, Position::AtTimestamp(_), _) => {
                    return Err(Failure::usage(format!(
                        "the row of {} says AT_TIMESTAMP and keeps no time: reset it first, with \
                         `leases APP reset --shard {0} --to TIME`",
                        row.key.shard
                    )));
                }
                (Layout::Kcl, Position::AtTimestamp(ms), Some(shard)) => {
                    Some(last_before(&aws.kinesis, self.stream, shard, ms).await?)
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
