//! Random histories of a stream and of the fleet that reads it. No key may be read before its
//! ancestors, and no open key may be left without a reader.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod fleet;
mod stream;

use anabranch_model::coverage::holes;
use fleet::{HistoryCounts, HistoryFleet, LeaseHistoryFlaw};
use stream::{SeededRng, Stream};

/// Maximum number of random steps in a history, and of steps that it may take to come to rest.
const WILD_STEPS: u64 = 160;
const REST_STEPS: usize = 4_000;

/// Plays the history of one seed. The error describes the violation and when it occurred.
fn play(seed: u64, flaw: LeaseHistoryFlaw) -> Result<HistoryCounts, String> {
    let mut dice = SeededRng::new(seed);
    let mut stream = Stream::new(&mut dice);
    for _ in 0..dice.below(12) {
        stream.change(&mut dice);
    }
    let mut fleet = HistoryFleet::start(&mut stream, &mut dice, flaw);
    // Some histories end early, in all stages of a reshard.
    for _ in 0..dice.below(WILD_STEPS) {
        match dice.below(10) {
            0 | 1 => stream.change(&mut dice),
            2 if dice.one_in(2) => fleet.crash(&mut dice),
            3 if dice.one_in(4) => fleet.audit(&stream, &mut dice),
            4 => fleet.delete_a_tombstone(&stream, &mut dice),
            _ => fleet.step(&stream, &mut dice)?,
        }
    }
    for _ in 0..REST_STEPS {
        if fleet.is_at_rest(&stream) {
            fleet.check_nothing_is_lost(&stream)?;
            return Ok(fleet.seen);
        }
        fleet.step(&stream, &mut dice)?;
    }
    Err(format!("no rest after {REST_STEPS} quiet steps: {}", fleet.describe(&stream)))
}

#[test]
fn no_key_is_read_before_its_ancestors_and_no_open_key_is_left_out() {
    let mut seen = HistoryCounts::default();
    for seed in 0..3_000 {
        match play(seed, LeaseHistoryFlaw::None) {
            Ok(more) => seen += more,
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    // The histories are useful only if they contain the hard cases.
    let HistoryCounts { merges_started, waited_for_ancestor, waited_for_unlisted, .. } = seen;
    assert!(merges_started > 1_000, "{seen:?}");
    assert!(waited_for_ancestor > 1_000, "{seen:?}");
    assert!(waited_for_unlisted > 20, "{seen:?}");
    assert!(seen.opened_without_row > 1_000, "{seen:?}");
    assert!(seen.lost_shards > 100 && seen.repairs > 20, "{seen:?}");
    assert!(seen.lost_rangeless > 100, "{seen:?}");
}

/// With any list of the service, keys are found only for shards that are gone by then, and none of
/// their own is missing.
#[test]
fn the_keys_of_a_lost_shard_are_never_fewer_than_it_took() {
    let (mut found, mut exact) = (0u32, 0u32);
    for seed in 0..2_000 {
        let mut dice = SeededRng::new(seed);
        let mut stream = Stream::new(&mut dice);
        for _ in 0..dice.below(40) {
            stream.change(&mut dice);
        }
        let list = stream.any_list(&mut dice);
        for shard in stream.all() {
            let keys = list.keys_of_lost(&shard.id).unwrap_or_default();
            let is_gone = !list.names(&shard.id) && !stream.knows(&shard.id);
            let Some(heirs) = list.successors(&shard.id, None) else {
                assert!(keys.is_empty(), "seed {seed}: {} of {keys:?}", shard.id);
                continue;
            };
            assert!(is_gone, "seed {seed}: {} is there", shard.id);
            let holes = holes(keys.iter().copied());
            let left_out = holes.iter().any(|hole| hole.overlaps(&shard.range));
            assert!(!left_out, "seed {seed}: {} took {:?}, not {keys:?}", shard.id, shard.range);
            let heirs: Vec<_> = heirs.iter().map(|heir| &heir.id).collect();
            let known = list.successors(&shard.id, Some(&shard.range)).expect("it is gone");
            assert!(known.iter().all(|heir| heirs.contains(&&heir.id)), "seed {seed}: {heirs:?}");
            found += 1;
            exact += u32::from(known.len() == heirs.len());
        }
    }
    // A current list finds all gone shards.
    assert!(found > 5_000 && exact > found / 2, "{exact} of {found}");
}

/// The histories must find each of these flaws, or they prove nothing.
#[test]
fn a_flawed_gate_is_found_out() {
    for flaw in [
        LeaseHistoryFlaw::OneParentSuffices,
        LeaseHistoryFlaw::MissingRowIsAnEnd,
        LeaseHistoryFlaw::NewestRowFirst,
        LeaseHistoryFlaw::UnlistedRowsDoNotCount,
        LeaseHistoryFlaw::EndBeforeTheChildrensRows,
    ] {
        let found = (0..20_000).find_map(|seed| play(seed, flaw).err().map(|why| (seed, why)));
        let Some((seed, why)) = found else { panic!("{flaw:?} was not found out") };
        println!("{flaw:?} found by seed {seed}: {why}");
    }
}
