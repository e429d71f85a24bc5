//! A fleet of real consumers on a stream with real records: the common base of consumer scenarios.

use super::report::SeedReport;
use super::start_point::StartPoint;
use crate::checkers::liveness::{LeaseShares, UnownedSince};
use crate::checkers::{self, Violation, delivery, liveness};
use crate::faults::FaultKind;
use crate::faults::host_faults::HostFault;
use crate::faults::store::at_once;
use crate::flaw::consumer::ConsumerFlaw;
use crate::fleet::{ConsumerFleet, HandlerBehavior, PATIENCE_MS, RunningWorkers};
use crate::history::{HistoryEvent, HostId};
use crate::modes::SimMode;
use crate::record_source::{RecordMix, RecordSource};
use crate::rows::LeaseRows;
use crate::workload::ReshardChange;
use crate::world::{World, WorldSetup};
use anabranch::lease::LeaseStore;
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{Layout, Lease, LeaseChange, Write, WriteOutcome};
use anabranch_model::position::StartPosition;
use fastrand::Rng;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Time after which no packet from the fault phase is in flight any more, in milliseconds.
const SETTLE_MS: u64 = PATIENCE_MS * 14;

/// Deadline for everything to be done after the last fault, in lease times: two until each shard is
/// owned, and one to read and checkpoint the rest.
const DRAINED: u64 = 3;

/// The same deadline in KCL's layout: workers scan every two lease times, and the leases of a dead
/// worker are watched for one.
const KCL_DRAINED: u64 = 9;

/// Failures of a handler in a thousand calls, above which several in a row are to be expected.
const OFTEN: u64 = 100;

/// Sum of the pauses after seven failures in a row, in milliseconds.
const RETRIES_MS: u64 = 100 * 127;

/// Time that a record takes in a transaction of its own, with the store calls of a small batch, in
/// milliseconds.
const TRANSACTION_MS: u64 = 50;

/// Deadline for level load after the last fault, in lease times.
const LEVEL: u64 = 6;

/// Pause between two checks whether everything is done, in milliseconds.
const LOOK_MS: u64 = 250;

/// Maximum time for which a stream is reported as deleted, in milliseconds.
const HIDDEN_MS: u64 = 8_000;

/// The liveness guarantee.
pub const LIVENESS: &str = "once faults stop, everything is soon done and written down";

/// Settings of a scenario.
#[derive(Clone, Debug)]
pub struct ScenarioSettings {
    /// Seed of all random decisions.
    pub seed: u64,
    /// Command that replays the seed.
    pub replay: String,
    /// Number of hosts.
    pub hosts: usize,
    /// The stream and its records.
    pub mix: RecordMix,
    /// Behavior of the handlers.
    pub temper: HandlerBehavior,
    /// Start position of the application.
    pub start: StartPosition,
    /// Layout of the lease rows.
    pub layout: Layout,
    /// True if the rows of the first shards exist before any worker, without hash ranges, as old
    /// KCL versions created them.
    pub old_rows: bool,
    /// Mean time between two puts, in milliseconds.
    pub put_every_ms: u64,
    /// The broken rule, if any.
    pub flaw: ConsumerFlaw,
}

impl Default for ScenarioSettings {
    fn default() -> Self {
        Self {
            seed: 0,
            replay: String::new(),
            hosts: 2,
            mix: RecordMix { two_streams: false, shards: 2, keys: 10, bytes_max: 40 },
            temper: HandlerBehavior::default(),
            start: StartPosition::TrimHorizon,
            layout: Layout::Native,
            old_rows: false,
            put_every_ms: 80,
            flaw: ConsumerFlaw::None,
        }
    }
}

/// A fleet, its world, and the first mishap so far.
pub struct ConsumerScenario {
    setting: ScenarioSettings,
    /// State shared by all hosts.
    pub fleet: ConsumerFleet,
    /// The hosts.
    pub world: World,
    /// Decides everything that the scenario leaves open.
    pub rng: Rng,
    /// True if records are put while time passes.
    pub puts: bool,
    /// Start of the application in each stream.
    start: Vec<StartPoint>,
    /// Records whether a trim or a reshard of all shards has happened.
    happened: StreamFaults,
    /// A violation outside the history, such as a panic.
    mishap: Option<Violation>,
}

/// Events of the stream other than single reshards.
#[derive(Clone, Copy, Default)]
struct StreamFaults {
    trim: bool,
    reshard_all: bool,
}

impl ConsumerScenario {
    /// Creates a scenario with its world.
    pub fn new(setting: ScenarioSettings) -> Self {
        let mut rng = Rng::with_seed(setting.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let ground = WorldSetup::new(setting.seed);
        let supply = RecordSource::new(&setting.mix, ground.history.clone(), &mut rng);
        let fleet = ConsumerFleet {
            ground: ground.clone(),
            supply,
            rows: LeaseRows::new(setting.layout),
            start: setting.start,
            temper: setting.temper.clone(),
            joined: RunningWorkers::default(),
            calm: Arc::default(),
            flaw: setting.flaw,
        };
        if setting.old_rows {
            make_old_rows(&fleet);
        }
        let world = World::new(setting.seed, ground, setting.hosts, fleet.boot());
        let start = StartPoint::of(&fleet);
        Self {
            setting,
            fleet,
            world,
            rng,
            puts: true,
            start,
            happened: StreamFaults::default(),
            mishap: None,
        }
    }

    /// Returns the stream and its records.
    pub fn supply(&self) -> &RecordSource {
        &self.fleet.supply
    }

    /// Returns a random host.
    pub fn any_host(&mut self) -> HostId {
        HostId(self.rng.usize(0..self.setting.hosts))
    }

    /// Returns a random host that is not down, or any if all are down.
    pub fn any_living_host(&mut self) -> HostId {
        let living: Vec<HostId> = self.world.running_hosts().collect();
        match self.rng.choice(&living) {
            Some(host) => *host,
            None => self.any_host(),
        }
    }

    /// Lets time pass while all hosts are down. Returns how much, in milliseconds.
    pub fn wait_for_live_host(&mut self) -> u64 {
        let from_ms = self.world.now_ms();
        while self.world.running_hosts().next().is_none() && self.mishap.is_none() {
            self.run(LOOK_MS);
        }
        self.world.now_ms() - from_ms
    }

    /// Lets time pass.
    pub fn run(&mut self, for_ms: u64) {
        if self.mishap.is_some() {
            return;
        }
        let (supply, rng) = (self.fleet.supply.clone(), &mut self.rng);
        let every_ms = self.puts.then_some(self.setting.put_every_ms);
        let start = &mut self.start;
        let ran = self.world.run(for_ms, |_, step_ms| {
            supply.advance(step_ms);
            start.iter_mut().for_each(StartPoint::look);
            if every_ms.is_some_and(|every_ms| rng.u64(0..every_ms) < step_ms) {
                supply.put_any(rng);
            }
        });
        if let Err(words) = ran {
            self.broken("nothing panics", words);
        }
    }

    /// Lets a random time of at most `most_ms` pass.
    pub fn pause(&mut self, most_ms: u64) {
        let for_ms = self.rng.u64(1..=most_ms);
        self.run(for_ms);
    }

    /// Stops all hosts gracefully. They stay down until they are started.
    pub fn stop_all(&mut self) {
        for host in 0..self.setting.hosts {
            self.world.apply_fault(HostFault::Stop(HostId(host), u64::MAX));
        }
        self.run(self.setting.temper.grace_ms + self.longest_ms());
    }

    /// Puts records into the `at`-th open shard.
    pub fn put_into(&mut self, at: usize, count: usize) {
        self.fleet.supply.put_into(at, count, &mut self.rng);
    }

    /// Splits or merges at random.
    pub fn reshard(&mut self) {
        let change = self.fleet.supply.reshard(&mut self.rng);
        if let Some(change) = change {
            self.count(&change);
        }
    }

    /// Splits all shards at once, or merges all pairs.
    pub fn reshard_all(&mut self) {
        self.happened.reshard_all = true;
        let changes = self.fleet.supply.reshard_all(&mut self.rng);
        for change in changes {
            self.count(&change);
        }
    }

    fn count(&self, change: &ReshardChange) {
        self.fleet.ground.network.count(match change {
            ReshardChange::Split(_) => FaultKind::Split,
            ReshardChange::Merge(..) => FaultKind::Merge,
        });
    }

    /// Crashes all hosts. They stay down until they are started.
    pub fn keep_down(&mut self) {
        for host in 0..self.setting.hosts {
            self.world.apply_fault(HostFault::Crash(HostId(host), u64::MAX));
        }
    }

    /// Lets retention pass for all records.
    pub fn trim(&mut self) {
        self.happened.trim = true;
        self.fleet.ground.network.count(FaultKind::Trim);
        let passed_ms = self.fleet.supply.trim();
        self.world.jump(passed_ms);
    }

    /// Makes the service report one of the streams as nonexistent for a while.
    pub fn hide_stream(&mut self) {
        let streams = self.fleet.supply.streams();
        let stream = streams[self.rng.usize(0..streams.len())].clone();
        let for_ms = self.rng.u64(1_000..HIDDEN_MS);
        self.fleet
            .ground
            .history
            .note_world(format!("{stream} is said to be deleted for {for_ms} ms"));
        self.fleet.ground.network.hide(&stream, for_ms);
    }

    /// Returns the current rows.
    pub fn rows(&self) -> Vec<Lease> {
        let streams = self.fleet.supply.streams().iter();
        streams.flat_map(|stream| self.fleet.rows.leases(stream)).collect()
    }

    /// Ends the faults, and checks that everything is done in time. `dead` stays down for good.
    pub fn quiet(&mut self, dead: Option<HostId>) {
        self.world.stop_faults(None);
        self.fleet.calm.store(true, Ordering::Relaxed);
        self.run(SETTLE_MS);
        self.world.stop_faults(dead);
        self.fleet.supply.put_round(&mut self.rng);
        self.puts = false;
        let longest_ms = self.longest_ms();
        let kcl = self.setting.layout == Layout::Kcl;
        let drained_ms = match (self.setting.layout, self.setting.temper.mode) {
            (Layout::Kcl, _) => longest_ms * KCL_DRAINED,
            // Each batch waits for the store several times, whatever the lease time.
            (Layout::Native, SimMode::ExactlyOnce(_)) => {
                let records = self.fleet.supply.open().len() as u64;
                longest_ms * DRAINED * 4 + records * TRANSACTION_MS
            }
            (Layout::Native, _) => longest_ms * DRAINED,
        };
        // A parent and its child may each have a slow first and a slow last call, and a handler that
        // often fails is retried after ever longer pauses.
        let temper = &self.setting.temper;
        let is_slow = temper.slow > 0 || temper.blocks > 0;
        let drained_ms = drained_ms
            + if is_slow { temper.slow_ms * 4 } else { 0 }
            + if temper.fails > OFTEN { RETRIES_MS } else { 0 };
        let owned_ms = longest_ms * if kcl { KCL_DRAINED } else { 2 };
        let from_ms = self.world.now_ms();
        let mut unowned = UnownedSince::default();
        // A dead worker's row may still say so until it is fenced.
        let back_ms = self.setting.temper.audit_ms + longest_ms * 2;
        let mut left_ms = from_ms;
        loop {
            let (now_ms, rows) = (self.world.now_ms(), self.rows());
            let up = self.world.up().map(|host| (host, self.fleet.joined.on(host)));
            let shared = LeaseShares::of(&rows, up);
            let has_left = self.has_left_a_stream();
            if has_left {
                left_ms = now_ms;
            }
            // KCL counts finished leases too, so load need not be level.
            let level = kcl || shared.is_level();
            let left = self.fleet.supply.remaining(&rows);
            if let Some(words) = unowned.observe(now_ms, &shared, owned_ms) {
                self.broken(liveness::PROMISE, words);
            } else if let Some(left) = left.clone().filter(|_| now_ms >= from_ms + drained_ms) {
                self.broken(LIVENESS, left);
            } else if has_left && now_ms >= from_ms + back_ms {
                let words = "a worker still does not read a stream that is there".to_owned();
                self.broken(liveness::PROMISE, words);
            } else if !level && now_ms >= left_ms + longest_ms * LEVEL {
                let words = format!("load is not level: {:?}", shared.loads);
                self.broken(liveness::PROMISE, words);
            }
            if self.mishap.is_some() {
                return;
            }
            if left.is_none() && shared.unowned.is_empty() && level && !has_left {
                break;
            }
            self.run(LOOK_MS);
        }
        let took_ms = self.world.now_ms() - from_ms;
        self.fleet.ground.history.note_world(format!("all is done after {took_ms} ms"));
    }

    /// Returns true if a worker got a false report of a deleted stream. It continues to read the
    /// others, so load need not be level until it has asked again, at the latest an audit after the
    /// last false report.
    fn has_left_a_stream(&self) -> bool {
        let all = self.fleet.supply.streams();
        let reads_all = |reads: &Vec<StreamName>| all.iter().all(|name| reads.contains(name));
        let rows = self.fleet.rows.snapshot();
        let mut alive = rows.workers().filter(|worker| worker.is_alive());
        alive.any(|worker| !worker.reads.as_ref().is_none_or(reads_all))
    }

    /// Returns the longest lease time of a worker run, in milliseconds.
    fn longest_ms(&self) -> u64 {
        self.setting.temper.lease_times.longest_ms()
    }

    fn broken(&mut self, promise: &'static str, words: String) {
        let line = usize::MAX;
        self.mishap = Some(Violation { promise, words, line, lease: None });
    }

    /// Runs the checkers and creates the report. `whole` is true if the scenario had its quiet
    /// phase.
    pub fn judge(mut self, whole: bool) -> SeedReport {
        let lines = self.fleet.ground.history.take();
        let drawn = drawn(&self.setting, self.happened);
        let last = lines.len().saturating_sub(1);
        let violation = checkers::of_consumer(
            &lines,
            checkers::FleetPromises {
                layout: self.setting.layout,
                lease_time_ms: self.longest_ms(),
                mode: self.setting.temper.mode,
                lanes: self.setting.temper.lanes != [1] && self.setting.temper.mode.takes_lanes(),
            },
        )
        .or(self.mishap.take().map(|mishap| Violation { line: last, ..mishap }))
        .or_else(|| delivery::check(&lines).filter(|_| whole));
        let count = |is: fn(&HistoryEvent) -> bool| {
            lines.iter().filter(|line| is(&line.what)).count() as u64
        };
        SeedReport {
            seed: self.setting.seed,
            replay: self.setting.replay.clone(),
            violation,
            virtual_ms: self.world.now_ms(),
            faults: self.fleet.ground.network.counts(),
            drawn,
            moves: count(is_move),
            placed: 0,
            deliveries: count(|what| matches!(what, HistoryEvent::Handed { .. })),
            lines,
        }
    }
}

/// Describes the special features of a setting.
fn drawn(setting: &ScenarioSettings, happened: StreamFaults) -> Vec<String> {
    let mode = format!("{:?}", setting.temper.mode);
    let start = format!("{:?}", setting.start);
    // Without the numbers, which differ between fleets.
    let named = |words: &str| words.split('(').next().unwrap_or(words).to_owned();
    let mut drawn = vec![
        format!("{:?} layout", setting.layout),
        format!("mode {}", named(&mode)),
        format!("start {}", named(&start)),
    ];
    let special = [
        (setting.mix.two_streams, "two streams"),
        (setting.old_rows, "rows without hash ranges"),
        (setting.layout == Layout::Kcl && happened.trim, "Kcl layout and a trim"),
        (happened.reshard_all, "a reshard of all shards"),
        (setting.temper.attempts.is_some(), "dead letters"),
        (setting.mix.shards > 3, "4 to 8 shards at first"),
        (setting.hosts > 3, "4 or 5 hosts"),
        (setting.mix.keys > 16, "17 to 64 keys"),
    ];
    drawn.extend(special.iter().filter(|(is, _)| *is).map(|(_, words)| (*words).to_owned()));
    drawn
}

/// Creates the rows of an application that ran under an old KCL version.
fn make_old_rows(fleet: &ConsumerFleet) {
    for shard in fleet.supply.open_shards() {
        let write = fleet.rows.add_old(&shard.stream, &shard);
        let outcome = at_once(fleet.rows.write(&write)).expect("rows in memory take every write");
        fleet.ground.history.note_what(HistoryEvent::WriteApplied { write, outcome });
    }
}

fn is_move(what: &HistoryEvent) -> bool {
    let HistoryEvent::WriteApplied {
        write: Write::Lease { change, .. },
        outcome: WriteOutcome::Done(_),
    } = what
    else {
        return false;
    };
    matches!(change, LeaseChange::Take { .. } | LeaseChange::HandOver { .. })
}

impl Drop for ConsumerScenario {
    fn drop(&mut self) {
        self.fleet.ground.network.drop_packets();
        self.fleet.rows.drop_effects();
    }
}
