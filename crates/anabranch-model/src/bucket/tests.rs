//! The bucket by example, and its bounds over any sequence of times.

use super::*;
use proptest::prelude::*;

/// Ten records and a thousand bytes per second, with a capacity of one second.
fn shard(now_ms: u64) -> Bucket<2> {
    Bucket::new(
        [
            Allowance { capacity: 10, per_second: 10 },
            Allowance { capacity: 1_000, per_second: 1_000 },
        ],
        now_ms,
    )
}

#[test]
fn a_bucket_starts_full_and_gathers_no_more_than_its_capacity() {
    let mut bucket = shard(5_000);
    for _ in 0..10 {
        assert_eq!(bucket.take(5_000, [1, 100]), Admission::Passed);
    }
    assert_eq!(bucket.take(5_000, [1, 0]), Admission::Wait { ms: 100 });
    let later = 5_000 + 3_600_000;
    assert_eq!(bucket.wait_ms(later, [10, 1_000]), Some(0));
    assert_eq!(bucket.take(later, [10, 0]), Admission::Passed);
    assert_eq!(bucket.wait_ms(later, [1, 0]), Some(100));
}

#[test]
fn a_cost_is_taken_from_all_dimensions_or_from_none() {
    let mut bucket = shard(0);
    assert_eq!(bucket.take(0, [1, 900]), Admission::Passed);
    assert_eq!(bucket.take(0, [9, 101]), Admission::Wait { ms: 1 });
    assert_eq!(bucket.take(0, [9, 100]), Admission::Passed);
    assert_eq!(bucket.take(0, [1, 0]), Admission::Wait { ms: 100 });
    assert_eq!(bucket.take(0, [0, 1]), Admission::Wait { ms: 1 });
    assert_eq!(bucket.take(0, [0, 0]), Admission::Passed);
}

#[test]
fn the_slowest_dimension_decides_how_long_to_wait() {
    let mut bucket = shard(0);
    bucket.take(0, [10, 1_000]);
    assert_eq!(bucket.wait_ms(0, [1, 50]), Some(100));
    assert_eq!(bucket.wait_ms(0, [1, 500]), Some(500));
    assert_eq!(bucket.wait_ms(499, [1, 500]), Some(1));
    assert_eq!(bucket.take(500, [1, 500]), Admission::Passed);
}

#[test]
fn a_cost_above_the_capacity_passes_when_full_and_is_paid_for_later() {
    let mut bucket = shard(0);
    bucket.take(0, [0, 1]);
    assert_eq!(bucket.take(0, [1, 5_000]), Admission::Wait { ms: 1 });
    assert_eq!(bucket.take(1, [1, 5_000]), Admission::Passed);
    // The debt is 4,000 bytes: four seconds until the level is one byte above zero.
    assert_eq!(bucket.wait_ms(1, [1, 1]), Some(4_001));
    assert_eq!(bucket.take(4_001, [1, 1]), Admission::Wait { ms: 1 });
    assert_eq!(bucket.take(4_002, [1, 1]), Admission::Passed);
}

#[test]
fn costs_that_were_admitted_together_pass_a_full_bucket_only_if_it_holds_all_of_them() {
    let mut bucket = shard(0);
    bucket.take(0, [10, 1_000]);
    // A second later it is full again, and a day later no fuller.
    for now_ms in [1_000, 86_400_000] {
        let check = |ahead, cost, expected| {
            assert_eq!(bucket.admission_behind(ahead, now_ms, cost), expected, "at {now_ms}");
        };
        check([0, 0], [1, 5_000], Admission::Passed);
        check([1, 400], [1, 600], Admission::Passed);
        check([1, 400], [1, 601], Admission::Wait { ms: 1 });
        check([1, 1_000], [1, 1_000], Admission::Wait { ms: 1_000 });
        check([10, 0], [1, 1], Admission::Wait { ms: 100 });
        check([1, 1], [1, 5_000], Admission::Wait { ms: 1 });
    }
    assert_eq!(bucket.admission_behind([1, 0], 500, [1, 600]), Admission::Wait { ms: 100 });
}

#[test]
fn a_clock_that_goes_back_brings_in_nothing_twice() {
    let mut bucket = shard(10_000);
    bucket.take(10_000, [10, 0]);
    assert_eq!(bucket.take(9_000, [1, 0]), Admission::Wait { ms: 1_100 });
    assert_eq!(bucket.take(10_000, [1, 0]), Admission::Wait { ms: 100 });
    assert_eq!(bucket.take(10_100, [1, 0]), Admission::Passed);
    assert_eq!(bucket.take(0, [1, 0]), Admission::Wait { ms: 10_200 });
}

#[test]
fn a_rate_of_nothing_never_passes_once_empty() {
    let mut bucket = Bucket::new([Allowance { capacity: 1, per_second: 0 }], 0);
    assert_eq!(bucket.take(0, [1]), Admission::Passed);
    assert_eq!(bucket.take(u64::MAX, [1]), Admission::Never);
    assert_eq!(bucket.wait_ms(0, [1]), None);
}

#[test]
fn slow_rates_lose_nothing_to_rounding() {
    let mut bucket = Bucket::new([Allowance { capacity: 1, per_second: 3 }], 0);
    let passed = (0..=60_000).filter(|now| bucket.take(*now, [1]) == Admission::Passed).count();
    // One at the start, then one every 334 ms: a full level cannot keep the remaining third.
    assert_eq!(passed, 1 + 60_000 / 334);
    let mut deep = Bucket::new([Allowance { capacity: 100, per_second: 3 }], 0);
    let passed = (0..=60_000).filter(|now| deep.take(*now, [1]) == Admission::Passed).count();
    assert_eq!(passed, 100 + 180);
}

#[test]
fn new_allowances_count_from_now_on() {
    let mut bucket = Bucket::new([Allowance { capacity: 100, per_second: 100 }], 0);
    bucket.take(0, [100]);
    bucket.set_allowances(500, [Allowance { capacity: 20, per_second: 10 }]);
    assert_eq!(bucket.wait_ms(500, [20]), Some(0), "50 came in at the old rate, 20 remain");
    bucket.take(500, [20]);
    assert_eq!(bucket.wait_ms(500, [1]), Some(100));
}

#[test]
fn extreme_numbers_do_not_overflow() {
    let mut bucket = Bucket::new([Allowance { capacity: u64::MAX, per_second: u64::MAX }], 0);
    assert_eq!(bucket.take(0, [u64::MAX]), Admission::Passed);
    assert_eq!(bucket.take(u64::MAX, [u64::MAX]), Admission::Passed);
    let mut slow = Bucket::new([Allowance { capacity: 1, per_second: 1 }], u64::MAX);
    for _ in 0..3 {
        slow.take(u64::MAX, [u64::MAX]);
    }
    assert!(slow.wait_ms(0, [1]).is_some());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn over_any_interval_no_more_passes_than_came_in(
        capacity in 1_u64..50,
        per_second in 0_u64..2_000,
        // Mostly forward, sometimes back.
        asks in proptest::collection::vec((-20_i64..200, 0_u64..80), 1..60),
    ) {
        let mut bucket = Bucket::new([Allowance { capacity, per_second }], 1_000);
        let mut now = 1_000_u64;
        let mut passed: Vec<(u64, u64)> = Vec::new();
        let mut latest = now;
        for (step, cost) in asks {
            now = now.saturating_add_signed(step);
            if bucket.take(now, [cost]) == Admission::Passed {
                latest = latest.max(now);
                passed.push((latest, cost));
            }
        }
        for from in 0..passed.len() {
            let mut sum = 0;
            for (at, cost) in &passed[from..] {
                sum += cost;
                let came_in = (at - passed[from].0) * per_second / THOUSANDTHS + 1;
                let debt = 80_u64.saturating_sub(capacity);
                prop_assert!(sum <= capacity + came_in + debt, "{sum} passed by {at}");
            }
        }
    }

    #[test]
    fn the_wait_is_true_and_not_a_millisecond_too_long(
        capacity in 1_u64..50,
        per_second in 1_u64..2_000,
        asks in proptest::collection::vec((0_u64..200, 0_u64..80, 0_u64..80), 1..40),
    ) {
        let allowance = Allowance { capacity, per_second };
        let mut bucket = Bucket::new([allowance, allowance], 0);
        let mut now = 0;
        for (step, a, b) in asks {
            now += step;
            let cost = [a, b];
            if let Admission::Wait { ms } = bucket.take(now, cost) {
                prop_assert!(ms > 0);
                prop_assert_eq!(bucket.wait_ms(now + ms - 1, cost), Some(1));
                now += ms;
                prop_assert_eq!(bucket.take(now, cost), Admission::Passed);
            }
        }
    }
}
