//! Affinity of a lease and a worker: a hash of both that every worker computes alike.
//!
//! A free lease goes to the worker with the highest affinity. Workers with slightly different polls
//! therefore assign nearly every lease to the same worker, and few takes are refused. A round-robin
//! assignment would shift with each lease that is taken.

use crate::lease::row::LeaseKey;
use crate::lease::worker_row::WorkerId;

/// Returns a hash of a name (FNV-1a).
fn number(parts: [&str; 2]) -> u64 {
    let bytes = parts.into_iter().flat_map(|part| part.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Returns the lease's part of the affinity.
pub(super) fn of_lease(key: &LeaseKey) -> u64 {
    number([key.stream.as_str(), key.shard.as_str()])
}

/// Returns the worker's part of the affinity.
pub(super) fn of_worker(id: &WorkerId) -> u64 {
    number([id.as_str(), ""])
}

/// Returns the affinity of the two. Every input bit affects every output bit.
pub(super) fn affinity(lease: u64, worker: u64) -> u64 {
    let mut mixed = lease ^ worker.rotate_left(32);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::plan::tests::simulated_fleet::{key, worker_id};

    #[test]
    fn each_worker_suits_about_as_many_leases_as_any_other() {
        let workers: Vec<u64> = (0..10).map(|i| of_worker(&worker_id(i))).collect();
        let mut best = [0_usize; 10];
        for i in 0..10_000 {
            let lease = of_lease(&key(i));
            let suits = (0..10).max_by_key(|&at| affinity(lease, workers[at]));
            best[suits.unwrap()] += 1;
        }
        assert!(best.iter().all(|count| (850..1_150).contains(count)), "{best:?}");
    }
}
