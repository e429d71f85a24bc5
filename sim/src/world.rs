//! A fleet of hosts, a network and a clock: the world moves in rounds, all decided by one seed.
//!
//! ```text
//! seed ──► round: the clock moves ─► packets arrive ─► blows fall ─► hosts run, in drawn order
//! ```

use crate::clock::WorldClock;
use crate::faults::host_faults::HostFault;
use crate::faults::{FaultKind, HostFaultRates, Network};
use crate::history::{History, HostId};
use crate::host::{ClockRuns, Host, HostStart};
use fastrand::Rng;

/// The longest round. The shorter the rounds, the finer hosts interleave.
const ROUND_MAX_MS: u64 = 20;

/// How wrong the clock of a host may go, in thousandths.
const SKEW_MAX: i64 = 30;

/// A fleet of hosts, a network and a clock.
pub struct World {
    /// The world's time.
    clock: WorldClock,
    /// Decides all that the world itself does.
    rng: Rng,
    /// Decides on the newer kinds of blows.
    apart: Rng,
    /// What carries the hosts' calls.
    network: Network,
    /// What happened so far.
    history: History,
    /// The hosts, by number.
    hosts: Vec<Host>,
    /// What befalls them for now.
    chaos: HostFaultRates,
    /// Hosts that are to freeze as soon as they wait for a look at the store, and for how long.
    to_freeze: Vec<(HostId, u64)>,
    /// What a host runs.
    boot: HostStart,
    /// Something that must not happen at all, such as a panic.
    mishap: Option<String>,
}

/// What a world is made of before it has hosts.
#[derive(Clone)]
pub struct WorldSetup {
    /// The world's time.
    pub clock: WorldClock,
    /// What carries the hosts' calls.
    pub network: Network,
    /// What happens.
    pub history: History,
}

impl WorldSetup {
    /// An empty world.
    pub fn new(seed: u64) -> Self {
        let clock = WorldClock::default();
        let network = Network::new(seed ^ 0x6e65_7477, clock.clone());
        Self { history: History::new(clock.clone()), network, clock }
    }
}

impl World {
    /// A world with `hosts` hosts that run what `boot` makes.
    pub fn new(seed: u64, ground: WorldSetup, hosts: usize, boot: HostStart) -> Self {
        let mut rng = Rng::with_seed(seed);
        let skewed = rng.bool();
        let skew = |rng: &mut Rng| if skewed { rng.i64(-SKEW_MAX..=SKEW_MAX) } else { 0 };
        let hosts = (0..hosts).map(|id| Host::new(HostId(id), skew(&mut rng))).collect();
        let WorldSetup { clock, network, history } = ground;
        let chaos = HostFaultRates::none();
        let to_freeze = Vec::new();
        let apart = Rng::with_seed(seed ^ 0x626c_6f77_7300_0000);
        Self { clock, rng, apart, network, history, hosts, chaos, to_freeze, boot, mishap: None }
    }

    /// From now on this befalls the hosts.
    pub fn set_chaos(&mut self, chaos: HostFaultRates) {
        self.chaos = chaos;
    }

    /// All faults end: the network is fair, frozen hosts go on and hosts that are down boot, but
    /// for the one that stays down for good, if any.
    pub fn stop_faults(&mut self, dead: Option<HostId>) {
        self.history.note_world("faults end");
        self.chaos = HostFaultRates::none();
        self.to_freeze.clear();
        self.network.clear();
        let now = self.now_ms();
        for host in &mut self.hosts {
            host.recover(now);
        }
        if let Some(dead) = dead {
            self.history.note_world(format!("{dead} dies for good"));
            self.hosts[dead.0].crash(u64::MAX);
        }
    }

    /// The world's time.
    pub fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Decides what the world itself does.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// The hosts on which something runs.
    pub fn up(&self) -> impl Iterator<Item = HostId> {
        self.hosts.iter().enumerate().filter(|(_, host)| host.is_up()).map(|(id, _)| HostId(id))
    }

    /// Much time passes at once, in which nothing happens: every clock of a host jumps that runs.
    pub fn jump(&mut self, by_ms: u64) {
        for host in &mut self.hosts {
            host.jump(by_ms);
        }
    }

    /// The hosts on which something runs, or stands still.
    pub fn running_hosts(&self) -> impl Iterator<Item = HostId> {
        self.hosts
            .iter()
            .enumerate()
            .filter(|(_, host)| host.is_running_or_frozen())
            .map(|(id, _)| HostId(id))
    }

    /// Runs rounds for a while. `each` is called after every one.
    pub fn run(&mut self, for_ms: u64, mut each: impl FnMut(&mut Self, u64)) -> Result<(), String> {
        let end = self.now_ms() + for_ms;
        while self.now_ms() < end {
            let step = self.round()?;
            each(self, step);
        }
        Ok(())
    }

    /// One round. Gives its length.
    fn round(&mut self) -> Result<u64, String> {
        let step_ms = self.rng.u64(1..=ROUND_MAX_MS);
        self.clock.advance(step_ms);
        self.network.deliver();
        self.strike(step_ms);
        let mut order: Vec<usize> = (0..self.hosts.len()).collect();
        self.rng.shuffle(&mut order);
        let now_ms = self.now_ms();
        for at in order {
            let seed = self.rng.u64(..);
            let host = &mut self.hosts[at];
            if let Err(mishap) = host.tick(now_ms, step_ms, seed, &self.boot, &self.history) {
                self.mishap = Some(mishap);
            }
        }
        self.mishap.take().map_or(Ok(step_ms), Err)
    }

    fn freeze(&mut self, host: HostId, for_ms: u64) {
        self.history.note_world(format!("{host} freezes for {for_ms} ms"));
        let now_ms = self.now_ms();
        let happens = self.hosts[host.0].freeze(now_ms, now_ms + for_ms, ClockRuns::Yes);
        self.count(happens, FaultKind::Freeze);
    }

    fn pause(&mut self, host: HostId, for_ms: u64) {
        self.history.note_world(format!("{host} is paused for {for_ms} ms, and so is its clock"));
        let now_ms = self.now_ms();
        let happens = self.hosts[host.0].freeze(now_ms, now_ms + for_ms, ClockRuns::No);
        self.count(happens, FaultKind::Pause);
    }

    /// Counts a blow, if it met something.
    fn count(&self, happens: bool, fault: FaultKind) {
        if happens {
            self.network.count(fault);
        }
    }

    fn strike(&mut self, step_ms: u64) {
        let history = self.history.clone();
        let note = move |words| history.note_world(words);
        let hosts = self.hosts.len();
        let (rng, apart) = (&mut self.rng, &mut self.apart);
        let blows = self.chaos.draw(rng, apart, step_ms, hosts, &self.network, &note);
        let (due, later) = std::mem::take(&mut self.to_freeze)
            .into_iter()
            .partition(|(host, _)| self.network.looks(*host));
        self.to_freeze = later;
        let due: Vec<(HostId, u64)> = due;
        for (host, for_ms) in due {
            self.freeze(host, for_ms);
        }
        for blow in blows {
            self.apply_fault(blow);
        }
    }

    /// This befalls a host now.
    pub fn apply_fault(&mut self, blow: HostFault) {
        let now_ms = self.now_ms();
        match blow {
            HostFault::Crash(host, for_ms) => {
                self.history.note_world(format!("{host} crashes for {for_ms} ms"));
                let happens = self.hosts[host.0].crash(now_ms.saturating_add(for_ms));
                self.count(happens, FaultKind::Crash);
            }
            HostFault::Freeze(host, for_ms) => self.freeze(host, for_ms),
            HostFault::Pause(host, for_ms) => self.pause(host, for_ms),
            HostFault::FreezeWhilePolling(host, for_ms) => self.to_freeze.push((host, for_ms)),
            HostFault::Stop(host, rest_ms) => {
                self.history.note_world(format!("{host} is asked to stop"));
                let happens = self.hosts[host.0].stop(rest_ms);
                self.count(happens, FaultKind::Stop);
            }
        }
    }

    /// Hosts that are down boot at once.
    pub fn boot_all(&mut self) {
        let now_ms = self.now_ms();
        for host in &mut self.hosts {
            host.recover(now_ms);
        }
    }
}
