//! A fleet of real consumers on a stream with real records: what every story about them begins with.

use super::report::Report;
use crate::checkers::{self, Violation, delivery};
use crate::faults::Fault;
use crate::faults::chaos::Blow;
use crate::flaw::consumer::ConsumerFlaw;
use crate::fleet::{Fleet, LEASE_TIME_MS, PATIENCE_MS, Temper};
use crate::history::{HostId, What};
use crate::supply::{Mix, Supply};
use crate::workload::{Reshard, STREAM};
use crate::world::{Ground, World};
use anabranch::lease::MemoryStore;
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{Layout, Lease, LeaseChange, Outcome, Write};
use fastrand::Rng;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// After this time nothing from the time of faults is in flight any more.
const SETTLE_MS: u64 = PATIENCE_MS * 14;

/// When everything is done at the latest, after the last fault: two lease times until each shard is
/// owned, and one to read what is left and to write it down.
const DRAINED_MS: u64 = LEASE_TIME_MS * 3;

/// The pause between two looks whether everything is done.
const LOOK_MS: u64 = 250;

/// The promise of liveness.
pub const LIVENESS: &str = "once faults stop, everything is soon done and written down";

/// What a story begins with.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Which seed.
    pub seed: u64,
    /// The one command that replays it.
    pub replay: String,
    /// How many hosts there are.
    pub hosts: usize,
    /// The stream and its records.
    pub mix: Mix,
    /// How the handlers are.
    pub temper: Temper,
    /// The mean time between two puts.
    pub put_every_ms: u64,
    /// What is broken.
    pub flaw: ConsumerFlaw,
}

/// A fleet, its world, and what went wrong in it so far.
pub struct Stage {
    setting: Setting,
    /// What every host works with.
    pub fleet: Fleet,
    /// The hosts.
    pub world: World,
    /// Decides what the story leaves open.
    pub rng: Rng,
    /// Whether records are put while time goes by.
    pub puts: bool,
    /// What must not happen at all, such as a panic.
    mishap: Option<Violation>,
}

impl Stage {
    /// A world that begins.
    pub fn new(setting: Setting) -> Self {
        let mut rng = Rng::with_seed(setting.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let ground = Ground::new(setting.seed);
        let supply = Supply::new(&setting.mix, ground.history.clone(), &mut rng);
        let fleet = Fleet {
            ground: ground.clone(),
            supply,
            rows: MemoryStore::new(Layout::Native),
            temper: setting.temper.clone(),
            calm: Arc::default(),
            flaw: setting.flaw,
        };
        let world = World::new(setting.seed, ground, setting.hosts, fleet.boot());
        Self { setting, fleet, world, rng, puts: true, mishap: None }
    }

    /// The stream and its records.
    pub fn supply(&self) -> &Supply {
        &self.fleet.supply
    }

    /// One of the hosts.
    pub fn any_host(&mut self) -> HostId {
        HostId(self.rng.usize(0..self.setting.hosts))
    }

    /// Lets time go by.
    pub fn run(&mut self, for_ms: u64) {
        if self.mishap.is_some() {
            return;
        }
        let (supply, rng) = (self.fleet.supply.clone(), &mut self.rng);
        let every_ms = self.puts.then_some(self.setting.put_every_ms);
        let ran = self.world.run(for_ms, |_, step_ms| {
            supply.advance(step_ms);
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
            self.world.befall(Blow::Stop(HostId(host), u64::MAX));
        }
        self.run(self.setting.temper.grace_ms + LEASE_TIME_MS);
    }

    /// Puts records into the `at`-th open shard.
    pub fn put_into(&mut self, at: usize, count: usize) {
        self.fleet.supply.put_into(at, count, &mut self.rng);
    }

    /// Splits or merges at random.
    pub fn reshard(&mut self) {
        let change = self.fleet.supply.reshard(&mut self.rng);
        let network = &self.fleet.ground.network;
        match change {
            Some(Reshard::Split(_)) => network.count(Fault::Split),
            Some(Reshard::Merge(..)) => network.count(Fault::Merge),
            None => {}
        }
    }

    /// Retention passes for all records.
    pub fn trim(&mut self) {
        self.fleet.ground.network.count(Fault::Trim);
        self.fleet.supply.trim();
    }

    /// The rows as they stand.
    pub fn rows(&self) -> Vec<Lease> {
        let stream = StreamName::from(STREAM);
        self.fleet.rows.snapshot().leases(&stream).cloned().collect()
    }

    /// Faults end, and everything has to be done in time. `dead` stays down for good.
    pub fn quiet(&mut self, dead: Option<HostId>) {
        self.world.calm(None);
        self.fleet.calm.store(true, Ordering::Relaxed);
        self.run(SETTLE_MS);
        self.world.calm(dead);
        self.fleet.supply.put_round(&mut self.rng);
        self.puts = false;
        let end_ms = self.world.now_ms() + DRAINED_MS;
        while let Some(left) = self.fleet.supply.left(&self.rows()) {
            if self.world.now_ms() >= end_ms {
                self.broken(LIVENESS, left);
            }
            if self.mishap.is_some() {
                return;
            }
            self.run(LOOK_MS);
        }
        let took_ms = self.world.now_ms() + DRAINED_MS - end_ms;
        self.fleet.ground.history.note_world(format!("all is done after {took_ms} ms"));
    }

    fn broken(&mut self, promise: &'static str, words: String) {
        let line = usize::MAX;
        self.mishap = Some(Violation { promise, words, line, lease: None });
    }

    /// What it came to. `whole` if the story had its quiet end.
    pub fn judge(self, whole: bool) -> Report {
        let lines = self.fleet.ground.history.take();
        let last = lines.len().saturating_sub(1);
        let violation = checkers::of_consumer(&lines)
            .or(self.mishap.map(|mishap| Violation { line: last, ..mishap }))
            .or_else(|| delivery::check(&lines).filter(|_| whole));
        let count =
            |is: fn(&What) -> bool| lines.iter().filter(|line| is(&line.what)).count() as u64;
        Report {
            seed: self.setting.seed,
            replay: self.setting.replay,
            violation,
            virtual_ms: self.world.now_ms(),
            faults: self.fleet.ground.network.counts(),
            moves: count(is_move),
            placed: 0,
            deliveries: count(|what| matches!(what, What::Handed { .. })),
            lines,
        }
    }
}

fn is_move(what: &What) -> bool {
    let What::Landed { write: Write::Lease { change, .. }, outcome: Outcome::Done(_) } = what
    else {
        return false;
    };
    matches!(change, LeaseChange::Take { .. } | LeaseChange::Pass { .. })
}
