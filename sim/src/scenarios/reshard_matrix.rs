//! The four cases of a reshard (online or offline, split or merge), each with every kind of fault.

use super::consumer_scenario::{ConsumerScenario, ScenarioSettings};
use super::report::SeedReport;
use crate::faults::CallFaultRates;
use crate::faults::host_faults::HostFault;
use crate::faults::network::Service;
use crate::fleet::{HandlerBehavior, LEASE_TIME_MS};
use crate::record_source::RecordMix;

/// State of the fleet while the stream is resharded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReshardTiming {
    /// The fleet runs.
    Online,
    /// The fleet is down, and finds the change when it starts.
    Offline,
}

/// Kind of reshard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReshardKind {
    /// One shard becomes two.
    Split,
    /// Two shards become one.
    Merge,
}

/// Fault around the reshard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReshardFault {
    /// A worker is asked to stop.
    GracefulStop,
    /// A worker crashes.
    Crash,
    /// A worker freezes for longer than the lease time, and resumes.
    Zombie,
    /// Many replies are lost, or requests are carried out late.
    LostReplies,
    /// Many calls are throttled.
    Throttling,
    /// Many iterators are too old.
    ExpiredIterators,
    /// Many reads report the end of their shard without children, true or not; lists are stale.
    FalseEnds,
    /// The store is down for longer than the lease time.
    StoreOutage,
    /// Retention passes: unread records of the parents are gone, and so are the parents.
    TrimmedParents,
}

/// Returns the call fault rates for a fault.
fn weather(trouble: ReshardFault) -> CallFaultRates {
    let fair = CallFaultRates { latency_ms: 40, ..CallFaultRates::none() };
    match trouble {
        ReshardFault::LostReplies => CallFaultRates { reply_lost: 200, late: 100, ..fair },
        ReshardFault::Throttling => CallFaultRates { throttle: 400, ..fair },
        ReshardFault::ExpiredIterators => CallFaultRates { expired: 400, ..fair },
        ReshardFault::FalseEnds => CallFaultRates { false_end: 300, stale: 500, ..fair },
        _ => fair,
    }
}

/// Runs one case.
pub fn run(
    when: ReshardTiming,
    change: ReshardKind,
    trouble: ReshardFault,
    seed: u64,
) -> SeedReport {
    let mut stage = ConsumerScenario::new(ScenarioSettings {
        seed,
        replay: format!("reshard_matrix::run({when:?}, {change:?}, {trouble:?}, {seed})"),
        hosts: 2,
        mix: RecordMix { two_streams: false, shards: 2, keys: 10, bytes_max: 40 },
        temper: HandlerBehavior { lanes: vec![1, 2, 4], call_ms: 40, ..HandlerBehavior::default() },
        put_every_ms: 50,
        ..ScenarioSettings::default()
    });
    stage.run(5_000);
    if when == ReshardTiming::Offline {
        stage.stop_all();
    }
    for service in [Service::Store, Service::Stream] {
        stage.fleet.ground.network.set_weather(service, weather(trouble));
    }
    stage.pause(1_500);
    match change {
        ReshardKind::Split => stage.supply().split(0),
        ReshardKind::Merge => stage.supply().merge(0),
    };
    if when == ReshardTiming::Offline {
        stage.pause(1_000);
        stage.world.boot_all();
    }
    stage.pause(2_000);
    apply_fault(&mut stage, trouble);
    stage.run(8_000);
    stage.quiet(None);
    stage.judge(true)
}

fn apply_fault(stage: &mut ConsumerScenario, trouble: ReshardFault) {
    let host = stage.any_host();
    match trouble {
        ReshardFault::GracefulStop => stage.world.apply_fault(HostFault::Stop(host, 1_000)),
        ReshardFault::Crash => stage.world.apply_fault(HostFault::Crash(host, 1_000)),
        ReshardFault::Zombie => stage.world.apply_fault(HostFault::Freeze(host, LEASE_TIME_MS * 2)),
        ReshardFault::StoreOutage => {
            stage.fleet.ground.network.outage(Service::Store, LEASE_TIME_MS * 3 / 2);
        }
        ReshardFault::TrimmedParents => stage.trim(),
        ReshardFault::LostReplies
        | ReshardFault::Throttling
        | ReshardFault::ExpiredIterators
        | ReshardFault::FalseEnds => {}
    }
}
