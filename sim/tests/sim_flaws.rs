//! Tests of the tests: each flaw is detected within 500 seeds, by a guarantee that it breaks.

use anabranch_model::lease::Layout;
use anabranch_sim::checkers::{
    self, checkpoint, content, delivery, duplicates, effects, fencing, lease_validity, lineage,
    liveness, memory, order, ownership, resumption,
};
use anabranch_sim::flaw::LeaseFlaw;
use anabranch_sim::flaw::consumer::ConsumerFlaw;
use anabranch_sim::modes::SimMode;
use anabranch_sim::scenarios::fixed::{self, FixedScenario};
use anabranch_sim::scenarios::producer::{self, ProducerFlaw};
use anabranch_sim::scenarios::{SeedReport, consumer, consumer_scenario, leases};
use anabranch_sim::seeds;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Maximum number of seeds to detect a flaw.
const SEEDS: u64 = 500;

/// Maximum number of records in a batch.
const BATCH: usize = 10;

/// Minimum number of flaws.
const FLAWS: usize = 25;

/// A deliberate flaw, and the scenario in which it runs.
#[derive(Clone, Copy)]
enum PlantedFlaw {
    /// A rule of the lease protocol, with simulated readers.
    Lease(Layout, LeaseFlaw),
    /// A rule of whole consumers.
    Consumer(ConsumerFlaw),
    /// A rule of whole consumers, with batches.
    InBatches(ConsumerFlaw),
    /// A rule of whole consumers, in a fixed scenario in which it matters.
    InStory(FixedScenario, ConsumerFlaw),
    /// A rule of producers.
    Producer(ProducerFlaw),
}

impl PlantedFlaw {
    fn name(self) -> String {
        match self {
            Self::Lease(Layout::Native, flaw) => flaw.to_string(),
            Self::Lease(Layout::Kcl, flaw) => format!("{flaw} in KCL's layout"),
            Self::Consumer(flaw) | Self::InStory(_, flaw) => flaw.to_string(),
            Self::InBatches(flaw) => format!("{flaw} in batches"),
            Self::Producer(wrong) => wrong.to_string(),
        }
    }

    fn run(self, seed: u64) -> SeedReport {
        let run = || match self {
            Self::Lease(layout, flaw) => leases::run(seed, layout, flaw),
            Self::Consumer(flaw) => consumer::run(seed, flaw),
            Self::InBatches(flaw) => consumer::run_in(seed, flaw, Some(SimMode::Batches(BATCH))),
            Self::InStory(story, flaw) => fixed::run(story, seed, flaw),
            Self::Producer(wrong) => producer::run(seed, wrong),
        };
        // A flaw may cause a panic in the library, which does not prove that a checker detects it.
        catch_unwind(AssertUnwindSafe(run))
            .unwrap_or_else(|_| SeedReport::panicked(seed, self.name(), "the run panicked"))
    }
}

/// Guarantees first broken by records that are lost, or counted as done too early.
const LOSS: &[&str] = &[order::PROMISE, lineage::PROMISE, checkpoint::PROMISE, delivery::PROMISE];

/// Guarantees broken by a child that starts before its parents have ended.
const EARLY_CHILD: &[&str] = &[order::PROMISE, lineage::PROMISE];

/// Guarantees first broken by two owners at once: deliveries overlap, are out of order, or are
/// duplicated.
const TWO_OWNERS: &[&str] = &[ownership::PROMISE, order::PROMISE, duplicates::PROMISE];

/// A case: its area, the flaw, and the guarantees of which it must break one.
type Case = (&'static str, PlantedFlaw, &'static [&'static str]);

/// Returns all cases.
fn flaws() -> Vec<Case> {
    let mut flaws = lease_flaws();
    flaws.extend(consumer_flaws());
    flaws.extend(producer_flaws());
    flaws
}

fn lease_flaws() -> Vec<Case> {
    let own = |flaw| PlantedFlaw::Lease(Layout::Native, flaw);
    let kcl = |flaw| PlantedFlaw::Lease(Layout::Kcl, flaw);
    vec![
        ("lease", own(LeaseFlaw::SkipsTermCheck), &[ownership::PROMISE]),
        ("lease", own(LeaseFlaw::RenewsAfterExpiry), &[ownership::PROMISE]),
        ("lease", own(LeaseFlaw::TakesWithoutFence), &[ownership::PROMISE]),
        ("lease", own(LeaseFlaw::FencesNewerCounter), &[ownership::PROMISE]),
        ("lease", own(LeaseFlaw::DeadlineFromReply), &[ownership::PROMISE]),
        ("lease", own(LeaseFlaw::TakesFromLiveOwner), &[ownership::PROMISE]),
        ("lease", own(LeaseFlaw::DeliversAfterHandOver), &[ownership::PROMISE]),
        ("lease", own(LeaseFlaw::ReusesWorkerId), &[ownership::PROMISE]),
        ("lease", own(LeaseFlaw::UsesOwnLeaseTime), &[ownership::PROMISE]),
        ("lease", own(LeaseFlaw::CheckpointSkipsWhatItReplaces), &[fencing::PROMISE]),
        (
            "lease",
            own(LeaseFlaw::ReadBackComparesCounterOnly),
            &[ownership::PROMISE, fencing::PROMISE, resumption::PROMISE],
        ),
        ("lease", kcl(LeaseFlaw::RenewsAfterExpiry), &[lease_validity::PROMISE]),
        ("lease", kcl(LeaseFlaw::SkipsTermCheck), &[fencing::PROMISE]),
    ]
}

fn consumer_flaws() -> Vec<Case> {
    use PlantedFlaw::{Consumer, InBatches, InStory};
    vec![
        ("gate", Consumer(ConsumerFlaw::StartsAfterOneParent), EARLY_CHILD),
        (
            "gate",
            InStory(
                FixedScenario::MergedChildBeforeItsParent,
                ConsumerFlaw::MissingRowCountsAsEnded,
            ),
            EARLY_CHILD,
        ),
        ("sync", Consumer(ConsumerFlaw::ChildAtLatest), LOSS),
        ("sync", Consumer(ConsumerFlaw::ForgetsAChild), LOSS),
        ("checkpoint", Consumer(ConsumerFlaw::AcksWithoutStoring), &[fencing::PROMISE]),
        ("checkpoint", Consumer(ConsumerFlaw::KeepsLatest), LOSS),
        ("checkpoint", Consumer(ConsumerFlaw::UnknownCountsAsStored), &[fencing::PROMISE]),
        ("checkpoint", Consumer(ConsumerFlaw::StoresTheFurthestLane), &[checkpoint::PROMISE]),
        (
            "checkpoint",
            Consumer(ConsumerFlaw::StoresTheSlowestLane),
            &[duplicates::PROMISE, fencing::PROMISE],
        ),
        ("checkpoint", Consumer(ConsumerFlaw::EndsTooEarly), &[checkpoint::PROMISE]),
        ("hand-over", Consumer(ConsumerFlaw::PassesBeforeTheDrain), TWO_OWNERS),
        ("hand-over", Consumer(ConsumerFlaw::TakesFromALiveOwner), TWO_OWNERS),
        ("hand-over", Consumer(ConsumerFlaw::OldSessionGoesOn), &[ownership::PROMISE]),
        ("coordinator", Consumer(ConsumerFlaw::GoesOnWhenFenced), &[ownership::PROMISE]),
        (
            "coordinator",
            Consumer(ConsumerFlaw::HidesALease),
            &[liveness::PROMISE, consumer_scenario::LIVENESS],
        ),
        ("coordinator", Consumer(ConsumerFlaw::NeverAsks), &[liveness::PROMISE]),
        ("fetch", Consumer(ConsumerFlaw::DropsTheLast), LOSS),
        ("fetch", Consumer(ConsumerFlaw::DropsTheLastPushed), LOSS),
        ("fetch", Consumer(ConsumerFlaw::ReversesAReply), LOSS),
        ("fetch", Consumer(ConsumerFlaw::RepeatsAReply), &[duplicates::PROMISE]),
        ("fetch", Consumer(ConsumerFlaw::RenewsAtLatest), LOSS),
        ("fetch", Consumer(ConsumerFlaw::BeginsAtLatest), LOSS),
        ("fetch", Consumer(ConsumerFlaw::EndsOneReplyEarly), LOSS),
        ("decode", Consumer(ConsumerFlaw::DropsTheLastPart), LOSS),
        ("decode", Consumer(ConsumerFlaw::CutsData), &[content::PROMISE]),
        ("lanes", Consumer(ConsumerFlaw::SkipsWhatFailed), LOSS),
        (
            "lanes",
            Consumer(ConsumerFlaw::AcksBeforeItIsDone),
            &[order::PROMISE, checkpoint::PROMISE],
        ),
        ("lanes", Consumer(ConsumerFlaw::SkipsARecord), LOSS),
        ("lanes", Consumer(ConsumerFlaw::DeliversTwice), &[duplicates::PROMISE]),
        ("lanes", Consumer(ConsumerFlaw::SwapsNeighbours), &[order::PROMISE]),
        ("lanes", InBatches(ConsumerFlaw::SkipsWhatFailed), LOSS),
        ("lanes", InBatches(ConsumerFlaw::SkipsARecord), LOSS),
        ("lanes", InBatches(ConsumerFlaw::DeliversTwice), &[duplicates::PROMISE]),
        ("lanes", InBatches(ConsumerFlaw::SwapsNeighbours), &[order::PROMISE]),
        (
            "memory",
            InStory(FixedScenario::FullBudget, ConsumerFlaw::IgnoresItsBudget),
            &[memory::PROMISE],
        ),
        ("dead letters", Consumer(ConsumerFlaw::LosesDeadLetter), &[delivery::DEAD_LETTERS]),
        ("dead letters", Consumer(ConsumerFlaw::CutsDeadLetter), &[delivery::DEAD_LETTERS]),
        ("exactly-once", Consumer(ConsumerFlaw::KeepsRefusedEffects), &[effects::PROMISE]),
        ("exactly-once", Consumer(ConsumerFlaw::CommitsOverAnyRow), &[effects::PROMISE]),
    ]
}

fn producer_flaws() -> Vec<Case> {
    use PlantedFlaw::Producer;
    vec![
        ("producer", Producer(ProducerFlaw::NoOrder), &[checkers::producer::ORDER]),
        ("producer", Producer(ProducerFlaw::GoOn), &[checkers::producer::HOLES]),
        (
            "producer",
            Producer(ProducerFlaw::SendsLate),
            &[checkers::producer::ORDER, checkers::producer::PLACED],
        ),
        ("producer", Producer(ProducerFlaw::PlacedForRefused), &[checkers::producer::PLACED]),
        (
            "producer",
            Producer(ProducerFlaw::LosesAnEntry),
            &[checkers::producer::ORDER, checkers::producer::PLACED],
        ),
        ("producer", Producer(ProducerFlaw::SendsWhatItGaveUp), &[checkers::producer::REJECTED]),
        ("producer", Producer(ProducerFlaw::LostReplyIsARefusal), &[checkers::producer::REJECTED]),
        (
            "producer",
            Producer(ProducerFlaw::Misroutes),
            &[checkers::producer::ORDER, checkers::producer::PLACED],
        ),
        ("producer", Producer(ProducerFlaw::CompletesTwice), &[checkers::producer::ONE_OUTCOME]),
    ]
}

#[test]
fn every_flaw_is_noticed_by_a_promise_that_it_breaks() {
    let (mut table, mut wrong) = (Vec::new(), Vec::new());
    let flaws = flaws();
    for (area, broken, promises) in &flaws {
        let name = broken.name();
        let is_own = |words: &str| promises.iter().any(|promise| words.contains(promise));
        let goes_on = |report: &SeedReport| {
            !report
                .violation
                .as_ref()
                .is_some_and(|violation| promises.contains(&violation.promise))
        };
        let summary = seeds::run(0..SEEDS, |seed| broken.run(seed), |_, report| goes_on(report));
        let firsts = summary
            .broken
            .iter()
            .map(|(seed, story)| (*seed, story.lines().next().unwrap_or_default(), story));
        match firsts.clone().find(|(_, first, _)| is_own(first)) {
            Some((seed, first, _)) => {
                table.push(format!("{area:<12} {name:<44} {:>4} seeds  {first:.120}", seed + 1));
            }
            None => wrong.push(match firsts.clone().next() {
                Some((_, _, story)) => format!("{name} was noticed otherwise: {story}"),
                None => format!("{name} went unnoticed in {SEEDS} seeds"),
            }),
        }
    }
    println!("{}\n{} flaws", table.join("\n"), flaws.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn every_flaw_is_tried() {
    let flaws = flaws();
    let tried = |name: String| flaws.iter().any(|(_, broken, _)| broken.name() == name);
    let all = LeaseFlaw::ALL.map(|flaw| flaw.to_string()).into_iter();
    let all = all.chain(ConsumerFlaw::ALL.map(|flaw| flaw.to_string()));
    let all = all.chain(ProducerFlaw::ALL.map(|wrong| wrong.to_string()));
    let missing: Vec<String> = all.filter(|name| !tried(name.clone())).collect();
    assert!(missing.is_empty(), "nobody tries {missing:?}");
    assert!(flaws.len() >= FLAWS, "{} flaws", flaws.len());
}
