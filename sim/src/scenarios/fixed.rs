//! Fixed scenarios that broke earlier designs or other clients.

use super::consumer_scenario::{ConsumerScenario, ScenarioSettings};
use super::report::SeedReport;
use crate::faults::CallFaultRates;
use crate::faults::host_faults::HostFault;
use crate::faults::network::Service;
use crate::flaw::consumer::ConsumerFlaw;
use crate::fleet::HandlerBehavior;
use crate::history::{HistoryEvent, HostId};
use crate::record_source::RecordMix;
use anabranch_model::lease::{LeaseChange, Write, WriteOutcome};

/// Number of shards at the start of `DeathInTheFirstSync`.
pub const FIRST_SHARDS: u32 = 6;

/// A fixed scenario.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FixedScenario {
    /// G is split into A and B, B and X are merged into M, and X is drained while G is still read:
    /// M has a row before B has one.
    MergedChildBeforeItsParent,
    /// Two generations of splits before the root is drained.
    TwoGenerations,
    /// Every worker crashes in the middle of the first sync.
    DeathInTheFirstSync,
    /// A shard passes retention unread, while the fleet is down.
    PastRetentionUnread,
    /// Every list of rows shows its halves at two moments, while shards split, merge and change
    /// hands.
    TornLists,
    /// All workers start together on an empty table, and most calls fail.
    AllStartTogether,
    /// All workers stop, the stream is resharded, and calls about it and iterators fail while they
    /// start again.
    FailuresDuringARestart,
    /// More records are available than a worker may hold, and its handlers are slow.
    FullBudget,
}

impl FixedScenario {
    /// All scenarios.
    pub const ALL: [Self; 8] = [
        Self::MergedChildBeforeItsParent,
        Self::TwoGenerations,
        Self::DeathInTheFirstSync,
        Self::PastRetentionUnread,
        Self::TornLists,
        Self::AllStartTogether,
        Self::FailuresDuringARestart,
        Self::FullBudget,
    ];
}

/// Runs a scenario.
pub fn run(story: FixedScenario, seed: u64, flaw: ConsumerFlaw) -> SeedReport {
    let full = story == FixedScenario::FullBudget;
    let shards = if story == FixedScenario::DeathInTheFirstSync { FIRST_SHARDS } else { 2 };
    let mut stage = ConsumerScenario::new(ScenarioSettings {
        seed,
        replay: format!("fixed::run({story:?}, {seed}, {flaw:?})"),
        hosts: 3,
        mix: RecordMix {
            two_streams: false,
            shards,
            keys: 12,
            bytes_max: if full { 400_000 } else { 40 },
        },
        temper: HandlerBehavior {
            lanes: vec![1, 3],
            call_ms: if full { 400 } else { 30 },
            memory_bytes: if full { 16 << 20 } else { 256 << 20 },
            ..HandlerBehavior::default()
        },
        flaw,
        ..ScenarioSettings::default()
    });
    match story {
        FixedScenario::MergedChildBeforeItsParent => merged_child(&mut stage),
        FixedScenario::TwoGenerations => two_generations(&mut stage),
        FixedScenario::DeathInTheFirstSync => death_in_the_first_sync(&mut stage),
        FixedScenario::PastRetentionUnread => past_retention(&mut stage),
        FixedScenario::TornLists => torn_lists(&mut stage),
        FixedScenario::AllStartTogether => all_start_together(&mut stage),
        FixedScenario::FailuresDuringARestart => failures_during_a_restart(&mut stage),
        FixedScenario::FullBudget => full_budget(&mut stage),
    }
    stage.quiet(None);
    stage.judge(true)
}

fn merged_child(stage: &mut ConsumerScenario) {
    stage.puts = false;
    stage.run(4_000);
    stage.put_into(0, 300);
    stage.supply().split(0);
    stage.put_into(0, 20);
    stage.put_into(1, 20);
    stage.supply().merge(1);
    stage.put_into(1, 20);
    stage.run(10_000);
}

fn two_generations(stage: &mut ConsumerScenario) {
    stage.puts = false;
    stage.run(4_000);
    stage.put_into(0, 200);
    stage.supply().split(0);
    stage.put_into(0, 20);
    stage.put_into(1, 20);
    stage.supply().split(0);
    stage.supply().split(2);
    for at in 0..4 {
        stage.put_into(at, 20);
    }
    stage.run(6_000);
}

fn death_in_the_first_sync(stage: &mut ConsumerScenario) {
    let network = stage.fleet.ground.network.clone();
    network
        .set_weather(Service::Store, CallFaultRates { latency_ms: 300, ..CallFaultRates::none() });
    let made = |stage: &ConsumerScenario| stage.fleet.ground.history.any(is_create);
    while !made(stage) && stage.world.now_ms() < 60_000 {
        stage.run(20);
    }
    for host in 0..3 {
        stage.world.apply_fault(HostFault::Crash(HostId(host), 500));
    }
    let rows = stage.rows().len();
    stage.fleet.ground.history.note_world(format!("all are dead with {rows} rows"));
    stage.run(3_000);
}

fn is_create(what: &HistoryEvent) -> bool {
    let HistoryEvent::WriteApplied {
        write: Write::Lease { change, .. },
        outcome: WriteOutcome::Done(_),
    } = what
    else {
        return false;
    };
    matches!(change, LeaseChange::Create(_))
}

fn past_retention(stage: &mut ConsumerScenario) {
    stage.run(4_000);
    stage.stop_all();
    stage.put_into(0, 50);
    stage.supply().split(0);
    stage.put_into(0, 50);
    stage.supply().split(0);
    stage.trim();
    for at in 0..3 {
        stage.put_into(at, 20);
    }
    stage.world.boot_all();
    stage.run(6_000);
}

fn torn_lists(stage: &mut ConsumerScenario) {
    // A slow reply allows rows to change in both halves.
    let torn = CallFaultRates { torn: 1_000, latency_ms: 330, ..CallFaultRates::none() };
    stage.fleet.ground.network.set_weather(Service::Store, torn);
    for round in 0..10 {
        stage.pause(2_000);
        stage.reshard();
        if round % 3 == 2 {
            let host = stage.any_host();
            stage.world.apply_fault(HostFault::Stop(host, 500));
        }
    }
    stage.run(3_000);
}

fn all_start_together(stage: &mut ConsumerScenario) {
    let bad =
        CallFaultRates { error: 500, reply_lost: 200, latency_ms: 100, ..CallFaultRates::none() };
    for service in [Service::Store, Service::Stream] {
        stage.fleet.ground.network.set_weather(service, bad.clone());
    }
    stage.run(10_000);
}

fn failures_during_a_restart(stage: &mut ConsumerScenario) {
    stage.run(4_000);
    stage.reshard();
    stage.stop_all();
    let bad = CallFaultRates { error: 800, latency_ms: 20, ..CallFaultRates::none() };
    stage.fleet.ground.network.set_weather(Service::Stream, bad);
    stage.run(500);
    stage.reshard();
    stage.world.boot_all();
    stage.run(12_000);
}

fn full_budget(stage: &mut ConsumerScenario) {
    stage.puts = false;
    for at in 0..2 {
        stage.put_into(at, 100);
    }
    stage.run(8_000);
    stage.reshard();
    stage.put_into(0, 50);
    stage.run(8_000);
}
