//! A fleet of real consumers on a stream with real records: what every story about them begins with.

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

/// After this time nothing from the time of faults is in flight any more.
const SETTLE_MS: u64 = PATIENCE_MS * 14;

/// When everything is done at the latest, after the last fault, in lease times: two until each shard
/// is owned, and one to read what is left and to write it down.
const DRAINED: u64 = 3;

/// The same in KCL's layout: workers scan every two lease times, and a dead one's leases are watched
/// for one.
const KCL_DRAINED: u64 = 9;

/// The time that a record takes in a transaction of its own, with the store's calls of a small batch.
const TRANSACTION_MS: u64 = 50;

/// When load is level at the latest, after the last fault, in lease times.
const LEVEL: u64 = 6;

/// The pause between two looks whether everything is done.
const LOOK_MS: u64 = 250;

/// For how long a stream is said to be deleted at most.
const HIDDEN_MS: u64 = 8_000;

/// The promise of liveness.
pub const LIVENESS: &str = "once faults stop, everything is soon done and written down";

/// What a story begins with.
#[derive(Clone, Debug)]
pub struct ScenarioSettings {
    /// Which seed.
    pub seed: u64,
    /// The one command that replays it.
    pub replay: String,
    /// How many hosts there are.
    pub hosts: usize,
    /// The stream and its records.
    pub mix: RecordMix,
    /// How the handlers are.
    pub temper: HandlerBehavior,
    /// Where the application starts to read.
    pub start: StartPosition,
    /// How the lease rows are laid out.
    pub layout: Layout,
    /// Whether the rows of the first shards are there before any worker, without hash ranges, as old
    /// KCL versions made them.
    pub old_rows: bool,
    /// The mean time between two puts.
    pub put_every_ms: u64,
    /// What is broken.
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

/// A fleet, its world, and what went wrong in it so far.
pub struct ConsumerScenario {
    setting: ScenarioSettings,
    /// What every host works with.
    pub fleet: ConsumerFleet,
    /// The hosts.
    pub world: World,
    /// Decides what the story leaves open.
    pub rng: Rng,
    /// Whether records are put while time goes by.
    pub puts: bool,
    /// Where the application starts to read.
    start: Vec<StartPoint>,
    /// Whether retention passed for all records, and all shards were resharded at once.
    happened: StreamFaults,
    /// What must not happen at all, such as a panic.
    mishap: Option<Violation>,
}

/// What happened to the stream beside single reshards.
#[derive(Clone, Copy, Default)]
struct StreamFaults {
    trim: bool,
    reshard_all: bool,
}

impl ConsumerScenario {
    /// A world that begins.
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

    /// The stream and its records.
    pub fn supply(&self) -> &RecordSource {
        &self.fleet.supply
    }

    /// One of the hosts.
    pub fn any_host(&mut self) -> HostId {
        HostId(self.rng.usize(0..self.setting.hosts))
    }

    /// One of the hosts that are not down, or any if all are.
    pub fn any_living_host(&mut self) -> HostId {
        let living: Vec<HostId> = self.world.running_hosts().collect();
        match self.rng.choice(&living) {
            Some(host) => *host,
            None => self.any_host(),
        }
    }

    /// Lets time go by while all hosts are down. Returns how much.
    pub fn wait_for_live_host(&mut self) -> u64 {
        let from_ms = self.world.now_ms();
        while self.world.running_hosts().next().is_none() && self.mishap.is_none() {
            self.run(LOOK_MS);
        }
        self.world.now_ms() - from_ms
    }

    /// Lets time go by.
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

    /// Lets some time go by, at most `most_ms`.
    pub fn pause(&mut self, most_ms: u64) {
        let for_ms = self.rng.u64(1..=most_ms);
        self.run(for_ms);
    }

    /// All hosts stop in order, and stay down until they are booted.
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

    /// Keeps all hosts down until they are booted.
    pub fn keep_down(&mut self) {
        for host in 0..self.setting.hosts {
            self.world.apply_fault(HostFault::Crash(HostId(host), u64::MAX));
        }
    }

    /// Retention passes for all records.
    pub fn trim(&mut self) {
        self.happened.trim = true;
        self.fleet.ground.network.count(FaultKind::Trim);
        let passed_ms = self.fleet.supply.trim();
        self.world.jump(passed_ms);
    }

    /// The service says for a while that one of the streams does not exist.
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

    /// The rows as they stand.
    pub fn rows(&self) -> Vec<Lease> {
        let streams = self.fleet.supply.streams().iter();
        streams.flat_map(|stream| self.fleet.rows.leases(stream)).collect()
    }

    /// Faults end, and everything has to be done in time. `dead` stays down for good.
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
        let owned_ms = longest_ms * if kcl { KCL_DRAINED } else { 2 };
        let from_ms = self.world.now_ms();
        let mut unowned = UnownedSince::default();
        // A dead worker's row may say so until it is fenced.
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

    /// Whether a worker was told, by mistake, that a stream is gone. It reads the others on, so load
    /// need not be level until it has asked again, an audit after the last mistake at the latest.
    fn has_left_a_stream(&self) -> bool {
        let all = self.fleet.supply.streams();
        let reads_all = |reads: &Vec<StreamName>| all.iter().all(|name| reads.contains(name));
        let rows = self.fleet.rows.snapshot();
        let mut alive = rows.workers().filter(|worker| worker.is_alive());
        alive.any(|worker| !worker.reads.as_ref().is_none_or(reads_all))
    }

    /// The longest lease time of a life.
    fn longest_ms(&self) -> u64 {
        self.setting.temper.lease_times.longest_ms()
    }

    fn broken(&mut self, promise: &'static str, words: String) {
        let line = usize::MAX;
        self.mishap = Some(Violation { promise, words, line, lease: None });
    }

    /// What it came to. `whole` if the story had its quiet end.
    pub fn judge(self, whole: bool) -> SeedReport {
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
        .or(self.mishap.map(|mishap| Violation { line: last, ..mishap }))
        .or_else(|| delivery::check(&lines).filter(|_| whole));
        let count = |is: fn(&HistoryEvent) -> bool| {
            lines.iter().filter(|line| is(&line.what)).count() as u64
        };
        SeedReport {
            seed: self.setting.seed,
            replay: self.setting.replay,
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

/// What is special about a setting, in words.
fn drawn(setting: &ScenarioSettings, happened: StreamFaults) -> Vec<String> {
    let mode = format!("{:?}", setting.temper.mode);
    let start = format!("{:?}", setting.start);
    // Without the numbers, which differ from fleet to fleet.
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

/// Makes the rows of an application that ran under an old KCL version.
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
