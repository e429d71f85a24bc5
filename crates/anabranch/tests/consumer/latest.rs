//! LATEST on KCL's table: the position that it stands for is on the row before a record is handed
//! out.

use crate::world::{ConsumerFixture, RunningWorker, pause};
use anabranch::lease::MemoryStore;
use anabranch::stream::LocalKinesis;
use anabranch::stream::api::{ShardFilter, ShardList, StreamApi, StreamError};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::Layout;
use anabranch_model::position::StartPosition;
use anabranch_model::retry::Fault;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A stream that some requests for LATEST falsely report as missing.
struct SaidToBeMissing {
    local: LocalKinesis,
    asked: AtomicUsize,
    missing: Range<usize>,
}

impl StreamApi for SaidToBeMissing {
    delegate!(local: describe iterator records consumers subscribe put_records put_record);

    async fn list_shards(
        &self,
        stream: &StreamName,
        filter: ShardFilter,
    ) -> Result<ShardList, StreamError> {
        if filter == ShardFilter::AtLatest
            && self.missing.contains(&self.asked.fetch_add(1, Ordering::Relaxed))
        {
            return Err(StreamError {
                fault: Fault::Missing,
                operation: "ListShards",
                target: stream.to_string(),
                detail: "not found".into(),
                source: None,
            });
        }
        self.local.list_shards(stream, filter).await
    }
}

#[tokio::test(start_paused = true)]
async fn what_comes_while_nobody_reads_is_not_skipped_although_the_stream_was_said_to_be_missing() {
    // The first request is the first sync's.
    for missing in [0..0, 1..3] {
        let mut world = ConsumerFixture::ticking(2);
        world.leases = MemoryStore::with_layout(Layout::Kcl);
        world.put_data("key-0", b"before the application's time");
        pause(1_100).await;
        let worker = |missing: Range<usize>, name| {
            let local = LocalKinesis::new(Arc::clone(&world.engine));
            let consumer = world
                .consumer(1)
                .starting_at(StartPosition::Latest)
                .with_kinesis(SaidToBeMissing { local, asked: AtomicUsize::new(0), missing });
            RunningWorker::start(consumer.each(world.note(name)))
        };
        let first = worker(missing.clone(), "first");
        pause(20_000).await;
        first.stop().await;
        world.put_round(10);
        pause(5_000).await;
        let second = worker(0..0, "second");
        pause(60_000).await;
        assert_eq!(world.oracle.seen(), world.oracle.puts(), "{missing:?}");
        second.stop().await;
    }
}
