//! The demo's stream: the few calls that it makes, through the AWS SDK over HTTP.

use crate::failure::Failure;
use anabranch_model::hash::{HashKey, HashRange};
use anabranch_model::ids::ShardId;
use anabranch_model::lineage::{Lineage, Shard};
use anabranch_model::sequence::SequenceNumber;
use aws_sdk_kinesis::Client;
use aws_sdk_kinesis::error::DisplayErrorContext;
use aws_sdk_kinesis::operation::get_records::GetRecordsOutput;
use aws_sdk_kinesis::types::{
    PutRecordsRequestEntry, PutRecordsResultEntry, Shard as ListedShard, ShardIteratorType,
    StreamStatus,
};
use std::time::Duration;

/// How often a stream that is not ACTIVE is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// One stream and the client that talks to it.
pub(super) struct Stream {
    client: Client,
    name: String,
}

/// Sends a request. A failure names the call, in one line.
macro_rules! call {
    ($name:literal, $request:expr) => {
        $request
            .send()
            .await
            .map_err(|e| Failure::result(format!("{}: {}", $name, DisplayErrorContext(e))))
    };
}

impl Stream {
    pub(super) fn new(client: Client, name: &str) -> Self {
        Self { client, name: name.to_owned() }
    }

    /// Creates the stream and waits until it can be used.
    pub(super) async fn create(&self, shards: i32) -> Result<(), Failure> {
        let create = self.client.create_stream().stream_name(&self.name).shard_count(shards);
        call!("CreateStream", create)?;
        self.until_active().await
    }

    async fn until_active(&self) -> Result<(), Failure> {
        loop {
            let describe = self.client.describe_stream_summary().stream_name(&self.name);
            let reply = call!("DescribeStreamSummary", describe)?;
            let status = reply.stream_description_summary().map(|s| s.stream_status().clone());
            if status == Some(StreamStatus::Active) {
                return Ok(());
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// The shards as a graph.
    pub(super) async fn lineage(&self) -> Result<Lineage, Failure> {
        let reply = call!("ListShards", self.client.list_shards().stream_name(&self.name))?;
        let shards: Option<Vec<Shard>> = reply.shards().iter().map(shard).collect();
        let shards = shards.ok_or_else(|| Failure::result("ListShards gave a malformed shard"))?;
        Ok(Lineage::new(shards))
    }

    /// Splits the first open shard in half. Says what became what.
    pub(super) async fn split_first_open(&self) -> Result<String, Failure> {
        let lineage = self.lineage().await?;
        let parent = lineage.open_shards().next();
        let parent = parent.ok_or_else(|| Failure::result("no open shard to split"))?;
        let (start, end) = (parent.range.start().0, parent.range.end().0);
        let middle = start + (end - start) / 2 + 1;
        let split = self.client.split_shard().stream_name(&self.name);
        let split = split.shard_to_split(parent.id.as_str());
        call!("SplitShard", split.new_starting_hash_key(middle.to_string()))?;
        self.until_active().await?;
        let after = self.lineage().await?;
        Ok(format!("{} into {}", parent.id, names(after.children(&parent.id))))
    }

    /// Merges the two open shards with the highest hash keys. Says what became what.
    pub(super) async fn merge_last_open(&self) -> Result<String, Failure> {
        let lineage = self.lineage().await?;
        let mut open: Vec<&Shard> = lineage.open_shards().collect();
        open.sort_by_key(|shard| shard.range);
        let [.., low, high] = open.as_slice() else {
            return Err(Failure::result("fewer than two open shards to merge"));
        };
        let merge = self.client.merge_shards().stream_name(&self.name);
        let merge = merge.shard_to_merge(low.id.as_str());
        call!("MergeShards", merge.adjacent_shard_to_merge(high.id.as_str()))?;
        self.until_active().await?;
        let after = self.lineage().await?;
        Ok(format!("{} and {} into {}", low.id, high.id, names(after.children(&low.id))))
    }

    /// Puts records; the outcomes come in the order of the records.
    pub(super) async fn put(
        &self,
        records: Vec<PutRecordsRequestEntry>,
    ) -> Result<Vec<PutRecordsResultEntry>, Failure> {
        let put = self.client.put_records().stream_name(&self.name).set_records(Some(records));
        Ok(call!("PutRecords", put)?.records)
    }

    /// An iterator at the oldest record of a shard.
    pub(super) async fn oldest(&self, shard: &ShardId) -> Result<Option<String>, Failure> {
        let get = self.client.get_shard_iterator().stream_name(&self.name);
        let get = get.shard_id(shard.as_str()).shard_iterator_type(ShardIteratorType::TrimHorizon);
        Ok(call!("GetShardIterator", get)?.shard_iterator)
    }

    /// The next records of a shard.
    pub(super) async fn read(&self, iterator: &str) -> Result<GetRecordsOutput, Failure> {
        call!("GetRecords", self.client.get_records().shard_iterator(iterator))
    }
}

fn names(ids: &[ShardId]) -> String {
    ids.iter().map(ShardId::as_str).collect::<Vec<_>>().join(" and ")
}

/// A listed shard in the model's words.
fn shard(listed: &ListedShard) -> Option<Shard> {
    let range = listed.hash_key_range()?;
    let start: HashKey = range.starting_hash_key().parse().ok()?;
    let end: HashKey = range.ending_hash_key().parse().ok()?;
    let numbers = listed.sequence_number_range()?;
    let starting: SequenceNumber = numbers.starting_sequence_number().parse().ok()?;
    let ending = numbers.ending_sequence_number().map(str::parse).transpose().ok()?;
    Some(Shard {
        id: listed.shard_id().into(),
        parent: listed.parent_shard_id().map(Into::into),
        adjacent_parent: listed.adjacent_parent_shard_id().map(Into::into),
        range: HashRange::new(start, end)?,
        starting,
        ending,
    })
}
