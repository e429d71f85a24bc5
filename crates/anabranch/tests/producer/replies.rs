//! Effects of replies: the shard of a Kinesis record, its validity, and the reported attempts.

use crate::machine::{HIGH, LOW, MachineFixture, halves};
use anabranch_model::hash::HashRange;
use anabranch_model::ids::ShardId;
use anabranch_model::produce::outcome::{AttemptResult, OutcomeKind, RejectReason};
use anabranch_model::produce::settings::Aggregation;
use anabranch_model::produce::{EntryResult, MachineNotice};
use anabranch_model::retry::Fault;
use anabranch_model::sequence::SequenceNumber;

/// Sends two records in one aggregate, and returns the request.
fn pair(bench: &mut MachineFixture) -> u64 {
    bench.put("low", LOW);
    bench.put("high", HIGH);
    bench.run(0);
    let (request, entries) = bench.sent().remove(0);
    assert_eq!(entries.len(), 1, "one aggregate carries both");
    request
}

#[test]
fn a_container_in_another_shard_that_takes_all_of_it_is_placed_after_one_list() {
    let mut bench = MachineFixture::with_map(|_| {});
    let request = pair(&mut bench);
    // The shard was merged into one that takes more.
    bench.place(request, &[7]);
    assert_eq!(bench.settled, [], "nobody knows yet what shard 7 takes");
    assert_eq!(bench.reads.len(), 1, "a list tells");
    bench.run(100);
    assert_eq!(bench.reads.len(), 1, "one list is enough");
    let ranges = vec![HashRange::ALL; 8];
    bench.list(&ranges);
    assert!(bench.is_placed("low") && bench.is_placed("high"));
    assert_eq!(bench.sent(), [], "nothing is sent twice");
}

#[test]
fn a_container_in_a_shard_that_takes_a_part_of_it_is_sent_again_whole() {
    let mut bench = MachineFixture::with_map(|_| {});
    let request = pair(&mut bench);
    bench.place(request, &[1]);
    bench.list(&halves());
    let stray = MachineNotice::Misrouted { shard: ShardId::from_index(1), records: 2 };
    assert!(bench.notices.contains(&stray), "{:?}", bench.notices);
    let again: Vec<_> = bench.sent().into_iter().flat_map(|(_, entries)| entries).collect();
    assert_eq!(again, ["low", "high"], "also the one that is where it belongs");
}

#[test]
fn a_container_in_a_shard_that_no_list_names_goes_again_hash_by_hash() {
    let mut bench = MachineFixture::with_map(|settings| settings.verify_timeout_ms = 500);
    let request = pair(&mut bench);
    bench.place(request, &[7]);
    let read = bench.reads.pop().unwrap();
    bench.machine.shards(read, Err(Fault::AccessDenied), bench.now_ms);
    bench.run(499);
    assert_eq!((bench.sent(), bench.settled.len()), (vec![], 0), "a list may still come");
    bench.run(1);
    let again: Vec<_> = bench.sent().into_iter().collect();
    let entries: Vec<_> = again.iter().flat_map(|(_, entries)| entries.clone()).collect();
    assert_eq!(entries, ["low", "high"]);
    let shards = vec![9; again[0].1.len()];
    bench.place(again[0].0, &shards);
    assert!(bench.is_placed("low") && bench.is_placed("high"), "a hash alone needs no judge");
}

#[test]
fn what_cannot_pass_is_tried_once_and_what_can_is_tried_again() {
    for (fault, tried_again) in [
        (Fault::Missing, false),
        (Fault::Invalid, false),
        (Fault::TooLarge, false),
        // About the caller, and not the record.
        (Fault::AccessDenied, true),
        (Fault::KeyUnusable, true),
        (Fault::Throttled, true),
        (Fault::Internal, true),
        (Fault::ReplyLost, true),
        (Fault::NotSent, true),
        (Fault::Busy, true),
        (Fault::CredentialsExpired, true),
        // A proxy's error without a name: no record is given up because of it.
        (Fault::Unknown, true),
    ] {
        for of_entry in [false, true] {
            let mut bench = MachineFixture::with_map(|_| {});
            bench.put("a", LOW);
            bench.run(0);
            let (request, _) = bench.sent().remove(0);
            let detail = || "no".into();
            let reply = if of_entry {
                Ok(vec![EntryResult::Failed { fault, detail: detail() }])
            } else {
                Err((fault, detail()))
            };
            bench.machine.reply(request, reply, bench.now_ms);
            bench.run(10);
            let again = bench.sent();
            assert_eq!(!again.is_empty(), tried_again, "{fault:?}");
            let stopped = bench.machine.stopped_keys().count();
            assert_eq!(stopped, usize::from(!tried_again), "{fault:?}");
            if tried_again {
                assert_eq!(bench.settled, [], "{fault:?}");
                bench.place(again[0].0, &[0]);
                assert!(bench.is_placed("a"), "{fault:?}");
            } else {
                let why = RejectReason::Refused { fault, detail: detail() };
                assert_eq!(bench.fate("a"), Some(&OutcomeKind::Rejected(why)));
            }
        }
    }
}

#[test]
fn each_attempt_tells_when_it_was_sent_how_long_it_took_and_how_it_ended() {
    let mut bench = MachineFixture::with_map(|settings| settings.aggregation = Aggregation::Off);
    bench.run(100);
    bench.put("a", LOW);
    bench.run(0);
    let (request, _) = bench.sent().remove(0);
    bench.run(30);
    let failed = EntryResult::Failed { fault: Fault::Throttled, detail: "slow down".into() };
    bench.machine.reply(request, Ok(vec![failed]), bench.now_ms);
    bench.run(5);
    let (request, _) = bench.sent().remove(0);
    bench.run(7);
    let shard = ShardId::from_index(0);
    let placed = EntryResult::Placed { shard: shard.clone(), sequence: SequenceNumber::ZERO };
    bench.machine.reply(request, Ok(vec![placed]), bench.now_ms);
    bench.run(0);
    let Some(OutcomeKind::Placed(receipt)) = bench.fate("a") else { panic!("{:?}", bench.settled) };
    let times: Vec<_> = receipt.attempts.iter().map(|a| (a.sent_ms, a.took_ms)).collect();
    assert_eq!(times, [(100, 30), (135, 7)]);
    let throttled = AttemptResult::Failed { fault: Fault::Throttled, detail: "slow down".into() };
    assert_eq!(receipt.attempts[0].end, throttled);
    assert_eq!(receipt.attempts[1].end, AttemptResult::Placed(shard));
}

#[test]
fn a_reply_that_comes_twice_counts_once() {
    let mut bench = MachineFixture::with_map(|_| {});
    bench.put("a", LOW);
    bench.run(0);
    let (request, _) = bench.sent().remove(0);
    bench.place(request, &[0]);
    bench.place(request, &[0]);
    bench.refuse(request, Fault::AccessDenied);
    assert_eq!((bench.settled.len(), bench.machine.outstanding()), (1, 0));
    assert!(bench.is_placed("a"));
}
