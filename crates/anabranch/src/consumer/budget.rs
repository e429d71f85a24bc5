//! The byte budget: what all shards of a worker may hold in memory together.
//!
//! A fetch reserves the largest reply there can be *before* it asks, and gives back what did not
//! come. What came stays reserved until every record of it is done or dropped, because the records
//! share the reply's buffer. A shard that finds no room for long reads one record on its own share,
//! so that shards whose handlers hang can't starve the others.

use crate::clock::Clock;
use anabranch_model::limits;
use anabranch_model::record::Record;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes that one permit stands for.
const UNIT: usize = 1024;
/// What the largest reply takes.
const MOST: u32 = 10 * 1024;
/// What a record costs beside its key and data.
const RECORD_OVERHEAD: usize = 192;
/// How long a shard waits for common room before it reads one record on its own share.
const STARVED_MS: u64 = 1_000;

const _: () = assert!(MOST as usize * UNIT == limits::GET_RECORDS_MAX_BYTES);

/// What all shards of a worker may hold in memory together. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    /// Room for the shards together, in units.
    common: Arc<Semaphore>,
}

/// The own share of one shard: one record.
#[derive(Clone, Debug)]
pub(super) struct Share {
    budget: Budget,
    own: Arc<Semaphore>,
}

/// Room for one reply, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Room {
    /// What is reserved.
    permit: OwnedSemaphorePermit,
    /// How many records the reply may have.
    pub(super) limit: u32,
}

impl Budget {
    /// A budget of so many bytes, but room for one reply at least.
    pub(crate) fn new(bytes: usize) -> Self {
        let bytes = bytes.max(limits::GET_RECORDS_MAX_BYTES);
        Self { common: Arc::new(Semaphore::new(bytes / UNIT)) }
    }

    /// The share of one more shard.
    pub(super) fn share(&self) -> Share {
        Share { budget: self.clone(), own: Arc::new(Semaphore::new(1)) }
    }

    #[cfg(test)]
    fn free_bytes(&self) -> usize {
        self.common.available_permits() * UNIT
    }
}

impl Share {
    /// Waits for the room of one reply.
    pub(super) async fn reserve(&self, clock: &Clock) -> Room {
        let limit = u32::try_from(limits::GET_RECORDS_MAX_RECORDS).unwrap_or(u32::MAX);
        let permit = tokio::select! {
            biased;
            permit = Arc::clone(&self.budget.common).acquire_many_owned(MOST) => permit,
            () = clock.sleep(STARVED_MS) => {
                let own = Arc::clone(&self.own).acquire_owned().await;
                let permit = own.expect("the share is never closed");
                return Room { permit, limit: 1 };
            }
        };
        Room { permit: permit.expect("the budget is never closed"), limit }
    }
}

impl Share {
    /// Waits for the room of records that were pushed. At most one push of each shard waits here,
    /// because the next one is not read before.
    pub(super) async fn admit(&self, records: &[Record], clock: &Clock) -> Room {
        let units = u32::try_from(bytes(records).div_ceil(UNIT)).unwrap_or(u32::MAX).min(MOST);
        let permit = tokio::select! {
            biased;
            permit = Arc::clone(&self.budget.common).acquire_many_owned(units) => permit,
            () = clock.sleep(STARVED_MS) => Arc::clone(&self.own).acquire_owned().await,
        };
        Room { permit: permit.expect("the budget is never closed"), limit: 0 }
    }
}

impl Room {
    /// Keeps what these records need, and gives the rest back.
    pub(super) fn settle(mut self, records: &[Record]) -> Self {
        let rest = self.permit.num_permits().saturating_sub(bytes(records).div_ceil(UNIT));
        drop(self.permit.split(rest));
        self
    }
}

/// What these records take.
fn bytes(records: &[Record]) -> usize {
    let size = |record: &Record| record.data.len() + record.partition_key.len() + RECORD_OVERHEAD;
    records.iter().map(size).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn records(count: usize, bytes: usize) -> Vec<Record> {
        let record = Record {
            sequence: "1".parse().unwrap(),
            partition_key: "k".into(),
            data: Bytes::from(vec![0; bytes]),
            arrival_ms: 0,
        };
        vec![record; count]
    }

    #[tokio::test(start_paused = true)]
    async fn a_fetch_reserves_the_most_and_keeps_what_came() {
        let clock = Clock::of_runtime();
        let budget = Budget::new(64 << 20);
        let share = budget.share();
        let room = share.reserve(&clock).await;
        assert_eq!((room.limit, budget.free_bytes()), (10_000, 54 << 20));
        let room = room.settle(&records(1_024, 1_024));
        let kept = (64 << 20) - budget.free_bytes();
        assert!((1 << 20..2 << 20).contains(&kept), "{kept}");
        drop(room);
        assert_eq!(budget.free_bytes(), 64 << 20);
        let room = share.reserve(&clock).await.settle(&[]);
        assert_eq!(budget.free_bytes(), 64 << 20);
        drop(room);
    }

    #[tokio::test(start_paused = true)]
    async fn shards_that_hold_everything_do_not_starve_another() {
        let clock = Clock::of_runtime();
        let budget = Budget::new(0);
        let hog = budget.share().reserve(&clock).await;
        let starved = budget.share();
        let one = starved.reserve(&clock).await;
        assert_eq!(one.limit, 1);
        // A second record waits until the first is done, or until there is common room.
        tokio::select! {
            biased;
            room = starved.reserve(&clock) => panic!("{room:?}"),
            () = clock.sleep(10 * STARVED_MS) => {}
        }
        drop(one);
        assert_eq!(starved.reserve(&clock).await.limit, 1);
        drop(hog);
        assert_eq!(starved.reserve(&clock).await.limit, 10_000);
    }
}
