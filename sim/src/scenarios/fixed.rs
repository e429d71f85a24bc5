//! Stories that broke earlier designs or other clients, each played on purpose.

use super::report::Report;
use super::stage::{Setting, Stage};
use crate::faults::Weather;
use crate::faults::chaos::Blow;
use crate::faults::network::Service;
use crate::flaw::consumer::ConsumerFlaw;
use crate::fleet::Temper;
use crate::history::{HostId, What};
use crate::supply::Mix;
use anabranch_model::lease::{LeaseChange, WriteOutcome, Write};

/// How many shards the stream begins with whose first sync nobody survives.
pub const FIRST_SHARDS: u32 = 6;

/// A story that is played on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Story {
    /// G becomes A and B, B and X become M, and X is drained while G is still read: M has a row
    /// before B has one.
    MergedChildBeforeItsParent,
    /// Two generations of splits before the root is drained.
    TwoGenerations,
    /// Every worker dies in the middle of the first sync.
    DeathInTheFirstSync,
    /// A shard passes retention unread, while the fleet is down.
    PastRetentionUnread,
    /// Every list of rows shows its halves at two moments, while shards split, merge and change hands.
    TornLists,
    /// All workers start together on an empty table, and most calls fail.
    AllStartTogether,
    /// All stop, the stream is resharded, and calls about it and iterators fail while they start again.
    FailuresDuringARestart,
    /// More records wait than a worker may hold, and its handlers are slow.
    FullBudget,
}

impl Story {
    /// Every story.
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

/// Plays a story.
pub fn run(story: Story, seed: u64, flaw: ConsumerFlaw) -> Report {
    let full = story == Story::FullBudget;
    let shards = if story == Story::DeathInTheFirstSync { FIRST_SHARDS } else { 2 };
    let mut stage = Stage::new(Setting {
        seed,
        replay: format!("fixed::run({story:?}, {seed}, {flaw:?})"),
        hosts: 3,
        mix: Mix {
            two_streams: false,
            shards,
            keys: 12,
            bytes_max: if full { 400_000 } else { 40 },
        },
        temper: Temper {
            lanes: vec![1, 3],
            call_ms: if full { 400 } else { 30 },
            memory_bytes: if full { 16 << 20 } else { 256 << 20 },
            ..Temper::default()
        },
        flaw,
        ..Setting::default()
    });
    match story {
        Story::MergedChildBeforeItsParent => merged_child(&mut stage),
        Story::TwoGenerations => two_generations(&mut stage),
        Story::DeathInTheFirstSync => death_in_the_first_sync(&mut stage),
        Story::PastRetentionUnread => past_retention(&mut stage),
        Story::TornLists => torn_lists(&mut stage),
        Story::AllStartTogether => all_start_together(&mut stage),
        Story::FailuresDuringARestart => failures_during_a_restart(&mut stage),
        Story::FullBudget => full_budget(&mut stage),
    }
    stage.quiet(None);
    stage.judge(true)
}

fn merged_child(stage: &mut Stage) {
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

fn two_generations(stage: &mut Stage) {
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

fn death_in_the_first_sync(stage: &mut Stage) {
    let network = stage.fleet.ground.network.clone();
    network.set_weather(Service::Store, Weather { latency_ms: 300, ..Weather::fair() });
    let made = |stage: &Stage| stage.fleet.ground.history.any(is_create);
    while !made(stage) && stage.world.now_ms() < 60_000 {
        stage.run(20);
    }
    for host in 0..3 {
        stage.world.befall(Blow::Crash(HostId(host), 500));
    }
    let rows = stage.rows().len();
    stage.fleet.ground.history.note_world(format!("all are dead with {rows} rows"));
    stage.run(3_000);
}

fn is_create(what: &What) -> bool {
    let What::Landed { write: Write::Lease { change, .. }, outcome: WriteOutcome::Done(_) } = what
    else {
        return false;
    };
    matches!(change, LeaseChange::Create(_))
}

fn past_retention(stage: &mut Stage) {
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

fn torn_lists(stage: &mut Stage) {
    // A reply that takes its time leaves room for a change of rows in both halves.
    let torn = Weather { torn: 1_000, latency_ms: 330, ..Weather::fair() };
    stage.fleet.ground.network.set_weather(Service::Store, torn);
    for round in 0..10 {
        stage.pause(2_000);
        stage.reshard();
        if round % 3 == 2 {
            let host = stage.any_host();
            stage.world.befall(Blow::Stop(host, 500));
        }
    }
    stage.run(3_000);
}

fn all_start_together(stage: &mut Stage) {
    let bad = Weather { error: 500, reply_lost: 200, latency_ms: 100, ..Weather::fair() };
    for service in [Service::Store, Service::Stream] {
        stage.fleet.ground.network.set_weather(service, bad.clone());
    }
    stage.run(10_000);
}

fn failures_during_a_restart(stage: &mut Stage) {
    stage.run(4_000);
    stage.reshard();
    stage.stop_all();
    let bad = Weather { error: 800, latency_ms: 20, ..Weather::fair() };
    stage.fleet.ground.network.set_weather(Service::Stream, bad);
    stage.run(500);
    stage.reshard();
    stage.world.boot_all();
    stage.run(12_000);
}

fn full_budget(stage: &mut Stage) {
    stage.puts = false;
    for at in 0..2 {
        stage.put_into(at, 100);
    }
    stage.run(8_000);
    stage.reshard();
    stage.put_into(0, 50);
    stage.run(8_000);
}
