//! Proof that a read has reached the end of its shard.
//!
//! At the end of a shard a read names the children. Some services never do, and a faulty one may
//! claim the end of an open shard:
//!
//! ```text
//! read: ended, no children ─► list ─┬─ all children ─► read on: ended again ─► the end
//!   ▲                               └─ not all, or none: a pause ─┐
//!   └─────────────────────────────────────────────────────────────┘
//! ```
//!
//! The read that counts begins after a list has named all children. Any other read would lose the
//! records between a false end and the reshard.

use super::FetchContext;
use crate::consumer::health::telemetry::FetchStep;
use crate::stream::api::{ChildShard, ShardFilter, StreamApi, StreamError};
use anabranch_model::lineage::{Lineage, Shard};

/// Pause before the read that follows an unproven end, in milliseconds.
const DOUBT_MS: u64 = 1_000;
/// Pause before the read that proves an end, in milliseconds.
const PROOF_MS: u64 = 200;

/// Evidence for the end of a shard.
#[derive(Debug, Default)]
pub(super) struct ShardEndTracker {
    /// All children, once a list has named them: no new records can arrive.
    followers: Option<Vec<ChildShard>>,
}

/// Verdict on a claimed end.
#[derive(Debug)]
pub(super) enum EndClaim {
    /// The shard has ended. These are its children.
    Proven(Vec<ChildShard>),
    /// The end is not proven: read on after a pause in milliseconds.
    Doubtful(u64),
}

impl ShardEndTracker {
    /// Judges a read that claims the end of the shard and names these children.
    pub(super) async fn note_end<A: StreamApi>(
        &mut self,
        source: &FetchContext<A>,
        named: Vec<ChildShard>,
    ) -> Result<EndClaim, StreamError> {
        if !named.is_empty() {
            return Ok(EndClaim::Proven(named));
        }
        if let Some(followers) = &self.followers {
            return Ok(EndClaim::Proven(followers.clone()));
        }
        let feed = &source.feed;
        feed.vitals.enter(FetchStep::Fetch);
        let listed = source.api.list_shards(&feed.shard.stream, ShardFilter::All);
        let lineage = Lineage::new(source.in_time("ListShards", listed).await?.shards);
        feed.vitals.enter(FetchStep::Idle);
        let followers = lineage.followers(&feed.shard.shard, Some(&feed.range));
        self.followers = followers.map(|shards| shards.into_iter().map(child).collect());
        if self.followers.is_none() {
            let doubt =
                "the shard has ended, but the shard list does not contain all of its children yet";
            source.emit_failed(doubt.to_owned(), 1, DOUBT_MS);
            return Ok(EndClaim::Doubtful(DOUBT_MS));
        }
        Ok(EndClaim::Doubtful(PROOF_MS))
    }
}

fn child(shard: &Shard) -> ChildShard {
    let parents = shard.parents().cloned().collect();
    ChildShard { id: shard.id.clone(), parents, range: shard.range }
}
