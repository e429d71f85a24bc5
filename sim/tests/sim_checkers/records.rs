//! Tests of the record checkers: order, lineage, loss, duplicates, memory, effects.

use crate::story::*;
use anabranch::event::{Event, ShardEvent};
use anabranch_model::lease::{Checkpoint, LeaseChange, LeaseKey};
use anabranch_model::position::Position;
use anabranch_model::stuck_detector::{ReadPhase, WatchdogAction};
use anabranch_sim::checkers::{
    checkpoint, content, delivery, duplicates, effects, lineage, memory, trimming,
};
use anabranch_sim::history::{HistoryEvent, HostId};
use anabranch_sim::workload::position;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn a_key_comes_in_the_order_of_its_puts() {
    let check = |story, expected| check(ordered, story, expected);
    let two = || vec![put("shard-0", 1), put("shard-0", 2)];
    let then = |rest: Vec<HistoryEvent>| two().into_iter().chain(rest).collect::<Vec<_>>();
    let (first, done) = (handed("shard-0", 1, 1), handled("shard-0", 1, 1, true));
    check(then(vec![first.clone(), done.clone(), handed("shard-0", 2, 1)]), None);
    let early = || handed("shard-0", 2, 1);
    check(then(vec![first.clone(), early()]), Some("k#2 came before k#1 was done"));
    check(then(vec![first.clone(), handled("shard-0", 1, 1, false), early()]), Some("k#2"));
    check(then(vec![early()]), Some("k#2 came before k#1 was done"));
    check(then(vec![HistoryEvent::Trimmed, early()]), None);
    // The application starts behind it.
    check(then(vec![HistoryEvent::Skipped(grain("shard-0", 1)), early()]), None);
    // The handler receives the records of one call together.
    let called = |records| HistoryEvent::Called { hold: of("shard-0", 1), records };
    check(then(vec![called(2), first.clone(), early()]), None);
    check(then(vec![called(1), first.clone(), early()]), Some("k#2 came before k#1 was done"));
    // Read before it was trimmed, so it is lost only when the session ends.
    check(then([read(1), vec![early()]].concat()), Some("k#2 came before k#1 was done"));
    check(
        then([read(1), vec![HistoryEvent::Trimmed, early()]].concat()),
        Some("k#2 came before k#1 was done"),
    );
    check(then([read(1), vec![HistoryEvent::Trimmed, stopped(), early()]].concat()), None);
    check(then([read(1), vec![stopped(), HistoryEvent::Trimmed, early()]].concat()), None);
    let crashed = |host| HistoryEvent::Crashed { host: HostId(host), for_ms: Some(1) };
    check(then([read(1), vec![HistoryEvent::Trimmed, crashed(0), early()]].concat()), None);
    check(then([read(1), vec![crashed(0), HistoryEvent::Trimmed, early()]].concat()), None);
    check(
        then([read(1), vec![HistoryEvent::Trimmed, crashed(1), early()]].concat()),
        Some("k#2 came before k#1 was done"),
    );
    // Its shard is entirely past retention, so reading of a child may have started.
    let gone = vec![split(), HistoryEvent::Trimmed, early(), first.clone()];
    check(then([read(1), gone].concat()), None);
    check(
        then(vec![HistoryEvent::Trimmed, early(), first.clone()]),
        Some("k#1 came for the first time after k#2"),
    );
    // Lost with a session that continues as far as its host knows.
    let zombie = |ends: Vec<HistoryEvent>| {
        let taken = vec![HistoryEvent::Trimmed, took("b", 2, 0), handed("shard-0", 2, 2)];
        then([read(1), vec![beat("a")], taken, ends].concat())
    };
    check(zombie(vec![paused(5), first.clone()]), None);
    check(zombie(vec![first]), Some("k#1 came for the first time after k#2"));
}

#[test]
fn what_retention_took_is_told_before_what_is_behind_it() {
    let check = |story, expected| check(trimming::check, story, expected);
    let of_shard = |event: ShardEvent| HistoryEvent::LibraryReported(Event::Shard(event));
    let shard = || Arc::new(key());
    let started =
        |from| of_shard(ShardEvent::Started { shard: shard(), from: Checkpoint::at(from) });
    let told = |after, to| {
        let (after, to) = (position(after), Some(position(to)));
        of_shard(ShardEvent::RetentionGap { shard: shard(), after, to })
    };
    // Record 1 is done, 2 is lost, and 3 is delivered to a session that began afterwards.
    let begins_at = |from, rest: Vec<HistoryEvent>| {
        let lost = vec![put("shard-0", 1), put("shard-0", 2), handled("shard-0", 1, 1, true)];
        let kept = vec![HistoryEvent::Trimmed, put("shard-0", 3), started(from)];
        [lost, kept, rest].concat()
    };
    let begins = |rest| begins_at(position(1), rest);
    let next = || handed("shard-0", 3, 2);
    let words = "k#3 came, and nobody said that k#2";
    check(begins(vec![next()]), Some(words));
    check(begins(vec![told(1, 3), next()]), None);
    check(begins(vec![next(), told(1, 3)]), Some(words));
    check(begins(vec![told(1, 2), next()]), Some(words));
    // An evicted worker had it in memory, and is done with it.
    check(begins(vec![handled("shard-0", 2, 1, true), next()]), None);
    // The past contents of an idle shard are unknown, and so are those behind a start that is no
    // record.
    let idle = vec![put("shard-0", 2), HistoryEvent::Trimmed, started(position(1))];
    check([idle, vec![put("shard-0", 3), next()]].concat(), None);
    check(begins_at(Position::TrimHorizon, vec![next()]), None);
    // By the clock of a host that was paused meanwhile, no time has passed.
    let goes_on = |rest: Vec<HistoryEvent>| {
        let began = vec![started(position(1)), put("shard-0", 2)];
        [began, vec![HistoryEvent::Trimmed, put("shard-0", 3)], rest].concat()
    };
    check(goes_on(vec![next()]), Some(words));
    check(goes_on(vec![paused(1), next()]), None);
    check(goes_on(vec![paused(3), next()]), Some(words));
    // Restarted fetching does not know more either.
    let (phase, remedy) = (ReadPhase::Fetch, WatchdogAction::Restart);
    let stuck = of_shard(ShardEvent::Stuck {
        shard: shard(),
        phase,
        stuck_for: Duration::from_millis(1),
        action: remedy,
    });
    check(goes_on(vec![stuck, next()]), None);
}

#[test]
fn streams_whose_shards_and_keys_have_the_same_names_are_kept_apart() {
    let done = || handled("shard-0", 1, 1, true);
    let end =
        LeaseChange::End { owner: worker("a"), term: 1, replaces: Checkpoint::at(position(0)) };
    let end = || landed(end.clone(), row(Some("a"), 1, 0));
    // Open records of one stream do not delay the other.
    check(ordered, vec![elsewhere(put("shard-0", 1)), handed("shard-0", 2, 1)], None);
    let story = vec![elsewhere(put("shard-0", 1)), split(), handed("shard-1", 2, 1)];
    check(lineage::check, story, None);
    check(checkpoint::check, vec![elsewhere(put("shard-0", 1)), end()], None);
    check(effects::check, vec![done(), elsewhere(done())], None);
    let handed = || handed("shard-0", 1, 1);
    check(duplicates::check, vec![handed(), elsewhere(handed())], None);
    // Records done in one stream are not done in the other.
    let two = || vec![put("shard-0", 1), elsewhere(put("shard-0", 1)), elsewhere(done())];
    check(delivery::check, two(), Some("k#1 of s/shard-0"));
    check(checkpoint::check, [two(), vec![end()]].concat(), Some("k#1 is not done"));
    let next = || put("shard-0", 2);
    let early = || self::handed("shard-0", 2, 1);
    check(ordered, [two(), vec![next(), early()]].concat(), Some("before k#1 was done"));
    let child = self::handed("shard-1", 2, 1);
    check(lineage::check, [two(), vec![split(), child]].concat(), Some("before s/shard-0"));
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
    let then = |rest: Vec<HistoryEvent>| begin().into_iter().chain(rest).collect::<Vec<_>>();
    check(then(vec![handed("shard-1", 2, 1)]), Some("before s/shard-0 was done"));
    check(then(vec![handled("shard-0", 1, 1, true), handed("shard-1", 2, 1)]), None);
    // A generation without records does not let its children start.
    let next = HistoryEvent::Resharded {
        closed: vec![LeaseKey::new("s", "shard-2")],
        opened: vec![LeaseKey::new("s", "shard-3"), LeaseKey::new("s", "shard-4")],
    };
    let grandchild = vec![next, put("shard-3", 3), handed("shard-3", 3, 1)];
    check(then(grandchild), Some("before s/shard-0 was done"));
    let child = || handed("shard-1", 2, 1);
    check(then(vec![HistoryEvent::Trimmed, child()]), None);
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
    check(vec![put("shard-0", 1), HistoryEvent::Trimmed, end()], None);
    let read = |rest: Vec<HistoryEvent>| [vec![put("shard-0", 1)], read(1), rest].concat();
    check(read(vec![HistoryEvent::Trimmed, end()]), Some("k#1 is not done"));
    check(read(vec![HistoryEvent::Trimmed, stopped(), end()]), None);
}

#[test]
fn what_is_written_down_or_given_back_does_not_come_again() {
    let check = |story, expected| check(duplicates::check, story, expected);
    let call = |number, term| {
        vec![handed("shard-0", number, term), handled("shard-0", number, term, true)]
    };
    let story = |parts: Vec<Vec<HistoryEvent>>| parts.concat();
    // After a crash, records done since the checkpoint are delivered again.
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
    let trimmed =
        || vec![created(), put("shard-0", 1), split(), put("shard-1", 2), HistoryEvent::Trimmed];
    check(trimmed(), Some("was lost, and nobody said so"));
    check([trimmed(), vec![lost("shard-0")]].concat(), None);
    check([trimmed(), vec![lost("shard-2")]].concat(), Some("nobody said so"));
    // An open shard loses unread records only.
    let read = |rest: Vec<HistoryEvent>| [vec![put("shard-0", 1)], read(1), rest].concat();
    check(vec![put("shard-0", 1), HistoryEvent::Trimmed], None);
    check(read(vec![HistoryEvent::Trimmed]), Some("was never delivered"));
    check(read(vec![HistoryEvent::Trimmed, took("h1", 2, 0)]), None);
    check(read(vec![HistoryEvent::Trimmed, handled("shard-0", 1, 1, true)]), None);
}

#[test]
fn nobody_holds_more_than_it_may() {
    let holds = |bytes| vec![HistoryEvent::Holds { bytes, most: 10 }];
    check(memory::check, holds(10), None);
    check(memory::check, holds(11), Some("11 bytes are held; 10 may be"));
}

#[test]
fn what_comes_was_put() {
    let words = "what was never put".to_owned();
    check(content::check, vec![put("shard-0", 1), handed("shard-0", 1, 1)], None);
    let garbled = vec![HistoryEvent::Corrupted { lease: key(), words }];
    check(content::check, garbled, Some("what was never put of s/shard-0"));
}
