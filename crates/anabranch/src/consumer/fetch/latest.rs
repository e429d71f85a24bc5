//! What LATEST stands for: a moment that is found out once.

use super::with_timeout;
use crate::clock::Clock;
use crate::stream::api::{ShardFilter, StreamApi, StreamError};
use anabranch_model::lease::LeaseKey;
use std::sync::OnceLock;

/// The moment that LATEST stands for: found out before the user's code runs, and kept for all that
/// read from there. A moment of their own would skip what came between. Only rows of KCL's layout are
/// made at LATEST; they keep the moment from the first time on that it is found out.
#[derive(Debug, Default)]
pub(in crate::consumer) struct LatestResolver(OnceLock<u64>);

impl LatestResolver {
    /// The moment, in milliseconds since 1970 by the service's clock.
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
