//! Consumers: whole fleets under random faults, with at least one reshard and one crash each.

use super::report::Report;
use super::stage::{Setting, Stage};
use crate::faults::chaos::Blow;
use crate::faults::network::Service;
use crate::faults::{Chaos, Fault, Weather};
use crate::flaw::consumer::ConsumerFlaw;
use crate::fleet::{LEASE_TIME_MS, Temper};
use crate::supply::Mix;
use anabranch::consumer::FetchMode;
use fastrand::Rng;

/// How long faults last.
const FAULTS_MS: u64 = 40_000;

/// The least that a worker may be given, so that its budget matters.
const TIGHT_BYTES: usize = 16 << 20;

/// What happens once, beside what chance brings.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    Reshard,
    Crash,
    Trim,
}

/// Runs one seed: a time of faults, then a quiet one.
pub fn run(seed: u64, flaw: ConsumerFlaw) -> Report {
    let mut rng = Rng::with_seed(seed ^ 0x636f_6e73_756d_6572);
    let mut stage = Stage::new(setting(seed, flaw, &mut rng));
    let network = stage.fleet.ground.network.clone();
    network.set_weather(Service::Store, Weather::foul(&mut rng));
    let stream = Weather::foul_stream(&mut rng).with_false_ends(seed);
    network.set_weather(Service::Stream, stream);
    stage.world.set_chaos(Chaos::foul_stream(&mut rng, LEASE_TIME_MS));
    let mut now_ms = 0;
    for (at_ms, event) in events(&mut rng) {
        stage.run(at_ms - now_ms);
        now_ms = at_ms;
        match event {
            Event::Reshard => stage.reshard(),
            Event::Trim => stage.trim(),
            Event::Crash => {
                network.count(Fault::Crash);
                let host = stage.any_host();
                stage.world.befall(Blow::Crash(host, rng.u64(50..LEASE_TIME_MS * 2)));
            }
        }
    }
    stage.run(FAULTS_MS - now_ms);
    let dead = rng.bool().then(|| stage.any_host());
    stage.quiet(dead);
    stage.judge(true)
}

fn setting(seed: u64, flaw: ConsumerFlaw, rng: &mut Rng) -> Setting {
    let large = rng.u32(0..10) == 0;
    let slow = rng.u32(0..4) == 0;
    let fetch = if rng.u32(0..4) == 0 { FetchMode::FanOut } else { FetchMode::Poll };
    // What is pushed stands still between two signs of life, which are seconds apart.
    let impatient = fetch == FetchMode::Poll && rng.bool();
    Setting {
        seed,
        replay: format!("cargo xtask sim --consumer --seed {seed}"),
        hosts: rng.usize(2..=3),
        mix: Mix {
            shards: rng.u32(1..=3),
            keys: rng.usize(4..=16),
            bytes_max: if large { 60_000 } else { 40 },
        },
        temper: Temper {
            lanes: if rng.bool() { vec![1] } else { vec![1, 2, 3, 7] },
            fetch,
            // Handlers that are always busy are met by everything in the middle of a call.
            call_ms: if large || rng.u32(0..3) == 0 { rng.u64(40..300) } else { rng.u64(0..20) },
            slow: if slow { 5 } else { 0 },
            slow_ms: LEASE_TIME_MS * 2,
            fails: if rng.bool() { rng.u64(0..100) } else { 0 },
            grace_ms: rng.u64(500..4_000),
            checkpoint_ms: rng.u64(50..1_500),
            memory_bytes: if large || rng.bool() { TIGHT_BYTES } else { 256 << 20 },
            fetch_limit_ms: impatient.then(|| rng.u64(1_000..5_000)),
        },
        put_every_ms: if large { rng.u64(150..400) } else { rng.u64(60..400) },
        flaw,
    }
}

/// What happens when, in order: reshards, a crash, and at times the end of retention.
fn events(rng: &mut Rng) -> Vec<(u64, Event)> {
    let mut events = vec![Event::Reshard, Event::Crash];
    events.extend((0..rng.usize(0..6)).map(|_| Event::Reshard));
    if rng.u32(0..6) == 0 {
        events.push(Event::Trim);
    }
    let mut at = |event| (rng.u64(500..FAULTS_MS), event);
    let mut events: Vec<(u64, Event)> = events.into_iter().map(&mut at).collect();
    events.sort_unstable();
    events
}
