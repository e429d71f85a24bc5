//! Send times of records: linger, sizes, rates and deadlines of the machine.

use crate::machine::{HIGH, LOW, MachineFixture, carrier, halves};
use anabranch_model::aggregate::decode::{DecodedAggregate, decode};
use anabranch_model::aggregate::dedup_tag::DedupTag;
use anabranch_model::hash::{HashKey, HashRange};
use anabranch_model::produce::PutRequest;
use anabranch_model::produce::outcome::{OutcomeKind, RejectReason};
use anabranch_model::produce::settings::{Aggregation, KeyOrder, ProducerSettings};
use anabranch_model::retry::Fault;

fn lingering(linger_ms: u64) -> MachineFixture {
    MachineFixture::with_map(|settings| settings.linger_ms = linger_ms)
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
    let mut bench = MachineFixture::new(|settings| settings.linger_ms = 10);
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
    bench.machine.skip_linger(bench.now_ms);
    bench.run(0);
    assert_eq!(bench.sent()[0].1, ["a"]);
    bench.put("b", HIGH);
    bench.run(1);
    assert_eq!(bench.sent(), [], "what is put later waits again");
}

#[test]
fn enough_for_a_container_waits_for_nobody_and_the_rest_goes_first_in_the_next() {
    let small = |settings: &mut ProducerSettings| {
        settings.linger_ms = 60_000;
        (settings.aggregate_min_bytes, settings.aggregate_max_bytes) = (1_000, 1_000);
    };
    let mut bench = MachineFixture::with_map(small);
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
    assert_eq!(bench.sent(), [], "what left is not counted as waiting: the rest is not enough");
    bench.machine.skip_linger(bench.now_ms);
    bench.run(0);
    let second = bench.requests.remove(0);
    assert_eq!(second.records, 2);
    bench.place(second.id, &[0]);
    let names: Vec<&str> = bench.settled.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["a", "b", "c", "d"]);
}

#[test]
fn marked_containers_stay_within_their_maximum_and_a_retry_keeps_its_mark() {
    let marks = |request: &PutRequest| match decode(&carrier(&request.entries[0]), HashRange::ALL) {
        DecodedAggregate::Records(records) => records.dedup_tag(),
        other => panic!("{other:?}"),
    };
    for bytes in 1..=120 {
        let mut bench = MachineFixture::with_map(|settings| {
            settings.dedup_tags = Some(77);
            (settings.aggregate_min_bytes, settings.aggregate_max_bytes) = (1_000, 1_000);
        });
        for _ in 0..400 {
            bench.put_data("a", LOW, vec![b'x'; bytes]);
        }
        bench.run(0);
        let first = bench.requests.remove(0);
        assert!(first.bytes <= 1_001, "{bytes}: {} bytes with a key of one", first.bytes);
        let mark = marks(&first);
        assert_eq!(mark, Some(DedupTag { producer: 77, container: 0 }));
        bench.refuse(first.id, Fault::ReplyLost);
        let again = bench.requests.remove(0);
        assert_eq!((marks(&again), &again.entries[0].data), (mark, &first.entries[0].data));
        bench.place(again.id, &[0]);
        let next = bench.requests.remove(0);
        assert_ne!(marks(&next), mark, "{bytes}: each container has a number of its own");
    }
}

#[test]
fn a_request_has_one_container_of_a_lane_and_at_most_five_hundred() {
    let mut bench = MachineFixture::with_map(|settings| settings.aggregation = Aggregation::Off);
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

/// Returns a machine whose only shard takes a thousand bytes a second, all of which are spent.
fn spent(change: impl FnOnce(&mut ProducerSettings)) -> MachineFixture {
    let mut bench = MachineFixture::with_map(|settings| {
        settings.aggregation = Aggregation::Off;
        settings.shard_bytes_per_second = 1_000;
        settings.map_idle_ms = 3_600_000;
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
    for late in 0..40 {
        bench.run(50);
        // A later record takes nothing from those that wait, though it needs less.
        bench.put_data("late", HashKey(1_000 + late), "late".repeat(100));
        bench.run(0);
        for (request, entries) in bench.sent() {
            left.extend(entries.iter().map(|entry| (bench.now_ms, entry[..1].to_owned())));
            let placed = vec![0; entries.len()];
            bench.place(request, &placed);
        }
    }
    let names: Vec<&str> = left.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(names[..4], ["a", "b", "c", "l"], "{left:?}");
    // Each takes 501 bytes of a thousand a second, and none is sent before they are available.
    let times: Vec<u64> = left[..3].iter().map(|(at_ms, _)| *at_ms).collect();
    assert_eq!(times, [550, 1_050, 1_550], "one after the other");
}

#[test]
fn after_a_pause_no_more_than_a_seconds_worth_leaves_at_once() {
    for aggregation in [Aggregation::ByKey, Aggregation::Off] {
        let mut bench = spent(|settings| settings.aggregation = aggregation);
        bench.run(5_000);
        for hash in 0..100 {
            bench.put_data("a", HashKey(hash), vec![b'x'; 98]);
        }
        let (mut sent, mut seconds) = (0, 0);
        while sent < 100 {
            bench.run(if seconds == 0 { 0 } else { 1_000 });
            seconds += 1;
            let now: Vec<_> = std::mem::take(&mut bench.requests);
            let bytes: usize = now.iter().map(|request| request.bytes).sum();
            assert!(bytes <= 1_000, "{aggregation:?}: {bytes} bytes in second {seconds}");
            for request in now {
                sent += request.entries.len();
                bench.place(request.id, &vec![0; request.entries.len()]);
            }
            assert!(seconds < 30, "{aggregation:?}: {sent} left in {seconds} seconds");
        }
    }
}

#[test]
fn without_order_a_rate_holds_too() {
    let mut bench = spent(|settings| settings.order = KeyOrder::None);
    bench.run(5_000);
    for _ in 0..100 {
        bench.put_data("a", LOW, vec![b'x'; 99]);
    }
    bench.run(0);
    let bytes: usize = bench.requests.iter().map(|request| request.bytes).sum();
    assert_eq!((bench.requests.len(), bytes), (1, 1_000), "a second's worth, in one request");
    bench.run(500);
    let bytes: usize = bench.requests.iter().map(|request| request.bytes).sum();
    assert_eq!(bytes, 1_500, "nobody waits for a reply");
}

#[test]
fn a_deadline_passes_while_a_rate_holds_its_record_back() {
    let mut bench = spent(|settings| settings.deadline_ms = Some(200));
    bench.put_data("a", LOW, vec![b'x'; 900]);
    bench.run(0);
    assert_eq!(bench.sent(), []);
    bench.run(250);
    assert_eq!(bench.fate("a"), Some(&OutcomeKind::Rejected(RejectReason::Expired)));
    bench.run(5_000);
    assert_eq!(bench.sent(), [], "what is over is not sent");
}

#[test]
fn without_a_map_no_rate_holds_a_record_back_and_nothing_crosses_shards() {
    let mut bench = MachineFixture::new(|settings| settings.shard_bytes_per_second = 1);
    for (name, hash) in [("a", LOW), ("b", HIGH), ("c", LOW)] {
        bench.put(name, hash);
    }
    bench.run(0);
    let sent = bench.requests.remove(0);
    let hashes: Vec<_> = sent.entries.iter().map(|entry| entry.hash).collect();
    assert_eq!(hashes, [Some(LOW), Some(HIGH)], "one hash, one container");
    assert_eq!(sent.records, 3);
}
