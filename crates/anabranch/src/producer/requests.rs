//! The two service calls of a running producer, each with a time-out.

use crate::clock::Clock;
use crate::stream::api::{
    PutEntry, PutEntryResult, ShardFilter, StreamApi, StreamError, upload_time,
};
use anabranch_model::ids::StreamName;
use anabranch_model::produce::{EntryResult, PutReply, PutRequest, ShardListResult};
use anabranch_model::retry::Fault;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Allowance for connecting and for the service itself when the upload determines the time-out.
const SERVICE_MS: u64 = 5_000;
/// Uploads below this size do not extend the time-out.
const SMALL_UPLOAD: u64 = 64 * 1024;

/// Client for the producer's calls. Clones share everything.
#[derive(Debug)]
pub(super) struct Requester<A> {
    pub(super) api: Arc<A>,
    pub(super) stream: StreamName,
    pub(super) clock: Clock,
    /// Time after which a call counts as lost. A put gets more if its upload needs more.
    pub(super) timeout_ms: u64,
    /// Bytes of all puts in flight.
    pub(super) uploading: UploadMeter,
}

/// Counts the bytes of the puts in flight, which share the uplink.
#[derive(Debug, Clone, Default)]
pub(super) struct UploadMeter(Arc<AtomicU64>);

/// Bytes of one put in flight; subtracted when dropped.
struct UploadGuard {
    bytes: u64,
    all: UploadMeter,
}

impl UploadMeter {
    /// Adds a request. Returns its guard and the bytes in flight, its own included.
    fn add(&self, bytes: u64) -> (UploadGuard, u64) {
        let before = self.0.fetch_add(bytes, Ordering::Relaxed);
        (UploadGuard { bytes, all: self.clone() }, before.saturating_add(bytes))
    }
}

impl Drop for UploadGuard {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Returns the time-out of a put while `uploading` bytes are in flight, its own included. This is
/// the requested time-out, or what a slow uplink needs if that is longer.
fn put_timeout_ms(asked_ms: u64, uploading: u64) -> u64 {
    let upload_ms = u64::try_from(upload_time(uploading).as_millis()).unwrap_or(u64::MAX);
    asked_ms.max(if uploading < SMALL_UPLOAD { 0 } else { SERVICE_MS.saturating_add(upload_ms) })
}

impl<A> Clone for Requester<A> {
    fn clone(&self) -> Self {
        Self {
            api: Arc::clone(&self.api),
            stream: self.stream.clone(),
            clock: self.clock.clone(),
            timeout_ms: self.timeout_ms,
            uploading: self.uploading.clone(),
        }
    }
}

impl<A: StreamApi> Requester<A> {
    /// Sends a request and returns its reply.
    pub(super) async fn put(self, request: PutRequest) -> PutReply {
        let PutRequest { entries, single, after, .. } = request;
        let bytes = entries.iter().map(|entry| entry.data.len() + entry.key.as_str().len());
        let bytes = bytes.map(|bytes| bytes as u64).sum();
        let (_upload, uploading) = self.uploading.add(bytes);
        let timeout_ms = put_timeout_ms(self.timeout_ms, uploading);
        let entries: Vec<PutEntry> = entries
            .into_iter()
            .map(|entry| PutEntry { key: entry.key, hash: entry.hash, data: entry.data })
            .collect();
        match entries.as_slice() {
            [entry] if single => {
                let call = self.api.put_record(&self.stream, entry, after);
                let placement = self.with_timeout(timeout_ms, call).await?.map_err(failure)?;
                let (shard, sequence) = (placement.shard, placement.sequence);
                Ok(vec![EntryResult::Placed { shard, sequence }])
            }
            entries => {
                let call = self.api.put_records(&self.stream, entries);
                let results = self.with_timeout(timeout_ms, call).await?.map_err(failure)?;
                Ok(results.into_iter().map(result).collect())
            }
        }
    }

    /// Reads the shard list: all shards if `full`, otherwise the open ones.
    pub(super) async fn shards(self, full: bool) -> ShardListResult {
        let filter = if full { ShardFilter::All } else { ShardFilter::AtLatest };
        let call = self.api.list_shards(&self.stream, filter);
        let list = self.with_timeout(self.timeout_ms, call).await.map_err(|(fault, _)| fault)?;
        list.map(|list| list.shards).map_err(|error| error.fault)
    }

    /// Cancels a call after `timeout_ms`. The call may still take effect.
    async fn with_timeout<T>(
        &self,
        timeout_ms: u64,
        call: impl Future<Output = T>,
    ) -> Result<T, (Fault, Arc<str>)> {
        tokio::select! {
            biased;
            reply = call => Ok(reply),
            () = self.clock.sleep(timeout_ms) => {
                let detail = format!("no reply within {timeout_ms} ms");
                Err((Fault::ReplyLost, detail.into()))
            }
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "used as a function of an error")]
fn failure(error: StreamError) -> (Fault, Arc<str>) {
    (error.fault, error.to_string().into())
}

fn result(result: PutEntryResult) -> EntryResult {
    match result {
        PutEntryResult::Placed(placement) => {
            EntryResult::Placed { shard: placement.shard, sequence: placement.sequence }
        }
        PutEntryResult::Failed { fault, code, message } => {
            EntryResult::Failed { fault, detail: format!("{code}: {message}").into() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_out_is_what_was_asked_for_or_what_the_upload_needs() {
        const MIB: u64 = 1024 * 1024;
        for (asked_ms, uploading, expected_ms) in [
            (100, 1_000, 100),
            (10_000, 100_000, 10_000),
            (10_000, MIB, 13_000),
            (60_000, MIB, 60_000),
            // At 128 KiB/s, 8 MiB take 64 s and 32 MiB take 256 s.
            (10_000, 8 * MIB, 69_000),
            (60_000, 8 * MIB, 69_000),
            (600_000, 8 * MIB, 600_000),
            (10_000, 32 * MIB, 261_000),
        ] {
            let found_ms = put_timeout_ms(asked_ms, uploading);
            assert_eq!(found_ms, expected_ms, "{asked_ms} ms, {uploading} bytes");
        }
    }

    #[test]
    fn uploads_count_while_they_are_under_way() {
        let uploading = UploadMeter::default();
        let (first, with_first) = uploading.add(10);
        let (second, with_second) = uploading.add(5);
        drop(first);
        let (_third, with_third) = uploading.add(1);
        drop(second);
        let (_, rest) = uploading.add(0);
        assert_eq!((with_first, with_second, with_third, rest), (10, 15, 6, 1));
    }
}
