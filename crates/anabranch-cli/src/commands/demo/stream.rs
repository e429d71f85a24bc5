//! Stream of the demo: the few API calls that it makes, through the AWS SDK over HTTP.

use crate::failure::CommandFailure;
use anabranch::clock::Rng;
use anabranch::stream::AwsKinesis;
use anabranch::stream::api::{ShardFilter, StreamApi, StreamStatus};
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lineage::{Lineage, Shard};
use aws_sdk_kinesis::Client;
use aws_sdk_kinesis::error::DisplayErrorContext;
use aws_types::SdkConfig;
use std::time::Duration;

/// Interval between checks until a stream is ACTIVE.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A stream and its clients.
pub(super) struct DemoStream {
    /// Client for the library.
    pub(super) kinesis: AwsKinesis,
    /// Client for administrative calls.
    client: Client,
    pub(super) name: StreamName,
}

/// Sends a request. An error names the call, on one line.
macro_rules! call {
    ($name:literal, $request:expr) => {
        $request
            .send()
            .await
            .map_err(|e| CommandFailure::result(format!("{}: {}", $name, DisplayErrorContext(e))))
    };
}

impl DemoStream {
    pub(super) fn new(config: &SdkConfig, name: &str) -> Self {
        Self { kinesis: AwsKinesis::new(config), client: Client::new(config), name: name.into() }
    }

    /// Creates the stream and waits until it is ACTIVE.
    pub(super) async fn create(&self, shards: i32) -> Result<(), CommandFailure> {
        let create = self.client.create_stream().stream_name(self.name.as_str());
        call!("CreateStream", create.shard_count(shards))?;
        self.until_active().await
    }

    async fn until_active(&self) -> Result<(), CommandFailure> {
        loop {
            let summary =
                self.kinesis.describe(&self.name).await.map_err(CommandFailure::result)?;
            if summary.status == StreamStatus::Active {
                return Ok(());
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Returns the shards as a graph.
    pub(super) async fn lineage(&self) -> Result<Lineage, CommandFailure> {
        let list = self.kinesis.list_shards(&self.name, ShardFilter::All).await;
        Ok(Lineage::new(list.map_err(CommandFailure::result)?.shards))
    }

    /// Splits an open shard in half. Returns a description.
    pub(super) async fn split(&self, chance: &Rng) -> Result<String, CommandFailure> {
        let lineage = self.lineage().await?;
        let open = by_keys(&lineage);
        let parent = open[pick(chance, open.len())];
        let (start, end) = (parent.range.start().0, parent.range.end().0);
        let middle = start + (end - start) / 2 + 1;
        let split = self.client.split_shard().stream_name(self.name.as_str());
        let split = split.shard_to_split(parent.id.as_str());
        call!("SplitShard", split.new_starting_hash_key(middle.to_string()))?;
        self.until_active().await?;
        let after = self.lineage().await?;
        Ok(format!("split {} into {}", short(&parent.id), names(after.children(&parent.id))))
    }

    /// Merges two adjacent shards. Returns a description.
    pub(super) async fn merge(&self, chance: &Rng) -> Result<String, CommandFailure> {
        let lineage = self.lineage().await?;
        let open = by_keys(&lineage);
        let at = pick(chance, open.len() - 1);
        let (low, high) = (open[at], open[at + 1]);
        let merge = self.client.merge_shards().stream_name(self.name.as_str());
        let merge = merge.shard_to_merge(low.id.as_str());
        call!("MergeShards", merge.adjacent_shard_to_merge(high.id.as_str()))?;
        self.until_active().await?;
        let after = self.lineage().await?;
        let child = names(after.children(&low.id));
        Ok(format!("merge {} and {} into {child}", short(&low.id), short(&high.id)))
    }
}

use crate::line::short;

/// Returns the open shards in order of their hash ranges.
fn by_keys(lineage: &Lineage) -> Vec<&Shard> {
    let mut open: Vec<&Shard> = lineage.open_shards().collect();
    open.sort_by_key(|shard| shard.range);
    open
}

fn pick(chance: &Rng, among: usize) -> usize {
    usize::try_from(chance.below(among as u64)).unwrap_or(0)
}

fn names(ids: &[ShardId]) -> String {
    ids.iter().map(short).collect::<Vec<_>>().join(" and ")
}
