//! The checkers themselves, on histories written by hand: what they let pass, and what they notice.

use anabranch::event::{Event, LeaseEvent, ShardEvent, ShardStop};
use anabranch_model::ids::ShardId;
use anabranch_model::lease::{
    Checkpoint, Hold, Lease, LeaseChange, LeaseKey, Nonce, Outcome, Stored, WorkerChange, WorkerId,
    Write,
};
use anabranch_model::position::Position;
use anabranch_model::watch::{Phase, Remedy};
use anabranch_sim::checkers::liveness::{Shared, Unowned};
use anabranch_sim::checkers::{
    Quiet, checkpoint, content, delivery, duplicates, effects, fencing, lineage, liveness, memory,
    order, ownership, resumption, trimming,
};
use anabranch_sim::history::{HostId, Line, What};
use anabranch_sim::supply::Grain;
use anabranch_sim::workload::position;
use std::sync::Arc;

fn key() -> LeaseKey {
    LeaseKey::new("s", "shard-0")
}

fn worker(name: &str) -> WorkerId {
    WorkerId::from(name)
}

fn hold(owner: &str, term: u64) -> Hold {
    Hold { key: key(), owner: worker(owner), term }
}

fn delivered(owner: &str, term: u64, number: u64) -> What {
    What::Delivered { hold: hold(owner, term), number }
}

fn began(owner: &str, term: u64, done: u64) -> What {
    What::Began { hold: hold(owner, term), from: position(done) }
}

/// The row after a write, as the store told.
fn row(owner: Option<&str>, term: u64, done: u64) -> Outcome {
    let new = anabranch_model::lease::NewLease {
        shard: key().shard,
        parents: Vec::new(),
        range: anabranch_model::hash::HashRange::ALL,
        checkpoint: Position::TrimHorizon,
    };
    let lease = Lease {
        owner: owner.map(worker),
        term,
        checkpoint: Checkpoint::at(position(done)),
        ..new.into_lease(&key().stream)
    };
    Outcome::Done(Stored::Lease(Box::new(lease)))
}

fn landed(change: LeaseChange, outcome: Outcome) -> What {
    What::Landed { write: Write::lease(&key(), change, Nonce(1)), outcome }
}

fn took(owner: &str, term: u64, done: u64) -> What {
    let change = LeaseChange::Take { taker: worker(owner), term: term - 1 };
    landed(change, row(Some(owner), term, done))
}

fn stored(owner: &str, term: u64, from: u64, to: u64) -> What {
    let change = LeaseChange::Checkpoint {
        owner: worker(owner),
        term,
        replaces: Checkpoint::at(position(from)),
        to: Checkpoint::at(position(to)),
        pending: None,
        bytes_per_second: None,
    };
    landed(change, row(Some(owner), term, to))
}

fn acknowledged(owner: &str, term: u64, done: u64) -> What {
    What::Checkpointed { hold: hold(owner, term), at: position(done) }
}

fn lines(story: Vec<What>) -> Vec<Line> {
    let line = |(at, what): (usize, What)| {
        let at_ms = u64::try_from(at).expect("it is small");
        Line { at_ms, host: Some(HostId(0)), what }
    };
    story.into_iter().enumerate().map(line).collect()
}

type Checker = fn(&[Line]) -> Option<anabranch_sim::checkers::Violation>;

/// The checker says nothing, or something with these words in it.
fn check(checker: Checker, story: Vec<What>, expected: Option<&str>) {
    let lines = lines(story);
    let words = checker(&lines).map(|violation| violation.words);
    match (&words, expected) {
        (None, None) => {}
        (Some(words), Some(expected)) => assert!(words.contains(expected), "{words}: {expected}"),
        _ => panic!("expected {expected:?}, got {words:?} for {lines:#?}"),
    }
}

#[test]
fn a_shard_has_one_deliverer_at_a_time() {
    let check = |story, expected| check(owned, story, expected);
    check(vec![delivered("a", 1, 1), delivered("a", 1, 2), delivered("b", 2, 3)], None);
    check(
        vec![delivered("a", 1, 1), delivered("b", 2, 2), delivered("a", 1, 2)],
        Some("term 1 of a delivered, after s/shard-0 term 2 of b"),
    );
    check(vec![delivered("a", 1, 1), delivered("b", 1, 1)], Some("term 1 of b delivered"));
    check(vec![delivered("a", 2, 1), delivered("a", 1, 2)], Some("term 1 of a delivered"));
    // The row has gone on, although nothing was delivered under the new term yet.
    let after = |write| vec![took("a", 1, 0), delivered("a", 1, 1), write, delivered("a", 1, 2)];
    check(after(stored("a", 1, 0, 1)), None);
    check(after(took("a", 2, 0)), Some("after the row went on to term 2"));
    check(after(took("b", 2, 0)), Some("after the row went on to term 2"));
    check(after(landed(release("a", 1), row(None, 2, 0))), Some("after the row went on"));
}

/// Order, where the lease time is seven lines long.
fn ordered(lines: &[Line]) -> Option<anabranch_sim::checkers::Violation> {
    order::check(lines, 7)
}

/// Ownership, where the lease time is seven lines long.
fn owned(lines: &[Line]) -> Option<anabranch_sim::checkers::Violation> {
    ownership::check(lines, 7)
}

fn beat(owner: &str) -> What {
    let change = WorkerChange::Beat { counter: 1 };
    let write = Write::worker(&worker(owner), change, Nonce(1));
    What::Landed { write, outcome: row(None, 1, 0) }
}

fn joined(owner: &str, lease_time_ms: u64) -> What {
    let lease_time_ms = Some(lease_time_ms);
    let join =
        WorkerChange::Join { host: String::new(), started_ms: 0, reads: None, lease_time_ms };
    let write = Write::worker(&worker(owner), join, Nonce(1));
    What::Landed { write, outcome: row(None, 1, 0) }
}

fn paused(since_ms: u64) -> What {
    What::Paused { since_ms }
}

#[test]
fn an_owner_that_was_paused_with_its_clock_may_overlap_for_the_rest_of_its_lease_time() {
    let check = |story, expected| check(owned, story, expected);
    // Lines 3 to 6 are a pause, in which b took the lease.
    let overlap = |mut after: Vec<What>| {
        let mut story = vec![took("a", 1, 0), beat("a"), delivered("a", 1, 1)];
        story.extend([took("b", 2, 0), delivered("b", 2, 1), delivered("b", 2, 2), paused(3)]);
        story.append(&mut after);
        story
    };
    check(overlap(vec![delivered("a", 1, 2), delivered("a", 1, 3)]), None);
    // By its own clock, lines 1, 2 and 7 to 11 are a lease time.
    let others = vec![delivered("b", 2, 3); 5];
    let late = others.iter().cloned().chain([delivered("a", 1, 4)]).collect();
    check(overlap(late), Some("term 1 of a delivered, after s/shard-0 term 2 of b"));
    // A pause explains nothing that happened before it.
    let mut story = vec![took("a", 1, 0), beat("a"), delivered("a", 1, 1), took("b", 2, 0)];
    story.extend([delivered("b", 2, 1), paused(4), delivered("a", 1, 2)]);
    check(story, Some("term 1 of a delivered"));
    // Nor does one before the last sign of life.
    let mut story = vec![took("a", 1, 0), delivered("a", 1, 1), paused(1), beat("a")];
    story.extend([took("b", 2, 0), delivered("b", 2, 1), delivered("a", 1, 2)]);
    check(story, Some("term 1 of a delivered"));
    // What counts is the lease time of the worker itself: by its clock, 3 ms go by.
    let story = |own_ms| {
        let mut story = vec![joined("a", own_ms), took("a", 1, 0), beat("a")];
        story.extend([delivered("a", 1, 1), took("b", 2, 0), delivered("b", 2, 1), paused(4)]);
        story.push(delivered("a", 1, 2));
        story
    };
    check(story(4), None);
    check(story(3), Some("term 1 of a delivered"));
}

#[test]
fn checkpoints_are_the_holders_and_go_forward_and_stay() {
    let check = |story, expected| check(fencing::check, story, expected);
    check(vec![took("a", 1, 0), stored("a", 1, 0, 5), acknowledged("a", 1, 5)], None);
    check(
        vec![took("a", 1, 0), took("b", 2, 0), stored("a", 1, 0, 5)],
        Some("the lease was b's, term 2"),
    );
    check(
        vec![took("a", 1, 0), landed(release("a", 1), row(None, 2, 0)), stored("a", 1, 0, 5)],
        Some("the lease was nobody's"),
    );
    check(vec![took("a", 1, 0), stored("a", 1, 0, 5), stored("a", 1, 0, 3)], Some("went back"));
    check(vec![took("a", 1, 0), acknowledged("a", 1, 5)], Some("was acknowledged, and nothing"));
    check(
        vec![took("a", 1, 0), stored("a", 1, 0, 3), acknowledged("a", 1, 5)],
        Some("was acknowledged, and"),
    );
    let told = |done| {
        let (shard, at) = (Arc::new(key()), Checkpoint::at(position(done)));
        What::Told(Event::Shard(ShardEvent::Checkpointed { shard, at }))
    };
    check(vec![took("a", 1, 0), stored("a", 1, 0, 5), told(5)], None);
    check(vec![took("a", 1, 0), told(5)], Some("was acknowledged, and nothing is stored"));
    check(vec![took("a", 1, 0), stored("a", 1, 0, 3), told(5)], Some("was acknowledged, and"));
}

fn release(owner: &str, term: u64) -> LeaseChange {
    LeaseChange::Release { owner: worker(owner), term }
}

#[test]
fn a_reader_goes_on_where_the_row_stood_and_skips_nothing() {
    let check = |story, expected| check(resumption::check, story, expected);
    check(vec![took("a", 1, 4), began("a", 1, 4), delivered("a", 1, 1)], None);
    check(vec![took("a", 1, 4), began("a", 1, 3)], Some("the row stood at"));
    check(vec![began("a", 1, 0)], Some("no write made that term"));
    check(
        vec![delivered("a", 1, 1), delivered("a", 1, 3)],
        Some("record 3 was delivered right after 1"),
    );
    check(vec![delivered("a", 1, 1), delivered("a", 1, 2), delivered("b", 2, 1)], None);
}

#[test]
fn every_ready_shard_is_delivered_and_load_is_level() {
    let other = LeaseKey::new("s", "shard-1");
    let on = |host, key: &LeaseKey| Line {
        at_ms: 5,
        host: Some(HostId(host)),
        what: What::Delivered { hold: Hold { key: key.clone(), ..hold("a", 1) }, number: 1 },
    };
    let quiet = |level| Quiet {
        from_ms: 1,
        until_ms: 9,
        ready: [key(), other.clone()].into(),
        stuck: [].into(),
        hosts: [HostId(0), HostId(1)].into(),
        level,
    };
    let words = |lines: &[Line], level| liveness::check(lines, &quiet(level)).map(|v| v.words);
    assert_eq!(words(&[on(0, &key()), on(1, &other)], true), None);
    let idle = words(&[on(0, &key())], false).expect("shard-1 is idle");
    assert!(idle.contains("nobody delivers s/shard-1"), "{idle}");
    let both = [on(0, &key()), on(0, &other)];
    assert_eq!(words(&both, false), None);
    let uneven = words(&both, true).expect("one host has both");
    assert!(uneven.contains("load is not level"), "{uneven}");
    let stuck = Quiet { ready: [].into(), stuck: [key()].into(), ..quiet(false) };
    let stuck = liveness::check(&[], &stuck).expect("shard-0 does not end").words;
    assert!(stuck.contains("s/shard-0 is done, and its row does not say its end"), "{stuck}");
}

/// The record of that number, of one key, in the shard of that name.
fn grain(shard: &str, number: u64) -> Arc<Grain> {
    let (shard, at) = (LeaseKey::new("s", shard), position(number));
    Arc::new(Grain { key: "k".into(), number, shard, at, bytes: 1, arrived_ms: 0 })
}

fn put(shard: &str, number: u64) -> What {
    What::Put(grain(shard, number))
}

fn of(shard: &str, term: u64) -> Hold {
    Hold { key: LeaseKey::new("s", shard), owner: worker("a"), term }
}

fn handed(shard: &str, number: u64, term: u64) -> What {
    What::Handed { hold: of(shard, term), grain: grain(shard, number) }
}

fn handled(shard: &str, number: u64, term: u64, done: bool) -> What {
    What::Handled { hold: of(shard, term), grain: grain(shard, number), done }
}

fn split() -> What {
    let shard = |name| LeaseKey::new("s", name);
    let opened = vec![shard("shard-1"), shard("shard-2")];
    What::Resharded { closed: vec![shard("shard-0")], opened }
}

fn lost(shard: &str) -> What {
    let lease = LeaseKey::new("s", shard);
    What::Told(Event::Lease(LeaseEvent::ShardLost { lease, heirs: Vec::new() }))
}

#[test]
fn a_key_comes_in_the_order_of_its_puts() {
    let check = |story, expected| check(ordered, story, expected);
    let two = || vec![put("shard-0", 1), put("shard-0", 2)];
    let then = |rest: Vec<What>| two().into_iter().chain(rest).collect::<Vec<_>>();
    let (first, done) = (handed("shard-0", 1, 1), handled("shard-0", 1, 1, true));
    check(then(vec![first.clone(), done.clone(), handed("shard-0", 2, 1)]), None);
    let early = || handed("shard-0", 2, 1);
    check(then(vec![first.clone(), early()]), Some("k#2 came before k#1 was done"));
    check(then(vec![first.clone(), handled("shard-0", 1, 1, false), early()]), Some("k#2"));
    check(then(vec![early()]), Some("k#2 came before k#1 was done"));
    check(then(vec![What::Trimmed, early()]), None);
    // The application starts behind it.
    check(then(vec![What::Skipped(grain("shard-0", 1)), early()]), None);
    // The records of one call are in the hands of the handler together.
    let called = |records| What::Called { hold: of("shard-0", 1), records };
    check(then(vec![called(2), first.clone(), early()]), None);
    check(then(vec![called(1), first.clone(), early()]), Some("k#2 came before k#1 was done"));
    // Read before it was trimmed, so only the end of the session can have lost it.
    check(then([read(1), vec![early()]].concat()), Some("k#2 came before k#1 was done"));
    check(
        then([read(1), vec![What::Trimmed, early()]].concat()),
        Some("k#2 came before k#1 was done"),
    );
    check(then([read(1), vec![What::Trimmed, stopped(), early()]].concat()), None);
    check(then([read(1), vec![stopped(), What::Trimmed, early()]].concat()), None);
    // Its shard is past retention as a whole, so a gate may have opened.
    let gone = vec![split(), What::Trimmed, early(), first.clone()];
    check(then([read(1), gone].concat()), None);
    check(
        then(vec![What::Trimmed, early(), first.clone()]),
        Some("k#1 came for the first time after k#2"),
    );
    // Lost with a session that goes on, for all that its host knows.
    let zombie = |ends: Vec<What>| {
        let taken = vec![What::Trimmed, took("b", 2, 0), handed("shard-0", 2, 2)];
        then([read(1), vec![beat("a")], taken, ends].concat())
    };
    check(zombie(vec![paused(5), first.clone()]), None);
    check(zombie(vec![first]), Some("k#1 came for the first time after k#2"));
}

#[test]
fn what_retention_took_is_told_before_what_is_behind_it() {
    let check = |story, expected| check(trimming::check, story, expected);
    let of_shard = |event: ShardEvent| What::Told(Event::Shard(event));
    let shard = || Arc::new(key());
    let started =
        |from| of_shard(ShardEvent::Started { shard: shard(), from: Checkpoint::at(from) });
    let told = |after, to| {
        let (after, to) = (position(after), Some(position(to)));
        of_shard(ShardEvent::Trimmed { shard: shard(), after, to })
    };
    // Record 1 is done, 2 is lost, and 3 comes to a session that began afterwards.
    let begins_at = |from, rest: Vec<What>| {
        let lost = vec![put("shard-0", 1), put("shard-0", 2), handled("shard-0", 1, 1, true)];
        let kept = vec![What::Trimmed, put("shard-0", 3), started(from)];
        [lost, kept, rest].concat()
    };
    let begins = |rest| begins_at(position(1), rest);
    let next = || handed("shard-0", 3, 2);
    let words = "k#3 came, and nobody said that k#2";
    check(begins(vec![next()]), Some(words));
    check(begins(vec![told(1, 3), next()]), None);
    check(begins(vec![next(), told(1, 3)]), Some(words));
    check(begins(vec![told(1, 2), next()]), Some(words));
    // A worker that was expelled had it in memory, and is done with it.
    check(begins(vec![handled("shard-0", 2, 1, true), next()]), None);
    // Nobody knows what an idle shard held, nor what lies behind a start that is no record.
    let idle = vec![put("shard-0", 2), What::Trimmed, started(position(1))];
    check([idle, vec![put("shard-0", 3), next()]].concat(), None);
    check(begins_at(Position::TrimHorizon, vec![next()]), None);
    // By the clock of a host that was paused meanwhile, no time has passed.
    let goes_on = |rest: Vec<What>| {
        let began = vec![started(position(1)), put("shard-0", 2)];
        [began, vec![What::Trimmed, put("shard-0", 3)], rest].concat()
    };
    check(goes_on(vec![next()]), Some(words));
    check(goes_on(vec![paused(1), next()]), None);
    check(goes_on(vec![paused(3), next()]), Some(words));
    // Nor does fetching know more that was restarted.
    let (phase, remedy) = (Phase::Fetch, Remedy::Restart);
    let stuck = of_shard(ShardEvent::Stuck { shard: shard(), phase, for_ms: 1, remedy });
    check(goes_on(vec![stuck, next()]), None);
}

/// The same line of a stream whose shards and keys have the same names.
fn elsewhere(what: What) -> What {
    let there = |mut grain: Arc<Grain>| {
        Arc::make_mut(&mut grain).shard.stream = "t".into();
        grain
    };
    match what {
        What::Put(grain) => What::Put(there(grain)),
        What::Handed { mut hold, grain } => {
            hold.key.stream = "t".into();
            What::Handed { hold, grain: there(grain) }
        }
        What::Handled { mut hold, grain, done } => {
            hold.key.stream = "t".into();
            What::Handled { hold, grain: there(grain), done }
        }
        other => panic!("no line of these stories: {other:?}"),
    }
}

#[test]
fn streams_whose_shards_and_keys_have_the_same_names_are_kept_apart() {
    let done = || handled("shard-0", 1, 1, true);
    let end =
        LeaseChange::End { owner: worker("a"), term: 1, replaces: Checkpoint::at(position(0)) };
    let end = || landed(end.clone(), row(Some("a"), 1, 0));
    // What is open in one stream holds nothing up in the other.
    check(ordered, vec![elsewhere(put("shard-0", 1)), handed("shard-0", 2, 1)], None);
    let story = vec![elsewhere(put("shard-0", 1)), split(), handed("shard-1", 2, 1)];
    check(lineage::check, story, None);
    check(checkpoint::check, vec![elsewhere(put("shard-0", 1)), end()], None);
    check(effects::check, vec![done(), elsewhere(done())], None);
    let handed = || handed("shard-0", 1, 1);
    check(duplicates::check, vec![handed(), elsewhere(handed())], None);
    // What is done in one stream is not done in the other.
    let two = || vec![put("shard-0", 1), elsewhere(put("shard-0", 1)), elsewhere(done())];
    check(delivery::check, two(), Some("k#1 of s/shard-0"));
    check(checkpoint::check, [two(), vec![end()]].concat(), Some("k#1 is not done"));
    let next = || put("shard-0", 2);
    let early = || self::handed("shard-0", 2, 1);
    check(ordered, [two(), vec![next(), early()]].concat(), Some("before k#1 was done"));
    let child = self::handed("shard-1", 2, 1);
    check(lineage::check, [two(), vec![split(), child]].concat(), Some("before s/shard-0"));
}

/// The worker on the host of these stories took the shard and received records up to this one.
fn read(number: u64) -> Vec<What> {
    let grains = (1..=number).map(|number| grain("shard-0", number)).collect();
    vec![took("h0", 1, 0), What::Arrived(grains)]
}

fn stopped() -> What {
    let stopped = ShardEvent::Stopped { shard: Arc::new(key()), why: ShardStop::Drained };
    What::Told(Event::Shard(stopped))
}

#[test]
fn an_effect_comes_once() {
    let check = |story, expected| check(effects::check, story, expected);
    let done = || handled("shard-0", 1, 1, true);
    check(vec![handled("shard-0", 1, 1, false), done()], None);
    check(vec![done(), handled("shard-0", 1, 2, true)], Some("k#1 had its effect twice"));
}

#[test]
fn a_shard_waits_for_all_that_it_came_from() {
    let check = |story, expected| check(lineage::check, story, expected);
    let begin = || vec![put("shard-0", 1), split(), put("shard-1", 2)];
    let then = |rest: Vec<What>| begin().into_iter().chain(rest).collect::<Vec<_>>();
    check(then(vec![handed("shard-1", 2, 1)]), Some("before s/shard-0 was done"));
    check(then(vec![handled("shard-0", 1, 1, true), handed("shard-1", 2, 1)]), None);
    // A generation without records does not open the gate.
    let next = What::Resharded {
        closed: vec![LeaseKey::new("s", "shard-2")],
        opened: vec![LeaseKey::new("s", "shard-3"), LeaseKey::new("s", "shard-4")],
    };
    let grandchild = vec![next, put("shard-3", 3), handed("shard-3", 3, 1)];
    check(then(grandchild), Some("before s/shard-0 was done"));
    let child = || handed("shard-1", 2, 1);
    check(then(vec![What::Trimmed, child()]), None);
}

#[test]
fn no_checkpoint_passes_what_is_not_done() {
    let check = |story, expected| check(checkpoint::check, story, expected);
    let end = || {
        let change =
            LeaseChange::End { owner: worker("a"), term: 1, replaces: Checkpoint::at(position(0)) };
        landed(change, row(Some("a"), 1, 0))
    };
    let done = |number| handled("shard-0", number, 1, true);
    check(vec![put("shard-0", 1), done(1), stored("a", 1, 0, 1), end()], None);
    check(vec![put("shard-0", 1), stored("a", 1, 0, 1)], Some("k#1 is not done"));
    check(vec![put("shard-0", 1), put("shard-0", 2), done(2), stored("a", 1, 0, 2)], Some("k#1"));
    check(vec![put("shard-0", 1), end()], Some("k#1 is not done"));
    check(vec![put("shard-0", 1), What::Trimmed, end()], None);
    let read = |rest: Vec<What>| [vec![put("shard-0", 1)], read(1), rest].concat();
    check(read(vec![What::Trimmed, end()]), Some("k#1 is not done"));
    check(read(vec![What::Trimmed, stopped(), end()]), None);
}

#[test]
fn what_is_written_down_or_given_back_does_not_come_again() {
    let check = |story, expected| check(duplicates::check, story, expected);
    let call = |number, term| {
        vec![handed("shard-0", number, term), handled("shard-0", number, term, true)]
    };
    let story = |parts: Vec<Vec<What>>| parts.concat();
    // After a crash, what was done since the checkpoint.
    check(story(vec![vec![took("a", 1, 0)], call(1, 1), vec![took("b", 2, 0)], call(1, 2)]), None);
    check(
        story(vec![vec![took("a", 1, 0)], call(1, 1), vec![took("b", 2, 1)], call(1, 2)]),
        Some("k#1 came again"),
    );
    let release = |done| vec![landed(release("a", 1), row(None, 2, done))];
    check(story(vec![vec![took("a", 1, 0)], call(1, 1), release(1)]), None);
    check(story(vec![vec![took("a", 1, 0)], call(1, 1), release(0)]), Some("k#1 was done under"));
    check(story(vec![call(1, 1), call(1, 1)]), Some("k#1 came twice"));
    let failed = vec![handed("shard-0", 1, 1), handled("shard-0", 1, 1, false)];
    check(story(vec![failed, call(1, 1)]), None);
}

#[test]
fn everything_is_delivered_or_its_loss_is_told() {
    let check = |story, expected| check(delivery::check, story, expected);
    let created = || {
        let new = anabranch_model::lease::NewLease {
            shard: key().shard,
            parents: Vec::new(),
            range: anabranch_model::hash::HashRange::ALL,
            checkpoint: Position::TrimHorizon,
        };
        landed(LeaseChange::Create(Box::new(new)), row(None, 0, 0))
    };
    check(vec![put("shard-0", 1), handled("shard-0", 1, 1, true)], None);
    check(vec![put("shard-0", 1), handed("shard-0", 1, 1)], Some("was never delivered"));
    check(vec![put("shard-0", 1), handled("shard-0", 1, 1, false)], Some("was never delivered"));
    let trimmed = || vec![created(), put("shard-0", 1), split(), put("shard-1", 2), What::Trimmed];
    check(trimmed(), Some("was lost, and nobody said so"));
    check([trimmed(), vec![lost("shard-0")]].concat(), None);
    check([trimmed(), vec![lost("shard-2")]].concat(), Some("nobody said so"));
    // An open shard loses what nobody had read, and nothing else.
    let read = |rest: Vec<What>| [vec![put("shard-0", 1)], read(1), rest].concat();
    check(vec![put("shard-0", 1), What::Trimmed], None);
    check(read(vec![What::Trimmed]), Some("was never delivered"));
    check(read(vec![What::Trimmed, took("h1", 2, 0)]), None);
    check(read(vec![What::Trimmed, handled("shard-0", 1, 1, true)]), None);
}

#[test]
fn nobody_holds_more_than_it_may() {
    let holds = |bytes| vec![What::Holds { bytes, most: 10 }];
    check(memory::check, holds(10), None);
    check(memory::check, holds(11), Some("11 bytes are held; 10 may be"));
}

#[test]
fn what_comes_was_put() {
    let words = "what was never put".to_owned();
    check(content::check, vec![put("shard-0", 1), handed("shard-0", 1, 1)], None);
    let garbled = vec![What::Garbled { lease: key(), words }];
    check(content::check, garbled, Some("what was never put of s/shard-0"));
}

#[test]
fn shards_are_shared_by_the_hosts_that_are_up() {
    let row = |shard: &str, parents: &[&str], owner: Option<&str>, ended: bool| {
        let new = anabranch_model::lease::NewLease {
            shard: ShardId::from(shard),
            parents: parents.iter().map(|parent| ShardId::from(*parent)).collect(),
            range: anabranch_model::hash::HashRange::ALL,
            checkpoint: Position::TrimHorizon,
        };
        let at = if ended { Position::ShardEnd } else { Position::TrimHorizon };
        let checkpoint = Checkpoint::at(at);
        Lease { owner: owner.map(worker), checkpoint, ..new.into_lease(&key().stream) }
    };
    let up = || (0..2).map(|host| (HostId(host), Some(worker(&format!("h{host}/1")))));
    let shared = |rows: &[Lease]| Shared::of(rows, up());
    let unowned = |rows: &[Lease]| shared(rows).unowned.into_iter().collect::<Vec<_>>();
    let key = |shard: &str| LeaseKey::new("s", shard);
    let parent = row("shard-0", &[], Some("h0/1"), false);
    assert_eq!(unowned(std::slice::from_ref(&parent)), []);
    // A child waits for its parent, and needs no owner before that is done.
    assert_eq!(unowned(&[parent, row("shard-1", &["shard-0"], None, false)]), []);
    let done = row("shard-0", &[], None, true);
    let child = |owner| row("shard-1", &["shard-0"], owner, false);
    assert_eq!(unowned(&[done.clone(), child(None)]), [key("shard-1")]);
    assert_eq!(unowned(&[done.clone(), child(Some("h2/1"))]), [key("shard-1")]);
    // An earlier life of a host that is up.
    assert_eq!(unowned(&[done.clone(), child(Some("h1/0"))]), [key("shard-1")]);
    assert_eq!(unowned(&[done, child(Some("h1/1"))]), []);
    let owned = |shard| row(shard, &[], Some("h0/1"), false);
    assert!(shared(&[owned("shard-0")]).is_level());
    assert!(!shared(&[owned("shard-0"), owned("shard-1")]).is_level());

    let (mut looks, none) = (Unowned::default(), shared(&[]));
    let some = shared(&[row("shard-0", &[], None, false)]);
    for (now_ms, shared, late) in
        [(0, &some, false), (9, &none, false), (10, &some, false), (20, &some, false)]
    {
        assert_eq!(looks.look(now_ms, shared, 10).is_some(), late, "at {now_ms} ms");
    }
    let words = looks.look(21, &some, 10).expect("it is late");
    assert!(words.contains("s/shard-0 has no owner since 10 ms"), "{words}");
}
