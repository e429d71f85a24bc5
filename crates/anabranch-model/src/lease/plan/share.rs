//! Target number of leases of each worker.

/// Returns the share of each worker, given its leases and how many of these cannot be moved.
///
/// The shares differ by at most one, except for workers that cannot give up enough. A worker that
/// already has more than the level gets the larger share, so that a remainder never moves and a
/// level fleet stays as it is. Among the others the order decides, not their lease counts, so that
/// the shares stay the same while leases are being taken.
pub(super) fn shares(
    total: usize,
    holdings: &[usize],
    pinned: &[usize],
    max_leases: usize,
) -> Vec<usize> {
    let mut shares = vec![0; holdings.len()];
    let mut rest = total;
    let mut workers: Vec<usize> = (0..holdings.len()).collect();
    // A worker that cannot go down to the level leaves less for the others, which lowers the level.
    // Repeat until every remaining worker can reach it.
    while let Some(level) = rest.checked_div(workers.len()) {
        let highest = level + usize::from(!rest.is_multiple_of(workers.len()));
        let before = workers.len();
        workers.retain(|&at| {
            let stuck = pinned[at] > highest;
            if stuck {
                shares[at] = pinned[at];
                rest = rest.saturating_sub(pinned[at]);
            }
            !stuck
        });
        if workers.len() == before {
            break;
        }
    }
    let Some(level) = rest.checked_div(workers.len()) else { return shares };
    let remainder = rest % workers.len();
    workers
        .sort_by_key(|&at| (pinned[at] <= level, std::cmp::Reverse(holdings[at].max(level)), at));
    for (i, at) in workers.into_iter().enumerate() {
        shares[at] = (level + usize::from(i < remainder)).min(max_leases);
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_MAX: usize = usize::MAX;

    fn check(total: usize, holdings: &[usize], pinned: &[usize], max: usize, expected: &[usize]) {
        let got = shares(total, holdings, pinned, max);
        assert_eq!(got, expected, "{total} leases, {holdings:?} held, {pinned:?} pinned");
    }

    #[test]
    fn shares_are_level_and_the_remainder_stays_where_it_is() {
        check(0, &[], &[], NO_MAX, &[]);
        check(0, &[0, 0], &[0, 0], NO_MAX, &[0, 0]);
        check(1, &[0, 0], &[0, 0], NO_MAX, &[1, 0]);
        check(1, &[0, 1], &[0, 0], NO_MAX, &[0, 1]);
        check(6, &[1, 5, 0], &[0; 3], NO_MAX, &[2, 2, 2]);
        check(5, &[2, 1, 2], &[0; 3], NO_MAX, &[2, 1, 2]);
        check(7, &[0, 3, 4], &[0; 3], NO_MAX, &[2, 2, 3]);
        // The faster worker does not get the larger share.
        check(7, &[0, 2, 1], &[0; 3], NO_MAX, &[3, 2, 2]);
    }

    #[test]
    fn no_share_is_above_the_maximum() {
        check(10, &[0, 0], &[0, 0], 3, &[3, 3]);
        check(10, &[0, 10], &[0, 0], 3, &[3, 3]);
    }

    #[test]
    fn what_cannot_be_moved_stays_and_the_others_are_level_among_themselves() {
        check(10, &[6, 4, 0], &[6, 0, 0], NO_MAX, &[6, 2, 2]);
        check(10, &[6, 3, 1], &[6, 3, 0], NO_MAX, &[6, 3, 1]);
        check(4, &[2, 2, 0], &[2, 2, 0], NO_MAX, &[2, 1, 1]);
        // The larger share goes to the worker that cannot have the smaller one.
        check(3, &[2, 2], &[0, 2], NO_MAX, &[1, 2]);
    }
}
