//! When records leave: linger, sizes, rates and deadlines of the machine.

use crate::machine::{Bench, HIGH, LOW, halves};
use anabranch_model::hash::HashKey;
use anabranch_model::produce::outcome::{Fate, Why};
use anabranch_model::produce::settings::{Aggregation, Settings};

fn lingering(linger_ms: u64) -> Bench {
    Bench::with_map(|settings| settings.linger_ms = linger_ms)
}

#[test]
fn a_record_waits_its_linger_for_others_and_no_longer() {
    let mut bench = lingering(10);
    bench.put("a", LOW);
    bench.run(5);
    bench.put("b", HIGH);
    bench.run(4);
    assert_eq!(bench.sent(), [], "there is time for more");
    assert_eq!(bench.machine.wake_at(), Some(10), "the second record sets the time of neither");
    bench.run(1);
    assert_eq!(bench.sent().len(), 1, "the time of the first is over, and the second goes along");
}

#[test]
fn the_earliest_of_many_lanes_is_woken_for_first() {
    let mut bench = Bench::new(|settings| settings.linger_ms = 10);
    bench.run(0);
    bench.list(&halves());
    bench.put("later", HIGH);
    bench.run(4);
    bench.put("latest", LOW);
    assert_eq!(bench.machine.wake_at(), Some(10));
    bench.run(6);
    assert_eq!(bench.sent()[0].1, ["later"]);
    assert_eq!(bench.machine.wake_at(), Some(14));
    bench.run(4);
    assert_eq!(bench.sent()[0].1, ["latest"]);
}

#[test]
fn a_flush_ends_every_linger() {
    let mut bench = lingering(60_000);
    bench.put("a", LOW);
    bench.run(1);
    assert_eq!(bench.sent(), []);
    bench.machine.hurry(bench.now_ms);
    bench.run(0);
    assert_eq!(bench.sent()[0].1, ["a"]);
    bench.put("b", HIGH);
    bench.run(1);
    assert_eq!(bench.sent(), [], "what is put later waits again");
}

#[test]
fn enough_for_a_container_waits_for_nobody_and_the_rest_goes_first_in_the_next() {
    let small = |settings: &mut Settings| {
        settings.linger_ms = 60_000;
        (settings.container_min_bytes, settings.container_max_bytes) = (1_000, 1_000);
    };
    let mut bench = Bench::with_map(small);
    for name in ["a", "b", "c"] {
        bench.put_data(name, LOW, vec![b'x'; 400]);
    }
    bench.run(0);
    let first = bench.requests.remove(0);
    assert_eq!((first.entries.len(), first.records), (1, 2), "two fit, and the third does not");
    assert!(first.bytes <= 1_001, "{} bytes", first.bytes);
    bench.put_data("d", LOW, vec![b'x'; 400]);
    bench.run(0);
    assert_eq!(bench.sent(), [], "one container of a lane is on its way");
    bench.place(first.id, &[0]);
    bench.machine.hurry(bench.now_ms);
    bench.run(0);
    let second = bench.requests.remove(0);
    assert_eq!(second.records, 2);
    bench.place(second.id, &[0]);
    let names: Vec<&str> = bench.settled.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["a", "b", "c", "d"]);
}

#[test]
fn a_request_has_one_container_of_a_lane_and_at_most_five_hundred() {
    let mut bench = Bench::with_map(|settings| settings.aggregation = Aggregation::Off);
    for hash in 0..600 {
        bench.put("first", HashKey(hash));
        bench.put("second", HashKey(hash));
    }
    bench.run(0);
    let sent = bench.sent();
    let counts: Vec<usize> = sent.iter().map(|(_, entries)| entries.len()).collect();
    assert_eq!(counts, [500, 100]);
    assert!(sent.iter().flat_map(|(_, entries)| entries).all(|entry| entry == "first"));
}

/// A machine whose one shard takes a thousand bytes a second, all of which are spent.
fn spent(change: impl FnOnce(&mut Settings)) -> Bench {
    let mut bench = Bench::with_map(|settings| {
        settings.aggregation = Aggregation::Off;
        settings.shard_bytes_per_second = 1_000;
        change(settings);
    });
    bench.put_data("burst", HashKey(0), vec![b'x'; 995]);
    bench.run(0);
    let (request, _) = bench.sent().remove(0);
    bench.place(request, &[0]);
    bench
}

#[test]
fn lanes_that_wait_for_a_rate_go_in_the_order_in_which_they_came() {
    let mut bench = spent(|_| {});
    for (name, hash) in [("a", 9), ("b", 1), ("c", 5)] {
        bench.put_data(name, HashKey(hash), name.repeat(500));
    }
    bench.run(0);
    assert_eq!(bench.sent(), [], "the shard's rate is spent");
    let mut left = Vec::new();
    for _ in 0..40 {
        bench.run(50);
        // One that comes later takes nothing from those that wait.
        bench.put_data("late", HashKey(77), "late".repeat(100));
        bench.run(0);
        for (request, entries) in bench.sent() {
            left.extend(entries.iter().map(|entry| entry[..1].to_owned()));
            let placed = vec![0; entries.len()];
            bench.place(request, &placed);
        }
    }
    assert_eq!(left[..3], ["a", "b", "c"], "{left:?}");
}

#[test]
fn a_deadline_passes_while_a_rate_holds_its_record_back() {
    let mut bench = spent(|settings| settings.deadline_ms = Some(200));
    bench.put_data("a", LOW, vec![b'x'; 900]);
    bench.run(0);
    assert_eq!(bench.sent(), []);
    bench.run(250);
    assert_eq!(bench.fate("a"), Some(&Fate::Rejected(Why::Expired)));
    bench.run(5_000);
    assert_eq!(bench.sent(), [], "what is over is not sent");
}

#[test]
fn without_a_map_no_rate_holds_a_record_back_and_nothing_crosses_shards() {
    let mut bench = Bench::new(|settings| settings.shard_bytes_per_second = 1);
    for (name, hash) in [("a", LOW), ("b", HIGH), ("c", LOW)] {
        bench.put(name, hash);
    }
    bench.run(0);
    let sent = bench.requests.remove(0);
    let hashes: Vec<_> = sent.entries.iter().map(|entry| entry.hash).collect();
    assert_eq!(hashes, [Some(LOW), Some(HIGH)], "one hash, one container");
    assert_eq!(sent.records, 3);
}
