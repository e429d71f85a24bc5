//! Packing of entries into the next `PutRecords` request.

use crate::limits::RECORD_MAX_BYTES_DEFAULT;
use crate::limits::{PUT_RECORDS_MAX_BYTES, PUT_RECORDS_MAX_BYTES_LARGE, PUT_RECORDS_MAX_RECORDS};

/// Limits of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestLimits {
    /// Maximum number of entries.
    pub max_records: usize,
    /// Maximum size in bytes, including partition keys.
    pub max_bytes: usize,
}

impl RequestLimits {
    /// Returns the service's limits for a stream with this record limit.
    pub fn for_stream(record_max_bytes: usize) -> Self {
        let max_bytes = if record_max_bytes > RECORD_MAX_BYTES_DEFAULT {
            PUT_RECORDS_MAX_BYTES_LARGE
        } else {
            PUT_RECORDS_MAX_BYTES
        };
        Self { max_records: PUT_RECORDS_MAX_RECORDS, max_bytes }
    }
}

/// Limit for the entries of one queue in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PerQueue {
    /// One entry. The service can refuse an entry and accept the one after it, so two entries of
    /// one queue could be reordered.
    One,
    /// As many as fit, for producers without ordering.
    Any,
}

/// Content of one request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PackedRequest {
    /// Entries to take from each queue, in the order of the queues.
    pub takes: Vec<QueueTake>,
    /// Number of entries in the request.
    pub records: usize,
    /// Size of the request in bytes.
    pub bytes: usize,
    /// Queues whose oldest entry fits into no request. The caller must reject it, or the queue is
    /// stuck forever.
    pub too_large: Vec<usize>,
}

/// Entries taken from one queue, oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueTake {
    /// Index of the queue among those given.
    pub lane: usize,
    /// Number of its oldest entries to take.
    pub count: usize,
}

/// Chooses the content of the next request. Each queue yields the sizes of its entries (key and
/// data), oldest first. Queues that may not send now are left out, or yield none.
///
/// Queues come in the order of preference, so the caller puts the longest-waiting one first. An
/// entry that no longer fits does not close the request: smaller ones of later queues may fill it.
pub fn pack<L>(lanes: L, limits: RequestLimits, per_lane: PerQueue) -> PackedRequest
where
    L: IntoIterator<Item: IntoIterator<Item = usize>>,
{
    let mut packed = PackedRequest::default();
    for (lane, sizes) in lanes.into_iter().enumerate() {
        if packed.records >= limits.max_records {
            break;
        }
        let room = match per_lane {
            PerQueue::One => 1,
            PerQueue::Any => limits.max_records - packed.records,
        };
        let mut count = 0;
        for bytes in sizes.into_iter().take(room) {
            // An entry that does not fit holds back those behind it, so that its queue keeps its
            // order.
            if bytes > limits.max_bytes - packed.bytes {
                if count == 0 && bytes > limits.max_bytes {
                    packed.too_large.push(lane);
                }
                break;
            }
            count += 1;
            packed.bytes += bytes;
        }
        if count > 0 {
            packed.records += count;
            packed.takes.push(QueueTake { lane, count });
        }
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_are_filled_in_the_order_of_the_lanes() {
        let check = |name: &str, per_lane, lanes: &[&[usize]], want: &[(usize, usize)]| {
            let limits = RequestLimits { max_records: 4, max_bytes: 100 };
            let packed = pack(lanes.iter().map(|lane| lane.iter().copied()), limits, per_lane);
            let takes: Vec<_> = packed.takes.iter().map(|take| (take.lane, take.count)).collect();
            assert_eq!(takes, want, "{name}");
        };
        check("nothing", PerQueue::One, &[], &[]);
        check("lanes with nothing to send", PerQueue::Any, &[&[], &[]], &[]);
        check(
            "one of each",
            PerQueue::One,
            &[&[1, 1], &[1], &[], &[1, 1]],
            &[(0, 1), (1, 1), (3, 1)],
        );
        check("a whole lane", PerQueue::Any, &[&[1, 1], &[1]], &[(0, 2), (1, 1)]);
        check("the fifth waits", PerQueue::Any, &[&[1, 1, 1], &[1, 1]], &[(0, 3), (1, 1)]);
        let five: [&[usize]; 5] = [&[1]; 5];
        check("the fifth lane waits", PerQueue::One, &five, &[(0, 1), (1, 1), (2, 1), (3, 1)]);
        check("full to the byte", PerQueue::One, &[&[60], &[40], &[1]], &[(0, 1), (1, 1)]);
        check("empty entries still fit", PerQueue::One, &[&[100], &[0]], &[(0, 1), (1, 1)]);
        check("a later lane fills up", PerQueue::One, &[&[60], &[41], &[40]], &[(0, 1), (2, 1)]);
        check("no overtaking in a lane", PerQueue::Any, &[&[60, 41, 1], &[40]], &[(0, 1), (1, 1)]);
        check("too large", PerQueue::One, &[&[101], &[1]], &[(1, 1)]);
    }

    #[test]
    fn an_entry_that_fits_no_request_is_reported_and_holds_nobody_up() {
        let limits = RequestLimits { max_records: 4, max_bytes: 100 };
        let packed = pack([vec![5], vec![101, 1], vec![100], vec![50, 101]], limits, PerQueue::Any);
        assert_eq!(packed.too_large, [1]);
        assert_eq!((packed.records, packed.bytes), (2, 55));
    }

    #[test]
    fn streams_with_larger_records_have_larger_requests() {
        let of = |record_max_bytes| RequestLimits::for_stream(record_max_bytes).max_bytes;
        assert_eq!(of(1 << 20), 5 << 20);
        assert_eq!(of((1 << 20) + 1024), 10 << 20);
    }

    /// Removes the entries of a request from the queues.
    fn drain(lanes: &mut [Vec<usize>], packed: &PackedRequest) -> Vec<(usize, Vec<usize>)> {
        packed.takes.iter().map(|t| (t.lane, lanes[t.lane].drain(..t.count).collect())).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn limits_hold_and_no_request_leaves_out_what_it_could_carry(
            lanes in proptest::collection::vec(proptest::collection::vec(0_usize..120, 0..6), 0..12),
            max_records in 1_usize..12,
            one: bool,
        ) {
            let limits = RequestLimits { max_records, max_bytes: 100 };
            let per_lane = if one { PerQueue::One } else { PerQueue::Any };
            let packed = pack(lanes.clone(), limits, per_lane);
            prop_assert!(packed.records <= max_records && packed.bytes <= 100);
            let mut left = lanes.clone();
            let taken = drain(&mut left, &packed);
            let bytes: usize = taken.iter().flat_map(|(_, sizes)| sizes).sum();
            let records: usize = taken.iter().map(|(_, sizes)| sizes.len()).sum();
            prop_assert_eq!((records, bytes), (packed.records, packed.bytes));
            prop_assert!(taken.windows(2).all(|pair| pair[0].0 < pair[1].0));
            prop_assert!(!one || taken.iter().all(|(_, sizes)| sizes.len() == 1));
            for (lane, sizes) in left.iter().enumerate() {
                let may_give = !one || taken.iter().all(|(from, _)| *from != lane);
                if let (Some(next), true) = (sizes.first(), may_give) {
                    let fits = packed.records < max_records && packed.bytes + next <= 100;
                    prop_assert!(!fits, "lane {} could have given {}", lane, next);
                }
            }
        }

        #[test]
        fn request_after_request_everything_goes_once_and_in_order(
            lanes in proptest::collection::vec(proptest::collection::vec(0_usize..=100, 0..6), 0..12),
            one: bool,
        ) {
            let limits = RequestLimits { max_records: 5, max_bytes: 100 };
            let per_lane = if one { PerQueue::One } else { PerQueue::Any };
            let mut left = lanes.clone();
            let mut sent: Vec<Vec<usize>> = vec![Vec::new(); lanes.len()];
            while left.iter().any(|lane| !lane.is_empty()) {
                let packed = pack(left.clone(), limits, per_lane);
                prop_assert!(packed.records > 0, "nothing moves although something waits");
                for (lane, sizes) in drain(&mut left, &packed) {
                    sent[lane].extend(sizes);
                }
            }
            prop_assert_eq!(sent, lanes);
        }
    }
}
