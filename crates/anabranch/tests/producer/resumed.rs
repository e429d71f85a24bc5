//! Keys that are resumed after more had stopped than are remembered.

use crate::machine::MachineFixture;
use anabranch_model::hash::HashKey;
use anabranch_model::produce::outcome::{OutcomeKind, RejectReason};
use anabranch_model::produce::settings::Aggregation;
use anabranch_model::produce::{MachineNotice, OrderingKey};
use anabranch_model::retry::Fault;

/// Returns a machine that has stopped: keys a, b and c stopped, and at most two are remembered.
fn stopped() -> MachineFixture {
    let mut bench = MachineFixture::with_map(|settings| {
        settings.max_stopped_keys = 2;
        settings.aggregation = Aggregation::Off;
    });
    for (name, hash) in [("a", 1), ("b", 2), ("c", 3)] {
        bench.put(name, HashKey(hash));
    }
    bench.run(0);
    let (request, _) = bench.sent().remove(0);
    bench.refuse(request, Fault::Missing);
    assert!(bench.machine.has_stopped());
    bench.settled.clear();
    bench
}

fn id(key: &'static str, hash: u128) -> OrderingKey {
    OrderingKey { key: key.into(), explicit: Some(HashKey(hash)) }
}

/// Puts a record, and returns the requests that were sent.
fn put(bench: &mut MachineFixture, name: &'static str, hash: u128) -> Vec<(u64, Vec<String>)> {
    bench.put(name, HashKey(hash));
    bench.run(0);
    bench.sent()
}

fn is_refused(bench: &MachineFixture, name: &str) -> bool {
    bench.fate(name) == Some(&OutcomeKind::Rejected(RejectReason::ProducerStopped))
}

#[test]
fn a_resumed_key_goes_on_while_the_others_are_refused_whether_there_was_room_for_it_or_not() {
    for (name, hash) in [("a", 1), ("c", 3), ("new", 9)] {
        let mut bench = stopped();
        assert!(bench.machine.resume(&id(name, hash)), "{name}");
        assert!(!bench.machine.resume(&id(name, hash)), "{name} is not stopped any more");
        assert_eq!(put(&mut bench, "b", 2), []);
        assert!(is_refused(&bench, "b"));
        let mut sent = put(&mut bench, name, hash);
        // Transient failures are retried as always.
        for _ in 0..3 {
            bench.refuse(sent.remove(0).0, Fault::Throttled);
            sent = bench.sent();
        }
        bench.place(sent[0].0, &[0]);
        assert!(bench.is_placed(name), "{name}");
    }
}

#[test]
fn all_keys_go_on_after_they_were_resumed_together() {
    let mut bench = stopped();
    assert_eq!(put(&mut bench, "new", 9), []);
    assert!(is_refused(&bench, "new"));
    assert_eq!(bench.machine.resume_all(), 2, "the third one was not known");
    assert!(!bench.machine.has_stopped() && bench.machine.stopped_keys().count() == 0);
    bench.settled.clear();
    for (name, hash) in [("a", 1), ("b", 2), ("c", 3), ("new", 9)] {
        let (request, _) = put(&mut bench, name, hash).remove(0);
        bench.place(request, &[0]);
        assert!(bench.is_placed(name), "{name}");
    }
}

#[test]
fn a_key_that_stops_again_takes_no_resumed_one_with_it() {
    let mut bench = stopped();
    for (name, hash) in [("a", 1), ("b", 2)] {
        assert!(bench.machine.resume(&id(name, hash)));
    }
    let told = |bench: &MachineFixture| {
        bench.notices.iter().filter(|notice| **notice == MachineNotice::ProducerStopped).count()
    };
    let before = told(&bench);
    let (first, _) = put(&mut bench, "a", 1).remove(0);
    let (second, _) = put(&mut bench, "b", 2).remove(0);
    bench.refuse(first, Fault::Missing);
    bench.place(second, &[0]);
    assert!(bench.is_placed("b"));
    assert_eq!((put(&mut bench, "a", 1), told(&bench)), (vec![], before));
    assert!(bench.machine.resume(&id("a", 1)));
    assert_eq!(put(&mut bench, "a", 1).len(), 1);
}

#[test]
fn what_was_on_its_way_when_the_producer_stopped_is_not_sent_again() {
    let mut bench = MachineFixture::with_map(|settings| {
        settings.max_stopped_keys = 1;
        settings.aggregation = Aggregation::Off;
    });
    let (old, _) = put(&mut bench, "old", 7).remove(0);
    for (name, hash) in [("a", 1), ("b", 2)] {
        let (request, _) = put(&mut bench, name, hash).remove(0);
        bench.refuse(request, Fault::Missing);
    }
    assert!(bench.machine.has_stopped() && bench.machine.resume(&id("old", 7)));
    bench.refuse(old, Fault::Throttled);
    assert!(is_refused(&bench, "old") && bench.sent().is_empty());
}
