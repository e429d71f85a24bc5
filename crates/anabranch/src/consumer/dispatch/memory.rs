//! The memory budget: the bytes that all shards of a worker may hold together, split into shares.
//!
//! | share   | size                    | holds                                                    |
//! |---------|-------------------------|----------------------------------------------------------|
//! | replies | seven eighths           | fetched records, until every record of the reply is done |
//! | lanes   | one eighth              | deaggregated records that wait for their handler         |
//! | own     | per shard, on top of it | one record or pushed event, and one chunk of a lane      |
//!
//! A fetch reserves the largest possible reply *before* the request, and releases the unused part
//! afterwards. The records stay reserved until every record of the reply is done or dropped,
//! because they share the reply's buffer.
//!
//! If the shared permits are not available at once, a shard that expects little requests a single
//! record on its own share. A shard that waits too long for shared permits does the same. So shards
//! whose handlers hang cannot starve the others, and idle shards do not queue for memory that they
//! will not use.

use crate::clock::Clock;
use anabranch_model::limits;
use anabranch_model::record::{Record, UserRecord};
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes per permit.
const UNIT: usize = 1024;
/// Permits for the largest reply.
const MOST: u32 = 10 * 1024;
/// Estimated memory of a record in addition to its key and data, in bytes.
const RECORD_OVERHEAD: usize = 192;
/// Divisor of the budget that gives the share of the lanes.
const LANES_PART: usize = 8;
/// Time that a shard waits for shared permits before it also accepts its own share.
const STARVED_MS: u64 = 1_000;

const _: () = assert!(MOST as usize * UNIT == limits::GET_RECORDS_MAX_BYTES);

/// Memory budget of a worker. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct MemoryBudget {
    /// Permits for fetched replies.
    replies: Arc<Semaphore>,
    /// Permits for deaggregated records.
    lanes: Arc<Semaphore>,
    /// Total number of permits of the lanes.
    lane_units: usize,
    /// Total number of permits.
    units: usize,
}

/// Access of one shard to the shared budget and to its own share.
#[derive(Clone, Debug)]
pub(in crate::consumer) struct ShardBudget {
    budget: MemoryBudget,
    /// One permit, for one record or one pushed event.
    own: Arc<Semaphore>,
    /// One permit, for one chunk of a lane.
    own_chunk: Arc<Semaphore>,
}

/// Memory reserved for one reply, released on drop.
#[derive(Debug)]
pub(in crate::consumer) struct ReplyReservation {
    permit: OwnedSemaphorePermit,
    /// Maximum number of records to request; 0 for a pushed event.
    pub(in crate::consumer) limit: u32,
}

/// Memory reserved for one chunk of a lane, released on drop.
#[derive(Debug)]
pub(in crate::consumer) struct ChunkReservation {
    #[expect(dead_code, reason = "held until the chunk is done")]
    permit: OwnedSemaphorePermit,
}

/// Size that a shard expects of its next reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::consumer) enum ExpectedSize {
    /// At most one record, because the shard is caught up. The read does not wait for shared
    /// permits.
    Small,
    /// Up to the maximum size of a reply.
    Large,
}

impl MemoryBudget {
    /// Creates a budget of `bytes`, but of at least one reply.
    pub(crate) fn new(bytes: usize) -> Self {
        let lanes = (bytes / LANES_PART / UNIT).max(1);
        let replies = (bytes / UNIT).saturating_sub(lanes).max(MOST as usize);
        Self {
            replies: Arc::new(Semaphore::new(replies)),
            lanes: Arc::new(Semaphore::new(lanes)),
            lane_units: lanes,
            units: replies + lanes,
        }
    }

    /// Creates the share of one more shard.
    pub(in crate::consumer) fn share(&self) -> ShardBudget {
        let one = || Arc::new(Semaphore::new(1));
        ShardBudget { budget: self.clone(), own: one(), own_chunk: one() }
    }

    /// Returns the bytes that are reserved or in use, without the shards' own shares.
    pub(in crate::consumer) fn used_bytes(&self) -> usize {
        let free = self.replies.available_permits() + self.lanes.available_permits();
        self.units.saturating_sub(free) * UNIT
    }

    /// Returns the total size in bytes, without the shards' own shares.
    pub(in crate::consumer) fn bytes(&self) -> usize {
        self.units * UNIT
    }
}

impl ShardBudget {
    /// Waits for memory for one reply. With shared permits the limit is the API maximum; on the
    /// shard's own share it is one record.
    pub(in crate::consumer) async fn reserve(
        &self,
        clock: &Clock,
        expects: ExpectedSize,
    ) -> ReplyReservation {
        let most = u32::try_from(limits::GET_RECORDS_MAX_RECORDS).unwrap_or(u32::MAX);
        let replies = || Arc::clone(&self.budget.replies);
        if let Ok(permit) = replies().try_acquire_many_owned(MOST) {
            return ReplyReservation { permit, limit: most };
        }
        if expects == ExpectedSize::Small
            && let Ok(permit) = Arc::clone(&self.own).try_acquire_owned()
        {
            return ReplyReservation { permit, limit: 1 };
        }
        let waited = replies().acquire_many_owned(MOST);
        let (permit, common) = either(waited, &self.own, clock).await;
        ReplyReservation { permit, limit: if common { most } else { 1 } }
    }

    /// Waits for the shard's own permit for the next pushed event, so that a pushed event is
    /// counted before it is read.
    pub(in crate::consumer) async fn reserve_push(&self) -> ReplyReservation {
        let own = Arc::clone(&self.own).acquire_owned().await;
        ReplyReservation { permit: own.expect("the share is never closed"), limit: 0 }
    }

    /// Moves the reservation of pushed records from the shard's own share to the shared one. If the
    /// shared permits take too long, the records stay on the own share, and nothing more is read
    /// until they are done.
    pub(in crate::consumer) async fn move_to_shared(
        &self,
        records: &[Record],
        own: ReplyReservation,
        clock: &Clock,
    ) -> ReplyReservation {
        let units = u32::try_from(bytes(records).div_ceil(UNIT)).unwrap_or(u32::MAX).min(MOST);
        let replies = Arc::clone(&self.budget.replies).acquire_many_owned(units);
        tokio::select! {
            biased;
            permit = replies => {
                ReplyReservation { permit: permit.expect("the budget is never closed"), limit: 0 }
            }
            () = clock.sleep(STARVED_MS) => own,
        }
    }

    /// Waits for memory for a chunk of `records` deaggregated records.
    pub(in crate::consumer) async fn reserve_chunk(
        &self,
        records: usize,
        clock: &Clock,
    ) -> ChunkReservation {
        let units = (records * size_of::<UserRecord>()).div_ceil(UNIT);
        // A chunk larger than half of the lanes' share reserves only that half, so that it can
        // pass.
        let units = units.min(self.budget.lane_units / 2).max(1);
        let lanes = Arc::clone(&self.budget.lanes);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        if let Ok(permit) = Arc::clone(&lanes).try_acquire_many_owned(units) {
            return ChunkReservation { permit };
        }
        let (permit, _) = either(lanes.acquire_many_owned(units), &self.own_chunk, clock).await;
        ChunkReservation { permit }
    }
}

/// Waits for shared permits, or for the shard's own permit if that takes too long. Keeps its place
/// in the shared queue meanwhile. The flag is true for shared permits.
async fn either(
    common: impl Future<Output = Result<OwnedSemaphorePermit, tokio::sync::AcquireError>>,
    own: &Arc<Semaphore>,
    clock: &Clock,
) -> (OwnedSemaphorePermit, bool) {
    let mut common = pin!(common);
    let starved = async {
        clock.sleep(STARVED_MS).await;
        Arc::clone(own).acquire_owned().await
    };
    let (permit, is_common) = tokio::select! {
        biased;
        permit = &mut common => (permit, true),
        permit = starved => (permit, false),
    };
    (permit.expect("the budget is never closed"), is_common)
}

impl ReplyReservation {
    /// Keeps what these records need, and releases the rest.
    pub(in crate::consumer) fn shrink_to(mut self, records: &[Record]) -> Self {
        let rest = self.permit.num_permits().saturating_sub(bytes(records).div_ceil(UNIT));
        drop(self.permit.split(rest));
        self
    }
}

/// Returns the estimated memory of these records, in bytes.
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
        let budget = MemoryBudget::new(64 << 20);
        assert_eq!(budget.bytes(), 64 << 20);
        let share = budget.share();
        let room = share.reserve(&clock, ExpectedSize::Large).await;
        assert_eq!((room.limit, budget.used_bytes()), (10_000, 10 << 20));
        let room = room.shrink_to(&records(1_024, 1_024));
        let kept = budget.used_bytes();
        assert!((1 << 20..2 << 20).contains(&kept), "{kept}");
        drop(room);
        assert_eq!(budget.used_bytes(), 0);
        let room = share.reserve(&clock, ExpectedSize::Large).await.shrink_to(&[]);
        assert_eq!(budget.used_bytes(), 0);
        drop(room);
    }

    #[tokio::test(start_paused = true)]
    async fn shards_that_hold_everything_do_not_starve_another() {
        let clock = Clock::of_runtime();
        let budget = MemoryBudget::new(0);
        let hog = budget.share().reserve(&clock, ExpectedSize::Large).await;
        let starved = budget.share();
        let one = starved.reserve(&clock, ExpectedSize::Large).await;
        assert_eq!(one.limit, 1);
        // A second record waits until the first is done, or until shared permits are free.
        tokio::select! {
            biased;
            room = starved.reserve(&clock, ExpectedSize::Large) => panic!("{room:?}"),
            () = clock.sleep(10 * STARVED_MS) => {}
        }
        drop(one);
        assert_eq!(starved.reserve(&clock, ExpectedSize::Large).await.limit, 1);
        drop(hog);
        assert_eq!(starved.reserve(&clock, ExpectedSize::Large).await.limit, 10_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_shard_that_expects_little_does_not_wait_for_common_room() {
        let clock = Clock::of_runtime();
        let budget = MemoryBudget::new(0);
        let share = budget.share();
        let whole = share.reserve(&clock, ExpectedSize::Small).await;
        assert_eq!(whole.limit, 10_000, "there is room");
        let look = share.reserve(&clock, ExpectedSize::Small).await;
        assert_eq!((look.limit, clock.now_ms()), (1, 0), "there is none");
        // While that record is not done, the next read waits for either.
        tokio::select! {
            biased;
            room = share.reserve(&clock, ExpectedSize::Small) => panic!("{room:?}"),
            () = clock.sleep(10 * STARVED_MS) => {}
        }
        drop(look);
        assert_eq!(share.reserve(&clock, ExpectedSize::Small).await.limit, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pushed_event_is_counted_before_it_is_read_and_until_it_is_done() {
        let clock = Clock::of_runtime();
        let budget = MemoryBudget::new(64 << 20);
        let share = budget.share();
        let own = share.reserve_push().await;
        let event = records(100, 10_240);
        let room = share.move_to_shared(&event, own, &clock).await;
        assert!(budget.used_bytes() > 1_000_000, "{}", budget.used_bytes());
        // The own share is free for the next event.
        drop(share.reserve_push().await);
        drop(room);
        assert_eq!(budget.used_bytes(), 0);
        // Without shared permits the event stays on the own share, and the next one is not read.
        let hogs: Vec<_> = {
            let shares: Vec<_> = (0..5).map(|_| budget.share()).collect();
            let mut hogs = Vec::new();
            for share in &shares {
                hogs.push(share.reserve(&clock, ExpectedSize::Large).await);
            }
            hogs
        };
        let large = records(6, 1 << 20);
        let kept = share.move_to_shared(&large, share.reserve_push().await, &clock).await;
        tokio::select! {
            biased;
            room = share.reserve_push() => panic!("{room:?}"),
            () = clock.sleep(60_000) => {}
        }
        drop((kept, hogs));
        drop(share.reserve_push().await);
    }

    #[tokio::test(start_paused = true)]
    async fn chunks_of_lanes_have_a_share_of_their_own_and_no_shard_is_starved_of_it() {
        let clock = Clock::of_runtime();
        let budget = MemoryBudget::new(64 << 20);
        let (hog, other) = (budget.share(), budget.share());
        let mut held = Vec::new();
        let (records, share) = (10_000, 8 << 20);
        while budget.used_bytes() + records * size_of::<UserRecord>() <= share {
            held.push(hog.reserve_chunk(records, &clock).await);
        }
        assert!(!held.is_empty() && budget.used_bytes() <= share, "the share is an eighth");
        // One chunk passes on the shard's own share; the second one waits for it.
        let one = other.reserve_chunk(records, &clock).await;
        tokio::select! {
            biased;
            room = other.reserve_chunk(records, &clock) => panic!("{room:?}"),
            () = clock.sleep(60_000) => {}
        }
        drop(one);
        drop(other.reserve_chunk(records, &clock).await);
        drop(held);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_chunk_does_not_wait_in_a_small_budget() {
        for bytes in [0, 1 << 20, 4 << 20, 5 << 20, 16 << 20] {
            let clock = Clock::of_runtime();
            let began = clock.now_ms();
            let budget = MemoryBudget::new(bytes);
            let chunk = budget.share().reserve_chunk(100_000, &clock).await;
            assert_eq!(clock.now_ms(), began, "{bytes} bytes");
            drop(chunk);
            assert_eq!(budget.used_bytes(), 0);
        }
    }
}
