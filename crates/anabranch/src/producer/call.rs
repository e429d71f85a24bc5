//! The two calls that a producer makes while it runs, each with a time-out.

use crate::clock::Clock;
use crate::stream::api::{Entry, EntryResult, ShardFilter, StreamApi, StreamError};
use anabranch_model::ids::StreamName;
use anabranch_model::produce::{EntryReply, Reply, Request, ShardsRead};
use anabranch_model::retry::Fault;
use std::future::Future;
use std::sync::Arc;

/// What a call needs. Clones share everything.
#[derive(Debug)]
pub(super) struct Caller<A> {
    pub(super) api: Arc<A>,
    pub(super) stream: StreamName,
    pub(super) clock: Clock,
    /// After how long a call counts as lost.
    pub(super) timeout_ms: u64,
}

impl<A> Clone for Caller<A> {
    fn clone(&self) -> Self {
        Self {
            api: Arc::clone(&self.api),
            stream: self.stream.clone(),
            clock: self.clock.clone(),
            timeout_ms: self.timeout_ms,
        }
    }
}

impl<A: StreamApi> Caller<A> {
    /// Sends a request.
    pub(super) async fn put(self, request: Request) -> Reply {
        let Request { entries, single, after, .. } = request;
        let entries: Vec<Entry> = entries
            .into_iter()
            .map(|entry| Entry { key: entry.key, hash: entry.hash, data: entry.data })
            .collect();
        match entries.as_slice() {
            [entry] if single => {
                let call = self.api.put_record(&self.stream, entry, after);
                let placement = self.within(call).await?.map_err(failure)?;
                let (shard, sequence) = (placement.shard, placement.sequence);
                Ok(vec![EntryReply::Placed { shard, sequence }])
            }
            entries => {
                let call = self.api.put_records(&self.stream, entries);
                let results = self.within(call).await?.map_err(failure)?;
                Ok(results.into_iter().map(result).collect())
            }
        }
    }

    /// Reads the list of shards.
    pub(super) async fn shards(self, full: bool) -> ShardsRead {
        let filter = if full { ShardFilter::All } else { ShardFilter::AtLatest };
        let call = self.api.list_shards(&self.stream, filter);
        let list = self.within(call).await.map_err(|(fault, _)| fault)?;
        list.map(|list| list.shards).map_err(|error| error.fault)
    }

    /// Gives a call up when its time is over: it may still take effect.
    async fn within<T>(&self, call: impl Future<Output = T>) -> Result<T, (Fault, Arc<str>)> {
        tokio::select! {
            biased;
            reply = call => Ok(reply),
            () = self.clock.sleep(self.timeout_ms) => {
                let detail = format!("no reply within {} ms", self.timeout_ms);
                Err((Fault::ReplyLost, detail.into()))
            }
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "used as a function of an error")]
fn failure(error: StreamError) -> (Fault, Arc<str>) {
    (error.fault, error.to_string().into())
}

fn result(result: EntryResult) -> EntryReply {
    match result {
        EntryResult::Placed(placement) => {
            EntryReply::Placed { shard: placement.shard, sequence: placement.sequence }
        }
        EntryResult::Failed { fault, code, message } => {
            EntryReply::Failed { fault, detail: format!("{code}: {message}").into() }
        }
    }
}
