//! Pauses of the machine: the service refuses the caller, so shards wait and no record is given up.

use crate::machine::{HIGH, LOW, MachineFixture, halves};
use anabranch_model::hash::HashKey;
use anabranch_model::ids::ShardId;
use anabranch_model::produce::outcome::{OutcomeKind, RejectReason};
use anabranch_model::produce::settings::{Aggregation, KeyOrder, ProducerSettings};
use anabranch_model::produce::{EntryResult, MachineNotice};
use anabranch_model::retry::{Backoff, Fault};

const REFUSALS: [Fault; 3] = [Fault::AccessDenied, Fault::KeyUnusable, Fault::CredentialsExpired];

/// Sets a first wait of 500 ms to a second, which doubles each time.
fn patient(settings: &mut ProducerSettings) {
    settings.refusal_backoff = Backoff::new(1_000, 30_000);
}

fn two_shards(change: impl FnOnce(&mut ProducerSettings)) -> MachineFixture {
    let mut bench = MachineFixture::new(|settings| {
        patient(settings);
        change(settings);
    });
    bench.run(0);
    bench.list(&halves());
    bench
}

/// Runs for `ms`, and returns the requests that were sent.
fn sent_within(bench: &mut MachineFixture, ms: u64) -> Vec<(u64, Vec<String>)> {
    for _ in 0..ms {
        bench.run(1);
    }
    bench.sent()
}

fn paused(bench: &MachineFixture) -> Vec<&MachineNotice> {
    bench.notices.iter().filter(|notice| matches!(notice, MachineNotice::Paused { .. })).collect()
}

fn resumed(bench: &MachineFixture) -> Vec<&MachineNotice> {
    bench.notices.iter().filter(|notice| matches!(notice, MachineNotice::Resumed { .. })).collect()
}

#[test]
fn a_refused_caller_waits_longer_each_time_and_no_record_or_key_is_given_up() {
    for fault in REFUSALS {
        let mut bench = MachineFixture::with_map(patient);
        bench.put("a", LOW);
        bench.run(0);
        let (mut request, _) = bench.sent().remove(0);
        bench.put("b", LOW);
        for (shortest, longest) in
            [(500, 1_000), (1_000, 2_000), (2_000, 4_000), (4_000, 8_000), (8_000, 16_000)]
        {
            bench.machine.reply(request, Err((fault, "not you".into())), bench.now_ms);
            assert_eq!(sent_within(&mut bench, shortest - 1), [], "{fault:?}: too early");
            let again = sent_within(&mut bench, longest - shortest + 2);
            assert_eq!(again.len(), 1, "{fault:?}: one probe after {longest} ms at the latest");
            assert_eq!(again[0].1, ["a"], "{fault:?}: the same bytes go first");
            request = again[0].0;
        }
        assert_eq!((bench.settled.len(), bench.machine.stopped_keys().count()), (0, 0));
        bench.place(request, &[0]);
        let (request, entries) = bench.sent().remove(0);
        assert_eq!(entries, ["b"], "{fault:?}: what waited leaves at once");
        bench.place(request, &[0]);
        assert!(bench.is_placed("a") && bench.is_placed("b"), "{fault:?}");
    }
}

#[test]
fn a_pause_is_told_when_it_begins_at_times_while_it_lasts_and_when_it_ends() {
    let mut bench = MachineFixture::with_map(patient);
    bench.put("a", LOW);
    bench.run(0);
    let (mut request, _) = bench.sent().remove(0);
    let mut probes = 0;
    while bench.now_ms < 600_000 {
        bench.machine.reply(request, Err((Fault::KeyUnusable, "disabled".into())), bench.now_ms);
        request = loop {
            bench.run(100);
            if let Some((request, _)) = bench.sent().pop() {
                break request;
            }
        };
        probes += 1;
    }
    assert!((20..60).contains(&probes), "{probes} probes in ten minutes");
    let told = paused(&bench);
    assert!((6..=10).contains(&told.len()), "told {} times in ten minutes", told.len());
    let begin = MachineNotice::Paused {
        shards: vec![ShardId::from_index(0)],
        fault: Fault::KeyUnusable,
        detail: "disabled".into(),
        for_ms: 0,
        pauses: 1,
    };
    assert_eq!(*told[0], begin);
    let MachineNotice::Paused { for_ms, .. } = told[1] else { panic!("{:?}", told[1]) };
    assert!((60_000..95_000).contains(for_ms), "told again after {for_ms} ms");
    assert_eq!(resumed(&bench), Vec::<&MachineNotice>::new());
    bench.place(request, &[0]);
    let ended = resumed(&bench);
    assert!(
        matches!(ended[..], [MachineNotice::Resumed { for_ms: 600_000.., pauses: 0, shards }] if shards.len() == 1),
        "{ended:?}"
    );
}

#[test]
fn only_the_shard_whose_entry_was_refused_waits() {
    let mut bench = two_shards(|settings| settings.aggregation = Aggregation::Off);
    bench.put("low", LOW);
    bench.put("high", HIGH);
    bench.run(0);
    let (request, entries) = bench.sent().remove(0);
    assert_eq!(entries, ["low", "high"]);
    let refused = EntryResult::Failed { fault: Fault::AccessDenied, detail: "no".into() };
    let placed = EntryResult::Placed {
        shard: ShardId::from_index(1),
        sequence: anabranch_model::sequence::SequenceNumber::ZERO,
    };
    bench.machine.reply(request, Ok(vec![refused, placed]), bench.now_ms);
    bench.put("high-2", HashKey(u128::MAX - 2));
    bench.put("low-2", HashKey(2));
    let sent: Vec<_> = sent_within(&mut bench, 400).into_iter().flat_map(|sent| sent.1).collect();
    assert_eq!(sent, ["high-2"], "another key of the refused shard waits too");
}

#[test]
fn a_shard_that_is_refused_keeps_no_other_paused_shard_from_going_on() {
    let mut bench = two_shards(|_| {});
    bench.put("low", LOW);
    bench.put("high", HIGH);
    bench.run(0);
    let (request, entries) = bench.sent().remove(0);
    assert_eq!(entries.len(), 2);
    bench.refuse(request, Fault::AccessDenied);
    assert_eq!(paused(&bench).len(), 1, "one notice for both: {:?}", bench.notices);
    let probes = sent_within(&mut bench, 1_000);
    assert_eq!(probes.len(), 2, "each shard by itself: {probes:?}");
    for (request, entries) in probes {
        match entries[0].as_str() {
            "low" => bench.refuse(request, Fault::AccessDenied),
            _ => bench.place(request, &[1]),
        }
    }
    assert!(bench.is_placed("high") && bench.fate("low").is_none());
    bench.put("high-2", HIGH);
    bench.run(0);
    assert_eq!(bench.sent().pop().map(|sent| sent.1), Some(vec!["high-2".to_owned()]));
}

#[test]
fn many_keys_of_a_refused_stream_send_one_probe_at_a_time() {
    // Without a shard map, keys that share a shard are unknown.
    for has_map in [true, false] {
        let mut bench = MachineFixture::new(|settings| {
            patient(settings);
            settings.aggregation = Aggregation::Off;
        });
        bench.run(0);
        if has_map {
            bench.list(&[anabranch_model::hash::HashRange::ALL]);
        }
        for hash in 1..=300 {
            bench.put("many", HashKey(hash << 100));
        }
        bench.run(0);
        for (request, _) in bench.sent() {
            bench.refuse(request, Fault::AccessDenied);
        }
        for _ in 0..3 {
            let probes = sent_within(&mut bench, 8_000);
            assert_eq!(probes.len(), 1, "map: {has_map}");
            assert_eq!(probes[0].1.len(), 1, "map: {has_map}");
            bench.refuse(probes[0].0, Fault::AccessDenied);
        }
        let (request, _) = sent_within(&mut bench, 16_000).remove(0);
        bench.place(request, &[0]);
        let rest: usize = bench.sent().iter().map(|(_, entries)| entries.len()).sum();
        assert_eq!(rest, 299, "map: {has_map}: all leave once one has passed");
    }
}

#[test]
fn a_pause_outlives_the_map() {
    let mut bench = MachineFixture::with_map(|settings| {
        settings.refusal_backoff = Backoff::new(100_000, 100_000);
        settings.map_idle_ms = 5_000;
    });
    bench.put("a", LOW);
    bench.run(0);
    let (request, _) = bench.sent().remove(0);
    bench.refuse(request, Fault::AccessDenied);
    assert_eq!(sent_within(&mut bench, 6_000), []);
    assert!(bench.notices.contains(&MachineNotice::MapDropped));
    bench.list(&halves());
    bench.put("b", HIGH);
    assert_eq!(sent_within(&mut bench, 20_000), [], "both halves were paused");
    assert_eq!(paused(&bench).len(), 1);
}

#[test]
fn a_probe_of_which_nobody_heard_is_followed_by_another_one() {
    for (fault, over) in [
        (Fault::ReplyLost, false),
        (Fault::NotSent, false),
        (Fault::Internal, false),
        (Fault::Throttled, true),
    ] {
        let mut bench = MachineFixture::with_map(patient);
        bench.put("a", LOW);
        bench.run(0);
        let (request, _) = bench.sent().remove(0);
        bench.refuse(request, Fault::AccessDenied);
        let (probe, _) = sent_within(&mut bench, 1_000).remove(0);
        bench.refuse(probe, fault);
        assert_eq!(!resumed(&bench).is_empty(), over, "{fault:?}");
        let early = sent_within(&mut bench, 490);
        assert_eq!(!early.is_empty(), over, "{fault:?}: {early:?}");
        if !over {
            assert_eq!(sent_within(&mut bench, 600).len(), 1, "{fault:?}");
        }
    }
}

#[test]
fn a_deadline_or_a_close_ends_the_wait_and_names_the_refusal() {
    let refused = || RejectReason::Refused { fault: Fault::AccessDenied, detail: "refused".into() };
    let mut bench = MachineFixture::with_map(|settings| {
        patient(settings);
        settings.deadline_ms = Some(2_000);
    });
    bench.put("a", LOW);
    bench.run(0);
    let (request, _) = bench.sent().remove(0);
    bench.refuse(request, Fault::AccessDenied);
    bench.put("b", HIGH);
    for (probe, _) in sent_within(&mut bench, 1_500) {
        bench.refuse(probe, Fault::AccessDenied);
    }
    assert_eq!(bench.settled, [], "before the deadline");
    sent_within(&mut bench, 1_000);
    for name in ["a", "b"] {
        assert_eq!(bench.fate(name), Some(&OutcomeKind::Rejected(refused())), "{name}");
    }
    assert_eq!(bench.machine.stopped_keys().count(), 2, "a deadline leaves holes");

    let mut bench = MachineFixture::with_map(patient);
    bench.put("a", LOW);
    bench.run(0);
    let (request, _) = bench.sent().remove(0);
    bench.refuse(request, Fault::AccessDenied);
    bench.put("b", HIGH);
    bench.run(0);
    bench.machine.abandon();
    bench.run(0);
    for name in ["a", "b"] {
        assert_eq!(bench.fate(name), Some(&OutcomeKind::Rejected(refused())), "{name}");
    }
    assert_eq!(bench.machine.outstanding(), 0);
}

#[test]
fn without_order_a_refused_caller_waits_too() {
    let mut bench = MachineFixture::with_map(|settings| {
        patient(settings);
        settings.order = KeyOrder::None;
        settings.aggregation = Aggregation::Off;
    });
    for name in ["a", "b", "c"] {
        bench.put(name, LOW);
    }
    bench.run(0);
    let (request, _) = bench.sent().remove(0);
    bench.refuse(request, Fault::KeyUnusable);
    bench.put("d", LOW);
    assert_eq!(sent_within(&mut bench, 400), []);
    let probe = sent_within(&mut bench, 700);
    assert_eq!(probe.len(), 1, "{probe:?}");
    let shards = vec![0; probe[0].1.len()];
    bench.place(probe[0].0, &shards);
    for (request, entries) in bench.sent() {
        bench.place(request, &vec![0; entries.len()]);
    }
    assert!(["a", "b", "c", "d"].iter().all(|name| bench.is_placed(name)), "{:?}", bench.settled);
}
