//! Where records come from: polled, or pushed by enhanced fan-out.

pub(super) mod poll;
pub(super) mod fanout;

use super::decode::Feed;
use crate::clock::{Chance, Clock};
use crate::event::ShardEvent;
use crate::stream::api::{ChildShard, ReadFrom, ShardFilter, StreamApi, StreamError};
use anabranch_model::retry::{Backoff, Fault};
use std::future::Future;
use std::sync::{Arc, OnceLock};

/// Pauses after a call that failed.
const FAILED: Backoff = Backoff::new(200, 10_000);
/// The longest that one call is waited for, whatever time-outs the API has of its own.
const CALL_MS: u64 = 40_000;

/// How records are fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FetchMode {
    /// `GetRecords`: five calls and 2 MB a second for each shard, shared by all applications.
    #[default]
    Poll,
    /// `SubscribeToShard`: 2 MB a second for each shard and application, pushed within
    /// milliseconds. It is paid for. The consumer is registered under the application's name.
    FanOut,
}

/// Why fetching ended.
#[derive(Debug)]
pub(crate) enum FetchEnd {
    /// The closed shard has no more records.
    ShardEnd(Vec<ChildShard>),
    /// The service says that it has no such shard.
    Missing,
    /// It was told to stop.
    Stopped,
}

/// The moment that LATEST stands for while a shard is held: found out by the first who reads from
/// there, and kept for all that read after it. A moment of their own would skip what came between.
#[derive(Debug, Default)]
pub(super) struct Latest(OnceLock<u64>);

/// What fetching one shard needs, whichever way.
pub(super) struct Source<A> {
    /// The service.
    pub(super) api: Arc<A>,
    /// Where the records go.
    pub(super) feed: Feed,
    /// What LATEST stands for, once somebody has read from there.
    pub(super) latest: Arc<Latest>,
    /// The worker's clock.
    pub(super) clock: Clock,
    /// The worker's chance.
    pub(super) chance: Chance,
}

impl<A: StreamApi> Source<A> {
    /// A call that is given up when it takes too long.
    async fn in_time<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T, StreamError>>,
    ) -> Result<T, StreamError> {
        tokio::select! {
            biased;
            outcome = call => outcome,
            () = self.clock.sleep(CALL_MS) => Err(StreamError {
                fault: Fault::ReplyLost,
                operation,
                target: self.feed.shard.to_string(),
                detail: format!("no answer within {CALL_MS} ms"),
                source: None,
            }),
        }
    }

    /// The same place without LATEST, which becomes a moment.
    async fn fixed(&self, from: ReadFrom) -> Result<ReadFrom, StreamError> {
        if from != ReadFrom::Latest {
            return Ok(from);
        }
        if let Some(ms) = self.latest.0.get() {
            return Ok(ReadFrom::AtTimestamp(*ms));
        }
        let list = self.api.list_shards(&self.feed.shard.stream, ShardFilter::AtLatest);
        let list = self.in_time("ListShards", list).await?;
        let ms = list.service_ms.unwrap_or_else(|| self.clock.wall_ms());
        Ok(ReadFrom::AtTimestamp(*self.latest.0.get_or_init(|| ms)))
    }

    /// Tells that a call failed, and gives the pause before the next.
    fn failed(&self, error: &StreamError, failures: u32) -> u64 {
        let (shard, error) = (Arc::clone(&self.feed.shard), error.to_string());
        let pause_ms = FAILED.wait_ms(failures, self.chance.bits());
        self.feed.events.emit(ShardEvent::FetchFailed { shard, error, failures, pause_ms });
        pause_ms
    }

    /// Tells that records came.
    fn fetched(&self, records: usize, behind_ms: u64) {
        let shard = Arc::clone(&self.feed.shard);
        self.feed.events.emit(ShardEvent::Fetched { shard, records, behind_ms });
    }
}
