//! Whole fleets: they become level with the fewest moves, and then stay unchanged.

use super::super::PlanSettings;
use super::simulated_fleet::{
    LEASE_ROUNDS, LEASE_TIME, RoundTally, SimulatedFleet, key, lease, worker_id,
};
use crate::lease::fleet_snapshot::{LeasePhase, LeaseSnapshot, WorkerSnapshot, WorkerStatus};
use crate::lease::row::LeaseKey;
use proptest::prelude::*;

/// Returns the rounds that hand-overs may need: one to request, one to hand over, with the limits
/// of giver and taker.
fn hand_over_rounds(world: &SimulatedFleet) -> usize {
    let counts = world.counts();
    let most = counts.values().max().copied().unwrap_or(0);
    let (leases, workers) = (world.leases.len(), counts.len().max(1));
    8 + 3 * (most + leases.div_ceil(workers)).div_ceil(world.settings.hand_overs_at_once)
}

fn world(workers: usize, owners: &[Option<usize>], settings: PlanSettings) -> SimulatedFleet {
    let mut world = SimulatedFleet::new(settings, 7);
    (0..workers).for_each(|i| world.join(i));
    for (i, owner) in owners.iter().enumerate() {
        world.add(lease(i, owner.map(|owner| owner % workers)));
    }
    world
}

/// Checks that equal polls lead from this table to a level fleet without a refused write.
fn check_settles(workers: usize, owners: &[Option<usize>]) {
    let mut world = world(workers, owners, PlanSettings::default());
    let fewest = world.fewest_passes();
    let most_rounds = hand_over_rounds(&world);
    let (_, tally) = world.settle(most_rounds);
    world.check_level();
    let free = owners.iter().filter(|owner| owner.is_none()).count();
    assert_eq!((tally.takes, tally.passes, tally.refused), (free, fewest, 0), "{tally:?}");
}

#[test]
fn a_fleet_that_starts_from_nothing_takes_each_lease_once() {
    check_settles(1, &[]);
    check_settles(1, &[None; 100]);
    check_settles(10, &[None; 1000]);
    check_settles(300, &vec![None; 2000]);
    check_settles(300, &[None; 20]);
}

#[test]
fn newcomers_get_their_share_and_nothing_else_moves() {
    check_settles(2, &[Some(0); 3]);
    check_settles(3, &[Some(0); 100]);
    check_settles(100, &[Some(0); 500]);
    let mut half: Vec<_> = (0..2000).map(|i| Some(i % 150)).collect();
    check_settles(300, &half);
    half.rotate_left(700);
    half.extend([None; 500]);
    check_settles(299, &half);
}

#[test]
fn no_more_hand_overs_are_in_progress_than_allowed() {
    let settings = PlanSettings { hand_overs_at_once: 4, ..PlanSettings::default() };
    let mut world = world(10, &[Some(0); 200], settings);
    for _ in 0..20 {
        world.round();
        let named: Vec<_> =
            world.leases.values().filter_map(|row| row.requested.as_ref()).collect();
        assert!(named.len() <= 4, "one giver: {named:?}");
    }
    let rounds = hand_over_rounds(&world);
    world.settle(rounds);
    world.check_level();
}

#[test]
fn a_dead_workers_leases_are_all_taken_after_its_fence() {
    for (workers, dead) in [(2, 1), (10, 1), (10, 9), (100, 40)] {
        let mut world = world(workers, &vec![None; workers * 6], PlanSettings::default());
        world.settle(10);
        for i in 0..dead {
            world.processes.get_mut(&worker_id(i)).unwrap().dead = true;
        }
        let orphaned = world
            .leases
            .values()
            .filter(|row| (0..dead).any(|i| row.owner.as_ref() == Some(&worker_id(i))));
        let orphaned = orphaned.count();
        // Nothing is taken before the lease time is over.
        for _ in 0..LEASE_ROUNDS - 1 {
            assert_eq!(world.round().planned, 0);
        }
        let (rounds, tally) = world.settle(LEASE_ROUNDS);
        world.check_level();
        assert!(rounds <= LEASE_ROUNDS / 2, "{rounds} rounds");
        assert_eq!((tally.fences, tally.takes, tally.passes), (dead, orphaned, 0), "{tally:?}");
        // Few workers fence one that is fenced already.
        assert!(tally.refused <= dead * 2, "{tally:?}");
    }
}

#[test]
fn a_worker_that_leaves_gives_everything_back_and_the_rest_is_level() {
    let mut world = world(10, &[None; 200], PlanSettings::default());
    world.settle(10);
    world.leave(&worker_id(3));
    world.leave(&worker_id(4));
    let (_, tally) = world.settle(60);
    world.check_level();
    assert_eq!(world.living().len(), 8);
    assert!(!world.workers.contains_key(&worker_id(3)));
    // Each lease moved once: by a hand-over or by a release and a take.
    assert_eq!(tally.passes + tally.releases, 40, "{tally:?}");
    assert_eq!(tally.takes, tally.releases, "{tally:?}");
}

#[test]
fn an_owner_that_never_joined_loses_its_leases_after_a_lease_time() {
    let mut world = world(3, &[None; 9], PlanSettings::default());
    world.add(LeaseSnapshot { owner: Some("stranger".into()), ..lease(9, None) });
    world.settle(10);
    assert_eq!(world.leases[&key(9)].owner, Some("stranger".into()));
    world.pass_rounds(LEASE_ROUNDS);
    world.settle(10);
    world.check_level();
}

#[test]
fn a_lease_that_its_taker_leaves_lying_goes_to_another() {
    let mut world = world(4, &[None; 40], PlanSettings::default());
    world.processes.get_mut(&worker_id(2)).unwrap().stuck = true;
    world.pass_rounds(LEASE_ROUNDS + 8);
    let owners = world.leases.values().filter(|row| row.owner.is_some()).count();
    assert_eq!(owners, 40);
    let counts = world.counts();
    let most = counts.values().max().unwrap();
    assert!(*most <= 16, "spread over the others: {counts:?}");
}

#[test]
fn without_room_for_all_everyone_is_full_and_the_fleet_stands_still() {
    let settings = PlanSettings { max_leases: 5, ..PlanSettings::default() };
    let mut world = world(4, &[None; 30], settings);
    world.settle(10);
    (0..4 * LEASE_ROUNDS).for_each(|_| assert_eq!(world.round().planned, 0));
    assert!(world.counts().values().all(|count| *count == 5));
}

#[test]
fn a_refused_lease_stays_and_the_others_level_out_around_it() {
    let mut world = world(3, &[Some(0); 12], PlanSettings::default());
    for i in 0..8 {
        world.leases.get_mut(&key(i)).unwrap().refused = true;
    }
    let (_, tally) = world.settle(20);
    assert_eq!(world.counts().into_values().collect::<Vec<_>>(), [8, 2, 2]);
    assert_eq!((tally.passes, tally.refused), (4, 0));
    // The handlers return, and the rest can move.
    world.leases.values_mut().for_each(|row| row.refused = false);
    world.settle(20);
    world.check_level();
}

#[test]
fn an_owner_that_does_not_answer_is_asked_no_more_for_a_while() {
    let mut world = world(2, &[Some(0); 4], PlanSettings::default());
    world.processes.get_mut(&worker_id(0)).unwrap().stuck = true;
    let tallies: Vec<_> = (0..60).map(|_| world.round()).collect();
    let sum = |part: fn(&RoundTally) -> usize| tallies.iter().map(part).sum::<usize>();
    // Each of its leases was requested once, waited for, and given up.
    assert_eq!((sum(|t| t.names), sum(|t| t.withdrawals), sum(|t| t.passes)), (4, 4, 0));
    assert_eq!(tallies[59].planned, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    /// Any table, including finished and blocked shards.
    #[test]
    fn any_table_settles_by_the_fewest_moves(
        workers in 1usize..14,
        rows in prop::collection::vec((prop::option::of(0usize..14), 0u8..6), 0..90),
    ) {
        let mut world = world(workers, &[], PlanSettings::default());
        for (i, (owner, phase)) in rows.iter().enumerate() {
            let phase = match phase {
                0 => LeasePhase::Finished,
                1 => LeasePhase::Blocked,
                _ => LeasePhase::Ready,
            };
            // A blocked shard has no reader.
            let owner = owner.filter(|_| phase != LeasePhase::Blocked).map(|owner| owner % workers);
            world.add(LeaseSnapshot { phase, ..lease(i, owner) });
        }
        let fewest = world.fewest_passes();
        let most_rounds = hand_over_rounds(&world);
        let (_, tally) = world.settle(most_rounds);
        world.check_level();
        prop_assert_eq!((tally.passes, tally.refused), (fewest, 0));
    }

    /// Stale polls cost refused writes and time, but no wrong take and few moves.
    #[test]
    fn workers_with_old_looks_settle_too(
        workers in 1usize..14,
        owners in prop::collection::vec(prop::option::of(0usize..14), 0..90),
        stale_one_in in 2u32..6,
    ) {
        let mut world = world(workers, &owners, PlanSettings::default());
        world.stale_one_in = Some(stale_one_in);
        let fewest = world.fewest_passes();
        let most_rounds = 30 + 4 * hand_over_rounds(&world);
        let (_, tally) = world.settle(most_rounds);
        world.check_level();
        prop_assert!(tally.passes <= fewest + tally.refused, "{:?}, fewest {}", tally, fewest);
    }

    /// Joins, departures, deaths, splits and ends, one after the other.
    #[test]
    fn a_fleet_is_level_after_every_change(
        events in prop::collection::vec((0u8..6, 0usize..100), 1..12),
    ) {
        let mut world = world(3, &[None; 30], PlanSettings::default());
        world.settle(10);
        let mut names = 3;
        for (event, n) in events {
            let living = world.living();
            let victim = &living[n % living.len()];
            match event {
                0 | 1 => {
                    world.join(names);
                    names += 1;
                }
                2 if living.len() > 1 => world.leave(victim),
                3 if living.len() > 1 => world.processes.get_mut(victim).unwrap().dead = true,
                4 => split(&mut world, n),
                _ => end(&mut world, n),
            }
            // A death is noticed after a lease time.
            let most_rounds = LEASE_ROUNDS + 20 + hand_over_rounds(&world);
            world.pass_rounds(LEASE_ROUNDS + 1);
            world.settle(most_rounds);
            world.check_level();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    /// Each worker has a lease time of its own, half of [`LEASE_TIME`] times this.
    #[test]
    fn a_worker_is_fenced_after_its_own_lease_time_and_only_if_it_is_dead(
        halves in prop::collection::vec(1u64..13, 2..7),
        victim in 0usize..7,
    ) {
        let mut world = SimulatedFleet::new(PlanSettings::default(), 5);
        for (i, halves) in halves.iter().enumerate() {
            world.join_for(i, halves * LEASE_TIME / 2);
        }
        (0..30).for_each(|i| world.add(lease(i, None)));
        world.pass_rounds(10 * LEASE_ROUNDS);
        let victim = victim % halves.len();
        world.processes.get_mut(&worker_id(victim)).unwrap().dead = true;
        let own_rounds = usize::try_from(halves[victim]).unwrap() * LEASE_ROUNDS / 2;
        // Its last heartbeat was up to a third of its lease time ago.
        let tally = world.pass_rounds(own_rounds * 2 / 3 - 1);
        prop_assert_eq!(tally.fences, 0);
        // Watchers differ by up to a fifth of the lease time.
        let tally = world.pass_rounds(own_rounds * 8 / 15 + 3);
        prop_assert_eq!(tally.fences, 1);
        prop_assert_eq!(world.workers[&worker_id(victim)].status, WorkerStatus::Fenced);
        world.settle(60);
        world.check_level();
    }
}

/// Runs turns until every lease is owned. Returns the tally.
fn take_all(
    world: &mut SimulatedFleet,
    most: usize,
    mut each: impl FnMut(&mut SimulatedFleet),
) -> RoundTally {
    let mut total = RoundTally::default();
    for _ in 0..100_000 {
        each(world);
        total.add(world.turn(most));
        if world.leases.values().all(|row| row.owner.is_some()) {
            return total;
        }
    }
    panic!("not owned: {:?}", world.counts());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// No worker knows the progress of the others, and no write is refused.
    #[test]
    fn workers_that_look_at_different_moments_never_want_the_same_free_lease(
        workers in 1usize..14,
        owners in prop::collection::vec(prop::option::weighted(0.2, 0usize..14), 0..200),
        most in 1usize..40,
    ) {
        // Leases held beyond a share would be requested and handed over, which is not tested here.
        let share = owners.len() / workers;
        let mut held = vec![0; workers];
        let owners: Vec<_> = owners.into_iter().map(|owner| {
            let owner = owner? % workers;
            held[owner] += 1;
            (held[owner] <= share).then_some(owner)
        }).collect();
        let mut world = world(workers, &owners, PlanSettings::default());
        let free = owners.iter().filter(|owner| owner.is_none()).count();
        let tally = take_all(&mut world, most, |_| {});
        world.check_level();
        prop_assert_eq!((tally.takes, tally.refused, tally.passes), (free, 0, 0));
    }
}

#[test]
fn a_fleet_that_joins_bit_by_bit_is_seldom_in_its_own_way() {
    // Turns between two joins, and the refused takes allowed, in percent of the successful ones.
    for (turns, percent) in [(0, 0), (20, 0), (39, 0), (60, 10), (200, 10), (1_000, 10)] {
        let mut world = SimulatedFleet::new(PlanSettings::default(), 3);
        (0..1_000).for_each(|i| world.add(lease(i, None)));
        world.join(0);
        let (mut turn, mut joined) = (0, 1);
        let tally = take_all(&mut world, 16, |world| {
            while joined < 10 && turn >= joined * turns {
                world.join(joined);
                joined += 1;
            }
            turn += 1;
        });
        let refused = tally.refused * 100;
        assert!(refused <= tally.takes * percent, "a join every {turns} turns: {tally:?}");
    }
}

/// A fleet in which worker `i` reads the streams `reads[i]`, and the number of leases of each
/// stream.
fn divided(reads: &[&[&str]], streams: &[(&str, usize)], settings: PlanSettings) -> SimulatedFleet {
    let mut world = SimulatedFleet::new(settings, 5);
    for (i, streams) in reads.iter().enumerate() {
        world.join(i);
        let streams = streams.iter().map(|stream| (*stream).into()).collect();
        world.workers.get_mut(&worker_id(i)).unwrap().reads = Some(streams);
    }
    for (stream, leases) in streams {
        for i in 0..*leases {
            let key = LeaseKey::new(*stream, format!("shardId-{i:012}"));
            world.add(LeaseSnapshot { key, ..lease(i, None) });
        }
    }
    world
}

#[test]
fn a_lease_goes_at_once_to_a_worker_that_reads_its_stream() {
    // The streams that each worker reads, the leases of each stream, and the final count of each
    // worker.
    type Case =
        (&'static [&'static [&'static str]], &'static [(&'static str, usize)], &'static [usize]);
    let cases: [Case; 5] = [
        (&[&["s"], &["s"], &["s", "t"], &["s", "t"]], &[("s", 8), ("t", 6)], &[2, 2, 5, 5]),
        (&[&["s"], &["t"]], &[("s", 5), ("t", 7)], &[5, 7]),
        (&[&[], &["s"]], &[("s", 4)], &[0, 4]),
        (&[&["s", "t"], &["s", "t"]], &[("s", 3), ("t", 3)], &[3, 3]),
        // No worker reads u.
        (&[&["s"], &["s"]], &[("s", 2), ("u", 3)], &[1, 1]),
    ];
    for (reads, streams, expected) in cases {
        let mut world = divided(reads, streams, PlanSettings::default());
        let (rounds, tally) = world.settle(6);
        let counts: Vec<_> = world.counts().into_values().collect();
        assert_eq!(counts, expected, "{reads:?} of {streams:?} after {rounds} rounds");
        assert_eq!((tally.refused, tally.passes), (0, 0), "{tally:?}");
    }
}

#[test]
fn a_stream_that_a_worker_no_longer_reads_goes_to_the_others() {
    let mut world =
        divided(&[&["s", "t"], &["s", "t"]], &[("s", 4), ("t", 4)], PlanSettings::default());
    world.settle(6);
    world.workers.get_mut(&worker_id(0)).unwrap().reads = Some(vec!["s".into()]);
    // It releases its drained leases, and is never asked to take them again.
    let gone: Vec<_> =
        world.leases.values_mut().filter(|row| row.key.stream.as_str() == "t").collect();
    for row in gone {
        if row.owner.take_if(|owner| *owner == worker_id(0)).is_some() {
            row.counter += 1;
        }
    }
    let (_, tally) = world.settle(30);
    let counts: Vec<_> = world.counts().into_values().collect();
    assert_eq!(counts, [2, 6], "{tally:?}");
}

#[test]
fn no_worker_has_more_than_the_maximum_however_many_streams_it_reads() {
    let settings = PlanSettings { max_leases: 5, ..PlanSettings::default() };
    let mut world = divided(&[&["s", "t"], &["s"], &["t"]], &[("s", 9), ("t", 9)], settings);
    world.pass_rounds(4 * LEASE_ROUNDS);
    // Worker 0 reaches the maximum with the leases of both streams.
    let counts: Vec<_> = world.counts().into_values().collect();
    assert!(counts.iter().all(|count| *count <= 5) && counts[0] == 5, "{counts:?}");
}

#[test]
fn a_lease_that_does_not_fit_in_a_worker_with_other_streams_waits_a_lease_time_for_another() {
    let settings = PlanSettings { max_leases: 5, ..PlanSettings::default() };
    let mut world = divided(&[&["s", "t"], &["s"], &["t"]], &[("s", 6), ("t", 6)], settings);
    world.pass_rounds(LEASE_ROUNDS + 4);
    let free: Vec<_> = world.leases.values().filter(|row| row.owner.is_none()).collect();
    assert!(free.is_empty(), "{free:?}");
    // Then nothing moves any more, although the shares differ.
    (0..4 * LEASE_ROUNDS).for_each(|_| assert_eq!(world.round().planned, 0));
}

#[test]
fn a_shard_that_waited_long_for_its_parents_is_no_more_urgent_than_another() {
    let mut world = world(10, &[None; 40], PlanSettings::default());
    world.settle(10);
    for i in 40..50 {
        world.add(LeaseSnapshot { phase: LeasePhase::Blocked, ..lease(i, None) });
    }
    world.pass_rounds(4 * LEASE_ROUNDS);
    world.leases.values_mut().for_each(|row| row.phase = LeasePhase::Ready);
    let tally = world.round();
    assert_eq!((tally.takes, tally.refused), (10, 0), "each goes to one worker: {tally:?}");
}

fn end(world: &mut SimulatedFleet, n: usize) {
    let at = n % world.leases.len();
    world.leases.values_mut().nth(at).unwrap().phase = LeasePhase::Finished;
}

/// Ends a shard and adds two readable children.
fn split(world: &mut SimulatedFleet, n: usize) {
    end(world, n);
    let next = world.leases.len();
    world.add(lease(next, None));
    world.add(lease(next + 1, None));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    #[test]
    fn large_fleets_settle_by_the_fewest_moves(
        workers in 200usize..=300,
        owners in prop::collection::vec(prop::option::of(0usize..300), 1000..=2000),
    ) {
        check_settles(workers, &owners);
    }
}

#[test]
fn a_row_of_a_fenced_worker_without_leases_changes_nothing() {
    let mut world = world(3, &[None; 9], PlanSettings::default());
    world.settle(10);
    let old = WorkerSnapshot {
        id: "old".into(),
        counter: 3,
        status: WorkerStatus::Fenced,
        reads: None,
        lease_time_ms: None,
    };
    world.workers.insert(old.id.clone(), old);
    let (rounds, _) = world.settle(10);
    assert_eq!(rounds, 0);
}
