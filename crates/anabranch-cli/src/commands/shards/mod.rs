//! `anabranch shards`: shows the shards of a stream as a tree, and the reasons for unread shards.

mod status;
mod lag;
mod tree;

use crate::commands::leases::readable;
use crate::connection::{AwsClients, ConnectionSettings};
use crate::failure::CommandFailure;
use crate::output::print_line;
use crate::table;
use anabranch::lease::{AnyStore, LeaseStore};
use anabranch::stream::api::{ShardFilter, StreamApi, StreamSummary};
use anabranch_model::coverage;
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::Lease;
use anabranch_model::lineage::{Lineage, Shard};
pub(crate) use lag::{LeaseLag, lags};
use serde::Serialize;
pub(crate) use status::{ShardStatus, holes, standing};
use std::collections::BTreeMap;
pub(crate) use tree::checkpoint_text;
use tree::share;

/// Options of `anabranch shards`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
With --app, the tree shows the owner and checkpoint of each shard, and the age of its oldest \
unread record. --leases selects the application's lease store; for the table of a Java KCL \
application use --leases kcl:TABLE. The command only reads.

Exit code 1 if no worker will read some keys of the stream: a hole.")]
pub(crate) struct ShardsOptions {
    /// Stream name
    stream: String,
    /// Application whose leases to show
    #[arg(long, value_name = "NAME")]
    app: Option<String>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// A stream, and the leases of an application.
pub(crate) struct ShardsView {
    pub(crate) summary: StreamSummary,
    pub(crate) lineage: Lineage,
    /// Lease rows, if an application was given.
    pub(crate) rows: Option<BTreeMap<ShardId, Lease>>,
    /// Lags of the unfinished leases.
    pub(crate) lags: BTreeMap<ShardId, LeaseLag>,
}

impl ShardsView {
    /// Reads the stream and the leases.
    pub(crate) async fn take(
        aws: &AwsClients,
        stream: &StreamName,
        store: Option<&AnyStore>,
    ) -> Result<Self, CommandFailure> {
        let summary = aws.check_stream(stream).await?;
        let rows: Option<BTreeMap<ShardId, Lease>> = match store {
            None => None,
            Some(store) => {
                let name = aws.name_in(store, stream, &summary).await?;
                let rows = readable(store.list(&name).await?);
                Some(rows.into_iter().map(|row| (row.key.shard.clone(), row)).collect())
            }
        };
        // The shards are listed after the rows: otherwise a shard that ended meanwhile would look
        // open.
        let list = || aws.kinesis.list_shards(stream, ShardFilter::All);
        let lineage = Lineage::new(aws.ask(stream, list).await?.shards);
        let lags = match &rows {
            None => BTreeMap::new(),
            Some(rows) => lags(&aws.kinesis, &lineage, rows).await,
        };
        Ok(Self { summary, lineage, rows, lags })
    }

    /// Returns the status of a shard, if an application was given.
    pub(crate) fn standing(&self, shard: &Shard) -> Option<ShardStatus> {
        self.rows.as_ref().map(|rows| standing(&self.lineage, rows, shard))
    }
}

/// JSON representation of a shard.
#[derive(Serialize)]
struct ShardJson<'a> {
    shard: &'a str,
    parents: Vec<&'a str>,
    state: &'static str,
    starting_hash_key: String,
    ending_hash_key: String,
    share_percent: f64,
    #[serde(flatten)]
    read: Option<LeaseJson>,
}

/// JSON representation of its lease.
#[derive(Serialize)]
struct LeaseJson {
    standing: &'static str,
    why: String,
    owner: Option<String>,
    checkpoint: Option<String>,
    lag_ms: Option<u64>,
}

/// Prints the tree.
pub(crate) async fn run(
    options: ShardsOptions,
    connection: &ConnectionSettings,
) -> Result<(), CommandFailure> {
    let store = match &options.app {
        None => None,
        Some(app) => Some(connection.existing_leases(app, Some(&options.stream)).await?),
    };
    let aws = connection.aws().await?;
    let stream = StreamName::from(options.stream.as_str());
    let picture = ShardsView::take(&aws, &stream, store.as_ref()).await?;
    let holes = picture.rows.as_ref().map(|rows| holes(&picture.lineage, rows)).unwrap_or_default();
    if options.json {
        print_line!("{}", json(&picture));
    } else {
        show(&stream, &picture);
    }
    match holes.as_slice() {
        [] => Ok(()),
        some => Err(CommandFailure::result(format!(
            "{} open shards are not read, and no worker will read them: run `anabranch doctor \
             {stream} {}` for details",
            some.len(),
            options.app.unwrap_or_default()
        ))),
    }
}

fn show(stream: &StreamName, picture: &ShardsView) {
    let open = picture.lineage.open_shards().count();
    let all = picture.lineage.shards().count();
    let mode = if picture.summary.on_demand { "on demand" } else { "provisioned" };
    let status = format!("{:?}", picture.summary.status).to_uppercase();
    print_line!("{stream}: {status}, {mode}, {open} open shards of {all}");
    for hole in coverage::holes(picture.lineage.open_shards().map(|shard| shard.range)) {
        print_line!(
            "no open shard covers the keys {hole:?}: a reshard is in progress, or the shard list \
             is incomplete"
        );
    }
    table::show(tree::columns(picture), &tree::rows(picture));
}

fn json(picture: &ShardsView) -> String {
    let row = |shard| {
        let lease = picture.rows.as_ref().and_then(|rows| rows.get(&Shard::clone(shard).id));
        ShardJson {
            shard: shard.id.as_str(),
            parents: shard.parents().map(ShardId::as_str).collect(),
            state: if shard.is_open() { "open" } else { "closed" },
            starting_hash_key: shard.range.start().to_string(),
            ending_hash_key: shard.range.end().to_string(),
            share_percent: share(shard),
            read: picture.standing(shard).map(|standing| LeaseJson {
                standing: standing.word(),
                why: standing.to_string(),
                owner: lease.and_then(|lease| lease.owner.as_ref().map(ToString::to_string)),
                checkpoint: lease.map(|lease| lease.checkpoint.to_string()),
                lag_ms: picture.lags.get(&shard.id).and_then(LeaseLag::ms),
            }),
        }
    };
    let rows: Vec<ShardJson<'_>> = picture.lineage.shards().map(row).collect();
    serde_json::to_string(&rows).unwrap_or_default()
}
