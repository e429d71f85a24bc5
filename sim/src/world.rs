//! A fleet of hosts, a network and a clock. The world advances in rounds, all determined by one
//! seed.
//!
//! ```text
//! seed ──► round: clock advances ─► packets arrive ─► faults strike ─► hosts run, in drawn order
//! ```

use crate::clock::WorldClock;
use crate::faults::host_faults::HostFault;
use crate::faults::{FaultKind, HostFaultRates, Network};
use crate::history::{History, HistoryEvent, HostId};
use crate::host::{ClockRuns, Host, HostStart};
use fastrand::Rng;

/// Maximum length of a round, in milliseconds. Shorter rounds interleave hosts more finely.
const ROUND_MAX_MS: u64 = 20;

/// Maximum clock skew of a host, in thousandths.
const SKEW_MAX: i64 = 30;

/// A fleet of hosts, a network and a clock.
pub struct World {
    /// World time.
    clock: WorldClock,
    /// Decides everything that the world itself does.
    rng: Rng,
    /// Decides the newer kinds of faults.
    apart: Rng,
    /// Carries the hosts' calls.
    network: Network,
    /// Events so far.
    history: History,
    /// Hosts, by number.
    hosts: Vec<Host>,
    /// Current rates of host faults.
    chaos: HostFaultRates,
    /// Hosts that freeze as soon as they wait for a store poll, and for how many milliseconds.
    to_freeze: Vec<(HostId, u64)>,
    /// Starts the runs of hosts.
    boot: HostStart,
    /// A fatal error, such as a panic.
    mishap: Option<String>,
}

/// The parts of a world before it has hosts.
#[derive(Clone)]
pub struct WorldSetup {
    /// World time.
    pub clock: WorldClock,
    /// Carries the hosts' calls.
    pub network: Network,
    /// Receives the events.
    pub history: History,
}

impl WorldSetup {
    /// Creates an empty world.
    pub fn new(seed: u64) -> Self {
        let clock = WorldClock::default();
        let network = Network::new(seed ^ 0x6e65_7477, clock.clone());
        Self { history: History::new(clock.clone()), network, clock }
    }
}

impl World {
    /// Creates a world with `hosts` hosts that run what `boot` creates.
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

    /// Sets the rates of host faults.
    pub fn set_chaos(&mut self, chaos: HostFaultRates) {
        self.chaos = chaos;
    }

    /// Ends all faults: the network is fair, frozen hosts resume and hosts that are down start,
    /// except for `dead`, which stays down for good.
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
            self.history.note_what(HistoryEvent::Crashed { host: dead, for_ms: None });
            self.hosts[dead.0].crash(u64::MAX);
        }
    }

    /// Returns the world time, in milliseconds.
    pub fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Returns the RNG of the world.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// Iterates over the hosts on which something runs.
    pub fn up(&self) -> impl Iterator<Item = HostId> {
        self.hosts.iter().enumerate().filter(|(_, host)| host.is_up()).map(|(id, _)| HostId(id))
    }

    /// Advances all running host clocks at once, without any events in between.
    pub fn jump(&mut self, by_ms: u64) {
        for host in &mut self.hosts {
            host.jump(by_ms);
        }
    }

    /// Iterates over the hosts on which something runs or is frozen.
    pub fn running_hosts(&self) -> impl Iterator<Item = HostId> {
        self.hosts
            .iter()
            .enumerate()
            .filter(|(_, host)| host.is_running_or_frozen())
            .map(|(id, _)| HostId(id))
    }

    /// Runs rounds for at least `for_ms`. Calls `each` after every one with its length.
    pub fn run(&mut self, for_ms: u64, mut each: impl FnMut(&mut Self, u64)) -> Result<(), String> {
        let end = self.now_ms() + for_ms;
        while self.now_ms() < end {
            let step = self.round()?;
            each(self, step);
        }
        Ok(())
    }

    /// Runs one round. Returns its length in milliseconds.
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

    /// Counts a fault, if it had an effect.
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

    /// Applies a fault to a host now.
    pub fn apply_fault(&mut self, blow: HostFault) {
        let now_ms = self.now_ms();
        match blow {
            HostFault::Crash(host, for_ms) => {
                self.history.note_what(HistoryEvent::Crashed { host, for_ms: Some(for_ms) });
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

    /// Starts all hosts that are down, and resumes frozen ones.
    pub fn boot_all(&mut self) {
        let now_ms = self.now_ms();
        for host in &mut self.hosts {
            host.recover(now_ms);
        }
    }
}
