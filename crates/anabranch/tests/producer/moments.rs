//! Situations of the machine that random histories meet too rarely to show which rule holds.

use crate::machine::{HIGH, LOW, MachineFixture, halves};
use anabranch_model::hash::{HashKey, HashRange};
use anabranch_model::ids::ShardId;
use anabranch_model::produce::outcome::{OutcomeKind, RejectReason};
use anabranch_model::produce::settings::{Aggregation, KeyOrder, OnFailure};
use anabranch_model::produce::{EntryResult, MachineNotice};
use anabranch_model::retry::Fault;
use anabranch_model::sequence::SequenceNumber;

#[test]
fn a_reply_from_the_shard_of_that_name_of_another_stream_is_judged() {
    let mut bench = MachineFixture::with_map(|settings| settings.map_idle_ms = 1_000);
    bench.put("low", LOW);
    bench.put("high", HIGH);
    bench.run(0);
    let (request, entries) = bench.sent().remove(0);
    assert_eq!(entries.len(), 1, "one aggregate carries both");
    // No reply of the stream for too long: the shard map is dropped, and the new one uses the same
    // name for another range.
    bench.run(2_000);
    assert!(bench.notices.contains(&MachineNotice::MapDropped));
    bench.list(&halves());
    bench.place(request, &[0]);
    is_found_astray(&mut bench);
    assert!(bench.is_placed("low") && bench.is_placed("high"));
}

/// Asserts that one aggregate holds `low` and `high`, and that its shard takes only one of them
/// according to a new list. Both are then sent separately.
fn is_found_astray(bench: &mut MachineFixture) {
    bench.run(0);
    assert_eq!(bench.settled, [], "half of it is not where a reader would take it");
    bench.list(&halves());
    let again = bench.sent();
    let alone: Vec<_> = again.iter().flat_map(|(_, entries)| entries.clone()).collect();
    assert_eq!(alone, ["low", "high"], "each goes to its own shard");
    bench.place(again[0].0, &[0, 1]);
}

#[test]
fn what_is_placed_after_a_silence_is_judged_by_a_new_list() {
    for (silence_ms, is_judged) in [(100, false), (1_100, true)] {
        let mut bench = MachineFixture::with_map(|settings| settings.map_idle_ms = 8_000);
        bench.put("low", LOW);
        bench.put("high", HIGH);
        bench.run(0);
        let (request, _) = bench.sent().remove(0);
        // The reply arrives late. The stream may be another one by now, with a shard of that name.
        bench.now_ms += silence_ms;
        bench.place(request, &[0]);
        assert_eq!(bench.is_placed("low"), !is_judged, "after {silence_ms} ms");
        if is_judged {
            is_found_astray(&mut bench);
        }
        assert!(bench.is_placed("low") && bench.is_placed("high"));
    }
}

#[test]
fn each_answer_keeps_a_map_from_doubt() {
    let mut bench = MachineFixture::with_map(|settings| settings.map_idle_ms = 8_000);
    for _ in 0..5 {
        bench.put("low", LOW);
        bench.put("high", HIGH);
        bench.run(0);
        let (request, _) = bench.sent().remove(0);
        bench.now_ms += 300;
        bench.place(request, &[0]);
        assert_eq!(bench.settled.len(), 2, "the one before it was sent 900 ms ago");
        bench.settled.clear();
        bench.now_ms += 300;
    }
}

#[test]
fn no_answer_ends_a_doubt_nor_does_an_old_list() {
    let mut bench = MachineFixture::new(|settings| settings.map_idle_ms = 8_000);
    let put = |bench: &mut MachineFixture, one: HashKey, other: HashKey| {
        bench.put("one", one);
        bench.put("other", other);
        bench.run(0);
        bench.sent().remove(0).0
    };
    bench.run(0);
    // The list was requested a while ago, so the stream may have been recreated since.
    bench.now_ms += 1_100;
    bench.list(&halves());
    let low = put(&mut bench, LOW, HashKey(2));
    let high = put(&mut bench, HIGH, HashKey(HIGH.0 - 1));
    bench.place(low, &[0]);
    assert_eq!(bench.settled, [], "nothing is known of the stream for 1,100 ms");
    bench.place(high, &[1]);
    assert_eq!(bench.settled, [], "nor did the answer before prove anything");
    bench.list(&halves());
    assert_eq!(bench.settled.len(), 4, "the list does that was asked for when they were sent");
    let low = put(&mut bench, LOW, HashKey(2));
    bench.place(low, &[0]);
    assert_eq!(bench.settled.len(), 6);
}

#[test]
fn a_slow_list_brings_no_doubt_where_answers_prove_more() {
    let mut bench = MachineFixture::with_map(|settings| settings.map_idle_ms = 8_000);
    let both = |bench: &mut MachineFixture| {
        bench.put("low", LOW);
        bench.put("high", HIGH);
        bench.run(0);
        let (request, _) = bench.sent().remove(0);
        bench.now_ms += 200;
        bench.place(request, &[0]);
        assert_eq!(bench.settled.len(), 2);
        bench.settled.clear();
    };
    // A misrouted record triggers a list request, which takes long.
    bench.put("alone", LOW);
    bench.run(5);
    let (request, _) = bench.sent().remove(0);
    bench.place(request, &[7]);
    bench.settled.clear();
    for _ in 0..8 {
        both(&mut bench);
    }
    assert_eq!(bench.reads.len(), 1);
    bench.list(&[HashRange::ALL]);
    both(&mut bench);
    assert_eq!(bench.reads.len(), 0);
}

#[test]
fn a_reply_that_comes_behind_a_list_of_another_stream_is_judged() {
    let mut bench = MachineFixture::with_map(|settings| settings.map_idle_ms = 8_000);
    bench.now_ms += 1_100;
    bench.put("low", LOW);
    bench.put("high", HIGH);
    bench.run(0);
    let (request, _) = bench.sent().remove(0);
    // The list requested when it was sent has the predicted shard, with another range. It ends the
    // doubt, and the aggregate built with the old map is misrouted.
    bench.list(&halves());
    bench.place(request, &[0]);
    is_found_astray(&mut bench);
    assert!(bench.is_placed("low") && bench.is_placed("high"));
}

#[test]
fn a_map_of_a_stream_that_answers_now_and_then_is_kept() {
    let mut bench = MachineFixture::with_map(|settings| settings.map_idle_ms = 8_000);
    for _ in 0..5 {
        bench.put("alone", LOW);
        bench.run(0);
        let (request, _) = bench.sent().remove(0);
        bench.place(request, &[0]);
        assert!(bench.is_placed("alone"), "a hash alone needs no judge");
        bench.settled.clear();
        bench.run(5_000);
    }
    assert!(!bench.notices.contains(&MachineNotice::MapDropped));
    assert_eq!(bench.reads.len(), 0, "and no list");
}

#[test]
fn a_list_of_a_stream_that_is_gone_drops_its_map() {
    let mut bench = MachineFixture::with_map(|settings| settings.map_idle_ms = 8_000);
    bench.now_ms += 1_100;
    bench.put("low", LOW);
    bench.put("high", HIGH);
    bench.run(0);
    let read = bench.reads.pop().expect("what is sent in doubt asks for a list");
    bench.machine.shards(read, Err(Fault::Missing), bench.now_ms);
    bench.run(0);
    assert!(bench.notices.contains(&MachineNotice::MapDropped));
}

#[test]
fn a_map_without_a_sign_of_the_stream_is_dropped_and_hashes_go_alone() {
    let mut bench = MachineFixture::with_map(|settings| settings.map_idle_ms = 1_000);
    bench.run(5_000);
    assert!(
        !bench.notices.contains(&MachineNotice::MapDropped),
        "nothing is sent, so nothing is at stake"
    );
    bench.put("low", LOW);
    bench.put("high", HIGH);
    bench.run(0);
    assert!(bench.notices.contains(&MachineNotice::MapDropped));
    let sent = bench.sent();
    assert_eq!(sent[0].1, ["low", "high"], "no aggregate without a map");
    bench.place(sent[0].0, &[0, 7]);
    assert!(bench.is_placed("low") && bench.is_placed("high"), "a hash alone needs no judge");
}

#[test]
fn a_container_that_is_taken_apart_gives_back_what_was_put_into_it() {
    for mark in [None, Some(7)] {
        let mut bench = MachineFixture::with_map(|settings| settings.dedup_tags = mark);
        // Small ones, none at all, one that is not copied, and more than a page.
        let sizes = [10, 0, 5_000, 300, 4_000, 4_000, 4_000, 4_000, 4_000, 1];
        let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
        let data = |name: &str, bytes: usize| name.repeat(bytes);
        for (name, bytes) in names.into_iter().zip(sizes) {
            bench.put_data(name, HashKey(u128::from(name.as_bytes()[0])), data(name, bytes));
        }
        bench.run(0);
        let (whole, entries) = bench.carried().remove(0);
        let put: Vec<String> =
            names.into_iter().zip(sizes).map(|(name, bytes)| data(name, bytes)).collect();
        assert_eq!((entries.len(), &entries[0]), (1, &put), "one aggregate carries all");
        bench.refuse(whole, Fault::TooLarge);
        let mut alone = Vec::new();
        while let Some(request) = bench.requests.pop() {
            assert_eq!(request.entries.len(), 1);
            let entry = &request.entries[0];
            let name = entry.key.as_str().to_owned();
            assert_eq!(entry.hash, Some(HashKey(u128::from(name.as_bytes()[0]))), "{name}");
            alone.push(String::from_utf8(entry.data.to_vec()).unwrap());
            bench.place(request.id, &[0]);
            assert!(bench.is_placed(&name), "{name}");
        }
        assert_eq!(alone, put, "each by itself, in the order of the puts");
        assert_eq!(bench.settled.len(), names.len());
    }
}

#[test]
fn one_bad_entry_never_fails_its_neighbours() {
    for fault in [Fault::Invalid, Fault::TooLarge] {
        let mut bench =
            MachineFixture::with_map(|settings| settings.aggregation = Aggregation::Off);
        for (name, hash) in [("a", 1), ("bad", 2), ("c", 3)] {
            bench.put(name, HashKey(hash));
        }
        bench.run(0);
        let (whole, entries) = bench.sent().remove(0);
        assert_eq!(entries, ["a", "bad", "c"]);
        bench.refuse(whole, fault);
        let mut each = bench.sent();
        assert_eq!(each.iter().map(|(_, entries)| entries.len()).collect::<Vec<_>>(), [1, 1, 1]);
        each.sort_by(|one, other| one.1.cmp(&other.1));
        bench.place(each[0].0, &[0]);
        bench.refuse(each[1].0, fault);
        bench.place(each[2].0, &[0]);
        assert!(bench.is_placed("a") && bench.is_placed("c"), "{fault:?}");
        let refused = bench.fate("bad");
        assert!(
            matches!(refused, Some(OutcomeKind::Rejected(RejectReason::Refused { fault: why, .. })) if *why == fault),
            "{refused:?}"
        );
    }
}

#[test]
fn a_refused_aggregate_is_taken_apart_before_anything_of_it_is_given_up() {
    let mut bench = MachineFixture::with_map(|_| {});
    bench.put("a", LOW);
    bench.put("b", HIGH);
    bench.run(0);
    let (whole, entries) = bench.sent().remove(0);
    assert_eq!(entries.len(), 1);
    bench.refuse(whole, Fault::Invalid);
    let (first, entries) = bench.sent().remove(0);
    assert_eq!(entries, ["a"]);
    bench.refuse(first, Fault::Invalid);
    let (second, entries) = bench.sent().remove(0);
    assert_eq!(entries, ["b"]);
    bench.place(second, &[0]);
    assert!(bench.is_placed("b") && matches!(bench.fate("a"), Some(OutcomeKind::Rejected(_))));
}

#[test]
fn a_full_set_of_stopped_keys_stops_the_producer_and_forgets_no_key() {
    let mut bench = MachineFixture::with_map(|settings| {
        settings.max_stopped_keys = 2;
        settings.aggregation = Aggregation::Off;
    });
    for (name, hash) in [("a", 1), ("b", 2), ("c", 3)] {
        bench.put(name, HashKey(hash));
    }
    bench.run(0);
    let (request, _) = bench.sent().remove(0);
    bench.put("d", HashKey(4));
    bench.refuse(request, Fault::Missing);
    assert!(bench.machine.has_stopped() && bench.notices.contains(&MachineNotice::ProducerStopped));
    bench.put("e", HashKey(5));
    bench.run(0);
    let stopped = OutcomeKind::Rejected(RejectReason::ProducerStopped);
    assert_eq!((bench.fate("d"), bench.fate("e")), (Some(&stopped), Some(&stopped)));
    assert_eq!(bench.sent(), [], "nothing leaves a producer that stopped");
    let mut keys: Vec<_> = bench.machine.stopped_keys().map(|id| id.key.to_string()).collect();
    keys.sort();
    assert_eq!(keys, ["a", "b"], "there was no room for the third one");
}

#[test]
fn keys_go_on_behind_a_hole_where_that_is_the_policy() {
    let mut bench = MachineFixture::with_map(|settings| settings.on_failure = OnFailure::Continue);
    bench.put("a", LOW);
    bench.run(0);
    let (request, _) = bench.sent().remove(0);
    bench.put("b", LOW);
    bench.refuse(request, Fault::Missing);
    let (request, entries) = bench.sent().remove(0);
    assert_eq!(entries, ["b"]);
    bench.place(request, &[0]);
    assert!(bench.is_placed("b") && matches!(bench.fate("a"), Some(OutcomeKind::Rejected(_))));
    assert_eq!(bench.machine.stopped_keys().count(), 0);
}

#[test]
fn without_order_containers_of_a_shard_go_side_by_side() {
    let mut bench = MachineFixture::with_map(|settings| {
        settings.order = KeyOrder::None;
        settings.aggregation = Aggregation::Off;
    });
    for name in ["a", "b", "c"] {
        bench.put(name, LOW);
    }
    bench.run(0);
    let (request, entries) = bench.sent().remove(0);
    assert_eq!(entries, ["a", "b", "c"], "one hash, one request");
    bench.put("d", LOW);
    bench.run(0);
    assert_eq!(bench.sent()[0].1, ["d"], "nobody waits for a reply");
    bench.place(request, &[0, 0, 0]);
    assert!(["a", "b", "c"].iter().all(|name| bench.is_placed(name)));
}

#[test]
fn a_reply_with_a_result_too_few_is_no_result_at_all() {
    let mut bench = MachineFixture::with_map(|settings| settings.aggregation = Aggregation::Off);
    bench.put("a", LOW);
    bench.put("b", HIGH);
    bench.run(0);
    let (request, _) = bench.sent().remove(0);
    bench.place(request, &[0]);
    assert_eq!(bench.settled, []);
    bench.run(2);
    let again: Vec<_> = bench.sent().into_iter().flat_map(|(_, entries)| entries).collect();
    assert_eq!(again, ["a", "b"]);
    bench.machine.abandon();
    bench.run(0);
    assert_eq!(
        bench.fate("a"),
        Some(&OutcomeKind::Unknown),
        "the first attempt may have placed it"
    );
}

#[test]
fn numbers_of_a_shard_go_with_the_next_container_of_it() {
    let mut bench = MachineFixture::with_map(|settings| settings.numbered = true);
    bench.put("a", LOW);
    bench.run(0);
    let first = bench.requests.remove(0);
    assert!(first.single && first.after.is_none());
    let sequence = SequenceNumber::from_limbs(0, 0, 42).unwrap();
    let placed = EntryResult::Placed { shard: ShardId::from_index(0), sequence };
    bench.machine.reply(first.id, Ok(vec![placed]), bench.now_ms);
    bench.put("b", HIGH);
    bench.run(0);
    let second = bench.requests.remove(0);
    assert_eq!((second.single, second.after), (true, Some(sequence)));
    // A sequence number that the service refuses is left out before anything is given up.
    bench.refuse(second.id, Fault::Invalid);
    let third = bench.requests.remove(0);
    assert_eq!((third.single, third.after), (true, None));
}
