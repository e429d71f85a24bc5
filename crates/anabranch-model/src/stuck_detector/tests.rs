//! Results of a detector, check by check.

use crate::stuck_detector::*;

const LIMITS: WatchdogLimits = WatchdogLimits {
    iterator_ms: 10,
    fetch_ms: 20,
    decode_ms: 10,
    handler_ms: 30,
    checkpoint_ms: 10,
    drop_handlers: false,
    restarts: 2,
};

/// One check: the time, the activity, and the result.
type Look<'a> = (u64, ShardActivity<'a>, Option<(ReadPhase, u64, WatchdogAction)>);

fn check(limits: WatchdogLimits, looks: &[Look<'_>]) {
    let mut watch = StuckDetector::new(limits);
    for (at, (now_ms, sight, want)) in looks.iter().enumerate() {
        let got = watch.look(*now_ms, *sight);
        let got = got.map(|stuck| (stuck.phase, stuck.for_ms, stuck.remedy));
        assert_eq!(got, *want, "look {at}, at {now_ms} ms, of {sight:?}");
    }
}

fn fetching(phase: ReadPhase, mark: u64) -> ShardActivity<'static> {
    ShardActivity { fetching: Some((phase, mark)), ..ShardActivity::default() }
}

fn handlers(marks: &[Option<u64>]) -> ShardActivity<'_> {
    ShardActivity { handlers: marks, ..ShardActivity::default() }
}

fn checkpoint(mark: u64) -> ShardActivity<'static> {
    ShardActivity { checkpoint: Some(mark), ..ShardActivity::default() }
}

const IDLE: ShardActivity<'static> =
    ShardActivity { fetching: None, handlers: &[], checkpoint: None };

#[test]
fn what_moves_is_never_stuck() {
    check(
        LIMITS,
        &[
            (0, fetching(ReadPhase::Fetch, 1), None),
            (19, fetching(ReadPhase::Fetch, 1), None),
            (21, fetching(ReadPhase::Fetch, 2), None),
            (40, fetching(ReadPhase::Fetch, 2), None),
            (42, IDLE, None),
            (9_000, IDLE, None),
            // The same mark after an idle time: it was waiting for something else meanwhile.
            (9_001, fetching(ReadPhase::Fetch, 2), None),
            (9_020, fetching(ReadPhase::Fetch, 2), None),
        ],
    );
}

#[test]
fn fetching_that_stands_is_restarted_and_in_the_end_released() {
    use WatchdogAction::{Release, Restart};
    check(
        LIMITS,
        &[
            (0, fetching(ReadPhase::Fetch, 7), None),
            (20, fetching(ReadPhase::Fetch, 7), Some((ReadPhase::Fetch, 20, Restart))),
            // The new reader begins with an iterator, and no reply has come: still the same mark.
            (25, fetching(ReadPhase::Iterator, 7), None),
            (30, fetching(ReadPhase::Iterator, 7), Some((ReadPhase::Iterator, 30, Restart))),
            (49, fetching(ReadPhase::Fetch, 7), None),
            (50, fetching(ReadPhase::Fetch, 7), Some((ReadPhase::Fetch, 50, Release))),
        ],
    );
    check(
        LIMITS,
        &[
            (0, fetching(ReadPhase::Fetch, 7), None),
            (20, fetching(ReadPhase::Fetch, 7), Some((ReadPhase::Fetch, 20, Restart))),
            (40, fetching(ReadPhase::Fetch, 7), Some((ReadPhase::Fetch, 40, Restart))),
            // A reply came: the action has helped.
            (50, fetching(ReadPhase::Fetch, 8), None),
            (70, fetching(ReadPhase::Fetch, 8), Some((ReadPhase::Fetch, 20, Restart))),
        ],
    );
}

#[test]
fn a_handler_that_stands_is_reported_less_and_less_often_and_nothing_else_is_done() {
    use WatchdogAction::Report;
    let (one, other) = ([None, Some(3)], [Some(1), Some(3)]);
    check(
        LIMITS,
        &[
            (0, handlers(&one), None),
            (29, handlers(&one), None),
            // Progress of another lane changes nothing.
            (30, handlers(&other), Some((ReadPhase::Handler, 30, Report))),
            (59, handlers(&one), None),
            (60, handlers(&one), Some((ReadPhase::Handler, 60, Report))),
            (119, handlers(&one), None),
            (120, handlers(&one), Some((ReadPhase::Handler, 120, Report))),
            (121, handlers(&[None, Some(4)]), None),
        ],
    );
}

#[test]
fn a_handler_that_may_be_dropped_is_dropped_again_and_then_released() {
    use WatchdogAction::{Release, Restart};
    let limits = WatchdogLimits { drop_handlers: true, restarts: 1, ..LIMITS };
    let hangs = [Some(3)];
    check(
        limits,
        &[
            (0, handlers(&hangs), None),
            (30, handlers(&hangs), Some((ReadPhase::Handler, 30, Restart))),
            // Nothing runs between two sessions.
            (31, handlers(&[None]), None),
            (32, handlers(&hangs), None),
            (62, handlers(&hangs), Some((ReadPhase::Handler, 30, Release))),
        ],
    );
}

#[test]
fn what_is_done_and_not_written_down_is_reported_and_then_released() {
    use WatchdogAction::{Release, Report};
    check(
        LIMITS,
        &[
            (0, checkpoint(1), None),
            (10, checkpoint(1), Some((ReadPhase::Checkpoint, 10, Report))),
            (19, checkpoint(1), None),
            (20, checkpoint(1), Some((ReadPhase::Checkpoint, 20, Release))),
        ],
    );
    check(LIMITS, &[(0, checkpoint(1), None), (9, checkpoint(2), None), (15, checkpoint(2), None)]);
}

#[test]
fn the_strongest_remedy_is_said_and_all_that_stands_is_shown() {
    let all = ShardActivity {
        fetching: Some((ReadPhase::Decode, 1)),
        handlers: &[Some(1)],
        checkpoint: Some(1),
    };
    let mut watch = StuckDetector::new(LIMITS);
    assert_eq!(watch.look(0, all), None);
    assert_eq!(watch.stuck_phase(0, Some(ReadPhase::Decode)), None);
    let stuck = watch.look(10, all).expect("decoding stands");
    assert_eq!((stuck.phase, stuck.remedy), (ReadPhase::Decode, WatchdogAction::Restart));
    assert_eq!(watch.stuck_phase(35, Some(ReadPhase::Decode)), Some((ReadPhase::Checkpoint, 35)));
    assert_eq!(watch.stuck_phase(35, None), Some((ReadPhase::Checkpoint, 35)));
}
