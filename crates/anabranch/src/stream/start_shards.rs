//! Lists the shards that hold the records from a starting position on.

use super::api::{ShardFilter, ShardList, StreamApi, StreamError};
use anabranch_model::coverage;
use anabranch_model::ids::StreamName;
use anabranch_model::lineage::Shard;

/// Returns the shards of `filter`.
///
/// For a timestamp before the oldest shards, the service lists the shards that were open then. That
/// list omits the keys of all shards created later, so this returns the trim horizon's list
/// instead.
///
/// A list torn by a reshard also has holes in its hash range. It is returned as it is: the caller
/// detects the holes and asks again.
pub(crate) async fn list_from<A: StreamApi>(
    api: &A,
    stream: &StreamName,
    filter: ShardFilter,
) -> Result<ShardList, StreamError> {
    let list = api.list_shards(stream, filter).await?;
    if !matches!(filter, ShardFilter::AtTimestamp(_)) || is_whole(&list.shards) {
        return Ok(list);
    }
    // If the open shards have holes too, the list was torn by a reshard.
    let all = api.list_shards(stream, ShardFilter::All).await?;
    if !is_whole(all.shards.iter().filter(|shard| shard.ending.is_none())) {
        return Ok(list);
    }
    // A reshard may have finished in between.
    let again = api.list_shards(stream, filter).await?;
    if is_whole(&again.shards) {
        return Ok(again);
    }
    api.list_shards(stream, ShardFilter::AtTrimHorizon).await
}

/// Returns true if the shards cover the whole hash range.
pub(crate) fn is_whole<'a>(shards: impl IntoIterator<Item = &'a Shard>) -> bool {
    coverage::holes(shards.into_iter().map(|shard| shard.range)).is_empty()
}
