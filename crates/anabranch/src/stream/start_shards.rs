//! The shards that hold the records from a moment on.

use super::api::{ShardFilter, ShardList, StreamApi, StreamError};
use anabranch_model::coverage;
use anabranch_model::ids::StreamName;
use anabranch_model::lineage::Shard;

/// The list of a filter. For a moment before the oldest shards, where the service lists what was open
/// then and so leaves out the keys of all shards that began later, the list of the trim horizon.
///
/// A list that is torn by a reshard has holes too, and comes back as it is: the caller sees the holes
/// and asks again.
pub(crate) async fn list_from<A: StreamApi>(
    api: &A,
    stream: &StreamName,
    filter: ShardFilter,
) -> Result<ShardList, StreamError> {
    let list = api.list_shards(stream, filter).await?;
    if !matches!(filter, ShardFilter::AtTimestamp(_)) || is_whole(&list.shards) {
        return Ok(list);
    }
    // Torn, if the open shards have holes as well.
    let all = api.list_shards(stream, ShardFilter::All).await?;
    if !is_whole(all.shards.iter().filter(|shard| shard.ending.is_none())) {
        return Ok(list);
    }
    // A reshard may have been done with in between.
    let again = api.list_shards(stream, filter).await?;
    if is_whole(&again.shards) {
        return Ok(again);
    }
    api.list_shards(stream, ShardFilter::AtTrimHorizon).await
}

/// Whether the shards leave no key out.
pub(crate) fn is_whole<'a>(shards: impl IntoIterator<Item = &'a Shard>) -> bool {
    coverage::holes(shards.into_iter().map(|shard| shard.range)).is_empty()
}
