//! Consumer scenario: whole fleets under random faults, with at least one reshard and one crash
//! each.

use super::consumer_scenario::{ConsumerScenario, ScenarioSettings};
use super::report::SeedReport;
use crate::faults::host_faults::HostFault;
use crate::faults::network::Service;
use crate::faults::{CallFaultRates, HostFaultRates, LeaseTimes};
use crate::flaw::consumer::ConsumerFlaw;
use crate::fleet::{HandlerBehavior, LEASE_TIME_MS};
use crate::modes::SimMode;
use crate::record_source::RecordMix;
use crate::workload::EPOCH_MS;
use anabranch::consumer::FetchMode;
use anabranch_model::lease::Layout;
use anabranch_model::position::StartPosition;
use fastrand::Rng;

/// Duration of the faults, in milliseconds.
const FAULTS_MS: u64 = 40_000;

/// Smallest permitted byte budget of a worker, so that the budget matters.
const TIGHT_BYTES: usize = 16 << 20;

/// Maximum pause between two events before the first start, in milliseconds.
const PAST_MS: u64 = 3_000;

/// An event that happens once, in addition to random faults.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum ScenarioEvent {
    Reshard,
    ReshardAll,
    Crash,
    Trim,
    HideStream,
}

/// Runs one seed: a phase with faults, then a quiet one.
pub fn run(seed: u64, flaw: ConsumerFlaw) -> SeedReport {
    run_in(seed, flaw, None)
}

/// Runs one seed like [`run`], with this processing mode in place of the drawn one.
pub fn run_in(seed: u64, flaw: ConsumerFlaw, mode: Option<SimMode>) -> SeedReport {
    let mut rng = Rng::with_seed(seed ^ 0x636f_6e73_756d_6572);
    let mut extra = Rng::with_seed(seed ^ 0x006d_6f72_6521);
    let mut setting = setting(seed, flaw, &mut rng, &mut extra);
    setting.temper.mode = mode.unwrap_or(setting.temper.mode);
    let mut stage = ConsumerScenario::new(setting);
    if extra.u32(0..6) == 0 {
        before_the_first_start(&mut stage, &mut extra);
    }
    let network = stage.fleet.ground.network.clone();
    let store = CallFaultRates::random(&mut rng)
        .with_repeats(seed)
        .with_slow_commits(seed)
        .with_old_scans(seed);
    let store = store.with_unreadable_rows(seed);
    network.set_weather(Service::Store, store.with_refusals(seed, Service::Store));
    let stream = CallFaultRates::random_stream(&mut rng).with_false_ends(seed);
    network.set_weather(Service::Stream, stream.with_refusals(seed, Service::Stream));
    let chaos = HostFaultRates::random_with_stream(&mut rng, LEASE_TIME_MS)
        .with_lone_cuts(seed, LEASE_TIME_MS);
    let chaos = chaos.with_pauses(seed, LEASE_TIME_MS).with_refusals(seed, LEASE_TIME_MS);
    stage.world.set_chaos(chaos);
    let mut now_ms = 0;
    let mut events = events(&mut rng, &mut extra);
    events.extend(hidden_streams(seed, stage.supply().streams().len()));
    events.sort_unstable();
    for (at_ms, event) in events {
        stage.run(at_ms.saturating_sub(now_ms));
        now_ms = now_ms.max(at_ms);
        match event {
            ScenarioEvent::Reshard => stage.reshard(),
            ScenarioEvent::ReshardAll => stage.reshard_all(),
            ScenarioEvent::Trim => stage.trim(),
            ScenarioEvent::HideStream => stage.hide_stream(),
            ScenarioEvent::Crash => {
                now_ms += stage.wait_for_live_host();
                let host = stage.any_living_host();
                stage.world.apply_fault(HostFault::Crash(host, rng.u64(50..LEASE_TIME_MS * 2)));
            }
        }
    }
    stage.run(FAULTS_MS.saturating_sub(now_ms));
    let dead = rng.bool().then(|| stage.any_host());
    stage.quiet(dead);
    stage.judge(true)
}

/// Gives the stream a past before the first worker starts.
fn before_the_first_start(stage: &mut ConsumerScenario, rng: &mut Rng) {
    stage.keep_down();
    stage.pause(PAST_MS);
    for _ in 0..rng.u32(0..3) {
        stage.reshard();
        stage.pause(PAST_MS);
    }
    if rng.u32(0..3) == 0 {
        stage.trim();
        stage.pause(PAST_MS);
    }
    stage.world.boot_all();
}

/// Draws the settings: those of all seeds from `rng`, those of some seeds from `more`.
fn setting(seed: u64, flaw: ConsumerFlaw, rng: &mut Rng, more: &mut Rng) -> ScenarioSettings {
    let large = rng.u32(0..10) == 0;
    let slow = rng.u32(0..4) == 0;
    let fetch = if rng.u32(0..4) == 0 { FetchMode::FanOut } else { FetchMode::Poll };
    // With fan-out, a connection without records only shows signs of life seconds apart.
    let impatient = fetch == FetchMode::Poll && rng.bool();
    let layout = if more.u32(0..4) == 0 { Layout::Kcl } else { Layout::Native };
    let old_rows = layout == Layout::Kcl && more.u32(0..4) == 0;
    let modes = [
        SimMode::Batches(more.usize(1..20)),
        SimMode::Processors(more.usize(4..24)),
        SimMode::Streams(more.u32(1..20)),
        // Each call waits for the store several times, so that records would pile up with smaller
        // batches.
        SimMode::ExactlyOnce(more.usize(4..24)),
    ];
    let mut drawn =
        if more.u32(0..5) < 2 { SimMode::Each } else { modes[more.usize(0..modes.len())] };
    if layout == Layout::Kcl && matches!(drawn, SimMode::ExactlyOnce(_)) {
        drawn = SimMode::Each;
    }
    // A record that is dead-lettered and redelivered after a crash may have its effect, too.
    let parks = !matches!(drawn, SimMode::ExactlyOnce(_)) && more.u32(0..5) == 0;
    let (attempts, fails) = (parks.then(|| more.u32(1..=3)), parks.then(|| more.u64(100..500)));
    let start = match more.u32(0..8) {
        0 | 1 if !old_rows => StartPosition::Latest,
        2 if !old_rows => StartPosition::AtTimestamp(EPOCH_MS + more.u64(0..PAST_MS)),
        _ => StartPosition::TrimHorizon,
    };
    let audit_ms = if more.bool() { more.u64(1_000..10_000) } else { 60_000 };
    let (mut hosts, mut shards, mut keys) = (rng.usize(2..=3), rng.u32(1..=3), rng.usize(4..=16));
    // Such worlds cost several times as much as others.
    if more.u32(0..30) == 0 {
        (hosts, shards, keys) = (more.usize(3..=5), more.u32(4..=8), more.usize(16..=64));
    }
    // Uses its own RNG, so that the rest of the seed is unchanged.
    let mut apart = Rng::with_seed(seed ^ 0x7477_6f73_7472_6561);
    let two_streams = apart.u32(0..8) == 0;
    // A worker that got a false report of a deleted stream asks again at each audit.
    let audit_ms = if two_streams { audit_ms.min(apart.u64(1_000..10_000)) } else { audit_ms };
    ScenarioSettings {
        seed,
        replay: format!("cargo xtask sim --consumer --seed {seed}"),
        hosts,
        mix: RecordMix { two_streams, shards, keys, bytes_max: if large { 60_000 } else { 40 } },
        start,
        layout,
        old_rows,
        temper: HandlerBehavior {
            lanes: if rng.bool() { vec![1] } else { vec![1, 2, 3, 7] },
            fetch,
            mode: drawn,
            attempts,
            // With handlers that are always busy, every fault occurs in the middle of a call.
            call_ms: if large || rng.u32(0..3) == 0 { rng.u64(40..300) } else { rng.u64(0..20) },
            slow: if slow { 5 } else { 0 },
            slow_ms: LEASE_TIME_MS * 2,
            blocks: blocking_calls(seed),
            fails: fails.unwrap_or(if rng.bool() { rng.u64(0..100) } else { 0 }),
            grace_ms: rng.u64(500..4_000),
            checkpoint_ms: rng.u64(50..1_500),
            memory_bytes: if large || rng.bool() { TIGHT_BYTES } else { 256 << 20 },
            lease_times: LeaseTimes::drawn(seed, LEASE_TIME_MS),
            fetch_limit_ms: impatient.then(|| rng.u64(1_000..5_000)),
            audit_ms,
        },
        put_every_ms: if large { rng.u64(150..400) } else { rng.u64(60..400) },
        flaw,
    }
}

/// Draws how many calls in a thousand block their thread. Uses its own RNG.
fn blocking_calls(seed: u64) -> u64 {
    let mut rng = Rng::with_seed(seed ^ 0x626c_6f63_6b73_0000);
    if rng.u32(0..4) == 0 { rng.u64(1..=8) } else { 0 }
}

/// Draws the times of events: reshards, a crash, and sometimes a trim or a reshard of all shards at
/// once.
fn events(rng: &mut Rng, more: &mut Rng) -> Vec<(u64, ScenarioEvent)> {
    let mut events = vec![ScenarioEvent::Reshard, ScenarioEvent::Crash];
    events.extend((0..rng.usize(0..6)).map(|_| ScenarioEvent::Reshard));
    if rng.u32(0..6) == 0 {
        events.push(ScenarioEvent::Trim);
    }
    if more.u32(0..6) == 0 {
        events.push(ScenarioEvent::ReshardAll);
    }
    let mut at = |event| (rng.u64(500..FAULTS_MS), event);
    events.into_iter().map(&mut at).collect()
}

/// Draws streams that are reported as deleted for a while, if there are several. Uses its own RNG.
/// A worker with only one stream would end.
fn hidden_streams(seed: u64, streams: usize) -> Vec<(u64, ScenarioEvent)> {
    let mut rng = Rng::with_seed(seed ^ 0x6869_6464_656e_0000);
    let count = if streams > 1 { rng.usize(0..3) } else { 0 };
    (0..count).map(|_| (rng.u64(5_000..FAULTS_MS), ScenarioEvent::HideStream)).collect()
}
