//! A stream wrapper that observes each request for LATEST: records in a shard at that time are
//! skipped.

use crate::record_source::RecordSource;
use crate::rows::LeaseRows;
use anabranch::lease::LeaseStore;
use anabranch::stream::LocalKinesis;
use anabranch::stream::api::{
    FanOutConsumer, FetchedRecords, Placement, PutEntry, PutEntryResult, ReadFrom, ShardFilter,
    ShardIterator, ShardList, StreamApi, StreamError, StreamSummary, Subscription,
};
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::{Layout, Lease, LeaseKey};
use anabranch_model::lineage::Lineage;
use anabranch_model::position::{Position, StartPosition};
use anabranch_model::sequence::SequenceNumber;
use std::collections::BTreeSet;
use std::future::Future;

/// The stream as its service answers.
pub struct LatestTracker {
    /// The stream itself.
    inner: LocalKinesis,
    /// Its records and the lease rows, if rows are created at LATEST.
    passes_over: Option<(RecordSource, LeaseRows)>,
}

impl LatestTracker {
    /// Wraps the stream of `supply` for an application that starts at `start`. In the native layout
    /// LATEST becomes a timestamp, so that nothing is ever read at LATEST.
    pub fn new(supply: &RecordSource, rows: &LeaseRows, start: StartPosition) -> Self {
        let passes_over = start == StartPosition::Latest && rows.layout() == Layout::Kcl;
        let passes_over = passes_over.then(|| (supply.clone(), rows.clone()));
        Self { inner: supply.workload().api().clone(), passes_over }
    }

    /// Skips the records that precede LATEST when a worker resolves it. From there the worker may
    /// read the unread shards whose rows hold LATEST. Once a shard was read, its row holds the
    /// position where reading began, and a later LATEST does not affect it.
    ///
    /// An interrupted first sync leaves shards out. Those that are closed when it runs again
    /// precede that LATEST.
    fn latest(&self, stream: &StreamName) {
        let Some((supply, rows)) = &self.passes_over else { return };
        let rows = rows.leases(stream);
        let unread = |row: &&Lease| {
            row.checkpoint.lowest() == Position::Latest && !supply.has_begun(&row.key)
        };
        let shards: BTreeSet<&LeaseKey> = rows.iter().filter(unread).map(|row| &row.key).collect();
        let left_out = left_out(&Lineage::new(supply.workload().listed(stream)), &rows);
        let is_left_out =
            |shard: &LeaseKey| shard.stream == *stream && left_out.contains(&shard.shard);
        supply.skip(|grain| shards.contains(&grain.shard) || is_left_out(&grain.shard));
    }
}

/// Returns the closed shards that have no row and no ancestor with a row.
fn left_out(list: &Lineage, rows: &[Lease]) -> BTreeSet<ShardId> {
    let leased: BTreeSet<&ShardId> = rows.iter().map(|row| &row.key.shard).collect();
    let has_row = |shard: &ShardId| leased.contains(shard);
    let comes_from_row = |shard: &ShardId| list.ancestors(shard).into_iter().any(has_row);
    let closed = list.shards().filter(|shard| !shard.is_open()).map(|shard| &shard.id);
    closed.filter(|shard| !has_row(shard) && !comes_from_row(shard)).cloned().collect()
}

impl StreamApi for LatestTracker {
    fn describe(
        &self,
        stream: &StreamName,
    ) -> impl Future<Output = Result<StreamSummary, StreamError>> + Send {
        self.inner.describe(stream)
    }

    fn list_shards(
        &self,
        stream: &StreamName,
        filter: ShardFilter,
    ) -> impl Future<Output = Result<ShardList, StreamError>> + Send {
        if filter == ShardFilter::AtLatest {
            self.latest(stream);
        }
        self.inner.list_shards(stream, filter)
    }

    fn iterator(
        &self,
        stream: &StreamName,
        shard: &ShardId,
        at: ReadFrom,
    ) -> impl Future<Output = Result<ShardIterator, StreamError>> + Send {
        self.inner.iterator(stream, shard, at)
    }

    fn records(
        &self,
        stream: &StreamName,
        iterator: &ShardIterator,
        limit: u32,
    ) -> impl Future<Output = Result<FetchedRecords, StreamError>> + Send {
        self.inner.records(stream, iterator, limit)
    }

    fn register_consumer(
        &self,
        stream: &StreamSummary,
        name: &str,
    ) -> impl Future<Output = Result<FanOutConsumer, StreamError>> + Send {
        self.inner.register_consumer(stream, name)
    }

    fn describe_consumer(
        &self,
        stream: &StreamSummary,
        name: &str,
    ) -> impl Future<Output = Result<FanOutConsumer, StreamError>> + Send {
        self.inner.describe_consumer(stream, name)
    }

    fn deregister_consumer(
        &self,
        consumer: &FanOutConsumer,
    ) -> impl Future<Output = Result<(), StreamError>> + Send {
        self.inner.deregister_consumer(consumer)
    }

    fn subscribe(
        &self,
        consumer: &FanOutConsumer,
        shard: &ShardId,
        at: ReadFrom,
    ) -> impl Future<Output = Result<Subscription, StreamError>> + Send {
        self.inner.subscribe(consumer, shard, at)
    }

    fn put_records(
        &self,
        stream: &StreamName,
        entries: &[PutEntry],
    ) -> impl Future<Output = Result<Vec<PutEntryResult>, StreamError>> + Send {
        self.inner.put_records(stream, entries)
    }

    fn put_record(
        &self,
        stream: &StreamName,
        entry: &PutEntry,
        after: Option<SequenceNumber>,
    ) -> impl Future<Output = Result<Placement, StreamError>> + Send {
        self.inner.put_record(stream, entry, after)
    }
}
