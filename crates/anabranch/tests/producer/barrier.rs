//! The barrier: whenever the shard map changes, no record overtakes those in flight.

use crate::machine::{HIGH, LOW, MachineFixture, halves};
use anabranch_model::hash::{HashKey, HashRange};
use anabranch_model::produce::settings::ProducerSettings;
use anabranch_model::retry::Fault;

/// A hash in the upper half of the lower half of the hash range.
const MIDDLE: HashKey = HashKey(3 << 125);

/// Returns the two halves of the lower half, and the upper half.
fn thirds() -> [HashRange; 3] {
    let [low, high] = halves();
    let (lowest, middle) = low.split_at(HashKey(1 << 126)).unwrap();
    [lowest, middle, high]
}

/// Returns a machine that knows shards with these ranges.
fn knowing(ranges: &[HashRange], change: impl FnOnce(&mut ProducerSettings)) -> MachineFixture {
    let mut bench = MachineFixture::new(change);
    bench.run(0);
    bench.list(ranges);
    bench
}

/// Puts records, and returns the request that carries them.
fn send(bench: &mut MachineFixture, records: &[(&'static str, HashKey)]) -> u64 {
    for (name, hash) in records {
        bench.put(name, *hash);
    }
    bench.run(0);
    let (request, entries) = bench.carried().remove(0);
    assert_eq!(entries.concat().len(), records.len(), "all of them leave: {entries:?}");
    request
}

/// Makes the machine request a list: records of the upper half are placed in shard 7.
fn have_a_list_read(bench: &mut MachineFixture) {
    let stray = send(bench, &[("x", HIGH), ("y", HashKey(HIGH.0 - 1))]);
    bench.place(stray, &[7]);
    assert_eq!(bench.reads.len(), 1, "shard 7 is not known");
}

fn carried(bench: &mut MachineFixture) -> Vec<Vec<String>> {
    bench.carried().into_iter().flat_map(|(_, entries)| entries).collect()
}

fn waits(bench: &mut MachineFixture, why: &str) {
    let sent = carried(bench);
    assert_eq!(sent, Vec::<Vec<String>>::new(), "{why}");
}

#[test]
fn the_first_map_lets_nothing_pass_what_left_without_one() {
    let mut bench = MachineFixture::new(|_| {});
    bench.run(0);
    let alone = send(&mut bench, &[("a1", LOW)]);
    bench.put("a2", LOW);
    bench.list(&[HashRange::ALL]);
    bench.put("b1", HIGH);
    bench.run(0);
    waits(&mut bench, "the shard's lane waits for the hash's");
    bench.refuse(alone, Fault::Throttled);
    assert_eq!(carried(&mut bench), [["a1", "a2", "b1"]], "what failed goes first");
}

#[test]
fn the_children_of_a_split_wait_until_the_parents_container_is_judged() {
    let [low, high] = halves();
    let [lowest, middle, _] = thirds();
    let mut bench = knowing(&[low, high], |_| {});
    let parent = send(&mut bench, &[("l1", LOW), ("m1", MIDDLE)]);
    bench.put("l2", LOW);
    bench.put("m2", MIDDLE);
    have_a_list_read(&mut bench);
    let after = [(2, lowest), (3, middle), (7, high)];
    bench.list_shards(&after);
    waits(&mut bench, "both children wait for the container on its way");
    bench.place(parent, &[2]);
    waits(&mut bench, "and until it is judged");
    bench.list_shards(&after);
    let mut sent = carried(&mut bench);
    sent.sort();
    assert_eq!(sent, [["l1", "l2"], ["m1", "m2"]], "re-cut, ahead of newer records");
}

#[test]
fn a_merged_shard_waits_for_what_left_for_both_of_its_parents() {
    let [lowest, middle, high] = thirds();
    let mut bench = knowing(&[lowest, middle, high], |_| {});
    let first = send(&mut bench, &[("l1", LOW)]);
    let second = send(&mut bench, &[("m1", MIDDLE)]);
    bench.put("m2", MIDDLE);
    bench.put("l2", LOW);
    have_a_list_read(&mut bench);
    bench.list_shards(&[(8, halves()[0]), (7, high)]);
    waits(&mut bench, "two containers are on their way");
    bench.place(first, &[0]);
    waits(&mut bench, "one still is");
    bench.refuse(second, Fault::Internal);
    assert_eq!(carried(&mut bench), [["m1", "m2", "l2"]]);
}

#[test]
fn a_dropped_map_lets_no_hash_pass_what_left_for_its_shard() {
    let mut bench = MachineFixture::with_map(|settings| settings.map_idle_ms = 1_000);
    let shard = send(&mut bench, &[("l1", LOW), ("h1", HIGH)]);
    bench.put("l2", LOW);
    bench.run(2_000);
    assert_eq!(bench.reads.len(), 1, "the map is dropped, and asked for");
    waits(&mut bench, "the hash's lane waits for the shard's");
    bench.refuse(shard, Fault::ReplyLost);
    let mut sent = carried(&mut bench);
    sent.sort();
    assert_eq!(sent, [vec!["h1"], vec!["l1", "l2"]], "one hash, one container");
}

#[test]
fn a_list_that_was_asked_for_before_the_reply_judges_nothing() {
    let [low, high] = halves();
    let [lowest, middle, _] = thirds();
    let mut bench = knowing(&[low, high], |_| {});
    let parent = send(&mut bench, &[("l1", LOW), ("m1", MIDDLE)]);
    have_a_list_read(&mut bench);
    // While that list is being read, the lower half is split. The list still has its parent, under
    // an index that a shard of another stream had.
    bench.place(parent, &[2]);
    bench.list_shards(&[(2, low), (7, high)]);
    assert!(bench.is_placed("x") && bench.is_placed("y"), "those were there before the list");
    assert!(!bench.is_placed("l1") && !bench.is_placed("m1"), "these were not");
    bench.list_shards(&[(2, lowest), (3, middle), (7, high)]);
    let mut sent = carried(&mut bench);
    sent.sort();
    assert_eq!(sent, [["l1"], ["m1"]], "the newer list says that they are strays");
}
