//! Resolution of LATEST to a timestamp, once per reading of a shard.

use super::with_timeout;
use crate::clock::Clock;
use crate::stream::api::{ShardFilter, StreamApi, StreamError};
use anabranch_model::lease::LeaseKey;
use std::sync::OnceLock;

/// The timestamp that LATEST stands for.
///
/// It is resolved before the user's code runs, and kept for everything that reads from LATEST: a
/// later timestamp would skip the records in between. Only rows of KCL's layout are created at
/// LATEST; the timestamp is written to them when it is first resolved.
#[derive(Debug, Default)]
pub(in crate::consumer) struct LatestResolver(OnceLock<u64>);

impl LatestResolver {
    /// Returns the timestamp, in milliseconds since 1970 by the service's clock. Falls back to the
    /// worker's clock if the service reports no time.
    pub(in crate::consumer) async fn resolve<A: StreamApi>(
        &self,
        api: &A,
        shard: &LeaseKey,
        clock: &Clock,
    ) -> Result<u64, StreamError> {
        if let Some(ms) = self.0.get() {
            return Ok(*ms);
        }
        let list = api.list_shards(&shard.stream, ShardFilter::AtLatest);
        let list = with_timeout(clock, "ListShards", shard, list).await?;
        let ms = list.service_ms.unwrap_or_else(|| clock.wall_ms());
        Ok(*self.0.get_or_init(|| ms))
    }
}
