//! What LATEST stands for: a moment that is found out once.

use super::in_time;
use crate::clock::Clock;
use crate::stream::api::{ShardFilter, StreamApi, StreamError};
use anabranch_model::lease::{Checkpoint, LeaseKey};
use anabranch_model::position::Position;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The moment that LATEST stands for: found out before the user's code runs, and kept for all that
/// read from there. A moment of their own would skip what came between.
#[derive(Debug, Default)]
pub(in crate::consumer) struct Latest(OnceLock<u64>);

impl Latest {
    /// The moment, in milliseconds since 1970 by the service's clock.
    pub(in crate::consumer) async fn moment<A: StreamApi>(
        &self,
        api: &A,
        shard: &LeaseKey,
        clock: &Clock,
    ) -> Result<u64, StreamError> {
        if let Some(ms) = self.0.get() {
            return Ok(*ms);
        }
        let list = api.list_shards(&shard.stream, ShardFilter::AtLatest);
        let list = in_time(clock, "ListShards", shard, list).await?;
        let ms = list.service_ms.unwrap_or_else(|| clock.wall_ms());
        Ok(*self.0.get_or_init(|| ms))
    }
}

/// The moments of all shards of a worker whose rows stand at LATEST. Only KCL's layout has such
/// rows, and they keep no moment: so it is kept here for when the worker gets the shard again.
#[derive(Debug, Default)]
pub(in crate::consumer) struct Moments(Mutex<BTreeMap<Arc<LeaseKey>, Arc<Latest>>>);

impl Moments {
    /// That of a shard whose row was taken at `row`: the same one until the row has moved.
    pub(in crate::consumer) fn of(&self, shard: &Arc<LeaseKey>, row: &Checkpoint) -> Arc<Latest> {
        let mut moments = self.lock();
        if row.lowest() == Position::Latest {
            return Arc::clone(moments.entry(Arc::clone(shard)).or_default());
        }
        moments.remove(shard);
        Arc::default()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<LeaseKey>, Arc<Latest>>> {
        // Each change is one insertion or removal, so a panic leaves no half of one.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
