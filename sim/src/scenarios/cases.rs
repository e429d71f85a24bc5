//! The four cases of a reshard (seen or not, split or merge), each with every kind of trouble.

use super::report::Report;
use super::stage::{Setting, Stage};
use crate::faults::Weather;
use crate::faults::chaos::Blow;
use crate::faults::network::Service;
use crate::fleet::{LEASE_TIME_MS, Temper};
use crate::supply::Mix;

/// Whether the fleet runs while the stream is resharded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// It does.
    Online,
    /// It is down, and finds the change when it starts.
    Offline,
}

/// How the stream is resharded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// One shard becomes two.
    Split,
    /// Two shards become one.
    Merge,
}

/// What goes wrong around it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// A worker is asked to stop.
    GracefulStop,
    /// A worker dies.
    Crash,
    /// A worker stands still for longer than the lease time, and comes back.
    Zombie,
    /// Many replies are lost, or requests are carried out late.
    LostReplies,
    /// Many calls are throttled.
    Throttling,
    /// Many iterators are too old.
    ExpiredIterators,
    /// Many reads say that their shard has ended and name no children, whether it has or not; lists
    /// are late.
    FalseEnds,
    /// The store answers nobody for longer than the lease time.
    StoreOutage,
    /// Retention passes: what of the parents was not read is gone, and so are they.
    TrimmedParents,
}

/// The weather that a trouble brings.
fn weather(trouble: Trouble) -> Weather {
    let fair = Weather { latency_ms: 40, ..Weather::fair() };
    match trouble {
        Trouble::LostReplies => Weather { reply_lost: 200, late: 100, ..fair },
        Trouble::Throttling => Weather { throttle: 400, ..fair },
        Trouble::ExpiredIterators => Weather { expired: 400, ..fair },
        Trouble::FalseEnds => Weather { false_end: 300, stale: 500, ..fair },
        _ => fair,
    }
}

/// Runs one case.
pub fn run(when: When, change: Change, trouble: Trouble, seed: u64) -> Report {
    let mut stage = Stage::new(Setting {
        seed,
        replay: format!("cases::run({when:?}, {change:?}, {trouble:?}, {seed})"),
        hosts: 2,
        mix: Mix { two_streams: false, shards: 2, keys: 10, bytes_max: 40 },
        temper: Temper { lanes: vec![1, 2, 4], call_ms: 40, ..Temper::default() },
        put_every_ms: 50,
        ..Setting::default()
    });
    stage.run(5_000);
    if when == When::Offline {
        stage.stop_all();
    }
    for service in [Service::Store, Service::Stream] {
        stage.fleet.ground.network.set_weather(service, weather(trouble));
    }
    stage.pause(1_500);
    match change {
        Change::Split => stage.supply().split(0),
        Change::Merge => stage.supply().merge(0),
    };
    if when == When::Offline {
        stage.pause(1_000);
        stage.world.boot_all();
    }
    stage.pause(2_000);
    befall(&mut stage, trouble);
    stage.run(8_000);
    stage.quiet(None);
    stage.judge(true)
}

fn befall(stage: &mut Stage, trouble: Trouble) {
    let host = stage.any_host();
    match trouble {
        Trouble::GracefulStop => stage.world.befall(Blow::Stop(host, 1_000)),
        Trouble::Crash => stage.world.befall(Blow::Crash(host, 1_000)),
        Trouble::Zombie => stage.world.befall(Blow::Freeze(host, LEASE_TIME_MS * 2)),
        Trouble::StoreOutage => {
            stage.fleet.ground.network.outage(Service::Store, LEASE_TIME_MS * 3 / 2);
        }
        Trouble::TrimmedParents => stage.trim(),
        Trouble::LostReplies
        | Trouble::Throttling
        | Trouble::ExpiredIterators
        | Trouble::FalseEnds => {}
    }
}
